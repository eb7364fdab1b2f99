"""A node whose agent is ended or held at its boundaries, again and again, and what must hold after."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import LOCK, PlacedClaim
from tests.e2e.whole import up
from tests.faults.breaking import Breaking, spread
from tests.faults.invariants import Counters, refused_allocations, unreleased, violations
from tests.waiting import eventually

EVERY = os.environ.get("VGPU_TEST_FAULTS") == "all"
FEW, MOST = 3, 200
QUICK = ("--cache-gc-after", "10s", "--cache-gc-interval", "1s", "--process-interval", "0.2s")
QUICK += ("--allocate-budget", "10s")


Placed = tuple[str, str, list[Ask], list[list[PlacedClaim]]]  # name, uid, containers, claims


@dataclass
class Story:
    """One node and the pods that were offered to it."""

    node: SimNode
    breaking: Breaking
    pods: list[RanPod] = field(default_factory=list)
    killed_at: list[str] = field(default_factory=list)
    count: int = 0
    counters: Counters = field(init=False)
    refusals: int = 0  # by the limit of a pod that stays, as the agent has to have counted them

    def __post_init__(self) -> None:
        self.counters = Counters(self.node)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A pod stays meanwhile of which a counter is not zero, and no successor may start anew."""
        pod = self.node.run_pod("stays", [Ask(memory_mib=700)])
        assert pod.admitted.ok, pod.admitted.message
        grant = pod.admitted.containers["main"]
        mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
        tenant = Container.start("stays", driver=self.node.driver, env=grant.env, mounts=mounts)
        try:
            assert not tenant.ask("alloc 701").ok
            self.refusals = 1
            self._counted()
            yield
            assert tenant.running
        finally:
            tenant.stop()
        self.refusals = 0
        self.node.delete_pod(pod)

    def _counted(self) -> None:
        """What was counted is told again, by whichever agent it is, and nothing has gone back."""
        eventually(
            lambda: refused_allocations(self.node, "stays") >= self.refusals,
            within_s=60,
            what=f"{self.refusals} refused allocations in /metrics",
        )
        assert self.counters.violations() == []

    def place(self) -> Placed:
        """A pod of two containers, decided and bound."""
        self.count += 1
        name = f"pod-{self.count}"
        asks = [Ask(name="a", memory_mib=700 + self.count), Ask(name="b", memory_mib=100)]
        uid = self.node.create_pod(name, asks)
        return name, uid, asks, self.node.place_pod(name, asks)

    def offer(self, name: str, uid: str, asks: list[Ask], claims: list[list[PlacedClaim]]) -> None:
        """Kubelet admits it, or refuses it because nobody answers any more."""
        self.pods.append(self.node.offer(name, uid, asks, claims))

    def bind(self) -> None:
        self.offer(*self.place())

    def agent_died(self) -> bool:
        agent = self.node.agent
        assert agent is not None
        if not self.breaking.reached():
            return False
        assert agent.wait(60) == -signal.SIGKILL
        self.killed_at.append(self.breaking.reached())
        return True

    def succeed(self) -> None:
        """A successor, which nothing befalls, is ready; and what must hold does."""
        self.breaking.lift()
        if self.node.agent is None or self.node.agent.poll() is not None:
            self.node.start_agent()
        eventually(self._serving, within_s=60, what="/readyz")
        self.settle()

    def _serving(self) -> bool:
        """Whether an agent is ready. One that met the order as it was lifted has a successor."""
        assert self.node.agent is not None
        if (code := self.node.agent.poll()) is not None:
            assert code == -signal.SIGKILL
            self.node.start_agent()
        return self.node.ready()

    def settle(self) -> None:
        up(self.node, 20)
        eventually(lambda: LOCK not in self.node.annotations(), within_s=60, what="lock released")
        eventually(
            lambda: not violations(self.node, self.pods) or self._say(), within_s=60, what="order"
        )
        self._counted()

    def _say(self) -> bool:
        print(self.killed_at[-1:], violations(self.node, self.pods))  # noqa: T201 - if it fails
        return False

    def end_pods(self) -> None:
        for pod in self.pods:
            self.node.delete_pod(pod)
        self.pods.clear()

    def released(self) -> None:
        """Every grant ends with its pod; a record of changed limits with the next start, or hour."""
        self.end_pods()
        if list((self.node.root / "state/limits").glob("*.json")):
            eventually(lambda: not list((self.node.root / "state/grants").iterdir()), within_s=60)
            self.node.stop_agent()
            self.succeed()
        end_s = time.monotonic() + 40
        while left := unreleased(self.node):
            assert time.monotonic() < end_s, f"left of {self.count} pods: {left}"
            time.sleep(0.2)


def at_each(
    story: Story,
    act: Callable[[], None],
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
    some: Callable[[int], Iterable[int]] = lambda there: spread(there, FEW),
) -> None:
    """Do it once to see how many boundaries there are, then again with a kill at those chosen.

    `before` and `after` are done each time, and nothing of this befalls the agent meanwhile.
    `some`: the chosen of 1 to so many, where not all of them are.
    """
    before()
    story.breaking.order("kill", 0)
    act()
    trail = story.breaking.trail()
    assert trail
    story.succeed()
    after()
    killed = 0
    for at in spread(len(trail), MOST) if EVERY else some(len(trail)):
        before()
        story.breaking.order_like("kill", trail, at)
        act()
        killed += story.agent_died()
        story.succeed()
        after()
    assert killed
