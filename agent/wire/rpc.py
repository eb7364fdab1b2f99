"""Typed call tables of kubelet's APIs and the CRI: one line per RPC, for servers and clients.

gRPC for Python ships no types, and its generated stubs have none either, so the tables are written
by hand: `mypy` then checks both sides of every call. The messages are generated; after a change of
a `.proto` run, from the root of the repository,

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/wire/*.proto

Source of names and types: k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1 and podresources/v1;
k8s.io/cri-api, pkg/apis/runtime/v1.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from agent.wire import deviceplugin_pb2 as dp
from agent.wire import podresources_pb2 as pr
from agent.wire import runtimeconfig_pb2 as cri

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
KUBELET_SOCKET = "kubelet.sock"

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Request_contra = TypeVar("Request_contra", bound=Message, contravariant=True)
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


# --- what grpcio gives to handlers and callers, as far as we use it ------------------------------


class Context(Protocol):
    """The server's view of one call."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have `callback` run when the call ends; False when it has already ended."""

    def is_active(self) -> bool:
        """Whether somebody still waits for an answer."""

    def abort(self, code: Any, details: str) -> NoReturn:
        """End the call with an error, by raising."""


class AsyncContext(Protocol):
    """The view of one call that a server of grpc.aio has; the end of the call cancels its task."""

    async def write(self, message: Any) -> None:
        """Send one message of a stream."""

    async def abort(self, code: Any, details: str) -> NoReturn:
        """End the call with an error, by raising."""


class Call(Protocol[Response_co]):
    """A unary call under way."""

    def result(self, timeout: float | None = None) -> Response_co:
        """Wait for the answer. Raises grpc.RpcError, or grpc.FutureCancelledError."""

    def cancel(self) -> bool:
        """Give up."""


class Stream(Protocol[Response_co]):
    """The client's end of a response stream; iterating raises grpc.RpcError when it breaks."""

    def __iter__(self) -> Iterator[Response_co]: ...

    def __next__(self) -> Response_co: ...

    def cancel(self) -> bool:
        """Give up; a thread that iterates is woken."""


class UnaryClient(Protocol[Request_contra, Response_co]):
    """Calls one unary RPC."""

    def __call__(self, request: Request_contra, timeout: float | None = None) -> Response_co: ...

    def future(self, request: Request_contra, timeout: float | None = None) -> Call[Response_co]:
        """Start the call; the answer can be waited for, and cancelled, from anywhere."""


class RawClient(Protocol[Request_contra]):
    """Calls one unary RPC; its answer stays as it is on the wire."""

    def __call__(self, request: Request_contra, timeout: float | None = None) -> bytes: ...


class StreamClient(Protocol[Request_contra, Response_co]):
    """Calls one server-streaming RPC."""

    def __call__(
        self, request: Request_contra, timeout: float | None = None
    ) -> Stream[Response_co]: ...


# --- one RPC: types and name, once ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unary(Generic[Request, Response]):
    """An RPC with one request and one response."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]

    def client(self, channel: Any) -> UnaryClient[Request, Response]:
        """The calling side."""
        calls: UnaryClient[Request, Response] = channel.unary_unary(
            f"/{self.service}/{self.name}",
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )
        return calls

    def raw_client(self, channel: Any) -> RawClient[Request]:
        """The calling side, for answers that are not to be read as a whole."""
        calls: RawClient[Request] = channel.unary_unary(
            f"/{self.service}/{self.name}", request_serializer=self.request.SerializeToString
        )
        return calls

    def handler(
        self, answer: Callable[[Request, Any], Response | Awaitable[Response]]
    ) -> tuple[str, Any]:
        """The serving side: a table entry; a coroutine where the server is one of grpc.aio."""
        return self.name, grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=self.request.FromString,
            response_serializer=self.response.SerializeToString,
        )


@dataclass(frozen=True, slots=True)
class ServerStream(Generic[Request, Response]):
    """An RPC with one request and a stream of responses."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]

    def client(self, channel: Any) -> StreamClient[Request, Response]:
        """The calling side."""
        calls: StreamClient[Request, Response] = channel.unary_stream(
            f"/{self.service}/{self.name}",
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )
        return calls

    def handler(
        self, answer: Callable[[Request, Any], Iterator[Response] | Awaitable[None]]
    ) -> tuple[str, Any]:
        """The serving side: a table entry; a coroutine writes its messages to the context.

        A message may be written as the bytes that it is on the wire.
        """

        def serialized(message: Response | bytes) -> bytes:
            if isinstance(message, bytes):
                return message
            return bytes(self.response.SerializeToString(message))

        return self.name, grpc.unary_stream_rpc_method_handler(
            answer,
            request_deserializer=self.request.FromString,
            response_serializer=serialized,
        )


# --- Registration, served by kubelet -------------------------------------------------------------

_REGISTRATION = "v1beta1.Registration"
REGISTER = Unary(_REGISTRATION, "Register", dp.RegisterRequest, dp.Empty)


def registration_handler(
    register: Callable[[dp.RegisterRequest, Context], dp.Empty],
) -> Any:
    """What `grpc.Server.add_generic_rpc_handlers` takes, for the Registration service."""
    return grpc.method_handlers_generic_handler(_REGISTRATION, dict([REGISTER.handler(register)]))


# --- DevicePlugin, served by the plugin ----------------------------------------------------------

