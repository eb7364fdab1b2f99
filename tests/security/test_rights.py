"""The agent's rights: none is superfluous, none is missing, and each exception has a reason."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from manifests import BASE, DAEMONSET
from peers.debian_archive import PeersUnavailable

from agent.sim.apiserver import ApiServer
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import LOCK, REGISTER, TO_ALLOCATE
from agent.sim.scheduler_placement import NoFit
from tests.e2e.conftest import NodeMaker
from tests.e2e.test_bypass import staged
from tests.e2e.whole import finished, got_its_claims, up
from tests.faults.conftest import make_node
from tests.security.pod_security import (
    EXCEPTIONS,
    REASONS,
    controls,
    difference,
    judged,
    pod_of,
)
from tests.security.rights import EVICT, MISSED, Right, changes, of_nvidia, rights
from tests.waiting import eventually

__all__ = ["make_node"]


ROLE = "vgpu-agent"  # as the agent calls itself to the API server
ASKS = [Ask(memory_mib=700)]


def asked(api: ApiServer, *, code: int = -1) -> set[Right]:
    return {
        (request.verb, request.resource)
        for request in api.requests(code=code)
        if request.user_agent.startswith(ROLE)
    }


def counted(api: ApiServer, verb: str, resource: str, *, code: int = 200) -> int:
    found = api.requests(verb=verb, resource=resource, code=code)
    return sum(request.user_agent.startswith(ROLE) for request in found)


def offered(node: SimNode, name: str) -> RanPod:
    """A pod as the scheduler places it, offered to kubelet."""
    return node.run_pod(name, ASKS)


def served(node: SimNode, name: str = "pod") -> None:
    """A pod is served to the end: its claim is consumed, its bind is a success, the node is free."""
    pod = offered(node, name)
    assert got_its_claims(pod, ASKS)
    eventually(lambda: finished(node, pod), within_s=60, what=f"the bind of {name}")


# --- what is asked is what is given --------------------------------------------------------------


def test_nothing_more_is_asked_than_the_manifest_gives(make_node: NodeMaker) -> None:
    """Every kind of request is made, with the manifest's rights alone; none is refused."""
    node = make_node("--allocate-budget", "10s", started=False)
    node.api.allow_only(ROLE, rights())
    node.start_agent()
    up(node, 20)
    uid = node.create_pod("pod", ASKS)
    claims = node.place_pod("pod", ASKS)
    node.api.lose_answer(verb="patch", resource="pods")  # what it did, it has to find out
    node.api.lose_answer(verb="patch", resource="nodes")
    pod = node.offer("pod", uid, ASKS, claims)
    assert got_its_claims(pod, ASKS)
    eventually(lambda: finished(node, pod), within_s=60)
    node.driver.lost(0)
    eventually(lambda: node.events() and node.allocatable() == 10, within_s=60)
    assert node.stop_agent() == 0
    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert asked(node.api) == rights(), "all of them, and nothing else"
    assert asked(node.api, code=403) == set()


def test_in_mode_nvidia_nothing_more_is_asked_than_its_overlay_gives(
    make_node: NodeMaker, tmp_path: Path
) -> None:
    """A label that chooses, a GPU that fails, doctor: with its rights alone none is refused."""
    (tmp_path / "default").write_text("version: v1\n")
    flags = ("--mode", "nvidia", "--config-file-srcdir", str(tmp_path))
    node = make_node(*flags, started=False)
    node.api.allow_only(ROLE, of_nvidia())
    node.start_agent()
    eventually(lambda: node.allocatable() == 2, within_s=60, what="both GPUs at kubelet")
    node.driver.lost(0)
    eventually(lambda: node.events() and node.allocatable() == 1, within_s=60)
    assert asked(node.api) == of_nvidia(), "all of them, and nothing else"
    assert asked(node.api, code=403) == set()
    done = node.run_command("doctor", "--only", "rights-nodes,rights-pods,rights-events,node")
    assert done.returncode == 0, done.stdout


