"""What an agent shows of its node: who uses what, and what is wrong. For people and for programs.

The sentences are made here, once, so that the terminal, the web page and whoever asks with curl
are told the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agent.domain.accounting import ContainerUse, DeviceUse, GpuUse, NodeUse
from agent.domain.bypass import Bypass, Kind
from agent.domain.enforcement import EXPLAINED, Reason, State
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.plain_figures import size_text, span_text
from agent.domain.region import Refusal

FRESH_FOR_S = 30.0  # beyond, what is shown is called old
REFUSAL_TOLD_FOR_S = 300.0
MIB = 1 << 20
NS_PER_S = 1_000_000_000
_NO_GPUS: Mapping[str, str] = MappingProxyType({})
_UNKNOWN: Mapping[Reason, str] = MappingProxyType({
    Reason.UNSEEN: "it is not known whether its limits hold, because the agent does not see the "
    "processes of pods; give it the host's /proc (--host-proc), or hostPID: true",
    Reason.UNREADABLE: "it is not known whether its limits hold, because the agent may not look "
    "into its processes; run it as root with the capability SYS_PTRACE",
    Reason.GPUS_UNKNOWN: "a process uses a GPU without the library, and it is not known whether a "
    "limit holds there, because the agent knows no GPUs; vgpu-agent doctor says why",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    """The use of GPUs with what else there is to know for reading it."""

    answered_at_s: float  # unix time; `use` is older
    node: str
    agent_version: str
    use: NodeUse
    unhealthy: Mapping[str, str] = field(default_factory=lambda: _NO_GPUS)  # uuid -> why
    bypasses: tuple[Bypass, ...] = ()
    missing: tuple[str, ...] = ()  # why the node serves no pods, a sentence each

    @staticmethod
    def of(
        use: NodeUse, inventory: GpuInventory, *, answered_at_s: float, node: str,
        agent_version: str, bypasses: tuple[Bypass, ...] = (), missing: tuple[str, ...] = (),
    ) -> "NodePicture":  # fmt: skip
        """With the GPUs' health, and those of which the driver tells no figures (any more)."""
        told = {gpu.uuid for gpu in use.gpus}
        silent = (_silent(gpu) for gpu in inventory.gpus if gpu.uuid not in told)
        gpus = tuple(sorted((*use.gpus, *silent), key=lambda gpu: gpu.index))
        return NodePicture(
            answered_at_s=answered_at_s,
            node=node,
            agent_version=agent_version,
            use=replace(use, gpus=gpus),
            unhealthy=MappingProxyType(
                {gpu.uuid: gpu.unhealthy_reason for gpu in inventory.gpus if not gpu.healthy}
            ),
            bypasses=bypasses,
            missing=missing,
        )

    @property
    def age_s(self) -> float:
        """How old the figures are."""
        return max(0.0, self.answered_at_s - self.use.taken_at_s)

    def label(self, uuid: str) -> str:
        """A GPU as people name it."""
        index = next((gpu.index for gpu in self.use.gpus if gpu.uuid == uuid), None)
        return f"GPU {uuid}" if index is None else f"GPU {index}"


def _silent(gpu: Gpu) -> GpuUse:
    return GpuUse(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        mig_enabled=gpu.mig_enabled,
        memory_used_bytes=None,
        memory_total_bytes=None if gpu.memory_mib is None else gpu.memory_mib * MIB,
        utilisation_percent=None,
        memory_utilisation_percent=None,
        processes=None,
    )


def of_node(picture: NodePicture) -> tuple[str, ...]:
    """What is wrong with the whole of it."""
    use = picture.use
    said = list(picture.missing)
    if not use.taken_at_s:
        said.append("the agent has not looked at its GPUs yet; wait a moment")
    elif picture.age_s > FRESH_FOR_S:
        said.append(
            f"these figures are {span_text(picture.age_s)} old, because the agent has no fresh "
            "ones; look at its log"
        )
    if use.gpus_problem:
        said.append(use.gpus_problem)
    named = {(one.namespace, one.pod, one.container) for one in use.containers}
    known = {gpu.uuid for gpu in use.gpus}
    said += [
        _of_whom(bypass, use)
        for bypass in picture.bypasses
        if bypass.gpu not in known and (bypass.namespace, bypass.pod, bypass.container) not in named
    ]
    return _each_once(said)


def of_gpu(picture: NodePicture, gpu: GpuUse) -> tuple[str, ...]:
    """What is wrong with a GPU, and with those on it who have no grant."""
    said = []
    if reason := picture.unhealthy.get(gpu.uuid):
        said.append(f"unhealthy: {reason}")
    named = {(one.namespace, one.pod, one.container) for one in picture.use.containers}
    said += [
        _of_whom(bypass, picture.use)
        for bypass in picture.bypasses
        if bypass.gpu == gpu.uuid and (bypass.namespace, bypass.pod, bypass.container) not in named
    ]
    return _each_once(said)


