"""What the owner of a refused pod reads, and that the node is free for the next pod at once."""

from collections.abc import Callable

import pytest

from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, TO_ALLOCATE
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves
from tests.waiting import eventually

ASKS = [Ask(memory_mib=800)]


def refused(node: SimNode, spoil: Callable[[SimNode], None]) -> RanPod:
    """Place a pod, let something go wrong, and offer the pod to kubelet: it is refused."""
    uid = node.create_pod("unlucky", ASKS)
    claims = node.place_pod("unlucky", ASKS)
    spoil(node)
    pod = node.offer("unlucky", uid, ASKS, claims)
    node.api.clear_faults()
    assert not pod.admitted.ok
    return pod


def ended_as_failed(node: SimNode) -> None:
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    eventually(
        lambda: node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed", what="bind failed"
    )
    serves(node)
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"


@pytest.mark.parametrize("text", [None, "", ";", "garbage"])
def test_the_schedulers_decision_is_gone(node: SimNode, text: str | None) -> None:
    def spoil(node: SimNode) -> None:
        node.client.annotate("pods", "unlucky", {TO_ALLOCATE: text}, namespace="team")

    said = refused(node, spoil).admitted.message
    assert "pod team/unlucky" in said
    assert TO_ALLOCATE in said
    assert "delete the pod so that it is scheduled again" in said
    ended_as_failed(node)


def too_many_requests(node: SimNode) -> None:
    node.api.fail(429, count=100, verb="patch", resource="pods")


def forbidden(node: SimNode) -> None:
    node.api.fail(403, count=1, verb="patch", resource="pods")


def policy(node: SimNode) -> None:
    reason = "ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no annotations"
    node.api.fail(422, count=1, verb="patch", resource="pods", reason=reason)


def server_error(node: SimNode) -> None:
    node.api.fail(500, count=100, verb="patch", resource="pods")


def no_answer(node: SimNode) -> None:
    node.api.hang(30, count=100, verb="patch", resource="pods")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(too_many_requests, "it answered 429", id="429"),
        pytest.param(forbidden, "it answered 403", id="403"),
        pytest.param(policy, "a policy of the cluster denies it", id="policy"),
        pytest.param(server_error, "it answered 500", id="500"),
        pytest.param(no_answer, "no usable answer came in time", id="no answer"),
    ],
)
def test_the_api_server_does_not_take_the_change(
    node: SimNode, fault: Callable[[SimNode], None], reason: str
) -> None:
    said = refused(node, fault).admitted.message
    assert (
        f"the API server did not confirm that pod team/unlucky has taken its vGPUs ({reason})"
        in said
    )
    assert "delete the pod, so that it is created anew" in said
    assert "HTTPConnectionPool" not in said
    assert "tried again" not in said
    ended_as_failed(node)


@pytest.mark.parametrize("factor", [1, 2])
def test_memory_is_asked_for_in_units_of_the_schedulers(make_node: NodeMaker, factor: int) -> None:
    """A claim of 1400 MiB is what 700 units are, where the agent was told so."""
    node = make_node("--gpumem-factor", str(factor))
    asks = [Ask(memory_mib=700)]
    uid = node.create_pod("units", asks)
    gpu = node.place_pod("units", asks)[0][0].uuid
    node.client.annotate(
        "pods", "units", {TO_ALLOCATE: f"{gpu},NVIDIA,1400,10:;"}, namespace="team"
    )
    admitted = node.offer("units", uid, asks).admitted
    assert admitted.ok == (factor == 2), admitted.message
    assert admitted.ok or "in units of 2 MiB: set the node's --gpumem-factor" in admitted.message
