"""How the stand-in kubelet takes registrations and follows plugins, in three generations.

"1.20": Register answers before the plugin is dialled; the newest registration wins, and the end of
an older one's stream is ignored. "1.36" (1.25 to 1.36): Register dials, asks for the options and
only then answers; when any stream of a resource ends, *the current* client of that resource is
disconnected, also when the stream was an older one's (kubernetes issues 121994 and 127803). "1.37":
registers as 1.36, but all plugins of a resource stay connected, told apart by their sockets; each
list that any of them sends is the list, and the newest is asked. When one goes, any of the others
is asked, and the list stays as it is; with the last one the resource goes (seen with 1.37.2).

Does not imitate: the plugins_registry directory, SELinux labels, registration metrics.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from agent.sim.kubelet_books import Books
from agent.sim.kubelet_types import NEWER
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # grpc-go's default, which kubelet keeps
MAX_NAME_CHARS = 63

Note = Callable[[str, str, Mapping[str, Any]], None]


class DialFailed(Exception):
    """Nothing answered on the socket in time."""


def invalid_resource(name: str) -> bool:
    """Whether kubelet refuses to register a resource of this name."""
    domain, slash, rest = name.partition("/")
    if not slash or not domain or not rest:
        return True
    return (
        domain.endswith("kubernetes.io")
        or name.startswith("requests.")
        or len(rest) > MAX_NAME_CHARS
        or "/" in rest
    )


class Endpoint:
    """Kubelet's client of one registered plugin."""

    def __init__(self, resource: str, path: Path) -> None:
        self.resource = resource
        self.socket = path
        self.options = dp.DevicePluginOptions()
        self._channel = rpc.unix_channel(path, max_receive_bytes=MAX_MESSAGE_BYTES)
        self.stub = rpc.DevicePluginStub(self._channel)
        self._closed = threading.Event()

    def dial(self, timeout_s: float) -> None:
        """Wait until somebody listens on the socket. Raises DialFailed."""
        deadline_s = time.monotonic() + timeout_s
        while not self._closed.is_set():
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(str(self.socket)) == 0:
                    return
            if time.monotonic() > deadline_s or self._closed.wait(0.05):
                break
        raise DialFailed("failed to dial device plugin: context deadline exceeded")

    def follow(self, on_devices: Callable[[dp.ListAndWatchResponse], None]) -> str:
        """Read ListAndWatch until either side ends it; give the reason."""
        try:
            for message in self.stub.list_and_watch(dp.Empty()):
                on_devices(message)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed already
            return str(error.code().name) if isinstance(error, grpc.RpcError) else "CLOSED"
        return "OK"

    def close(self) -> None:
        """Drop the connection: the plugin's stream and all calls under way end."""
        self._closed.set()
        self._channel.close()


