"""The stage for tests of the Cluster port: an API server to misbehave, and readers of watches."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_transport import KubeTransport
from agent.domain.pods import Pod
from agent.sim.apiserver import ApiServer
from agent.supervisor import Lifeline

TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
LOCK = "hami.io/mutex.lock"
ORDER = "GPU-a,NVIDIA,3000,30:;"


def add_pod(server: ApiServer, name: str, node: str = "n1", **annotations: str) -> Pod:
    keys = {"order": TO_ALLOCATE}
    metadata = {
        "name": name,
        "annotations": {keys.get(key, key): text for key, text in annotations.items()},
    }
    server.objects.create("pods", {"metadata": metadata, "spec": {"nodeName": node}})
    item = server.objects.get("pods", name, "default")
    return Pod(
        namespace="default",
        name=name,
        uid=item["metadata"]["uid"],
        annotations=item["metadata"]["annotations"],
    )


def annotations(server: ApiServer, resource: str, name: str) -> dict[str, str]:
    namespace = "default" if resource == "pods" else ""
    return server.objects.get(resource, name, namespace)["metadata"].get("annotations") or {}


def annotate_node(server: ApiServer, changes: dict[str, str]) -> None:
    def change(node: dict[str, Any]) -> dict[str, Any]:
        merged = (node["metadata"].get("annotations") or {}) | changes
        return node | {"metadata": node["metadata"] | {"annotations": merged}}

    server.objects.update("nodes", "n1", "", change)


def soon() -> float:
    return time.monotonic() + 10.0


class StoppableLife(Lifeline):
    """A lifeline with its own end, as the supervisor would bring it about."""

    def __init__(self) -> None:
        self._event = threading.Event()
        super().__init__(self._event)

    def end(self) -> None:
        self._event.set()
        self.interrupt()


class Counts:
    """Collects what the transport counts."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def __call__(self, verb: str, resource: str, code: int) -> None:
        self.seen.append((verb, resource, code))


def cluster_of(server: ApiServer, tmp_path: Path, **more: Any) -> KubeCluster:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    transport = KubeTransport(kubeconfig, count=more.pop("count", Counts()))
    return KubeCluster(transport, node_name="n1", **more)


class Reader:
    """A watch read by a thread of its own."""

    def __init__(self, changes: Iterator[Any]) -> None:
        self.changes: list[Any] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._read, args=(changes,), daemon=True)
        self.thread.start()

    def _read(self, changes: Iterator[Any]) -> None:
        try:
            for change in changes:
                self.changes.append(change)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()


class raw_server:  # noqa: N801 - used like a function
    """Answers every connection with these bytes, then closes it, or goes on dripping.

    `stays`: for so many hundredths of a second it does not close it; None: for good, if it drips.
    `before` is called when the request has come.
    """

    def __init__(
        self,
        answer: bytes,
        *,
        drip: bytes = b"",
        stays: int | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._answer, self._drip, self._before = answer, drip, before
        forever = 1 << 30
        self._stays = stays if stays is not None else forever if drip else 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while not self._ended.is_set():
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    self._before()
                    connection.sendall(self._answer)
                    for _ in range(self._stays):
                        if self._ended.wait(0.01):
                            break
                        connection.sendall(self._drip)


def raw_cluster(port: int, tmp_path: Path) -> KubeCluster:
    kubeconfig = ApiServer(port=port).write_kubeconfig(tmp_path / "kubeconfig")
    return KubeCluster(KubeTransport(kubeconfig), node_name="n1")
