"""Made-up pictures of the use of GPUs: a small one that has everything, and one of any size."""

from dataclasses import dataclass
from types import MappingProxyType

from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuProcess,
    GpuUse,
    NodeUse,
    ProcessUse,
    SelfReported,
    Tier,
    Totals,
)
from agent.domain.bypass import Bypass, Kind
from agent.domain.enforcement import ContainerState, Reason, State
from agent.domain.gpu import Gpu, GpuInventory, MigDevice
from agent.domain.mig_info import MigInfo
from agent.domain.ownership import Rival
from agent.domain.region import ProcessCounters

MIB, GIB = 1 << 20, 1 << 30
NOW_S = 1_700_000_000.0
GPUS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")


@dataclass
class Node:
    """An agent's own state, as `agent.adapters.metrics.Scraped`."""

    states: tuple[ContainerState, ...] = ()

    def inventory(self) -> GpuInventory:
        return GpuInventory.of(
            (
                Gpu(uuid=GPUS[0], index=0, name="NVIDIA A40", memory_mib=46068),
                Gpu(uuid=GPUS[1], index=1, name="NVIDIA A40", memory_mib=46068,
                    unhealthy_reason="XID 79"),
            )
        )  # fmt: skip

    def service_restarts(self) -> dict[str, int]:
        return {"registrar": 2}

    def registered(self) -> dict[str, bool]:
        return {"nvidia.com/gpu": True}

    def rivals(self) -> tuple[Rival, ...]:
        return (
            Rival(GPUS[0], "nvidia.com/gpu.shared"),
            Rival(GPUS[0], "nvidia.com/gpu.shared", "team/old/main"),
        )

    def cache_directories(self) -> int:
        return 3

    def containers(self) -> tuple[ContainerState, ...]:
        return self.states


STATES = (
    ContainerState(
        namespace="team", pod="infer-0", container="main", state=State.ENFORCED, reason=Reason.NONE
    ),
    ContainerState(
        namespace="team", pod="old", container="main", state=State.NOT_ENFORCEABLE,
        reason=Reason.MUSL,
    ),
)  # fmt: skip
EVERYTHING = NodeUse(
    taken_at_s=NOW_S - 1.5,
    gpus=(
        GpuUse(
            uuid=GPUS[0], index=0, name="NVIDIA A40", memory_used_bytes=9 * GIB,
            memory_total_bytes=45 * GIB, utilisation_percent=83, memory_utilisation_percent=41,
            temperature_celsius=61, power_watts=187.5, ecc_corrected=12, ecc_uncorrected=0,
            processes=(GpuProcess(pid=4001, used_bytes=5 * GIB, sm_percent=60),),
        ),
        GpuUse(
            uuid=GPUS[1], index=1, name='NVIDIA "odd"\\name', memory_used_bytes=None,
            memory_total_bytes=None, utilisation_percent=None, memory_utilisation_percent=None,
            processes=None,
        ),
    ),
    containers=(
        ContainerUse(
            pod_uid="uid-1", namespace="team", pod="infer-0", container="main", tier=Tier.HOOK,
            hook_version="0.3.0-1a2b3c4d", priority=0, state=STATES[0],
            devices=(
                DeviceUse(
                    place=0, uuid=GPUS[0], memory_limit_bytes=8 * GIB, core_permille=300,
                    lent_permille=125, driver_bytes=5 * GIB + 3 * MIB, driver_sm_percent=60,
                    reported=SelfReported(
                        used_bytes=5 * GIB, context_bytes=300 * MIB, module_bytes=20 * MIB,
                        buffer_bytes=4 * GIB, limit_bytes=8 * GIB, peak_bytes=6 * GIB, refusals=2,
                        refused_bytes=4 * GIB, gpu_ns=12_500_000_000, throttled_ns=250_000_000,
                        launches=1234, sm_percent=29,
                    ),
                    totals=Totals(gpu_ns=12_500_000_000, throttled_ns=250_000_000, refusals=2,
                                  refused_bytes=4 * GIB, launches=1234),
                ),
                DeviceUse(place=1, uuid=GPUS[1], memory_limit_bytes=0, core_permille=0),
            ),
            processes=(
                ProcessUse(
                    pid=1, host_pid=4001, used_bytes=(4 * GIB, 0),
                    counters=(
                        ProcessCounters(peak_bytes=5 * GIB, refusals=2, charged_ns=9_250_000_000,
                                        throttled_ns=125_000_000),
                        ProcessCounters(peak_bytes=0, refusals=0, charged_ns=0, throttled_ns=0),
                    ),
                    gpu_ns=(9_250_000_000, None),
                ),
                ProcessUse(pid=17, host_pid=0, used_bytes=(GIB, 0)),
            ),
            last_kernel_s=int(NOW_S) - 7,
        ),
        ContainerUse(
            pod_uid="uid-2", namespace="team", pod="old", container="main", tier=Tier.HAMI_CORE,
            hook_version="", priority=1, state=STATES[1],
            devices=(
                DeviceUse(
                    place=0, uuid=GPUS[0], memory_limit_bytes=2 * GIB, core_permille=100,
                    blocked=True, disagrees=True, driver_bytes=3 * GIB,
                    reported=SelfReported(
                        used_bytes=GIB, context_bytes=0, module_bytes=0, buffer_bytes=GIB,
                        limit_bytes=2 * GIB,
                    ),
                ),
            ),
        ),
    ),
    rejected_regions=MappingProxyType({"not a regular file": 1, "too short": 3}),
)  # fmt: skip
BYPASSES = (
    Bypass(kind=Kind.NO_GRANT, gpu=GPUS[0], namespace="team", pod="sneaky", container="shell"),
)