class Plugins:
    """The registration service and one thread per plugin that is followed."""

    def __init__(
        self,
        directory: Path,
        books: Books,
        *,
        behaviour: str,
        dial_timeout_s: float,
        clock: Callable[[], float],
        note: Note,
    ) -> None:
        self._directory = directory
        self._books = books
        self._synchronous = behaviour in NEWER
        self._keeps_all = behaviour == "1.37"
        self._dial_timeout_s = dial_timeout_s
        self._clock = clock
        self._note = note
        self._lock = threading.Lock()
        self._current: dict[str, Endpoint] = {}
        self._connected: dict[str, dict[Path, Endpoint]] = {}  # all of a resource; by 1.37 alone
        self._alive: set[Endpoint] = set()
        self._threads: set[threading.Thread] = set()
        self._stopped = False

    def current(self, resource: str) -> Endpoint | None:
        """The endpoint that Allocate calls for a resource go to."""
        with self._lock:
            return self._current.get(resource)

    # --- Registration ----------------------------------------------------------------------

    def register(self, request: dp.RegisterRequest, context: rpc.Context) -> dp.Empty:
        """Answer a Register call as the kubelet of this generation does."""
        name = request.resource_name
        if request.version != rpc.API_VERSION:
            self._refuse(
                name,
                context,
                f'requested API version "{request.version}" is not supported by kubelet. '
                f"Supported versions are [{rpc.API_VERSION}]",
            )
        if invalid_resource(name):
            self._refuse(name, context, f'the ResourceName "{name}" is invalid')
        endpoint = Endpoint(name, self._directory / request.endpoint)
        with self._lock:
            if self._stopped:
                endpoint.close()
                return dp.Empty()
            self._alive.add(endpoint)
        if self._synchronous:
            try:
                self._connect_asking(endpoint)
            except DialFailed as error:
                self._discard(endpoint)
                self._refuse(name, context, str(error))
            follow = self._follow_as_one if self._keeps_all else self._follow_and_disconnect_current
            self._in_background(follow, endpoint)
        else:
            endpoint.options.CopyFrom(request.options)
            self._in_background(self._connect_and_follow, endpoint)
        return dp.Empty()

    def _refuse(self, resource: str, context: rpc.Context, text: str) -> None:
        self._note("register_failed", resource, {"error": text})
        context.abort(grpc.StatusCode.UNKNOWN, text)

    def _connect_asking(self, endpoint: Endpoint) -> None:
        """1.25 and later: dial and ask for the options inside Register."""
        endpoint.dial(self._dial_timeout_s)
        try:
            endpoint.options = endpoint.stub.get_device_plugin_options(dp.Empty())
        except (grpc.RpcError, ValueError) as error:
            raise DialFailed(f"failed to get device plugin options: {error}") from error
        self._adopt(endpoint)

    def _adopt(self, endpoint: Endpoint) -> None:
        with self._lock:
            if self._stopped:
                raise DialFailed("kubelet is stopping")
            if self._keeps_all:
                connected = self._connected.setdefault(endpoint.resource, {})
                if endpoint.socket in connected:
                    raise DialFailed(f"device plugin already connected: {endpoint.socket}")
                connected[endpoint.socket] = endpoint
            self._current[endpoint.resource] = endpoint
        self._books.plugin_connected(endpoint.resource)
        self._note("registered", endpoint.resource, {"endpoint": endpoint.socket.name})

    # --- 1.20 ------------------------------------------------------------------------------

    def _connect_and_follow(self, endpoint: Endpoint) -> None:
        try:
            endpoint.dial(self._dial_timeout_s)
            self._adopt(endpoint)
        except DialFailed as error:
            self._discard(endpoint)
            self._note("register_failed", endpoint.resource, {"error": str(error)})
            return
        self._follow(endpoint)
        self._discard(endpoint)
        if self.current(endpoint.resource) is endpoint:
            self._books.plugin_gone(endpoint.resource, self._clock())
            self._note("plugin_gone", endpoint.resource, {"endpoint": endpoint.socket.name})

    # --- 1.25 to 1.36 ----------------------------------------------------------------------

    def _follow_and_disconnect_current(self, endpoint: Endpoint) -> None:
        self._follow(endpoint)
        with self._lock:
            # The race: looked up by resource, so this may be a newer plugin's client.
            client = self._current.pop(endpoint.resource, None)
        self._discard(endpoint)
        if client is not None:
            self._discard(client)
            self._books.plugin_gone(endpoint.resource, self._clock())
            self._note("plugin_gone", endpoint.resource, {"endpoint": client.socket.name})

    # --- 1.37 ------------------------------------------------------------------------------

    def _follow_as_one(self, endpoint: Endpoint) -> None:
        self._follow(endpoint)
        name = endpoint.resource
        with self._lock:
            others = self._connected.get(name, {})
            others.pop(endpoint.socket, None)
            if others:
                self._current[name] = next(iter(others.values()))
            else:
                self._current.pop(name, None)
        self._discard(endpoint)
        if not others:
            self._books.plugin_gone(name, self._clock())
            self._note("plugin_gone", name, {"endpoint": endpoint.socket.name})

    # --- all -------------------------------------------------------------------------------

    def _follow(self, endpoint: Endpoint) -> None:
        name = endpoint.resource

        def on_devices(message: dp.ListAndWatchResponse) -> None:
            healthy, unhealthy = self._books.replace_devices(name, message.devices)
            self._note("devices", name, {"healthy": healthy, "unhealthy": unhealthy})

        self._note("stream_opened", name, {"endpoint": endpoint.socket.name})
        reason = endpoint.follow(on_devices)
        self._note("stream_closed", name, {"endpoint": endpoint.socket.name, "reason": reason})

    def _discard(self, endpoint: Endpoint) -> None:
        with self._lock:
            self._alive.discard(endpoint)
        endpoint.close()

    def _in_background(self, work: Callable[[Endpoint], None], endpoint: Endpoint) -> None:
        def run() -> None:
            work(endpoint)
            with self._lock:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(
            target=run, name=f"kubelet-follows-{endpoint.socket.name}", daemon=True
        )
        with self._lock:
            if self._stopped:
                return
            thread.start()
            self._threads.add(thread)

    def drop(self, resource: str) -> None:
        """Break the connection to the current plugin of a resource, for a test."""
        endpoint = self.current(resource)
        if endpoint is not None:
            endpoint.close()

    def stop(self) -> None:
        """Die: every connection ends, and every thread within a second."""
        with self._lock:
            self._stopped = True
            endpoints, threads = list(self._alive), list(self._threads)
        for endpoint in endpoints:
            endpoint.close()
        for thread in threads:
            thread.join(timeout=1.0)
