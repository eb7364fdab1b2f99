"""One node for the tests of Allocate: a fake cluster, disk and journal, and lives of the agent."""

from agent.domain.pods import Pod
from tests.unit.fakes import (
    GPU_A,
    GPU_B,
    FakeCaches,
    FakeClock,
    FakeCluster,
    FakeGrantLog,
    Faults,
    Process,
    lock_of,
    vgpu_ids,
)

PHASE = "hami.io/bind-phase"
A, B = f"{GPU_A},NVIDIA,3000,30:", f"{GPU_B},NVIDIA,5000,0:"
IDS = vgpu_ids(GPU_A, 0)
WRITES = ("erase", "patch phase", "remove lock")
READS = ("list pods", "get node")


class Scene:
    """One node with what lives longer than the agent."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.cluster = FakeCluster(self.faults)
        self.caches = FakeCaches(self.faults)
        self.grant_log = FakeGrantLog(self.faults)
        self.clock = FakeClock()

    def start(self, **settings: object) -> Process:
        process = Process(
            self.cluster,
            self.caches,
            self.grant_log,
            clock=self.clock,
            **settings,  # type: ignore[arg-type]
        )
        process.relist()
        return process

    def bound(self, made: Pod, *, locked: bool = True) -> Pod:
        """As HAMi's scheduler does: lock the node, then bind."""
        if locked:
            self.cluster.lock(lock_of(made))
        return self.cluster.put(made)

    def now(self, of: Pod) -> Pod:
        return self.cluster.pods[of.uid]
