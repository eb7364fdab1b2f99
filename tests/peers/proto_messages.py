"""How are upstream's protobuf messages used here without committing code generated from them?

The build of the peers leaves a FileDescriptorSet per API; classes are made from it at run time.
They have nothing to do with `agent.wire`, so these messages are an independent witness.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor, descriptor_pb2, descriptor_pool, message_factory

Handler = Callable[[Any, grpc.ServicerContext], Any]


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc of a service, with the classes of its messages."""

    name: str
    request: Any
    response: Any
    streams: bool


class ProtoApi:
    """The messages and services of one proto package; the files in the order they need each other."""

    def __init__(self, files: Iterable[descriptor_pb2.FileDescriptorProto], package: str) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in files:
            self._pool.Add(file)
        self.package = package

    @classmethod
    def read(cls, descriptors: Path, package: str) -> Self:
        """Read a FileDescriptorSet."""
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
        return cls(files.file, package)

    @classmethod
    def of(cls, generated: descriptor.FileDescriptor) -> Self:
        """The same for generated code, when upstream's messages are not at hand."""
        file = descriptor_pb2.FileDescriptorProto()
        generated.CopyToProto(file)
        return cls([file], generated.package)

    def message(self, name: str) -> Any:
        """The class of a message."""
        found = self._pool.FindMessageTypeByName(f"{self.package}.{name}")
        return message_factory.GetMessageClass(found)

    def methods(self, service: str) -> Iterator[Method]:
        """The rpcs of a service."""
        found = self._pool.FindServiceByName(f"{self.package}.{service}")
        for method in found.methods:
            yield Method(
                name=method.name,
                request=message_factory.GetMessageClass(method.input_type),
                response=message_factory.GetMessageClass(method.output_type),
                streams=method.server_streaming,
            )

    def serve(self, server: grpc.Server, service: str, handlers: Mapping[str, Handler]) -> None:
        """Answer a service's rpcs with `handlers`; those without one are unimplemented."""
        rpcs = {}
        for method in self.methods(service):
            if method.name not in handlers:
                continue
            wrap = (
                grpc.unary_stream_rpc_method_handler
                if method.streams
                else grpc.unary_unary_rpc_method_handler
            )
            rpcs[method.name] = wrap(
                handlers[method.name],
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        name = f"{self.package}.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, rpcs),))

    def call(self, channel: grpc.Channel, service: str, rpc: str) -> Callable[..., Any]:
        """A unary-unary rpc of a peer, ready to call with a request message."""
        (method,) = (m for m in self.methods(service) if m.name == rpc)
        multi: Callable[..., Any] = channel.unary_unary(
            f"/{self.package}.{service}/{rpc}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return multi
