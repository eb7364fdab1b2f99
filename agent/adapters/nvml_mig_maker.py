"""Divides GPUs through NVML: implements `agent.ports.MigMaker`.

NVML is held only while something is looked at or done, so that the thread that watches the GPUs is
not disturbed. Needs root, and in a container the device node of the capability `mig/config`.
Source: NVML API reference, "Multi Instance GPU Management".
"""

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pynvml

from agent import logs
from agent.adapters.nvml import asking, if_offered
from agent.adapters.nvml_mig import (
    GONE,
    NO_SUCH,
    NOBODY_THERE,
    PROFILES,
    if_told,
    mig_handles,
)
from agent.adapters.nvml_use import COMPUTE, GRAPHICS, has_odd_lists, held, listed_by
from agent.domain.gpu import MigPlacement
from agent.domain.mig import DividedGpu, MigInstance
from agent.errors import MigInUse, NvmlError

log = logs.get(__name__)

MOST_INSTANCES = 64
COMPUTE_PROFILES = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
SHARED_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


class NvmlMigMaker:
    """Implements `agent.ports.MigMaker`; keeps nothing between two calls."""

    def look(self, gpu_uuid: str) -> DividedGpu:
        """What the GPU is divided into now. Raises NvmlError."""
        with held(), asking(f"what GPU {gpu_uuid} is divided into cannot be read"):
            return _look(gpu_uuid, pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid))

    def enable(self, gpu_uuid: str) -> None:
        """Put the GPU into MIG mode. Raises MigInUse when it has to wait, NvmlError."""
        with held(), asking(f"GPU {gpu_uuid} cannot be put into MIG mode"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            status = pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
            if status not in (None, pynvml.NVML_SUCCESS):
                raise pynvml.NVMLError(int(status))
            if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
                raise MigInUse(
                    f"GPU {gpu_uuid} is in MIG mode only after its reset: this model needs one; "
                    "run nvidia-smi --gpu-reset while nothing uses it, or restart the node",
                    code=pynvml.NVML_ERROR_IN_USE,
                )

    def create(self, gpu_uuid: str, profile_id: int, placement: MigPlacement) -> MigInstance:
        """See `MigMaker.create`. Raises MigNoRoom, NvmlError."""
        where = f"{placement.start}+{placement.size}"
        with held(), asking(f"no instance {profile_id} can be made at {where} of GPU {gpu_uuid}"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
            instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                handle, profile_id, ctypes.byref(place)
            )
            try:
                _fill(instance)
                made = _described(gpu_uuid, handle, instance)
            except (pynvml.NVMLError, NvmlError):
                _take_away(instance)
                raise
            if not made.devices:
                _take_away(instance)
                raise NvmlError(f"the instance made at {where} of GPU {gpu_uuid} has no device")
            return made

    def complete(self, instance: MigInstance) -> MigInstance:
        """See `MigMaker.complete`. Raises NvmlError."""
        about = f"instance {instance.gpu_instance} of GPU {instance.gpu_uuid}"
        with held(), asking(f"{about} cannot be completed"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(instance.gpu_uuid)
            found = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance)
            _fill(found)
            return _described(instance.gpu_uuid, handle, found)

    def destroy(self, instance: MigInstance) -> None:
        """See `MigMaker.destroy`. Raises MigInUse, NvmlError."""
        about = f"instance {instance.gpu_instance} of GPU {instance.gpu_uuid}"
        with held(), asking(f"{about} cannot be destroyed"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(instance.gpu_uuid)
            found = if_told(
                lambda: pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance), GONE
            )
            if found is None:
                return
            now = _placement(pynvml.nvmlGpuInstanceGetInfo(found))
            if now != instance.placement:
                return  # another one has its number by now
            for compute in _compute_instances(found):
                pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(found)


def _take_away(instance: Any) -> None:
    """Best effort: what is left is found, and destroyed, by the next look."""
    try:
        # Which compute instances it has may be what could not be told; perhaps it has none.
        with suppress(pynvml.NVMLError):
            for compute in _compute_instances(instance):
                pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError as error:
        log.failing("mig instance not taken back", error=error)


def _compute_profile(instance: Any, number: int) -> Any:
    return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, number, SHARED_ENGINES, version=1
    )


