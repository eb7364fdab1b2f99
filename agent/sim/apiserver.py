"""A stand-in for kube-apiserver over real HTTP, for `vgpu-agent demo` and for tests.

It serves nodes, pods (with status, binding and eviction), events, namespaces and config maps of
core v1 from memory, on loopback, and misbehaves on demand: 429, 5xx, hangs, dropped connections,
lost answers, expired watches, late and doubled events, stale reads, restarts. What each part does
NOT imitate is said in `api_store`, `api_http`, `api_patches` and `api_selectors`; the largest gaps
are admission, authorization (tokens are known or not, verbs are allowed by User-Agent), etcd's
durability and priority and fairness.
As a process of its own: `python -m agent.sim.apiserver --port 0 --kubeconfig FILE`.
"""

import argparse
import json
import os
import select
import socket
import socketserver
import ssl
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.sim.api_faults import ApiRequest, Fault, Faults, RequestLog
from agent.sim.api_http import Handler
from agent.sim.api_store import ApiError, Object, ObjectStore

__all__ = ["ApiError", "ApiRequest", "ApiServer", "Fault", "ObjectStore"]


class _Listener(socketserver.ThreadingTCPServer):
    """The listening socket; it does not resolve its own host name, as http.server would."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    ended = False

    def serve_forever(self, poll_interval: float = 0.01) -> None:
        """Accept until `shutdown`, which needs no polling here."""
        while not self.ended:
            try:
                connection, address = self.get_request()
            except OSError:
                time.sleep(poll_interval)  # too many open files: that may pass
                continue
            self.process_request(connection, address)

    def shutdown(self) -> None:
        """Wake `serve_forever` and have it end."""
        self.ended = True
        socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that leave early are part of the game."""


