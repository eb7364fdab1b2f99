"""Memory limits that the kernel keeps: NVML's call for cgroups, driver r615 and later.

Implements `agent.ports.KernelLimits`. NVML writes the limit into the cgroup (controller dmem, or
the driver's own where the kernel has none), so no program in the container can get round it. The
soft limit, a reservation, is always 0: ancestors would keep it when the cgroup is gone.
Source: NVML API reference v615, nvmlDeviceSetMemoryLimits_v1; NVIDIA, "MPS v3 Memory Partitioning".
"""

import os
from pathlib import Path
from typing import Any

import pynvml

from agent.adapters.nvml import asking
from agent.adapters.nvml_use import held
from agent.domain.container_cgroups import cgroup_paths
from agent.errors import NvmlError

UNOFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})


class NvmlKernelLimits:
    """Keeps nothing between two calls."""

    def __init__(self, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        """`cgroups`: where the host's cgroup v2 file system is mounted."""
        self._cgroups = cgroups

    def cgroup_of(self, pod_uid: str, container_id: str) -> tuple[Path, int] | None:
        """See `KernelLimits.cgroup_of`."""
        for relative in cgroup_paths(pod_uid, container_id):
            path = self._cgroups / relative
            if (inode := _plain_directory(self._cgroups, relative)) is not None:
                return path, inode
        return None

    def limit(self, gpu_uuid: str, cgroup: Path, hard_bytes: int) -> bool:
        """See `KernelLimits.limit`."""
        call = getattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", None)
        if call is None:  # a binding from before
            return False
        with held(), asking(f"the kernel does not limit {cgroup} on GPU {gpu_uuid}"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
            limits.nameSpace = os.fsencode(cgroup)
            limits.softLimit = 0
            limits.hardLimit = hard_bytes
            try:
                call(handle, limits)
            except pynvml.NVMLError as error:
                if error.value in UNOFFERED:
                    return False
                raise
            found = _hard_limit(handle, cgroup)
        if found > hard_bytes:
            raise NvmlError(
                f"the driver says that {cgroup} may hold {found} bytes of GPU {gpu_uuid} after it "
                f"was told {hard_bytes}"
            )
        return True


def _hard_limit(handle: Any, cgroup: Path) -> int:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = os.fsencode(cgroup)
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    return int(limits.hardLimit)


def _plain_directory(root: Path, relative: str) -> int | None:
    """The inode of a directory below `root` to which no link leads; None: there is none."""
    fds = []
    try:
        fds.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in relative.split("/"):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fds.append(os.open(part, flags, dir_fd=fds[-1]))
        return os.fstat(fds[-1]).st_ino
    except OSError:
        return None
    finally:
        for fd in fds:
            os.close(fd)
