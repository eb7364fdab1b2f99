"""The way to the API server by a proxy, named as kubectl takes it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import Identity, make_bare_identity, make_identity
from connect_proxy import ConnectProxy
from kube_stage import (
    LOCK,
    ORDER,
    TO_ALLOCATE,
    Reader,
    StoppableLife,
    add_pod,
    annotate_node,
    annotations,
    soon,
)
from strict_python import be_strict
from waiting import eventually

from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_config import load_configuration
from agent.adapters.kube_transport import KubeTransport
from agent.errors import ClusterUnavailable, ConfigError
from agent.ports import ClusterEvent
from agent.sim.apiserver import ApiServer

ELSEWHERE = "api.cluster.example:6443"  # only a proxy finds it
LOGIN = "some one:p@ss"


@dataclass(frozen=True, slots=True)
class Way:
    """An API server, and a proxy that leads to it whatever it is asked for."""

    kubeconfig: Path
    server: ApiServer
    proxy: ConnectProxy

    def cluster(self, address: str, **more: Any) -> KubeCluster:
        """A client of a kubeconfig with this address of the API server."""
        content = json.loads(self.kubeconfig.read_text())
        content["clusters"][0]["cluster"] |= {"server": f"https://{address}", **more}
        self.kubeconfig.write_text(json.dumps(content))
        return KubeCluster(KubeTransport(self.kubeconfig), node_name="n1")

    def proxy_to(self, address: str) -> str | None:
        """By which proxy a client of such a kubeconfig goes."""
        self.cluster(address)
        return load_configuration(self.kubeconfig)[1].proxy


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    identity = make_identity()
    authority = tmp_path / "ca.crt"
    authority.write_text(identity.certificate)
    with (
        ApiServer(tls=identity.server_context(tmp_path)) as server,
        ConnectProxy(server.port, login=LOGIN) as proxy,
    ):
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        content = json.loads(path.read_text())
        content["clusters"][0]["cluster"] |= {
            "certificate-authority": str(authority), "tls-server-name": "127.0.0.1",
        }  # fmt: skip
        path.write_text(json.dumps(content))
        yield Way(path, server, proxy)


@pytest.mark.parametrize("form", ["http://some%20one:p%40ss@{}", "some%20one:p%40ss@{}"])
@pytest.mark.parametrize("by", ["environment", "kubeconfig"])
def test_a_proxy_is_taken_as_it_is_written(
    way: Way, monkeypatch: pytest.MonkeyPatch, by: str, form: str
) -> None:
    url, more = form.format(way.proxy.address), {}
    if by == "environment":
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.elsewhere.example")
    else:
        monkeypatch.setenv("NO_PROXY", ".cluster.example")  # says nothing of this proxy
        more = {"proxy-url": url}
    assert way.cluster(ELSEWHERE, **more).get_node().name == "n1"
    assert way.proxy.asked_for == [ELSEWHERE]


@pytest.mark.parametrize("kind", ["http", "socks5"])
@pytest.mark.parametrize("excepted", ["", "127.0.0.0/8"])
def test_there_is_none_on_the_way_to_this_machine(
    way: Way, monkeypatch: pytest.MonkeyPatch, kind: str, excepted: str
) -> None:
    """Then one of a kind that is not spoken harms nothing either."""
    monkeypatch.setenv("HTTPS_PROXY", f"{kind}://{way.proxy.address}")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert way.cluster(f"127.0.0.1:{way.server.port}").get_node().name == "n1"
    assert way.proxy.asked_for == []


@pytest.mark.parametrize(
    ("excepted", "by_proxy"),
    [
        pytest.param("*.cluster.example", False, id="a star"),
        pytest.param("10.0.0.0/8, *.cluster.example ,x", False, id="one of several"),
        pytest.param(".cluster.example", False, id="a dot"),
        pytest.param("api.cluster.example:6443", False, id="with its port"),
        pytest.param("api.cluster.example:443", True, id="with another port"),
        pytest.param("*.example.cluster", True, id="another domain"),
        pytest.param("*.api.cluster.example", True, id="a star before all of it"),
        pytest.param(".api.cluster.example", True, id="a dot before all of it"),
        pytest.param("x,*", False, id="all"),
    ],
)
def test_exceptions_are_those_of_kubectl(
    way: Way, monkeypatch: pytest.MonkeyPatch, excepted: str, by_proxy: bool
) -> None:
    """Each was tried with kubectl 1.33, or with Go's httpproxy, which it is built with."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert way.proxy_to(ELSEWHERE) == ("http://proxy:3128" if by_proxy else None)


