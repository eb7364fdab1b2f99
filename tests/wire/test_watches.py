"""The picture of pods and Node stays true, whatever the API server does, at the cost of watches."""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kube_stage import (
    ORDER,
    TO_ALLOCATE,
    StoppableLife,
    add_pod,
    annotate_node,
    cluster_of,
)
from waiting import eventually

from agent import logs
from agent.adapters.cluster import KubeCluster
from agent.domain.pods import Node
from agent.errors import ClusterUnavailable
from agent.ports import NodeChange
from agent.services import pod_watch
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.pod_watch import PodWatch
from agent.services.published import PodTable, Published
from agent.services.retries import Retries
from agent.sim.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        yield server


class Scene:
    """A view of the node, and the services that keep it, which run until the scene ends."""

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster = cluster
        self.life = StoppableLife()
        self.view = NodeView(
            cluster, node_name="n1", pods=Published(PodTable()), own_node=Published(None)
        )
        self.pod_watch = PodWatch(cluster, self.view, jitter=lambda: 0.0)
        self.node_watch = NodeWatch(cluster, self.view, jitter=lambda: 0.0)
        self._threads: list[threading.Thread] = []

    def run(self, *services: Any) -> None:
        for service in services:
            thread = threading.Thread(target=service.run, args=(self.life,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self.life.end()
        for thread in self._threads:
            eventually(lambda it=thread: not it.is_alive(), what="the services end")

    @property
    def pods(self) -> list[str]:
        return sorted(pod.name for pod in self.view.pods.now().pods.values())

    @property
    def node(self) -> Node | None:
        return self.view.own_node.now()


@contextmanager
def scene(server: ApiServer, tmp_path: Path, **more: Any) -> Iterator[Scene]:
    it = Scene(cluster_of(server, tmp_path, **more))
    try:
        yield it
    finally:
        it.end()


@contextmanager
def following_pods(server: ApiServer, tmp_path: Path, **more: Any) -> Iterator[Scene]:
    """A scene in which the pods are being followed already."""
    with scene(server, tmp_path, **more) as it:
        it.run(it.pod_watch)
        eventually(lambda: it.view.pods.now().synced and server.open_watches("pods"))
        yield it


def test_one_list_from_memory_then_only_the_watch(server: ApiServer, tmp_path: Path) -> None:
    add_pod(server, "before")
    add_pod(server, "theirs", node="n2")
    with following_pods(server, tmp_path) as it:
        assert it.pods == ["before"]
        add_pod(server, "after")
        eventually(lambda: it.pods == ["after", "before"])
        server.objects.delete("pods", "before", "default")
        eventually(lambda: it.pods == ["after"])
        assert [request.verb for request in server.requests()] == ["list", "watch"]
        assert server.requests(verb="list")[0].query["resourceVersion"] == "0"


def test_at_rest_there_is_nothing_but_renewed_watches(server: ApiServer, tmp_path: Path) -> None:
    add_pod(server, "p")
    with scene(server, tmp_path, watch_s=(1.0, 1.0)) as it:
        it.run(it.pod_watch, it.node_watch)
        eventually(lambda: it.pods == ["p"] and it.node)
        eventually(lambda: len(server.requests(verb="watch")) >= 2)
        server.log.clear()
        eventually(lambda: len(server.requests(verb="watch")) >= 4)
        assert {request.verb for request in server.requests()} == {"watch"}
        renewed = server.requests(verb="watch", resource="pods")
        assert all(int(request.query["resourceVersion"]) > 0 for request in renewed)


@pytest.mark.parametrize("as_status", [True, False], ids=["HTTP status", "ERROR event"])
def test_a_version_that_is_too_old_leads_to_a_consistent_list(
    server: ApiServer, tmp_path: Path, as_status: bool
) -> None:
    add_pod(server, "gone")
    with following_pods(server, tmp_path) as it:
        server.expire_watches(as_status=as_status)
        with server.held_events():
            server.objects.delete("pods", "gone", "default")
            add_pod(server, "new")
            server.restart()
        eventually(lambda: it.pods == ["new"])
        assert "resourceVersion" not in server.requests(verb="list")[-1].query


@pytest.mark.parametrize("lose_history", [False, True])
def test_a_restarted_api_server(server: ApiServer, tmp_path: Path, lose_history: bool) -> None:
    add_pod(server, "p")
    with following_pods(server, tmp_path) as it:
        server.stop()
        add_pod(server, "meanwhile")
        if lose_history:
            server.objects.compact()
        server.start()
        eventually(lambda: it.pods == ["meanwhile", "p"])
        assert len(server.requests(verb="list")) == (2 if lose_history else 1)


@pytest.mark.parametrize("resource", ["pods", "nodes"])
def test_the_end_of_an_outage_is_told_when_it_ends(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str
) -> None:
    """Not minutes later, when the watch ends by itself; nothing happens on the node meanwhile."""
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)

    def told(event: str) -> int:
        return sink.stream.getvalue().count(event)

    add_pod(server, "p")
    with scene(server, tmp_path) as it:
        it.run(it.pod_watch if resource == "pods" else it.node_watch)
        for outage in (1, 2):
            eventually(lambda: server.open_watches(resource))
            server.stop()
            eventually(lambda n=outage: told("not_followed") == n, what=f"outage {outage} is told")
            server.start()
            eventually(lambda n=outage: told("info  recovered") == n, what=f"end {outage} is told")
        assert it.pods == (["p"] if resource == "pods" else [])


def test_a_cluster_restored_from_a_backup(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_watch, "DEAF_S", 0.5)
    for number in range(20):
        add_pod(server, f"p{number}")
    annotate_node(server, {"hami.io/a": "young"})
    with following_pods(server, tmp_path, watch_s=(1.0, 1.0)) as it:
        it.run(it.node_watch)
        eventually(lambda: it.node and it.node.annotations)
        node = server.objects.get("nodes", "n1")
        port = server.port
        server.stop()
        with ApiServer(port=port) as restored:
            restored.objects.create("nodes", node | {"metadata": {"name": "n1"}})
            add_pod(restored, "old")
            eventually(lambda: it.pods == ["old"])
            eventually(lambda: it.node is not None and it.node.annotations == {})


def test_a_node_from_memory_does_not_undo_what_we_know(server: ApiServer, tmp_path: Path) -> None:
    annotate_node(server, {"hami.io/a": "old"})
    with scene(server, tmp_path, watch_s=(1.0, 1.0)) as it:
        old = server.objects.get("nodes", "n1")["metadata"]
        annotate_node(server, {"hami.io/a": "young"})
        it.view.read_node(deadline_s=None)
        stale = NodeChange(
            "applied",
            Node(
                name="n1",
                uid=old["uid"],
                resource_version=old["resourceVersion"],
                annotations=old["annotations"],
            ),
            old["resourceVersion"],
        )
        it.node_watch._apply(stale, first=True)
        assert it.node is not None
        assert it.node.annotations == {"hami.io/a": "young"}
        it.node_watch._apply(stale, first=True)
        assert it.node.annotations == {"hami.io/a": "old"}


@pytest.mark.parametrize(
    ("plan", "resource"),
    [
        pytest.param(lambda s: s.fail(500, count=2, verb="list"), "pods", id="list fails"),
        pytest.param(lambda s: s.fail(429, count=2, verb="list"), "pods", id="list: 429"),
        pytest.param(lambda s: s.drop(count=2, verb="list"), "pods", id="list dropped"),
        pytest.param(lambda s: s.fail(503, count=2, verb="watch"), "pods", id="watch fails"),
        pytest.param(lambda s: s.drop(count=2, verb="watch"), "pods", id="watch dropped"),
        pytest.param(lambda s: s.fail(500, count=2, verb="watch"), "nodes", id="node: watch fails"),
        pytest.param(lambda s: s.drop(count=2, verb="watch"), "nodes", id="node: watch dropped"),
    ],
)
def test_what_passes_is_tried_again(
    server: ApiServer, tmp_path: Path, plan: Callable[[ApiServer], Any], resource: str
) -> None:
    add_pod(server, "p")
    plan(server)
    with scene(server, tmp_path) as it:
        if resource == "pods":
            it.run(it.pod_watch)
            eventually(lambda: it.pods == ["p"])
        else:
            it.run(it.node_watch)
            eventually(lambda: it.node)


@pytest.mark.parametrize("what", ["list", "watch", "node watch"])
def test_retry_after_is_honoured(server: ApiServer, tmp_path: Path, what: str) -> None:
    server.fail(429, retry_after_s=7, verb=what.rpartition(" ")[2])
    with scene(server, tmp_path) as it:
        loop = it.node_watch if what == "node watch" else it.pod_watch
        assert loop.step_once(it.life) >= 7


def test_pauses_grow_to_30_s_and_start_over() -> None:
    retries = Retries(jitter=lambda: 1.0)
    assert [retries.failed_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert retries.failed_s(ClusterUnavailable("", retry_after_s=60)) >= 60
    assert retries.failed_s(lasted_s=3600) == 0.5
    retries.succeeded()
    assert retries.failed_s() == 0.5
    assert Retries(jitter=lambda: 0.0).failed_s() == 0.25


def test_watches_that_end_at_once_do_not_become_a_hot_loop(
    server: ApiServer, tmp_path: Path
) -> None:
    with scene(server, tmp_path) as it:
        thread = threading.Thread(target=_end_watches, args=(server, it.life), daemon=True)
        thread.start()
        assert it.pod_watch.step_once(it.life) > 0
        assert it.node_watch.step_once(it.life) > 0
        it.life.end()
        thread.join()


def _end_watches(server: ApiServer, life: StoppableLife) -> None:
    while life.pause(0.01):
        server.end_watches()


def test_our_own_patch_is_not_undone_by_a_late_event(server: ApiServer, tmp_path: Path) -> None:
    add_pod(server, "p", order=ORDER)
    with following_pods(server, tmp_path) as it:
        (pod,) = it.view.pods.now().pods.values()
        with server.held_events():
            server.objects.update(
                "pods",
                "p",
                "default",
                lambda item: item | {"status": {"phase": "Pending", "reason": "x"}},
                subresource="status",
            )
            it.view.patch_pod(
                pod, {TO_ALLOCATE: ";"}, expected={TO_ALLOCATE: ORDER}, deadline_s=None
            )
            assert it.view.pods.now().pods[pod.uid].annotations == {TO_ALLOCATE: ";"}
            seen: list[Any] = []
            it.view.pods.listen(
                lambda: seen.append(dict(it.view.pods.now().pods[pod.uid].annotations))
            )
        add_pod(server, "later")
        eventually(lambda: it.pods == ["later", "p"])
        assert all(annotations == {TO_ALLOCATE: ";"} for annotations in seen)


def test_doubled_events_change_nothing(server: ApiServer, tmp_path: Path) -> None:
    server.duplicate_events = True
    with following_pods(server, tmp_path) as it:
        add_pod(server, "p")
        server.objects.delete("pods", "p", "default")
        add_pod(server, "q")
        eventually(lambda: it.pods == ["q"])


def test_the_node_comes_and_goes(server: ApiServer, tmp_path: Path) -> None:
    server.objects.delete("nodes", "n1")
    with scene(server, tmp_path) as it:
        it.run(it.node_watch)
        eventually(lambda: server.open_watches("nodes"))
        assert it.node is None
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        eventually(lambda: it.node)
        annotate_node(server, {"hami.io/a": "1"})
        eventually(lambda: it.node and it.node.annotations == {"hami.io/a": "1"})
        server.objects.delete("nodes", "n1")
        eventually(lambda: it.node is None)
        assert {request.verb for request in server.requests()} == {"watch"}


def test_without_permission_to_watch_nodes_they_are_read(server: ApiServer, tmp_path: Path) -> None:
    server.fail(403, count=1_000_000, verb="watch", resource="nodes")
    with scene(server, tmp_path) as it:
        pause_s = it.node_watch.step_once(it.life)
        assert it.node is not None
        assert 10 < pause_s < 20
        assert [request.verb for request in server.requests()] == ["watch", "get"]


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_services_end_while_the_api_server_hangs(
    server: ApiServer, tmp_path: Path, verb: str
) -> None:
    fault = server.hang(3600, count=1_000_000, verb=verb)
    with scene(server, tmp_path) as it:
        it.run(it.pod_watch, it.node_watch)
        eventually(lambda: fault.used and server.log.totals() is not None)
        it.end()
    server.clear_faults()


def test_services_end_without_an_api_server(server: ApiServer, tmp_path: Path) -> None:
    server.stop()
    with scene(server, tmp_path) as it:
        it.run(it.pod_watch, it.node_watch)
        eventually(lambda: it.pod_watch._retries.in_a_row and it.node_watch._retries.in_a_row)
