"""One GPU, one owner: who else hands out, or holds, the GPUs that this agent shares.

Kubelet counts resources, not GPUs: two device plugins may offer the same card under two names, and
nobody would notice until their containers meet on it. What is judged here is kubelet's own list.

Ids of NVIDIA's plugin are `<uuid>`, `<uuid>::<n>` or the index; of HAMi's and Volcano's
`<uuid>-<n>`, `<uuid>-memory-<n>`; of NVIDIA's DRA driver devices are `gpu-<minor>` and
`gpu-<minor>-mig-...`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.vgpu_ids import parse_vgpu_id

NVIDIA_DOMAIN, NVIDIA_DRA_DRIVER = "nvidia.com/", "gpu.nvidia.com"
OFFERED, HELD = "offered", "held"
MAX_TOLD = 256  # claims; who holds one of them is named
MAX_IDS = 4096  # of one resource that are read of kubelet's list
OWN_SOCKET_PREFIX = "vgpu-agent-"  # of this agent, and of another one of this kind

# What the sockets of plugins for NVIDIA's GPUs have in their names: NVIDIA's, HAMi's and Volcano's
# (`nvidia-gpu.sock`), GKE's (`nvidiaGPU-...`), gpushare's, Tencent's (`vcore.sock`), and ours.
PLUGIN_WORDS = ("nvidia", "hami", "volcano", "vgpu", "gpushare", "vcore", "vmemory")

_DRA_DEVICE = re.compile(r"gpu-([0-9]{1,4})(-mig-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that kubelet says a container holds, of whichever resource or DRA driver."""

    holder: str  # "namespace/pod/container"
    manager: str  # name of the resource, or of the DRA driver
    device: str  # id, or name within the driver's pool
    claimed: bool = False  # by a ResourceClaim


@dataclass(frozen=True, slots=True, order=True)
class Rival:
    """Somebody else's hand on one of our GPUs. An empty holder: it is offered, nobody has it."""

    gpu: str  # uuid
    manager: str
    holder: str = ""

    @property
    def state(self) -> str:
        """`held` or `offered`."""
        return HELD if self.holder else OFFERED


def vgpu_of_ours(device: str, gpus: GpuInventory) -> bool:
    """Whether an id has the form that `advertised` gives, of a GPU that is there."""
    parsed = parse_vgpu_id(device)
    return parsed is not None and gpus.gpu(parsed[0]) is not None


def rivals(
    held: Iterable[HeldDevice],
    offered: Mapping[str, Collection[str]],
    *,
    own_resources: Collection[str],
    gpus: GpuInventory,
    own_form: Callable[[str, GpuInventory], bool] = vgpu_of_ours,
) -> tuple[Rival, ...]:
    """Whatever others offer or hold of these GPUs, sorted; at most MAX_TOLD.

    `offered`: by resource, the ids that kubelet could give. Of our own resources what has not our
    ids' form counts, too: held, it is from a plugin that was here before; offered, another plugin
    has taken the name over, and our own registration knows nothing of that.
    """

    def gpu_of(resource: str, device: str) -> str:
        if resource in own_resources and own_form(device, gpus):
            return ""
        return gpu_of_device(resource, device, gpus)

    def is_own(resource: str, ids: Iterable[str]) -> bool:
        """A list is one plugin's as a whole; there may be a hundred thousand ids in ours."""
        first = next(iter(ids), "")
        return resource in own_resources and own_form(first, gpus)

    found = {
        Rival(uuid, one.manager, one.holder)
        for one in held
        if (uuid := _dra_gpu(one, gpus) if one.claimed else gpu_of(one.manager, one.device))
    }
    found |= {
        Rival(uuid, resource)
        for resource, ids in offered.items()
        if not is_own(resource, ids)
        for device in ids
        if (uuid := gpu_of(resource, device))
    }
    return tuple(sorted(found)[:MAX_TOLD])


