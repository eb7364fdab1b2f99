"""What doctor looks at on the Node in mode volcano: what Volcano's scheduler reads there."""

from collections.abc import Mapping

from agent.config import Config
from agent.doctor.finding import Finding, failed, ok, warning
from agent.domain.gpu import GpuInventory
from agent.domain.volcano import CORES, FACTOR, HANDSHAKE, MEMORY, NUMBER, REGISTER
from agent.domain.volcano_units import judge_factor, objection

LOGS = (
    "journalctl -u vgpu-agent -n 50   # of a DaemonSet: kubectl -n kube-system logs, of the pod of "
    "this node"
)
FIELDS = 6
UNANSWERED_S = 60.0  # after which schedulers up to 1.15 give a node up


def register(config: Config, annotations: Mapping[str, str]) -> Finding:
    """The GPUs are told, in units of a factor that is told, too."""
    value = annotations.get(REGISTER)
    if value is None:
        return failed(
            f"the Node has no annotation {REGISTER}: the scheduler does not know of its GPUs", LOGS
        )
    records = [record for record in value.split(":") if record]
    if any(len(record.split(",")) != FIELDS for record in records):
        return warning(
            f"{REGISTER} has records of other than {FIELDS} fields: another version of a device "
            "plugin wrote it, and newer schedulers drop the node for it",
            LOGS,
        )
    told = annotations.get(FACTOR, "")
    if config.memory_factor and told != str(config.memory_factor):
        return warning(
            f"a unit of {MEMORY} is {told or 'not known how many'} MiB by {FACTOR}, and these "
            f"settings say {config.memory_factor}",
            "vgpu-agent config --mode volcano | grep gpu-memory-factor",
        )
    return ok(f"{REGISTER} has {len(records)} GPUs, in units of {told or '?'} MiB")


def protocol(
    config: Config,
    annotations: Mapping[str, str],
    allocatable: Mapping[str, object],
    *,
    asked_ago_s: float | None,
) -> Finding:
    """Old and new schedulers find what they go by; `asked_ago_s`: how long one waits for us."""
    empty = [name for name in (NUMBER, MEMORY, CORES) if str(allocatable.get(name, "0")) == "0"]
    if empty:
        return failed(
            f"kubelet has no {', '.join(empty)} to give: Volcano's scheduler since 1.16 takes the "
            "node for one without GPUs",
            f"kubectl get node {config.node_name} -o jsonpath='{{.status.allocatable}}'",
        )
    value = annotations.get(HANDSHAKE)
    if value is None:
        return warning(
            f"the Node has no {HANDSHAKE}: Volcano's scheduler up to 1.15 overlooks it",
            "vgpu-agent run --mode volcano --handshake on   # not needed by newer ones",
        )
    if asked_ago_s is not None and asked_ago_s > UNANSWERED_S:
        return failed(
            f"{HANDSHAKE} has been {value[:80]!r} for {asked_ago_s:.0f} s, and nobody answers: a "
            "scheduler up to 1.15 takes the node out",
            LOGS if config.answers_handshake else "vgpu-agent run --mode volcano --handshake on",
        )
    return ok(f"{HANDSHAKE} is {value[:80]!r}, and kubelet counts all three resources")


def units(config: Config, gpus: GpuInventory) -> Finding:
    """Kubelet's messages go through with the units of memory that these settings make."""
    sharing, factor, form = config.sharing, config.memory_factor, config.memory_ids
    verdict = judge_factor(gpus, sharing, factor, form)
    if why := objection(gpus, sharing, factor, form):
        return failed(why, f"vgpu-agent run --mode volcano --gpu-memory-factor {verdict.smallest}")
    return ok(
        f"units of {verdict.factor} MiB make a list of {verdict.list_bytes} bytes, of 4 MiB that "
        f"kubelet takes, and a status of {verdict.status_bytes}; {verdict.smallest} would do"
    )
