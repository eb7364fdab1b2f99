"""What NVML tells of MIG: the profiles of a GPU and the MIG devices that are on it.

The caller translates NVML's exceptions and owns the handles. `agent.adapters.nvml_mig_maker` is for
those who change something. Sources: NVML API reference, "Multi Instance GPU Management"; NVIDIA's
MIG user guide, "Device Nodes and Capabilities"; go-nvlib, for names of profiles.
"""

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from agent import logs
from agent.adapters.nvml_topology import text
from agent.domain.gpu import MigDevice, MigPlacement, MigProfile

log = logs.get(__name__)

PROFILES = 0x12  # GPU instance profiles that NVML 13 knows; those of one GPU are fewer
MOST_PLACEMENTS = 64
READS = 3  # at most, while instances are taken back
MIG_PREFIX = "MIG "  # the driver says "MIG 1g.10gb"
NODE_DIR = "/dev/nvidia-caps"
_MINOR = re.compile(r"gpu(\d{1,4})/gi(\d{1,4})(?:/ci(\d{1,4}))?/access (\d{1,7})", re.ASCII)
_EIGHTHS = 8
# No such profile, not in this mode, an old driver, or not for who we are.
NOT_TOLD = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)


# The same for who is about to change something: what cannot be told may be there.
NO_SUCH = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT})
NOBODY_THERE = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})
GONE = frozenset({pynvml.NVML_ERROR_NOT_FOUND})
NOT_FOR_US = frozenset({pynvml.NVML_ERROR_NO_PERMISSION})


def if_told(call: Callable[[], Any], none: Collection[int] = NOT_TOLD) -> Any:
    """The answer, or None when there is none to be had: errors that are `none`."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in none:
            return None
        raise


# --- profiles --------------------------------------------------------------------------------


def read_profiles(handle: Any) -> tuple[MigProfile, ...]:
    """The GPU instances that this GPU can be divided into. Raises pynvml.NVMLError."""
    total_mib = _total_mib(handle)
    found = (_profile(handle, number, total_mib) for number in range(PROFILES))
    return tuple(profile for profile in found if profile is not None)


def _total_mib(handle: Any) -> int:
    """Of the whole GPU; 0 in a container that may not see all of it (without mig/monitor)."""
    memory = if_told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), NOT_FOR_US)
    return 0 if memory is None else int(memory.total) >> 20


def _profile(handle: Any, number: int, total_mib: int) -> MigProfile | None:
    info = if_told(lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2))
    if info is None:  # a driver before 470 knows no names
        info = if_told(
            lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1)
        )
    if info is None:
        return None
    name = text(getattr(info, "name", b"")).removeprefix(MIG_PREFIX)
    slices, memory_mib = int(info.sliceCount), int(info.memorySizeMB)
    return MigProfile(
        name=name or _name_by_size(slices, memory_mib, total_mib),
        profile_id=int(info.id),
        memory_mib=memory_mib,
        slice_count=slices,
        multiprocessors=int(info.multiprocessorCount),
        instance_count=int(info.instanceCount),
        placements=_placements(handle, int(info.id)),
    )


def _placements(handle: Any, profile_id: int) -> tuple[MigPlacement, ...]:
    """Every place for such an instance, taken or not; empty unless MIG is enabled."""
    count = pynvml.c_uint(MOST_PLACEMENTS)
    room = (pynvml.c_nvmlGpuInstancePlacement_t * MOST_PLACEMENTS)()
    told = if_told(
        lambda: pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            handle, profile_id, room, pynvml.byref(count)
        )
    )
    if told is None:
        return ()
    return tuple(MigPlacement(int(one.start), int(one.size)) for one in room[: count.value])


def _name_by_size(slices: int, memory_mib: int, total_mib: int) -> str:
    if not total_mib:  # it would be called what it is not
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    return f"{slices}g.{size_gb(memory_mib, total_mib)}gb"


def size_gb(memory_mib: int, total_mib: int) -> int:
    """The gigabytes in a profile's name: eighths of the card, which is counted in full GiB."""
    eighths = math.ceil(memory_mib / max(1, total_mib) * _EIGHTHS)
    card_gb = (total_mib + 1023) // 1024
    return int(eighths / _EIGHTHS * card_gb + 0.5)


# --- devices ---------------------------------------------------------------------------------


