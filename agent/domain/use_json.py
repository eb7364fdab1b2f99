"""How does a node's picture look as JSON? The document of `/v1/use`, version 1.

Names carry their unit. What a tenant can forge is inside "self_reported", what the driver tells is
inside "driver". Null means: not known, or none, as docs/local-api.md says of each.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agent.domain.accounting import ContainerUse, DeviceUse, GpuUse, ProcessUse
from agent.domain.bypass import Bypass
from agent.domain.enforcement import EXPLAINED
from agent.domain.node_picture import NodePicture, of_container, of_gpu, of_node, over_limit_bytes

VERSION = 1
Document = dict[str, Any]


def encode(picture: NodePicture) -> Document:
    """The document, ready for `json.dumps`."""
    use = picture.use
    return {
        "version": VERSION,
        "node": picture.node,
        "agent_version": picture.agent_version,
        "answered_at_s": picture.answered_at_s,
        "taken_at_s": use.taken_at_s or None,
        "not_serving": list(picture.missing),
        "gpus_problem": use.gpus_problem,
        "gpus": [_gpu(picture, gpu) for gpu in use.gpus],
        "containers": [_container(picture, one) for one in use.containers],
        "bypasses": [_bypass(bypass) for bypass in picture.bypasses],
        "rejected_regions": dict(use.rejected_regions),
        "problems": list(of_node(picture)),
    }


def _gpu(picture: NodePicture, gpu: GpuUse) -> Document:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "mig_enabled": gpu.mig_enabled,
        "unhealthy_reason": picture.unhealthy.get(gpu.uuid, ""),
        "driver": {
            "memory_used_bytes": gpu.memory_used_bytes,
            "memory_total_bytes": gpu.memory_total_bytes,
            "utilisation_percent": gpu.utilisation_percent,
            "memory_utilisation_percent": gpu.memory_utilisation_percent,
            "temperature_celsius": gpu.temperature_celsius,
            "power_watts": gpu.power_watts,
            "ecc_corrected": gpu.ecc_corrected,
            "ecc_uncorrected": gpu.ecc_uncorrected,
            "processes": None
            if gpu.processes is None
            else [asdict(process) for process in gpu.processes],
        },
        "problems": list(of_gpu(picture, gpu)),
    }


def _container(picture: NodePicture, one: ContainerUse) -> Document:
    state = one.state
    return {
        "namespace": one.namespace,
        "pod": one.pod,
        "container": one.container,
        "pod_uid": one.pod_uid,
        "tier": one.tier.value,
        "hook_version": one.hook_version,
        "priority": one.priority,
        "enforcement": None
        if state is None
        else {
            "state": state.state.value,
            "reason": state.reason.value,
            "explained": EXPLAINED.get(state.reason, ""),
        },
        "last_kernel_at_s": one.last_kernel_s or None,
        "region_problem": one.region_problem,
        "devices": [_device(device) for device in one.devices],
        "processes": [
            {
                "pid": process.pid,
                "host_pid": process.host_pid or None,
                "gpu_ns": list(process.gpu_ns),
                "self_reported": _process(process, one.devices),
            }
            for process in one.processes
        ],
        "refusals": [asdict(refusal) for refusal in one.refusals],
        "problems": list(of_container(picture, one)),
    }


def _process(process: ProcessUse, devices: Sequence[DeviceUse]) -> Document:
    counters = process.counters
    timed = [bool(device.reported and device.reported.gpu_ns is not None) for device in devices]
    return {
        "used_bytes": list(process.used_bytes),
        "peak_bytes": [one.peak_bytes for one in counters] or None,
        "gpu_ns": [
            one.charged_ns if counts else None for one, counts in zip(counters, timed, strict=False)
        ]
        or None,
        "throttled_ns": [one.throttled_ns for one in counters] or None,
        "refusals": [one.refusals for one in counters] or None,
    }


def _device(device: DeviceUse) -> Document:
    return {
        "place": device.place,
        "uuid": device.uuid,
        "memory_limit_bytes": device.memory_limit_bytes or None,
        "core_limit_permille": device.core_permille or None,
        "core_lent_permille": device.lent_permille,
        "over_limit_bytes": over_limit_bytes(device),
        "blocked": device.blocked,
        "disagrees": device.disagrees,
        "totals": asdict(device.totals),
        "self_reported": None if device.reported is None else asdict(device.reported),
        "driver": {
            "memory_used_bytes": device.driver_bytes,
            "sm_percent": device.driver_sm_percent,
        },
    }


def _bypass(bypass: Bypass) -> Document:
    told = asdict(bypass)
    del told["pids"]  # `explained` and "pid" name one, as in `top`
    return {**told, "kind": bypass.kind.value}