def _fill(instance: Any) -> None:
    """Give the instance the one compute instance that has all of its slices."""
    best: Any = None
    for number in range(COMPUTE_PROFILES):
        info = if_told(partial(_compute_profile, instance, number), NO_SUCH)
        if info is not None and (best is None or int(info.sliceCount) > int(best.sliceCount)):
            best = info
    if best is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, int(best.id))


def _compute_instances(instance: Any) -> Iterator[Any]:
    for number in range(COMPUTE_PROFILES):
        info = if_told(partial(_compute_profile, instance, number), NO_SUCH)
        if info is None:
            continue
        count = pynvml.c_uint(MOST_INSTANCES)
        room = (pynvml.c_nvmlComputeInstance_t * MOST_INSTANCES)()
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, int(info.id), room, ctypes.byref(count))
        yield from room[: count.value]


# --- looking ---------------------------------------------------------------------------------


def _look(gpu_uuid: str, handle: Any) -> DividedGpu:
    enabled = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    users = _users(gpu_uuid, handle)
    instances = []
    if enabled:
        devices = _devices(handle)
        instances = [_instance(gpu_uuid, info, devices, users) for info in _gpu_instances(handle)]
    return DividedGpu(
        uuid=gpu_uuid,
        enabled=enabled,
        instances=tuple(sorted(instances, key=lambda one: one.placement)),
        busy=users is None or bool(users),
    )


def _gpu_instances(handle: Any) -> Iterator[Any]:
    profiles = [
        if_told(
            partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, version=1), NO_SUCH
        )
        for number in range(PROFILES)
    ]
    if not any(profiles):  # a GPU in MIG mode has some
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for profile in filter(None, profiles):
        count = pynvml.c_uint(MOST_INSTANCES)
        room = (pynvml.c_nvmlGpuInstance_t * MOST_INSTANCES)()
        pynvml.nvmlDeviceGetGpuInstances(handle, int(profile.id), room, ctypes.byref(count))
        for instance in room[: count.value]:
            yield pynvml.nvmlGpuInstanceGetInfo(instance)


def _described(gpu_uuid: str, handle: Any, instance: Any) -> MigInstance:
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return _instance(gpu_uuid, info, _devices(handle), frozenset())


def _instance(
    gpu_uuid: str,
    info: Any,
    devices: dict[int, list[tuple[int, str]]],
    users: frozenset[int] | None,
) -> MigInstance:
    number = int(info.id)
    return MigInstance(
        gpu_uuid=gpu_uuid,
        gpu_instance=number,
        profile_id=int(info.profileId),
        placement=_placement(info),
        devices=tuple(sorted(devices.get(number, ()))),
        busy=users is None or number in users,
    )


def _placement(info: Any) -> MigPlacement:
    return MigPlacement(int(info.placement.start), int(info.placement.size))


def _devices(handle: Any) -> dict[int, list[tuple[int, str]]]:
    """Compute instance and uuid of every MIG device, by GPU instance."""
    found: dict[int, list[tuple[int, str]]] = {}
    for mig in mig_handles(handle, NOBODY_THERE):
        instance = int(pynvml.nvmlDeviceGetGpuInstanceId(mig))
        compute = int(pynvml.nvmlDeviceGetComputeInstanceId(mig))
        found.setdefault(instance, []).append((compute, str(pynvml.nvmlDeviceGetUUID(mig))))
    return found


def _users(gpu_uuid: str, handle: Any) -> frozenset[int] | None:
    """The GPU instances that processes are on; a number that none has for the GPU as a whole.

    None when the driver does not tell: then it has to count as busy.
    """
    try:
        odd = has_odd_lists()
        listed = listed_by(COMPUTE, handle, odd_lists=odd)
        listed += if_offered(lambda: listed_by(GRAPHICS, handle, odd_lists=odd)) or []
    except pynvml.NVMLError as error:
        log.failing("gpu processes not listed", about=gpu_uuid, error=error)
        return None
    log.recovered("gpu processes not listed", about=gpu_uuid)
    return frozenset(instance for (_, instance, _), _ in listed)
