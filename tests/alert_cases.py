"""Per alert, time series under which it fires, and some under which it stays quiet.

Values are one each `every` in promtool's words: `1+0x40` is forty times 1, `0+60x40` grows by 60, `_`
is a scrape without the sample.
"""

from dataclasses import dataclass

GPU = 'gpu="GPU-a",instance="node-1"'
POD = 'namespace="team",pod="p",container="c",instance="node-1"'
DEVICE = f"{POD},{GPU.split(',', maxsplit=1)[0]}"


@dataclass(frozen=True, slots=True)
class Case:
    """Series -> values, and whether the alert fires at `at`."""

    alert: str
    why: str
    fires: bool
    series: dict[str, str]
    at: str = "40m"
    every: str = "1m"


def fires(alert: str, why: str, series: dict[str, str], at: str = "40m", every: str = "1m") -> Case:
    return Case(alert, why, True, series, at, every)


def quiet(alert: str, why: str, series: dict[str, str], at: str = "40m", every: str = "1m") -> Case:
    return Case(alert, why, False, series, at, every)


def allocations(seconds_each: str) -> dict[str, str]:
    """Twelve Allocates a minute that all took as long."""
    bounds = ("0.01", "0.5", "1.0", "2.0", "2.5", "+Inf")
    within = bounds[bounds.index(seconds_each) :]
    return {
        f'vgpu_allocate_seconds_bucket{{instance="node-1",le="{bound}"}}': (
            "0+12x40" if bound in within else "0+0x40"
        )
        for bound in bounds
    }


