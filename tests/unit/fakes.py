# ruff: noqa: ARG002 - a fake has the arguments of its port, used or not
"""Fakes of the ports around Allocate: dict-backed, with faults on demand.

`Faults` is asked before and after every effect. By default nothing goes wrong; a test sets
`faults.verdict` to say at which effect an error or a crash happens, before or after it took place.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.domain.claims import TO_ALLOCATE
from agent.domain.dialect import HAMI, LOCK, Dialect
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.new_region import Piece, SeenRegion
from agent.domain.pods import Container, Node, Pod
from agent.errors import ClusterConflict, ClusterGone, ClusterUnavailable, NodeNotReady
from agent.ports import CacheDir, ClusterEvent, HookFiles, Listed, NodeChange, PodChange, Stop
from agent.services.allocator import Allocator
from agent.services.bind_finisher import BindFinisher
from agent.services.grant_writer import GrantWriter
from agent.services.node_view import NodeView, merged
from agent.services.preference import Preference
from agent.services.published import PodTable, Published
from agent.services.supply import Supply
from agent.services.turns import Turns

NODE = "node-1"
GPU_A, GPU_B = (
    "GPU-aaaaaaaa-0000-0000-0000-000000000000",
    "GPU-bbbbbbbb-0000-0000-0000-000000000000",
)


class CrashError(BaseException):
    """The process dies here: nothing of ours may catch it."""


@dataclass
class Faults:
    """What goes wrong at an effect, e.g. "patch pod": None, "error", "error after", "crash" ..."""

    verdict: Callable[[str], str | None] = lambda _effect: None
    effects: list[str] = field(default_factory=list)

    @contextmanager
    def at(self, effect: str, error: Callable[[], Exception]) -> Iterator[None]:
        """Around an effect: fail before it, or after it took place."""
        self.effects.append(effect)
        verdict = self.verdict(effect)
        if verdict == "crash":
            raise CrashError(effect)
        if verdict == "error":
            raise error()
        yield
        if verdict == "crash after":
            raise CrashError(effect)
        if verdict == "error after":
            raise error()

    def once(self, effect: str, verdict: str) -> None:
        """Let the next such effect go wrong, and only that one."""
        left = [verdict]

        def judge(now: str) -> str | None:
            return left.pop() if now == effect and left else None

        self.verdict = judge


def unavailable() -> ClusterUnavailable:
    return ClusterUnavailable("the API server does not answer; wait for it")


def disk_full() -> NodeNotReady:
    return NodeNotReady("the disk is full: free some space on the node")


class FakeCluster:
    """Implements `Cluster` on two dicts; `changes` holds what watches would deliver, in order."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.pods: dict[str, Pod] = {}
        self.node = Node(name=NODE, resource_version="1")
        self.changes: list[Pod | Node | str] = []  # a str is the uid of a deleted pod
        self.events: list[ClusterEvent] = []
        self.requests: list[str] = []
        self.deadlines_s: list[float | None] = []  # of the requests, in their order
        self.lock_key = LOCK
        self._versions = itertools.count(2)

    # --- what others do

    def put(self, pod: Pod) -> Pod:
        """Create or replace a pod, as its author, the scheduler or kubelet would."""
        pod = replace(pod, resource_version=str(next(self._versions)))
        self.pods[pod.uid] = pod
        self.changes.append(pod)
        return pod

    def annotate(self, uid: str, changes: Mapping[str, str | None]) -> Pod:
        return self.put(self.pods[uid].with_annotations(changes))

    def delete(self, uid: str) -> None:
        del self.pods[uid]
        next(self._versions)
        self.changes.append(uid)

    def version(self) -> str:
        """Of a list that is made now."""
        return str(next(self._versions))

    def lock(self, value: str | None) -> None:
        """Set or remove the scheduler's lock."""
        self._put_node({self.lock_key: value})

    @property
    def lock_value(self) -> str | None:
        return self.node.annotations.get(self.lock_key)

    def _put_node(self, changes: Mapping[str, str | None]) -> Node:
        self.node = replace(
            self.node.with_annotations(changes), resource_version=str(next(self._versions))
        )
        self.changes.append(self.node)
        return self.node

    # --- Cluster

    @contextmanager
    def _request(self, verb: str, deadline_s: float | None) -> Iterator[None]:
        self.requests.append(verb)
        self.deadlines_s.append(deadline_s)
        with self.faults.at(verb, unavailable):
            yield

    def list_pods(self, *, cached: bool = False, deadline_s: float | None = None) -> Listed:
        with self._request("list pods", deadline_s):
            return Listed(tuple(self.pods.values()), self.version())

    def watch_pods(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[PodChange]:
        yield from ()

    def get_node(self, *, deadline_s: float | None = None) -> Node:
        with self._request("get node", deadline_s):
            return self.node

    def watch_node(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[NodeChange]:
        yield from ()

    def patch_node(
        self, changes: Mapping[str, str | None], *, deadline_s: float | None = None
    ) -> Node:
        with self._request("patch node", deadline_s):
            return self._put_node(changes)

    def remove_node_annotation(
        self, key: str, *, expected: str, deadline_s: float | None = None
    ) -> Node:
        with self._request("remove lock", deadline_s):
            if self.node.annotations.get(key) != expected:
                raise ClusterConflict(f"{key} is not {expected}")
            return self._put_node({key: None})

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None = None,
    ) -> Pod:
        erases = any(key.endswith("devices-to-allocate") for key in changes)
        effect = "erase" if erases else "patch phase"
        with self._request(effect, deadline_s):
            now = self.pods.get(pod.uid)
            if now is None:
                if any(other.full_name == pod.full_name for other in self.pods.values()):
                    raise ClusterConflict(f"{pod.full_name} is another one")
                raise ClusterGone(f"{pod.full_name} is gone")
            if any(now.annotations.get(key) != value for key, value in expected.items()):
                raise ClusterConflict(f"{pod.full_name} has changed")
            return self.annotate(pod.uid, changes)

    def post_event(self, event: ClusterEvent) -> None:
        self.events.append(event)


class FakeCaches:
    """Implements `Caches` as a set of names with a time."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.directories: dict[str, float] = {}
        self.limits: dict[str, bytes] = {}
        self.regions: dict[tuple[str, str], SeenRegion] = {}
        self.regions_made = 0
        self.now_s = 0.0

    def create(self, pod_uid: str, container: str) -> Path:
        name = f"{pod_uid}_{container}"
        with self.faults.at("create directory", disk_full):
            self.directories[name] = self.now_s
        return Path("/host/vgpu/containers") / name

    def write_limits(self, pod_uid: str, container: str, content: bytes) -> Path:
        name = f"{pod_uid}_{container}"
        with self.faults.at("write limits", disk_full):
            self.limits[name] = content
        return Path("/host/vgpu/limits") / name

    def read_limits(self, pod_uid: str, container: str) -> bytes:
        with self.faults.at("read limits", disk_full):
            return self.limits.get(f"{pod_uid}_{container}", b"")

    def seen_region(self, pod_uid: str, container: str, name: str) -> SeenRegion | None:
        with self.faults.at("look at region", disk_full):
            return self.regions.get((f"{pod_uid}_{container}", name))

    def make_region(self, pod_uid: str, container: str, name: str, pieces: Sequence[Piece]) -> int:
        directory = f"{pod_uid}_{container}"
        with self.faults.at("make region", disk_full):
            assert directory in self.directories, "its directory is made first"
            self.regions_made += 1
            self.regions[directory, name] = SeenRegion(
                inode=1000 + self.regions_made, head=pieces[0].content, tail=pieces[-1].content
            )
        return 1000 + self.regions_made

    def discard(self, name: str) -> None:
        with self.faults.at("discard directory", disk_full):
            self.directories.pop(name, None)
            self.limits.pop(name, None)
            self.regions = {at: seen for at, seen in self.regions.items() if at[0] != name}

    def listed(self) -> tuple[CacheDir, ...]:
        return tuple(CacheDir(name, changed) for name, changed in self.directories.items())

    def prepare(self) -> HookFiles:
        with self.faults.at("prepare", disk_full):
            return HookFiles(
                library=Path("/host/vgpu/libvgpu.so.1"),
                preload=Path("/host/vgpu/ld.so.preload"),
                lock_dir=Path("/tmp/vgpulock"),
            )


class FakeGrantLog:
    """Implements `GrantLog` as a dict that survives the "process" (hand it to the next one)."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.by_container: dict[tuple[str, str], GrantRecord] = {}
        self.tidied: list[tuple[frozenset[str], float]] = []

    def records(self) -> tuple[GrantRecord, ...]:
        return tuple(self.by_container.values())

    def record(self, record: GrantRecord) -> None:
        with self.faults.at("journal", disk_full):
            key = (record.pod_uid, record.container)
            self.by_container.pop(key, None)
            self.by_container[key] = record

    def own(self, record: GrantRecord, owner: GrantOwner) -> GrantRecord | None:
        known = self.by_container.pop((record.pod_uid, record.container), None)
        if known is None:
            return None
        named = replace(
            known,
            namespace=owner.namespace,
            pod_name=owner.pod_name,
            container=owner.container,
            owner_uid=owner.pod_uid,
        )
        self.by_container[named.pod_uid, named.container] = named
        return named

    def answered(self, record: GrantRecord) -> None:
        with self.faults.at("mark answered", disk_full):
            self.by_container[record.pod_uid, record.container] = replace(record, answered=True)

    def drop(self, record: GrantRecord) -> None:
        with self.faults.at("drop grant", disk_full):
            self.by_container.pop((record.pod_uid, record.container), None)

    def tidy(self, live_uids: Collection[str], *, now_s: float) -> None:
        self.tidied.append((frozenset(live_uids), now_s))

    def forget(self, pod_uids: frozenset[str]) -> None:
        for key in [key for key in self.by_container if key[0] in pod_uids]:
            del self.by_container[key]


@dataclass
class FakeClock:
    """Time that passes when told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def gpus(*uuids: str) -> GpuInventory:
    return GpuInventory.of(
        Gpu(uuid=uuid, index=place, name="NVIDIA A40", memory_mib=46068, minor=place)
        for place, uuid in enumerate(uuids)
    )


def vgpu_ids(uuid: str, *slots: int) -> list[str]:
    return [f"{uuid}-{slot}" for slot in slots]


def container(name: str, vgpus: int = 1, kind: str = "app") -> Container:
    return Container(name=name, kind=kind, vgpus=vgpus)


def pod(
    name: str,
    claims: str,
    *containers: Container,
    bind_time: str = "1760929622",
    phase: str = "allocating",
    annotations: Mapping[str, str] | None = None,
    **changes: object,
) -> Pod:
    """A pod as HAMi's scheduler binds it to our node; its uid is `uid-<name>`."""
    whole = Pod(
        namespace="team",
        name=name,
        uid=f"uid-{name}",
        node_name=NODE,
        phase="Pending",
        resource_version="1",
        annotations={
            TO_ALLOCATE: claims,
            "hami.io/vgpu-node": NODE,
            "hami.io/bind-phase": phase,
            "hami.io/bind-time": bind_time,
            **(annotations or {}),
        },
        containers=containers or (container("main"),),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def lock_of(pod: Pod, taken_at: str = "2025-10-20T03:07:02Z") -> str:
    return f"{taken_at},{pod.namespace},{pod.name}"


class Process:
    """One life of the agent's Allocate side, wired as the daemon wires it, watches by hand."""

    def __init__(
        self,
        cluster: FakeCluster,
        caches: FakeCaches,
        grant_log: FakeGrantLog,
        *,
        clock: FakeClock,
        watch_wait_s: float = 0.0,
        sharing: Sharing | None = None,
        inventory: GpuInventory | None = None,
        policy: GrantPolicy | None = None,
        dialect: Dialect = HAMI,
        memory_unit_mib: int = 1,
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.outcomes: list[str] = []
        self.pods: Published[PodTable] = Published(PodTable())
        self.own_node: Published[Node | None] = Published(None)
        self.inventory = Published(inventory or gpus(GPU_A, GPU_B))
        self._seen = 0
        self.view = NodeView(
            cluster,
            node_name=NODE,
            pods=self.pods,
            own_node=self.own_node,
            lock_key=dialect.lock,
        )
        self.finisher = BindFinisher(
            self.view, grant_log.records, clock=clock, jitter=lambda: 0.5, dialect=dialect
        )
        self.turns = Turns(
            self.view,
            grant_log,
            failed=self.finisher.failed,
            clock=clock,
            watch_wait_s=watch_wait_s,
            dialect=dialect,
        )
        self.allocator = Allocator(
            self.view,
            self.turns,
            self.finisher,
            GrantWriter(
                caches,
                grant_log,
                policy or GrantPolicy(),
                post=cluster.events.append,
                now_s=clock,
            ),
            Supply(
                inventory=self.inventory,
                sharing=sharing or Sharing(),
                node_name=self.view.node_name,
                memory_unit_mib=lambda: memory_unit_mib,
                dialect=dialect,
            ),
            on_outcome=lambda outcome, _seconds: self.outcomes.append(outcome),
            clock=clock,
            dialect=dialect,
        )
        self.preference = Preference(self.turns)

    def relist(self) -> None:
        """What the watches do at their start: a complete list."""
        self._seen = len(self.cluster.changes)
        listed = Listed(tuple(self.cluster.pods.values()), self.cluster.version())
        self.pods.update(
            lambda table: PodTable({p.uid: p for p in merged(table, listed)}, synced=True)
        )
        self.own_node.publish(self.cluster.node)

    def deliver(self, count: int | None = None) -> None:
        """Let the watches bring the next `count` changes, all by default."""
        end = len(self.cluster.changes) if count is None else self._seen + count
        for change in self.cluster.changes[self._seen : end]:
            self._seen += 1
            if isinstance(change, Node):
                self.view.saw_node(change)
            elif isinstance(change, Pod):
                self.pods.update(lambda table, pod=change: table.applied(pod))
            else:
                self.pods.update(lambda table, uid=change: table.without(uid))

    def allocate(self, *device_ids: str, budget_s: float = 2.0) -> dict[str, str]:
        """The envs of the grant."""
        deadline_s = self.clock() + budget_s
        return dict(self.allocator.allocate(device_ids, deadline_s=deadline_s).envs)

    def settle(self, seconds: float = 20.0) -> None:
        """Let time pass until the finisher has nothing left to do."""
        end_s = self.clock() + seconds
        while self.clock() < end_s:
            self.deliver()
            self.finisher.step_once()
            self.clock.now_s += 0.5
