"""A device plugin of a few lines, to try the stand-in kubelet with: independent of the agent's."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
from waiting import eventually

from agent.sim.kubelet import ContainerSpec, PodSpec, StandInKubelet
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

GPU = "nvidia.com/gpu"


def first_ones(request: dp.ContainerPreferredAllocationRequest) -> list[str]:
    must = list(request.must_include_device_ids)
    rest = sorted(set(request.available_device_ids) - set(must))
    return (must + rest)[: request.allocation_size]


class ToyPlugin:
    """Serves devices that the test changes at will and records what it is asked."""

    def __init__(self, socket: Path, ids: list[str], *, preference: bool = True) -> None:
        self.socket = socket
        self.health = dict.fromkeys(ids, rpc.HEALTHY)
        self.options = dp.DevicePluginOptions(get_preferred_allocation_available=preference)
        self.asked: list[Any] = []
        self.metadata: list[Any] = []
        self.allocate_error = ""
        self.preferred_error = ""
        self.options_error = ""
        self.prefer: Callable[[Any], list[str]] = first_ones
        self.response: Any = dp.ContainerAllocateResponse(envs={"FROM": "plugin"})
        self.hang = threading.Event()
        self.hang.set()
        self.changed = threading.Condition()
        self.closing = False
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[rpc.device_plugin_handler(self)])
        self.server.add_insecure_port(rpc.unix_target(socket))
        self.server.start()

    def get_device_plugin_options(self, _: dp.Empty, context: Any) -> dp.DevicePluginOptions:
        if self.options_error:
            context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    def list_and_watch(self, _: dp.Empty, context: Any) -> Iterator[dp.ListAndWatchResponse]:
        context.add_callback(self.wake)
        while context.is_active() and not self.closing:
            sent = dict(self.health)
            yield dp.ListAndWatchResponse(
                devices=[dp.Device(id=i, health=h) for i, h in sent.items()]
            )
            with self.changed:
                while self.health == sent and not self.closing and context.is_active():
                    self.changed.wait()

    def get_preferred_allocation(
        self, request: dp.PreferredAllocationRequest, context: Any
    ) -> dp.PreferredAllocationResponse:
        self.asked.append(request)
        if self.preferred_error:
            context.abort(grpc.StatusCode.INTERNAL, self.preferred_error)
        ids = self.prefer(request.container_requests[0])
        answer = dp.ContainerPreferredAllocationResponse(device_ids=ids)
        return dp.PreferredAllocationResponse(container_responses=[answer])

    def allocate(self, request: dp.AllocateRequest, context: Any) -> dp.AllocateResponse:
        self.asked.append(request)
        self.hang.wait()
        if self.allocate_error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        answers = [self.response] if self.response else []
        return dp.AllocateResponse(container_responses=answers)

    def pre_start_container(
        self, request: dp.PreStartContainerRequest, _: Any
    ) -> dp.PreStartContainerResponse:
        self.asked.append(request)
        return dp.PreStartContainerResponse()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def set_health(self, health: dict[str, str]) -> None:
        self.health = health
        self.wake()

    def allocations(self) -> list[list[str]]:
        return [
            sorted(r.container_requests[0].device_ids)
            for r in self.asked
            if isinstance(r, dp.AllocateRequest)
        ]

    def stop(self) -> None:
        self.closing = True
        self.hang.set()
        self.wake()
        self.server.stop(None).wait()


def register(kubelet: StandInKubelet, plugin: ToyPlugin, resource: str = GPU) -> None:
    request = dp.RegisterRequest(
        version="v1beta1",
        endpoint=plugin.socket.name,
        resource_name=resource,
        options=plugin.options,
    )
    channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
    try:
        rpc.REGISTER.client(channel)(request, timeout=60)
    finally:
        channel.close()


class ToyNode:
    """Starts kubelets with one registered plugin each; everything ends with `stack`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack

    def __call__(
        self, behaviour: str = "1.36", ids: str = "abcd", *, preference: bool = True, **options: Any
    ) -> tuple[StandInKubelet, ToyPlugin]:
        kubelet = self.stack.enter_context(
            StandInKubelet(
                self.directory / "dp", self.directory / "pr", behaviour=behaviour, **options
            )
        )
        plugin = self.plugin(kubelet, "toy.sock", ids, preference=preference)
        register(kubelet, plugin)
        eventually(lambda: allocatable(kubelet) == len(ids))
        return kubelet, plugin

    def plugin(
        self, kubelet: StandInKubelet, name: str, ids: str, *, preference: bool = True
    ) -> ToyPlugin:
        """Another plugin, served but not registered."""
        plugin = ToyPlugin(kubelet.directory / name, list(ids), preference=preference)
        self.stack.callback(plugin.stop)
        return plugin


def allocatable(kubelet: StandInKubelet, resource: str = GPU) -> int | None:
    return kubelet.node_status().allocatable.get(resource)


def pod(uid: str, *counts: int, inits: tuple[ContainerSpec, ...] = ()) -> PodSpec:
    containers = [ContainerSpec(f"c{i}", {GPU: count}) for i, count in enumerate(counts)]
    return PodSpec(uid, "default", f"pod-{uid}", containers, inits)
