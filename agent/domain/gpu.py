"""A physical GPU as the agent knows it, and the immutable picture of all of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

WHOLE_PERCENT = 100
ROUNDING = 1e-6  # 0.57 * 100 is 56.99999999999999


def scaled(amount: float, scaling: float) -> int:
    """What there is of an amount to hand out. One rule for all: who counts must find the same."""
    return int(amount * scaling + ROUNDING)


@dataclass(frozen=True, slots=True, order=True)
class MigPlacement:
    """Where on a GPU an instance lies: memory slices `start` to `start + size - 1`."""

    start: int
    size: int

    def overlaps(self, other: "MigPlacement") -> bool:
        """Whether both cannot exist at once."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One size of GPU instance that this GPU can be divided into, as the driver tells it."""

    name: str  # "1g.10gb"; "1g.10gb+me" with media engines
    profile_id: int  # by which the driver creates it
    memory_mib: int
    slice_count: int  # compute slices
    multiprocessors: int
    instance_count: int  # the most of them that fit on the GPU
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A compute instance in a GPU instance: what a container gets of a GPU in MIG mode."""

    uuid: str  # "MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
    profile: str  # "1g.10gb"; "1c.2g.10gb" when it has not all of its GPU instance
    memory_mib: int
    gpu_instance: int
    compute_instance: int
    slice_count: int = 1  # compute slices of the GPU instance
    compute_slice_count: int = 1  # those of them that are this device's
    multiprocessors: int = 0
    placement: MigPlacement | None = None  # None: the driver does not say where
    device_nodes: tuple[str, ...] = ()  # /dev/nvidia-caps/nvidia-capN that it needs beside the GPU
    unhealthy_reason: str = ""  # of this instance alone; empty: healthy, as far as its GPU is


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU. An empty `unhealthy_reason` means healthy."""

    uuid: str  # "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
    index: int  # NVML index
    name: str  # product name as NVML gives it, e.g. "NVIDIA A40"
    memory_mib: int | None  # floor(total bytes / 1 MiB); None: the driver does not say (GB10), or 0
    reserved_mib: int = 0  # of these, what the driver keeps for itself; 0 where it does not say
    numa_node: int | None = None
    pci_bus_id: str = ""  # "00000000:17:00.0"
    minor: int | None = None  # N of /dev/nvidiaN
    mig_enabled: bool = False
    mig_devices: tuple[MigDevice, ...] = ()  # by GPU and compute instance; only when enabled
    mig_profiles: tuple[MigProfile, ...] = ()  # empty: not enabled, or the driver does not tell
    unhealthy_reason: str = ""

    @property
    def usable_mib(self) -> int:
        """What programs can have of its memory; 0: nobody knows."""
        return max(0, (self.memory_mib or 0) - self.reserved_mib)

    @property
    def healthy(self) -> bool:
        """Whether new vGPUs of this GPU may be handed out."""
        return not self.unhealthy_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """All GPUs of the node, sorted by index, and whether the driver answers at all.

    `known` is False until NVML has been read once: nothing may be published before.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_error: str = ""  # why there are none, in a sentence; empty: the driver answers
    known: bool = False

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of this uuid, if the node has it."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    @staticmethod
    def of(gpus: Iterable[Gpu]) -> "GpuInventory":
        """A picture of these GPUs, the driver answering."""
        return GpuInventory(gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)), known=True)


@dataclass(frozen=True, slots=True)
class AllowedProfiles:
    """Of GPUs whose product name contains one of `models`, these MIG profiles may be used."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How this node divides its GPUs; the same for the kubelet and the scheduler."""

    split_count: int = 10  # vGPUs advertised per GPU
    memory_scaling: float = 1.0  # > 1: oversubscription
    core_scaling: float = 1.0
    mode: str = "hami-core"  # hami-core | mig | mps
    preconfigured_memory_mib: int = 0  # for GPUs whose driver does not tell; 0: leave them out
    excluded_uuids: frozenset[str] = frozenset()
    excluded_indices: frozenset[int] = frozenset()
    numa_hints: bool = False  # tell kubelet the NUMA node of each vGPU
    mig_allowlist: tuple[AllowedProfiles, ...] = ()  # mode mig; empty: all without extra engines

    def excludes(self, gpu: Gpu) -> bool:
        """Whether this GPU is none of ours by the settings."""
        return gpu.uuid in self.excluded_uuids or gpu.index in self.excluded_indices

    def offers(self, gpu: Gpu) -> bool:
        """Whether it is shared at all: not left out, memory known, divisible if it has to be."""
        if self.excludes(gpu) or (gpu.memory_mib is None and not self.preconfigured_memory_mib):
            return False
        return self.mode != "mig" or bool(self.mig_profiles(gpu))

    def mig_profiles(self, gpu: Gpu) -> tuple[MigProfile, ...]:
        """The MIG profiles of this GPU that may be used: of the first entry that names its model.

        Without any list: all that the driver tells but those with other engines (`+me`, `+gfx`):
        of some there is one per GPU, so a scheduler that goes by memory would take it by accident.
        """
        plain = tuple(p for p in gpu.mig_profiles if "+" not in p.name and "-" not in p.name)
        for entry in self.mig_allowlist:
            if any(model in gpu.name for model in entry.models):
                return tuple(p for p in gpu.mig_profiles if p.name in entry.profiles)
        return () if self.mig_allowlist else plain

    def could_give(self, gpu: Gpu, *, memory_mib: int, core_percent: int) -> bool:
        """Whether a scheduler can have decided on so much of this GPU, all others being away."""
        memory = gpu.memory_mib or self.preconfigured_memory_mib
        return self.mode == "mig" or (
            memory_mib <= scaled(memory, max(1.0, self.memory_scaling))
            and core_percent <= scaled(WHOLE_PERCENT, max(1.0, self.core_scaling))
        )

    def slots(self, gpu: Gpu) -> int:
        """How many vGPUs are advertised of this GPU."""
        if self.mode != "mig":
            return self.split_count
        return max((profile.instance_count for profile in self.mig_profiles(gpu)), default=0)

    def offered(self, inventory: GpuInventory) -> tuple[Gpu, ...]:
        """The shared GPUs, by index, with the memory filled in where it is preconfigured."""
        return tuple(
            gpu
            if gpu.memory_mib is not None
            else replace(gpu, memory_mib=self.preconfigured_memory_mib)
            for gpu in inventory.gpus
            if self.offers(gpu)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """Something the driver reported about one GPU (or, with an empty uuid, about none it names)."""

    uuid: str
    kind: str  # "xid" | "ecc_single" | "ecc_double" | "lost" | "other"
    xid: int = 0
    instance: tuple[int, int] | None = None  # GPU and compute instance; None: the whole GPU

    def concerns(self, device: MigDevice) -> bool:
        """Whether it is about this part of the GPU, and not about all of it."""
        return self.instance == (device.gpu_instance, device.compute_instance)
