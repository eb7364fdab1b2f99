"""Requests of the Cluster port, against an API server that misbehaves on demand."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_stage import (
    LOCK,
    ORDER,
    TO_ALLOCATE,
    Counts,
    add_pod,
    annotate_node,
    annotations,
    cluster_of,
    raw_cluster,
    raw_server,
    soon,
)

from agent.adapters import kube_pages, kube_transport
from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_answers import JSON_PATCH, MERGE_PATCH, Request, error_of, retry_after_s
from agent.errors import (
    ClusterConflict,
    ClusterDenied,
    ClusterError,
    ClusterForbids,
    ClusterGone,
    ClusterUnavailable,
)
from agent.ports import ClusterEvent
from agent.sim.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        server.objects.create("nodes", {"metadata": {"name": "n2"}})
        yield server


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> KubeCluster:
    return cluster_of(server, tmp_path)


@pytest.mark.parametrize("cached", [False, True])
def test_only_our_pods_are_listed(server: ApiServer, cluster: KubeCluster, cached: bool) -> None:
    add_pod(server, "ours", order=ORDER)
    add_pod(server, "theirs", node="n2")
    listed = cluster.list_pods(cached=cached)
    assert [(pod.name, pod.annotations) for pod in listed.pods] == [("ours", {TO_ALLOCATE: ORDER})]
    assert listed.resource_version == str(server.objects.version)
    (request,) = server.requests()
    assert request.query.get("resourceVersion") == ("0" if cached else None)
    assert request.user_agent.startswith("vgpu-agent/")


def test_a_cached_list_may_be_stale_and_another_not(
    server: ApiServer, cluster: KubeCluster
) -> None:
    with server.stale_reads():
        add_pod(server, "new")
        assert cluster.list_pods(cached=True).pods == ()
        assert len(cluster.list_pods().pods) == 1


def pods_of(server: ApiServer, kib: int, count: int) -> set[str]:
    names = {f"pod-{number}" for number in range(count)}
    for name in names:
        spec = {"nodeName": "n1", "note": "x" * (kib << 10)}
        server.objects.create("pods", {"metadata": {"name": name}, "spec": spec})
    return names


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("count", [3, 300])
def test_a_list_too_long_for_one_answer_comes_in_pages(
    server: ApiServer,
    cluster: KubeCluster,
    monkeypatch: pytest.MonkeyPatch,
    cached: bool,
    count: int,
) -> None:
    """Few large pods (a tenant's), or many that have ended: the agent has to know all of them."""
    names = pods_of(server, 90 // count + 1, count)
    monkeypatch.setattr(kube_transport, "MAX_ANSWER_BYTES", 80 << 10)
    listed = cluster.list_pods(cached=cached)
    assert {pod.name for pod in listed.pods} == names
    assert len(listed.pods) == count
    assert listed.resource_version == str(server.objects.version)
    first = server.requests(resource="pods")[0].query
    assert "limit" not in first  # who has few is asked once


def test_a_long_list_is_not_tried_in_one_answer_again(
    server: ApiServer, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods_of(server, 30, 6)
    monkeypatch.setattr(kube_transport, "MAX_ANSWER_BYTES", 80 << 10)
    cluster.list_pods()
    server.log.clear()
    assert len(cluster.list_pods(deadline_s=time.monotonic() + 2).pods) == 6
    assert all("limit" in request.query for request in server.requests(resource="pods"))
    server.objects.delete("pods", "pod-0", "default")
    monkeypatch.setattr(kube_transport, "MAX_ANSWER_BYTES", 12 << 20)
    for _ in range(2):
        assert len(cluster.list_pods().pods) == 5
    assert "limit" not in server.requests(resource="pods")[-1].query


def test_one_object_that_is_too_long_is_an_error(
    server: ApiServer, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods_of(server, 90, 1)
    monkeypatch.setattr(kube_transport, "MAX_ANSWER_BYTES", 80 << 10)
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match="longer than"):
        cluster.list_pods(deadline_s=began_s + 5)
    assert time.monotonic() - began_s < 3  # not asked for again and again until then


def test_a_list_without_end_is_given_up(
    server: ApiServer, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods_of(server, 30, 6)
    monkeypatch.setattr(kube_transport, "MAX_ANSWER_BYTES", 80 << 10)
    monkeypatch.setattr(kube_pages, "MOST_PAGES", 3)
    with pytest.raises(ClusterUnavailable, match="not come to its end"):
        cluster.list_pods()


def test_the_node_is_read_and_annotated(server: ApiServer, cluster: KubeCluster) -> None:
    annotate_node(server, {"hami.io/a": "1", "hami.io/b": "2", "other/c": "3"})
    assert cluster.get_node().annotations == {"hami.io/a": "1", "hami.io/b": "2"}
    patched = cluster.patch_node({"hami.io/a": None, "hami.io/b": "x"})
    assert patched.annotations == {"hami.io/b": "x"}
    assert patched.resource_version == str(server.objects.version)
    assert annotations(server, "nodes", "n1") == {"hami.io/b": "x", "other/c": "3"}


def test_a_lock_is_removed_only_as_long_as_it_is_the_expected_one(
    server: ApiServer, cluster: KubeCluster
) -> None:
    annotate_node(server, {LOCK: "mine", "hami.io/a": "1"})
    with pytest.raises(ClusterConflict):
        cluster.remove_node_annotation(LOCK, expected="another")
    assert cluster.remove_node_annotation(LOCK, expected="mine").annotations == {"hami.io/a": "1"}
    with pytest.raises(ClusterConflict):
        cluster.remove_node_annotation(LOCK, expected="mine")
    assert {request.verb for request in server.requests()} == {"patch"}


@pytest.mark.parametrize(
    ("changes", "expected", "result"),
    [
        pytest.param(
            {TO_ALLOCATE: ";", "hami.io/new": "1"},
            {TO_ALLOCATE: ORDER},
            {TO_ALLOCATE: ";", "hami.io/new": "1"},
            id="as expected",
        ),
        pytest.param({TO_ALLOCATE: ";"}, {TO_ALLOCATE: "other"}, None, id="changed meanwhile"),
        pytest.param({TO_ALLOCATE: ";"}, {"hami.io/absent": "x"}, None, id="removed meanwhile"),
        pytest.param({TO_ALLOCATE: None}, {TO_ALLOCATE: ORDER}, {}, id="remove"),
        pytest.param(
            {"hami.io/absent": None},
            {TO_ALLOCATE: ORDER},
            {TO_ALLOCATE: ORDER},
            id="remove what is not there",
        ),
        pytest.param(
            {"hami.io/a~b": "1"},
            {},
            {TO_ALLOCATE: ORDER, "hami.io/a~b": "1"},
            id="nothing expected",
        ),
        pytest.param(
            {"hami.io/a~b": "1"},
            {TO_ALLOCATE: ORDER},
            {TO_ALLOCATE: ORDER, "hami.io/a~b": "1"},
            id="keys are escaped",
        ),
    ],
)
def test_a_pod_is_changed_if_nobody_else_did(
    server: ApiServer,
    cluster: KubeCluster,
    changes: dict[str, str | None],
    expected: dict[str, str],
    result: dict[str, str] | None,
) -> None:
    pod = add_pod(server, "p", order=ORDER)
    if result is None:
        with pytest.raises(ClusterConflict):
            cluster.patch_pod(pod, changes, expected=expected)
        assert annotations(server, "pods", "p") == {TO_ALLOCATE: ORDER}
    else:
        assert cluster.patch_pod(pod, changes, expected=expected).annotations == result
        assert annotations(server, "pods", "p") == result
    assert len(server.requests()) == 1


@pytest.mark.parametrize("expected", [{}, {TO_ALLOCATE: ORDER}], ids=["merge", "tested"])
def test_a_pod_of_the_same_name_is_another_pod(
    server: ApiServer, cluster: KubeCluster, expected: dict[str, str]
) -> None:
    old = add_pod(server, "p", order=ORDER)
    server.objects.delete("pods", "p", "default")
    with pytest.raises(ClusterGone):
        cluster.patch_pod(old, {TO_ALLOCATE: ";"}, expected=expected)
    add_pod(server, "p", order=ORDER)
    with pytest.raises(ClusterConflict):
        cluster.patch_pod(old, {TO_ALLOCATE: ";"}, expected=expected)
    assert annotations(server, "pods", "p") == {TO_ALLOCATE: ORDER}


@pytest.mark.parametrize(
    ("pod_name", "namespace", "involved"),
    [
        pytest.param("", "default", {"kind": "Node", "name": "n1", "uid": "n1"}, id="our node"),
        pytest.param("p", "default", {"kind": "Pod", "name": "p"}, id="a pod"),
    ],
)
def test_events(
    server: ApiServer,
    cluster: KubeCluster,
    pod_name: str,
    namespace: str,
    involved: dict[str, str],
) -> None:
    pod = add_pod(server, pod_name) if pod_name else None
    message = "ü" * 1000
    cluster.post_event(ClusterEvent(reason="GpuUnhealthy", message=message, pod=pod))
    ((event,), _) = server.objects.list("events", namespace)
    assert involved.items() <= event["involvedObject"].items()
    assert (event["reason"], event["type"], event["count"]) == ("GpuUnhealthy", "Warning", 1)
    assert len(event["message"].encode()) <= 1024


def test_an_eviction_ends_this_pod_and_no_other(server: ApiServer, cluster: KubeCluster) -> None:
    first = add_pod(server, "p")
    cluster.evict_pod(first)
    assert server.objects.list("pods")[0] == []
    cluster.evict_pod(first)  # it is gone already, which is what was wanted
    add_pod(server, "p")
    with pytest.raises(ClusterConflict):
        cluster.evict_pod(first)
    assert len(server.objects.list("pods")[0]) == 1


def test_an_eviction_of_a_version_that_is_not_known_is_asked_for_in_an_older_one(
    server: ApiServer, cluster: KubeCluster
) -> None:
    pod = add_pod(server, "p")
    server.fail(400, count=2, verb="create", resource="pods/eviction")
    with pytest.raises(ClusterError):
        cluster.evict_pod(pod)
    assert len(server.objects.list("pods")[0]) == 1
    server.fail(400, count=1, verb="create", resource="pods/eviction")
    cluster.evict_pod(pod)
    assert server.objects.list("pods")[0] == []


def test_who_wakes_too_late_for_another_try_says_what_was_answered(
    server: ApiServer, cluster: KubeCluster
) -> None:
    deadline_s = time.monotonic() + 5.0
    cluster._transport._pause = lambda _: time.sleep(max(deadline_s - time.monotonic(), 0) + 0.01)
    server.fail(503, count=9, verb="get", resource="nodes")
    with pytest.raises(ClusterUnavailable, match="answered 503"):
        cluster.get_node(deadline_s=deadline_s)


def test_an_eviction_that_the_budget_forbids_is_said(
    server: ApiServer, cluster: KubeCluster
) -> None:
    pod = add_pod(server, "p")
    server.fail(429, count=9, verb="create", resource="pods/eviction", reason="TooManyRequests")
    with pytest.raises(ClusterUnavailable):
        cluster.evict_pod(pod)
    assert len(server.objects.list("pods")[0]) == 1


# --- what can go wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, ClusterError),
        (401, ClusterDenied),
        (403, ClusterDenied),
        (404, ClusterGone),
        (409, ClusterConflict),
        (410, ClusterGone),
        (429, ClusterUnavailable),
        (500, ClusterUnavailable),
        (503, ClusterUnavailable),
    ],
)
def test_each_status_is_an_error_somebody_can_act_on(
    server: ApiServer, cluster: KubeCluster, code: int, error: type[ClusterError]
) -> None:
    server.fail(code, count=2)
    with pytest.raises(error, match=f"answered {code} to get the Node n1: planned fault") as raised:
        cluster.get_node()
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("99999", 300.0), ("Fri, 31 Dec 1999", None), ("-1", None)],
)
def test_retry_after(header: str, seconds: float | None) -> None:
    assert retry_after_s({"Retry-After": header}) == seconds


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        pytest.param(
            'User "agent" cannot create resource "events" in API group ""',
            "; allow `create` on `events` in the agent's ClusterRole", id="rights are missing",
        ),
        pytest.param(
            "unable to create new content in namespace team because it is being terminated",
            "; nothing is to be done: what is in that namespace ends with it", id="it is deleted",
        ),
    ],
)  # fmt: skip
def test_what_to_do_about_a_403(said: str, remedy: str) -> None:
    request = Request(verb="create", resource="events", method="POST", path="/", about="an Event")
    body = json.dumps({"kind": "Status", "message": f'events "p." is forbidden: {said}'}).encode()
    assert str(error_of(request, 403, {}, body)).endswith(remedy)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(400, 'admission webhook "a.b" denied the request: no', id="webhook"),
        pytest.param(403, 'admission webhook "a.b" denied the request: no', id="webhook, by 403"),
        pytest.param(
            422,
            "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no",
            id="policy",
        ),
    ],
)
@pytest.mark.parametrize("content_type", [MERGE_PATCH, JSON_PATCH])
def test_a_policy_is_neither_a_lack_of_rights_nor_a_conflict(
    content_type: str, code: int, said: str
) -> None:
    request = Request(
        verb="patch", resource="pods", method="PATCH", path="/", about="it", content_type=content_type,
    )  # fmt: skip
    error = error_of(request, code, {}, json.dumps({"kind": "Status", "message": said}).encode())
    assert isinstance(error, ClusterForbids)
    assert error.code == code
    assert said in str(error)
    assert "except the agent's account" in str(error)


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff<html>", b"[" * 100_000])
def test_any_body_of_an_error_is_shown(body: bytes) -> None:
    request = Request(verb="get", resource="nodes", method="GET", path="/", about="it")
    assert len(str(error_of(request, 502, {}, body))) < 1000


def test_retry_after_is_handed_on(server: ApiServer, cluster: KubeCluster) -> None:
    server.fail(429, retry_after_s=7)
    with pytest.raises(ClusterUnavailable) as caught:
        cluster.get_node()
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda s: s.fail(429, count=2, retry_after_s=0.05), id="429"),
        pytest.param(lambda s: s.fail(500, count=2), id="500"),
        pytest.param(lambda s: s.fail(503, count=2), id="503"),
        pytest.param(lambda s: s.drop(count=2), id="dropped"),
        pytest.param(lambda s: s.lose_answer(), id="done, answer lost"),
    ],
)
@pytest.mark.parametrize("what", ["node", "lock", "pod"])
def test_with_a_deadline_what_may_pass_is_tried_again(
    server: ApiServer, cluster: KubeCluster, plan: Callable[[ApiServer], Any], what: str
) -> None:
    annotate_node(server, {LOCK: "mine"})
    pod = add_pod(server, "p", order=ORDER)
    plan(server)
    if what == "node":
        cluster.patch_node({"hami.io/a": "1"}, deadline_s=soon())
        assert annotations(server, "nodes", "n1")["hami.io/a"] == "1"
    elif what == "lock":
        cluster.remove_node_annotation(LOCK, expected="mine", deadline_s=soon())
        assert LOCK not in annotations(server, "nodes", "n1")
    else:
        expected = {TO_ALLOCATE: ORDER}
        changed = cluster.patch_pod(pod, {TO_ALLOCATE: ";"}, expected=expected, deadline_s=soon())
        assert changed.annotations[TO_ALLOCATE] == ";"
        assert annotations(server, "pods", "p")[TO_ALLOCATE] == ";"


