"""What happens to a fleet, and what it asks meanwhile: rest, restarts, refusals, a lost history.

A shard is a part of the cluster's nodes with an API server of its own, in one process; shards know
nothing of each other, as nodes do not.
"""

import gc
import resource
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent import logs
from agent.domain.gpu import Sharing
from agent.domain.vgpu_ids import advertised, list_bytes
from tests.scale.counts import Counts, total
from tests.scale.fleet import Fleet, gpus_of
from tests.scale.front import Busy
from tests.scale.virtual import STACK_BYTES

HOUR_S, REFUSED_S, RETRY_AFTER_S, OUTAGE_S = 3600.0, 600.0, 30.0, 60.0
AFTERWARDS_S = 60.0
FEW_PER_SECOND = 200.0  # of 5,000 nodes; of fewer as many fewer
WHOLE_WITHIN_S = 1800.0
DESCRIPTORS_PER_NODE = 6  # two watches and a connection that is kept, both ends of each
NAMES = (
    "first start",
    "rest",
    "agents restarted",
    "API server goes in good order",
    "API server away",
    "history lost",
    "429 to everything",
    "429 gone",
    "agents restarted, few served",
)


@dataclass
class Seen:
    """What a scenario cost. `whole_s`: until every agent knew and had told all it should."""

    counts: Counts
    lasts_s: float
    whole_s: float = 0.0

    def by_second(self, *, refused: bool | None = None) -> dict[int, int]:
        """Requests in each second that had any."""
        totals: dict[int, int] = {}
        for (second, _verb, code), number in self.counts.by_second.items():
            if refused is None or refused == (code == 429):
                totals[second] = totals.get(second, 0) + number
        return totals

    def number(self, *verbs: str, code: int | None = None) -> int:
        """Requests with one of these verbs."""
        return sum(
            count
            for (verb, _, answered), count in self.counts.requests.items()
            if (not verbs or verb in verbs) and code in (None, answered)
        )


@dataclass
class Shard:
    """What one process saw."""

    nodes: int
    object_bytes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)


class _Course:
    """A fleet and what it goes through, one scenario after the other."""

    def __init__(self, fleet: Fleet, told: Callable[[str], None]) -> None:
        self.fleet, self._told = fleet, told
        self.seen: dict[str, Seen] = {}

    def scenario(self, name: str, run: Callable[[], float]) -> None:
        """Run it; what is counted has the scenario's begin as its second 0."""
        fleet = self.fleet
        fleet.run(1.0 - fleet.world.now_s % 1.0)  # seconds are whole
        fleet.front.counts = Counts()
        began_s = fleet.world.now_s
        whole_s = run()
        counts = fleet.front.counts
        counts.by_second = type(counts.by_second)(
            {(second - int(began_s), *rest): n for (second, *rest), n in counts.by_second.items()}  # type: ignore[misc]
        )
        self.seen[name] = Seen(counts, fleet.world.now_s - began_s, whole_s)
        gc.collect()
        self._told(name)

    def settled(self) -> float:
        """Until all agents are whole, and a moment more."""
        whole_s = self.fleet.settle(WHOLE_WITHIN_S)
        self.fleet.run(max(0.0, AFTERWARDS_S - whole_s))
        return whole_s


def shard(  # noqa: C901 - a list of what happens, a few lines each
    nodes: int, seed: int, told: Callable[[str], None] = lambda _: None
) -> Shard:
    """Every scenario, with so many nodes of 8 GPUs, 80 vGPUs and 10 pods each."""
    _prepare(nodes)
    with tempfile.TemporaryDirectory(prefix="vgpu-scale-") as root:
        fleet = Fleet(Path(root), nodes, seed=seed)
        course = _Course(fleet, told)
        front, busy = fleet.front, fleet.front.api.faults
        assert isinstance(busy, Busy)

        def first_start() -> float:
            fleet.start()
            return course.settled()

        def rest() -> float:
            fleet.run(HOUR_S)
            return 0.0

        def agents_restarted() -> float:
            fleet.stop()
            fleet.agents.clear()
            gc.collect()  # which closes what they had open
            fleet.start()
            return course.settled()

        def goes() -> float:
            front.end_watches()
            return course.settled()

        def away() -> float:
            front.go_down()
            fleet.run(OUTAGE_S)
            front.listen()
            return course.settled()

        def history_lost() -> float:
            front.expire_watches()
            return course.settled()

        def refused() -> float:
            busy.per_second, busy.retry_after_s = 0.0, RETRY_AFTER_S
            front.end_watches()
            fleet.run(REFUSED_S)
            return 0.0

        def served_again() -> float:
            busy.per_second = None
            return course.settled()

        def few() -> float:
            busy.per_second, busy.retry_after_s = max(1.0, FEW_PER_SECOND * nodes / 5000), 1.0
            whole_s = agents_restarted()
            busy.per_second = None
            return whole_s

        runs = (
            *(first_start, rest, agents_restarted, goes, away, history_lost, refused),
            *(served_again, few),
        )
        for name, run in zip(NAMES, runs, strict=True):
            course.scenario(name, run)
        found = Shard(nodes, fleet.object_bytes(), course.seen)
        fleet.close()
    return found


