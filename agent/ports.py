"""What the services need of the world, in the services' own words.

Each Protocol has one real implementation in `agent.adapters` and one fake in `tests`. Every call
may block at most as long as its docstring or its `deadline_s` says and raises only `AgentError`s.
`deadline_s` is a moment of `time.monotonic()`, not a duration; None means the adapter's default.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.domain.accounting import GpuProcess, GpuUse
from agent.domain.bypass import Whereabouts
from agent.domain.enforcement import Granted, RegionLook, Seen
from agent.domain.gpu import Gpu, GpuEvent
from agent.domain.grants import GrantRecord
from agent.domain.hook_files import HookFile
from agent.domain.lending import Activity, Lease
from agent.domain.limit_record import LimitRecord
from agent.domain.limits_file import LimitsFile
from agent.domain.new_region import Piece, SeenRegion
from agent.domain.pods import Node, Pod
from agent.domain.region_reading import RegionName, RegionReading
from agent.domain.region_slots import HostPid
from agent.domain.registration import SocketIdentity
from agent.domain.switch_words import SwitchWords
from agent.domain.topology import GpuPair
from agent.domain.totals import Ledger

# --- the API server ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """Pods of this node and the resource version they are current at."""

    pods: tuple[Pod, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class PodChange:
    """One watch event. kind: "applied" (added or modified), "deleted", "bookmark"."""

    kind: str
    pod: Pod | None
    resource_version: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One watch event of our own Node. kind as in PodChange."""

    kind: str
    node: Node | None
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """A Kubernetes Event: what an operator should see in `kubectl describe`."""

    reason: str  # CamelCase, e.g. "GpuUnhealthy"
    message: str
    warning: bool = True
    pod: Pod | None = None  # None: about our node


class Cluster(Protocol):
    """The API server, as seen by one node: our Node, the pods bound to us, Events."""

    def list_pods(self, *, cached: bool = False, deadline_s: float | None = None) -> Listed:
        """All pods with spec.nodeName = this node: one request.

        `cached` allows an answer from the API server's memory, which may be a moment behind.
        """

    def watch_pods(
        self, resource_version: str, *, stop: "Stop", on_open: Callable[[], None] = lambda: None
    ) -> Iterator[PodChange]:
        """Follow those pods from a resource version until the server or `stop` ends the watch.

        `on_open` is called once the API server has accepted it; changes may be long in coming.
        Raises ClusterGone when the version is too old (410), ClusterUnavailable on a broken
        connection, a time-out, 429 or 5xx.
        """

    def get_node(self, *, deadline_s: float | None = None) -> Node:
        """Our Node object."""

    def watch_node(
        self, resource_version: str, *, stop: "Stop", on_open: Callable[[], None] = lambda: None
    ) -> Iterator[NodeChange]:
        """Follow our Node object; the rest as in watch_pods. An empty version starts with it."""

    def patch_node(
        self, changes: Mapping[str, str | None], *, deadline_s: float | None = None
    ) -> Node:
        """Set (or with None remove) annotations of our Node; gives the Node as it is then."""

    def remove_node_annotation(
        self, key: str, *, expected: str, deadline_s: float | None = None
    ) -> Node:
        """Remove an annotation if it still has this value, atomically, without reading first.

        Raises ClusterConflict when it has another value or is gone.
        """

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None = None,
    ) -> Pod:
        """Set (or with None remove) annotations of a pod, if nobody else did meanwhile.

        It must still be the same pod (uid) and the `expected` annotations must still have these
        values: tested and changed in one request. Gives the pod as it is then.

        Raises ClusterConflict when something changed, ClusterGone when the pod is gone.
        """

    def evict_pod(self, pod: Pod) -> None:
        """Have a pod end as a drain does: its disruption budget may object (ClusterUnavailable).

        One that is gone is no error. Raises ClusterConflict when another pod has its name.
        """

    def post_event(self, event: ClusterEvent) -> None:
        """Record an Event. Best effort: callers log a failure and go on."""


class Stop(Protocol):
    """How a blocking call learns that the agent stops (implemented by supervisor.Lifeline)."""

    @property
    def stopping(self) -> bool: ...

    def on_stop(self, callback: Callable[[], None]) -> None: ...

    def pulse(self, within_s: float) -> None: ...


# --- the driver --------------------------------------------------------------------------------


class Nvml(Protocol):
    """The NVIDIA driver. Called by the health service's thread alone: any call may hang."""

    def open(self) -> None:
        """Load and initialise the library. Raises NvmlAbsent, NvmlStale."""

    def close(self) -> None:
        """Give it back; never raises."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that answers, by index. Raises NvmlError when the driver as a whole fails."""

    def pairs(self) -> tuple[GpuPair, ...]:
        """How every two GPUs are connected. Raises NvmlError."""

    def wait_event(self, timeout_s: float) -> GpuEvent | None:
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


# --- the host ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A container's cache directory on the host."""

    name: str  # "<pod uid>_<container>"
    changed_at_s: float  # unix time of the last change of the directory