def of_container(picture: NodePicture, one: ContainerUse) -> tuple[str, ...]:
    """What is wrong with a container, worst first."""
    said = []
    state = one.state
    escaped = state is not None and state.state is State.NOT_ENFORCEABLE
    if state is not None and escaped:
        said.append(f"limits do not hold: {EXPLAINED.get(state.reason, state.reason)}")
    elif state is not None and state.state is State.OFF and not unlimited(one):
        said.append("limits are switched off, as its author asked")
    elif state is not None and state.reason in _UNKNOWN:
        said.append(_UNKNOWN[state.reason])
    said += [
        _explained(bypass, picture.use)
        for bypass in picture.bypasses
        if (bypass.namespace, bypass.pod, bypass.container)
        == (one.namespace, one.pod, one.container)
        and bypass.kind is not Kind.NOT_ENFORCED  # said above
    ]
    if one.region_problem:
        said.append(f"what it uses is not known: {one.region_problem}")
    for device in one.devices:
        said += _of_device(picture, device, held=not escaped)
    said += _refused(picture, one)
    return _each_once(said)


def unlimited(one: ContainerUse) -> bool:
    """Whether no library is to keep limits in it: the hardware does (MIG), or there are none."""
    if one.state is None:
        return False
    return one.state.state is State.UNLIMITED or (
        one.state.state is State.OFF and not one.hook_version
    )


def never_launched(one: ContainerUse) -> bool:
    """Whether its library counts what it launches, and there was nothing."""
    counted = [device.reported.launches for device in one.devices if device.reported is not None]
    return bool(counted) and all(launches == 0 for launches in counted)


def over_limit_bytes(device: DeviceUse) -> int:
    """By how much a container is above its limit, by its own word or the driver's."""
    if not device.memory_limit_bytes or device.reported is None:
        return 0
    return max(0, device.reported.used_bytes - device.memory_limit_bytes)


def _of_device(picture: NodePicture, device: DeviceUse, *, held: bool) -> Iterable[str]:
    """`held`: to its limits, as far as is known."""
    where = picture.label(device.uuid)
    if picture.use.gpus and all(gpu.uuid != device.uuid for gpu in picture.use.gpus):
        yield f"its {where} is not on this node any more; delete the pod, so that it gets another"
    if over := over_limit_bytes(device):
        follows = "; it gets no more memory until it has freed that" if held else ""
        yield f"over its limit on {where} by {size_text(over)}{follows}"
    if device.disagrees:
        counted = "nothing" if device.reported is None else size_text(device.reported.used_bytes)
        driver = "more" if device.driver_bytes is None else size_text(device.driver_bytes)
        yield (f"its figures for {where} are not true: it counts {counted}, the driver {driver}")
    if device.blocked:
        yield f"waits on {where} for a container of higher priority"


def _refused(picture: NodePicture, one: ContainerUse) -> Iterable[str]:
    if not one.refusals:
        return
    last = one.refusals[-1]
    ago_s = picture.use.taken_at_s - last.time_ns / NS_PER_S
    if not -1.0 <= ago_s <= REFUSAL_TOLD_FOR_S:
        return
    uuid = next((device.uuid for device in one.devices if device.place == last.place), "")
    where = f" on {picture.label(uuid)}" if uuid else ""
    yield (
        f"was refused {_mib(last.asked_bytes)} MiB{where} {span_text(max(0.0, ago_s))} ago: "
        f"{_mib(last.used_bytes)} of {_mib(last.limit_bytes)} MiB in use{_by_how_much(last)}"
    )


def _by_how_much(refusal: Refusal) -> str:
    over = refusal.asked_bytes + refusal.used_bytes - refusal.limit_bytes
    return f", {size_text(over)} over" if 0 < over < refusal.asked_bytes else ""


def _mib(size_bytes: int) -> str:
    """In MiB, to a tenth: rounded to GiB, what was over by little would seem to fit."""
    return f"{size_bytes / MIB:.1f}".removesuffix(".0")


def _explained(bypass: Bypass, use: NodeUse) -> str:
    """Its sentence, with a GPU that is shown here called by the number it is shown by."""
    said = bypass.explained or str(bypass.kind)
    for gpu in use.gpus:
        if gpu.uuid == bypass.gpu:
            return said.replace(f"the GPU {gpu.uuid}", f"GPU {gpu.index}")
    return said


def _of_whom(bypass: Bypass, use: NodeUse) -> str:
    said = _explained(bypass, use)
    if bypass.pod and bypass.pod not in said:
        return f"pod {bypass.namespace}/{bypass.pod}: {said}"
    return said


def _each_once(said: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said))
