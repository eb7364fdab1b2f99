"""Many nodes' agents towards the API server: the real services and transport, in virtual time.

Of each agent this is what speaks to the API server: `KubeTransport`, `KubeCluster`, `NodeView`,
`PodWatch`, `NodeWatch` and `Registrar` with their own `run` loops. What they are given is made up:
the GPUs (no driver), and pods that nobody allocates for.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_answers import Request
from agent.adapters.kube_transport import KubeTransport
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.pods import Node
from agent.ports import Stop
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.pod_watch import PodWatch
from agent.services.published import PodTable, Published
from agent.services.registrar import Registrar
from agent.supervisor import Service
from tests.scale.cluster_objects import gpu_uuid, node_object, pod_object
from tests.scale.front import Front
from tests.scale.virtual import Task, VirtualEvent, VirtualLife, World

HEARTBEAT_S = 300.0  # kubelet writes the status of its Node so often when nothing changes


class FleetTransport(KubeTransport):
    """Knows how many lines of its watches were read, so that nobody waits for what has come."""

    front: Front

    def lines(
        self,
        request: Request,
        *,
        quiet_s: Callable[[], float],
        stop: Stop,
        on_open: Callable[[], None] = lambda: None,
    ) -> Iterator[bytes]:
        life: Any = stop

        def opened() -> None:
            key = (request.resource, request.query.get("fieldSelector", ""))
            life.stream, life.lines_read = self.front.latest[key], 0
            on_open()

        try:
            for line in super().lines(request, quiet_s=quiet_s, stop=stop, on_open=opened):
                life.lines_read += 1
                yield line
        finally:
            life.stream = None


def gpus_of(count: int, *, name: str = "NVIDIA H200", memory_mib: int = 143771) -> GpuInventory:
    return GpuInventory.of(
        Gpu(uuid=gpu_uuid(n), index=n, name=name, memory_mib=memory_mib, numa_node=n * 2 // count)
        for n in range(count)
    )


class AgentHalf:
    """One node's agent, as far as the API server sees it."""

    def __init__(
        self,
        world: World,
        front: Front,
        kubeconfig: Path,
        name: str,
        *,
        gpus: GpuInventory,
        sharing: Sharing,
        resource: str = "nvidia.com/gpu",
    ) -> None:
        self.name = name
        self._world = world
        self._stop = threading.Event()
        jitter, clock = world.rng.random, world.clock
        transport = FleetTransport(kubeconfig, clock=clock, jitter=jitter, pause=world.pause)
        transport.front = front
        cluster = KubeCluster(
            transport, node_name=name, resource_name=resource, jitter=jitter, clock=clock
        )
        self.view = NodeView(
            cluster,
            node_name=name,
            pods=Published(PodTable()),
            own_node=Published[Node | None](None),
        )
        self.registrar = Registrar(
            cluster,
            Published(gpus),
            self.view.own_node,
            sharing,
            jitter=jitter,
            clock=clock,
            now=clock,
        )
        self.registrar._wake = VirtualEvent(world)
        services: tuple[Service, ...] = (
            PodWatch(cluster, self.view, jitter=jitter, clock=clock),
            NodeWatch(cluster, self.view, jitter=jitter, clock=clock),
            self.registrar,
        )
        self._lives = [VirtualLife(world, self._stop) for _ in services]
        self._tasks = [
            Task(world, lambda s=service, life=life: s.run(life), f"{name} {service.name}")
            for service, life in zip(services, self._lives, strict=True)
        ]

    def start(self) -> None:
        for task in self._tasks:
            self._world.at(self._world.now_s, task.start)

    def stop(self) -> None:
        """As the supervisor does when the agent is told to end."""
        self._stop.set()
        for life, task in zip(self._lives, self._tasks, strict=True):
            life.interrupt()
            task.wake()

    def check(self) -> None:
        """No loop of a running agent has ended or crashed."""
        for task in self._tasks:
            if task.failure is not None:
                raise task.failure
            if task.ended and not self._stop.is_set():
                raise AssertionError("a loop has ended")

    @property
    def whole(self) -> bool:
        """It knows its pods and its Node, and the scheduler knows its GPUs."""
        return self.view.pods.now().synced and not self.registrar.missing()


class Fleet:
    """Nodes, their pods, their kubelets' heartbeats, and an agent on each."""

    def __init__(
        self,
        root: Path,
        nodes: int,
        *,
        seed: int = 1,
        pods: int = 10,
        gpus: int = 8,
        split_count: int = 10,
        vgpus_per_pod: int = 1,
    ) -> None:
        self.world = World(seed)
        self.front = Front(self.world)
        self.kubeconfig = self.front.api.write_kubeconfig(root / "kubeconfig")
        self.names = [f"gpu-node-{number:05d}" for number in range(nodes)]
        self.pods, self._vgpus_per_pod = pods, vgpus_per_pod
        self._gpus, self._sharing = gpus_of(gpus), Sharing(split_count=split_count)
        self.agents: list[AgentHalf] = []
        for name in self.names:
            self.front.store.put("nodes", node_object(name, gpus, split_count))
            for number in range(pods):
                self.front.store.put("pods", self._pod(name, number))
        step_s = HEARTBEAT_S / nodes
        for number, name in enumerate(self.names):
            self.world.at(number * step_s, lambda it=name: self._heartbeat(it))

    def _pod(self, node: str, number: int) -> dict[str, Any]:
        return pod_object(node, number, gpus=len(self._gpus.gpus), vgpus=self._vgpus_per_pod)

    def _heartbeat(self, name: str) -> None:
        """Kubelet says that all is as before, with a new time; that it lives, it says elsewhere."""
        [old] = self.front.store.of("nodes", name)
        status = old["status"]
        stamp = f"t+{self.world.now_s:.0f}"
        beaten = [condition | {"lastHeartbeatTime": stamp} for condition in status["conditions"]]
        new = old | {
            "metadata": dict(old["metadata"]),
            "status": status | {"conditions": beaten},
        }
        self.front.store.put("nodes", new)
        self.world.at(self.world.now_s + HEARTBEAT_S, lambda: self._heartbeat(name))

    def start(self) -> None:
        """All agents at one moment."""
        self.agents = [
            AgentHalf(
                self.world,
                self.front,
                self.kubeconfig,
                name,
                gpus=self._gpus,
                sharing=self._sharing,
            )
            for name in self.names
        ]
        for agent in self.agents:
            agent.start()

    def stop(self) -> None:
        for agent in self.agents:
            agent.stop()
        self.run(0.0)

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_s + seconds)
        for agent in self.agents:
            agent.check()

    def settle(self, within_s: float) -> float:
        """Run until every agent is whole; give the seconds that it took."""
        began_s = self.world.now_s
        while not self.settled():
            if self.world.now_s - began_s >= within_s:
                raise AssertionError(f"not whole within {within_s} s")
            self.run(1.0)
        return self.world.now_s - began_s

    def settled(self) -> bool:
        """Every agent is whole and follows."""
        return self.front.open_watches() == 2 * len(self.agents) and all(
            agent.whole for agent in self.agents
        )

    def close(self) -> None:
        self.stop()
        self.front.close()

    def object_bytes(self) -> dict[str, int]:
        """How long a Node and a pod are as JSON, after the agents wrote to them."""
        name = self.names[0]
        found = {
            "node": self.front.store.of("nodes", name),
            "pod": self.front.store.of("pods", name),
        }
        return {
            kind: len(json.dumps(some[0], separators=(",", ":"))) if some else 0
            for kind, some in found.items()
        }
