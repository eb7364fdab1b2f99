"""The agent's rights: none is superfluous, none is missing, and each exception has a reason."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import yaml
from manifests import COMPONENTS, OVERLAYS, only, plain

from agent.sim.apiserver import ApiServer
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.test_bypass import staged
from tests.e2e.whole import up
from tests.faults.conftest import make_node
from tests.security.pod_security import EXCEPTIONS, controls, judged
from tests.waiting import eventually

__all__ = ["make_node"]


def rights() -> Iterator[tuple[str, str]]:
    """Verb and resource, as the base's ClusterRole gives them."""
    for rule in only("ClusterRole", plain())["rules"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield verb, resource


def more_rights() -> Iterator[tuple[str, str]]:
    """Those that components and overlays add to the base's."""
    for folder in (*COMPONENTS, *OVERLAYS):
        chosen = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for patch in chosen.get("patches", ()):
            if patch.get("target", {}).get("kind") != "ClusterRole":
                continue
            for step in yaml.safe_load(patch["patch"]):
                value = step["value"]
                for rule in value if isinstance(value, list) else [value]:
                    yield from ((v, r) for r in rule["resources"] for v in rule["verbs"])


def whole_story(node: SimNode) -> None:
    """Everything that the agent asks of the API server, once: as far as it may."""
    node.start_agent()
    up_or_not(node)
    uid = node.create_pod("pod", [Ask(memory_mib=700)])
    claims = node.place_pod("pod", [Ask(memory_mib=700)])
    node.api.lose_answer(verb="patch", resource="pods")  # what it did, it has to find out
    node.api.lose_answer(verb="patch", resource="nodes")
    with node.api.held_events():
        node.offer("pod", uid, [Ask(memory_mib=700)], claims)
    node.driver.xid(0, 79)  # the GPU has fallen off the bus: an Event
    node.driver.lost(0)


def up_or_not(node: SimNode) -> None:
    try:
        eventually(lambda: node.allocatable() == 20 and node.ready(), within_s=6)
    except AssertionError:
        node.scheduler.handshake_once(node.name)


def asked(api: ApiServer, *, code: int = -1) -> set[tuple[str, str]]:
    return {
        (request.verb, request.resource)
        for request in api.requests(code=code)
        if request.user_agent.startswith("vgpu-agent")
    }


def test_nothing_more_is_asked_than_the_manifest_gives(make_node: NodeMaker) -> None:
    node = make_node("--allocate-budget", "10s", started=False)
    whole_story(node)
    up(node, 10)
    eventually(lambda: ("create", "events") in asked(node.api), within_s=20)
    assert asked(node.api) <= set(rights()), asked(node.api) - set(rights())


# What is missed without a right, and where a test of its own shows it.
MISSED = {
    (
        "get",
        "nodes",
    ): "tests/wire/test_registrar.py::test_a_lost_answer_costs_one_more_write_at_most",
    (
        "watch",
        "nodes",
    ): "tests/wire/test_watches.py::test_without_permission_to_watch_nodes_they_are_read",
    ("patch", "nodes"): "the GPUs are not registered",
    ("get", "pods"): "a lost answer is not cleared up",
    ("list", "pods"): "no pod is known",
    ("watch", "pods"): "no pod is followed",
    ("patch", "pods"): "no claim is erased",
    ("create", "events"): "no Event tells of anything",
}


EVICT = ("create", "pods/eviction")  # of the component `evict`


def test_each_right_is_looked_at() -> None:
    assert set(MISSED) == set(rights())
    assert list(more_rights()) == [EVICT]


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        pytest.param(*right, id=" ".join(right))
        for right in MISSED
        if right not in (("get", "nodes"), ("get", "pods"))  # asked when an answer was lost
    ],
)
def test_without_one_of_its_rights_something_is_missed(
    make_node: NodeMaker, verb: str, resource: str
) -> None:
    """The agent asks for it, is refused, says so, and is not ready or goes on with less."""
    node = make_node("--allocate-budget", "5s", started=False)
    pods = (verb, resource) == ("patch", "pods")  # which the scheduler has to patch as well
    if not pods:
        node.api.fail(403, count=1_000_000, verb=verb, resource=resource)
    node.start_agent()
    if (verb, resource) == ("create", "events"):
        up(node, 20)
        node.driver.lost(0)
    if pods:
        up(node, 20)
        uid = node.create_pod("pod", [Ask(memory_mib=700)])
        claims = node.place_pod("pod", [Ask(memory_mib=700)])
        node.api.fail(403, count=1_000_000, verb=verb, resource=resource)
        assert not node.offer("pod", uid, [Ask(memory_mib=700)], claims).admitted.ok
    eventually(lambda: (verb, resource) in asked(node.api, code=403), within_s=30)
    eventually(lambda: "403" in node.log_text() or "denied" in node.log_text().lower())


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_without_the_right_to_read_a_lost_answer_stays_unclear(
    make_node: NodeMaker, resource: str
) -> None:
    """Both are read when nobody knows whether a change was made; refused, the agent says so."""
    node = make_node("--allocate-budget", "5s")
    uid = node.create_pod("pod", [Ask(memory_mib=700)])
    claims = node.place_pod("pod", [Ask(memory_mib=700)])
    node.api.fail(403, count=1_000_000, verb="get", resource=resource)
    node.api.lose_answer(verb="patch", resource=resource)
    node.offer("pod", uid, [Ask(memory_mib=700)], claims)
    eventually(lambda: ("get", resource) in asked(node.api, code=403), within_s=30)
    eventually(lambda: "403" in node.log_text() or "denied" in node.log_text().lower())


