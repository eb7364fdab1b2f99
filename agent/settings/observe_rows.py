"""Rows of the table: who uses the GPUs, who is told, and how that is changed."""

from agent.settings import kinds
from agent.settings.setting import OBSERVE, STEER, Setting

ROWS = (
    Setting(
        name="web-page",
        group=OBSERVE,
        kind=kinds.SWITCH,
        field="web_page",
        help="Show who uses the GPUs as a page at / of --metrics-bind-address, and as JSON at "
        "/v1/use.",
    ),
    Setting(
        name="legacy-metrics",
        group=OBSERVE,
        kind=kinds.SWITCH,
        field="legacy_metrics",
        help="Also give the metrics under the names that HAMi used before 2.9.",
    ),
    Setting(
        name="metrics-per-process",
        group=OBSERVE,
        kind=kinds.SWITCH,
        field="metrics_per_process",
        help="Also tell the memory, GPU seconds, throttled seconds and refused allocations of each "
        "process: many time series where processes come and go.",
    ),
    Setting(
        name="accounting-interval",
        group=OBSERVE,
        kind=kinds.DURATION,
        field="accounting_every_s",
        help="How often the use of GPUs is read while there are containers with vGPUs.",
    ),
    Setting(
        name="runtime-dir",
        group=OBSERVE,
        kind=kinds.PATH,
        field="runtime_dir",
        help="Directory of the sockets by which `vgpu-agent top` and `vgpu-agent limit` reach the "
        "agent on this node.",
    ),
    Setting(
        name="socket-group",
        group=OBSERVE,
        kind=kinds.TEXT,
        field="socket_group",
        value_text="none: root alone",
        help="Group, by name or number, whose members may run `vgpu-agent top`.",
    ),
    Setting(
        name="bypass-interval",
        group=OBSERVE,
        kind=kinds.DURATION,
        field="bypass_every_s",
        help="How often the processes on GPUs are compared with the grants.",
    ),
    Setting(
        name="on-bypass",
        group=OBSERVE,
        kind=kinds.TEXT,
        field="on_bypass",
        help="What happens to a pod that uses a shared GPU without a grant, past it, or without "
        "what enforces it: it is reported (log, Event, metric), or also evicted; the agent's "
        "account then needs `create` on `pods/eviction`.",
    ),
    Setting(
        name="bypass-allow-programs",
        group=OBSERVE,
        kind=kinds.WORDS,
        field="bypass_allow_programs",
        help="Programs of the host, by file name, that may use shared GPUs.",
    ),
    Setting(
        name="bypass-allow-namespaces",
        group=OBSERVE,
        kind=kinds.WORDS,
        field="bypass_allow_namespaces",
        help="Namespaces whose pods may use shared GPUs without a grant.",
    ),
    Setting(
        name="owners-interval",
        group=OBSERVE,
        kind=kinds.DURATION,
        field="owners_every_s",
        by_mode={"volcano": 300.0},  # there kubelet's answer is megabytes: a device per unit
        help="How often kubelet is asked whether another device plugin or DRA driver offers or "
        "holds the GPUs that are shared here.",
    ),
    Setting(
        name="limits-annotation",
        group=STEER,
        kind=kinds.TEXT,
        field="limits_annotation",
        help="What the annotation vgpu-agent/limits of a running pod may do: nothing (off), lower "
        "its limits and raise them again up to its grant (lower), or set any that fits (any). "
        "Whoever may edit the pod writes it.",
    ),
    Setting(
        name="priorities",
        group=STEER,
        kind=kinds.SWITCH,
        field="priorities",
        help="Have containers of lower priority (CUDA_TASK_PRIORITY) wait while those of a higher "
        "one use the same GPU, and suspend core limits for who is alone on it, as HAMi does.",
    ),
    Setting(
        name="priority-from",
        group=STEER,
        kind=kinds.TEXT,
        field="priority_from",
        help="Where a container's priority is read: from its pod, so that its processes can lower "
        "it only, or from its usage region, as HAMi's monitor does.",
    ),
    Setting(
        name="core-lending",
        group=STEER,
        kind=kinds.SWITCH,
        field="core_lending",
        help="Lend idle shares of GPU time to containers that could use more; they are lent and "
        "returned within 100 ms.",
    ),
)