def crowd(gpus: int, containers_each: int, processes_each: int) -> NodeUse:
    """A node whose GPUs are each shared by so many containers of so many processes."""
    uuids = [f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(gpus)]
    return NodeUse(
        taken_at_s=NOW_S,
        gpus=tuple(
            GpuUse(
                uuid=uuid, index=index, name="NVIDIA H200", memory_used_bytes=100 * GIB + index,
                memory_total_bytes=141 * GIB, utilisation_percent=97,
                memory_utilisation_percent=55, temperature_celsius=66, power_watts=612.345,
                processes=(),
            )
            for index, uuid in enumerate(uuids)
        ),
        containers=tuple(
            _one_of_many(uuid, gpu, number, processes_each)
            for gpu, uuid in enumerate(uuids)
            for number in range(containers_each)
        ),
    )  # fmt: skip


def _one_of_many(uuid: str, gpu: int, number: int, processes: int) -> ContainerUse:
    used = GIB + number * 7 * MIB + gpu
    pod = f"inference-service-{gpu}-{number:03d}-7c9d8f6b5-x2x4z"
    return ContainerUse(
        pod_uid=f"uid-{gpu}-{number}", namespace="machine-learning-team", pod=pod,
        container="inference-server", tier=Tier.HOOK, hook_version="0.3.0-1a2b3c4d", priority=1,
        state=ContainerState(namespace="machine-learning-team", pod=pod,
                             container="inference-server", state=State.ENFORCED,
                             reason=Reason.NONE),
        devices=(
            DeviceUse(
                place=0, uuid=uuid, memory_limit_bytes=2 * GIB, core_permille=10,
                driver_bytes=used + 11,
                reported=SelfReported(
                    used_bytes=used, context_bytes=300 * MIB, module_bytes=20 * MIB,
                    buffer_bytes=used - 320 * MIB, limit_bytes=2 * GIB, peak_bytes=used + 5,
                    refusals=1, refused_bytes=GIB, gpu_ns=123_456_789_012 + number,
                    throttled_ns=34_567_890_123, launches=98_765_432, sm_percent=1,
                ),
                totals=Totals(gpu_ns=123_456_789_012 + number, throttled_ns=34_567_890_123,
                              refusals=1, refused_bytes=GIB, launches=98_765_432),
            ),
        ),
        processes=tuple(
            ProcessUse(pid=1 + n, host_pid=10_000 * gpu + 10 * number + n,
                       used_bytes=(used // processes,),
                       counters=(ProcessCounters(peak_bytes=used // processes + 5, refusals=1,
                                                 charged_ns=12_345_678_901 + n,
                                                 throttled_ns=3_456_789_012),),
                       gpu_ns=(12_345_678_901 + n,))
            for n in range(processes)
        ),
        last_kernel_s=int(NOW_S) - 1,
    )  # fmt: skip


MIGS = (
    MigInfo(
        namespace="team", pod="divided", container="main", place=0, gpu_uuid=GPUS[1],
        device=MigDevice(
            uuid="MIG-aaaaaaaa-bbbb-5ccc-8ddd-eeeeeeeeeeee", profile="1g.5gb", memory_mib=4864,
            gpu_instance=13, compute_instance=0,
        ),
    ),
)  # fmt: skip
