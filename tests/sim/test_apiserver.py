"""The stand-in API server answers as kube-apiserver does, and fails when told to."""

import errno
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from agent.sim import api_patches
from agent.sim.api_selectors import BadSelector, by_fields, by_labels
from agent.sim.apiserver import ApiServer

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NODE = "/api/v1/nodes/n1"
PODS = "/api/v1/namespaces/default/pods"
POD = f"{PODS}/p1"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1", "labels": {"gpu": "on"}}})
        server.objects.create("pods", {"metadata": {"name": "p1"}, "spec": {"nodeName": ""}})
        server.objects.create("pods", {"metadata": {"name": "p2"}, "spec": {"nodeName": "n2"}})
        yield server


def ask(
    server: ApiServer,
    method: str,
    path: str,
    body: Any = None,
    *,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    timeout_s: float = 10.0,
) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, {"Content-Type": content_type} | (headers or {}))
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content, dict(answer.getheaders())


class Watcher:
    """A watch read by a thread of its own, as long as it lasts."""

    def __init__(self, server: ApiServer, path: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.ended = ""
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request("GET", path)
        self._socket = self._connection.sock
        self.answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self.answer:
                self.events.append(json.loads(line))
            self.ended = "cleanly"
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            self.ended = "cut"

    @property
    def names(self) -> list[tuple[str, str]]:
        return [
            (event["type"], event["object"].get("metadata", {}).get("name", ""))
            for event in self.events
        ]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


@contextmanager
def watching(server: ApiServer, path: str) -> Iterator[Watcher]:
    watcher = Watcher(server, path)
    try:
        yield watcher
    finally:
        watcher.close()


# --- reading and writing ------------------------------------------------------------------------


def test_a_created_object_gets_its_metadata(server: ApiServer) -> None:
    code, pod, _ = ask(server, "POST", PODS, {"metadata": {"name": "new"}, "spec": {}})
    assert code == 201
    assert pod["kind"] == "Pod"
    assert pod["status"]["phase"] == "Pending"
    assert {"uid", "creationTimestamp", "resourceVersion", "namespace"} <= set(pod["metadata"])
    assert ask(server, "POST", PODS, {"metadata": {"name": "new"}})[1]["reason"] == "AlreadyExists"


def test_a_list_carries_a_version_a_watch_can_resume_from(server: ApiServer) -> None:
    code, pods, _ = ask(server, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2")
    assert (code, pods["kind"]) == (200, "PodList")
    assert [pod["metadata"]["name"] for pod in pods["items"]] == ["p2"]
    assert pods["metadata"]["resourceVersion"] == str(server.objects.version)


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "reason"),
    [
        pytest.param("GET", "/api/v1/nodes/none", None, 404, "NotFound", id="no such object"),
        pytest.param("GET", "/apis/apps/v1/pods", None, 404, "NotFound", id="no such API"),
        pytest.param("DELETE", "/api/v1/nodes", None, 405, "MethodNotAllowed", id="delete all"),
        pytest.param(
            "GET", "/api/v1/pods?fieldSelector=spec.foo=1", None, 400, "BadRequest", id="bad field"
        ),
        pytest.param(
            "GET", "/api/v1/pods?resourceVersion=x", None, 400, "BadRequest", id="bad version"
        ),
        pytest.param(
            "GET", "/api/v1/pods?resourceVersion=9999", None, 504, "Timeout", id="future version"
        ),
        pytest.param("POST", PODS, ["no", "pod"], 400, "BadRequest", id="body is a list"),
        pytest.param(
            "POST",
            "/api/v1/namespaces/kube-system/events",
            {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n1"}},
            422,
            "Invalid",
            id="event about a node outside default",
        ),
    ],
)
def test_what_is_refused(
    server: ApiServer, method: str, path: str, body: Any, code: int, reason: str
) -> None:
    status, answer, _ = ask(server, method, path, body)
    assert (status, answer["kind"], answer["reason"]) == (code, "Status", reason)


@pytest.mark.parametrize(
    ("content_type", "patch", "code", "annotations"),
    [
        pytest.param(
            MERGE,
            {"metadata": {"annotations": {"a": "1"}}},
            200,
            {"a": "1", "old": "x"},
            id="merge adds",
        ),
        pytest.param(
            STRATEGIC,
            {"metadata": {"annotations": {"a": "1"}}},
            200,
            {"a": "1", "old": "x"},
            id="strategic",
        ),
        pytest.param(
            MERGE, {"metadata": {"annotations": {"old": None}}}, 200, {}, id="null removes"
        ),
        pytest.param(
            JSON_PATCH,
            [
                {"op": "test", "path": "/metadata/annotations/old", "value": "x"},
                {"op": "replace", "path": "/metadata/annotations/old", "value": "y"},
            ],
            200,
            {"old": "y"},
            id="test passes",
        ),
        pytest.param(
            JSON_PATCH,
            [
                {"op": "add", "path": "/metadata/annotations/a~1b", "value": "1"},
                {"op": "test", "path": "/metadata/annotations/old", "value": "other"},
            ],
            422,
            None,
            id="test fails: nothing is done",
        ),
        pytest.param(
            MERGE, {"metadata": {"resourceVersion": "1"}}, 409, None, id="stale resourceVersion"
        ),
        pytest.param(MERGE, {"metadata": {"uid": "other"}}, 422, None, id="foreign uid"),
        pytest.param(
            MERGE, {"metadata": {"annotations": {"a": 1}}}, 422, None, id="annotation is a number"
        ),
        pytest.param(
            MERGE,
            {"metadata": {"annotations": {"a": "x" * 300_000}}},
            422,
            None,
            id="annotations over 256 KiB",
        ),
        pytest.param(MERGE, {"spec": {"nodeName": "n9"}}, 422, None, id="pod spec is immutable"),
        pytest.param(STRATEGIC, {"a": [1]}, 501, None, id="strategic list is not imitated"),
        pytest.param("application/json", {}, 415, None, id="not a patch type"),
    ],
)
def test_patches(
    server: ApiServer,
    content_type: str,
    patch: Any,
    code: int,
    annotations: dict[str, str] | None,
) -> None:
    ask(server, "PATCH", POD, {"metadata": {"annotations": {"old": "x"}}}, content_type=MERGE)
    before = server.objects.get("pods", "p1", "default")
    status, _, _ = ask(server, "PATCH", POD, patch, content_type=content_type)
    after = server.objects.get("pods", "p1", "default")
    assert status == code
    if annotations is None:
        assert after == before
    else:
        assert (after["metadata"].get("annotations") or {}) == annotations
        assert int(after["metadata"]["resourceVersion"]) > int(
            before["metadata"]["resourceVersion"]
        )


def test_a_write_that_changes_nothing_makes_no_version(server: ApiServer) -> None:
    version = server.objects.version
    ask(server, "PATCH", NODE, {"metadata": {"labels": {"gpu": "on"}}}, content_type=MERGE)
    assert server.objects.version == version


def test_status_is_written_only_through_its_subresource(server: ApiServer) -> None:
    patch = {"metadata": {"labels": {"a": "b"}}, "status": {"allocatable": {"x": "1"}}}
    ask(server, "PATCH", NODE, patch, content_type=MERGE)
    assert server.objects.get("nodes", "n1").get("status") in ({}, None)
    ask(server, "PATCH", f"{NODE}/status", patch, content_type=MERGE)
    assert server.objects.get("nodes", "n1")["status"]["allocatable"] == {"x": "1"}


def test_replacing_needs_the_present_version(server: ApiServer) -> None:
    _, node, _ = ask(server, "GET", NODE)
    node["metadata"]["annotations"] = {"a": "1"}
    assert ask(server, "PUT", NODE, node)[0] == 200
    node["metadata"]["annotations"] = {"a": "2"}
    assert ask(server, "PUT", NODE, node)[0] == 409
    node["metadata"] |= {"uid": "other", "resourceVersion": ""}
    assert ask(server, "PUT", NODE, node)[0] == 409
    assert server.objects.get("nodes", "n1")["metadata"]["annotations"] == {"a": "1"}


def test_a_pod_is_bound_once(server: ApiServer) -> None:
    binding = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"annotations": {"k": "v"}}}
    assert ask(server, "POST", f"{POD}/binding", binding)[0] == 201
    pod = server.objects.get("pods", "p1", "default")
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]) == ("n1", {"k": "v"})
    code, answer, _ = ask(server, "POST", f"{POD}/binding", binding)
    assert (code, answer["reason"]) == (409, "Conflict")