def test_a_lost_answer_does_not_hide_a_real_conflict(
    server: ApiServer, cluster: KubeCluster
) -> None:
    pod = add_pod(server, "p", order="somebody else's")
    server.drop()
    with pytest.raises(ClusterConflict) as raised:
        cluster.patch_pod(pod, {TO_ALLOCATE: ";"}, expected={TO_ALLOCATE: ORDER}, deadline_s=soon())
    assert raised.value.code == 422
    assert annotations(server, "pods", "p") == {TO_ALLOCATE: "somebody else's"}


def test_without_a_deadline_the_caller_decides(server: ApiServer, cluster: KubeCluster) -> None:
    server.fail(503, count=10)
    with pytest.raises(ClusterUnavailable):
        cluster.patch_node({"hami.io/a": "1"})
    assert len(server.requests()) == 1


def test_an_event_is_never_sent_twice(server: ApiServer, cluster: KubeCluster) -> None:
    server.lose_answer()
    with pytest.raises(ClusterUnavailable):
        cluster.post_event(ClusterEvent(reason="A", message="b"))
    assert len(server.objects.list("events")[0]) == 1


def test_a_connection_closed_while_idle_costs_nothing(
    server: ApiServer, cluster: KubeCluster
) -> None:
    cluster.get_node()
    server.restart()
    assert cluster.get_node().name == "n1"


