"""An API server, or what answers in its place, that is slow, lies or talks nonsense.

What HTTP says is changed on its way; what the objects say is changed in the store, where anybody
with the right to write a pod could have put it.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import LOCK, REGISTER, TO_ALLOCATE
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves, up
from tests.faults.invariants import violations
from tests.waiting import eventually

MIB = 1 << 20


class Between:
    """A TCP server in front of the API server; while `lie` is set it answers by itself."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.lie: bytes | None = None
        self.told = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def hang_up(self) -> None:
        """End all connections, so that the next ones hear the lie."""
        for one in list(self._open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with client:
            self._open.add(client)
            try:
                self._talk(client)
            except OSError:
                pass
            finally:
                self._open.discard(client)

    def _talk(self, client: socket.socket) -> None:
        if self.lie is not None:
            client.recv(65536)
            client.sendall(self.lie)
            self.told += 1
            return
        with socket.create_connection(self._upstream, timeout=30) as server:
            self._open.add(server)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
            self._open.discard(server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def http(body: bytes, *, status: str = "200 OK", length: int | None = None) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    size = len(body) if length is None else length
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + body


NODE_OF_ANOTHER = {"kind": "Node", "metadata": {"name": "other", "annotations": {LOCK: "x,y,z"}}}
LIES = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n" * 10,
    "a page of a proxy": http(b"<html>Please log in</html>"),
    "an empty answer": http(b""),
    "no object": http(b"[1, 2, 3]"),
    "null": http(b"null"),
    "nested without end": http(b'{"a":' * 50_000),
    "more promised than sent": http(b'{"kind":', length=MIB),
    "another kind": http(json.dumps({"kind": "PodList", "items": [{"metadata": None}]}).encode()),
    "another node": http(json.dumps(NODE_OF_ANOTHER).encode()),
    "a status that is none": http(b"{}", status="999 Nobody"),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "numbers that are none": http(b'{"metadata":{"resourceVersion":' + b"9" * 5000 + b"}}"),
    "a very long header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n{}",
}
FEW = ("a page of a proxy", "another node", "nested without end")


@pytest.fixture
def between(make_node: NodeMaker) -> Iterator[tuple[SimNode, Between]]:
    node = make_node("--allocate-budget", "5s", started=False)
    host, port = node.api.url.removeprefix("http://").split(":")
    with Between((host, int(port))) as between:
        kubeconfig = node.root / "kubeconfig"
        kubeconfig.write_text(kubeconfig.read_text().replace(node.api.url, between.url))
        assert between.url in kubeconfig.read_text()
        node.start_agent()
        up(node, 20)
        yield node, between


@pytest.mark.parametrize(
    "what",
    [pytest.param(w, marks=() if w in FEW else pytest.mark.faults, id=w) for w in LIES],
)
def test_nonsense_is_survived(between: tuple[SimNode, Between], what: str) -> None:
    """Nothing is granted by it, who runs keeps what it has, and the truth is believed again."""
    node, server = between
    running = node.run_pod("before", [Ask(memory_mib=700)])
    uid = node.create_pod("meanwhile", [Ask(memory_mib=800)])
    claims = node.place_pod("meanwhile", [Ask(memory_mib=800)])
    eventually(lambda: node.api.open_watches("pods"))
    server.lie = LIES[what]
    server.hang_up()
    eventually(lambda: server.told >= 2, within_s=60, what="it was lied to")
    refused = node.offer("meanwhile", uid, [Ask(memory_mib=800)], claims)
    assert not refused.admitted.ok
    assert "Allocate failed" in refused.admitted.message
    assert node.fetch("/healthz")[0] == 200
    assert node.agent is not None
    assert node.agent.poll() is None
    server.lie = None
    server.hang_up()
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)
    assert violations(node, [running]) == []
    assert "Traceback" not in node.log_text()


HOSTILE: dict[str, Callable[[str], str]] = {
    "a path": lambda _: "../../../etc/passwd,NVIDIA,700,10:;",
    "control characters": lambda uuid: f"{uuid}\x00\x1b[2J\r\n,NVIDIA,700,10:;",
    "as long as the API server takes": lambda _: "x" * 250_000 + ",NVIDIA,700,10:;",
    "unicode": lambda uuid: f"{uuid},NVIDIA,\uff17\uff10\uff10,\uff11:;\u202e\U0001f4a3",
    "a negative amount": lambda uuid: f"{uuid},NVIDIA,-1,10:;",
    "an amount beyond 64 bit": lambda uuid: f"{uuid},NVIDIA,{1 << 70},10:;",
    "more cores than there are": lambda uuid: f"{uuid},NVIDIA,700,1000:;",
    "more memory than its limits": lambda uuid: f"{uuid},NVIDIA,701,10:;",
    "all memory, where its limits say less": lambda uuid: f"{uuid},NVIDIA,0,10:;",
    "more memory than there is": lambda uuid: f"{uuid},NVIDIA,999999,10:;",
    "a GPU that nobody has": lambda _: "GPU-00000000-dead-beef-0000-000000000000,NVIDIA,700,10:;",
    "thousands of containers": lambda uuid: f"{uuid},NVIDIA,1,1:;" * 4_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_annotation_is_a_clear_refusal(make_node: NodeMaker, what: str) -> None:
    """Whoever may write pods writes the claim; nothing comes of it but a sentence."""
    node = make_node("--allocate-budget", "5s")
    asks = [Ask(memory_mib=700)]
    uid = node.create_pod("hostile", asks)
    claims = node.place_pod("hostile", asks)
    gpu = claims[0][0].uuid
    value = HOSTILE[what](gpu)
    node.client.annotate("pods", "hostile", {TO_ALLOCATE: value}, namespace="team")
    pod = node.offer("hostile", uid, asks)
    assert not pod.admitted.ok, f"it was given {pod.admitted.containers}"
    message = pod.admitted.message
    assert "Allocate failed" in message
    assert len(message) < 4096
    assert message.isprintable()
    assert "Traceback" not in node.log_text()
    assert not [line for line in node.log_text().splitlines() if "\x1b" in line]
    assert list((node.root / "host/vgpu").glob("containers/*")) == []
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)


def test_hostile_objects_of_others_harm_nobody(make_node: NodeMaker, tmp_path: Path) -> None:
    """Pods with fields of any type, on this node: the others are served as before."""
    node = make_node("--allocate-budget", "5s")
    for number, metadata in enumerate([
        {"annotations": {TO_ALLOCATE: ";" * 100_000}},
        {"annotations": {"vgpu-agent/limits": '{"main":{"memory":' + "[" * 10_000}},
        {"annotations": {"hami.io/bind-phase": "allocating", "hami.io/bind-time": "\u0669" * 99}},
        {"labels": {"x": "y" * 100_000}},
    ]):  # fmt: skip
        body = {
            "metadata": {"name": f"odd-{number}", "namespace": "team", **metadata},
            "spec": {"nodeName": node.name, "containers": [{"name": "main", "image": "none"}]},
            "status": {"phase": "Pending"},
        }
        node.client.ask("POST", "/api/v1/namespaces/team/pods", body)
    node.client.annotate("nodes", node.name, {LOCK: "\u0000,../..,x" + "y" * 1000})
    node.client.annotate("nodes", node.name, {LOCK: None})
    serves(node)
    assert REGISTER in node.annotations()
    assert "Traceback" not in node.log_text()