def test_without_the_right_to_evict_who_takes_a_gpu_stays(make_node: NodeMaker) -> None:
    """The agent asks for it, is refused, says so, and the pod is there; allowed, it is evicted."""
    with ExitStack() as stack:
        stage = staged(make_node, stack, "--on-bypass", "evict")
        api, (verb, resource) = stage.node.api, EVICT
        api.fail(403, count=1_000_000, verb=verb, resource=resource)
        uid = stage.bound_pod("thief")
        stage.taker(uid)
        eventually(lambda: EVICT in asked(api, code=403), within_s=30)
        eventually(lambda: "pod_not_evicted" in stage.node.log_text(), within_s=30)
        assert [pod["metadata"]["uid"] for pod in api.objects.list("pods")[0]] == [uid]
        assert not stage.events("VgpuBypassEvicted")
        api.clear_faults()
        eventually(lambda: api.objects.list("pods")[0] == [], within_s=30)
    assert asked(api) <= {*rights(), EVICT}


# --- Pod Security --------------------------------------------------------------------------------


def test_it_keeps_to_the_restricted_profile_but_for_these() -> None:
    assert {what for what, kept in controls().items() if not kept} == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("control", "pod", "container"),
    [
        pytest.param("host namespaces", {"hostPID": True}, {}, id="hostPID"),
        pytest.param("host namespaces", {"hostNetwork": True}, {}, id="hostNetwork"),
        pytest.param("privileged", {}, {"privileged": True}, id="privileged"),
        pytest.param("privilege escalation", {}, {}, id="escalation is not forbidden"),
        pytest.param("seccomp", {}, {"seccompProfile": {"type": "Unconfined"}}, id="seccomp"),
        pytest.param("other volumes", {"volumes": [{"name": "a", "nfs": {}}]}, {}, id="nfs"),
        pytest.param("procMount", {}, {"procMount": "Unmasked"}, id="procMount"),
        pytest.param("sysctls", {"securityContext": {"sysctls": [{"name": "a"}]}}, {}, id="sysctls"),
        pytest.param("capabilities", {}, {"capabilities": {"drop": ["NET_RAW"]}}, id="not all dropped"),
        pytest.param(
            "capabilities", {}, {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, id="added"
        ),
    ],
)  # fmt: skip
def test_another_pod_would_be_objected_to(
    control: str, pod: dict[str, object], container: dict[str, object]
) -> None:
    assert not judged(pod, {"securityContext": container})[control]