def test_nobody_listens(server: ApiServer, cluster: KubeCluster) -> None:
    server.stop()
    with pytest.raises(ClusterUnavailable, match="cannot be reached"):
        cluster.get_node()
    with pytest.raises(ClusterUnavailable, match="cannot be reached"):
        cluster.get_node(deadline_s=time.monotonic() + 0.2)


def test_a_deadline_holds_against_a_server_that_hangs(
    server: ApiServer, cluster: KubeCluster
) -> None:
    server.hang(3600)
    with pytest.raises(ClusterUnavailable, match=r"did not answer in time|left no time"):
        cluster.get_node(deadline_s=time.monotonic() + 0.3)
    with pytest.raises(ClusterUnavailable, match="left no time"):
        cluster.get_node(deadline_s=time.monotonic() - 1)
    server.clear_faults()


def test_a_deadline_holds_against_a_server_that_drips(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    with (
        raw_server(head, drip=b"x") as port,
        pytest.raises(ClusterUnavailable, match=r"too slow|did not answer in time"),
    ):
        raw_cluster(port, tmp_path).get_node(deadline_s=time.monotonic() + 0.3)


@pytest.mark.parametrize(
    "body", [b"<html>proxy</html>", b"[]", b"[" * 100_000], ids=["html", "list", "deep"]
)
def test_something_else_than_an_api_server(tmp_path: Path, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        raw_server(head + body) as port,
        pytest.raises(ClusterUnavailable, match="something else than an API server"),
    ):
        raw_cluster(port, tmp_path).get_node()


def test_requests_are_counted(server: ApiServer, tmp_path: Path) -> None:
    counts = Counts()
    cluster = cluster_of(server, tmp_path, count=counts)
    server.fail(429, verb="patch")
    cluster.list_pods()
    with pytest.raises(ClusterUnavailable):
        cluster.patch_node({"hami.io/a": "1"})
    server.stop()
    with pytest.raises(ClusterUnavailable):
        cluster.get_node()
    assert counts.seen[:2] == [("list", "pods", 200), ("patch", "nodes", 429)]
    assert set(counts.seen[2:]) == {("get", "nodes", 0)}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda cluster: cluster.list_pods(), id="list pods"),
        pytest.param(lambda cluster: cluster.get_node(), id="get node"),
        pytest.param(lambda cluster: cluster.patch_node({"hami.io/x": "1"}), id="patch node"),
        pytest.param(
            lambda cluster: cluster.post_event(ClusterEvent(reason="A", message="b")),
            id="post event",
        ),
    ],
)
def test_a_call_without_deadline_has_a_read_timeout(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    """An API server that accepts and says nothing holds nobody for ever."""
    monkeypatch.setattr("agent.adapters.kube_transport.REQUEST_TIMEOUT_S", 0.3)
    server.hang(3600, count=5)
    with pytest.raises(ClusterUnavailable):
        call(cluster_of(server, tmp_path))
