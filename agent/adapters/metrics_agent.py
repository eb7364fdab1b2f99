"""Gauges of the agent itself and of the GPUs it offers, read when somebody looks.

They are few, so prometheus_client writes them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from agent.domain.gpu import GpuInventory
from agent.domain.ownership import Rival

MIB = 1 << 20


class AgentState(Protocol):
    """What is looked at for each scrape; every call must return at once."""

    def inventory(self) -> GpuInventory:
        """The GPUs as they are."""

    def service_restarts(self) -> Mapping[str, int]:
        """Service name -> restarts since the agent started."""

    def registered(self) -> Mapping[str, bool]:
        """Resource name -> kubelet holds its ListAndWatch stream open."""

    def rivals(self) -> Sequence[Rival]:
        """Who else offers or holds our GPUs."""

    def cache_directories(self) -> int:
        """Container cache directories on the host."""


class AgentGauges:
    """Reads the gauges when it is collected, as a collector of prometheus_client."""

    def __init__(
        self, version: str, state: AgentState, ready: Callable[[], bool] | None = None
    ) -> None:
        self._version = version
        self._state = state
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "vgpu_agent",
            "The running agent; compare the version across nodes after a roll-out.",
            value={"version": self._version},
        )
        if self._ready is not None:
            yield _gauge(
                "vgpu_ready",
                "1 while /readyz is well: the driver answers, kubelet listens, the scheduler knows "
                "the node and its pods have been read; at 0 /readyz says what is missing.",
                int(self._ready()),
            )
        yield from _gpus(self._state.inventory())
        restarts = CounterMetricFamily(
            "vgpu_service_restarts",
            "How often a loop of the agent crashed and was restarted; the log has the traceback.",
            labels=("service",),
        )
        for service, count in sorted(self._state.service_restarts().items()):
            restarts.add_metric((service,), count)
        yield restarts
        registered = GaugeMetricFamily(
            "vgpu_kubelet_registered",
            "1 while kubelet listens to our devices; at 0 no new pod gets a vGPU: see /readyz.",
            labels=("resource",),
        )
        for resource, is_registered in sorted(self._state.registered().items()):
            registered.add_metric((resource,), int(is_registered))
        yield registered
        rivals = GaugeMetricFamily(
            "vgpu_gpu_rivals",
            "Other device plugins or DRA drivers that offer this GPU to kubelet (state `offered`) "
            "or whose containers hold it (`held`: it gets no new vGPUs); there should be none.",
            labels=("gpu", "manager", "state"),
        )
        counted = Counter((one.gpu, one.manager, one.state) for one in self._state.rivals())
        for labels, count in sorted(counted.items()):
            rivals.add_metric(labels, count)
        yield rivals
        yield _gauge(
            "vgpu_cache_directories",
            "Container cache directories on this node; they should follow the number of GPU "
            "containers, a growing number means garbage collection fails.",
            self._state.cache_directories(),
        )


def _gpus(inventory: GpuInventory) -> Iterator[Metric]:
    yield _gauge(
        "vgpu_driver_up",
        "1 while the NVIDIA driver answers; at 0 every GPU of the node is out of service.",
        int(inventory.known and not inventory.driver_error),
    )
    healthy = GaugeMetricFamily(
        "vgpu_gpu_healthy",
        "1 while new pods may get this GPU; at 0 see the Node's events for the reason.",
        labels=("gpu", "index"),
    )
    memory = GaugeMetricFamily(
        "vgpu_gpu_memory_bytes",
        "Memory of the GPU as the driver tells it, before any scaling.",
        labels=("gpu",),
    )
    for gpu in inventory.gpus:
        healthy.add_metric((gpu.uuid, str(gpu.index)), int(gpu.healthy))
        if gpu.memory_mib is not None:
            memory.add_metric((gpu.uuid,), gpu.memory_mib * MIB)
    yield healthy
    yield memory


def _gauge(name: str, help_text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text)
    family.add_metric((), value)
    return family
