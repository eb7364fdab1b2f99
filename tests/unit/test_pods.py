"""Pods and nodes from the API server's JSON: total, bounded, and exact where it matters."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.pods import (
    KEPT_PREFIXES,
    MAX_ANNOTATION_CHARS,
    MAX_CONTAINERS,
    Container,
    Node,
    Pod,
    decode_node,
    decode_pod,
)

GPU = "nvidia.com/gpu"


def with_limits(name: str, gpus: object, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {GPU: gpus}}, **more}


def pod_json(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team-a",
            "name": "train",
            "uid": "u-1",
            "resourceVersion": "42",
            "creationTimestamp": "2026-11-01T10:00:00Z",
            "annotations": {"hami.io/bind-phase": "allocating", "example.com/note": "x"},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"nodeName": "gpu-1", **spec},
        "status": {"phase": "Pending"},
    }


def test_a_whole_pod() -> None:
    assert decode_pod(
        pod_json(
            initContainers=[
                {"name": "fetch"},
                with_limits("proxy", "1", restartPolicy="Always"),
                with_limits("warm", 1, restartPolicy="Never"),
            ],
            containers=[
                with_limits("main", "2", env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]),
                {"name": "log", "resources": {"requests": {GPU: "1"}}},
            ],
        ),
        resource=GPU,
    ) == Pod(
        namespace="team-a",
        name="train",
        uid="u-1",
        node_name="gpu-1",
        phase="Pending",
        created_at="2026-11-01T10:00:00Z",
        resource_version="42",
        annotations={"hami.io/bind-phase": "allocating"},
        containers=(
            Container(name="fetch", kind="init"),
            Container(name="proxy", kind="sidecar", vgpus=1),
            Container(name="warm", kind="init", vgpus=1),
            Container(name="main", vgpus=2, control_disabled="true"),
            Container(name="log", vgpus=1),
        ),
    )


@pytest.mark.parametrize(
    ("limit", "vgpus"),
    [
        pytest.param("2", 2, id="as kubectl writes it"),
        pytest.param(2, 2, id="a number"),
        pytest.param(" 2 ", 2, id="with blanks"),
        pytest.param("0", 0, id="none"),
        pytest.param("2k", 2000, id="as the API server rewrites 2000"),
        pytest.param("2m", 0, id="a part is no device"),
        pytest.param("-1", 0, id="negative text"),
        pytest.param(-1, 0, id="negative number"),
        pytest.param("1.5", 0, id="a part"),
        pytest.param(True, 0, id="a switch"),
        pytest.param("9" * 10, 0, id="absurd"),
        pytest.param("٣", 0, id="digits of another script"),
        pytest.param(None, 0, id="null"),
    ],
)
def test_counts(limit: object, vgpus: int) -> None:
    pod = decode_pod({"spec": {"containers": [with_limits("c", limit)]}}, resource=GPU)
    assert pod.containers[0].vgpus == vgpus


def test_another_resource_does_not_count() -> None:
    obj = {"spec": {"containers": [with_limits("c", "2")]}}
    assert decode_pod(obj, resource="example.com/gpu").containers[0].vgpus == 0


@pytest.mark.parametrize(
    ("env", "value"),
    [
        pytest.param(None, None, id="no env"),
        pytest.param([], None, id="empty"),
        pytest.param([{"name": "CUDA_DISABLE_CONTROL", "value": "1"}], "1", id="given"),
        pytest.param([{"name": "CUDA_DISABLE_CONTROL"}], "", id="without value"),
        pytest.param([{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {}}], "", id="from elsewhere"),
        pytest.param([{"name": "CUDA_DISABLE_CONTROL", "value": a} for a in ("x", "y")], "y", id="twice: the last"),
        pytest.param([None, 3, {"name": 4}], None, id="nonsense"),
    ],
)  # fmt: skip
def test_control_disabled(env: object, value: str | None) -> None:
    pod = decode_pod({"spec": {"containers": [{"name": "c", "env": env}]}}, resource=GPU)
    assert pod.containers[0].control_disabled == value


def over(name: object, state: object) -> dict[str, object]:
    return {"initContainerStatuses": [3, {"name": name, "state": state}]}


@pytest.mark.parametrize(
    ("status", "admitted"),
    [
        pytest.param({"phase": "Pending"}, False, id="bound"),
        pytest.param({"phase": "Pending", "startTime": "2026-11-01T10:00:01Z"}, True, id="let in"),
        pytest.param({"phase": "Running"}, True, id="it runs"),
        pytest.param({"phase": "Pending", "startTime": None}, False, id="null"),
        pytest.param({"phase": "Pending", "startTime": [1]}, False, id="no text"),
        pytest.param([], False, id="no status"),
    ],
)
def test_whom_kubelet_has_let_in(status: object, *, admitted: bool) -> None:
    assert decode_pod({"status": status}, resource=GPU).admitted is admitted


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        pytest.param(over("fetch", {"terminated": {"exitCode": 0}}), {"fetch"}, id="done"),
        pytest.param(over("fetch", {"terminated": {"exitCode": 1}}), set(), id="failed: it comes again"),
        pytest.param(over("fetch", {"running": {}}), set(), id="at work"),
        pytest.param(over("proxy", {"terminated": {"exitCode": 0}}), set(), id="a sidecar comes again"),
        pytest.param(over("main", {"terminated": {"exitCode": 0}}), set(), id="no init container"),
        pytest.param(over(["fetch"], {"terminated": {"exitCode": 0}}), set(), id="no name"),
        pytest.param(over("fetch", {"terminated": []}), set(), id="types"),
        pytest.param({"initContainerStatuses": {"fetch": 0}}, set(), id="no list"),
        pytest.param({"containerStatuses": over("fetch", {"terminated": {"exitCode": 0}})["initContainerStatuses"]}, set(), id="another list"),
    ],
)  # fmt: skip
def test_init_containers_that_have_done_their_work(status: object, ended: set[str]) -> None:
    spec = {
        "initContainers": [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}],
        "containers": [with_limits("main", 1)],
    }
    assert decode_pod({"spec": spec, "status": status}, resource=GPU).ended == ended


ID = "containerd://" + "ab" * 32


@pytest.mark.parametrize(
    ("status", "ids"),
    [
        pytest.param(
            {
                "containerStatuses": [{"name": "main", "containerID": ID}],
                "initContainerStatuses": [{"name": "fetch", "containerID": "docker://cd"}],
            },
            {"ab" * 32: "main", "cd": "fetch"},
            id="two runtimes",
        ),
        pytest.param(
            {"ephemeralContainerStatuses": [{"name": "debugger", "containerID": ID}]},
            {"ab" * 32: "debugger"},
            id="a debugger",
        ),
        pytest.param(
            {"containerStatuses": [{"name": "main", "containerID": ""}, {"containerID": ID}]},
            {},
            id="not started, and nameless",
        ),
        pytest.param({"containerStatuses": {"a": 1}}, {}, id="no list"),
        pytest.param({"containerStatuses": [3, {"name": 3, "containerID": 4}]}, {}, id="types"),
        pytest.param(
            {"containerStatuses": [{"name": "main", "containerID": "c://" + "a" * 129}]},
            {},
            id="too long",
        ),
    ],
)
def test_the_runtimes_ids_of_containers(status: dict[str, Any], ids: dict[str, str]) -> None:
    obj = pod_json(containers=[with_limits("main", 1)])
    assert decode_pod(obj | {"status": status}, resource=GPU).container_ids == ids
    nothing = pod_json(containers=[{"name": "main"}]) | {"status": status}
    assert decode_pod(nothing, resource=GPU).container_ids == ids, "of pods without vGPUs, too"


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(None, id="null"),
        pytest.param([], id="a list"),
        pytest.param({"metadata": 3, "spec": "x", "status": []}, id="parts of other types"),
        pytest.param({"metadata": {"name": 3, "annotations": []}}, id="deeper"),
        pytest.param({"spec": {"containers": {"a": 1}, "initContainers": 7}}, id="containers"),
    ],
)
def test_what_cannot_be_read_is_empty(obj: object) -> None:
    assert decode_pod(obj, resource=GPU) == Pod(namespace="", name="", uid="")


def test_what_is_kept_is_bounded() -> None:
    obj = pod_json(containers=[{"name": f"c{n}"} for n in range(MAX_CONTAINERS + 5)])
    obj["metadata"]["annotations"] = {
        "hami.io/long": "x" * (MAX_ANNOTATION_CHARS + 1),
        "hami.io/number": 3,
        "hami.io/fits": "y",
    }
    pod = decode_pod(obj, resource=GPU)
    assert len(pod.containers) == MAX_CONTAINERS
    assert pod.annotations == {"hami.io/fits": "y"}


@pytest.mark.parametrize(
    ("status", "metadata", "finished", "deleting"),
    [
        pytest.param({"phase": "Running"}, {}, False, False, id="running"),
        pytest.param({"phase": "Succeeded"}, {}, True, False, id="succeeded"),
        pytest.param({"phase": "Failed"}, {}, True, False, id="failed"),
        pytest.param({"phase": "Running"}, {"deletionTimestamp": "x"}, False, True, id="deleting"),
    ],
)
def test_states(
    status: dict[str, str], metadata: dict[str, str], finished: bool, deleting: bool
) -> None:
    pod = decode_pod({"status": status, "metadata": metadata}, resource=GPU)
    assert (pod.finished, pod.deleting) == (finished, deleting)


@pytest.mark.parametrize("character", ["\xe9", "\u20ac", "\U0001f600", "\ud800"])
def test_one_character_does_not_make_a_tenants_text_four_times_as_large(character: str) -> None:
    obj = pod_json()
    obj["metadata"]["annotations"] = {"hami.io/x": "a" * 200_000 + character, "hami.io/y": "b"}
    kept = decode_pod(obj, resource=GPU).annotations
    assert kept == {"hami.io/x": "a" * 200_000 + "?", "hami.io/y": "b"}
    assert sys.getsizeof(kept["hami.io/x"]) < 201_000


def test_annotations_are_changed_in_a_copy() -> None:
    pod = Pod(namespace="a", name="b", uid="c", annotations={"hami.io/x": "1", "hami.io/y": "2"})
    changed = pod.with_annotations({"hami.io/x": None, "hami.io/z": "3"})
    assert changed.annotations == {"hami.io/y": "2", "hami.io/z": "3"}
    assert pod.annotations == {"hami.io/x": "1", "hami.io/y": "2"}
    assert pod.full_name == "a/b"


def test_a_node() -> None:
    obj = {
        "metadata": {
            "name": "gpu-1",
            "uid": "n-1",
            "resourceVersion": "7",
            "annotations": {"hami.io/node-handshake": "x", "other/y": "z"},
        },
        "status": {"images": [{"names": ["a"]}]},
    }
    node = Node(
        name="gpu-1",
        uid="n-1",
        resource_version="7",
        annotations={"hami.io/node-handshake": "x"},
    )
    assert decode_node(obj) == node
    assert node.with_annotations({"hami.io/node-handshake": None}).annotations == {}


KEYS = [
    "metadata",
    "spec",
    "status",
    "containers",
    "initContainers",
    "resources",
    "limits",
    "requests",
    "env",
    "name",
    "value",
    "annotations",
    "hami.io/x",
    "phase",
    "containerStatuses",
    "initContainerStatuses",
    "containerID",
    "state",
    "terminated",
    "exitCode",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*KEYS, GPU]) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=30,
)


@given(obj=JSON)
def test_reading_is_total(obj: Any) -> None:
    pod, node = decode_pod(obj, resource=GPU), decode_node(obj)
    assert all(isinstance(text, str) for text in (pod.namespace, pod.name, pod.uid, pod.phase))
    assert all(container.vgpus >= 0 for container in pod.containers)
    for annotations in (pod.annotations, node.annotations):
        assert all(key.startswith(KEPT_PREFIXES) for key in annotations)
        assert all(isinstance(value, str) for value in annotations.values())
