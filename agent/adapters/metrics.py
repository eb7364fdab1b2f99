"""Prometheus metrics of the agent: counted where things happen, gauged when somebody looks.

Counters and the histogram are bumped by plain methods, from any thread. Gauges are read from
snapshots at scrape time, so that a GPU that is gone is gone here, too, and no loop owns a gauge.
The only module that knows prometheus_client; it has its own registry.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from agent.domain.enforcement import ContainerState, State
from agent.domain.gpu import GpuInventory

MIB = 1 << 20
ALLOCATE_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    2.5,
)


class Scraped(Protocol):
    """What is looked at for each scrape; every call must return at once."""

    def inventory(self) -> GpuInventory:
        """The GPUs as they are."""

    def service_restarts(self) -> Mapping[str, int]:
        """Service name -> restarts since the agent started."""

    def registered(self) -> Mapping[str, bool]:
        """Resource name -> kubelet holds its ListAndWatch stream open."""

    def cache_directories(self) -> int:
        """Container cache directories on the host."""

    def containers(self) -> Sequence[ContainerState]:
        """Whether limits are kept, by container with a grant."""


class Metrics:
    """Every metric of the agent."""

    def __init__(self, version: str, scraped: Scraped) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Snapshots(version, scraped))
        ProcessCollector(registry=self._registry)
        self._api_requests = self._counter(
            "vgpu_api_requests",
            "Requests to the API server; an idle agent makes none but renewed watches, so a steady "
            "rate means something keeps failing (code `none`: no answer at all).",
            ("verb", "resource", "code"),
        )
        self._allocations = self._counter(
            "vgpu_allocations",
            "Containers that kubelet asked vGPUs for, by outcome; `granted` and `repeated` are "
            "well, anything else rejected a pod, whose events say why.",
            ("outcome",),
        )
        self._allocate_s = Histogram(
            "vgpu_allocate_seconds",
            "Time an Allocate took. Kubelet admits no other pod meanwhile: look at the API server "
            "and the disk when it nears the budget (2 s by default).",
            buckets=ALLOCATE_BUCKETS_S,
            registry=self._registry,
        )
        self._registrations = self._counter(
            "vgpu_kubelet_registrations",
            "Registrations with kubelet, by outcome; each kubelet restart makes one, more mean "
            "that kubelet drops us (two agents on this node?).",
            ("resource", "outcome"),
        )
        self._health_transitions = self._counter(
            "vgpu_gpu_health_transitions",
            "How often a GPU became `healthy` or `unhealthy`; a GPU that keeps changing should be "
            "drained and looked at.",
            ("gpu", "to"),
        )
        self._xid_errors = self._counter(
            "vgpu_xid_errors",
            "XID errors the driver reported, application errors included; look the number up in "
            "NVIDIA's XID catalogue.",
            ("gpu", "xid"),
        )
        self._register_writes = self._counter(
            "vgpu_node_register_writes",
            "Writes of the Node annotations the scheduler reads, by outcome; nothing is written "
            "while nothing changes.",
            ("outcome",),
        )
        self._grant_mismatches = self._counter(
            "vgpu_grant_mismatches",
            "Containers for which kubelet's books name other GPUs than the grant; such a node "
            "should be looked at with `kubectl describe`.",
            (),
        )
        for outcome in ("ok", "failed"):  # a rate needs a zero to begin with
            self._register_writes.labels(outcome)
        self._allocations.labels("granted")

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, help_text, labels, registry=self._registry)

    def api_request(self, verb: str, resource: str, status: int) -> None:
        """Count a request, e.g. ("patch", "pods", 200); status 0 when no answer came back."""
        self._api_requests.labels(verb, resource, str(status) if status else "none").inc()

    def allocation(self, outcome: str, took_s: float) -> None:
        """Count the answer to an Allocate: "granted", "repeated", or the kind of refusal."""
        self._allocations.labels(outcome).inc()
        self._allocate_s.observe(took_s)

    def registration(self, resource: str, outcome: str) -> None:
        """Count an attempt to register with kubelet: "ok" or "failed"."""
        self._registrations.labels(resource, outcome).inc()

    def health_transition(self, gpu: str, to: str) -> None:
        """Count a change of a GPU's health; `to` is "healthy" or "unhealthy"."""
        self._health_transitions.labels(gpu, to).inc()

    def xid_error(self, gpu: str, xid: int) -> None:
        """Count an XID event."""
        self._xid_errors.labels(gpu, str(xid)).inc()

    def register_write(self, outcome: str) -> None:
        """Count a write of our Node annotations: "ok" or "failed"."""
        self._register_writes.labels(outcome).inc()

    def grant_mismatch(self) -> None:
        """Count a container whose grant and kubelet's assignment disagree."""
        self._grant_mismatches.inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format an Accept header asks for: body and content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Snapshots:
    """Reads the gauges when it is collected."""

    def __init__(self, version: str, scraped: Scraped) -> None:
        self._version = version
        self._scraped = scraped

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "vgpu_agent",
            "The running agent; compare the version across nodes after a roll-out.",
            value={"version": self._version},
        )
        yield from _gpus(self._scraped.inventory())
        restarts = CounterMetricFamily(
            "vgpu_service_restarts",
            "How often a loop of the agent crashed and was restarted; the log has the traceback.",
            labels=("service",),
        )
        for service, count in sorted(self._scraped.service_restarts().items()):
            restarts.add_metric((service,), count)
        yield restarts
        registered = GaugeMetricFamily(
            "vgpu_kubelet_registered",
            "1 while kubelet listens to our devices; at 0 no new pod gets a vGPU: see /readyz.",
            labels=("resource",),
        )
        for resource, is_registered in sorted(self._scraped.registered().items()):
            registered.add_metric((resource,), int(is_registered))
        yield registered
        yield _gauge(
            "vgpu_cache_directories",
            "Container cache directories on this node; they should follow the number of GPU "
            "containers, a growing number means garbage collection fails.",
            self._scraped.cache_directories(),
        )
        yield _enforced(self._scraped.containers())


def _enforced(containers: Sequence[ContainerState]) -> Metric:
    family = GaugeMetricFamily(
        "vgpu_container_enforced",
        "1 while the limits of a container with vGPUs hold for its processes, or none of them uses "
        "a GPU (reason `idle`); at 0 `reason` and the pod's events say why they do not, or why "
        "that is not known.",
        labels=("namespace", "pod", "container", "reason"),
    )
    for one in containers:
        holds = one.state in (State.ENFORCED, State.IDLE)
        family.add_metric((one.namespace, one.pod, one.container, one.reason.value), int(holds))
    return family


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