def test_graceful_deletion_only_marks_a_bound_pod() -> None:
    with ApiServer(graceful_pods=True) as server:
        server.objects.create("pods", {"metadata": {"name": "p1"}, "spec": {"nodeName": "n1"}})
        ask(server, "DELETE", POD)
        assert "deletionTimestamp" in server.objects.get("pods", "p1", "default")["metadata"]
        ask(server, "DELETE", f"{POD}?gracePeriodSeconds=0")
        assert ask(server, "GET", POD)[0] == 404


REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize(
    ("client", "method", "path", "body", "code"),
    [
        pytest.param("one/1", "GET", NODE, None, 200, id="a verb of its role"),
        pytest.param("one/1", "GET", "/api/v1/nodes", None, 403, id="another verb"),
        pytest.param("one/1", "GET", "/api/v1/nodes?watch=true", None, 403, id="a watch"),
        pytest.param("one/1", "POST", f"{POD}/eviction", {}, 403, id="a subresource"),
        pytest.param("two/1", "GET", "/api/v1/nodes", None, 200, id="a client without a role"),
    ],
)
def test_a_client_may_do_what_its_role_says(
    server: ApiServer, client: str, method: str, path: str, body: Any, code: int
) -> None:
    server.allow_only("one", [("get", "nodes"), ("create", "pods")])
    found, content, _ = ask(server, method, path, body, headers={"User-Agent": client})
    assert found == code
    if code == 403:
        assert content["reason"] == "Forbidden"
        assert 'User "one" cannot' in content["message"]
    review = {"spec": {"resourceAttributes": {"verb": "watch", "resource": "nodes"}}}
    allowed = ask(server, "POST", REVIEW, review, headers={"User-Agent": client})[1]["status"]
    assert allowed == {"allowed": client == "two/1"}


