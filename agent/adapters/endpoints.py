"""The HTTP endpoint: /healthz, /readyz, /metrics, for probes, Prometheus and people.

One thread serves all connections without blocking on any: a client that sends or reads slowly
costs a slot for `TALK_WITHIN_S`, never a thread, and the oldest slot goes first when all are taken.
Each connection carries one request. A port that cannot be had is tried again for ever, because a
missing endpoint is a smaller harm than a node without GPUs.
"""

import contextlib
import ipaddress
import selectors
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from agent import logs
from agent.errors import AgentError, ConfigError
from agent.supervisor import Lifeline

log = logs.get(__name__)

PATHS = ("/healthz", "/readyz", "/metrics")
TEXT = "text/plain; charset=utf-8"
MAX_REQUEST_BYTES = 8192
MAX_CONNECTIONS = 64
TALK_WITHIN_S = 5.0  # from accept to the last byte
LOOK_EVERY_S = 5.0
REBIND_EVERY_S = 5.0
MAX_PORT = 65_535


class EndpointUnavailable(AgentError):
    """The address cannot be listened at now. Worth trying again."""


def parse_address(text: str) -> tuple[str, int]:
    """Split `[host]:port`; an empty host means every address, an IPv6 host stands in brackets.

    Raises ConfigError.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        fits = _is_ip(host, version=6)
    else:
        fits = host in ("", "localhost") or _is_ip(host, version=4)
    if not (colon and fits and port.isascii() and port.isdigit() and len(port) <= 5):  # noqa: PLR2004
        port = "-1"
    if not 0 <= int(port) <= MAX_PORT:
        raise ConfigError(
            "it must be an address such as :9394, 127.0.0.1:9394 or [::1]:9394 (port 0 to "
            f"{MAX_PORT}, host an IP address, localhost or nothing); write it so"
        )
    return host, int(port)


def _is_ip(text: str, *, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that does not block. Raises EndpointUnavailable."""
    if host == "":
        families = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    elif host == "localhost":
        families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    else:
        families = [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    reason = ""
    for family, address in families:
        try:
            return _bound(family, address, port, dual=host == "")
        except OSError as error:
            reason = error.strerror or str(error)
    raise EndpointUnavailable(
        f"cannot listen at {host}:{port}: {reason}; if another program has the port (HAMi's "
        "vGPUmonitor uses 9394, too), stop it or set --metrics-bind-address"
    )


def _bound(family: int, address: str, port: int, *, dual: bool) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        server.bind((address, port))
        server.listen(MAX_CONNECTIONS)
        server.setblocking(False)
    except BaseException:
        server.close()
        raise
    return server


@dataclass(slots=True, eq=False)
class _Talk:
    """One connection: first its request grows, then its answer shrinks, then it is let go."""

    sock: socket.socket
    until_s: float
    request: bytes = b""
    answer: memoryview | None = None
    done: bool = False  # answered; reads to the end so that the client gets the answer, no reset


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, content type and body of a response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    allow: str = ""

    def encode(self, *, head_only: bool) -> bytes:
        """The bytes on the wire."""
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.allow:
            lines.append(f"Allow: {self.allow}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii", "replace")
        return head if head_only else head + self.body


class Endpoints:
    """Service: answers HTTP requests at one address."""

    name = "endpoints"

    def __init__(
        self,
        address: str,
        *,
        stuck: Callable[[], list[str]],
        missing: Callable[[], list[str]],
        metrics: Callable[[str], tuple[bytes, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve at `address`, see `parse_address`.

        `stuck` names the services that are stuck (healthy when none); `missing` says, one line
        each, what is missing for readiness; `metrics` renders for an Accept header: body and
        content type. None of them may block. Raises ConfigError for a bad address.
        """
        self._host, self._port = parse_address(address)
        self._stuck = stuck
        self._missing = missing
        self._metrics = metrics
        self._clock = clock
        self._talks: dict[socket.socket, _Talk] = {}
        self.bound_port = 0  # 0: not listening

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            try:
                server = listen(self._host, self._port)
            except EndpointUnavailable as error:
                log.failing("endpoint not bound", error=error)
                life.pause(REBIND_EVERY_S)
                continue
            log.recovered("endpoint not bound")
            with server:
                self.bound_port = server.getsockname()[1]
                log.info("endpoint bound", host=self._host or "*", port=self.bound_port)
                try:
                    self._serve(server, life)
                finally:
                    self.bound_port = 0

    def _serve(self, server: socket.socket, life: Lifeline) -> None:
        woken, waker = socket.socketpair()
        with selectors.DefaultSelector() as selector, woken, waker:
            waker.setblocking(False)
            life.on_stop(lambda: _wake(waker))
            selector.register(server, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            try:
                while not life.stopping:
                    life.pulse(LOOK_EVERY_S + TALK_WITHIN_S)
                    wait_s = 1.0 if self._talks else LOOK_EVERY_S
                    for key, _ in selector.select(wait_s):
                        if key.fileobj is server:
                            self._accept(server, selector)
                        elif talk := self._talks.get(key.fileobj):  # type: ignore[call-overload]
                            self._go_on(talk, selector)
                    self._drop_late(selector)
            finally:
                for talk in list(self._talks.values()):
                    self._end(talk, selector)

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        """Take every connection that waits, so that a flood does not overflow the backlog."""
        for _ in range(MAX_CONNECTIONS):
            try:
                sock, _ = server.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptors left: do not spin, the backlog waits
                log.failing("connection not accepted", error=error)
                time.sleep(0.05)
                return
            if len(self._talks) >= MAX_CONNECTIONS:
                self._end(min(self._talks.values(), key=lambda talk: talk.until_s), selector)
            sock.setblocking(False)
            self._talks[sock] = _Talk(sock, self._clock() + TALK_WITHIN_S)
            selector.register(sock, selectors.EVENT_READ)

    def _drop_late(self, selector: selectors.BaseSelector) -> None:
        now_s = self._clock()
        for talk in [talk for talk in self._talks.values() if talk.until_s < now_s]:
            self._end(talk, selector)

    def _end(self, talk: _Talk, selector: selectors.BaseSelector) -> None:
        self._talks.pop(talk.sock, None)
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(talk.sock)
        talk.sock.close()

    def _go_on(self, talk: _Talk, selector: selectors.BaseSelector) -> None:
        try:
            if talk.answer is None:
                self._read(talk, selector)
            elif talk.done:
                if not talk.sock.recv(MAX_REQUEST_BYTES):
                    self._end(talk, selector)
            else:
                self._write(talk, selector)
        except BlockingIOError:
            return
        except OSError:
            self._end(talk, selector)

    def _read(self, talk: _Talk, selector: selectors.BaseSelector) -> None:
        data = talk.sock.recv(MAX_REQUEST_BYTES)
        if not data:
            self._end(talk, selector)
            return
        talk.request += data
        head, end, _ = talk.request.partition(b"\r\n\r\n")
        if end:
            method, answer = self._answered(head)
        elif len(talk.request) > MAX_REQUEST_BYTES:
            method = ""
            answer = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request too large\n")
        else:
            return
        talk.answer = memoryview(answer.encode(head_only=method == "HEAD"))
        talk.request = b""
        selector.modify(talk.sock, selectors.EVENT_WRITE)
        self._write(talk, selector)

    def _write(self, talk: _Talk, selector: selectors.BaseSelector) -> None:
        if talk.answer is None:
            return
        sent = talk.sock.send(talk.answer)
        talk.answer = talk.answer[sent:]
        if not talk.answer:
            talk.done = True
            talk.sock.shutdown(socket.SHUT_WR)
            selector.modify(talk.sock, selectors.EVENT_READ)

    def _answered(self, head: bytes) -> tuple[str, Answer]:
        """The method and the answer to a complete request head; whatever is in it."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method path version
            return "", _plain(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request\n")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            allowed = _plain(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", allow="GET, HEAD"
            )
            return method, allowed
        accept = ",".join(
            line.split(":", 1)[1] for line in lines[1:] if line.lower().startswith("accept:")
        )
        try:
            return method, self._look(target.partition("?")[0], accept)
        except Exception as error:  # noqa: BLE001 - a broken collector must not end the probes
            log.failing("request failed", about=target[:100], error=repr(error))
            log.debug("request failed", trace=traceback.format_exc())
            return method, _plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}\n")

    def _look(self, path: str, accept: str) -> Answer:
        if path == "/healthz":
            return _verdict("stuck: ", self._stuck())
        if path == "/readyz":
            return _verdict("", self._missing())
        if path == "/metrics":
            body, content_type = self._metrics(accept)
            return Answer(HTTPStatus.OK, body, content_type)
        return _plain(HTTPStatus.NOT_FOUND, "there are only:\n" + "\n".join(PATHS) + "\n")


def _plain(status: HTTPStatus, text: str, allow: str = "") -> Answer:
    return Answer(status, text.encode(), allow=allow)


def _verdict(prefix: str, objections: list[str]) -> Answer:
    if not objections:
        return _plain(HTTPStatus.OK, "ok\n")
    text = "".join(f"{prefix}{objection}\n" for objection in objections)
    return _plain(HTTPStatus.SERVICE_UNAVAILABLE, text)


def _wake(waker: socket.socket) -> None:
    with contextlib.suppress(OSError):
        waker.send(b"x")
