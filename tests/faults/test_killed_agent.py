"""The agent is killed at every write boundary; its successor makes the node whole each time.

Each row does one thing again and again, and ends the agent at a later boundary each time, until the
thing is done without reaching it. `VGPU_TEST_FAULTS=all` takes every boundary (`build.py faults`);
otherwise it is a few of them, spread.
"""

import shutil
import signal
import subprocess

import pytest

from tests.e2e.conftest import COMMAND
from tests.faults.invariants import unreleased
from tests.faults.story import Placed, Story, at_each
from tests.waiting import eventually


@pytest.mark.timeout(900)
def test_while_a_pod_is_bound(story: Story) -> None:
    placed: list[Placed] = []
    served: list[bool] = []

    def place() -> None:
        if len(story.pods) > 6:  # there is room for so many only
            story.end_pods()
        placed[:] = [story.place()]

    def offer() -> None:
        story.offer(*placed[0])
        served.append(story.pods[-1].admitted.ok)

    with story.counting():
        at_each(story, offer, before=place)
    assert served[0]  # while nothing befell the agent
    story.breaking.lift()
    story.bind()
    assert story.pods[-1].admitted.ok, story.pods[-1].admitted.message
    story.released()


@pytest.mark.timeout(900)
def test_while_it_starts_on_a_new_host(story: Story) -> None:
    node = story.node

    def wipe() -> None:
        node.stop_agent()
        for place in ("host", "state", "run", "vgpulock"):
            shutil.rmtree(node.root / place, ignore_errors=True)
        (node.root / "host/vgpu").mkdir(parents=True)

    def act() -> None:
        node.start_agent()
        eventually(lambda: story.breaking.reached() or node.ready(), within_s=60)

    at_each(story, act, before=wipe)
    story.bind()
    assert story.pods[-1].admitted.ok


@pytest.mark.faults
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
            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or story.breaking.reached(), done.stderr

    at_each(story, act)
    act()
    story.released()


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_while_a_refused_pod_is_taken_back(story: Story) -> None:
    """The API server refuses the change: directory, limits and journal go again."""
    node = story.node
    placed: list[Placed] = []

    def place() -> None:
        placed[:] = [story.place()]

    def act() -> None:
        node.api.fail(403, count=1, verb="patch", resource="pods")
        story.offer(*placed[0])
        node.api.clear_faults()
        if not story.breaking.reached():
            assert not story.pods[-1].admitted.ok

    at_each(story, act, before=place)
    story.released()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_while_a_pod_that_is_gone_is_cleaned_up(story: Story) -> None:
    node = story.node

    def bind() -> None:
        story.bind()
        assert story.pods[-1].admitted.ok, story.pods[-1].admitted.message

    def act() -> None:
        story.end_pods()
        eventually(
            lambda: story.breaking.reached() or not unreleased(node), within_s=60, every_s=0.1
        )

    at_each(story, act, before=bind)
    story.released()