def read_devices(
    handle: Any, minor: int | None, profiles: Sequence[MigProfile], caps: Path
) -> tuple[MigDevice, ...]:
    """The MIG devices of a GPU in MIG mode. Raises pynvml.NVMLError.

    `caps` is the kernel module's list of what device node stands for which instance. Where one is
    taken back between being listed and being asked, the others are listed again.
    """
    for _ in range(READS - 1):
        with contextlib.suppress(pynvml.NVMLError):
            return _read_devices(handle, minor, profiles, caps)
    return _read_devices(handle, minor, profiles, caps)


def _read_devices(
    handle: Any, minor: int | None, profiles: Sequence[MigProfile], caps: Path
) -> tuple[MigDevice, ...]:
    total_mib = _total_mib(handle)
    nodes = device_nodes(_text_of(caps))
    found = [_device(handle, mig, total_mib, profiles, nodes, minor) for mig in mig_handles(handle)]
    return tuple(sorted(found, key=lambda one: (one.gpu_instance, one.compute_instance)))


def mig_handles(handle: Any, none: Collection[int] = NOT_TOLD) -> Iterator[Any]:
    """Handles of the MIG devices of a GPU, which do not lie close together."""
    for position in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        mig = if_told(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position), none)
        if mig is not None:
            yield mig


def _device(
    handle: Any,
    mig: Any,
    total_mib: int,
    profiles: Sequence[MigProfile],
    nodes: Mapping[tuple[int, ...], str],
    minor: int | None,
) -> MigDevice:
    attributes = pynvml.nvmlDeviceGetAttributes(mig)
    gpu_instance = int(pynvml.nvmlDeviceGetGpuInstanceId(mig))
    compute_instance = int(pynvml.nvmlDeviceGetComputeInstanceId(mig))
    slices = int(attributes.gpuInstanceSliceCount)
    part = int(attributes.computeInstanceSliceCount)
    memory_mib = int(attributes.memorySizeMB)
    info = if_told(
        lambda: pynvml.nvmlGpuInstanceGetInfo(
            pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)
        )
    )
    placement, profile_id = None, None
    if info is not None:
        placement = MigPlacement(int(info.placement.start), int(info.placement.size))
        profile_id = int(info.profileId)
    size = slices, memory_mib  # of several with other engines, the one that has none to name
    alike = sorted((p.name for p in profiles if (p.slice_count, p.memory_mib) == size), key=len)
    name = (
        next((p.name for p in profiles if p.profile_id == profile_id), "")
        or next(iter(alike), "")
        or _name_by_size(slices, memory_mib, total_mib)
    )
    places = (
        [] if minor is None else [(minor, gpu_instance), (minor, gpu_instance, compute_instance)]
    )
    return MigDevice(
        uuid=str(pynvml.nvmlDeviceGetUUID(mig)),
        profile=name if part >= slices else f"{part}c.{name}",
        memory_mib=memory_mib,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        slice_count=slices,
        compute_slice_count=part,
        multiprocessors=int(attributes.multiprocessorCount),
        placement=placement,
        device_nodes=tuple(nodes[place] for place in places if place in nodes),
    )


def device_nodes(minors: str) -> Mapping[tuple[int, ...], str]:
    """`/proc/driver/nvidia-caps/mig-minors`, by (GPU minor, GPU instance[, compute instance]).

    A line is `gpu0/gi1/access 12` or `gpu0/gi1/ci0/access 13`; others are not ours. Total.
    """
    nodes: dict[tuple[int, ...], str] = {}
    for line in minors.splitlines():
        if match := _MINOR.fullmatch(line.strip()):
            *place, minor = (int(part) for part in match.groups() if part is not None)
            nodes[tuple(place)] = f"{NODE_DIR}/nvidia-cap{minor}"
    return nodes


class MigNodes:
    """Device nodes of instances, as the kernel module numbers them now."""

    def __init__(self, mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")) -> None:
        self._path = mig_minors

    def of(self, minor: int | None, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
        """Those of one MIG device beside its GPU's; empty where the kernel tells none."""
        if minor is None:
            return ()
        nodes = device_nodes(_text_of(self._path))
        places = [(minor, gpu_instance), (minor, gpu_instance, compute_instance)]
        return tuple(nodes[place] for place in places if place in nodes)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # no MIG on this kernel, or its /proc is not ours to see
