"""Watches of the Cluster port: how they begin, what they bring, and how they end."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Identity, make_identity
from kube_stage import (
    ORDER,
    Reader,
    StoppableLife,
    add_pod,
    annotate_node,
    cluster_of,
    raw_cluster,
    raw_server,
    soon,
)
from waiting import eventually

from agent.adapters import cluster as cluster_adapter
from agent.adapters import kube_transport
from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_transport import KubeTransport
from agent.errors import ClusterDenied, ClusterError, ClusterGone, ClusterUnavailable
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


@pytest.fixture
def stop() -> Iterator[StoppableLife]:
    """A lifeline that is ended after the test, so that no reader outlives it."""
    life = StoppableLife()
    yield life
    life.end()


@pytest.fixture(scope="module")
def identity() -> Identity:
    return make_identity()


def test_pods_are_followed(server: ApiServer, cluster: KubeCluster, stop: StoppableLife) -> None:
    reader = Reader(cluster.watch_pods(str(server.objects.version), stop=stop))
    add_pod(server, "ours", order=ORDER)
    add_pod(server, "theirs", node="n2")
    server.objects.delete("pods", "ours", "default")
    eventually(lambda: len(reader.changes) == 2)
    seen = [(change.kind, change.pod.name) for change in reader.changes]
    assert seen == [("applied", "ours"), ("deleted", "ours")]
    assert reader.changes[-1].resource_version == str(server.objects.version)


def test_the_node_is_followed_from_what_it_is_now(
    server: ApiServer, cluster: KubeCluster, stop: StoppableLife
) -> None:
    reader = Reader(cluster.watch_node("", stop=stop))
    eventually(lambda: len(reader.changes) == 1)
    annotate_node(server, {"hami.io/a": "1"})
    eventually(lambda: len(reader.changes) == 2)
    assert [change.kind for change in reader.changes] == ["applied", "applied"]
    assert reader.changes[-1].node.annotations == {"hami.io/a": "1"}
    assert [request.verb for request in server.requests()] == ["watch"]


def test_a_watch_asks_for_bookmarks_and_an_end(
    server: ApiServer, tmp_path: Path, stop: StoppableLife
) -> None:
    cluster = cluster_of(server, tmp_path, watch_s=(1.0, 1.0))
    reader = Reader(cluster.watch_node(str(server.objects.version), stop=stop))
    eventually(lambda: reader.ended)
    assert reader.error is None
    assert [change.kind for change in reader.changes] == ["bookmark"]
    (request,) = server.requests(verb="watch")
    assert request.query["timeoutSeconds"] == "1"


def test_durations_are_spread(server: ApiServer, tmp_path: Path, stop: StoppableLife) -> None:
    for jitter, seconds in ((0.0, "480"), (0.5, "720"), (1.0, "960")):
        cluster = cluster_of(server, tmp_path, jitter=lambda it=jitter: it)
        Reader(cluster.watch_node("", stop=stop))
        eventually(
            lambda at=seconds: (
                server.requests(verb="watch")[-1:]
                and (server.requests(verb="watch")[-1].query["timeoutSeconds"] == at)
            )
        )


@pytest.mark.parametrize("as_status", [True, False], ids=["HTTP status", "ERROR event"])
def test_a_watch_that_is_too_old(
    server: ApiServer, cluster: KubeCluster, stop: StoppableLife, as_status: bool
) -> None:
    server.expire_watches(as_status=as_status)
    reader = Reader(cluster.watch_pods("1", stop=stop))
    eventually(lambda: reader.ended)
    assert isinstance(reader.error, ClusterGone)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        pytest.param(lambda s: s.fail(429, retry_after_s=3), ClusterUnavailable, id="429"),
        pytest.param(lambda s: s.fail(403), ClusterDenied, id="forbidden"),
        pytest.param(lambda s: s.drop(), ClusterUnavailable, id="dropped"),
    ],
)
def test_a_watch_that_does_not_start(
    server: ApiServer,
    cluster: KubeCluster,
    stop: StoppableLife,
    plan: Callable[[ApiServer], Any],
    error: type[ClusterError],
) -> None:
    plan(server)
    reader = Reader(cluster.watch_pods("1", stop=stop))
    eventually(lambda: reader.ended)
    assert isinstance(reader.error, error)
    if "429" in str(reader.error):
        assert getattr(reader.error, "retry_after_s", None) == 3


def test_a_broken_watch_is_an_error(
    server: ApiServer, cluster: KubeCluster, stop: StoppableLife
) -> None:
    reader = Reader(cluster.watch_pods(str(server.objects.version), stop=stop))
    eventually(lambda: server.open_watches("pods"))
    server.stop()
    eventually(lambda: reader.ended)
    assert isinstance(reader.error, ClusterUnavailable)


def test_a_silent_watch_is_given_up(
    server: ApiServer, tmp_path: Path, stop: StoppableLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_transport, "SILENCE_S", 0.2)
    cluster = cluster_of(server, tmp_path, watch_s=(0.1, 0.1))
    with server.held_events():
        annotate_node(server, {"hami.io/a": "1"})  # the server waits with it, past the end
        reader = Reader(cluster.watch_node(str(server.objects.version - 1), stop=stop))
        eventually(lambda: reader.ended)
    assert isinstance(reader.error, ClusterUnavailable)


def test_the_largest_pod_there_can_be_is_followed(
    server: ApiServer, cluster: KubeCluster, stop: StoppableLife
) -> None:
    """1.5 MiB in etcd; in JSON each of its characters may be six."""
    reader = Reader(cluster.watch_pods(str(server.objects.version), stop=stop))
    spec = {"nodeName": "n1", "note": "\x01" * (1536 << 10)}
    server.objects.create("pods", {"metadata": {"name": "large"}, "spec": spec})
    eventually(lambda: reader.changes or reader.ended, within_s=30)
    assert reader.error is None
    assert [change.pod.name for change in reader.changes] == ["large"]


def test_a_line_without_end_is_not_collected(
    tmp_path: Path, stop: StoppableLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_transport, "MAX_LINE_BYTES", 100_000)
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with raw_server(head, drip=chunk) as port:
        reader = Reader(raw_cluster(port, tmp_path).watch_node("", stop=stop))
        eventually(lambda: reader.ended)
    assert "longer than" in str(reader.error)


@pytest.mark.parametrize("bookmarks", [True, False])
def test_who_sends_bookmarks_and_ceases_to_is_gone(
    tmp_path: Path, stop: StoppableLife, monkeypatch: pytest.MonkeyPatch, bookmarks: bool
) -> None:
    """As behind a load balancer whose API server has lost its power: the connection stays."""
    monkeypatch.setattr(kube_transport, "SILENCE_S", 0.1)
    monkeypatch.setattr(cluster_adapter, "BOOKMARK_S", 0.2)
    with ApiServer(bookmark_every_s=0.1 if bookmarks else 60) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        cluster = cluster_of(server, tmp_path, watch_s=(60, 60))
        reader = Reader(cluster.watch_node("", stop=stop))
        eventually(lambda: len(reader.changes) > (3 if bookmarks else 0))
        assert not reader.ended
        server.bookmark_every_s = 60
        if bookmarks:
            eventually(lambda: reader.ended)
            assert isinstance(reader.error, ClusterUnavailable)
        else:  # who never sent any may just have nothing to say
            time.sleep(0.6)
            assert not reader.ended


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b'{"type":"NEWS","object":{}}\n', b'{"type":"ADDED","object":7}\n', b"\n"],
    ids=["empty", "unknown type", "no object", "blank"],
)
def test_events_we_do_not_know_are_passed_over(
    tmp_path: Path, stop: StoppableLife, line: bytes
) -> None:
    good = b'{"type":"ADDED","object":{"metadata":{"name":"n1"}}}\n'
    body = line + good
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with raw_server(head + body) as port:
        reader = Reader(raw_cluster(port, tmp_path).watch_node("", stop=stop))
        eventually(lambda: reader.ended)
    assert reader.error is None
    assert [change.kind for change in reader.changes] == ["applied", "ended"]  # before its time
    assert reader.changes[0].node.name == "n1"


@pytest.mark.parametrize("phase", ["before", "headers", "silence"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_watch_ends_at_once_when_the_agent_stops(
    tmp_path: Path, stop: StoppableLife, phase: str, tls: bool, identity: Identity
) -> None:
    context = identity.server_context(tmp_path) if tls else None
    with ApiServer(tls=context) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        ca_file = tmp_path / "ca.crt"
        ca_file.write_text(identity.certificate)
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", ca_file=ca_file)
        cluster = KubeCluster(KubeTransport(kubeconfig), node_name="n1")
        if phase == "headers":
            fault = server.hang(3600, verb="watch")
        if phase == "before":
            stop.end()
        reader = Reader(cluster.watch_node("", stop=stop))
        if phase == "headers":
            eventually(lambda: fault.used)
        if phase == "silence":
            eventually(lambda: len(reader.changes) == 1)
        stop.end()
        eventually(lambda: reader.ended)
        assert reader.error is None
        server.clear_faults()


def test_loops_are_cut_off_when_the_agent_stops_and_deadlines_are_not(
    server: ApiServer, cluster: KubeCluster, stop: StoppableLife
) -> None:
    watch = Reader(cluster.watch_node("", stop=stop))
    eventually(lambda: watch.changes)
    fault = server.hang(3600, count=2, verb="get")
    patient = Reader(iter(cluster.get_node, None))
    eventually(lambda: fault.used == 1)
    urgent = Reader(deadline() for deadline in [lambda: cluster.get_node(deadline_s=soon())])
    eventually(lambda: fault.used == 2)
    stop.end()
    eventually(lambda: patient.ended)
    assert isinstance(patient.error, ClusterUnavailable)
    assert not urgent.ended
    server.clear_faults()
    eventually(lambda: urgent.ended)
    assert [node.name for node in urgent.changes] == ["n1"]
