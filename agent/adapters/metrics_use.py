"""Metrics of what GPUs do and containers use, in base units: the agent's own names.

What a container's library counts is its own word and says so in its help; what the driver counts
of the same is a metric of its own, so that the two can be compared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.adapters.metrics_rows import VERSION_CHARACTERS, Shown
from agent.adapters.metrics_text import Family, Page, written
from agent.domain.accounting import ContainerUse, DeviceUse, GpuUse, NodeUse, ProcessUse
from agent.domain.bypass import Bypass
from agent.domain.enforcement import ContainerState, State

NS_PER_S = 1e9
MAX_BYPASSES = 256
OF_CONTAINER = ("container", "namespace", "pod")
OF_DEVICE = ("container", "gpu", "namespace", "pod")
OF_PROCESS = ("container", "gpu", "namespace", "pid", "pod")

GPU_FAMILIES: Sequence[tuple[Family, Callable[[GpuUse], float | None]]] = (
    (
        Family("vgpu_gpu_memory_used_bytes", ("gpu",),
               "Memory of the GPU that programs hold, as the driver counts it."),
        lambda gpu: gpu.memory_used_bytes,
    ),
    (
        Family("vgpu_gpu_utilization_ratio", ("gpu",),
               "Share of the time (0 to 1) in which any kernel ran on the GPU, as the driver "
               "counts it; 1 does not mean that the GPU could do no more."),
        lambda gpu: _ratio(gpu.utilisation_percent),
    ),
    (
        Family("vgpu_gpu_temperature_celsius", ("gpu",),
               "Temperature of the GPU, as the driver tells it."),
        lambda gpu: gpu.temperature_celsius,
    ),
    (
        Family("vgpu_gpu_power_watts", ("gpu",),
               "Power that the GPU draws, as the driver tells it."),
        lambda gpu: gpu.power_watts,
    ),
)  # fmt: skip

ECC = Family(
    "vgpu_gpu_ecc_errors_total", ("gpu", "kind"),
    "Memory errors of the GPU over its life, as it keeps count of them; `uncorrected` ones cost "
    "programs their data. Absent for a GPU without ECC.",
)  # fmt: skip

DEVICE_FAMILIES: Sequence[tuple[Family, Callable[[DeviceUse], float | None]]] = (
    (
        Family("vgpu_container_memory_used_bytes", OF_DEVICE,
               "Self-reported: GPU memory that the container's processes hold, contexts and "
               "modules included; compare vgpu_container_memory_driver_bytes."),
        lambda device: device.reported.used_bytes if device.reported else None,
    ),
    (
        Family("vgpu_container_memory_peak_bytes", OF_DEVICE,
               "Self-reported: the most GPU memory that the container ever held."),
        lambda device: device.reported.peak_bytes if device.reported else None,
    ),
    (
        Family("vgpu_container_memory_limit_bytes", OF_DEVICE,
               "GPU memory that the container may use, live changes included; absent without a "
               "limit."),
        lambda device: device.memory_limit_bytes or None,
    ),
    (
        Family("vgpu_container_memory_driver_bytes", OF_DEVICE,
               "GPU memory of the container's processes as the driver counts it; absent where the "
               "driver or the node does not show whose a process is."),
        lambda device: device.driver_bytes,
    ),
    (
        Family("vgpu_container_gpu_driver_ratio", OF_DEVICE,
               "Share of the GPU's time (0 to 1) that the container's processes had lately, as the "
               "driver counts it; absent where the driver or the node does not show whose a "
               "process is."),
        lambda device: _ratio(device.driver_sm_percent),
    ),
    (
        Family("vgpu_container_core_limit_ratio", OF_DEVICE,
               "Share of the GPU's time (0 to 1) that the container may use, live changes "
               "included; absent without a limit."),
        lambda device: device.core_permille / 1000 or None,
    ),
    (
        Family("vgpu_container_core_lent_ratio", OF_DEVICE,
               "Idle share of other containers (0 to 1) that the container may use on top now."),
        lambda device: device.lent_permille / 1000,
    ),
    (
        Family("vgpu_container_gpu_seconds_total", OF_DEVICE,
               "Self-reported: GPU time that the container was charged; its rate is the share of "
               "the GPU that it gets. Without a core limit its library counts none: then what the "
               "driver says of its processes, vgpu_container_gpu_driver_ratio, adds up here."),
        lambda device: (
            device.totals.gpu_ns / NS_PER_S
            if _counts(device, "gpu_ns") or device.driver_sm_percent is not None
            else None
        ),
    ),
    (
        Family("vgpu_container_throttled_seconds_total", OF_DEVICE,
               "Self-reported: time that the container's launches waited for its share; a rate "
               "near the number of its busy processes means that its share is what holds it up."),
        lambda device: (
            device.totals.throttled_ns / NS_PER_S if _counts(device, "throttled_ns") else None
        ),
    ),
    (
        Family("vgpu_container_allocations_refused_total", OF_DEVICE,
               "Self-reported: allocations refused because they would have exceeded the "
               "container's memory limit; its program saw CUDA_ERROR_OUT_OF_MEMORY."),
        lambda device: device.totals.refusals if _counts(device, "refusals") else None,
    ),
    (
        Family("vgpu_container_launches_total", OF_DEVICE,
               "Self-reported: kernels and graphs that the container launched."),
        lambda device: device.totals.launches if _counts(device, "launches") else None,
    ),
    (
        Family("vgpu_container_blocked", OF_DEVICE,
               "1 while a container of higher priority keeps this one from launching; with "
               "HAMi-core's library as its own file says."),
        lambda device: int(device.blocked),
    ),
    (
        Family("vgpu_container_accounting_disagrees", OF_DEVICE,
               "1 while the driver sees more memory in use than the container counts: it uses a "
               "GPU past its limits, or its own figures are forged."),
        lambda device: int(device.disagrees),
    ),
)  # fmt: skip

INFO = Family("vgpu_container_info", ("container", "hook_version", "namespace", "pod", "tier"),
              "Always 1: what keeps the limits of the container (`kernel`, `hook`, `hami-core` or "
              "`none`), and the version of the library.")  # fmt: skip
CONTAINER_FAMILIES: Sequence[tuple[Family, Callable[[ContainerUse], float | None]]] = (
    (
        Family("vgpu_container_priority", OF_CONTAINER,
               "Priority of the container; 0 is the highest, 1 is what nobody asked for."),
        lambda container: container.priority,
    ),
    (
        Family("vgpu_container_last_kernel_timestamp_seconds", OF_CONTAINER,
               "Self-reported: unix time of the container's last launch; absent before the first."),
        lambda container: container.last_kernel_s or None,
    ),
)  # fmt: skip
ENFORCED = Family("vgpu_container_enforced", (*OF_CONTAINER, "reason"),
                  "1 while the limits of a container with vGPUs hold for its processes, none of "
                  "them uses a GPU (reason `idle`), or it has its GPUs all to itself (reason "
                  "`whole GPU`); at 0 `reason` and the pod's events say why they do not, or why "
                  "that is not known.")  # fmt: skip
PROCESS_FAMILIES: Sequence[tuple[Family, Callable[[ProcessUse, DeviceUse], float | None]]] = (
    (
        Family("vgpu_process_memory_used_bytes", OF_PROCESS,
               "Self-reported: GPU memory that a process of the container holds; `pid` is the one "
               "that it has in the container, and several with one, of different pid namespaces, "
               "are added up in all metrics of processes, whose counters fall when one ends."),
        lambda process, device: process.used_bytes[device.place],
    ),
    (
        Family("vgpu_process_memory_peak_bytes", OF_PROCESS,
               "Self-reported: the most GPU memory that the process ever held; its limit is the "
               "container's, vgpu_container_memory_limit_bytes."),
        lambda process, device: _counter(process, device, "peak_bytes"),
    ),
    (
        Family("vgpu_process_gpu_seconds_total", OF_PROCESS,
               "Self-reported: GPU time that the process was charged since it began; without a "
               "core limit what the driver says of it adds up here."),
        lambda process, device: _gpu_s(process, device.place),
    ),
    (
        Family("vgpu_process_throttled_seconds_total", OF_PROCESS,
               "Self-reported: time that the process's launches waited for the container's share."),
        lambda process, device: _counter(process, device, "throttled_ns", NS_PER_S),
    ),
    (
        Family("vgpu_process_allocations_refused_total", OF_PROCESS,
               "Self-reported: allocations of the process refused because they would have exceeded "
               "the container's memory limit."),
        lambda process, device: _counter(process, device, "refusals"),
    ),
)  # fmt: skip
BYPASS = Family("vgpu_bypass", ("container", "gpu", "kind", "namespace", "pod"),
                "1 while a process uses a GPU without a grant, beyond it, or without the library "
                "that keeps its limits; `kind` says which.")  # fmt: skip
REJECTED = Family("vgpu_region_rejected_total", ("reason",),
                  "How often a file in which a container counts its use was not read because it is "
                  "none; the container's owner may have written to it.")  # fmt: skip
TAKEN_AT = Family("vgpu_use_timestamp_seconds", (),
                  "Unix time at which the use of GPUs was looked at; when it stands still, the "
                  "figures of use are old and the agent's log says why.")  # fmt: skip
LEFT_OUT = Family("vgpu_metrics_left_out", ("kind",),
                  "Containers, processes and bypasses that exist and have no metrics, because "
                  "there are too many or two have one name.")  # fmt: skip


def add_use(page: Page, use: NodeUse, chosen: Shown) -> None:
    """Write what is known of the use of GPUs; nothing of what is not in the picture."""
    page.add(TAKEN_AT, [("", use.taken_at_s or None)])
    gpus = [(written({"gpu": gpu.uuid}), gpu) for gpu in use.gpus]
    for family, of_gpu in GPU_FAMILIES:
        page.add(family, ((labels, of_gpu(gpu)) for labels, gpu in gpus))
    page.add(
        ECC,
        (
            (written({"gpu": gpu.uuid, "kind": kind}), count)
            for gpu in use.gpus
            for kind, count in gpu.ecc_errors
        ),
    )
    containers = [(written(names(one)), one) for one in chosen.containers]
    page.add(INFO, ((written(_info(one)), 1) for one in chosen.containers))
    for of_one, value in CONTAINER_FAMILIES:
        page.add(of_one, ((labels, value(one)) for labels, one in containers))
    devices = list(_devices(chosen).items())
    for of_device, figure in DEVICE_FAMILIES:
        page.add(of_device, ((labels, figure(device)) for labels, device in devices))
    page.add(REJECTED, _rejected(use.rejected_regions))


def add_processes(page: Page, chosen: Shown) -> None:
    """Write what each process says that it holds and has had, of GPUs that its container counts.

    Those of one pid are added up: each pid namespace of a container has a 1, and a process that
    executed a program beside its children has an entry for each. What the driver says of one is
    said of all its entries, and a GPU that was given twice is one.
    """
    rows: dict[str, list[tuple[ProcessUse, DeviceUse]]] = {}
    for container, processes in chosen.processes:
        for device in {one.uuid: one for one in container.devices}.values():
            labels = written(names(container) | {"gpu": device.uuid})
            for process in processes:
                if device.reported is not None and device.place < len(process.used_bytes):
                    row = rows.setdefault(f'{labels},pid="{process.pid}"', [])
                    row.append((_told_once(process, row), device))
    for family, figure in PROCESS_FAMILIES:
        page.add(
            family, ((labels, _sum(figure(*one) for one in of)) for labels, of in rows.items())
        )


def add_enforced(page: Page, states: Sequence[ContainerState]) -> None:
    """Write whose limits hold."""
    rows = {}
    for one in states:
        labels = {"namespace": one.namespace, "pod": one.pod, "container": one.container}
        holds = one.state in (State.ENFORCED, State.IDLE, State.UNLIMITED)
        rows[written(labels | {"reason": one.reason.value})] = float(holds)
    page.add(ENFORCED, rows.items())


def add_bypasses(page: Page, bypasses: Iterable[Bypass]) -> int:
    """Write who uses a GPU past the limits; gives how many of them were left out."""
    found = list(dict.fromkeys(_bypass(one) for one in bypasses))
    page.add(BYPASS, ((labels, 1) for labels in found[:MAX_BYPASSES]))
    return max(0, len(found) - MAX_BYPASSES)


def add_left_out(page: Page, chosen: Shown, bypasses: int) -> None:
    """Write how much is missing here."""
    kinds = {
        "bypasses": bypasses,
        "containers": chosen.containers_left_out,
        "processes": chosen.processes_left_out,
    }
    page.add(LEFT_OUT, ((written({"kind": kind}), count) for kind, count in kinds.items()))


def names(container: ContainerUse) -> dict[str, str]:
    """Labels that say which container; the API server has validated these names."""
    return {
        "namespace": container.namespace,
        "pod": container.pod,
        "container": container.container,
    }


def _bypass(one: Bypass) -> str:
    labels = {"kind": one.kind.value, "namespace": one.namespace, "pod": one.pod}
    return written(labels | {"container": one.container, "gpu": one.gpu})


def _info(container: ContainerUse) -> dict[str, str]:
    version = container.hook_version[:VERSION_CHARACTERS]
    return names(container) | {"tier": container.tier.value, "hook_version": version}


def _devices(chosen: Shown) -> dict[str, DeviceUse]:
    """By labels, so that a GPU which a container was given twice is there once."""
    found: dict[str, DeviceUse] = {}
    for container, device in chosen.devices():
        found.setdefault(written(names(container) | {"gpu": device.uuid}), device)
    return found


def _told_once(process: ProcessUse, row: Sequence[tuple[ProcessUse, DeviceUse]]) -> ProcessUse:
    """Without the driver's figure if another entry of the same process has it."""
    told = any((one.host_pid, one.gpu_ns) == (process.host_pid, process.gpu_ns) for one, _ in row)
    return replace(process, gpu_ns=()) if process.host_pid and told else process


def _sum(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _counter(process: ProcessUse, device: DeviceUse, name: str, unit: float = 1) -> float | None:
    """None: its library does not count by process, as HAMi-core's and those of older agents."""
    if device.place >= len(process.counters):
        return None
    return float(getattr(process.counters[device.place], name)) / unit


def _gpu_s(process: ProcessUse, place: int) -> float | None:
    gpu_ns = process.gpu_ns[place] if place < len(process.gpu_ns) else None
    return None if gpu_ns is None else gpu_ns / NS_PER_S


def _rejected(reasons: Mapping[str, int]) -> Iterable[tuple[str, float]]:
    return ((written({"reason": reason}), count) for reason, count in sorted(reasons.items()))


def _counts(device: DeviceUse, figure: str) -> bool:
    """Whether the container's library counts this, or did before its file could not be read.

    HAMi-core's has no counters, and in a container without a library nobody counts.
    """
    if device.reported is None:
        return bool(getattr(device.totals, figure))
    return getattr(device.reported, figure) is not None


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
