"""The agent that comes after a killed one is killed as well, while it brings the node into order.

The first one leaves the node locked, something of a bind half done, and a journal whose last line a
power cut has cut short. The second one is killed at a later boundary each time; the third one,
which nothing befalls, has to make the node whole. As in test_killed_agent.py: a few boundaries,
spread; all of them with VGPU_TEST_FAULTS=all.
"""

import pytest

from agent.sim.scheduler import LOCK
from tests.e2e.whole import serves
from tests.faults.invariants import journals
from tests.faults.story import Story, at_each
from tests.waiting import eventually


def in_the_middle(there: int) -> tuple[int, int]:
    return there // 3, 2 * there // 3


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("boundary", "number"),
    [
        pytest.param("directory-made", 1, id="a closed directory", marks=pytest.mark.faults),
        pytest.param("file-filled", 2, id="a file without its name", marks=pytest.mark.faults),
        pytest.param("grant-written", 1, id="half of a pod"),
        pytest.param("grant-synced", 2, id="a bind without its end", marks=pytest.mark.faults),
    ],
)
def test_while_it_recovers(story: Story, boundary: str, number: int) -> None:
    """`boundary`, `number`: where the first one dies of the bind of a pod of two containers."""
    node = story.node

    def first_dies() -> None:
        if len(story.pods) > 6:  # there is room for so many only
            story.end_pods()
        placed = story.place()
        story.breaking.order("kill", number, of=boundary)
        story.offer(*placed)
        assert story.agent_died(), f"it never came to {boundary}"
        story.breaking.lift()
        assert LOCK in node.annotations()
        for journal in journals(node):
            with journal.open("ab") as file:
                file.write(b'{"granted": {"pod_uid": "')

    def second_starts() -> None:
        node.start_agent()
        eventually(
            lambda: story.breaking.reached() or (node.ready() and LOCK not in node.annotations()),
            within_s=180,
        )

    def third_serves() -> None:
        node.delete_pod(serves(node, f"after-{story.count}"))

    at_each(story, second_starts, before=first_dies, after=third_serves, some=in_the_middle)
    story.released()
