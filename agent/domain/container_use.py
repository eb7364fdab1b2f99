"""What is to be said of one container: its grant, its region, its processes and the driver, joined.

Figures of a region are a tenant's word: bounded here, so that nobody who shows them has to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuUse,
    ProcessUse,
    SelfReported,
    Tier,
    Totals,
)
from agent.domain.enforcement import ContainerState, State
from agent.domain.feedback import DEFAULT_PRIORITY, priority_of
from agent.domain.grants import Claim
from agent.domain.limits_file import MIB, CorePolicy, DeviceLimit, LimitsFile, limits_of
from agent.domain.region import (
    LEDGER_BYTES_MASK,
    Counters,
    ProcessCounters,
    Refusal,
    Region,
    RegionDevice,
    RegionProcess,
)
from agent.domain.region_reading import TICKS_PER_S, RegionReading
from agent.domain.subjects import Subject
from agent.domain.totals import MOST, PER_SECOND

MAX_PROCESSES_TOLD = 64  # of one container; all of them are in the sums
ASKED, ANSWERED_NS = 1, 7_000_000_000  # in recent_kernel, and for how long the hook waits
NOTHING_COUNTED = ProcessCounters(peak_bytes=0, refusals=0, charged_ns=0, throttled_ns=0)
SEEN_UUID_CHARS = 40  # of a region's uuids, as HAMi's monitor takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found of it in one round."""

    reading: RegionReading
    slots: tuple[RegionProcess, ...] = ()  # of processes that live
    now_ticks: int = 0  # from boot, after the slots were read
    pids: frozenset[int] | None = None  # on the node; None: not known
    limits: LimitsFile | None = None  # as they are now; None: as they were granted
    state: ContainerState | None = None
    asked_priority: int = DEFAULT_PRIORITY  # of its pod
    priority_of_region: bool = False  # its library's word is believed


def granted_devices(
    claims: Sequence[Claim], limits: LimitsFile | None, region: Region | None
) -> tuple[DeviceLimit, ...]:
    """The container's GPUs in its own order, and what it may use of each now.

    Without limits file and claims, as in a container that somebody else's agent has granted, its
    region is asked.
    """
    if limits is None:
        limits = limits_of(claims, cache_path="/") if claims else None
    if limits is not None:
        return limits.devices
    if claims:
        return tuple(
            DeviceLimit(
                uuid=claim.uuid,
                memory_limit_bytes=max(0, claim.memory_mib) * MIB,
                core_permille=_permille(claim.core_percent),
            )
            for claim in claims
        )
    return tuple(
        DeviceLimit(
            uuid=device.uuid,
            memory_limit_bytes=_bytes(device.limit_bytes),
            core_permille=_permille(device.core_percent),
        )
        for device in (region.devices if region else ())
        if device.uuid
    )


def _permille(percent: int) -> int:
    return percent * 10 if 0 < percent < 100 else 0  # noqa: PLR2004 - the whole GPU: no limit


def _bytes(value: int) -> int:
    return max(0, min(value, LEDGER_BYTES_MASK))


def region_place(region: Region, devices: Sequence[DeviceLimit], place: int) -> int | None:
    """Where a region counts the container's GPU of this place: by uuid, else in the same place.

    A place that is another GPU's of the container is not taken.
    """
    named = {_known(device.uuid): index for index, device in reversed([*enumerate(region.devices)])}
    wanted = [_known(device.uuid) for device in devices]
    if wanted[place] in named:
        return named[wanted[place]]
    if place < len(region.devices) and _known(region.devices[place].uuid) not in wanted:
        return place
    return None


def _known(uuid: str) -> str:
    return uuid[:SEEN_UUID_CHARS].lower()


def raw_totals(device: RegionDevice) -> Totals | None:
    """The container's own counters; None: its library has none."""
    counters = device.counters
    if counters is None:
        return None
    return Totals(
        gpu_ns=counters.charged_ns,
        throttled_ns=counters.throttled_ns,
        refusals=counters.refusals,
        refused_bytes=counters.refused_bytes,
        launches=counters.launches,
    )


def keeps_share(limit: DeviceLimit, limits: LimitsFile | None, region: Region) -> bool:
    """Whether our library keeps a share of this GPU's time: only then it counts that time."""
    forced = limits is not None and limits.core_policy is CorePolicy.FORCE
    return may_keep_share(limit, limits) and (forced or region.utilisation_switch != 0)


