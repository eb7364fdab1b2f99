"""Are the real peers themselves what the cases take them for? Without the agent, by a tiny plugin."""

from pathlib import Path
from typing import Any

import pytest
from kube_api import KubeApi
from peers.node import PeerNode
from peers.tiny_plugin import RESOURCE, TinyPlugin
from waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def tiny_plugin(peer_node: PeerNode) -> TinyPlugin:
    return TinyPlugin(peer_node.proto("deviceplugin", "v1beta1"))


def start_pod(node: PeerNode, name: str, **container: Any) -> str:
    limits = {"limits": {RESOURCE: "1"}}
    spec = {
        "nodeName": node.name,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": limits, **container}],
    }
    pod = {"metadata": {"name": name}, "spec": spec}
    uid: str = node.plane.admin.request("POST", PODS, pod)["metadata"]["uid"]
    return uid


def status_of(api: KubeApi, name: str) -> dict[str, Any]:
    status: dict[str, Any] = api.get(f"{PODS}/{name}")["status"]
    return status


def wait_for_phase(api: KubeApi, name: str, phase: str) -> None:
    eventually(lambda: status_of(api, name).get("phase") == phase, within_s=30)


def wait_for_things(node: PeerNode, count: int) -> None:
    node_path = f"/api/v1/nodes/{node.name}"
    eventually(
        lambda: (
            node.plane.admin.get(node_path)["status"]["allocatable"].get(RESOURCE) == str(count)
        ),
        within_s=30,
    )


def test_what_a_plugin_grants_reaches_the_runtime_and_a_restart_asks_nobody(
    peer_node: PeerNode, tiny_plugin: TinyPlugin
) -> None:
    node, api = peer_node, peer_node.plane.admin
    with tiny_plugin.serving(node.kubelet.plugins):
        wait_for_things(node, 2)
        uid = start_pod(node, "granted", env=[{"name": "MINE", "value": "1"}])
        wait_for_phase(api, "granted", "Running")
        (ids,) = tiny_plugin.allocated
        (first,) = node.runtime.containers_of(uid)
        assert ("THINGS", ids[0]) in first.envs
        assert first.envs.index(("THINGS", ids[0])) < first.envs.index(("MINE", "1"))
        assert ("/thing", "/dev/null", True) in [
            (m.container_path, m.host_path, m.read_only) for m in first.mounts
        ]
        assert [d.container_path for d in first.devices] == ["/dev/thing"]
        assert first.annotations["example.com/things"] == "1"

        node.runtime.exit_container(uid, "main", 1)
        eventually(lambda: len(node.runtime.containers_of(uid)) == 2, within_s=30)
        assert set(node.runtime.containers_of(uid)[1].envs) == set(first.envs)
        assert tiny_plugin.allocated == [ids]
        delete_pod(api, "granted")


def test_a_refusal_is_shown_to_the_owner_of_the_pod(
    peer_node: PeerNode, tiny_plugin: TinyPlugin
) -> None:
    tiny_plugin.refusal = "no: ask for less"
    with tiny_plugin.serving(peer_node.kubelet.plugins):
        wait_for_things(peer_node, 2)
        start_pod(peer_node, "refused")
        wait_for_phase(peer_node.plane.admin, "refused", "Failed")
    status = status_of(peer_node.plane.admin, "refused")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "desc = no: ask for less, which is unexpected" in status["message"]
    delete_pod(peer_node.plane.admin, "refused")


def test_a_restart_of_the_kubelet_removes_the_socket_and_spares_the_pod(
    peer_node: PeerNode, tiny_plugin: TinyPlugin
) -> None:
    node, api = peer_node, peer_node.plane.admin
    with tiny_plugin.serving(node.kubelet.plugins):
        wait_for_things(node, 2)
        uid = start_pod(node, "survivor")
        wait_for_phase(api, "survivor", "Running")
        node.kubelet.restart()
        eventually(lambda: not (node.kubelet.plugins / "tiny.sock").exists())
        wait_for_things(node, 0)
    with tiny_plugin.serving(node.kubelet.plugins):
        wait_for_things(node, 2)
        assert len(tiny_plugin.allocated) == len(node.runtime.containers_of(uid)) == 1
        assert status_of(api, "survivor")["phase"] == "Running"
        delete_pod(api, "survivor")


def test_the_kubelet_changed_nothing_on_this_machine(
    knobs_before: dict[Path, str], peer_node: PeerNode
) -> None:
    assert {knob: knob.read_text() for knob in knobs_before} == knobs_before
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(peer_node.state) not in mounts
    assert not list(Path("/var/log").glob("pods/default_*"))
    # It did try: this is what a kubelet sets.
    assert (peer_node.state / "knobs" / "kernel.panic").read_text().strip() == "10"


def delete_pod(api: KubeApi, name: str) -> None:
    api.request("DELETE", f"{PODS}/{name}", query={"gracePeriodSeconds": "0"})
