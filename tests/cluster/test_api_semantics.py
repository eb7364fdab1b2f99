"""The stand-in API server and a real one answer alike, in what the agent depends on.

Every case runs on both; a row that holds on one alone is a mistake in the stand-in.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import REAL_NODES
from kube_api import ApiFailure, KubeApi
from kube_stage import Reader, StoppableLife
from waiting import eventually

from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_transport import KubeTransport
from agent.domain.pods import Pod
from agent.errors import ClusterConflict, ClusterGone
from agent.ports import ClusterEvent
from agent.sim.apiserver import ApiServer

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
ORDER = "hami.io/vgpu-devices-to-allocate"
LOCK = "hami.io/mutex.lock"


@dataclass(frozen=True, slots=True)
class Stage:
    """An API server, a Node nobody runs, and a pod bound to it."""

    admin: KubeApi
    kubeconfig: Path
    node: str
    pod: dict[str, Any]

    @property
    def node_path(self) -> str:
        return f"/api/v1/nodes/{self.node}"

    @property
    def pod_path(self) -> str:
        return f"/api/v1/namespaces/default/pods/{self.pod['metadata']['name']}"

    def known_pod(self) -> Pod:
        metadata = self.pod["metadata"]
        return Pod(
            namespace="default",
            name=metadata["name"],
            uid=metadata["uid"],
            annotations=metadata["annotations"],
        )

    def cluster(self, **more: Any) -> KubeCluster:
        return KubeCluster(KubeTransport(self.kubeconfig), node_name=self.node, **more)

    def code(self, method: str, path: str, body: Any = None, content_type: str = "") -> int:
        """Make a request; give the HTTP status, 200 for any success."""
        try:
            self.admin.request(method, path, body, content_type=content_type or "application/json")
        except ApiFailure as failure:
            return failure.code
        return 200

    def annotations(self, path: str) -> dict[str, str]:
        found: dict[str, str] = self.admin.get(path)["metadata"].get("annotations") or {}
        return found


@pytest.fixture(
    scope="module",
    params=[
        "stand-in",
        *REAL_NODES,
    ],
)
def api(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KubeApi, Path]]:
    if request.param == "stand-in":
        with ApiServer(graceful_pods=True) as server:
            folder = tmp_path_factory.mktemp("stand-in")
            yield KubeApi(server.url), server.write_kubeconfig(folder / "kubeconfig")
    elif request.param == "given":
        environ = request.getfixturevalue("given_environ")
        administrator = Path(environ["VGPU_TEST_KUBECONFIG"])
        agent = Path(environ.get("VGPU_TEST_AGENT_KUBECONFIG") or administrator)
        yield KubeApi.from_kubeconfig(administrator), agent
    else:
        plane = request.getfixturevalue("peer_node").plane
        yield plane.admin, plane.kubeconfig("agent")


@pytest.fixture
def stage(api: tuple[KubeApi, Path]) -> Iterator[Stage]:
    admin, kubeconfig = api
    node = f"semantics-{uuid.uuid4().hex[:8]}"
    admin.request(
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": node, "annotations": {LOCK: "mine", "other/key": "theirs"}}},
    )
    pod = admin.request(
        "POST",
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": f"{node}-pod", "annotations": {ORDER: "x;"}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        },
    )
    stage = Stage(admin, kubeconfig, node, pod)
    yield stage
    stage.code("DELETE", stage.pod_path, {"gracePeriodSeconds": 0})
    stage.code("DELETE", stage.node_path)


def _test(key: str, value: str) -> dict[str, str]:
    return {"op": "test", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}


@pytest.mark.parametrize(
    ("content_type", "patch", "code"),
    [
        pytest.param(MERGE, {"metadata": {"annotations": {"hami.io/a": "1"}}}, 200, id="merge"),
        pytest.param(
            STRATEGIC, {"metadata": {"annotations": {"hami.io/a": "1"}}}, 200, id="strategic"
        ),
        pytest.param(MERGE, {"metadata": {"annotations": {"none": None}}}, 200, id="null"),
        pytest.param(MERGE, {"metadata": {"resourceVersion": "1"}}, 409, id="old version"),
        pytest.param(MERGE, {"metadata": {"uid": "other"}}, 422, id="other uid"),
        pytest.param(MERGE, {"metadata": {"annotations": {"a": 1}}}, 422, id="not a text"),
        pytest.param(
            MERGE, {"metadata": {"annotations": {"a": "x" * 300_000}}}, 422, id="over 256 KiB"
        ),
        pytest.param(MERGE, {"spec": {"nodeName": "other"}}, 422, id="immutable spec"),
        pytest.param(JSON_PATCH, [_test(ORDER, "x;")], 200, id="test holds"),
        pytest.param(JSON_PATCH, [_test(ORDER, "other")], 422, id="test fails"),
        pytest.param(JSON_PATCH, [_test("none", "x")], 422, id="test of what is not there"),
        pytest.param(
            JSON_PATCH,
            [{"op": "remove", "path": "/metadata/annotations/none"}],
            422,
            id="remove what is not there",
        ),
        pytest.param(
            JSON_PATCH, [{"op": "add", "path": "/none/none", "value": "x"}], 422, id="no parent"
        ),
        pytest.param(JSON_PATCH, {"op": "add"}, 400, id="not a list"),
        pytest.param("application/json", {}, 415, id="not a patch type"),
    ],
)
def test_patches_of_a_pod(stage: Stage, content_type: str, patch: Any, code: int) -> None:
    assert stage.code("PATCH", stage.pod_path, patch, content_type) == code


def test_writes_that_change_nothing_make_no_version(stage: Stage) -> None:
    patch = {"metadata": {"annotations": {LOCK: "mine"}}}

    def version_stays() -> bool:
        before = stage.admin.get(stage.node_path)
        after = stage.admin.request("PATCH", stage.node_path, patch, content_type=MERGE)
        same: bool = after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        return same

    eventually(version_stays)  # a cluster with controllers may write in between


def test_replacing_wants_the_present_version_and_uid(stage: Stage) -> None:
    node = stage.admin.get(stage.node_path)
    node["metadata"]["annotations"] = {"a": "1"}
    assert stage.code("PUT", stage.node_path, node) == 200
    assert stage.code("PUT", stage.node_path, node) == 409
    node["metadata"] |= {"resourceVersion": "", "uid": str(uuid.uuid4())}
    assert stage.code("PUT", stage.node_path, node) == 409


def test_a_bound_pod_cannot_be_bound_again(stage: Stage) -> None:
    name = stage.pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": stage.node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    assert stage.code("POST", f"{stage.pod_path}/binding", binding) == 409


def test_a_status_is_written_apart(stage: Stage) -> None:
    patch = {"status": {"allocatable": {"nvidia.com/gpu": "3"}}}
    stage.admin.request("PATCH", stage.node_path, patch, content_type=MERGE)
    assert "allocatable" not in (stage.admin.get(stage.node_path).get("status") or {})
    stage.admin.request("PATCH", f"{stage.node_path}/status", patch, content_type=MERGE)
    assert stage.admin.get(stage.node_path)["status"]["allocatable"] == {"nvidia.com/gpu": "3"}


def test_a_list_by_node_and_its_version(stage: Stage) -> None:
    for query in ({}, {"resourceVersion": "0"}):
        selector = {"fieldSelector": f"spec.nodeName={stage.node}"}
        pods = eventually(
            lambda q=query | selector: (
                (found := stage.admin.get("/api/v1/pods", **q))["items"] and found
            )
        )
        assert [pod["metadata"]["uid"] for pod in pods["items"]] == [stage.pod["metadata"]["uid"]]
        assert int(pods["metadata"]["resourceVersion"]) > 0
    unknown = {"fieldSelector": "spec.none=x"}
    with pytest.raises(ApiFailure) as caught:
        stage.admin.get("/api/v1/pods", **unknown)
    assert caught.value.code == 400


def test_the_node_through_the_port(stage: Stage) -> None:
    cluster = stage.cluster()
    assert cluster.get_node().annotations == {LOCK: "mine"}
    assert cluster.patch_node({"hami.io/a": "1"}).annotations == {LOCK: "mine", "hami.io/a": "1"}
    with pytest.raises(ClusterConflict):
        cluster.remove_node_annotation(LOCK, expected="another's")
    assert cluster.remove_node_annotation(LOCK, expected="mine").annotations == {"hami.io/a": "1"}
    with pytest.raises(ClusterConflict):
        cluster.remove_node_annotation(LOCK, expected="mine")
    assert cluster.patch_node({"hami.io/a": None}).annotations == {}
    left = stage.annotations(stage.node_path)
    assert left["other/key"] == "theirs"
    assert not [key for key in left if key.startswith("hami.io/")]


@pytest.mark.parametrize("expected", [{}, {ORDER: "x;"}], ids=["merge", "tested"])
def test_a_pod_through_the_port(stage: Stage, expected: dict[str, str]) -> None:
    cluster, pod = stage.cluster(), stage.known_pod()
    changed = cluster.patch_pod(pod, {ORDER: ";", "hami.io/none": None}, expected=expected)
    assert changed.annotations == {ORDER: ";"}
    with pytest.raises(ClusterConflict):
        cluster.patch_pod(pod, {ORDER: "!"}, expected={ORDER: "x;"})
    impostor = Pod(namespace=pod.namespace, name=pod.name, uid="other")
    with pytest.raises(ClusterConflict):
        cluster.patch_pod(impostor, {ORDER: "!"}, expected=expected and {ORDER: ";"})
    stage.code("DELETE", stage.pod_path, {"gracePeriodSeconds": 0})
    with pytest.raises(ClusterGone):
        cluster.patch_pod(pod, {ORDER: "!"}, expected=expected)


def test_watches_through_the_port(stage: Stage) -> None:
    life = StoppableLife()
    cluster = stage.cluster(watch_s=(60.0, 60.0))
    node = Reader(cluster.watch_node("", stop=life))
    pods = Reader(cluster.watch_pods(cluster.list_pods().resource_version, stop=life))
    eventually(lambda: node.changes)
    cluster.patch_node({"hami.io/a": "1"})
    cluster.patch_pod(stage.known_pod(), {ORDER: ";"}, expected={ORDER: "x;"})
    stage.code("DELETE", stage.pod_path, {"gracePeriodSeconds": 0})
    eventually(lambda: [c.kind for c in pods.changes if c.kind == "deleted"])
    assert pods.changes[0].kind == "applied"
    eventually(lambda: "hami.io/a" in [c.node for c in node.changes if c.node][-1].annotations)
    assert "hami.io/a" not in node.changes[0].node.annotations
    assert pods.changes[0].pod.annotations == {ORDER: ";"}
    life.end()
    eventually(lambda: not (pods.thread.is_alive() or node.thread.is_alive()))
    assert (pods.error, node.error) == (None, None)


def test_a_watch_from_the_future_is_silent(stage: Stage) -> None:
    """Which is why the agent lists anew after one without a single bookmark."""
    life = StoppableLife()
    cluster = stage.cluster(watch_s=(2.0, 2.0))
    reader = Reader(cluster.watch_pods("999999999", stop=life))
    eventually(lambda: not reader.thread.is_alive())
    assert (reader.changes, reader.error) == ([], None)


def test_events_through_the_port(stage: Stage) -> None:
    cluster = stage.cluster()
    cluster.post_event(ClusterEvent(reason="GpuUnhealthy", message="ü" * 1000))
    cluster.post_event(ClusterEvent(reason="Granted", message="m", pod=stage.known_pod()))
    events = stage.admin.get("/api/v1/namespaces/default/events")["items"]
    ours = [e for e in events if json.dumps(e["involvedObject"]).find(stage.node) >= 0]
    assert sorted(e["reason"] for e in ours) == ["GpuUnhealthy", "Granted"]