def test_only_known_tokens_are_let_in() -> None:
    with ApiServer(tokens=["good"]) as server:
        assert ask(server, "GET", "/api/v1/nodes")[0] == 401
        good = {"Authorization": "bearer good"}
        assert ask(server, "GET", "/api/v1/nodes", headers=good)[0] == 200
        server.accept_tokens("newer")
        assert ask(server, "GET", "/api/v1/nodes", headers=good)[0] == 401


# --- watches --------------------------------------------------------------------------------------


def test_a_watch_sees_objects_enter_change_and_leave_its_selector(server: ApiServer) -> None:
    path = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1&resourceVersion="
    with watching(server, path + str(server.objects.version)) as watcher:
        server.objects.bind("p1", "default", {"target": {"name": "n1"}})
        ask(server, "PATCH", POD, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
        ask(server, "PATCH", NODE, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
        server.objects.delete("pods", "p1", "default")
        eventually(lambda: len(watcher.events) == 3)
        assert watcher.names == [("ADDED", "p1"), ("MODIFIED", "p1"), ("DELETED", "p1")]
        last = watcher.events[-1]["object"]["metadata"]["resourceVersion"]
        assert last == str(server.objects.version)


def test_a_watch_without_version_starts_with_what_is_there(server: ApiServer) -> None:
    with watching(server, "/api/v1/nodes?watch=1") as watcher:
        eventually(lambda: watcher.names == [("ADDED", "n1")])


def test_a_watch_ends_after_its_timeout_with_a_bookmark(server: ApiServer) -> None:
    path = "/api/v1/nodes?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion="
    with watching(server, path + str(server.objects.version)) as watcher:
        server.objects.create("pods", {"metadata": {"name": "other"}})
        eventually(lambda: watcher.ended)
        assert watcher.ended == "cleanly"
        assert [event["type"] for event in watcher.events] == ["BOOKMARK"]
        bookmark = watcher.events[0]["object"]["metadata"]["resourceVersion"]
        assert bookmark == str(server.objects.version)


def test_a_watch_from_the_future_says_nothing(server: ApiServer) -> None:
    path = "/api/v1/nodes?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=9999"
    with watching(server, path) as watcher:
        server.objects.create("nodes", {"metadata": {"name": "n3"}})
        eventually(lambda: watcher.ended)
        assert (watcher.ended, watcher.events) == ("cleanly", [])


def test_bookmarks_come_while_nothing_happens() -> None:
    with ApiServer(bookmark_every_s=0.05) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = "/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion=2"
        with watching(server, path) as watcher:
            eventually(lambda: len(watcher.events) >= 2)
            assert {event["type"] for event in watcher.events} == {"BOOKMARK"}


@pytest.mark.parametrize("as_status", [True, False])
def test_a_watch_can_expire(server: ApiServer, as_status: bool) -> None:
    server.expire_watches(as_status=as_status)
    with watching(server, "/api/v1/nodes?watch=1&resourceVersion=1") as watcher:
        if as_status:
            assert watcher.answer.status == 410
            return
        eventually(lambda: watcher.ended)
        assert watcher.answer.status == 200
        assert [event["type"] for event in watcher.events] == ["ERROR"]
        assert watcher.events[0]["object"]["code"] == 410


def test_compaction_expires_old_versions_and_spares_open_watches(server: ApiServer) -> None:
    version = server.objects.version
    with watching(server, f"/api/v1/nodes?watch=1&resourceVersion={version}") as live:
        server.objects.create("nodes", {"metadata": {"name": "seen"}})
        eventually(lambda: live.names == [("ADDED", "seen")])  # an open watch may not have begun
        server.objects.compact()
        with watching(server, f"/api/v1/nodes?watch=1&resourceVersion={version}") as late:
            eventually(lambda: late.ended)
            assert late.events[0]["object"]["code"] == 410
        server.objects.create("nodes", {"metadata": {"name": "n3"}})
        eventually(lambda: live.names == [("ADDED", "seen"), ("ADDED", "n3")])


def test_history_is_bounded() -> None:
    with ApiServer(history=3) as server:
        for number in range(5):
            server.objects.create("nodes", {"metadata": {"name": f"n{number}"}})
        with watching(server, "/api/v1/nodes?watch=1&resourceVersion=2") as old:
            eventually(lambda: old.ended)
            assert old.events[0]["object"]["code"] == 410
        with watching(server, "/api/v1/nodes?watch=1&resourceVersion=3") as recent:
            eventually(lambda: len(recent.events) == 3)


def test_a_watch_that_its_client_left_is_closed(server: ApiServer) -> None:
    with watching(server, "/api/v1/nodes?watch=1"):
        eventually(lambda: server.open_watches() == 1)
    eventually(lambda: server.open_watches() == 0)


# --- faults ---------------------------------------------------------------------------------------


def test_429_says_when_to_come_back_and_does_nothing(server: ApiServer) -> None:
    fault = server.fail(429, verb="patch", resource="nodes", retry_after_s=2)
    assert ask(server, "GET", NODE)[0] == 200
    patch = {"metadata": {"annotations": {"a": "1"}}}
    code, answer, headers = ask(server, "PATCH", NODE, patch, content_type=MERGE)
    assert (code, answer["reason"], headers["Retry-After"]) == (429, "TooManyRequests", "2")
    assert "annotations" not in server.objects.get("nodes", "n1")["metadata"]
    assert ask(server, "PATCH", NODE, patch, content_type=MERGE)[0] == 200
    assert fault.used == 1


@pytest.mark.parametrize("lose", [False, True], ids=["nothing done", "done, answer lost"])
def test_a_dropped_connection(server: ApiServer, lose: bool) -> None:
    (server.lose_answer if lose else server.drop)(verb="patch")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(server, "PATCH", NODE, {"metadata": {"labels": {"x": "y"}}}, content_type=MERGE)
    assert ("x" in server.objects.get("nodes", "n1")["metadata"]["labels"]) is lose
    assert len(server.requests(code=0)) == 1


def test_a_hanging_request_is_served_when_the_fault_is_lifted(server: ApiServer) -> None:
    fault = server.hang(3600, verb="get")
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(ask(server, "GET", NODE)[0]))
    thread.start()
    eventually(lambda: fault.used)
    assert codes == []
    server.clear_faults()
    thread.join()
    assert codes == [200]


def test_stale_reads_are_for_those_who_accept_them(server: ApiServer) -> None:
    with server.stale_reads():
        server.objects.create("nodes", {"metadata": {"name": "n3"}})
        assert len(ask(server, "GET", "/api/v1/nodes?resourceVersion=0")[1]["items"]) == 1
        assert len(ask(server, "GET", "/api/v1/nodes")[1]["items"]) == 2
    assert len(ask(server, "GET", "/api/v1/nodes?resourceVersion=0")[1]["items"]) == 2


def test_events_can_be_held_back_doubled_and_delayed(server: ApiServer) -> None:
    with watching(server, f"/api/v1/nodes?watch=1&resourceVersion={server.objects.version}") as it:
        with server.held_events():
            server.objects.create("nodes", {"metadata": {"name": "n3"}})
            assert ask(server, "GET", "/api/v1/nodes/n3")[0] == 200
            assert it.events == []
        eventually(lambda: it.names == [("ADDED", "n3")])
        server.duplicate_events = True
        server.event_delay_s = 0.1
        server.objects.delete("nodes", "n3")
        eventually(lambda: it.names[1:] == [("DELETED", "n3")] * 2)


def test_nobody_else_gets_the_port_of_one_that_is_stopped(server: ApiServer) -> None:
    server.stop()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.port))
    server.start()
    assert ask(server, "GET", NODE)[0] == 200


