"""The service that answers HTTP: probes, Prometheus, people, and the commands on this node.

One thread serves all connections of all listeners without blocking on any: a client that sends or
reads slowly costs a slot for `TALK_WITHIN_S`, never a thread, and of each listener the oldest slot
goes first when all are taken. Each connection carries one request. What a change asks for is done
by others: its connection waits, and they wake the thread when there is an answer.

A listener that cannot be had is tried again for ever and keeps none of the others waiting, because
a missing endpoint is a smaller harm than a node without GPUs.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from agent import logs
from agent.adapters.http_messages import (
    GOES_ON,
    MAX_HEAD_BYTES,
    Answer,
    Head,
    plain,
    read_head,
)
from agent.adapters.listeners import EndpointUnavailable, Listener
from agent.adapters.routes import Later, Routes, Wake, answer, given, given_up, objection
from agent.supervisor import Lifeline

log = logs.get(__name__)

MAX_CONNECTIONS = 64  # of each listener
MAX_ACCEPTED = 16  # in a row: who has asked is read before as many have come as put it out
READ_BYTES = 8192
TALK_WITHIN_S = 5.0  # from accept to the last byte, but for the time in which an answer is made
LOOK_EVERY_S = 5.0
REBIND_EVERY_S = 5.0


@dataclass(slots=True, eq=False)
class Door:
    """A listener with what is answered there."""

    listener: Listener
    routes: Routes
    server: socket.socket | None = None  # None: not listening
    try_at_s: float = 0.0


@dataclass(slots=True, eq=False)
class Talk:
    """One connection: its request grows, its answer is waited for and shrinks, it is let go."""

    sock: socket.socket
    door: Door
    until_s: float
    refusal: str
    peer: str = ""
    received: bytearray = field(default_factory=bytearray)
    head: Head | None = None  # read, and the body is still to come
    body_bytes: int = 0
    later: Later | None = None  # the answer is still made,
    answer_by_s: float = 0.0  # until then
    answer: memoryview | None = None
    done: bool = False  # answered; reads to the end so that the client gets the answer, no reset

    def read(self, data: bytes, wake: Wake) -> bytes | None:
        """Take what has arrived; give the bytes of the answer when there is one to give.

        `wake` is called when an answer that has to be waited for is there.
        """
        self.received += data
        if self.head is None:
            # A head of the greatest size is followed by the four bytes that end it.
            end = self.received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
            if end < 0:
                if len(self.received) >= MAX_HEAD_BYTES + 4:
                    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                    return plain(status, "request too large\n").encode(head_only=False)
                return None
            head = read_head(bytes(self.received[:end]))
            del self.received[: end + 4]
            refused = head if isinstance(head, Answer) else self._refused(head)
            if refused is not None:
                return refused.encode(head_only=isinstance(head, Head) and head.method == "HEAD")
            self.head = head if isinstance(head, Head) else None
        if self.head is None or len(self.received) < self.body_bytes:
            return None
        body = bytes(self.received[: self.body_bytes])
        found = answer(self.door.routes, self.head, body, self.peer, wake)
        if isinstance(found, Answer):
            return found.encode(head_only=self.head.method == "HEAD")
        self.later = found
        return self.waited_for(over=False)

    def waited_for(self, *, over: bool) -> bytes | None:
        """The bytes of an answer that was still made; `over`: it is waited for no longer."""
        if self.later is None:
            return None
        found = given(self.later) or (given_up(self.later) if over else None)
        if found is None:
            return None
        self.later = None
        return found.encode(head_only=False)

    def _refused(self, head: Head) -> Answer | None:
        if self.refusal:
            return plain(HTTPStatus.FORBIDDEN, self.refusal + "\n")
        refused = objection(self.door.routes, head)
        if refused is None and head.method == "POST":
            length = head.body_bytes()
            if isinstance(length, Answer):
                return length
            self.body_bytes = length
        return refused


class Endpoints:
    """Service: answers HTTP requests at all of its doors."""

    name = "endpoints"

    def __init__(
        self, doors: Sequence[Door], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._doors = doors
        self._clock = clock
        self._talks: dict[socket.socket, Talk] = {}
        self._selector: selectors.BaseSelector
        self._wake: Wake = lambda: None

    def run(self, life: Lifeline) -> None:
        woken, waker = socket.socketpair()
        with selectors.DefaultSelector() as selector, woken, waker:
            self._selector = selector
            woken.setblocking(False)
            waker.setblocking(False)
            self._wake = lambda: _wake(waker)
            life.on_stop(self._wake)
            selector.register(woken, selectors.EVENT_READ)
            try:
                while not life.stopping:
                    life.pulse(LOOK_EVERY_S + TALK_WITHIN_S)
                    self._open_doors()
                    for key, _ in self._selector.select(self._wait_s()):
                        if isinstance(key.data, Door):
                            self._accept(key.data)
                        elif isinstance(key.data, Talk) and key.data.sock in self._talks:
                            self._go_on(key.data)
                        elif key.fileobj is woken:
                            _drain(woken)
                    self._answer_waiting()
                    self._drop_late()
            finally:
                self._answer_waiting(over=True)
                for talk in list(self._talks.values()):
                    self._end(talk)
                for door in self._doors:
                    self._close(door)

    def _wait_s(self) -> float:
        if self._talks:
            waiting = [talk.answer_by_s for talk in self._talks.values() if talk.later]
            return max(0.0, min([1.0, *(at_s - self._clock() for at_s in waiting)]))
        closed = [door.try_at_s for door in self._doors if door.server is None]
        return max(0.0, min([LOOK_EVERY_S, *(at_s - self._clock() for at_s in closed)]))

    # --- doors ---------------------------------------------------------------------------------

    def _open_doors(self) -> None:
        """Open what is closed, and close first what nobody finds any more."""
        now_s = self._clock()
        for door in self._doors:
            if door.server is not None and door.listener.lost():
                log.warning("endpoint lost", **door.listener.where)
                self._close(door)
                door.try_at_s = now_s
            if door.server is None and door.try_at_s <= now_s:
                self._open(door)

    def _open(self, door: Door) -> None:
        about = " ".join(str(part) for part in door.listener.where.values())
        try:
            server = door.listener.open()
        except EndpointUnavailable as error:
            log.failing("endpoint not bound", about=about, error=error)
            door.try_at_s = self._clock() + REBIND_EVERY_S
            return
        log.recovered("endpoint not bound", about=about)
        log.info("endpoint bound", **door.listener.where)
        door.server = server
        self._selector.register(server, selectors.EVENT_READ, door)

    def _close(self, door: Door) -> None:
        if door.server is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(door.server)
        door.server.close()
        door.server = None
        door.listener.closed()

    def _accept(self, door: Door) -> None:
        """Take every connection that waits, so that a flood does not overflow the backlog."""
        for _ in range(MAX_ACCEPTED):
            if door.server is None:
                return
            try:
                sock, _ = door.server.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptors left: do not spin, the backlog waits
                log.failing("connection not accepted", error=error)
                time.sleep(0.05)
                return
            here = [talk for talk in self._talks.values() if talk.door is door]
            if len(here) >= MAX_CONNECTIONS:
                self._end(min(here, key=lambda talk: talk.until_s))
            sock.setblocking(False)
            talk = Talk(
                sock,
                door,
                self._clock() + TALK_WITHIN_S,
                door.listener.refusal(sock),
                door.listener.peer(sock),
            )
            self._talks[sock] = talk
            self._selector.register(sock, selectors.EVENT_READ, talk)

    # --- talks ---------------------------------------------------------------------------------

    def _drop_late(self) -> None:
        now_s = self._clock()
        for talk in [talk for talk in self._talks.values() if talk.until_s < now_s]:
            self._end(talk)

    def _end(self, talk: Talk) -> None:
        self._talks.pop(talk.sock, None)
        talk.waited_for(over=True)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(talk.sock)
        talk.sock.close()

    def _go_on(self, talk: Talk) -> None:
        with self._ending(talk):
            if talk.later is not None:
                if not talk.sock.recv(READ_BYTES):  # it says no more, and may still listen
                    self._selector.unregister(talk.sock)
            elif talk.answer is None:
                self._read(talk)
            elif talk.done:
                if not talk.sock.recv(READ_BYTES):
                    self._end(talk)
            else:
                self._write(talk)

    @contextlib.contextmanager
    def _ending(self, talk: Talk) -> Iterator[None]:
        """Let a talk go whose client is gone."""
        try:
            yield
        except BlockingIOError:
            return
        except OSError:
            self._end(talk)

    def _read(self, talk: Talk) -> None:
        data = talk.sock.recv(READ_BYTES)
        if not data:
            self._end(talk)
            return
        had_head = talk.head is not None
        found = talk.read(data, self._wake)
        if found is not None:
            self._answer(talk, found)
        elif talk.later is not None:
            talk.received.clear()
            talk.answer_by_s = self._clock() + talk.later.within_s
            talk.until_s = talk.answer_by_s + TALK_WITHIN_S
        elif talk.head is not None and not had_head and talk.head.asks_to_go_on:
            talk.sock.send(GOES_ON)  # the first bytes of a connection: they always fit

    def _answer_waiting(self, *, over: bool = False) -> None:
        """Answer those whose answer has been made, or who have waited for long enough."""
        now_s = self._clock()
        for talk in [talk for talk in self._talks.values() if talk.later is not None]:
            found = talk.waited_for(over=over or talk.answer_by_s <= now_s)
            if found is not None:
                with self._ending(talk):
                    self._answer(talk, found)

    def _answer(self, talk: Talk, found: bytes) -> None:
        talk.answer = memoryview(found)
        talk.received.clear()
        self._watch(talk, selectors.EVENT_WRITE)
        self._write(talk)

    def _write(self, talk: Talk) -> None:
        if talk.answer is None:
            return
        sent = talk.sock.send(talk.answer)
        talk.answer = talk.answer[sent:]
        if not talk.answer:
            talk.done = True
            talk.sock.shutdown(socket.SHUT_WR)
            self._watch(talk, selectors.EVENT_READ)

    def _watch(self, talk: Talk, events: int) -> None:
        if talk.sock in self._selector.get_map():
            self._selector.modify(talk.sock, events, talk)
        else:
            self._selector.register(talk.sock, events, talk)


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while woken.recv(READ_BYTES):
            pass


def _wake(waker: socket.socket) -> None:
    with contextlib.suppress(OSError):
        waker.send(b"x")
