"""An API server that misbehaves on demand, in front of any that does not.

The agent is pointed at this one instead; whatever is not to go wrong is passed on, with the
kubeconfig's credentials, and so are the answers. Watches are passed on line by line.
"""

import http.client
import http.server
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from kube_api import KubeApi, kubeconfig_text

from agent.sim.api_faults import Fault, Faults

EXPIRED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired"}
PASSED_ON = ("Accept", "Content-Type", "User-Agent")


class FaultyApi:
    """Serves plain HTTP on loopback while the context is open.

    Args:
        upstream: the kubeconfig of the API server behind it.
        kubeconfig: where to write the one that leads here.
    """

    def __init__(self, upstream: Path, kubeconfig: Path) -> None:
        self._upstream = KubeApi.from_kubeconfig(upstream)
        self.kubeconfig = kubeconfig
        self.faults = Faults()
        self._watches: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._events_pass = threading.Event()
        self._events_pass.set()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="faulty-api", daemon=True
        )

    def __enter__(self) -> Self:
        port = self._server.server_address[1]
        self.kubeconfig.write_text(kubeconfig_text(f"http://127.0.0.1:{port}"))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events_pass.set()
        self._server.shutdown()
        self._thread.join()
        self.end_watches()
        self._server.server_close()

    def expire_watches(self, *, count: int, as_status: bool) -> Fault:
        """Answer the next watches with 410: as the HTTP status, or as an ERROR event."""
        action = "answer" if as_status else "expire"
        return self.faults.plan(Fault(action=action, verb="watch", code=410, count=count))

    def fail(
        self, code: int, *, count: int, verb: str, resource: str, retry_after_s: float
    ) -> Fault:
        """Refuse the next requests of this kind, before anything is done."""
        return self.faults.plan(
            Fault(
                action="answer",
                code=code,
                count=count,
                verb=verb,
                resource=resource,
                retry_after_s=retry_after_s,
            )
        )

    def end_watches(self) -> None:
        """End all open watches in good order, as after their timeoutSeconds."""
        with self._lock:
            for connection in self._watches:
                if connection.sock is not None:
                    with suppress(OSError):
                        # Of the TCP connection alone: its reader is in the middle of its TLS.
                        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    @contextmanager
    def held_events(self) -> Iterator[None]:
        """Let watchers see nothing of what is written inside this block until it ends."""
        self._events_pass.clear()
        try:
            yield
        finally:
            self._events_pass.set()

    def connection(self) -> http.client.HTTPConnection:
        """A new connection to the API server behind."""
        parts = urlsplit(self._upstream.url)
        host, port = parts.hostname or "", parts.port
        if self._upstream.tls is None:
            return http.client.HTTPConnection(host, port, timeout=60)
        return http.client.HTTPSConnection(host, port, timeout=60, context=self._upstream.tls)

    def headers(self, received: Mapping[str, str]) -> dict[str, str]:
        """What to send with a request that came with these."""
        kept = {name: received[name] for name in PASSED_ON if received.get(name)}
        return kept | self._upstream.headers

    def lines(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse
    ) -> Iterator[bytes]:
        """The events of a watch, held while they are to be held."""
        with self._lock:
            self._watches.add(connection)
        try:
            # A watch that ends in the middle of a line, or of TLS, has ended all the same.
            with suppress(OSError, http.client.HTTPException, ValueError):
                while line := answer.readline():
                    self._events_pass.wait()
                    yield line
        finally:
            with self._lock:
                self._watches.discard(connection)


def _resource(path: str) -> str:
    """The resource of a path such as /api/v1/namespaces/default/pods/name."""
    parts = path.removeprefix("/api/v1/").split("/")
    return parts[2] if parts[0] == "namespaces" and len(parts) > 2 else parts[0]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # the agent keeps its connections open

    def __init__(self, api: FaultyApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the agent has closed its connection, or its API server has."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        watch = parse_qs(query).get("watch", [""])[-1] in ("true", "True", "1")
        verb = "watch" if watch else self.command.lower()
        fault = self.server.api.faults.strike(verb, _resource(path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        if fault is None:
            self._pass_on(body, watch=watch)
        elif fault.action == "expire":
            event = {"type": "ERROR", "object": EXPIRED | {"code": 410}}
            self._stream(200, iter([json.dumps(event).encode() + b"\n"]))
        else:
            self._refuse(fault)

    do_PATCH = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self, body: bytes | None, *, watch: bool) -> None:
        api = self.server.api
        connection = api.connection()
        try:
            connection.request(self.command, self.path, body, api.headers(self.headers))
            answer = connection.getresponse()
            if watch and answer.status < 300:
                self._stream(answer.status, api.lines(connection, answer))
            else:
                self._answer(answer.status, answer.read())
        finally:
            connection.close()

    def _refuse(self, fault: Fault) -> None:
        status = EXPIRED | {"code": fault.code, "reason": fault.reason or "AsAskedFor"}
        more = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
        self._answer(fault.code, json.dumps(status).encode(), more)

    def _answer(self, code: int, content: bytes, more: Mapping[str, str] | None = None) -> None:
        self._begin(code, {"Content-Length": str(len(content)), **(more or {})})
        self.wfile.write(content)

    def _stream(self, code: int, lines: Iterator[bytes]) -> None:
        self._begin(code, {"Transfer-Encoding": "chunked"})
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
