"""What the services need of the world, in the services' own words.

Each Protocol has one real implementation in `agent.adapters` and one fake in `tests`. Every call
may block at most as long as its docstring or its `deadline_s` says and raises only `AgentError`s.
`deadline_s` is a moment of `time.monotonic()`, not a duration; None means the adapter's default.
"""

from agent.ports.cluster import Cluster, ClusterEvent, Listed, NodeChange, PodChange, Stop
from agent.ports.containers import (
    BlockGuard,
    ChangedLimits,
    ContainerKey,
    Held,
    Leases,
    LiveLimits,
    RegionReader,
    Regions,
    RegionSwitches,
    TotalsStore,
)
from agent.ports.devices import CdiFiles, DriverFiles, Mps
from agent.ports.driver import GpuMeter, GpuUsers, KernelLimits, MigMaker, Nvml
from agent.ports.host import (
    ApplyLock,
    CacheDir,
    Caches,
    GrantLog,
    HookFiles,
    HookListing,
    InstalledHooks,
    MigBook,
    Processes,
    ProcessPlaces,
)
from agent.ports.kubelet import (
    Checkpoint,
    DeviceBooks,
    KubeletAssignment,
    KubeletLink,
    NodeDevices,
    PodList,
    PodLists,
    PodResources,
    SocketWatch,
)

__all__ = [
    "ApplyLock",
    "BlockGuard",
    "CacheDir",
    "Caches",
    "CdiFiles",
    "ChangedLimits",
    "Checkpoint",
    "Cluster",
    "ClusterEvent",
    "ContainerKey",
    "DeviceBooks",
    "DriverFiles",
    "GpuMeter",
    "GpuUsers",
    "GrantLog",
    "Held",
    "HookFiles",
    "HookListing",
    "InstalledHooks",
    "KernelLimits",
    "KubeletAssignment",
    "KubeletLink",
    "Leases",
    "Listed",
    "LiveLimits",
    "MigBook",
    "MigMaker",
    "Mps",
    "NodeChange",
    "NodeDevices",
    "Nvml",
    "PodChange",
    "PodList",
    "PodLists",
    "PodResources",
    "ProcessPlaces",
    "Processes",
    "RegionReader",
    "RegionSwitches",
    "Regions",
    "SocketWatch",
    "Stop",
    "TotalsStore",
]
