"""The metrics of HAMi's monitor, by its names, labels and units, so that its dashboards go on.

All are gauges. Source: HAMi 2.10, cmd/vGPUmonitor, and its master of autumn 2026. Ratios are
percentages there, 0 to 100, and `device_uuid` of containers is cut after 40 characters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.adapters.metrics_rows import MAX_DEVICES, Shown
from agent.adapters.metrics_text import Family, Page, written
from agent.adapters.metrics_use import names
from agent.domain.accounting import ContainerUse, DeviceUse, GpuUse, NodeUse, SelfReported
from agent.domain.mig_info import MigInfo
from agent.domain.register import type_name

ZONE = {"zone": "vGPU"}  # on every metric but that of the build
UUID_CHARACTERS = 40
OF_HOST = ("device_index", "device_type", "device_uuid", "node", "zone")
OF_VGPU = ("container", "device_uuid", "namespace", "pod", "vdevice_index", "zone")
OLD_HOST = ("deviceidx", "devicetype", "deviceuuid", "nodeid", "zone")
OLD_VGPU = ("ctrname", "deviceuuid", "podname", "podnamespace", "vdeviceid", "zone")


@dataclass(frozen=True, slots=True)
class Device:
    """One vGPU of a container, as the families below look at it."""

    container: ContainerUse
    device: DeviceUse
    now_s: float

    def reported(self, value: Callable[[SelfReported], float | None]) -> float | None:
        """A figure of the container's own; None: nothing was counted yet."""
        return value(self.device.reported) if self.device.reported else None

    def busy_percent(self) -> float | None:
        """Share of the GPU's time: by its library, where it counts that, else by the driver."""
        said = self.reported(lambda reported: reported.sm_percent)
        return self.device.driver_sm_percent if said is None else said

    def elapsed_s(self) -> float | None:
        """Seconds from the last launch; None: not known."""
        last_s = self.container.last_kernel_s
        return max(int(self.now_s) - last_s, 0) if last_s > 0 else None


HOST_USED = Family("hami_host_gpu_memory_used_bytes", OF_HOST,
                   "Memory of the GPU in use, in bytes, as the driver counts it.")  # fmt: skip
HOST_BUSY = Family("hami_host_gpu_utilization_ratio", OF_HOST,
                   "Utilization of the GPU in percent (0 to 100).")  # fmt: skip
HOST_MEMORY_BUSY = Family("hami_host_gpu_memory_controller_utilization_ratio", OF_HOST,
                          "Utilization of the GPU's memory in percent (0 to 100).")  # fmt: skip
HOST_TEMPERATURE = Family("hami_host_gpu_temperature_celsius", OF_HOST,
                          "Temperature of the GPU, as the driver tells it.")  # fmt: skip
HOST_POWER = Family("hami_host_gpu_power_usage_watts", OF_HOST,
                    "Power that the GPU draws, as the driver tells it.")  # fmt: skip
HOST_ECC = Family("hami_host_gpu_ecc_errors_total", tuple(sorted((*OF_HOST, "error_type"))),
                  "Memory errors of the GPU over its life, as it keeps count of them.")  # fmt: skip
OLD_HOST_USED = Family("HostGPUMemoryUsage", OLD_HOST, "Old name of "
                       "hami_host_gpu_memory_used_bytes.")  # fmt: skip
OLD_HOST_BUSY = Family("HostCoreUtilization", OLD_HOST, "Old name of "
                       "hami_host_gpu_utilization_ratio.")  # fmt: skip