class Caches(Protocol):
    """Directories and files of the host that a container's mounts refer to."""

    def create(self, pod_uid: str, container: str) -> Path:
        """Make (or find again) the directory of a container. Raises NodeNotReady."""

    def write_limits(self, pod_uid: str, container: str, content: bytes) -> Path:
        """Write what a container may use, where it cannot. Raises NodeNotReady."""

    def read_limits(self, pod_uid: str, container: str) -> bytes:
        """The container's limits as they were written; empty when never. Raises NodeNotReady."""

    def seen_region(self, pod_uid: str, container: str, name: str) -> SeenRegion | None:
        """What has this name in the container's directory. Raises NodeNotReady."""

    def make_region(self, pod_uid: str, container: str, name: str, pieces: Sequence[Piece]) -> int:
        """Put a usage region there, whole and on disk; give its inode. Raises NodeNotReady."""

    def discard(self, name: str) -> None:
        """Delete a directory of ours, what is in it, and its limits; links are not followed."""

    def listed(self) -> tuple[CacheDir, ...]:
        """All directories whose name has the form that `create` gives."""

    def prepare(self) -> "HookFiles":
        """Make what all containers share and say which files there are. Raises NodeNotReady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFiles:
    """Host paths of what is mounted into a container, as they are now."""

    library: Path
    preload: Path  # the file that becomes /etc/ld.so.preload
    lock_dir: Path
    license: Path | None = None
    validator: Path | None = None
    device_nodes: Sequence[
        str
    ] = ()  # existing common ones of PASS_DEVICE_SPECS, e.g. /dev/nvidiactl


@dataclass(frozen=True, slots=True)
class HookListing:
    """What of the hook's files there is on the host."""

    files: tuple[HookFile, ...]
    unfinished: tuple[HookFile, ...]  # what an agent that was killed did not write to its end
    linked: frozenset[str]  # names that links beside them lead to


class InstalledHooks(Protocol):
    """The files of the hook that are or were given to containers."""

    def listed(self) -> HookListing:
        """All of them; links are not followed. Raises NodeNotReady."""

    def mapped(self, files: Collection[HookFile]) -> frozenset[str] | None:
        """Names of those that some process of the host has mapped; None: that cannot be said."""

    def delete(self, file: HookFile) -> None:
        """Delete it if it is still the same, unchanged. Raises NodeNotReady."""


class GrantLog(Protocol):
    """Durable memory of the grants given on this node; survives a crash of the agent."""

    def records(self) -> tuple[GrantRecord, ...]:
        """All remembered grants, oldest first."""

    def record(self, record: GrantRecord) -> None:
        """Remember, on disk before returning. Raises NodeNotReady when the disk refuses.

        Takes the place of an earlier record of the same container.
        """

    def answered(self, record: GrantRecord) -> None:
        """Remember that kubelet gets the answer. Outlives the process, not the machine."""

    def drop(self, record: GrantRecord) -> None:
        """Forget one container's grant, because it was not made after all; never raises."""

    def forget(self, pod_uids: frozenset[str]) -> None:
        """Drop all grants of these pods."""


class Processes(Protocol):
    """The processes of pods on this node. Used by one thread; a read may hang as a disk does."""

    def look(self, granted: Mapping[str, Granted]) -> Seen:
        """Those of the containers with a grant in these pods, by uid. Raises OSError."""

    def forget(self) -> None:
        """Nothing is looked for until the next `look`."""


class ProcessPlaces(Protocol):
    """Which pod a process of this node belongs to."""

    def trace(self, pids: Collection[int]) -> Mapping[int, Whereabouts]:
        """Those that live and can be seen, by pid; never raises."""


class Regions(Protocol):
    """The files in which containers count their use; tenants can write them."""

    def look(self, pod_uid: str, container: str, name: str) -> RegionLook:
        """The slots in file `name` of a container's directory. Raises NodeNotReady."""

    def tell(self, pod_uid: str, container: str, name: str, told: Sequence[HostPid]) -> int:
        """Write host pids into slots that still are the same processes'; how many were.

        Raises NodeNotReady.
        """


