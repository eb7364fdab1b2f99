"""What breaks around the agent: the API server is away, slow, forgetful, or says no."""

import time
from collections.abc import Callable

import pytest

from agent.sim.api_faults import Fault
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import BIND_PHASE, HANDSHAKE, LOCK, REGISTER
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, got_its_claims, published, serves, up
from tests.waiting import eventually

# --- its watches ---------------------------------------------------------------------------------

WATCHED = ("pods", "nodes")


def api_restarted(node: SimNode) -> list[Fault]:
    node.api.restart()
    return []


def api_lost_its_history(node: SimNode) -> list[Fault]:
    node.api.restart(lose_history=True)
    return []


def watches_expired(node: SimNode) -> list[Fault]:
    """Of pods alone: each watch of our Node begins with what it is now. Both ways of saying it."""
    faults = [
        node.api.expire_watches(resource="pods"),
        node.api.expire_watches(resource="pods", as_status=True),
    ]
    node.api.end_watches()
    return faults


def too_many_requests(node: SimNode) -> list[Fault]:
    faults = [
        node.api.fail(429, count=3, verb="watch", resource=one, retry_after_s=1) for one in WATCHED
    ]
    node.api.end_watches()
    return faults


def server_errors(node: SimNode) -> list[Fault]:
    faults = [node.api.fail(500, count=3, verb="watch", resource=one) for one in WATCHED]
    faults.append(node.api.fail(500, verb="list", resource="pods"))
    node.api.end_watches()
    return faults


def requests_lost(node: SimNode) -> list[Fault]:
    faults = [node.api.drop(count=3, verb="watch", resource=one) for one in WATCHED]
    node.api.end_watches()
    return faults


# How often pods are listed anew at least: after each 410, or three errors that may come of our version.
API_FAULTS = {
    api_restarted: 0, api_lost_its_history: 1, watches_expired: 2, too_many_requests: 0,
    server_errors: 2, requests_lost: 0,
}  # fmt: skip


def asked(node: SimNode, verb: str, resource: str) -> int:
    return len(node.api.requests(verb=verb, resource=resource))


def all_met(faults: list[Fault]) -> None:
    eventually(
        lambda: all(fault.used == fault.count for fault in faults),
        within_s=120,
        what=f"each fault is met: {faults}",
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", API_FAULTS, ids=lambda fault: fault.__name__)
def test_api_server_faults(node: SimNode, fault: Callable[[SimNode], list[Fault]]) -> None:
    eventually(
        lambda: published(node) == 20, within_s=60, what="kubelet has written what it counts"
    )
    eventually(lambda: all(node.api.open_watches(one) for one in WATCHED), within_s=60)
    watches = {one: asked(node, "watch", one) for one in WATCHED}
    lists = asked(node, "list", "pods")
    faults = fault(node)
    all_met(faults)
    for one in faults:
        watches[one.resource] += one.count if one.verb == "watch" else 0
    eventually(
        lambda: all(asked(node, "watch", one) > watches[one] for one in WATCHED),
        within_s=60,
        what="everything is followed again",
    )
    eventually(
        lambda: asked(node, "list", "pods") >= lists + API_FAULTS[fault],
        within_s=60,
        what="pods are listed anew",
    )
    serves(node)


# --- it fails, or is away, while a pod is bound ---------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda api, **what: api.fail(429, retry_after_s=1, **what), id="429"),
        pytest.param(lambda api, **what: api.fail(503, **what), id="503"),
        pytest.param(lambda api, **what: api.drop(**what), id="not done, no answer"),
        pytest.param(lambda api, **what: api.lose_answer(**what), id="done, the answer is lost"),
    ],
)
def test_writes_of_a_bind_fail(make_node: NodeMaker, plan: Callable[..., Fault]) -> None:
    """They are tried again, and exactly the claim comes of it."""
    node = make_node("--allocate-budget", "10s")
    asks = [Ask(name="a", memory_mib=800), Ask(name="b", memory_mib=300)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    faults = [plan(node.api, count=2, verb="patch", resource=one) for one in WATCHED]
    pod = node.offer("unlucky", uid, asks, claims)
    assert pod.admitted.ok, pod.admitted.message
    assert got_its_claims(pod, asks)
    all_met(faults)
    eventually(lambda: finished(node, pod), within_s=60, what="the bind is ended")
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
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    serves(node)


LATE_S = 30
ASKED = [(verb, "pods") for verb in ("get", "list", "watch", "patch")]
ASKED += [(verb, "nodes") for verb in ("get", "watch", "patch")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("known", "waits"),
    [
        pytest.param(True, [("patch", "pods"), ("watch", "pods"), ("watch", "nodes")], id="writes"),
        pytest.param(False, [("list", "pods"), ("watch", "pods"), ("watch", "nodes")], id="reads"),
    ],
)
def test_the_api_server_answers_too_late(
    node: SimNode, known: bool, waits: list[tuple[str, str]]
) -> None:
    """Each answer takes 30 s. Kubelet is not blocked so long, and what is done late does no harm."""
    asks = [Ask(memory_mib=800)]
    eventually(lambda: all(node.api.open_watches(one) for one in WATCHED), within_s=60)
    node.api.events_held = not known  # then it has to be read
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    began_s = time.monotonic()
    for verb, resource in ASKED:
        node.api.hang(LATE_S, count=10_000, verb=verb, resource=resource)
    pod = node.offer("unlucky", uid, asks, claims)
    assert not answered_since(node, *waits[0], began_s), "kubelet did not wait for an answer"
    assert not pod.admitted.ok
    node.api.events_held = False
    node.api.end_watches()
    for verb, resource in waits:
        eventually(
            lambda v=verb, r=resource: answered_since(node, v, r, began_s + LATE_S),
            within_s=120,
            every_s=0.5,
            what=f"a late answer to {verb} {resource}",
        )
        assert node.fetch("/healthz")[0] == 200
    node.api.clear_faults()
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    eventually(lambda: node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed", within_s=60)
    serves(node)


def answered_since(node: SimNode, verb: str, resource: str, since_s: float) -> bool:
    return any(one.at_s >= since_s for one in node.api.requests(verb=verb, resource=resource))


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
    eventually(lambda: node.api.open_watches("pods"))
    before = asked(node, "list", "pods")
    with node.api.stale_reads(), node.api.held_events():
        asks = [Ask(name="a", memory_mib=700), Ask(name="b", memory_mib=900)]
        pod = node.run_pod("stale", asks)
        assert not pod.admitted.ok or got_its_claims(pod, asks)
    assert asked(node, "list", "pods") > before, "it was read, and what was read was old"
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)


def test_doubled_and_late_events(node: SimNode) -> None:
    node.api.duplicate_events = True
    node.api.event_delay_s = 0.3
    for number in range(3):
        asks = [Ask(name="a", memory_mib=700 + number), Ask(name="b", memory_mib=900 + number)]
        pod = node.run_pod(f"pod-{number}", asks)
        assert got_its_claims(pod, asks)
        assert eventually(lambda pod=pod: finished(node, pod))
    serves(node)


@pytest.mark.parametrize("skew_s", [3600, -3600], ids=["an hour ahead", "an hour behind"])
def test_the_schedulers_clock_is_wrong(make_node: NodeMaker, skew_s: int) -> None:
    """Lock, bind-time and handshake carry the scheduler's time; ours is not compared with it."""
    node = make_node("--register-format", "csv9", release="2.7")
    node.scheduler._clock = lambda: time.time() + skew_s
    node.scheduler.handshake_once(node.name)
    assert eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"))
    serves(node)
