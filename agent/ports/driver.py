"""The NVIDIA driver, as the services need it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from agent.domain.accounting import GpuProcess, GpuUse
from agent.domain.gpu import Gpu, GpuEvent, MigPlacement
from agent.domain.mig import DividedGpu, MigInstance
from agent.domain.topology import GpuPair


class Nvml(Protocol):
    """The NVIDIA driver. Called by the health service's thread alone: any call may hang.

    `answered` is called each time that the driver has answered one of several questions: those
    about sixteen GPUs may take long together, and only one without an answer is a hang.
    """

    def open(self) -> None:
        """Load and initialise the library. Raises NvmlAbsent, NvmlStale."""

    def close(self) -> None:
        """Give it back; never raises."""

    def gpus(self, answered: Callable[[], None]) -> tuple[Gpu, ...]:
        """Every GPU that answers, by index. Raises NvmlError when the driver as a whole fails."""

    def pairs(self, answered: Callable[[], None]) -> tuple[GpuPair, ...]:
        """How every two GPUs are connected. Raises NvmlError."""

    def wait_event(self, timeout_s: float, answered: Callable[[], None]) -> GpuEvent | None:
        """The next event, or None after `timeout_s`. Raises NvmlError."""

    def probe(self, uuid: str) -> None:
        """Ask one GPU for signs of life. Raises GpuLost or NvmlError when there are none."""


class GpuMeter(Protocol):
    """What the driver tells of the use of GPUs. Called by one thread alone: any call may hang."""

    def look(self) -> tuple[GpuUse, ...]:
        """Every GPU that answers, by index. Raises NvmlAbsent, NvmlError."""

    def close(self) -> None:
        """Give the driver's library back; never raises."""


class GpuUsers(Protocol):
    """Who is on the GPUs, by the driver. Called by one thread alone: any call may hang."""

    def look(self) -> Mapping[str, tuple[GpuProcess, ...]]:
        """By GPU, without those whose list the driver does not tell. Raises NvmlError."""


class MigMaker(Protocol):
    """Divides GPUs. Called by one thread at a time; any call may hang, and all raise NvmlError.

    Raises MigInUse when a process is in the way, MigNoRoom when another instance is.
    """

    def look(self, gpu_uuid: str) -> DividedGpu:
        """What the GPU is divided into now."""

    def enable(self, gpu_uuid: str) -> None:
        """Put the GPU into MIG mode; no process may be on it."""

    def create(self, gpu_uuid: str, profile_id: int, placement: MigPlacement) -> MigInstance:
        """Make a GPU instance there, with one compute instance that has all of it, or nothing."""

    def complete(self, instance: MigInstance) -> MigInstance:
        """Make the compute instance of one that has none."""

    def destroy(self, instance: MigInstance) -> None:
        """Take it away, with its compute instances; one that is gone is no error."""


class KernelLimits(Protocol):
    """Limits of GPU memory that the kernel keeps. Called by one thread alone: a call may hang."""

    def cgroup_of(self, pod_uid: str, container_id: str) -> tuple[Path, int] | None:
        """The container's own cgroup on this host, and its inode; None: there is none."""

    def limit(self, gpu_uuid: str, cgroup: Path, hard_bytes: int) -> bool:
        """Let the cgroup hold at most this of the GPU. False: the driver offers no such thing.

        Raises NvmlError.
        """