def together(shards: Sequence[Shard]) -> Shard:
    """The whole cluster."""
    whole = Shard(sum(one.nodes for one in shards), shards[0].object_bytes)
    for name in NAMES:
        parts = [one.seen[name] for one in shards]
        whole.seen[name] = Seen(
            total(part.counts for part in parts),
            max(part.lasts_s for part in parts),
            max(part.whole_s for part in parts),
        )
    return whole


def _prepare(nodes: int) -> None:
    """Threads with small stacks, many descriptors, no collector that walks through all objects."""
    logs.configure(level="critical")
    threading.stack_size(STACK_BYTES)
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes * DESCRIPTORS_PER_NODE + 100
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(
            f"{nodes} nodes in one process need {wanted} open files, and {hard} are allowed; "
            "use more --processes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


# --- growth -----------------------------------------------------------------------------------

GROWTH_NODES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one node costs, by what is on it."""

    pods: int
    gpus: int
    split_count: int
    vgpus_per_pod: int
    start_bytes: float  # both ways, of lists, watches and the write
    hour_bytes: float  # at rest
    hour_requests: float
    pod_bytes: int  # of one pod, each time that something of it changes
    register_bytes: int  # the annotation
    kubelet_bytes: int  # the message with all vGPUs, for kubelet


def cost(*, pods: int = 10, gpus: int = 8, split_count: int = 10, vgpus_per_pod: int = 1) -> Cost:
    """Measure some nodes of this kind through a start and an hour."""
    with tempfile.TemporaryDirectory(prefix="vgpu-scale-") as root:
        fleet = Fleet(
            Path(root),
            GROWTH_NODES,
            pods=pods,
            gpus=gpus,
            split_count=split_count,
            vgpus_per_pod=vgpus_per_pod,
        )
        fleet.start()
        fleet.settle(60.0)
        start, fleet.front.counts = fleet.front.counts, Counts()
        fleet.run(HOUR_S)
        hour = fleet.front.counts
        [node] = fleet.front.store.of("nodes", fleet.names[0])
        register = node["metadata"]["annotations"]["hami.io/node-nvidia-register"]
        pod_bytes = fleet.object_bytes()["pod"]
        fleet.close()
    offered = advertised(gpus_of(gpus), Sharing(split_count=split_count))
    return Cost(
        pods=pods,
        gpus=gpus,
        split_count=split_count,
        vgpus_per_pod=vgpus_per_pod,
        start_bytes=(start.bytes_in + start.bytes_out) / GROWTH_NODES,
        hour_bytes=(hour.bytes_in + hour.bytes_out) / GROWTH_NODES,
        hour_requests=sum(hour.requests.values()) / GROWTH_NODES,
        pod_bytes=pod_bytes,
        register_bytes=len(register),
        kubelet_bytes=list_bytes(offered),
    )


GROWTH: dict[str, Iterable[int]] = {
    "pods": (0, 10, 25, 50, 100, 200),
    "gpus": (1, 2, 4, 8, 16),
    "split_count": (1, 5, 10, 25, 50, 100),
    "vgpus_per_pod": (1, 2, 4, 8),
}


def growth() -> dict[str, list[Cost]]:
    """What a node costs as one thing grows, the others as usual."""
    _prepare(GROWTH_NODES)
    return {name: [cost(**{name: number}) for number in some] for name, some in GROWTH.items()}
