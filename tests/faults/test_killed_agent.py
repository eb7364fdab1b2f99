"""The agent is killed at every write boundary; its successor makes the node whole each time.

Each row does one thing again and again, and ends the agent at a later boundary each time, until the
thing is done without reaching it. `VGPU_TEST_FAULTS=all` takes every boundary (`build.py faults`);
otherwise it is a few of them, spread.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import LOCK, PlacedClaim
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.whole import up
from tests.faults.breaking import Breaking, breaking_node, spread
from tests.faults.invariants import unreleased, violations
from tests.waiting import eventually

EVERY = os.environ.get("VGPU_TEST_FAULTS") == "all"
FEW, MOST = 3, 200
QUICK = ("--cache-gc-after", "10s", "--cache-gc-interval", "1s", "--process-interval", "0.2s")
QUICK += ("--allocate-budget", "10s")


@dataclass
class Story:
    """One node and the pods that were offered to it."""

    node: SimNode
    breaking: Breaking
    pods: list[RanPod] = field(default_factory=list)
    killed_at: list[str] = field(default_factory=list)
    count: int = 0

    def place(self) -> tuple[str, str, list[Ask], list[list[PlacedClaim]]]:
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
        assert agent.wait(10) == -signal.SIGKILL
        self.killed_at.append(self.breaking.reached())
        return True

    def succeed(self) -> None:
        """A successor, which nothing befalls, is ready; and what must hold does."""
        self.breaking.lift()
        if self.node.agent is None or self.node.agent.poll() is not None:
            self.node.start_agent()
        self.settle()

    def settle(self) -> None:
        up(self.node, 20)
        eventually(lambda: LOCK not in self.node.annotations(), within_s=40, what="lock released")
        eventually(
            lambda: not violations(self.node, self.pods) or self._say(), within_s=20, what="order"
        )

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
            eventually(lambda: not list((self.node.root / "state/grants").iterdir()), within_s=40)
            self.node.stop_agent()
            self.succeed()
        end_s = time.monotonic() + 40
        while left := unreleased(self.node):
            assert time.monotonic() < end_s, f"left of {self.count} pods: {left}"
            time.sleep(0.2)


@pytest.fixture
def story(make_node: NodeMaker, tmp_path: Path) -> Story:
    node, breaking = breaking_node(make_node, tmp_path, *QUICK)
    return Story(node, breaking)


def at_each(story: Story, act: Callable[[], None]) -> None:
    """Do it once to see how many boundaries there are, then again with a kill at those chosen."""
    story.breaking.order("kill", 0)
    act()
    there = len(story.breaking.trail())
    assert there
    story.succeed()
    for at in spread(there, MOST if EVERY else FEW):
        story.breaking.order("kill", at)
        act()
        story.agent_died()
        story.succeed()
    assert story.killed_at


@pytest.mark.timeout(900)
def test_while_a_pod_is_bound(story: Story) -> None:
    def act() -> None:
        if len(story.pods) > 6:  # there is room for so many only
            story.end_pods()
        story.bind()

    at_each(story, act)
    assert any(pod.admitted.ok for pod in story.pods) or not story.pods
    story.breaking.lift()
    story.bind()
    assert story.pods[-1].admitted.ok, story.pods[-1].admitted.message
    story.released()


@pytest.mark.timeout(900)
def test_while_it_starts_on_a_new_host(story: Story) -> None:
    node = story.node

    def act() -> None:
        node.stop_agent()
        for place in ("host", "state", "run", "vgpulock"):
            shutil.rmtree(node.root / place, ignore_errors=True)
        (node.root / "host/vgpu").mkdir(parents=True)
        node.start_agent()
        eventually(lambda: story.breaking.reached() or node.ready(), within_s=30)

    at_each(story, act)
    story.bind()
    assert story.pods[-1].admitted.ok
    story.released()


@pytest.mark.timeout(900)
def test_while_it_stops(story: Story) -> None:
    node = story.node

    def act() -> None:
        assert node.agent is not None
        node.agent.send_signal(signal.SIGTERM)
        node.agent.wait(20)

    at_each(story, act)
    story.bind()
    assert story.pods[-1].admitted.ok


@pytest.mark.timeout(900)
def test_while_limits_are_changed(story: Story) -> None:
    """The container has the old limit or the new one, and what it has the next agent keeps."""
    node = story.node
    story.bind()
    pod = f"team/{story.pods[0].name}/a"
    memory = [1000]

    def act() -> None:
        memory[0] += 1
        done = subprocess.run(
            [*COMMAND, "limit", pod, "--memory", f"{memory[0]}Mi",
             "--runtime-dir", str(node.root / "run")],
            capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or story.breaking.reached(), done.stderr

    at_each(story, act)
    act()
    story.released()


@pytest.mark.timeout(900)
def test_while_a_refused_pod_is_taken_back(story: Story) -> None:
    """The API server refuses the change: directory, limits and journal go again."""
    node = story.node

    def act() -> None:
        placed = story.place()
        node.api.fail(403, count=1, verb="patch", resource="pods")
        story.offer(*placed)
        node.api.clear_faults()
        if not story.breaking.reached():
            assert not story.pods[-1].admitted.ok

    at_each(story, act)
    story.released()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_while_a_pod_that_is_gone_is_cleaned_up(story: Story) -> None:
    node = story.node

    def act() -> None:
        story.bind()
        assert story.pods[-1].admitted.ok
        story.end_pods()
        eventually(
            lambda: story.breaking.reached() or not unreleased(node), within_s=40, every_s=0.1
        )

    at_each(story, act)
    story.released()
