"""Loop: put together who uses which GPU, and how much, as one picture that everybody else reads.

What a container counts is its own word. Its counters are shown as totals that never go back, which
are on disk before they are shown, and its memory is compared with what the driver sees.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent import logs
from agent.domain.accounting import ContainerUse, DeviceUse, NodeUse, Tier
from agent.domain.container_use import Findings, container_use, granted_devices, region_place
from agent.domain.enforcement import ContainerState, Seen
from agent.domain.expected_region import expected_region
from agent.domain.feedback import asked_of
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.region import MAX_DEVICES
from agent.domain.region_reading import (
    TICKS_PER_S,
    RegionName,
    RegionReading,
    Sight,
    living,
)
from agent.domain.subjects import Subject, granted_by_others, of_record
from agent.errors import AgentError
from agent.ports import ClusterEvent, GrantLog, LiveLimits, RegionReader, TotalsStore
from agent.services.device_figures import DeviceFigures, Moment
from agent.services.live_grants import live_records
from agent.services.metering import Metering
from agent.services.published import Pods, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOKING_S = 600.0  # a disk may hang; a restart would meet the same
REST_PER_WORK = 20.0  # per second on a processor: very many processes are looked at less often
DRIVER_WITHIN_S = 1.5
STALE_S = 20.0  # the driver's figures say nothing of now any more
STALE = f"the driver has not answered for more than {STALE_S:.0f} s; `dmesg` may say why"
FRESH_S = 1.0
EVENT = "VgpuAccountingDisagrees"
DISAGREES = (
    "its processes hold more than its library counts, so its limit may be passed; a process may "
    "have taken memory without the library, or written into the file that it counts in"
)
MIB = 1 << 20


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What accounting puts together; all of it is read at each look."""

    grants: GrantLog
    pods: Pods
    regions: RegionReader
    limits: LiveLimits
    states: Published[tuple[ContainerState, ...]]
    seen: Published[Seen]
    boot_s: Callable[[], float] = _boot_s  # CLOCK_BOOTTIME
    # containers whose memory the kernel limits
    kernel: Callable[[], Collection[tuple[str, str]]] = frozenset
    priorities_of_regions: bool = False  # what libraries write down is believed, as by HAMi
    per_process: bool = False  # the GPU time of single processes is wanted, too


_Name = tuple[str, str, str]  # namespace, pod, container
_Gpu = tuple[str, str, str]  # pod uid, container, GPU


