"""Who uses which GPU, and how much: one immutable picture of the node, for everybody who shows it.

Three voices say what a container uses: its grant (what it may), its usage region (what its library
counts: self-reported, a tenant can write anything there) and the driver (what is known of its
processes on the node). They stay apart here, so that whoever reads can compare them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from agent.domain.enforcement import ContainerState
from agent.domain.region import ProcessCounters, Refusal


class Tier(StrEnum):
    """What keeps a container's limits."""

    KERNEL = "kernel"  # memory: the kernel, by the container's cgroup; GPU time: our library
    HOOK = "hook"  # our library
    HAMI_CORE = "hami-core"  # HAMi-core's, which was granted before the agent came
    NONE = "none"  # nothing: switched off, not loaded yet, or not enforceable


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU, as the driver lists it."""

    pid: int  # on the node
    used_bytes: int | None  # None: the driver does not tell
    sm_percent: int | None = None  # of the time since the last look


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU as the driver tells. None: it does not tell."""

    uuid: str
    index: int
    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilisation_percent: int | None  # of the time, by any kernel
    memory_utilisation_percent: int | None  # of the time, reading or writing memory
    temperature_celsius: int | None = None
    power_watts: float | None = None
    ecc_corrected: int | None = None  # errors over its life, also of earlier drivers
    ecc_uncorrected: int | None = None
    mig_enabled: bool = False
    processes: tuple[GpuProcess, ...] | None = ()  # None: the driver does not tell

    @property
    def ecc_errors(self) -> tuple[tuple[str, int | None], ...]:
        """How many of each kind, by the names that NVML has for them."""
        return ("corrected", self.ecc_corrected), ("uncorrected", self.ecc_uncorrected)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfReported:
    """What a container's library counts of one GPU. Bytes and counters as a tenant may forge them.

    None: this library does not count it.
    """

    used_bytes: int
    context_bytes: int
    module_bytes: int
    buffer_bytes: int
    limit_bytes: int  # 0: none; as the library understood it
    peak_bytes: int | None = None
    refusals: int | None = None  # allocations refused
    refused_bytes: int | None = None
    gpu_ns: int | None = None  # GPU time charged; counted where a share of it is kept
    throttled_ns: int | None = None
    launches: int | None = None
    sm_percent: int | None = None  # share of the GPU's time since the last look


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters that never go back: not when the agent restarts, nor when a tenant edits its file.

    A step is believed only as far as it is possible (GPU time and throttled time not faster than
    the clock).
    """

    gpu_ns: int = 0
    throttled_ns: int = 0
    refusals: int = 0
    refused_bytes: int = 0
    launches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One GPU of a container."""

    place: int  # the container's index of it
    uuid: str
    memory_limit_bytes: int  # as it is now, live changes included; 0: none
    core_permille: int  # likewise; 0: none
    lent_permille: int = 0  # idle share of others, on top, now
    blocked: bool = False  # by a container of higher priority, now
    reported: SelfReported | None = None  # None: nothing was counted yet, or it is unreadable
    totals: Totals = field(default_factory=Totals)
    driver_bytes: int | None = None  # held by its processes, as the driver tells
    driver_sm_percent: int | None = None  # of the GPU's time, had by its processes; likewise
    disagrees: bool = False  # the driver's figure is beyond what the container counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """A living process of a container, by its own word. All by place."""

    pid: int  # in the container
    host_pid: int  # 0: not known
    used_bytes: tuple[int, ...]
    # Since it began, no more than its container's; none: its library does not count by process.
    counters: tuple[ProcessCounters, ...] = ()
    # GPU time as its library counted it, and as the driver told while that did not; None: neither.
    gpu_ns: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUse:
    """A container with a grant."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    tier: Tier
    hook_version: str  # e.g. "0.3.0-1a2b3c4d"; empty: not known
    priority: int  # by which it is steered: 0 is the highest; 1 is what nobody asked for
    state: ContainerState | None  # None: not judged yet
    devices: tuple[DeviceUse, ...]
    processes: tuple[ProcessUse, ...] = ()  # the 64 that hold most; sums are of all
    last_kernel_s: int = 0  # unix time of the last launch; 0: not known
    refusals: tuple[Refusal, ...] = ()  # the newest, oldest first
    region_problem: str = ""  # why its usage region is not read; empty: it is, or there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """All of it at one moment."""

    taken_at_s: float = 0.0  # unix time; 0: nothing was looked at yet
    gpus: tuple[GpuUse, ...] = ()  # by index
    gpus_problem: str = ""  # why they are not known, in a sentence
    containers: tuple[ContainerUse, ...] = ()  # by namespace, pod, container
    rejected_regions: Mapping[str, int] = field(  # reason -> how often since the agent started
        default_factory=lambda: MappingProxyType({})
    )