def may_keep_share(limit: DeviceLimit, limits: LimitsFile | None) -> bool:
    """Whether it can be that our library does, whatever the container's region says."""
    disabled = limits is not None and limits.core_policy is CorePolicy.DISABLE
    return 0 < limit.core_permille < 1000 and not disabled  # noqa: PLR2004


def self_reported(
    device: RegionDevice,
    slots: Sequence[RegionProcess],
    place: int,
    busy_percent: int | None,
    *,
    keeps_share: bool,
) -> SelfReported:
    """What a region says of the device in this place of it, by the living processes.

    `busy_percent`: from our library's counters; HAMi-core's says it of each process.
    `keeps_share`: see above; otherwise our library's counter of GPU time stands still.
    """
    used = [slot.used[place] for slot in slots]
    counted: dict[str, int] = {}
    if device.counters is None:
        busy_percent = min(sum(slot.sm_percent[place] for slot in slots), 100)
    else:
        counted = _counted(device.counters)
        if not keeps_share:
            busy_percent = None
            del counted["gpu_ns"]
    return SelfReported(
        used_bytes=_bytes(sum(_bytes(usage.total_bytes) for usage in used)),
        context_bytes=_bytes(sum(_bytes(usage.context_bytes) for usage in used)),
        module_bytes=_bytes(sum(_bytes(usage.module_bytes) for usage in used)),
        buffer_bytes=_bytes(sum(_bytes(usage.data_bytes) for usage in used)),
        limit_bytes=_bytes(device.limit_bytes),
        sm_percent=busy_percent,
        **counted,
    )


def _counted(counters: Counters) -> dict[str, int]:
    return {
        "peak_bytes": _bytes(counters.peak_bytes),
        "refusals": min(counters.refusals, MOST),
        "refused_bytes": min(counters.refused_bytes, MOST),
        "gpu_ns": min(counters.charged_ns, MOST),
        "throttled_ns": min(counters.throttled_ns, MOST),
        "launches": min(counters.launches, MOST),
    }


def driver_bytes(gpu: GpuUse | None, pids: frozenset[int] | None) -> tuple[int, int] | None:
    """What the driver says that these processes hold, and how many it lists; None: not known."""
    if gpu is None or gpu.processes is None or pids is None:
        return None
    mine = [process for process in gpu.processes if process.pid in pids]
    held = [process.used_bytes for process in mine if process.used_bytes is not None]
    return (sum(held), len(mine)) if len(held) == len(mine) else None


def driver_sm_percent(gpu: GpuUse | None, pids: frozenset[int] | None) -> int | None:
    """Share of the GPU's time that these processes had lately, as the driver tells.

    None: not known, as of a GPU that is divided by MIG.
    """
    if gpu is None or gpu.processes is None or pids is None or gpu.mig_enabled:
        return None
    told = [process.sm_percent for process in gpu.processes if process.pid in pids]
    had = [percent for percent in told if percent is not None]
    return min(sum(had), 100) if len(had) == len(told) else None


def tier(subject: Subject, findings: Findings) -> Tier:
    """Whose library keeps the limits, as far as its region and its processes tell."""
    state, region = findings.state, findings.reading.region
    kept_by_nobody = state is not None and state.state in (State.OFF, State.NOT_ENFORCEABLE)
    if subject.switched_off or kept_by_nobody or region is None:
        return Tier.NONE
    if region.slot_count == 0 and (state is None or state.state is not State.ENFORCED):
        return Tier.NONE  # made for it, and nobody has counted there yet
    return Tier.HOOK if region.has_tail else Tier.HAMI_CORE


def device_use(
    place: int,
    limit: DeviceLimit,
    findings: Findings,
    *,
    reported: SelfReported | None,
    totals: Totals,
    held_bytes: int | None,
    disagrees: bool,
    monotonic_ns: int,
) -> DeviceUse:
    """One GPU of a container. What is lent or blocked ends at its own time.

    Who has a limits file is blocked by that alone, whatever a process writes into its region.
    """
    region = findings.reading.region
    by_region = findings.limits is None and region is not None and _by_monitor(region, monotonic_ns)
    return DeviceUse(
        place=place,
        uuid=limit.uuid,
        memory_limit_bytes=_bytes(limit.memory_limit_bytes),
        core_permille=limit.core_permille if limit.core_permille < 1000 else 0,  # noqa: PLR2004
        lent_permille=limit.lent_permille if limit.lent_until_ns > monotonic_ns else 0,
        blocked=by_region or limit.blocked_until_ns > monotonic_ns,
        reported=reported,
        totals=totals,
        driver_bytes=held_bytes,
        disagrees=disagrees,
    )


