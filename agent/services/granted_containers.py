"""Containers with vGPUs, for whoever changes their limits: by what name, what holds, what fits."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.domain.accounting import NodeUse
from agent.domain.gpu import Gpu, Sharing, scaled
from agent.domain.grants import GrantRecord
from agent.domain.lending import WHOLE_PERMILLE
from agent.domain.limit_change import Card, DeviceChange, LimitRefused, Limits, Subject
from agent.domain.limit_lines import limits_in
from agent.domain.limits_file import MIB, LimitsFile, MalformedLimits, decode, encode, limits_of
from agent.domain.mig import mig_uuids
from agent.domain.oversubscription import beside, offered_mib
from agent.domain.pods import Pod
from agent.errors import AgentError
from agent.ports import GrantLog, LiveLimits
from agent.services.published import Inventory, Pods

SHOWN = 20  # candidates


class NoSuchContainer(AgentError):
    """Nobody with vGPUs on this node has that name."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class AmbiguousName(NoSuchContainer):
    """Several have."""


class GrantedContainers:
    """Reads the grants, the pods, the GPUs and the limits files. Thread-safe."""

    def __init__(
        self,
        limits: LiveLimits,
        grants: GrantLog,
        pods: Pods,
        gpus: Inventory,
        sharing: Sharing,
        *,
        use: Callable[[], NodeUse] = NodeUse,
    ) -> None:
        """`use` gives what is counted of each container, which says who is over a limit."""
        self._limits = limits
        self._grants = grants
        self._pods = pods
        self._gpus = gpus
        self._sharing = sharing
        self._use = use

    def live(self) -> list[GrantRecord]:
        """Grants whose containers hold vGPUs; all of them while the pods are not known."""
        return self._holding(ended=False)

    def _holding(self, *, ended: bool) -> list[GrantRecord]:
        """Those of pods that hold vGPUs: of init containers that have ended, or of all others."""
        table, records = self._pods.now(), self._grants.records()
        if not table.synced:
            return [] if ended else list(records)
        return [
            record
            for record in records
            if (pod := table.pods.get(record.pod_uid)) is not None
            and not pod.finished
            and (record.container in pod.ended) is ended
        ]

    def named(self, pod: Pod) -> frozenset[str]:
        """Containers of a pod that have vGPUs, had some or ask for some."""
        granted = {one.container for one in self._grants.records() if one.pod_uid == pod.uid}
        return frozenset(granted | {one.name for one in pod.containers if one.vgpus or one.listed})

    def pod(self, record: GrantRecord) -> Pod | None:
        """Its pod as it is now; None: it is gone."""
        return self._pods.now().pods.get(record.pod_uid)

    def may_come_back(self, pod_uid: str, container: str) -> bool:
        """Whether kubelet may start it again."""
        granted = any(key(record) == (pod_uid, container) for record in self._grants.records())
        return granted or pod_uid in self._pods.now().pods

    def addressed(self, target: str) -> GrantRecord:
        """The only container of that name. Raises NoSuchContainer."""
        records = self.live()
        found = [record for record in records if target in _names(record)]
        if len(found) == 1:
            return found[0]
        candidates = sorted(full_name(record) for record in found or records)
        if found:
            raise AmbiguousName(
                f"{target} may be {', '.join(candidates[:SHOWN])}: write namespace/pod/container",
                candidates,
            )
        no = f"no container {target} has vGPUs on this node"
        if any(target in _names(record) for record in self._holding(ended=True)):
            no = f"no container {target} has vGPUs any more: it was an init container and has ended"
        raise NoSuchContainer(
            f"{no}; those that have: {', '.join(candidates[:SHOWN]) or 'none'}", candidates
        )

    def subject(self, record: GrantRecord) -> Subject:
        """Raises LimitRefused when nothing can be changed, NodeNotReady."""
        if mig := mig_uuids(record.grant):
            raise LimitRefused(
                f"{full_name(record)} has {', '.join(mig)}, which the hardware keeps apart from "
                "the rest of the GPU: the size of a MIG device cannot be changed while it is used; "
                "recreate the pod, asking for another amount of memory"
            )
        file = self._limits.read(record.pod_uid, record.container)
        granted = _granted(record)
        now = limits_in(file) if file else {}
        if granted is None or now.keys() != granted.keys():
            raise LimitRefused(
                f"{full_name(record)} was given its limits by its environment only (there is no "
                "limits file for more than 16 GPUs, and none from other device plugins), so they "
                "cannot be changed while it runs: recreate the pod with other limits"
            )
        return Subject(now=now, granted=granted, cards=self._cards(record, list(now)))

    def _cards(self, record: GrantRecord, uuids: Sequence[str]) -> list[Card]:
        gpus, total = self._offered(), self._total(uuids)
        others = self._others(record, total)
        return [
            Card(
                uuid=uuid,
                index=gpus[uuid.lower()].index if uuid.lower() in gpus else None,
                memory_bytes=total.get(uuid, 0),
                others_bytes=others.get(uuid, 0),
            )
            for uuid in uuids
        ]

    def _offered(self) -> dict[str, Gpu]:
        return {gpu.uuid.lower(): gpu for gpu in self._sharing.offered(self._gpus.now())}

    def _total(self, uuids: Iterable[str]) -> dict[str, int]:
        """Bytes that are to be handed out of these GPUs, with memory scaling."""
        gpus = self._offered()
        return {
            uuid: offered_mib(gpu, self._sharing) * MIB
            for uuid in uuids
            if (gpu := gpus.get(uuid.lower())) is not None
        }

    def _others(self, record: GrantRecord, total: Mapping[str, int]) -> dict[str, int]:
        """What other containers are allowed of these GPUs, at most, while this one runs."""
        pods, by_pod = self._pods.now().pods, dict[str, list[tuple[GrantRecord, Limits]]]()
        for other in self.live():
            file = self._limits.read(other.pod_uid, other.container)
            limits = limits_in(file) if file else _granted(other) or {}
            by_pod.setdefault(other.pod_uid, []).append((other, limits))
        sums = dict.fromkeys(total, 0)
        for uid, limited in by_pod.items():
            of = limited[0][0]
            pod = pods.get(uid) or Pod(namespace=of.namespace, name=of.pod_name, uid=uid)
            this = record.container if record.pod_uid == uid else ""
            for uuid, whole in total.items():
                held = [
                    (one, limits[uuid].memory_limit_bytes or whole)
                    for one, limits in limited
                    if uuid in limits
                ]
                sums[uuid] += beside(pod, held, this)
        return sums

    def has_whole_gpus(self, record: GrantRecord) -> bool | None:
        """Whether its limits, as they are now, leave it all of its GPUs. Raises NodeNotReady.

        None: no GPUs are known (yet).
        """
        if not self._gpus.now().gpus:
            return None
        file = self._limits.read(record.pod_uid, record.container)
        limits = limits_in(file) if file else _granted(record)
        if limits is None:
            return False
        gpus, scaling = self._offered(), max(1.0, self._sharing.memory_scaling)
        most = {uuid: scaled(gpu.usable_mib, scaling) * MIB for uuid, gpu in gpus.items()}
        return all(
            (
                not limit.memory_limit_bytes
                or 0 < most.get(uuid.lower(), 0) <= limit.memory_limit_bytes
            )
            and not 0 < limit.core_permille < WHOLE_PERMILLE
            for uuid, limit in limits.items()
        )

    def changes(
        self, record: GrantRecord, subject: Subject, file: LimitsFile
    ) -> list[DeviceChange]:
        used = self._used(record)
        now = limits_in(file)
        return [
            DeviceChange(
                card=card,
                before=subject.now[card.uuid],
                after=now[card.uuid],
                used_bytes=used.get(card.uuid.lower()),
            )
            for card in subject.cards
        ]

    def _used(self, record: GrantRecord) -> dict[str, int]:
        """Bytes by GPU, as they are counted."""
        for container in self._use().containers:
            if (container.pod_uid, container.container) == key(record):
                return {
                    device.uuid.lower(): used
                    for device in container.devices
                    if (used := device.reported.used_bytes if device.reported
                        else device.driver_bytes) is not None
                }  # fmt: skip
        return {}


def key(record: GrantRecord) -> tuple[str, str]:
    """Pod uid and container."""
    return record.pod_uid, record.container


def full_name(record: GrantRecord) -> str:
    """`namespace/pod/container`."""
    return f"{record.namespace}/{record.pod_name}/{record.container}"


def _names(record: GrantRecord) -> tuple[str, ...]:
    """What a container may be called; who calls it so must mean no other one."""
    pod = record.pod_name
    return (
        full_name(record),
        f"{record.namespace}/{pod}",
        f"{pod}/{record.container}",
        pod,
    )


def _granted(record: GrantRecord) -> Limits | None:
    """What the scheduler granted, by uuid as a limits file has it."""
    limits = limits_of(record.claims, cache_path="")
    try:
        return limits_in(decode(encode(limits))) if limits else None
    except MalformedLimits:
        return None
