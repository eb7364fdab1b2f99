"""Prometheus metrics of the agent: counted where things happen, gauged when somebody looks.

Counters and the histogram are bumped by plain methods, from any thread. Gauges are read from
snapshots at scrape time, so that a GPU or a pod that is gone is gone here, too, and no loop owns a
gauge. prometheus_client keeps and writes what is counted here, in its own registry; what there may
be thousands of (see metrics_text) is written without it.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_format

from agent.adapters.metrics_agent import AgentGauges, AgentState
from agent.adapters.metrics_hami import add_hami
from agent.adapters.metrics_rows import shown
from agent.adapters.metrics_text import Page, wants_openmetrics
from agent.adapters.metrics_use import (
    add_bypasses,
    add_enforced,
    add_left_out,
    add_processes,
    add_use,
)
from agent.domain.accounting import NodeUse
from agent.domain.bypass import Bypass
from agent.domain.enforcement import ContainerState
from agent.domain.mig_info import MigInfo

END = b"# EOF\n"  # of a page of OpenMetrics
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


class Scraped(AgentState, Protocol):
    """What is looked at for each scrape; every call must return at once."""

    def containers(self) -> Sequence[ContainerState]:
        """Whether limits are kept, by container with a grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """What of the use of GPUs is exposed, and what HAMi's metrics say of this node and build."""

    node_name: str = ""
    legacy: bool = False  # by the names of HAMi 2.8 and older, too
    per_process: bool = False
    revision: str = ""
    build_date: str = ""

    def build(self, version: str) -> Mapping[str, str]:
        """Labels of hami_build_info."""
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "unknown")
        return {
            "version": version,
            "revision": self.revision,
            "build_date": self.build_date,
            "go_version": "none",
            "compiler": platform.python_implementation().lower(),
            "platform": f"linux/{machine}",
        }


class Metrics:
    """Every metric of the agent."""

    def __init__(
        self,
        version: str,
        scraped: Scraped,
        *,
        use: Callable[[], NodeUse] = NodeUse,
        bypasses: Callable[[], Iterable[Bypass]] = tuple,
        migs: Callable[[], Iterable[MigInfo]] = tuple,
        ready: Callable[[], bool] | None = None,
        exposed: Exposed = Exposed(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The callables must return at once: they are asked at each scrape.

        `ready`: what /readyz says; None: nobody says it.
        """
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._scraped = scraped
        self._use = use
        self._bypasses = bypasses
        self._migs = migs
        self._exposed = exposed
        self._build = exposed.build(version)
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(AgentGauges(version, scraped, ready))
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
        self._mig_instances = self._counter(
            "vgpu_mig_instances",
            "MIG instances that were made for containers, taken up after a restart, destroyed when "
            "they were nobody's, or taken back because a pod could not be served (`rolled back`; "
            "the pod's events say why).",
            ("what",),
        )
        self._bypass_count = self._counter(
            "vgpu_bypasses",
            "How often a process was found that uses a GPU without a grant, beyond it, or without "
            "the library that keeps its limits; vgpu_bypass says which, while it lasts.",
            ("kind",),
        )
        self._limit_changes = self._counter(
            "vgpu_limit_changes",
            "Changes of the limits of running containers, by who asked and what came of it; the "
            "log and the pod's events have the details.",
            ("source", "outcome"),
        )
        self._memory_unit: Gauge | None = None  # told in one mode only
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

    def gpu_found(self, gpu: str) -> None:
        """Begin to count a GPU's changes of health: without a zero the first would be none."""
        for to in ("healthy", "unhealthy"):
            self._health_transitions.labels(gpu, to)

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

    def mig_instance(self, what: str) -> None:
        """Count a GPU instance: "created", "adopted", "destroyed", "rolled back"."""
        self._mig_instances.labels(what).inc()

    def bypass(self, kind: str) -> None:
        """Count that a process was found to use a GPU past its limits."""
        self._bypass_count.labels(kind).inc()

    def limit_change(self, source: str, outcome: str) -> None:
        """Count a change of a running container's limits."""
        self._limit_changes.labels(source, outcome).inc()

    def memory_unit(self, unit_bytes: int, smallest_bytes: int) -> None:
        """Tell the size of a unit of memory that kubelet counts, and the smallest that works."""
        if self._memory_unit is None:
            self._memory_unit = Gauge(
                "vgpu_memory_unit_bytes",
                "Memory of one unit of volcano.sh/vgpu-memory (which `used`), and the least with "
                "which kubelet's messages go through (`smallest`); give all nodes the same.",
                ("which",),
                registry=self._registry,
            )
        self._memory_unit.labels("used").set(unit_bytes)
        self._memory_unit.labels("smallest").set(smallest_bytes)

    def render(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format an Accept header asks for: body and content type."""
        if wants_openmetrics(accept):
            body = openmetrics_format.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            page = self._page(openmetrics=True)
            return body.removesuffix(END) + page + END, openmetrics_format.CONTENT_TYPE_LATEST
        return generate_latest(self._registry) + self._page(openmetrics=False), (
            CONTENT_TYPE_PLAIN_0_0_4
        )

    def _page(self, *, openmetrics: bool) -> bytes:
        use, exposed = self._use(), self._exposed
        chosen = shown(use, per_process=exposed.per_process)
        page = Page(openmetrics=openmetrics)
        add_use(page, use, chosen)
        if exposed.per_process:
            add_processes(page, chosen)
        add_enforced(page, self._scraped.containers())
        bypasses_left_out = add_bypasses(page, self._bypasses())
        add_left_out(page, chosen, bypasses_left_out)
        add_hami(
            page,
            use,
            chosen,
            node_name=exposed.node_name,
            build=self._build,
            now_s=self._clock(),
            legacy=exposed.legacy,
            migs=self._migs(),
        )
        return page.encoded()