@pytest.mark.parametrize(
    ("address", "excepted", "by_proxy"),
    [
        pytest.param("api.example", "api.example:443", False, id="the port of https"),
        pytest.param("api.example", "api.example:6443", True, id="another port"),
        pytest.param("10.1.2.3:6443", "10.1.2.3:6443", False, id="an address and its port"),
        pytest.param("[fd00::1]:6443", "fd00::/8", False, id="a network of IPv6"),
        pytest.param("[fd00::1]", "[fd00::1]:443", False, id="an address of IPv6 and its port"),
        pytest.param("10.1.2.3", "3,2.3", True, id="an address is no domain"),
        pytest.param("api.example", ":443,,.", True, id="no host in it"),
    ],
)
def test_exceptions_by_address_and_port_are_those_of_kubectl(
    way: Way, monkeypatch: pytest.MonkeyPatch, address: str, excepted: str, by_proxy: bool
) -> None:
    """Each was tried with Go's httpproxy."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert way.proxy_to(address) == ("http://proxy:3128" if by_proxy else None)


def test_of_both_ways_to_write_a_variable_the_great_letters_count(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://other:3128")
    monkeypatch.setenv("no_proxy", "api.cluster.example")
    assert way.proxy_to(ELSEWHERE) is None
    monkeypatch.setenv("NO_PROXY", "none.example")
    assert way.proxy_to(ELSEWHERE) == "http://other:3128"
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert way.proxy_to(ELSEWHERE) == "http://proxy:3128"


def test_a_variable_that_kubectl_does_not_read(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    assert way.proxy_to(ELSEWHERE) is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        pytest.param("socks5://me:secret@proxy:1080", "only http and https", id="SOCKS"),
        pytest.param("http://me:secret@proxy:port", "no address of a proxy", id="a port in words"),
        pytest.param("http://me:secret@:3128", "no address of a proxy", id="no host"),
        pytest.param("me:secret@[::1:3128", "no address of a proxy", id="half a bracket"),
    ],
)
def test_one_that_cannot_be_used_is_refused_in_words(
    way: Way, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigError, match=sentence) as caught:
        way.cluster(ELSEWHERE).connect()
    assert "secret" not in str(caught.value)
    assert "HTTPS_PROXY" in str(caught.value)


def test_a_wrong_password_is_told_and_not_shown(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://some%20one:secret@{way.proxy.address}")
    with pytest.raises(ClusterUnavailable, match="407 Proxy Authentication Required") as caught:
        way.cluster(ELSEWHERE).get_node()
    assert "secret" not in str(caught.value)


def kubeconfig_by(
    folder: Path,
    server: ApiServer,
    trusted: Identity,
    proxy: ConnectProxy,
    *,
    scheme: str = "https",
) -> Path:
    authority = folder / "ca.crt"
    authority.write_text(trusted.certificate)
    path = server.write_kubeconfig(folder / "kubeconfig")
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"] |= {
        "server": f"https://{ELSEWHERE}", "tls-server-name": "127.0.0.1",
        "certificate-authority": str(authority), "proxy-url": f"{scheme}://{proxy.address}",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def test_one_that_is_spoken_to_by_tls_is_trusted_as_the_server_and_left_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_strict(monkeypatch)
    ours, another = make_bare_identity("ours"), make_identity("another")
    stop = StoppableLife()
    with (
        ApiServer(tls=ours.server_context(tmp_path)) as server,
        ConnectProxy(server.port, tls=ours.server_context(tmp_path)) as proxy,
        ConnectProxy(server.port, tls=another.server_context(tmp_path)) as stranger,
    ):
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = kubeconfig_by(tmp_path, server, ours, stranger)
        with pytest.raises(ClusterUnavailable, match="the proxy's certificate is not trusted"):
            KubeCluster(KubeTransport(path), node_name="n1").get_node()
        path = kubeconfig_by(tmp_path, server, ours, proxy)
        cluster = KubeCluster(KubeTransport(path), node_name="n1")
        assert cluster.get_node().name == "n1"
        reader = Reader(cluster.watch_node("", stop=stop))
        eventually(lambda: reader.changes)
        stop.end()
        eventually(lambda: reader.ended)
        assert reader.error is None
    assert set(proxy.asked_for) == {ELSEWHERE}
    assert stranger.asked_for == []


@pytest.fixture(params=["http", "https"])
def through(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[ApiServer, KubeCluster]]:
    """An API server, and a client by a proxy that is spoken to so; its connection is kept alive."""
    identity = make_identity()
    tls = identity.server_context(tmp_path)
    with (
        ApiServer(tls=tls) as server,
        ConnectProxy(server.port, tls=tls if request.param == "https" else None) as proxy,
    ):
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = kubeconfig_by(tmp_path, server, identity, proxy, scheme=request.param)
        cluster = KubeCluster(KubeTransport(path), node_name="n1")
        cluster.get_node()
        yield server, cluster


def test_what_was_done_and_not_answered_is_found_out(
    through: tuple[ApiServer, KubeCluster],
) -> None:
    server, cluster = through
    annotate_node(server, {LOCK: "mine"})
    pod = add_pod(server, "p", order=ORDER)
    cluster.patch_node({"hami.io/a": "1"}, deadline_s=soon())
    server.lose_answer(verb="patch")
    cluster.remove_node_annotation(LOCK, expected="mine", deadline_s=soon())
    assert LOCK not in annotations(server, "nodes", "n1")
    server.lose_answer(verb="patch")
    expected = {TO_ALLOCATE: ORDER}
    changed = cluster.patch_pod(pod, {TO_ALLOCATE: ";"}, expected=expected, deadline_s=soon())
    assert changed.annotations[TO_ALLOCATE] == ";"


def test_a_connection_that_ended_is_made_anew_and_told_as_that(
    through: tuple[ApiServer, KubeCluster],
) -> None:
    server, cluster = through
    server.drop(verb="get")
    assert cluster.get_node().name == "n1"
    server.lose_answer(verb="create")
    with pytest.raises(ClusterUnavailable, match="the connection to the API server ended"):
        cluster.post_event(ClusterEvent(reason="A", message="b"))
    assert len(server.objects.list("events")[0]) == 1