_DEVICE_PLUGIN = "v1beta1.DevicePlugin"
GET_OPTIONS = Unary(_DEVICE_PLUGIN, "GetDevicePluginOptions", dp.Empty, dp.DevicePluginOptions)
LIST_AND_WATCH = ServerStream(_DEVICE_PLUGIN, "ListAndWatch", dp.Empty, dp.ListAndWatchResponse)
GET_PREFERRED = Unary(
    _DEVICE_PLUGIN,
    "GetPreferredAllocation",
    dp.PreferredAllocationRequest,
    dp.PreferredAllocationResponse,
)
ALLOCATE = Unary(_DEVICE_PLUGIN, "Allocate", dp.AllocateRequest, dp.AllocateResponse)
PRE_START = Unary(
    _DEVICE_PLUGIN, "PreStartContainer", dp.PreStartContainerRequest, dp.PreStartContainerResponse
)


class DevicePluginServicer(Protocol):
    """The five RPCs that a plugin answers, on a server of grpc.aio."""

    async def get_device_plugin_options(
        self, request: dp.Empty, context: AsyncContext
    ) -> dp.DevicePluginOptions: ...

    async def list_and_watch(self, request: dp.Empty, context: AsyncContext) -> None: ...

    async def get_preferred_allocation(
        self, request: dp.PreferredAllocationRequest, context: AsyncContext
    ) -> dp.PreferredAllocationResponse: ...

    async def allocate(
        self, request: dp.AllocateRequest, context: AsyncContext
    ) -> dp.AllocateResponse: ...

    async def pre_start_container(
        self, request: dp.PreStartContainerRequest, context: AsyncContext
    ) -> dp.PreStartContainerResponse: ...


def device_plugin_handler(servicer: DevicePluginServicer) -> Any:
    """What `grpc.Server.add_generic_rpc_handlers` takes, for the DevicePlugin service."""
    return grpc.method_handlers_generic_handler(
        _DEVICE_PLUGIN,
        dict(
            [
                GET_OPTIONS.handler(servicer.get_device_plugin_options),
                LIST_AND_WATCH.handler(servicer.list_and_watch),
                GET_PREFERRED.handler(servicer.get_preferred_allocation),
                ALLOCATE.handler(servicer.allocate),
                PRE_START.handler(servicer.pre_start_container),
            ]
        ),
    )


class DevicePluginStub:
    """The five RPCs as kubelet calls them."""

    def __init__(self, channel: Any) -> None:
        self.get_device_plugin_options = GET_OPTIONS.client(channel)
        self.list_and_watch = LIST_AND_WATCH.client(channel)
        self.get_preferred_allocation = GET_PREFERRED.client(channel)
        self.allocate = ALLOCATE.client(channel)
        self.pre_start_container = PRE_START.client(channel)


# --- PodResources, served by kubelet -------------------------------------------------------------

_POD_RESOURCES = "v1.PodResourcesLister"
LIST_POD_RESOURCES = Unary(
    _POD_RESOURCES, "List", pr.ListPodResourcesRequest, pr.ListPodResourcesResponse
)
GET_ALLOCATABLE = Unary(
    _POD_RESOURCES,
    "GetAllocatableResources",
    pr.AllocatableResourcesRequest,
    pr.AllocatableResourcesResponse,
)
GET_POD_RESOURCES = Unary(
    _POD_RESOURCES, "Get", pr.GetPodResourcesRequest, pr.GetPodResourcesResponse
)


class PodResourcesServicer(Protocol):
    """The three RPCs that kubelet answers about its assignments."""

    def list_pod_resources(
        self, request: pr.ListPodResourcesRequest, context: Context
    ) -> pr.ListPodResourcesResponse: ...

    def get_allocatable_resources(
        self, request: pr.AllocatableResourcesRequest, context: Context
    ) -> pr.AllocatableResourcesResponse: ...

    def get_pod_resources(
        self, request: pr.GetPodResourcesRequest, context: Context
    ) -> pr.GetPodResourcesResponse: ...


def pod_resources_handler(servicer: PodResourcesServicer) -> Any:
    """What `grpc.Server.add_generic_rpc_handlers` takes, for the PodResourcesLister service."""
    return grpc.method_handlers_generic_handler(
        _POD_RESOURCES,
        dict(
            [
                LIST_POD_RESOURCES.handler(servicer.list_pod_resources),
                GET_ALLOCATABLE.handler(servicer.get_allocatable_resources),
                GET_POD_RESOURCES.handler(servicer.get_pod_resources),
            ]
        ),
    )


# --- CRI, served by the container runtime --------------------------------------------------------

RUNTIME_CONFIG = Unary(
    "runtime.v1.RuntimeService",
    "RuntimeConfig",
    cri.RuntimeConfigRequest,
    cri.RuntimeConfigResponse,
)


# --- unix sockets --------------------------------------------------------------------------------


def unix_target(path: Path) -> str:
    """The gRPC name of a socket file; gRPC reads it as a URI, so odd characters are quoted."""
    return f"unix:{quote(str(path))}"


def unix_channel(path: Path, *, max_receive_bytes: int) -> Any:
    """A channel to a socket file that shares no connection, and no back-off, with earlier ones.

    Without its own subchannel pool a new channel to a path inherits the waiting time that failed
    connections to the same path have built up.
    """
    return grpc.insecure_channel(
        unix_target(path),
        options=[
            ("grpc.max_receive_message_length", max_receive_bytes),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ],
    )