class RegionReader(Protocol):
    """The same files, for whoever wants to know all that they say. Touches none of them."""

    def directories(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and name of the containers that have a directory. Raises NodeNotReady."""

    def read(self, names: Sequence[RegionName]) -> tuple[RegionReading, ...]:
        """The regions of these containers, in this order. Raises NodeNotReady."""


class TotalsStore(Protocol):
    """Durable memory of counters, so that a restart of the agent sets none of them back."""

    def load(self) -> Ledger:
        """What was saved last; an empty one when that cannot be read. Never raises."""

    def save(self, ledger: Ledger) -> None:
        """Outlives the process on return, the machine some time later. Raises NodeNotReady."""


class LiveLimits(Protocol):
    """The limits files of containers that run. Thread-safe; every change is whole or not at all."""

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        """The limits as they are; None: the container has no file, or it is none of this layout.

        Raises NodeNotReady.
        """

    def change(
        self, pod_uid: str, container: str, change: Callable[[LimitsFile], LimitsFile]
    ) -> LimitsFile | None:
        """Change devices' lines (or `alive_at_ns`) in place: a container has the file mounted.

        `change` may alter limits, what is lent and what is blocked; devices and all else stay.
        Containers see it at their next launch or allocation. Gives what holds now; None as in
        `read`. Raises NodeNotReady.
        """


class ChangedLimits(LiveLimits, Protocol):
    """Limits that were changed for good: they outlive the agent and a container's restarts."""

    def record(self, pod_uid: str, container: str) -> LimitRecord:
        """What was changed for a container; an empty record when nothing. Raises NodeNotReady."""

    def set_limits(self, pod_uid: str, container: str, record: LimitRecord) -> LimitsFile | None:
        """Remember this on disk, then let the container's file say so; give what holds.

        None, and nothing remembered, when it has no file. Raises NodeNotReady.
        """

    def settle(self, pod_uid: str, container: str) -> None:
        """Make the container's file say what its record does. Raises NodeNotReady."""

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and container of every record. Raises NodeNotReady."""

    def forget(self, pod_uid: str, container: str) -> None:
        """Drop the record of a container that is gone. Raises NodeNotReady."""


class Leases(LiveLimits, Protocol):
    """What is lent and blocked for a moment, written many times a second."""

    def lease(self, pod_uid: str, container: str, leases: Mapping[int, Lease]) -> bool:
        """Write what is lent and blocked of devices, by place, and nothing else of their lines.

        Not kept on disk. False: the container has no limits file, or not these devices.
        Raises NodeNotReady.
        """


ContainerKey = tuple[str, str]  # pod uid, container


@dataclass(frozen=True, slots=True)
class Held:
    """Where a container's library looks whether it is blocked: a word of an open file."""

    fd: int
    at: int  # offset of the recent kernel
    identity: tuple[int, int]  # of the file: numbers of descriptors are used again


class RegionSwitches(Protocol):
    """The words of usage regions that libraries are steered by. Used by one thread.

    Tenants can write them, too, and everything around them.
    """

    def refresh(self) -> Mapping[ContainerKey, SwitchWords]:
        """Find the regions of all containers, keep them open, and read them. Raises NodeNotReady.

        Whatever is no region of a known layout is not among them.
        """

    def put(
        self, key: ContainerKey, *, recent_kernel: int | None = None, switch: int | None = None
    ) -> bool:
        """Write words of a region that `refresh` found; False: it is none any more."""

    def recent_kernel(self, key: ContainerKey) -> int | None:
        """Of a region that `refresh` found, as it is now. A system call, no more."""

    def activity(self, key: ContainerKey, places: int) -> tuple[Activity, ...]:
        """Counters of its first devices, as they are now; empty: they cannot be had. As cheap."""

    def held(self, key: ContainerKey) -> Held | None:
        """Where its library looks whether it is blocked."""

    def close(self) -> None:
        """Let go of all of them."""


class BlockGuard(Protocol):
    """Somebody who outlives the agent and then ends the blocks that have no end of their own."""

    def hold(self, held: Mapping[ContainerKey, Held]) -> bool:
        """Watch over exactly these from now on; none: nobody is needed.

        False: that is not sure, so nobody may be blocked who is not yet. Takes up to a second.
        """


# --- kubelet ------------------------------------------------------------------------------------


class KubeletLink(Protocol):
    """One resource's way to kubelet: a socket of ours that kubelet dials, and its registration.

    Used by one thread, but for `interrupt`.
    """

    def serve(self, on_stream: Callable[[bool], None]) -> None:
        """Serve DevicePlugin on a socket of a fresh name, after closing any earlier one.

        `on_stream` is called with True when kubelet opens ListAndWatch and with False when that
        ends, on the server's loop; it must not block. Raises KubeletUnavailable.
        """

    def register(self) -> None:
        """Announce the served socket to kubelet. Takes up to 12 s. Raises KubeletUnavailable."""

    def close(self) -> None:
        """End streams and socket and wait for that, up to 3 s; without a socket, do nothing."""

    def intact(self) -> bool:
        """Whether our socket file is still there, and ours."""

    def interrupt(self) -> None:
        """The agent stops: make `register` fail at once, now and later. From any thread."""


class SocketWatch(Protocol):
    """Watches the socket at which kubelet takes registrations. Used by one thread."""

    def start(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on another thread, when looking is worth while before the next poll.

        An accelerator only: it may stay silent for ever.
        """

    def look(self) -> SocketIdentity | None:
        """What the socket is now; None: there is none."""

    def stop(self) -> None:
        """End the accelerator; never raises."""


@dataclass(frozen=True, slots=True)
class KubeletAssignment:
    """What kubelet says it assigned: the truth after admission."""

    namespace: str
    pod_name: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class PodResources(Protocol):
    """Kubelet's PodResources API."""

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        """Every assignment of every resource. Raises KubeletUnavailable."""
