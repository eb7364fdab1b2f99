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
    ids' form counts, too, if it is held: from a plugin that was here before.
    """

    def gpu_of(one: HeldDevice) -> str:
        if one.claimed:
            return _dra_gpu(one, gpus)
        if one.manager in own_resources and own_form(one.device, gpus):
            return ""
        return gpu_of_device(one.manager, one.device, gpus)

    found = {Rival(uuid, one.manager, one.holder) for one in held if (uuid := gpu_of(one))}
    found |= {
        Rival(uuid, resource)
        for resource, ids in offered.items()
        if resource not in own_resources
        for device in ids
        if (uuid := gpu_of_device(resource, device, gpus))
    }
    return tuple(sorted(found)[:MAX_TOLD])


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


def told(rival: Rival, gpu: Gpu | None) -> str:
    """What an operator reads, with what to do."""
    which = f"GPU {gpu.index} {gpu.uuid}" if gpu else f"GPU {rival.gpu}"
    if rival.holder:
        return (
            f"{which} is held by {rival.holder} through {rival.manager}, which this agent does not "
            "hand out: no new vGPUs are given of it until that container has ended"
        )
    return (
        f"{which} is offered to kubelet as {rival.manager} by another device plugin: both would "
        "give it away; delete that plugin, keep it off this node by its nodeSelector, or take the "
        "GPU from one of the two (--filter-device-uuids here)"
    )