def as_told(
    offered: Collection[str],
    count: int,
    gpus: GpuInventory,
    own_form: Callable[[str, GpuInventory], bool] = vgpu_of_ours,
) -> bool:
    """Whether what kubelet offers of a resource of ours can be the `count` devices we told it.

    Of a list that is too long to be read as a whole (MAX_IDS) the length says no more than that.
    """
    same_length = min(len(offered), MAX_IDS) == min(count, MAX_IDS)
    return same_length and all(own_form(one, gpus) for one in tuple(offered)[:1])


def may_have_registered(sockets: Iterable[str], before: Collection[str]) -> frozenset[str]:
    """Those of the sockets whose plugin may have registered our name since `before` was seen.

    One that was there before may as well, under another name than it had; but no agent of this
    kind, which makes a socket for each registration.
    """
    return frozenset(
        name
        for name in sockets
        if name not in before
        or (is_plugin_of_gpus(name) and not name.startswith(OWN_SOCKET_PREFIX))
    )


def is_plugin_of_gpus(socket: str) -> bool:
    """Whether a socket in kubelet's directory has the name of a plugin for NVIDIA's GPUs."""
    name = socket.lower()
    return name.endswith(".sock") and any(word in name for word in PLUGIN_WORDS)


def gpu_of_device(resource: str, device: str, gpus: GpuInventory) -> str:
    """The uuid of the GPU that a device id of a resource means; empty: none of these."""
    for gpu in gpus.gpus:
        if gpu.uuid in device:
            return gpu.uuid
        if any(mig.uuid in device for mig in getattr(gpu, "mig_devices", ())):
            return gpu.uuid
    index = device.partition("::")[0]
    if resource.startswith(NVIDIA_DOMAIN) and index.isdecimal() and index.isascii():
        return next((gpu.uuid for gpu in gpus.gpus if str(gpu.index) == index), "")
    return ""


def _dra_gpu(one: HeldDevice, gpus: GpuInventory) -> str:
    match = _DRA_DEVICE.fullmatch(one.device)
    if one.manager != NVIDIA_DRA_DRIVER or match is None:
        return ""
    return next((gpu.uuid for gpu in gpus.gpus if gpu.minor == int(match[1])), "")


def withheld(found: Iterable[Rival]) -> dict[str, str]:
    """Which GPUs get no new vGPUs of ours, and why, as a sentence: those that others hold."""
    reasons: dict[str, str] = {}
    for rival in found:
        if rival.holder and rival.gpu not in reasons:
            reasons[rival.gpu] = (
                f"{rival.holder} has it through {rival.manager}, which another device plugin or "
                "driver hands out: two owners would give the same memory away twice"
            )
    return reasons


def told(rival: Rival, gpu: Gpu | None, own_resources: Collection[str] = ()) -> str:
    """What an operator reads, with what to do."""
    which = f"GPU {gpu.index} {gpu.uuid}" if gpu else f"GPU {rival.gpu}"
    own = rival.manager in own_resources
    if rival.holder:
        who = "another device plugin gave it" if own else "this agent does not hand out"
        return (
            f"{which} is held by {rival.holder} through {rival.manager}, which {who}: no new vGPUs "
            "are given of it until that container has ended"
        )
    if own:
        return (
            f"{which} is offered to kubelet as {rival.manager} by another device plugin, which has "
            "taken that name over from this agent: pods that ask for it get whole GPUs without "
            "limits; delete that plugin or keep it off this node by its nodeSelector"
        )
    return (
        f"{which} is offered to kubelet as {rival.manager} by another device plugin: both would "
        "give it away; delete that plugin, keep it off this node by its nodeSelector, or take the "
        "GPU from one of the two (--filter-device-uuids here)"
    )


def neighbour_told(socket: str) -> str:
    """The same of another plugin that takes connections, whatever it offers."""
    return (
        f"another device plugin for GPUs takes connections at {socket} in kubelet's directory: "
        "should it register a resource of this agent's, kubelet would ask it instead; delete that "
        "plugin, or keep it off this node by its nodeSelector"
    )
