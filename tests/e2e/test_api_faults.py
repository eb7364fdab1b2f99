"""What breaks around the agent: the API server is away, slow, forgetful, or says no."""

import time
from collections.abc import Callable

import pytest

from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import BIND_PHASE, HANDSHAKE, LOCK, REGISTER
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, got_its_claims, serves, up
from tests.waiting import eventually

# --- the API server --------------------------------------------------------------------------------


def api_restarted(node: SimNode) -> None:
    node.api.restart()


def api_lost_its_history(node: SimNode) -> None:
    node.api.restart(lose_history=True)


def watches_expired(node: SimNode) -> None:
    node.api.expire_watches()


def too_many_requests(node: SimNode) -> None:
    node.api.fail(429, count=3, retry_after_s=1)
    node.api.end_watches()


def server_errors(node: SimNode) -> None:
    node.api.fail(500, count=5)
    node.api.end_watches()


def answers_lost(node: SimNode) -> None:
    node.api.drop(count=3)
    node.api.end_watches()


API_FAULTS = [
    api_restarted, api_lost_its_history, watches_expired, too_many_requests, server_errors,
    answers_lost,
]  # fmt: skip


@pytest.mark.parametrize("fault", API_FAULTS, ids=lambda fault: fault.__name__)
def test_api_server_faults(node: SimNode, fault: Callable[[SimNode], None]) -> None:
    fault(node)
    eventually(
        lambda: node.api.open_watches("pods") and node.api.open_watches("nodes"), within_s=40
    )
    node.api.clear_faults()
    serves(node)


def test_the_api_server_is_down_during_allocate(node: SimNode) -> None:
    """The pod is refused with a sentence, and the lock is released when the server is back."""
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    eventually(lambda: node.api.open_watches("pods"))
    node.api.stop()
    pod = node.offer("unlucky", uid, asks, claims)
    node.api.start()
    assert not pod.admitted.ok
    assert "API server" in pod.admitted.message
    node.report_status(pod)
    eventually(lambda: LOCK not in node.annotations(), within_s=40, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    serves(node)


def test_the_api_server_answers_too_late(node: SimNode) -> None:
    """Allocate keeps its budget of 2 s: kubelet is not blocked, the pod's owner is told why."""
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    node.api.hang(30, verb="patch", count=2)
    pod = node.offer("unlucky", uid, asks, claims)
    node.api.clear_faults()
    assert not pod.admitted.ok
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)


def test_allocate_arrives_before_the_watch_event(node: SimNode) -> None:
    """Kubelet was told of the pod, we were not yet: the API server is asked."""
    asks = [Ask(memory_mib=900)]
    with node.api.held_events():
        pod = node.run_pod("early", asks)
        assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


def test_a_removed_annotation_is_published_again(node: SimNode) -> None:
    node.client.annotate("nodes", node.name, {REGISTER: None})
    assert eventually(lambda: REGISTER in node.annotations())


def test_the_api_server_is_down_at_the_start(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    node.api.stop()
    node.start_agent()
    eventually(lambda: node.fetch("/healthz")[0] == 200)
    assert node.fetch("/readyz")[0] == 503
    node.api.start()
    up(node, 20)
    serves(node)


def test_missing_credentials_end_it_with_a_sentence(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    (node.root / "kubeconfig").unlink()
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(20) == 2
    last = node.log_text().strip().splitlines()[-1]
    assert "kubeconfig" in last
    assert "Traceback" not in node.log_text()


def test_stale_reads(node: SimNode) -> None:
    """What is read is older than what was written: nobody is served twice or wrongly."""
    with node.api.stale_reads(), node.api.held_events():
        asks = [Ask(name="a", memory_mib=700), Ask(name="b", memory_mib=900)]
        pod = node.run_pod("stale", asks)
        assert not pod.admitted.ok or got_its_claims(pod, asks)
    eventually(lambda: LOCK not in node.annotations(), within_s=30, what="lock released")
    serves(node)


def test_doubled_and_late_events(node: SimNode) -> None:
    node.api.duplicate_events = True
    node.api.event_delay_s = 0.3
    for number in range(3):
        asks = [Ask(name="a", memory_mib=700 + number), Ask(name="b", memory_mib=900 + number)]
        pod = node.run_pod(f"pod-{number}", asks)
        assert got_its_claims(pod, asks)
        assert eventually(lambda pod=pod: finished(node, pod))


@pytest.mark.parametrize("skew_s", [3600, -3600], ids=["an hour ahead", "an hour behind"])
def test_the_schedulers_clock_is_wrong(make_node: NodeMaker, skew_s: int) -> None:
    """Lock, bind-time and handshake carry the scheduler's time; ours is not compared with it."""
    node = make_node("--register-format", "csv9", release="2.7")
    node.scheduler._clock = lambda: time.time() + skew_s
    node.scheduler.handshake_once(node.name)
    assert eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"))
    serves(node)
