"""The stand-in API server's HTTP face for many clients in virtual time: one thread, no waiting.

Requests are handled by the stand-in itself (routes, selectors, patches, faults, answers); what is
different is that watches are served by the clock of a `World`, that objects are found by node
instead of by looking at all, and that every byte is counted.
"""

import io
import selectors
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from agent.sim.api_faults import Fault, Faults
from agent.sim.api_http import ConnectionDropped, Handler, Target
from agent.sim.api_store import KINDS, ApiError, Change, Object
from agent.sim.api_watch import HEAD, TRUE, Watch, selector
from agent.sim.apiserver import ApiServer
from tests.scale.counts import Counts
from tests.scale.node_store import SELECTED_BY, NodeStore, owner, selected
from tests.scale.virtual import Stream, World

BOOKMARK_S = 60.0
TIMEOUT_S = 1800.0
END = b"0\r\n\r\n"


class Busy(Faults):
    """Planned faults, and a server that takes so many requests a second and no more."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.per_second: float | None = None  # None: any number
        self.retry_after_s = 1.0
        self._second, self._taken = -1, 0

    def strike(self, verb: str, resource: str) -> Fault | None:
        planned = super().strike(verb, resource)
        if planned is not None or self.per_second is None:
            return planned
        second = int(self._world.now_s)
        if second != self._second:
            self._second, self._taken = second, 0
        if self._taken < self.per_second:
            self._taken += 1
            return None
        return Fault(
            action="answer", code=429, reason="TooManyRequests", retry_after_s=self.retry_after_s
        )


class TimedWatch(Watch, Stream):
    """A watch whose times are those of a world."""

    def __init__(self, front: "Front", connection: "Connection", target: Target) -> None:
        self._front, self.connection = front, connection
        self.resource, self.query = target.resource, target.query
        self.node = selected(target.resource, target.query)
        self._pending = bytearray()
        super().__init__(
            front.api,
            resource=target.resource,
            namespace=target.namespace,
            query=target.query,
            stopping=front.api.never,
            send=self._pending.extend,
            client_left=lambda: False,
        )
        self._lasts_s = float(target.query.get("timeoutSeconds") or TIMEOUT_S)
        self._bookmarks = target.query.get("allowWatchBookmarks") in TRUE

    def open(self, *, expired: bool) -> bytes:
        """The head and what is to be told at once; later lines come by `tell`."""
        self._send(HEAD)
        store, world = self._api.objects, self._front.world
        try:
            if self._version == 0:
                self._send_present()
            else:
                for change in store.changes_since(-1 if expired else self._version):
                    self._show(change)
        except ApiError as error:
            self._emit({"type": "ERROR", "object": error.status()})
            self._close()
        else:
            self._front.follow(self)
            world.at(world.now_s + self._lasts_s, self.end)
            if self._bookmarks:
                world.at(world.now_s + BOOKMARK_S, self._bookmark)
        return self._taken()

    def _send_present(self) -> None:
        store = self._front.store
        self._version = store.version
        found = (
            store.list(self.resource)[0]
            if self.node is None
            else store.of(self.resource, self.node)
        )
        for item in filter(self._wanted, found):
            self._emit({"type": "ADDED", "object": item})

    def tell(self, change: Change) -> None:
        self._show(change)
        self._flush()

    def _bookmark(self) -> None:
        if self.ended:
            return
        self._version = self._api.objects.version
        self._emit_bookmark()
        self._flush()
        self._front.world.at(self._front.world.now_s + BOOKMARK_S, self._bookmark)

    def end(self) -> None:
        """In good order."""
        if self.ended:
            return
        if self._bookmarks:
            self._version = self._api.objects.version
            self._emit_bookmark()
        self._close()
        self._flush()

    def cut(self) -> None:
        """The connection is gone."""
        self._front.unfollow(self)
        self.ended = True
        if self.reader is not None:
            self.reader.wake()

    def _close(self) -> None:
        self._send(END)
        self._front.unfollow(self)
        self.ended = True

    def _emit(self, event: Object) -> None:
        super()._emit(event)
        self.sent += 1
        self._front.counts.events[f"{self.resource} {event['type']}"] += 1

    def _taken(self) -> bytes:
        taken = bytes(self._pending)
        self._pending.clear()
        return taken

    def _flush(self) -> None:
        self._front.send(self.connection, self._taken())
        if self.reader is not None:
            self.reader.wake()


class Api(ApiServer):
    """The stand-in, with another store and never listening itself."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.objects = NodeStore()
        self.faults = Busy(world)
        self.never = threading.Event()


class Connection:
    """One client's connection and what came of its next request."""

    __slots__ = ("received", "socket", "watch")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.received = bytearray()
        self.watch: TimedWatch | None = None


class _Once(Handler):
    """One request from bytes to bytes."""

    front: "Front"

    def __init__(self, raw: bytes, front: "Front", connection: Connection) -> None:
        self.rfile, self.wfile = io.BytesIO(raw), io.BytesIO()  # type: ignore[assignment]
        self.client_address = ("127.0.0.1", 0)
        self.front, self._from = front, connection
        self.code: tuple[str, str, int] | None = None
        self.handle_one_request()

    def _list(self, target: Target) -> Object:
        counts, node = self.front.counts, selected(target.resource, target.query)
        cached = self._stale_will_do(target)
        counts.cached_lists += cached
        if node is None:
            counts.unselected += 1
            return super()._list(target)
        wanted, kind = selector(target.query, target.resource), KINDS[target.resource][0]
        return {
            "kind": f"{kind}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(self.front.store.version)},
            "items": [i for i in self.front.store.of(target.resource, node) if wanted(i)],
        }

    def _watch(self, target: Target, *, expired: bool) -> None:
        watch = TimedWatch(self.front, self._from, target)
        self._record(target, 200, b"", 0)
        self.front.counts.unselected += watch.node is None
        self._from.watch = watch
        self.wfile.write(watch.open(expired=expired))

    def _record(self, target: Target, code: int, body: bytes, sent_bytes: int) -> None:
        self.code = (target.verb, target.full_resource, code)
        if self.front.keeps:
            super()._record(target, code, body, sent_bytes)