@pytest.mark.parametrize("lose_history", [False, True])
def test_a_restart_keeps_port_and_objects(server: ApiServer, lose_history: bool) -> None:
    port, version = server.port, server.objects.version
    with watching(server, f"/api/v1/nodes?watch=1&resourceVersion={version}") as before:
        eventually(lambda: server.open_watches() == 1)
        server.restart(lose_history=lose_history)
        eventually(lambda: before.ended)
    assert server.port == port
    assert ask(server, "GET", NODE)[0] == 200
    server.objects.create("nodes", {"metadata": {"name": "n3"}})
    with watching(server, f"/api/v1/nodes?watch=1&resourceVersion={version}") as after:
        eventually(lambda: after.events)
        assert after.events[0]["type"] == ("ERROR" if lose_history else "ADDED")


def test_ended_watches_end_cleanly(server: ApiServer) -> None:
    with watching(server, "/api/v1/nodes?watch=1") as watcher:
        eventually(lambda: server.open_watches() == 1)
        server.end_watches()
        eventually(lambda: watcher.ended == "cleanly")


# --- observation ------------------------------------------------------------------------------------


def test_requests_are_recorded_and_counted(server: ApiServer) -> None:
    ask(server, "GET", NODE)
    patch = {"metadata": {"annotations": {"a": "1"}}}
    ask(server, "PATCH", f"{NODE}/status", patch, content_type=MERGE)
    ask(server, "GET", "/api/v1/nodes/none")
    assert server.log.totals() == {
        ("get", "nodes", 200): 1,
        ("patch", "nodes/status", 200): 1,
        ("get", "nodes", 404): 1,
    }
    (written,) = server.requests(verb="patch")
    assert (written.body, written.content_type) == (patch, MERGE)
    assert written.received_bytes == len(json.dumps(patch))
    assert server.log.bytes_out > server.log.bytes_in > 0
    server.log.clear()
    assert server.requests() == []


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    command = [sys.executable, "-m", "agent.sim.apiserver", "--node", "n1"]
    with subprocess.Popen(
        [*command, "--kubeconfig", str(kubeconfig)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().strip()
        assert json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == url
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/api/v1/nodes/n1")
        assert connection.getresponse().status == 200
        connection.close()
        process.stdin.close()
        assert process.wait(timeout=60) == 0


# --- the pure parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        pytest.param([{"op": "add", "path": "/l/-", "value": 3}], {"l": [1, 2, 3]}, id="append"),
        pytest.param([{"op": "add", "path": "/l/0", "value": 0}], {"l": [0, 1, 2]}, id="insert"),
        pytest.param([{"op": "remove", "path": "/l/1"}], {"l": [1]}, id="remove from a list"),
        pytest.param(
            [{"op": "move", "from": "/l", "path": "/m"}], {"m": [1, 2]}, id="move a member"
        ),
        pytest.param(
            [{"op": "copy", "from": "/l/0", "path": "/l/-"}], {"l": [1, 2, 1]}, id="copy an item"
        ),
        pytest.param(
            [{"op": "test", "path": "/none", "value": None}], {"l": [1, 2]}, id="absent is null"
        ),
        pytest.param([{"op": "remove", "path": "/none"}], 422, id="remove what is not there"),
        pytest.param([{"op": "replace", "path": "/l/7", "value": 1}], 422, id="index too large"),
        pytest.param([{"op": "add", "path": "/l/01", "value": 1}], 422, id="index with a zero"),
        pytest.param([{"op": "test", "path": "/l", "value": [1]}], 422, id="test fails"),
        pytest.param([{"op": "frobnicate", "path": "/l"}], 400, id="unknown operation"),
        pytest.param([{"op": "add", "path": "l", "value": 1}], 400, id="not a pointer"),
        pytest.param({"op": "add"}, 400, id="not a list"),
    ],
)
def test_json_patch(operations: Any, result: Any) -> None:
    document = {"l": [1, 2]}
    if isinstance(result, int):
        with pytest.raises(api_patches.PatchFailed) as failed:
            api_patches.apply_json_patch(document, operations)
        assert failed.value.code == result
    else:
        assert api_patches.apply_json_patch(document, operations) == result
    assert document == {"l": [1, 2]}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replace"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": None, "d": 1}}, {"a": {"d": 1}}, id="nested"),
        pytest.param({"a": [1]}, {"a": [2, 3]}, {"a": [2, 3]}, id="lists are replaced"),
        pytest.param({"a": "x"}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="scalar to map"),
        pytest.param({}, {"a": {"b": None}}, {"a": {}}, id="null in a new map"),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    assert api_patches.apply_merge(target, patch) == result