VGPU_FAMILIES: Sequence[tuple[Family, Callable[[Device], float | None]]] = (
    (
        Family("hami_vgpu_memory_used_bytes", OF_VGPU,
               "Self-reported: GPU memory that the container uses, in bytes."),
        lambda it: it.reported(lambda reported: reported.used_bytes),
    ),
    (
        Family("hami_vgpu_memory_limit_bytes", OF_VGPU,
               "GPU memory that the container may use, in bytes; 0 without a limit."),
        lambda it: it.device.memory_limit_bytes,
    ),
    (
        Family("hami_container_device_memory_bytes", OF_VGPU,
               "Self-reported: GPU memory that the container uses, in bytes."),
        lambda it: it.reported(lambda reported: reported.used_bytes),
    ),
    (
        Family("hami_vgpu_memory_context_bytes", OF_VGPU,
               "Self-reported: GPU memory of the container's CUDA contexts, in bytes."),
        lambda it: it.reported(lambda reported: reported.context_bytes),
    ),
    (
        Family("hami_vgpu_memory_module_bytes", OF_VGPU,
               "Self-reported: GPU memory of the container's CUDA modules, in bytes."),
        lambda it: it.reported(lambda reported: reported.module_bytes),
    ),
    (
        Family("hami_vgpu_memory_buffer_bytes", OF_VGPU,
               "Self-reported: GPU memory that the container allocated, in bytes."),
        lambda it: it.reported(lambda reported: reported.buffer_bytes),
    ),
    (
        Family("hami_container_device_utilization_ratio", OF_VGPU,
               "Self-reported: share of the GPU's time that the container had, in percent; "
               "without a core limit as the driver counts it."),
        Device.busy_percent,
    ),
    (
        Family("hami_container_last_kernel_elapsed_seconds", OF_VGPU,
               "Self-reported: seconds since the container's last launch."),
        Device.elapsed_s,
    ),
)  # fmt: skip

OLD_VGPU_FAMILIES: Sequence[tuple[Family, Callable[[Device], float | None]]] = (
    (
        Family("vGPU_device_memory_usage_in_bytes", OLD_VGPU,
               "Self-reported: old name of hami_vgpu_memory_used_bytes."),
        lambda it: it.reported(lambda reported: reported.used_bytes),
    ),
    (
        Family("vGPU_device_memory_limit_in_bytes", OLD_VGPU,
               "Old name of hami_vgpu_memory_limit_bytes."),
        lambda it: it.device.memory_limit_bytes,
    ),
    (
        Family("Device_utilization_desc_of_container", OLD_VGPU,
               "Self-reported: old name of hami_container_device_utilization_ratio."),
        Device.busy_percent,
    ),
    (
        Family("Device_last_kernel_of_container", OLD_VGPU,
               "Self-reported: old name of hami_container_last_kernel_elapsed_seconds."),
        Device.elapsed_s,
    ),
)  # fmt: skip
OLD_SPLIT = Family("Device_memory_desc_of_container",
                   tuple(sorted((*OLD_VGPU, "context", "data", "module", "offset"))),
                   "Self-reported: GPU memory that the container uses, split up in labels: each "
                   "new value is a new series.")  # fmt: skip
MIG = Family("hami_mig_device_info",
             tuple(sorted((*OF_VGPU, "mig_uuid", "profile", "gpu_instance_id",
                           "compute_instance_id"))),
             "Always 1: the MIG device of a container.")  # fmt: skip
OLD_MIG = Family("MigInfo", tuple(sorted((*OLD_VGPU, "instanceid"))),
                 "Old name of hami_mig_device_info, by GPU instance.")  # fmt: skip
BUILD = Family("hami_build_info",
               ("build_date", "compiler", "go_version", "platform", "revision", "version"),
               "Always 1: which build of the agent this is.")  # fmt: skip


def add_hami(
    page: Page,
    use: NodeUse,
    chosen: Shown,
    *,
    node_name: str,
    build: Mapping[str, str],
    now_s: float,
    legacy: bool,
    migs: Iterable[MigInfo] = (),
) -> None:
    """Write all of them. `legacy`: by the names of HAMi 2.8 and older, too."""
    page.add(BUILD, [(written(build), 1)])
    _add_hosts(page, use.gpus, node_name, legacy=legacy)
    found = [Device(container, device, now_s) for container, device in chosen.devices()]
    labelled = {written(_labels(one)): one for one in found}.items()
    for family, value in VGPU_FAMILIES:
        page.add(family, ((labels, value(one)) for labels, one in labelled))
    migs = list(migs)[:MAX_DEVICES]
    page.add(MIG, {written(_mig_labels(one)): 1 for one in migs}.items())
    if legacy:
        _add_old(page, found)
        page.add(OLD_MIG, {written(_old_mig_labels(one)): 1 for one in migs}.items())