def test_each_right_is_looked_at() -> None:
    more = {right for added in changes().values() for right in added or ()}
    assert more - rights() == {EVICT}
    assert set(MISSED) == rights() | more


# --- what is missed without each -----------------------------------------------------------------


def says_what_to_allow(node: SimNode, verb: str, resource: str) -> None:
    """The log has the sentence for whoever administers the cluster."""
    sentence = f"allow `{verb}` on `{resource}` in the agent's ClusterRole"
    eventually(lambda: sentence in node.log_text(), within_s=60, what=sentence)


def unseen_nodes(node: SimNode) -> None:
    up(node, 20)
    eventually(lambda: counted(node.api, "get", "nodes") > 0, within_s=60, what="it is read")
    assert counted(node.api, "watch", "nodes") == 0
    served(node)


def unwritten_nodes(node: SimNode) -> None:
    eventually(lambda: node.allocatable() == 20, within_s=60, what="20 vGPUs at kubelet")
    says = "the annotation of our Node cannot be written: the API server answered 403"
    eventually(lambda: says in node.fetch("/readyz")[1], within_s=60)
    assert not node.ready()
    assert node.annotations() == {}
    with pytest.raises(NoFit):
        offered(node, "pod")


def unlisted_pods(node: SimNode) -> None:
    eventually(lambda: node.allocatable() == 20, within_s=60, what="20 vGPUs at kubelet")
    eventually(lambda: REGISTER in node.annotations(), within_s=60)
    says = "the pods of this node have not been read yet"
    eventually(lambda: says in node.fetch("/readyz")[1], within_s=60)
    assert not node.ready()
    refused = offered(node, "pod").admitted
    assert not refused.ok
    assert "the API server cannot be asked for more (it answered 403)" in refused.message


def unseen_pods(node: SimNode) -> None:
    up(node, 20)
    before = counted(node.api, "list", "pods"), counted(node.api, "get", "nodes")
    served(node, "one")
    served(node, "two")
    after = counted(node.api, "list", "pods"), counted(node.api, "get", "nodes")
    assert (after[0] - before[0], after[1] - before[1]) >= (2, 2), "for each pod"
    assert counted(node.api, "watch", "pods") == 0


def unwritten_pods(node: SimNode) -> None:
    up(node, 20)
    refused = offered(node, "pod")
    assert not refused.admitted.ok
    assert "403" in refused.admitted.message
    assert "NVIDIA" in node.pod_annotations("team", "pod")[TO_ALLOCATE], "nothing is erased"
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="the lock is freed")
    assert node.ready()


def untold_events(node: SimNode) -> None:
    up(node, 20)
    node.driver.lost(0)
    eventually(lambda: node.allocatable() == 10, within_s=60, what="the GPU is withdrawn")
    eventually(lambda: ("create", "events") in asked(node.api, code=403), within_s=60)
    assert node.events() == []
    served(node)


@pytest.mark.parametrize(
    ("verb", "resource", "story"),
    [
        pytest.param("watch", "nodes", unseen_nodes, id="watch nodes"),
        pytest.param("patch", "nodes", unwritten_nodes, id="patch nodes"),
        pytest.param("list", "pods", unlisted_pods, id="list pods"),
        pytest.param("watch", "pods", unseen_pods, id="watch pods"),
        pytest.param("patch", "pods", unwritten_pods, id="patch pods"),
        pytest.param("create", "events", untold_events, id="create events"),
    ],
)
def test_without_one_of_its_rights_something_is_missed(
    make_node: NodeMaker, verb: str, resource: str, story: Callable[[SimNode], None]
) -> None:
    """What MISSED says of it; it alone is refused, and the log says what to allow."""
    node = make_node("--allocate-budget", "5s", started=False)
    node.api.allow_only(ROLE, rights() - {(verb, resource)})
    node.start_agent()
    story(node)
    says_what_to_allow(node, verb, resource)
    assert asked(node.api, code=403) == {(verb, resource)}


