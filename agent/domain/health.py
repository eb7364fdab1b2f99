"""When a GPU stops being healthy, and when it is healthy again.

A GPU falls ill by a device XID, an uncorrectable ECC error, or a failed probe, at once. It recovers
after a number of clean probes in a row; each relapse within `RELAPSE_WINDOW_S` doubles that number,
so that a flapping GPU does not keep rejecting pods. Application XIDs (a tenant's illegal address, a
preempted channel) say nothing about the card and never count.
"""

from dataclasses import dataclass, replace

from agent.domain.gpu import GpuEvent

RELAPSE_WINDOW_S = 3600.0
MOST_DOUBLINGS = 5

# Names of the XIDs that operators meet most; source: NVIDIA's public XID catalogue.
XID_NAMES = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP firmware time-out",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
    143: "GPU initialisation failure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """What is known about one GPU's health. An empty `reason` means healthy."""

    reason: str = ""
    clean_probes: int = 0  # in a row, since it fell ill
    relapses: int = 0  # times it fell ill within the window
    fell_ill_at_s: float = 0.0  # monotonic

    @property
    def healthy(self) -> bool:
        return not self.reason


def verdict(event: GpuEvent, ignored_xids: frozenset[int]) -> str:
    """Why this event makes its GPU unhealthy; empty when it does not."""
    if event.kind == "xid":
        if event.xid in ignored_xids:
            return ""
        name = XID_NAMES.get(event.xid)
        return f"XID {event.xid}" + (f" ({name})" if name else "")
    if event.kind == "ecc_double":
        return "uncorrectable ECC error"
    if event.kind == "lost":
        return "it no longer answers the driver (fallen off the bus, or in need of a reset)"
    return ""


def fell_ill(health: GpuHealth, reason: str, *, now_s: float) -> GpuHealth:
    """After something that makes it unhealthy; the first reason stays until it recovers."""
    if not health.healthy:
        return replace(health, clean_probes=0)
    again = health.relapses and now_s - health.fell_ill_at_s < RELAPSE_WINDOW_S
    return GpuHealth(
        reason=reason, relapses=health.relapses + 1 if again else 1, fell_ill_at_s=now_s
    )


def probes_needed(health: GpuHealth, recovery_probes: int) -> int:
    """Clean probes in a row that bring it back."""
    return recovery_probes << min(MOST_DOUBLINGS, max(0, health.relapses - 1))


def probed(health: GpuHealth, failure: str, *, recovery_probes: int, now_s: float) -> GpuHealth:
    """After a probe; `failure` is empty when it was clean."""
    if failure:
        return fell_ill(health, failure, now_s=now_s)
    if health.healthy:
        return health
    clean = health.clean_probes + 1
    if clean >= probes_needed(health, recovery_probes):
        return replace(health, reason="", clean_probes=0)
    return replace(health, clean_probes=clean)