def _mig_labels(it: MigInfo) -> dict[str, str]:
    return {
        "namespace": it.namespace,
        "pod": it.pod,
        "container": it.container,
        "vdevice_index": str(it.place),
        "device_uuid": it.gpu_uuid[:UUID_CHARACTERS],
        "mig_uuid": it.device.uuid,
        "profile": it.device.profile,
        "gpu_instance_id": str(it.device.gpu_instance),
        "compute_instance_id": str(it.device.compute_instance),
        **ZONE,
    }


def _old_mig_labels(it: MigInfo) -> dict[str, str]:
    return {
        "podnamespace": it.namespace,
        "podname": it.pod,
        "ctrname": it.container,
        "vdeviceid": str(it.place),
        "deviceuuid": it.gpu_uuid[:UUID_CHARACTERS],
        "instanceid": str(it.device.gpu_instance),
        **ZONE,
    }


def _add_old(page: Page, found: Sequence[Device]) -> None:
    old = {written(_old_labels(one)): one for one in found}.items()
    for family, value in OLD_VGPU_FAMILIES:
        page.add(family, ((labels, value(one)) for labels, one in old))
    split = {
        written(_old_labels(one) | _split(one.device.reported)): one.device.reported.used_bytes
        for one in found
        if one.device.reported
    }
    page.add(OLD_SPLIT, split.items())


def _add_hosts(page: Page, gpus: Sequence[GpuUse], node_name: str, *, legacy: bool) -> None:
    hosts = [(written(_host_labels(gpu, node_name)), gpu) for gpu in gpus]
    page.add(HOST_USED, ((labels, gpu.memory_used_bytes) for labels, gpu in hosts))
    page.add(HOST_BUSY, ((labels, gpu.utilisation_percent) for labels, gpu in hosts))
    page.add(HOST_MEMORY_BUSY, ((labels, gpu.memory_utilisation_percent) for labels, gpu in hosts))
    page.add(HOST_TEMPERATURE, ((labels, gpu.temperature_celsius) for labels, gpu in hosts))
    page.add(HOST_POWER, ((labels, gpu.power_watts) for labels, gpu in hosts))
    page.add(
        HOST_ECC,
        (
            (written(_host_labels(gpu, node_name) | {"error_type": kind}), count)
            for gpu in gpus
            for kind, count in gpu.ecc_errors
        ),
    )
    if legacy:
        old = [(written(_old_host_labels(gpu, node_name)), gpu) for gpu in gpus]
        page.add(OLD_HOST_USED, ((labels, gpu.memory_used_bytes) for labels, gpu in old))
        page.add(OLD_HOST_BUSY, ((labels, gpu.utilisation_percent) for labels, gpu in old))


def _host_labels(gpu: GpuUse, node_name: str) -> dict[str, str]:
    return {
        "device_index": str(gpu.index),
        "device_type": type_name(gpu.name, "json"),  # of the schedulers with metrics so named
        "device_uuid": gpu.uuid,
        "node": node_name,
        **ZONE,
    }


def _old_host_labels(gpu: GpuUse, node_name: str) -> dict[str, str]:
    return {
        "deviceidx": str(gpu.index),
        "devicetype": type_name(gpu.name, "csv9"),
        "deviceuuid": gpu.uuid,
        "nodeid": node_name,
        **ZONE,
    }


def _labels(it: Device) -> dict[str, str]:
    return names(it.container) | {
        "vdevice_index": str(it.device.place),
        "device_uuid": it.device.uuid[:UUID_CHARACTERS],
        **ZONE,
    }


def _old_labels(it: Device) -> dict[str, str]:
    return {
        "podnamespace": it.container.namespace,
        "podname": it.container.pod,
        "ctrname": it.container.container,
        "vdeviceid": str(it.device.place),
        "deviceuuid": it.device.uuid[:UUID_CHARACTERS],
        **ZONE,
    }


def _split(reported: SelfReported) -> dict[str, str]:
    rest = reported.used_bytes - reported.context_bytes
    rest -= reported.module_bytes + reported.buffer_bytes
    return {
        "context": str(reported.context_bytes),
        "module": str(reported.module_bytes),
        "data": str(reported.buffer_bytes),
        "offset": str(rest),
    }