class Front:
    """Listens on loopback. What it does without being asked is done by the world's main thread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = Api(world)
        self.store: NodeStore = self.api.objects  # type: ignore[assignment]
        self.store.told = self._told
        self.counts = Counts()
        self.keeps = False  # whether `api.requests()` remembers
        self._handler = type("BoundOnce", (_Once,), {"api": self.api, "stopping": self.api.never})
        self._watches: dict[tuple[str, str | None], set[TimedWatch]] = defaultdict(set)
        self.latest: dict[tuple[str, str], TimedWatch] = {}  # by resource and field selector
        self._selector = selectors.DefaultSelector()
        self._wake, self._waked = socket.socketpair()
        self._selector.register(self._waked, selectors.EVENT_READ, None)
        self._orders: list[tuple[Callable[[], None], threading.Event]] = []
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="scale-front", daemon=True)
        self._thread.start()
        self.listen()

    # --- life -----------------------------------------------------------------------------------

    def listen(self) -> None:
        """Accept connections, on the same port as before."""

        def begin() -> None:
            listener = socket.create_server(("127.0.0.1", self.api.port), backlog=4096)
            self.api.port = listener.getsockname()[1]
            listener.setblocking(False)
            self._listener = listener
            self._selector.register(listener, selectors.EVENT_READ, "listener")

        self._order(begin)

    def go_down(self) -> None:
        """Stop listening and cut every connection, as a process that is killed."""
        watches = [watch for some in self._watches.values() for watch in some]

        def end() -> None:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            for connection in list(self._connections):
                self._drop(connection)

        self._order(end)
        for watch in watches:
            watch.cut()

    def close(self) -> None:
        self.go_down()
        self._ended = True
        self._wake.send(b"x")
        self._thread.join()
        self._selector.close()
        self._wake.close()
        self._waked.close()

    def _order(self, what: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((what, done))
        self._wake.send(b"x")
        done.wait()

    # --- what it tells by itself ----------------------------------------------------------------

    def follow(self, watch: TimedWatch) -> None:
        self._watches[watch.resource, watch.node].add(watch)

    def unfollow(self, watch: TimedWatch) -> None:
        self._watches[watch.resource, watch.node].discard(watch)

    def open_watches(self) -> int:
        return sum(len(some) for some in self._watches.values())

    def end_watches(self) -> None:
        """All at once, in good order: what an API server does that is told to go."""
        for watch in [watch for some in self._watches.values() for watch in some]:
            watch.end()

    def expire_watches(self) -> None:
        """All at once, and none can be resumed: the history is gone."""
        self.store.forget()
        for watch in [watch for some in self._watches.values() for watch in some]:
            watch.cut()
            self._order_drop(watch.connection)

    def _order_drop(self, connection: Connection) -> None:
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)

    def _told(self, change: Change) -> None:
        item = change.new if change.new is not None else change.old
        if item is None or change.resource not in SELECTED_BY:
            return
        for node in (owner(change.resource, item), None):
            for watch in tuple(self._watches.get((change.resource, node), ())):
                watch.tell(change)

    def send(self, connection: Connection, content: bytes) -> None:
        """To a client; one that has left is found out by whoever reads from it."""
        self.counts.bytes_out += len(content)
        with suppress(OSError):
            connection.socket.sendall(content)

    # --- serving --------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._waked.recv(64)
                    self._obey()
                elif key.data == "listener":
                    self._accept()
                elif key.data in self._connections:
                    self._receive(key.data)

    def _obey(self) -> None:
        orders, self._orders = self._orders, []
        for what, done in orders:
            what()
            done.set()

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(connected)
            self._connections.add(connection)
            self.counts.connections += 1
            self._selector.register(connected, selectors.EVENT_READ, connection)

    def _receive(self, connection: Connection) -> None:
        try:
            part = connection.socket.recv(65536)
        except OSError:
            part = b""
        if not part:
            self._drop(connection)
            return
        connection.received += part
        while (raw := _request(connection.received)) is not None:
            del connection.received[: len(raw)]
            self._answer(connection, raw)

    def _answer(self, connection: Connection, raw: bytes) -> None:
        try:
            once = self._handler(raw, self, connection)
        except ConnectionDropped:
            self._drop(connection)
            return
        counts = self.counts
        counts.bytes_in += len(raw)
        if once.code is not None:
            verb, _, code = once.code
            counts.requests[once.code] += 1
            counts.by_second[int(self.world.now_s), verb, code] += 1
        if connection.watch is not None:
            watch = connection.watch
            self.latest[watch.resource, watch.query.get("fieldSelector", "")] = watch
        self.send(connection, once.wfile.getvalue())

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            if connection.watch is not None and not connection.watch.ended:
                connection.watch.cut()
        connection.socket.close()


def _request(received: bytearray) -> bytes | None:
    """The first whole request of what came; None: it is not whole yet."""
    head, found, _ = bytes(received).partition(b"\r\n\r\n")
    if not found:
        return None
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    size = len(head) + 4 + length
    return bytes(received[:size]) if len(received) >= size else None