POD_ITEM = {
    "metadata": {"name": "p", "labels": {"a": "1", "b": "2"}},
    "spec": {"nodeName": "n"},
    "status": {"phase": "Pending"},
}


@pytest.mark.parametrize(
    ("fields", "labels", "fits"),
    [
        pytest.param("spec.nodeName=n", "", True, id="field equal"),
        pytest.param("spec.nodeName==n,status.phase!=Failed", "", True, id="two fields"),
        pytest.param("spec.nodeName!=n", "", False, id="field not equal"),
        pytest.param("status.podIP=", "", True, id="field is empty"),
        pytest.param("", "a=1,b!=1", True, id="labels"),
        pytest.param("", "a in (1, 3),b notin (1)", True, id="label sets"),
        pytest.param("", "c", False, id="label missing"),
        pytest.param("", "!c,a", True, id="label must be missing"),
    ],
)
def test_selectors(fields: str, labels: str, fits: bool) -> None:
    assert (by_fields(fields, "pods")(POD_ITEM) and by_labels(labels)(POD_ITEM)) is fits


@pytest.mark.parametrize("text", ["nonsense", "spec.containers=x", "=x"])
def test_bad_field_selectors(text: str) -> None:
    with pytest.raises(BadSelector):
        by_fields(text, "pods")
