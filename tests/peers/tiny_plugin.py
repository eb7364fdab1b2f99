"""The smallest device plugin that a kubelet accepts, to test the peers themselves without us.

It speaks upstream's own messages (see proto_messages), answers every Allocate with one variable, a
mount, a device node and an annotation, or refuses with `refusal` when that is set. Where upstream's
are not at hand it makes do with ours, which are the same but for the names of two fields.
"""

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from .proto_messages import ProtoApi

RESOURCE = "example.com/thing"


class TinyPlugin:
    """Two devices, `d0` and `d1`; keeps the device ids of every Allocate in `allocated`."""

    def __init__(self, api: ProtoApi) -> None:
        self._api = api
        self._ended = threading.Event()
        self.allocated: list[list[str]] = []
        self.streams = 0
        self.refusal = ""

    @contextmanager
    def serving(self, plugins: Path) -> Iterator[None]:
        """Serve in the kubelet's directory of plugins, and register."""
        self._ended = threading.Event()
        server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="tiny-plugin"))
        options = self._api.message("DevicePluginOptions")()
        handlers = {
            "GetDevicePluginOptions": lambda _request, _context: options,
            "ListAndWatch": self._list_and_watch,
            "Allocate": self._allocate,
        }
        self._api.serve(server, "DevicePlugin", handlers)
        server.add_insecure_port(f"unix:{plugins / 'tiny.sock'}")
        server.start()
        try:
            self.register(plugins)
            yield
        finally:
            self._ended.set()
            server.stop(grace=None).wait(5)

    def register(self, plugins: Path) -> None:
        """Tell the kubelet where we serve."""
        request = self._api.message("RegisterRequest")(
            version="v1beta1", endpoint="tiny.sock", resource_name=RESOURCE
        )
        with grpc.insecure_channel(f"unix:{plugins / 'kubelet.sock'}") as channel:
            self._api.call(channel, "Registration", "Register")(request, timeout=10)

    def _list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.streams += 1
        answer = self._api.message("ListAndWatchResponse")()
        for name in ("d0", "d1"):
            device = answer.devices.add(health="Healthy")
            setattr(device, _first_field(device), name)
        yield answer
        ended = self._ended
        while context.is_active() and not ended.wait(0.1):
            pass

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        answer = self._api.message("AllocateResponse")()
        for container in request.container_requests:
            ids = sorted(getattr(container, _first_field(container)))
            self.allocated.append(ids)
            granted = answer.container_responses.add()
            granted.envs["THINGS"] = ",".join(ids)
            granted.mounts.add(container_path="/thing", host_path="/dev/null", read_only=True)
            granted.devices.add(
                container_path="/dev/thing", host_path="/dev/null", permissions="rw"
            )
            granted.annotations["example.com/things"] = str(len(ids))
        return answer


def _first_field(message: Any) -> str:
    """Its name: upstream's ID and devicesIDs, and what we call them."""
    name: str = message.DESCRIPTOR.fields_by_number[1].name
    return name