class ApiServer:
    """The stand-in. Everything on it may be called from any thread, while it serves.

    `objects` is the store behind it, `faults` and `log` what is planned and what happened; the
    methods below are shorthands for them.

    Args:
        port: 0 picks a free one; it is kept over `stop` and `start`.
        tokens: bearer tokens that are accepted; None accepts everybody.
        tls: context of a TLS server. A client certificate that it verified counts as a login.
        history: number of changes a watch can resume over.
        graceful_pods: whether deleting a bound pod only marks it, until somebody deletes it again
            with a grace period of 0, as kubelet does.
        bookmark_every_s: interval of bookmarks on watches that allow them.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        tokens: Iterable[str] | None = None,
        tls: ssl.SSLContext | None = None,
        history: int = 1000,
        graceful_pods: bool = False,
        bookmark_every_s: float = 60.0,
    ) -> None:
        self.port = port
        self.tokens = None if tokens is None else frozenset(tokens)
        self.objects = ObjectStore(history=history, graceful_pods=graceful_pods)
        self.faults = Faults()
        self.log = RequestLog()
        self.bookmark_every_s = bookmark_every_s
        self.event_delay_s = 0.0  # how much later than the write watchers see it
        self.events_held = False  # whether watchers see anything at all
        self.duplicate_events = False
        self._stopping = threading.Event()
        self.connections: set[socket.socket] = set()
        self.watch_generation = 0
        self._tls = tls
        self._watches: list[str] = []
        self.roles: dict[str, frozenset[tuple[str, str]]] = {}  # by a client, see `allow_only`
        self.denied: frozenset[tuple[str, str]] = frozenset()  # (verb, resource) in access reviews
        self._listener: _Listener | None = None
        self._keeps_port = False

    # --- life -----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL, such as http://127.0.0.1:40123."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Listen and serve; on the same port as before, if there was a before."""
        self._stopping = threading.Event()
        handler = type("BoundHandler", (Handler,), {"api": self, "stopping": self._stopping})
        if not self._keeps_port:
            self._keep_port()
        self._listener = _Listener(("127.0.0.1", self.port), handler)
        if self._tls:
            self._listener.socket = self._tls.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._listener.serve_forever, name="sim-apiserver", daemon=True
        )
        self._thread.start()
        return self

    def _keep_port(self) -> None:
        """Bind, and never listen: between `stop` and `start` nobody else answers in our name."""
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", self.port))
        self.port = kept.getsockname()[1]
        weakref.finalize(self, os.close, kept.detach())
        self._keeps_port = True

    def stop(self) -> None:
        """Stop listening and cut every connection, as a process that is killed."""
        if self._listener is None:
            return
        self._stopping.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self._listener = None
        with self.objects.changed:
            self.objects.changed.notify_all()
        for connection in list(self.connections):
            try:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                continue  # it has gone by itself

    def restart(self, *, lose_history: bool = False) -> None:
        """Stop and start on the same port; with `lose_history` watches cannot resume (410)."""
        self.stop()
        if lose_history:
            self.objects.compact()
        self.start()

    def __enter__(self) -> Self:
        return self if self._listener else self.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- faults ---------------------------------------------------------------------------------

    def fail(
        self,
        code: int = 500,
        *,
        count: int = 1,
        verb: str = "",
        resource: str = "",
        reason: str = "",
        retry_after_s: float | None = None,
    ) -> Fault:
        """Answer the next `count` matching requests with `code`, doing nothing."""
        return self.faults.plan(
            Fault(
                action="answer",
                code=code,
                count=count,
                verb=verb,
                resource=resource,
                reason=reason,
                retry_after_s=retry_after_s,
            )
        )

    def hang(self, seconds: float, *, count: int = 1, verb: str = "", resource: str = "") -> Fault:
        """Keep the next `count` matching requests waiting before they are served."""
        return self.faults.plan(
            Fault(action="hang", seconds=seconds, count=count, verb=verb, resource=resource)
        )

    def drop(self, *, count: int = 1, verb: str = "", resource: str = "") -> Fault:
        """Close the connection of the next `count` matching requests; nothing is done."""
        return self.faults.plan(Fault(action="drop", count=count, verb=verb, resource=resource))

    def lose_answer(self, *, count: int = 1, verb: str = "", resource: str = "") -> Fault:
        """Do what the next `count` matching requests ask, but close without an answer."""
        return self.faults.plan(Fault(action="lose", count=count, verb=verb, resource=resource))

    def expire_watches(
        self, *, count: int = 1, resource: str = "", as_status: bool = False
    ) -> Fault:
        """Answer the next `count` watches with 410: as an ERROR event, or as HTTP status."""
        if as_status:
            return self.fail(410, count=count, verb="watch", resource=resource, reason="Expired")
        return self.faults.plan(
            Fault(action="expire", count=count, verb="watch", resource=resource)
        )

    def clear_faults(self) -> None:
        """End every planned fault; requests that hang are served now."""
        self.faults.clear()

    def end_watches(self) -> None:
        """End all open watches in good order, as after their timeoutSeconds."""
        with self.objects.changed:
            self.watch_generation += 1
            self.objects.changed.notify_all()

    def accept_tokens(self, *tokens: str) -> None:
        """Accept exactly these bearer tokens from now on."""
        self.tokens = frozenset(tokens)

    def allow_only(self, client: str, rights: Iterable[tuple[str, str]]) -> None:
        """Let whose User-Agent begins so do only this: (verb, resource) as in a ClusterRole.

        Everything else is answered with 403. Watches that are open go on, as they really do.
        """
        self.roles[client] = frozenset(rights)

    def may(self, user_agent: str, verb: str, resource: str) -> bool:
        """Whether a client's role allows this; who has none may do everything."""
        roles = [rights for client, rights in self.roles.items() if user_agent.startswith(client)]
        return all((verb, resource) in rights for rights in roles)

    @contextmanager
    def held_events(self) -> Iterator[None]:
        """Let watchers see nothing of what is written inside this block until it ends."""
        self.events_held = True
        try:
            yield
        finally:
            with self.objects.changed:
                self.events_held = False
                self.objects.changed.notify_all()

    @contextmanager
    def stale_reads(self) -> Iterator[None]:
        """Answer every GET and LIST inside this block from the state at its start."""
        self.objects.freeze()
        try:
            yield
        finally:
            self.objects.thaw()

    def wait_until_visible(self, written_s: float, stopping: threading.Event) -> bool:
        """Hold back a change written at `written_s`; False when the server stops meanwhile."""
        with self.objects.changed:
            while not stopping.is_set():
                missing_s = written_s + self.event_delay_s - time.monotonic()
                if not self.events_held and missing_s <= 0:
                    return True
                self.objects.changed.wait(max(0.01, missing_s))
        return False

    # --- observation ----------------------------------------------------------------------------

    def requests(self, *, verb: str = "", resource: str = "", code: int = -1) -> list[ApiRequest]:
        """Give the recorded requests that match, oldest first; empty or negative: any."""
        return self.log.select(verb=verb, resource=resource, code=code)

    def open_watches(self, resource: str = "") -> int:
        """Count the watches that are open now."""
        return sum(resource in ("", watched) for watched in list(self._watches))

    @contextmanager
    def watching(self, resource: str) -> Iterator[None]:
        """Count a watch as open; used by the HTTP side."""
        self._watches.append(resource)
        try:
            yield
        finally:
            self._watches.remove(resource)

    # --- credentials ----------------------------------------------------------------------------

    def write_kubeconfig(self, path: Path, token: str = "", *, ca_file: Path | None = None) -> Path:
        """Write a kubeconfig that points here; JSON, which is YAML."""
        cluster: Object = {"server": self.url}
        if ca_file:
            cluster["certificate-authority"] = str(ca_file)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sim",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": "agent", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "agent"}}],
        }
        path.write_text(json.dumps(content, indent=1))
        return path

    def write_service_account(self, folder: Path, token: str, ca_pem: str) -> Path:
        """Write what a pod finds in /var/run/secrets/kubernetes.io/serviceaccount."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_text(ca_pem)
        (folder / "namespace").write_text("kube-system")
        return folder


def main() -> None:
    """Serve until stdin is closed; the first line of output is the base URL."""
    parser = argparse.ArgumentParser(prog="python -m agent.sim.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig to this file")
    parser.add_argument("--node", action="append", default=[], help="create a Node of this name")
    options = parser.parse_args()
    with ApiServer(port=options.port) as server:
        for name in options.node:
            server.objects.create("nodes", {"metadata": {"name": name}})
        if options.kubeconfig:
            server.write_kubeconfig(options.kubeconfig)
        print(server.url, flush=True)  # noqa: T201 - this is the interface
        with open(0, "rb", closefd=False) as stdin:
            select.select([stdin], [], [])


if __name__ == "__main__":
    main()
