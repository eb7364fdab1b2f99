"""What belongs to others on the node stays as it is, and what is secret stays inside."""

from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, REGISTER, TO_ALLOCATE
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, up
from tests.waiting import eventually

DCU = {
    "hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:",
    "hami.io/node-handshake-dcu": "Requesting_2026-01-01 00:00:00",
    "hami.io/device-cordon": "GPU-x",
}


def written(node: SimNode, resource: str) -> set[str]:
    """The annotations that the agent has written; fails when it has written anything else."""
    keys: set[str] = set()
    for request in node.api.requests(verb="patch", resource=resource):
        if "vgpu-agent" not in request.user_agent:
            continue
        if isinstance(request.body, dict):
            assert request.body.keys() == {"metadata"}
            assert request.body["metadata"].keys() == {"annotations"}
            keys |= request.body["metadata"]["annotations"].keys()
            continue
        for step in request.body:
            parent, _, key = step["path"].rpartition("/")
            if step["op"] != "test":
                assert parent == "/metadata/annotations"
                keys.add(key.replace("~1", "/"))
    return keys


def test_annotations_of_other_device_plugins_are_left_alone(make_node: NodeMaker) -> None:
    node = make_node("--clean-exit", "--register-format", "csv9", release="2.7", started=False)
    node.client.annotate("nodes", node.name, {**DCU, "team/note": "keep"})
    node.start_agent()
    up(node, 20)
    node.scheduler.handshake_once(node.name)
    pod = node.run_pod("pod", [Ask()])
    eventually(lambda: finished(node, pod))
    assert node.stop_agent() == 0
    assert node.annotations() == {**DCU, "team/note": "keep"}


def test_allocate_changes_two_annotations_of_a_pod_and_nothing_else(node: SimNode) -> None:
    """What users write is for the scheduler; the agent gives what the scheduler decided."""
    asks = [Ask()]
    uid = node.create_pod("pod", asks)
    wishes: dict[str, str | None] = {
        "nvidia.com/use-gpuuuid": "GPU-another",
        "nvidia.com/nouse-gputype": "A40",
        "nvidia.com/vgpu-mode": "mig",
    }
    node.client.annotate("pods", "pod", wishes, namespace="team")
    claims = node.place_pod("pod", asks)
    before = node.client.get("pods", "pod", namespace="team")
    granted = node.offer("pod", uid, asks, claims)
    assert granted.admitted.containers["main"].env["NVIDIA_VISIBLE_DEVICES"] == claims[0][0].uuid
    eventually(lambda: finished(node, granted))

    after = node.client.get("pods", "pod", namespace="team")
    was, now = before["metadata"]["annotations"], after["metadata"]["annotations"]
    assert now == {**was, TO_ALLOCATE: ";", BIND_PHASE: "success"}
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")


def test_nothing_but_annotations_of_ours_is_ever_written(node: SimNode) -> None:
    pod = node.run_pod("pod", [Ask()])
    eventually(lambda: finished(node, pod))
    assert written(node, "nodes") == {REGISTER, LOCK}
    assert written(node, "pods") == {TO_ALLOCATE, BIND_PHASE}
    agents = [r for r in node.api.requests() if "vgpu-agent" in r.user_agent]
    assert {(r.verb, r.resource) for r in agents} <= {
        *((verb, "nodes") for verb in ("get", "watch", "patch")),
        *((verb, "pods") for verb in ("list", "watch", "patch")),
        ("create", "events"),
    }


def test_the_token_is_never_shown(make_node: NodeMaker) -> None:
    node = make_node("--log-level", "debug", started=False)
    token = "s3cret-t0ken-of-the-agent"  # noqa: S105 - made up
    node.api.write_kubeconfig(node.root / "kubeconfig", token)
    node.start_agent()
    up(node, 20)
    node.api.accept_tokens("another")  # refused from now on, and said so
    refused = node.offer("pod", "uid-1", [Ask()])
    assert not refused.admitted.ok
    said = refused.admitted.message + node.fetch("/metrics")[1] + node.fetch("/readyz")[1]
    assert token not in said
    node.stop_agent()
    assert "401" in node.log_text()
    assert token not in node.log_text()