CASES = (
    fires("VgpuAgentDown", "a pod's agent", {'up{job="kube-system/vgpu-agent",instance="node-1"}': "0+0x40"}),
    quiet("VgpuAgentDown", "it is up", {'up{job="vgpu-agent",instance="node-1"}': "1+0x40"}),
    quiet("VgpuAgentDown", "something else is down", {'up{job="kubelet",instance="node-1"}': "0+0x40"}),
    quiet("VgpuAgentDown", "one scrape failed", {'up{job="vgpu-agent",instance="node-1"}': "1+0x38 0 1 1"}),
    fires("VgpuAgentNotReady", "not ready", {'vgpu_ready{instance="node-1"}': "0+0x40"}),
    quiet("VgpuAgentNotReady", "ready", {'vgpu_ready{instance="node-1"}': "1+0x40"}),
    quiet("VgpuAgentNotReady", "starting", {'vgpu_ready{instance="node-1"}': "1+0x36 0 0 0 0"}),
    fires("VgpuDriverDown", "no driver", {'vgpu_driver_up{instance="node-1"}': "0+0x40"}),
    quiet("VgpuDriverDown", "it answers", {'vgpu_driver_up{instance="node-1"}': "1+0x40"}),
    fires(
        "VgpuNotRegisteredWithKubelet", "not registered",
        {'vgpu_kubelet_registered{resource="nvidia.com/gpu",instance="node-1"}': "0+0x40"},
    ),
    quiet(
        "VgpuNotRegisteredWithKubelet", "kubelet restarts",
        {'vgpu_kubelet_registered{resource="nvidia.com/gpu",instance="node-1"}': "1+0x38 0 0 0"},
    ),
    fires(
        "VgpuRegistrationsContested", "every five minutes",
        {'vgpu_kubelet_registrations_total{outcome="ok",resource="r",instance="node-1"}': "1+0.2x120"},
        at="100m",
    ),
    quiet(
        "VgpuRegistrationsContested", "kubelet restarted once",
        {'vgpu_kubelet_registrations_total{outcome="ok",resource="r",instance="node-1"}': "1+0x60 2+0x60"},
        at="100m",
    ),
    quiet(
        "VgpuRegistrationsContested", "five times, and scrapes that do not fit into an hour",
        {'vgpu_kubelet_registrations_total{outcome="ok",resource="r",instance="node-1"}': "1+0x60 2 3 4 5 6+0x60"},
        at="101m", every="70s",
    ),
    fires("VgpuGpuUnhealthy", "unhealthy", {f'vgpu_gpu_healthy{{index="0",{GPU}}}': "1+0x20 0+0x20"}),
    quiet("VgpuGpuUnhealthy", "healthy", {f'vgpu_gpu_healthy{{index="0",{GPU}}}': "1+0x40"}),
    quiet("VgpuGpuUnhealthy", "it left the node", {f'vgpu_gpu_healthy{{index="0",{GPU}}}': "1+0x20 _x20"}),
    fires(
        "VgpuGpuHealthFlaps", "four times",
        {f'vgpu_gpu_health_transitions_total{{to="unhealthy",{GPU}}}': "1+0.1x40"},
    ),
    quiet(
        "VgpuGpuHealthFlaps", "once",
        {f'vgpu_gpu_health_transitions_total{{to="unhealthy",{GPU}}}': "1+0x20 2+0x20"},
    ),
    fires(
        "VgpuGpuHealthFlaps", "the third time since the agent started",
        {f'vgpu_gpu_health_transitions_total{{to="unhealthy",{GPU}}}': "0+0x10 1+0x10 2+0x10 3+0x10"},
    ),
    quiet(
        "VgpuGpuHealthFlaps", "twice, and scrapes that do not fit into an hour",
        {f'vgpu_gpu_health_transitions_total{{to="unhealthy",{GPU}}}': "1+0x60 2+0x10 3+0x40"},
        at="101m", every="70s",
    ),
    fires("VgpuGpuXid", "the first", {f'vgpu_xid_errors_total{{xid="79",{GPU}}}': "_x38 1 1 1"}),
    fires("VgpuGpuXid", "another one", {f'vgpu_xid_errors_total{{xid="79",{GPU}}}': "1+0x35 2+0x10"}),
    quiet("VgpuGpuXid", "long ago", {f'vgpu_xid_errors_total{{xid="79",{GPU}}}': "_x5 1+0x40"}),
    quiet(
        "VgpuGpuXid", "long ago, and a scrape failed ten minutes ago",
        {f'vgpu_xid_errors_total{{xid="79",{GPU}}}': "1+0x29 stale 1+0x40"},
    ),
    quiet("VgpuGpuXid", "a program's own fault", {f'vgpu_xid_errors_total{{xid="31",{GPU}}}': "_x30 1+3x10"}),
    fires(
        "VgpuLimitsNotEnforced", "musl",
        {f'vgpu_container_enforced{{reason="musl",{POD}}}': "0+0x40"},
    ),
    quiet(
        "VgpuLimitsNotEnforced", "switched off by its author",
        {f'vgpu_container_enforced{{reason="off",{POD}}}': "0+0x40"},
    ),
    quiet("VgpuLimitsNotEnforced", "enforced", {f'vgpu_container_enforced{{reason="",{POD}}}': "1+0x40"}),
    quiet(
        "VgpuLimitsNotEnforced", "being started",
        {f'vgpu_container_enforced{{reason="library not loaded",{POD}}}': "_x38 0 0 0"},
    ),
    fires(
        "VgpuLimitsUnseen", "no hostPID",
        {f'vgpu_container_enforced{{reason="processes not seen",{POD}}}': "0+0x40"},
    ),
    fires(
        "VgpuLimitsUnseen", "no SYS_PTRACE",
        {f'vgpu_container_enforced{{reason="processes not readable",{POD}}}': "0+0x40"},
    ),
    fires(
        "VgpuLimitsUnseen", "no driver",
        {f'vgpu_container_enforced{{reason="GPUs not known",{POD}}}': "0+0x40"},
    ),
    quiet(
        "VgpuLimitsUnseen", "for a while",
        {f'vgpu_container_enforced{{reason="processes not seen",{POD}}}': "0+0x20"}, at="15m",
    ),
    fires("VgpuBypass", "no grant", {f'vgpu_bypass{{kind="no grant",{DEVICE}}}': "_x30 1+0x10"}),
    quiet("VgpuBypass", "it ended", {f'vgpu_bypass{{kind="no grant",{DEVICE}}}': "1+0x20 _x20"}),
    fires(
        "VgpuAccountingDisagrees", "for long",
        {f"vgpu_container_accounting_disagrees{{{DEVICE}}}": "0+0x20 1+0x20"},
    ),
    quiet(
        "VgpuAccountingDisagrees", "for a moment",
        {f"vgpu_container_accounting_disagrees{{{DEVICE}}}": "0+0x37 1 0 0"},
    ),
    fires(
        "VgpuRegionRejected", "the first",
        {'vgpu_region_rejected_total{reason="too short",instance="node-1"}': "_x35 1+0x5"},
    ),
    fires(
        "VgpuRegionRejected", "again and again",
        {'vgpu_region_rejected_total{reason="too short",instance="node-1"}': "1+1x40"},
    ),
    quiet(
        "VgpuRegionRejected", "mended",
        {'vgpu_region_rejected_total{reason="too short",instance="node-1"}': "3+0x40"},
    ),
    quiet(
        "VgpuRegionRejected", "mended, and a scrape failed a quarter of an hour ago",
        {'vgpu_region_rejected_total{reason="too short",instance="node-1"}': "3+0x24 stale 3+0x40"},
    ),
    fires(
        "VgpuContainerThrottled", "most of the time",
        {f"vgpu_container_throttled_seconds_total{{{DEVICE}}}": "0+45x60"}, at="60m",
    ),
    quiet(
        "VgpuContainerThrottled", "now and then",
        {f"vgpu_container_throttled_seconds_total{{{DEVICE}}}": "0+12x60"}, at="60m",
    ),
    fires(
        "VgpuContainerBlocked", "for hours", {f"vgpu_container_blocked{{{DEVICE}}}": "1+0x90"}, at="80m",
    ),
    quiet(
        "VgpuContainerBlocked", "by turns",
        {f"vgpu_container_blocked{{{DEVICE}}}": "1+0x40 0 1+0x50"}, at="80m",
    ),
    fires(
        "VgpuContainerMemoryFull", "97 %",
        {f"vgpu_container_memory_used_bytes{{{DEVICE}}}": "97+0x40",
         f"vgpu_container_memory_limit_bytes{{{DEVICE}}}": "100+0x40"},
    ),
    quiet(
        "VgpuContainerMemoryFull", "half",
        {f"vgpu_container_memory_used_bytes{{{DEVICE}}}": "50+0x40",
         f"vgpu_container_memory_limit_bytes{{{DEVICE}}}": "100+0x40"},
    ),
    quiet(
        "VgpuContainerMemoryFull", "no limit",
        {f"vgpu_container_memory_used_bytes{{{DEVICE}}}": "97+0x40"},
    ),
    fires(
        "VgpuContainerAllocationsRefused", "a few",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "0+0x35 3+0x10"},
    ),
    fires(
        "VgpuContainerAllocationsRefused", "before the first scrape",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "_x30 3+0x40"},
    ),
    quiet(
        "VgpuContainerAllocationsRefused", "an hour ago",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "0+0x5 3+0x40"},
    ),
    quiet(
        "VgpuContainerAllocationsRefused", "before the first scrape, long ago",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "_x5 3+0x40"},
    ),
    quiet(
        "VgpuContainerAllocationsRefused", "none since the first scrape",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "_x30 0+0x40"},
    ),
    quiet(
        "VgpuContainerAllocationsRefused", "long ago, and a scrape failed a quarter of an hour ago",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "3+0x24 stale 3+0x40"},
    ),
    quiet(
        "VgpuContainerAllocationsRefused", "long ago, and the agent was away for half an hour",
        {f"vgpu_container_allocations_refused_total{{{DEVICE}}}": "3+0x10 stale _x28 3+0x10"},
    ),
    fires(
        "VgpuLimitChangesFail", "the first",
        {'vgpu_limit_changes_total{outcome="failed",source="socket",instance="node-1"}': "_x35 1+0x5"},
    ),
    fires(
        "VgpuLimitChangesFail", "another one",
        {'vgpu_limit_changes_total{outcome="failed",source="socket",instance="node-1"}': "1+0x35 2+0x5"},
    ),
    quiet(
        "VgpuLimitChangesFail", "long ago, and a scrape failed a quarter of an hour ago",
        {'vgpu_limit_changes_total{outcome="failed",source="socket",instance="node-1"}': "1+0x24 stale 1+0x40"},
    ),
    quiet(
        "VgpuLimitChangesFail", "asked for too much",
        {'vgpu_limit_changes_total{outcome="refused",source="socket",instance="node-1"}': "0+1x40",
         'vgpu_limit_changes_total{outcome="changed",source="socket",instance="node-1"}': "0+1x40"},
    ),
    fires(
        "VgpuPodsRefused", "the first",
        {'vgpu_allocations_total{outcome="no_pending_pod",instance="node-1"}': "_x38 1 1 1"},
    ),
    fires(
        "VgpuPodsRefused", "another one",
        {'vgpu_allocations_total{outcome="budget_exceeded",instance="node-1"}': "1+0x37 2+0x5"},
    ),
    quiet(
        "VgpuPodsRefused", "long ago, and a scrape failed ten minutes ago",
        {'vgpu_allocations_total{outcome="budget_exceeded",instance="node-1"}': "1+0x29 stale 1+0x40"},
    ),
    quiet(
        "VgpuPodsRefused", "all were granted",
        {'vgpu_allocations_total{outcome="granted",instance="node-1"}': "0+3x40",
         'vgpu_allocations_total{outcome="repeated",instance="node-1"}': "0+1x40"},
    ),
    fires("VgpuAllocateSlow", "1 to 2 s", allocations("2.0")),
    quiet("VgpuAllocateSlow", "10 ms", allocations("0.01")),
    quiet(
        "VgpuAllocateSlow", "the driver makes MIG instances meanwhile",
        {**allocations("+Inf"), 'vgpu_mig_instances_total{what="created",instance="node-1"}': "1+1x40"},
    ),
    fires(
        "VgpuAllocateSlow", "another node's MIG instances excuse nothing",
        {**allocations("2.5"), 'vgpu_mig_instances_total{what="created",instance="node-2"}': "1+1x40"},
    ),
    fires(
        "VgpuGrantMismatch", "one",
        {'vgpu_grant_mismatches_total{instance="node-1"}': "0+0x30 1+0x10"},
    ),
    quiet("VgpuGrantMismatch", "none", {'vgpu_grant_mismatches_total{instance="node-1"}': "0+0x40"}),
    fires(
        "VgpuNodeNotPublished", "no right to",
        {'vgpu_node_register_writes_total{outcome="failed",instance="node-1"}': "0+1x40"},
    ),
    quiet(
        "VgpuNodeNotPublished", "once",
        {'vgpu_node_register_writes_total{outcome="failed",instance="node-1"}': "0+0x30 1+0x10",
         'vgpu_node_register_writes_total{outcome="ok",instance="node-1"}': "0+1x40"},
    ),
    quiet(
        "VgpuNodeNotPublished", "three times, and scrapes that do not fit into half an hour",
        {'vgpu_node_register_writes_total{outcome="failed",instance="node-1"}': "1+0x60 2 3 4+0x60"},
        at="90m", every="70s",
    ),
    fires(
        "VgpuApiRequestsFail", "an old token",
        {'vgpu_api_requests_total{code="401",verb="get",resource="pods",instance="node-1"}': "0+4x40"},
    ),
    fires(
        "VgpuApiRequestsFail", "no answer",
        {'vgpu_api_requests_total{code="none",verb="watch",resource="pods",instance="node-1"}': "0+4x40"},
    ),
    quiet(
        "VgpuApiRequestsFail", "a conflict is no failure",
        {'vgpu_api_requests_total{code="409",verb="patch",resource="pods",instance="node-1"}': "0+4x40",
         'vgpu_api_requests_total{code="200",verb="patch",resource="pods",instance="node-1"}': "0+9x40"},
    ),
    fires(
        "VgpuServiceRestarts", "every ten minutes",
        {'vgpu_service_restarts_total{service="health",instance="node-1"}': "0+0.1x40"},
    ),
    quiet(
        "VgpuServiceRestarts", "once",
        {'vgpu_service_restarts_total{service="health",instance="node-1"}': "0+0x20 1+0x20"},
    ),
    quiet(
        "VgpuServiceRestarts", "twice, and scrapes that do not fit into an hour",
        {'vgpu_service_restarts_total{service="health",instance="node-1"}': "1+0x60 2+0x10 3+0x40"},
        at="101m", every="70s",
    ),
    fires("VgpuUseStale", "stands still", {'vgpu_use_timestamp_seconds{instance="node-1"}': "600+0x40"}),
    quiet(
        "VgpuUseStale", "a minute old",
        {'vgpu_use_timestamp_seconds{instance="node-1"}': "-60+60x40"},
    ),
    fires(
        "VgpuMetricsLeftOut", "too many",
        {'vgpu_metrics_left_out{kind="containers",instance="node-1"}': "7+0x40"},
    ),
    quiet(
        "VgpuMetricsLeftOut", "two of one name for a moment",
        {'vgpu_metrics_left_out{kind="containers",instance="node-1"}': "0+0x37 1 0 0"},
    ),
)  # fmt: skip