def _by_monitor(region: Region, monotonic_ns: int) -> bool:
    """Whether a monitor has it wait; our library asks it all the while whether it lives."""
    asked_ns = monotonic_ns - region.asked_at_ns
    asks = region.recent_kernel == ASKED and 0 <= asked_ns < ANSWERED_NS
    return region.recent_kernel < 0 or asks


def container_use(
    subject: Subject,
    findings: Findings,
    devices: tuple[DeviceUse, ...],
    places: Mapping[int, int],
    now_s: float,
) -> ContainerUse:
    """The container with its devices. `places`: by place, where the region counts the device."""
    region = findings.reading.region
    return ContainerUse(
        pod_uid=subject.pod_uid,
        namespace=subject.namespace,
        pod=subject.pod,
        container=subject.container,
        tier=tier(subject, findings),
        hook_version=subject.hook_version,
        priority=priority_of(
            _priority_in(region, findings.limits),
            findings.asked_priority,
            of_region=findings.priority_of_region,
        ),
        state=findings.state,
        devices=devices,
        processes=_processes(findings, devices, places),
        last_kernel_s=_last_kernel_s(region, now_s),
        refusals=_refusals(region, places) if region else (),
        region_problem=findings.reading.problem,
    )


def _priority_in(region: Region | None, limits: LimitsFile | None) -> int | None:
    """Its library's word; None: the agent made the region, and no process has counted there yet."""
    return region.priority if region and (limits is None or region.slot_count) else None


def _last_kernel_s(region: Region | None, now_s: float) -> int:
    """When it launched last; libraries also note there when they made the region."""
    if region is None:
        return 0
    counted = [device.counters for device in region.devices if device.counters]
    if counted and not any(counters.launches for counters in counted):
        return 0
    return min(region.last_kernel_time_s, int(now_s))


def _refusals(region: Region, places: Mapping[int, int]) -> tuple[Refusal, ...]:
    """With the container's own places; -1: of none of its GPUs."""
    own = {counted: place for place, counted in places.items()}
    return tuple(replace(one, place=own.get(one.place, -1)) for one in region.refusals)


def _processes(
    findings: Findings, devices: Sequence[DeviceUse], places: Mapping[int, int]
) -> tuple[ProcessUse, ...]:
    """In the region's order; of too many those that say they hold most."""
    told = [(slot, _used_bytes(slot, len(devices), places)) for slot in findings.slots]
    if len(told) > MAX_PROCESSES_TOLD:
        most = sorted(range(len(told)), key=lambda index: -sum(told[index][1]))
        told = [told[index] for index in sorted(most[:MAX_PROCESSES_TOLD])]
    return tuple(
        ProcessUse(
            pid=slot.pid,
            host_pid=max(0, slot.host_pid),
            used_bytes=used_bytes,
            counters=_process_counters(slot, devices, places, findings.now_ticks),
        )
        for slot, used_bytes in told
    )


def _used_bytes(slot: RegionProcess, devices: int, places: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(
        _bytes(slot.used[places[place]].total_bytes) if place in places else 0
        for place in range(devices)
    )


def _process_counters(
    slot: RegionProcess, devices: Sequence[DeviceUse], places: Mapping[int, int], now_ticks: int
) -> tuple[ProcessCounters, ...]:
    """No process can have had more than its container, nor more time than it lives."""
    if not slot.counters:
        return ()
    age_ticks = max(0, now_ticks - slot.start_time)
    return tuple(
        _believed(slot.counters[places[place]], device, age_ticks)
        if place in places
        else NOTHING_COUNTED
        for place, device in enumerate(devices)
    )


def _believed(counted: ProcessCounters, device: DeviceUse, age_ticks: int) -> ProcessCounters:
    peak_bytes = device.reported.peak_bytes if device.reported else None
    return ProcessCounters(
        peak_bytes=min(counted.peak_bytes, peak_bytes or 0),
        refusals=min(counted.refusals, device.totals.refusals),
        charged_ns=min(counted.charged_ns, device.totals.gpu_ns, _most("gpu_ns", age_ticks)),
        throttled_ns=min(
            counted.throttled_ns, device.totals.throttled_ns, _most("throttled_ns", age_ticks)
        ),
    )


def _most(figure: str, age_ticks: int) -> int:
    return PER_SECOND[figure] * age_ticks // TICKS_PER_S
