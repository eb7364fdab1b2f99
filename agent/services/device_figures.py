"""What is known of each GPU of each container from one look to the next.

Totals, how busy it was in between, and whether the driver agrees. Totals are on disk before they
are shown: `save` comes between making a picture and publishing it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from agent import logs
from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuUse,
    ProcessUse,
    SelfReported,
    Totals,
)
from agent.domain.container_use import (
    Findings,
    device_use,
    driver_bytes,
    driver_sm_percent,
    keeps_share,
    may_keep_share,
    raw_totals,
    self_reported,
)
from agent.domain.cross_check import Agreement, compared, tolerance_bytes
from agent.domain.enforcement import State
from agent.domain.limits_file import DeviceLimit
from agent.domain.subjects import Subject
from agent.domain.totals import (
    EMPTY,
    OF_PROCESS,
    Entry,
    Key,
    Ledger,
    advance,
    driven,
    kept,
    passed_over,
)
from agent.errors import AgentError
from agent.ports import TotalsStore

log = logs.get(__name__)

LEAST_BUSY_S = 0.5  # between two looks that say how busy a GPU was
_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What all containers of one look have in common."""

    now_s: float  # unix time
    clock_s: float  # CLOCK_MONOTONIC
    gpus: Mapping[str, GpuUse]  # by uuid
    driver_look: int  # the same number: the same figures


@dataclass(frozen=True, slots=True)
class _Busy:
    """GPU time that a container had counted, and when; how busy it was before that."""

    gpu_ns: int
    at_s: float
    percent: int | None = None