class Accounting:
    """The loop; `use` is the picture."""

    name = "accounting"

    def __init__(
        self,
        books: Books,
        metering: Metering,
        store: TotalsStore,
        *,
        every_s: float = 5.0,
        idle_every_s: float = 30.0,
        on_disagree: Callable[[ContainerUse, DeviceUse], None] = lambda _use, _device: None,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`idle_every_s`: while no container has a grant, for the GPUs' own figures."""
        self._books = books
        self._metering = metering
        self._figures = DeviceFigures(store, per_process=books.per_process)
        self._every_s, self._idle_every_s = every_s, max(every_s, idle_every_s)
        self._on_disagree = on_disagree
        self._now_s, self._clock = now_s, clock
        self._woken = Published(0)
        self._disagreeing: dict[_Gpu, str] = {}
        self._unread: dict[tuple[str, str], str] = {}
        self._made_up: dict[tuple[str, str], set[str]] = {}  # GPUs that are none of this node
        self._rejected: Counter[str] = Counter()
        self.use: Published[NodeUse] = Published(NodeUse())

    def wake(self) -> None:
        """Somebody wants a fresh picture; returns at once. One that is fresh stays."""
        age_s = self._now_s() - self.use.now().taken_at_s
        if not 0 <= age_s < FRESH_S:  # of the future: before the clock was set back
            self._woken.update(lambda count: count + 1)

    def fresh(self, *, within_s: float) -> NodeUse:
        """A picture that was begun after this was called; the latest one if none comes in time."""
        asked_at_s = self._now_s()
        self._woken.update(lambda count: count + 1)
        self.use.wait_until(  # one of before the clock was set back may be of the future
            lambda use: asked_at_s <= use.taken_at_s <= self._now_s(), within_s
        )
        return self.use.now()

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._woken.poke)
        stop_listening = self._books.pods.listen(self._on_pods)
        try:
            while not life.stopping:
                version, _ = self._woken.read()
                life.pulse(LOOKING_S)
                before_s = time.thread_time()
                every_s = self._every_s if self.look_once().containers else self._idle_every_s
                pause_s = max(every_s, REST_PER_WORK * (time.thread_time() - before_s))
                life.pulse(pause_s)
                self._woken.wait_for_change(version, pause_s)
        finally:
            stop_listening()

    def _on_pods(self) -> None:
        """However fresh the picture is: one without this pod would stay for all of a long rest."""
        if not self.use.now().containers and live_records(self._books.grants, self._books.pods):
            self._woken.update(lambda count: count + 1)

    def look_once(self) -> NodeUse:
        """Look at everything; give what is published then."""
        self._figures.load()
        look = self._metering.ask(within_s=DRIVER_WITHIN_S)
        now_s, clock_s = self._now_s(), self._clock()
        stale = bool(look.answers) and clock_s - look.at_s > STALE_S
        gpus = () if stale else look.gpus
        moment = Moment(
            now_s=now_s,
            clock_s=clock_s,
            gpus={gpu.uuid: gpu for gpu in gpus},
            driver_look=look.answers,
        )
        subjects, complete = self._subjects(now_s)
        containers = self._containers(subjects, moment)
        if complete:
            self._forget_all_but(subjects)
        self._figures.save()
        use = NodeUse(
            taken_at_s=now_s,
            gpus=gpus,
            gpus_problem=STALE if stale else look.problem,
            containers=tuple(sorted(containers, key=lambda c: (c.namespace, c.pod, c.container))),
            rejected_regions=MappingProxyType(dict(self._rejected)),
        )
        self.use.publish(use)
        self._tell(containers)
        return use

    # --- what is looked at ----------------------------------------------------------------------

    def _subjects(self, now_s: float) -> tuple[list[Subject], bool]:
        """The containers, and whether they are all there are."""
        table = self._books.pods.now()
        ours = [
            of_record(record)
            for record in live_records(self._books.grants, self._books.pods)
            if (pod := table.pods.get(record.pod_uid)) is None or record.container not in pod.ended
        ]
        known = frozenset((r.pod_uid, r.container) for r in self._books.grants.records())
        try:
            directories = self._books.regions.directories()
        except AgentError as error:
            log.failing("container directories not listed", error=error)
            return ours, False
        log.recovered("container directories not listed")
        others = granted_by_others(directories, known, table.pods, now_s)
        return [*ours, *others], table.synced

    def _readings(
        self, subjects: Sequence[Subject], limits: Sequence[LimitsFile | None]
    ) -> Iterator[RegionReading]:
        """One after the other: a container can fill its region with forged processes."""
        names = (
            RegionName(*subject.key, subject.region_name, expected_region(its))
            for subject, its in zip(subjects, limits, strict=True)
        )
        given = 0
        try:
            for reading in self._books.regions.read(names):
                self._note(subjects[given], reading)
                given += 1
                yield reading
        except AgentError as error:
            log.failing("usage regions not read", error=error)
            for _ in range(len(subjects) - given):
                yield RegionReading(problem=str(error))
        else:
            log.recovered("usage regions not read")

    def _note(self, subject: Subject, reading: RegionReading) -> None:
        if reading.rejected:
            self._rejected[reading.rejected.value] += 1
            self._unread[subject.key] = subject.about
            log.failing("usage region rejected", about=subject.about, error=reading.problem)
        elif self._unread.pop(subject.key, ""):
            log.recovered("usage region rejected", about=subject.about)

    def _findings(
        self,
        subject: Subject,
        reading: RegionReading,
        limits: LimitsFile | None,
        states: Mapping[_Name, ContainerState],
    ) -> Findings:
        seen = self._books.seen.now()
        processes = None
        if seen.seeing and subject.key in seen.looked_for:
            processes = seen.processes.get(subject.key, ())
        now_ticks = int(self._books.boot_s() * TICKS_PER_S)
        sight = None if processes is None else Sight(processes, seen.began_at_ticks, now_ticks)
        pod = self._books.pods.now().pods.get(subject.pod_uid)
        spec = pod.container(subject.container) if pod else None
        return Findings(
            reading=reading,
            slots=living(reading.region.processes, sight) if reading.region else (),
            now_ticks=now_ticks,
            pids=None if processes is None else frozenset(process.pid for process in processes),
            limits=limits,
            state=states.get((subject.namespace, subject.pod, subject.container)),
            asked_priority=asked_of(spec, subject.priority),
            priority_of_region=self._books.priorities_of_regions,
        )

    def _limits(self, subject: Subject) -> LimitsFile | None:
        try:
            limits = self._books.limits.read(*subject.key)
        except AgentError as error:
            log.failing("limits not read", error=error)
            return None
        log.recovered("limits not read")
        return limits

    # --- what is made of it ---------------------------------------------------------------------

    def _containers(self, subjects: Sequence[Subject], moment: Moment) -> list[ContainerUse]:
        states = {(s.namespace, s.pod, s.container): s for s in self._books.states.now()}
        limits = [self._limits(subject) for subject in subjects]
        readings = self._readings(subjects, limits)
        return [
            self._container(subject, self._findings(subject, reading, its, states), moment)
            for subject, its, reading in zip(subjects, limits, readings, strict=True)
        ]

    def _container(self, subject: Subject, findings: Findings, moment: Moment) -> ContainerUse:
        region = findings.reading.region
        limits = granted_devices(subject.claims, findings.limits, region)
        if subject.by_others and findings.limits is None:
            limits = self._bounded(subject.key, limits, moment)
        places = {
            place: found
            for place in range(len(limits))
            if region and (found := region_place(region, limits, place)) is not None
        }
        devices = tuple(
            self._figures.of(subject, findings, place, limit, places.get(place), moment)
            for place, limit in enumerate(limits)
        )
        use = container_use(subject, findings, devices, places, moment.now_s)
        use = self._figures.with_process_time(use, findings.pids, moment)
        return replace(use, tier=Tier.KERNEL) if subject.key in self._books.kernel() else use

    def _bounded(
        self, key: tuple[str, str], devices: Sequence[DeviceLimit], moment: Moment
    ) -> tuple[DeviceLimit, ...]:
        """Without made-up GPUs beyond so many: each name is a time series and a ledger's entry."""
        strange = [d.uuid for d in devices if d.uuid not in moment.gpus]
        if not strange:
            return tuple(devices)
        known = self._made_up.setdefault(key, set())
        known.update([uuid for uuid in strange if uuid not in known][: MAX_DEVICES - len(known)])
        return tuple(d for d in devices if d.uuid in moment.gpus or d.uuid in known)

    def _forget_all_but(self, subjects: Sequence[Subject]) -> None:
        known = {subject.key for subject in subjects}
        self._figures.forget_all_but(known)
        for key in self._made_up.keys() - known:
            del self._made_up[key]
        for key in self._unread.keys() - known:
            log.recovered("usage region rejected", about=self._unread.pop(key))
        for gpu in [gpu for gpu in self._disagreeing if gpu[:2] not in known]:
            log.recovered("accounting disagrees", about=self._disagreeing.pop(gpu))

    def _tell(self, containers: Sequence[ContainerUse]) -> None:
        """Once of each GPU of a container, until the two agree again."""
        for container in containers:
            for device in container.devices:
                gpu = (container.pod_uid, container.container, device.uuid)
                about = f"{container.namespace}/{container.pod}/{container.container} {device.uuid}"
                if device.disagrees:
                    log.failing("accounting disagrees", about=about, error=DISAGREES)
                    if gpu not in self._disagreeing:
                        self._disagreeing[gpu] = about
                        self._on_disagree(container, device)
                elif self._disagreeing.pop(gpu, ""):
                    log.recovered("accounting disagrees", about=about)


def events_of(
    post: Callable[[ClusterEvent], None], pods: Pods
) -> Callable[[ContainerUse, DeviceUse], None]:
    """What Accounting calls `on_disagree`, so that the pod gets an Event."""

    def tell(container: ContainerUse, device: DeviceUse) -> None:
        pod = pods.now().pods.get(container.pod_uid)
        counted = device.reported.used_bytes if device.reported else 0
        message = (
            f"container {container.container} counts {counted // MIB} MiB on {device.uuid}, but "
            f"the driver sees {(device.driver_bytes or 0) // MIB} MiB of its processes: {DISAGREES}"
        )
        if pod is not None:
            post(ClusterEvent(reason=EVENT, message=message, pod=pod))

    return tell
