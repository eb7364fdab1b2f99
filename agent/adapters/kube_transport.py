"""HTTP to the API server: the official client's transport, with our time limits around it.

Every request has a connect and a read timeout. Requests with a deadline are repeated until then;
the others are their caller's to repeat, and are cut off when the agent stops, as watches are.
Refused credentials are loaded anew. Thread-safe.

Not bounded by any of this: the look-up of a host name; the program of a kubeconfig's exec plugin,
which has time of its own (`exec_plugin`), and is waited for by requests with less of it; in a
cluster there is neither. Nor the head of an answer that comes byte by byte.
"""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from weakref import WeakSet

from agent import logs
from agent.adapters.kube_answers import (
    MAX_ANSWER_BYTES,
    SUCCESS,
    AnswerTooLong,
    ConflictAfterRetry,
    ConnectionBroken,
    OutcomeUnknown,
    Request,
    Unauthorized,
    Untrusted,
    decoded,
    error_of,
    failure,
)
from agent.adapters.kube_config import ClientPackage, authorization, load_configuration, stamp_of
from agent.adapters.kube_sockets import capture_sockets, read_within, shut_down, socket_options
from agent.boundaries import passed
from agent.errors import ClusterConflict, ClusterUnavailable, ConfigError
from agent.ports import Stop
from agent.version import VERSION

log = logs.get(__name__)

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 10.0  # of a request without a deadline
HEADERS_TIMEOUT_S = 30.0  # until a watch has started
SILENCE_S = 30.0  # by which a line of a watch, or its end, may be late
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 0.5  # within a deadline
RELOAD_EVERY_S = 1.0  # at most, however often the credentials are refused
CHUNK_BYTES = 65_536
MAX_LINE_BYTES = MAX_ANSWER_BYTES