class DeviceFigures:
    """Used by one thread."""

    def __init__(self, store: TotalsStore, *, per_process: bool = False) -> None:
        """`per_process`: add up, too, what the driver says of single processes."""
        self._store = store
        self._per_process = per_process
        self._pids: dict[tuple[str, str], frozenset[int]] = {}  # of containers, in this look
        self._ledger: dict[Key, Entry] | None = None
        self._saved: Ledger = EMPTY
        self._busy: dict[Key, _Busy] = {}
        self._agreements: dict[Key, Agreement] = {}

    def load(self) -> None:
        """Take up what was saved, the first time."""
        if self._ledger is None:
            self._saved = self._store.load()
            self._ledger = {
                key: entry
                for key, entry in self._saved.items()
                if self._per_process or OF_PROCESS not in key[2]  # nobody would see that they end
            }

    def save(self) -> None:
        """Keep what is about to be shown. What cannot be written is shown all the same."""
        self._forget_ended()
        now = self._ledger or {}
        shown, before = _shown(now), _shown(self._saved)
        if shown == before:
            return
        try:
            self._store.save(now)
        except AgentError as error:
            log.failing("totals not saved", error=error)
        else:
            log.recovered("totals not saved")
            self._saved = dict(now)

    def forget_all_but(self, containers: Collection[tuple[str, str]]) -> None:
        """Drop what is known of containers (pod uid, name) that are gone."""
        known = frozenset(containers)
        self._ledger = dict(kept(self._ledger or {}, known))
        self._busy = {key: one for key, one in self._busy.items() if key[:2] in known}
        self._agreements = {key: one for key, one in self._agreements.items() if key[:2] in known}

    def of(
        self,
        subject: Subject,
        findings: Findings,
        place: int,
        limit: DeviceLimit,
        found: int | None,
        moment: Moment,
    ) -> DeviceUse:
        """One GPU of a container now. `found`: where its region counts it; None: nowhere."""
        key = (*subject.key, limit.uuid)
        region = findings.reading.region
        reported = None
        before = self._entry(key)
        if region is not None and found is not None:
            device = region.devices[found]
            raw = raw_totals(device)
            busy = None if raw is None else self._busy_percent(key, raw.gpu_ns, moment.clock_s)
            kept = keeps_share(limit, findings.limits, region)
            if raw is not None:
                if before is not None and not kept:  # the driver's figure is what is believed
                    self._put(key, passed_over(before, raw.gpu_ns))
                self._advance(key, raw, subject, len(findings.slots), moment.now_s)
            reported = self_reported(device, findings.slots, found, busy, keeps_share=kept)
        gpu = moment.gpus.get(limit.uuid)
        held = driver_bytes(gpu, findings.pids)
        busy_percent = driver_sm_percent(gpu, findings.pids)
        counted = reported is not None and reported.gpu_ns is not None
        # What a library counts in a region that is not read now is believed when it is read again.
        unread = findings.reading.problem and may_keep_share(limit, findings.limits)
        if not counted and not unread:
            self._drive(key, before, busy_percent, moment.now_s)
        entry = self._entry(key)
        use = device_use(
            place,
            limit,
            findings,
            reported=reported,
            totals=entry.totals if entry else Totals(),
            held_bytes=held[0] if held else None,
            disagrees=self._disagrees(key, subject, findings, found, reported, held, moment),
            monotonic_ns=int(moment.clock_s * _S),
        )
        return replace(use, driver_sm_percent=busy_percent)

    def with_process_time(
        self, use: ContainerUse, pids: frozenset[int] | None, moment: Moment
    ) -> ContainerUse:
        """The container, with the GPU time of its processes. `pids`: its own, on the node."""
        if not self._per_process:
            return use
        if pids is not None:
            self._pids[use.pod_uid, use.container] = pids
        processes = (
            replace(
                process,
                gpu_ns=tuple(self._gpu_ns(use, process, d, pids, moment) for d in use.devices),
            )
            for process in use.processes
        )
        return replace(use, processes=tuple(processes))

    def _gpu_ns(
        self,
        use: ContainerUse,
        process: ProcessUse,
        device: DeviceUse,
        pids: frozenset[int] | None,
        moment: Moment,
    ) -> int | None:
        key = (use.pod_uid, use.container, f"{device.uuid}{OF_PROCESS}{process.host_pid}")
        counted = device.reported is not None and device.reported.gpu_ns is not None
        if pids is None or process.host_pid in pids:  # by its own word it may be another's
            known = not counted and device.driver_sm_percent is not None
            percent = _percent_of(moment.gpus[device.uuid], process.host_pid) if known else None
            self._drive(key, self._entry(key), percent, moment.now_s)
        entry = self._entry(key)
        charged = process.counters[device.place].charged_ns if process.counters else None
        if entry is None:
            return charged if counted else None
        return min(entry.totals.gpu_ns + (charged or 0), device.totals.gpu_ns)

    def _forget_ended(self) -> None:
        """Drop the processes that are gone, of containers whose processes were seen."""
        ledger = self._ledger or {}
        for key in [key for key in ledger if OF_PROCESS in key[2] and key[:2] in self._pids]:
            pid = key[2].rpartition(OF_PROCESS)[2]
            if not pid.isdecimal() or int(pid) not in self._pids[key[:2]]:
                del ledger[key]
        self._pids.clear()

    def _advance(
        self, key: Key, raw: Totals, subject: Subject, processes: int, now_s: float
    ) -> None:
        entry = advance(
            self._entry(key), raw, granted_at_s=subject.granted_at_s, now_s=now_s,
            processes=processes,
        )  # fmt: skip
        self._put(key, entry)

    def _drive(self, key: Key, before: Entry | None, percent: int | None, now_s: float) -> None:
        """Where no library counts GPU time, the driver's figure does; of None nothing is known."""
        if before is not None or percent is not None:
            since_s = before.at_s if before else None
            self._put(key, driven(self._entry(key), percent or 0, now_s, since_s=since_s))

    def _entry(self, key: Key) -> Entry | None:
        return (self._ledger or {}).get(key)

    def _put(self, key: Key, entry: Entry) -> None:
        ledger = self._ledger if self._ledger is not None else {}
        ledger[key] = entry
        self._ledger = ledger

    def _busy_percent(self, key: Key, gpu_ns: int, clock_s: float) -> int | None:
        """Share of the GPU's time since the last look; None: this is the first."""
        before = self._busy.get(key)
        if before is None or gpu_ns < before.gpu_ns:
            self._busy[key] = _Busy(gpu_ns, clock_s)
            return None
        passed_s = clock_s - before.at_s
        if passed_s < LEAST_BUSY_S:
            return before.percent
        percent = min(100, round(100 * (gpu_ns - before.gpu_ns) / (passed_s * _S)))
        self._busy[key] = _Busy(gpu_ns, clock_s, percent)
        return percent

    def _disagrees(
        self,
        key: Key,
        subject: Subject,
        findings: Findings,
        found: int | None,
        reported: SelfReported | None,
        held: tuple[int, int] | None,
        moment: Moment,
    ) -> bool:
        """Where nothing is to be counted, or nothing is known, nobody disagrees.

        A region that is not there, or tells nothing of this GPU, counts nothing.
        """
        reading = findings.reading
        unread = reading.region is None and reading.problem and not reading.rejected  # by our fault
        unlimited = findings.state is not None and findings.state.state is State.UNLIMITED
        if unread or held is None or subject.switched_off or unlimited:
            self._agreements.pop(key, None)
            return False
        driver, listed = held
        counted = reported.used_bytes if reported else 0
        slots = findings.slots if found is not None else ()
        agreement = compared(
            self._agreements.get(key, Agreement()),
            driver_bytes=driver,
            counted_bytes=counted,
            tolerance_bytes=tolerance_bytes(slots, found or 0, counted, listed),
            look=moment.driver_look,
        )
        self._agreements[key] = agreement
        return agreement.disagrees


def _percent_of(gpu: GpuUse, pid: int) -> int | None:
    told = [process.sm_percent for process in gpu.processes or () if process.pid == pid]
    return min(sum(percent or 0 for percent in told), 100) if told else None


def _shown(ledger: Ledger) -> dict[Key, Totals]:
    return {key: entry.totals for key, entry in ledger.items()}
