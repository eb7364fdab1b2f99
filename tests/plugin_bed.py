"""The kubelet side of the agent, in two sizes: one served socket, and the whole registration loop."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from agent.adapters.device_plugin import Answers
from agent.adapters.kubelet import SOCKET_PREFIX, KubeletLink
from agent.adapters.socket_watch import SocketWatch
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import DeviceNode, Grant, Mount
from agent.domain.vgpu_ids import advertised
from agent.services.plugin import Plugin
from agent.services.published import Inventory, Published
from agent.sim.kubelet import ContainerSpec, PodSpec, StandInKubelet
from agent.supervisor import RestartPolicy, Supervisor
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

GPU = "nvidia.com/gpu"
GRANT = Grant(
    envs={"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m"},
    mounts=(Mount("/c", "/h", read_only=False), Mount("/etc/ld.so.preload", "/p")),
    device_nodes=(DeviceNode("/dev/nvidia0", "/root/dev/nvidia0"),),
    annotations={"k": "v"},
    cdi_devices=("vendor/class=a",),
)


class StubAllocator:
    """Answers with a grant, or does what the test wants."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], float]] = []
        self.act: Callable[[], Grant] = lambda: GRANT

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        self.asked.append((tuple(device_ids), deadline_s))
        return self.act()


class StubPreference:
    """Has the opinion that the test gives it."""

    def __init__(self) -> None:
        self.act: Callable[..., Sequence[str]] = lambda *_: ()

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int, *, deadline_s: float
    ) -> Sequence[str]:
        assert deadline_s > 0
        return self.act(available, must_include, size)


def inventory_of(count: int = 2) -> Inventory:
    return Published(
        GpuInventory.of(
            Gpu(uuid=f"GPU-{i}", index=i, name="NVIDIA A40", memory_mib=1024) for i in range(count)
        )
    )


class Served:
    """One served socket and kubelet's end of it."""

    def __init__(self, directory: Path, stack: ExitStack, *, budget_s: float = 2.0) -> None:
        directory.mkdir(exist_ok=True)
        self.inventory = inventory_of()
        self.allocator, self.preference = StubAllocator(), StubPreference()
        self.overdue: list[float] = []
        self.streams: list[bool] = []
        self.answers = Answers(
            self.inventory,
            lambda now: advertised(now, Sharing(split_count=2)),
            self.allocator,
            self.preference,
            budget_s=budget_s,
            on_overdue=self.overdue.append,
        )
        self.link = KubeletLink(directory / "kubelet.sock", GPU, self.answers)
        self.link.serve(self.streams.append)
        stack.callback(self.link.close)
        [self.path] = directory.glob(f"{SOCKET_PREFIX}*")
        channel = rpc.unix_channel(self.path, max_receive_bytes=1 << 22)
        stack.callback(channel.close)
        self.stub = rpc.DevicePluginStub(channel)

    def allocate(self, *ids: str) -> dp.ContainerAllocateResponse:
        request = dp.AllocateRequest(
            container_requests=[dp.ContainerAllocateRequest(device_ids=ids)]
        )
        [answer] = self.stub.allocate(request, timeout=60).container_responses
        return answer

    def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        asked = dp.ContainerPreferredAllocationRequest(
            available_device_ids=available, must_include_device_ids=must, allocation_size=size
        )
        request = dp.PreferredAllocationRequest(container_requests=[asked])
        [answer] = self.stub.get_preferred_allocation(request, timeout=60).container_responses
        return list(answer.device_ids)

    def watch(self) -> "Watching":
        return Watching(self.stub.list_and_watch(dp.Empty()))


class Watching:
    """Collects the lists of a stream, as {id: health}."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lists: list[dict[str, str]] = []
        self.ended = ""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for message in self.stream:
                self.lists.append({d.id: d.health for d in message.devices})
            self.ended = "OK"
        except grpc.RpcError as error:
            self.ended = error.code().name

    def health(self) -> set[str]:
        return set(self.lists[-1].values()) if self.lists else set()


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


# --- the whole loop ---

SHARING = Sharing(split_count=2)
NODE = GpuInventory.of(
    Gpu(uuid=f"GPU-{i}", index=i, name="NVIDIA A40", memory_mib=1024) for i in range(2)
)


class EnvPerVgpu:
    """Allocator that gives what it is asked for; no opinion on which."""

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        assert deadline_s > 0
        return Grant(envs={"IDS": ",".join(device_ids)})

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int, *, deadline_s: float
    ) -> Sequence[str]:
        assert deadline_s > 0
        return [*must_include, *available][:size]


class Agent:
    """The plugin loop under a supervisor, and nothing else of the agent."""

    def __init__(
        self,
        directory: Path,
        *,
        inventory: GpuInventory = NODE,
        sharing: Sharing = SHARING,
        clock: Callable[[], float] = time.monotonic,
        prepared: Callable[[float], bool] = lambda _timeout_s: True,
    ) -> None:
        self.inventory = Published(inventory)
        self.counted: list[str] = []
        allocator = EnvPerVgpu()
        answers = Answers(
            self.inventory, lambda now: advertised(now, sharing), allocator, allocator
        )
        socket = directory / "kubelet.sock"
        self.plugin = Plugin(
            GPU,
            KubeletLink(socket, GPU, answers),
            SocketWatch(socket),
            self.inventory,
            sharing,
            prepared=prepared,
            count=lambda _resource, outcome: self.counted.append(outcome),
            clock=clock,
        )
        self.supervisor = Supervisor([self.plugin], policy=RestartPolicy(budget=0))
        self.supervisor.start()

    @property
    def registered(self) -> bool:
        return self.plugin.status.now().registered

    @property
    def registrations(self) -> int:
        return self.plugin.status.now().registrations

    def stop(self) -> int:
        self.supervisor.stop()
        return self.supervisor.join(timeout_s=10.0)


def allocatable(kubelet: StandInKubelet) -> int | None:
    return kubelet.node_status().allocatable.get(GPU)


def offered(kubelet: StandInKubelet, agent: Agent, vgpus: int = 4) -> bool:
    """Kubelet has the vGPUs, and agent and kubelet agree that it does."""
    return agent.registered and allocatable(kubelet) == vgpus


def own_sockets(directory: Path) -> list[Path]:
    return list(directory.glob(f"{SOCKET_PREFIX}*"))


def pod(uid: str, count: int = 1) -> PodSpec:
    return PodSpec(uid, "default", uid, [ContainerSpec("c", {GPU: count})])