Count = Callable[[str, str, int], None]
Loader = Callable[[], tuple[ClientPackage, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """How long an answer is waited for, however many requests that takes."""

    ends_s: float  # then it is over, however far it came
    head_s: float  # at most until its status line has come
    patient: bool  # cut off when the agent stops

    def timeout(self, left_s: float) -> float | tuple[float, float]:
        """For the next request, as the package takes it: in all, or (connect, read)."""
        if not self.patient:
            return left_s
        return min(CONNECT_TIMEOUT_S, left_s), min(self.head_s, left_s)


@dataclass(frozen=True, slots=True)
class _Session:
    """One set of credentials and the connections made with it."""

    configuration: Any
    urgent: Any  # for requests with a deadline: never cut off
    patient: Any  # for loops and watches: cut off when the agent stops
    stamp: tuple[int, ...] | None  # of the kubeconfig that it was made of


class KubeTransport:
    """Requests and watches on one API server.

    Args:
        kubeconfig: None: the service account of the pod we are in.
        count: called with verb, resource and HTTP status (0: no answer) for each request.
        load: another loader of credentials, for tests with other paths.
    """

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        count: Count = lambda _verb, _resource, _code: None,
        load: Loader | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._load = load or (lambda: load_configuration(kubeconfig))
        self._count = count
        self._clock = clock
        self._jitter = jitter
        self._pause = pause
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._loaded_at_s = 0.0
        self._unproven = False  # they were loaded anew, and have not been taken yet
        self._sockets: WeakSet[socket.socket] = WeakSet()  # of the patient connections
        self._stops: list[Stop] = []
        self._closing = False

    # --- credentials ----------------------------------------------------------------------------

    def connect(self) -> _Session:
        """Load the credentials, unless that was done. Sends nothing. Raises ConfigError."""
        with self._lock:
            if self._session is None:
                self._session = self._load_session()
            return self._session

    def _load_session(self) -> _Session:
        self._loaded_at_s = self._clock()
        stamp = stamp_of(self._kubeconfig)  # before it is read: what is written then shows later
        package, configuration = self._load()
        configuration.socket_options = socket_options()
        configuration.connection_pool_maxsize = 4
        urgent = package.rest.RESTClientObject(configuration)
        capture_sockets(urgent.pool_manager)
        patient = package.rest.RESTClientObject(configuration)
        capture_sockets(patient.pool_manager, self._captured)
        return _Session(configuration, urgent, patient, stamp)

    def _reload(self, refused: _Session) -> bool:
        """Load the credentials anew, unless somebody just did; tell whether they may differ."""
        with self._lock:
            if self._session is not refused:
                return True
            if self._clock() - self._loaded_at_s < RELOAD_EVERY_S:
                return False
            try:
                self._session = self._load_session()
            except ConfigError as error:
                log.failing("credentials not reloaded", error=error)
                return False
            self._unproven = True
        log.recovered("credentials not reloaded")
        return True

    def _say_reloaded(self) -> None:
        """Once they have served: those that are refused as well are loaded again and again."""
        with self._lock:
            say, self._unproven = self._unproven, False
        if say:
            log.info("credentials reloaded")

    def _headers(self, session: _Session, request: Request) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": f"vgpu-agent/{VERSION}"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            with self._lock:  # the package re-reads an expired token here
                authorized = authorization(session.configuration)
        except Exception as error:  # a vanished file, a failed plugin: each has its own exception
            raise Unauthorized(f"the agent's credentials cannot be read: {error}") from error
        if not authorized.isprintable() or not authorized.isascii():
            raise Unauthorized("the agent's token holds characters that no HTTP header may have")
        return headers | ({"Authorization": authorized} if authorized else {})

    # --- requests -------------------------------------------------------------------------------

    def send(self, request: Request, *, deadline_s: float | None = None) -> dict[str, Any]:
        """Send a request and give the object it is answered with.

        Without a deadline (a moment of the monotonic clock) it is tried once. With one, whatever
        may pass is tried again until then: 429, 5xx, no connection, no answer.

        Raises ClusterError: ConflictAfterRetry instead of ClusterConflict when an earlier try may
        have been carried out. ConfigError when there are no credentials at all.
        """
        tries, unknown = 0, False
        while True:
            tries += 1
            try:
                return self._send_once(request, deadline_s)
            except ClusterConflict as error:
                if not unknown:
                    raise
                raise ConflictAfterRetry(str(error), code=error.code) from error
            except ClusterUnavailable as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                delay_s = self._retry_delay_s(request, error, tries, deadline_s)
                if delay_s is None:
                    raise
                last = error
            self._pause(delay_s)
            if deadline_s is not None and self._clock() >= deadline_s:
                raise last  # woken late on a busy node; "no time" would say less than this does

    def _retry_delay_s(
        self, request: Request, error: ClusterUnavailable, tries: int, deadline_s: float | None
    ) -> float | None:
        """How long to wait before the next try; None: there is none."""
        if isinstance(error, OutcomeUnknown) and not request.repeatable:
            return None
        if deadline_s is None:  # a kept-alive connection may have been closed under us: once more
            again = isinstance(error, ConnectionBroken) and tries == 1 and not self._closing
            return 0.0 if again else None
        ceiling_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** (tries - 1))
        delay_s = error.retry_after_s or ceiling_s * (0.5 + 0.5 * self._jitter())
        return delay_s if self._clock() + delay_s < deadline_s else None

    def _send_once(self, request: Request, deadline_s: float | None) -> dict[str, Any]:
        longest_s = CONNECT_TIMEOUT_S + REQUEST_TIMEOUT_S
        wait = _Wait(
            ends_s=self._clock() + longest_s if deadline_s is None else deadline_s,
            head_s=REQUEST_TIMEOUT_S,
            patient=deadline_s is None,
        )
        if request.method != "GET":
            passed("api-write-begun")
        answer = self._ask(request, wait)
        if request.method != "GET":
            passed("api-write-answered")
        return decoded(self._body(answer, request, wait.ends_s), request)

    def _ask(self, request: Request, wait: _Wait) -> Any:
        """Send once and give the answer to be read; with refused credentials, load and send again.

        So it is when nothing answers and the kubeconfig is not the one that was read: the API
        server may have another address. What may have been carried out is not sent again here.
        Raises ClusterError for an answer other than 2xx.
        """
        session = self.connect()
        try:
            return self._successful(session, request, wait)
        except (Unauthorized, ClusterUnavailable) as error:
            refused = isinstance(error, Unauthorized | Untrusted)
            if not refused and stamp_of(self._kubeconfig) == session.stamp:
                raise
            loaded = self._reload(session)
            unknown = isinstance(error, OutcomeUnknown)  # `send` repeats it, and remembers that
            if not loaded or unknown or self._clock() >= wait.ends_s:
                raise
        answer = self._successful(self.connect(), request, wait)
        self._say_reloaded()
        return answer

    def _successful(self, session: _Session, request: Request, wait: _Wait) -> Any:
        answer = self._open(session, request, wait)
        if answer.status in SUCCESS:
            return answer
        ends_s = min(wait.ends_s, self._clock() + REQUEST_TIMEOUT_S)
        body = self._body(answer, request, ends_s)
        raise error_of(request, answer.status, answer.headers, body)

    def _open(self, session: _Session, request: Request, wait: _Wait) -> Any:
        """Send the request and wait for the status line; counts it."""
        client = session.patient if wait.patient else session.urgent
        headers = self._headers(session, request)
        url = session.configuration.host + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        left_s = wait.ends_s - self._clock()
        if left_s <= 0:
            raise ClusterUnavailable(
                f"cannot {request.verb} {request.about}: the API server left no time for it"
            )
        code = 0
        try:
            answer = client.request(
                request.method,
                url,
                headers=headers,
                body=request.body,
                _request_timeout=wait.timeout(left_s),
            ).response
            code = answer.status
        except Exception as error:
            raise failure(request, error) from error
        finally:
            self._count(request.verb, request.resource, code)
        return answer

    def _body(self, answer: Any, request: Request, ends_s: float) -> bytes:
        """Read an answer to its end, in bounded time and memory; the connection can be reused."""
        parts: list[bytes] = []
        size = 0
        try:
            while size <= MAX_ANSWER_BYTES and (left_s := ends_s - self._clock()) > 0:
                read_within(answer, left_s)
                part = answer.read1(CHUNK_BYTES)
                if not part:
                    answer.release_conn()
                    return b"".join(parts)
                parts.append(part)
                size += len(part)
        except Exception as error:
            answer.close()
            raise failure(request, error) from error
        answer.close()
        if size > MAX_ANSWER_BYTES:
            raise AnswerTooLong(
                f"the answer to {request.verb} {request.about} is longer than {MAX_ANSWER_BYTES} "
                "bytes"
            )
        raise OutcomeUnknown(
            f"the answer to {request.verb} {request.about} is too slow: {size} bytes so far"
        )

    # --- watches --------------------------------------------------------------------------------

    def lines(
        self,
        request: Request,
        *,
        quiet_s: Callable[[], float],
        stop: Stop,
        on_open: Callable[[], None] = lambda: None,
    ) -> Iterator[bytes]:
        """Send a request whose answer is a stream of lines; give them until it ends or `stop`.

        `on_open` is called when the answer has begun, before its first line came. `quiet_s` says
        after each line how long the next one may be in coming.
        Ends quietly when the server ended the stream in good order, or when the agent stops.
        Raises ClusterError, within `quiet_s` + SILENCE_S of the last line.
        """
        self._cut_off_at(stop)
        longest_s = CONNECT_TIMEOUT_S + HEADERS_TIMEOUT_S
        stop.pulse(longest_s)
        wait = _Wait(ends_s=self._clock() + longest_s, head_s=HEADERS_TIMEOUT_S, patient=True)
        if _stopped(stop):
            return
        try:
            answer = self._ask(request, wait)
        except ClusterUnavailable:
            if _stopped(stop):
                return
            raise
        on_open()
        try:
            yield from self._lines(answer, request, quiet_s, stop)
        finally:
            answer.close()  # one that ended in good order was given back before, for the next

    def _lines(
        self, answer: Any, request: Request, quiet_s: Callable[[], float], stop: Stop
    ) -> Iterator[bytes]:
        rest = bytearray()
        while True:
            silence_s = quiet_s() + SILENCE_S
            read_within(answer, silence_s)
            stop.pulse(silence_s)
            try:
                part = answer.read1(CHUNK_BYTES)
            except Exception as error:
                if _stopped(stop):
                    return
                raise failure(request, error) from error
            if not part:
                return
            rest += part
            *lines, rest = rest.split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise ClusterUnavailable(
                    f"one event of {request.verb} {request.about} is longer than {MAX_LINE_BYTES} "
                    "bytes; is there something else than an API server at this address?"
                )
            yield from filter(None, map(bytes, lines))

    # --- the agent stops ------------------------------------------------------------------------

    def _cut_off_at(self, stop: Stop) -> None:
        with self._lock:
            if any(known is stop for known in self._stops):
                return
            self._stops.append(stop)
        stop.on_stop(self.cut_off)

    def cut_off(self) -> None:
        """End all watches and all requests without a deadline, now and from now on.

        The sockets are shut down below TLS, which wakes the threads that read from them.
        """
        self._closing = True
        for connected in list(self._sockets):
            shut_down(connected)

    def _captured(self, connected: socket.socket) -> None:
        self._sockets.add(connected)
        if self._closing:
            shut_down(connected)


def _stopped(stop: Stop) -> bool:
    return stop.stopping  # asked anew: it changes while we read