def lost_claim(node: SimNode) -> None:
    """What became of the erasing of its claim nobody can tell, so the pod gets nothing."""
    uid = node.create_pod("pod", ASKS)
    claims = node.place_pod("pod", ASKS)
    node.api.lose_answer(verb="patch", resource="pods")
    refused = node.offer("pod", uid, ASKS, claims).admitted
    assert not refused.ok
    assert "403" in refused.message
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="the lock is freed")
    served(node, "next")


def lost_removal(node: SimNode) -> None:
    """The pod is served, its node is free; only that it is comes by the watch."""
    uid = node.create_pod("pod", ASKS)
    claims = node.place_pod("pod", ASKS)
    node.api.lose_answer(verb="patch", resource="nodes")
    pod = node.offer("pod", uid, ASKS, claims)
    assert got_its_claims(pod, ASKS)
    eventually(lambda: ("get", "nodes") in asked(node.api, code=403), within_s=60)
    eventually(lambda: finished(node, pod), within_s=60)
    assert node.stop_agent() == 0
    wrote = node.annotations()
    done = node.run_command("uninstall")
    assert "allow `get` on `nodes` in the agent's ClusterRole" in done.stdout + done.stderr
    assert node.annotations() == wrote


@pytest.mark.parametrize(
    ("resource", "story"),
    [pytest.param("nodes", lost_removal, id="nodes"), pytest.param("pods", lost_claim, id="pods")],
)
def test_without_the_right_to_read_a_lost_answer_stays_unclear(
    make_node: NodeMaker, resource: str, story: Callable[[SimNode], None]
) -> None:
    """Both are read when nobody knows whether a change was made."""
    node = make_node("--allocate-budget", "5s", started=False)
    node.api.allow_only(ROLE, rights() - {("get", resource)})
    node.start_agent()
    up(node, 20)
    served(node, "before")
    story(node)
    says_what_to_allow(node, "get", resource)
    assert asked(node.api, code=403) == {("get", resource)}


def test_without_the_right_to_evict_who_takes_a_gpu_stays(make_node: NodeMaker) -> None:
    """The agent asks for it, is refused, says so, and the pod is there; allowed, it is evicted."""
    with ExitStack() as stack:
        stage = staged(make_node, stack, "--on-bypass", "evict")
        api = stage.node.api
        api.allow_only(ROLE, rights())
        uid = stage.bound_pod("thief")
        stage.taker(uid)
        eventually(lambda: EVICT in asked(api, code=403), within_s=60)
        eventually(lambda: "pod_not_evicted" in stage.node.log_text(), within_s=60)
        says_what_to_allow(stage.node, *EVICT)
        assert [pod["metadata"]["uid"] for pod in api.objects.list("pods")[0]] == [uid]
        assert not stage.events("VgpuBypassEvicted")
        eventually(stage.events, within_s=60, what="it is told of")
        api.allow_only(ROLE, rights() | {EVICT})
        eventually(lambda: api.objects.list("pods")[0] == [], within_s=60)
    assert asked(api) <= rights() | {EVICT}


# --- Pod Security --------------------------------------------------------------------------------


def test_it_keeps_to_the_restricted_profile_but_for_these() -> None:
    assert {what for what, kept in controls().items() if not kept} == set(EXCEPTIONS)


@pytest.mark.timeout(600)  # kustomize is compiled once
@pytest.mark.parametrize(
    ("folder", "more"),
    [
        pytest.param("components/host-pid", "control not kept: host namespaces", id="host-pid"),
        pytest.param(
            "overlays/mig", "capability: SYS_ADMIN; of the host: /tmp/hami (write)", id="mig"
        ),
        pytest.param("overlays/slices", "no right in the cluster; no token", id="slices"),
        pytest.param(
            "overlays/nvidia",
            "without get pods, list pods, patch nodes, patch pods, watch pods",
            id="nvidia",
        ),
    ],
)
def test_what_a_choice_asks_beside_the_base_is_told_with_its_reason(folder: str, more: str) -> None:
    try:
        assert difference(pod_of(BASE), pod_of(DAEMONSET / folder)) == more
    except PeersUnavailable as error:
        pytest.skip(str(error))
    assert REASONS[folder]


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
