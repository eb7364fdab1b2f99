"""Kubelet or the API server is restarted while the agent stands at each write boundary of a bind."""

import threading
from collections.abc import Callable

import pytest

from agent.sim.node import SimNode
from tests.faults.breaking import spread
from tests.faults.story import EVERY, FEW, MOST, Story
from tests.waiting import eventually


def kubelet_restarts(node: SimNode) -> None:
    node.kubelet.stop()
    node.kubelet.start()


def kubelet_loses_its_books(node: SimNode) -> None:
    node.kubelet.stop()
    node.kubelet.delete_checkpoint()
    node.kubelet.start()


def the_api_server_restarts(node: SimNode) -> None:
    node.api.restart(lose_history=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(kubelet_restarts, id="with its books"),
        pytest.param(kubelet_loses_its_books, id="without", marks=pytest.mark.faults),
    ],
)
def test_kubelet_restarts_while_a_pod_is_bound(
    story: Story, restart: Callable[[SimNode], None]
) -> None:
    restarted_at_each(story, restart)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_api_server_restarts_while_a_pod_is_bound(story: Story) -> None:
    restarted_at_each(story, the_api_server_restarts)


def restarted_at_each(story: Story, restart: Callable[[SimNode], None]) -> None:
    """And every pod that is admitted has its claim, and every grant is released."""
    with story.counting():
        story.breaking.order("hold", 0)
        story.bind()
        trail = story.breaking.trail()
        for at in spread(len(trail), MOST if EVERY else FEW):
            if len(story.pods) > 6:
                story.end_pods()
            placed = story.place()
            story.breaking.order_like("hold", trail, at)
            admission = threading.Thread(target=story.offer, args=placed)
            admission.start()
            eventually(
                lambda a=admission: story.breaking.reached() or not a.is_alive(), within_s=60
            )
            restart(story.node)
            story.breaking.lift()
            admission.join(30)
            assert not admission.is_alive()
            story.settle()
    story.bind()
    assert story.pods[-1].admitted.ok, story.pods[-1].admitted.message
    story.released()
