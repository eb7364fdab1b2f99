# ruff: noqa: ARG002 - a fake has the arguments of its port, used or not
"""A node's containers as accounting sees them: fakes of its ports, with time that is told to pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuProcess,
    GpuUse,
    NodeUse,
    SelfReported,
)
from agent.domain.enforcement import ContainerState, Process, Reason, Seen, State
from agent.domain.grants import Claim, Grant, GrantRecord, Mount
from agent.domain.limits_file import LimitsFile
from agent.domain.pods import Container, Pod
from agent.domain.region import Counters, Region, RegionDevice, RegionProcess, Usage
from agent.domain.region_reading import RegionName, RegionReading
from agent.domain.totals import Ledger
from agent.errors import NodeNotReady, NvmlError
from agent.ports import TotalsStore
from agent.services.accounting import Accounting, Books
from agent.services.metering import GpuLook, Metering
from agent.services.published import PodTable, Published
from tests.unit.fakes import FakeGrantLog

MIB = 1 << 20
A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000000"
HOOK = "0.3.0-0123456789abcdef"
NAMESPACE = 4026532000


def record(
    name: str = "train", container: str = "main", *claims: Claim, preload: bool = True
) -> GrantRecord:
    """A grant of the agent, as the journal has it."""
    mounts = [Mount("/usr/local/vgpu/libvgpu.so", f"/host/vgpu/libvgpu.so.{HOOK}")]
    if preload:
        mounts.append(Mount("/etc/ld.so.preload", "/host/vgpu/ld.so.preload"))
    return GrantRecord(
        pod_uid=f"uid-{name}",
        namespace="team",
        pod_name=name,
        container=container,
        device_ids=("x",),
        claims=claims or (Claim(A, "NVIDIA", 1000, 30),),
        grant=Grant(
            envs={"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/x.cache"},
            mounts=tuple(mounts),
        ),
        granted_at_s=1000.0,
        answered=True,
    )


def pod(name: str = "train", *containers: str, **more: object) -> Pod:
    whole = Pod(
        namespace="team", name=name, uid=f"uid-{name}", phase="Running",
        containers=tuple(Container(name=one, vgpus=1) for one in containers or ("main",)),
    )  # fmt: skip
    return replace(whole, **more)  # type: ignore[arg-type]


def counters(**values: int) -> Counters:
    """What our library counts of a device."""
    names = Counters.__dataclass_fields__
    return Counters(**{**dict.fromkeys(names, 0), **values})


def slot(data: int = 0, *, pid: int = 7, context: int = 300 * MIB, start_time: int = 99,
         devices: int = 1, namespace: int = NAMESPACE, host_pid: int = 0) -> RegionProcess:  # fmt: skip
    usage = Usage(
        context_bytes=context, module_bytes=0, data_bytes=data, total_bytes=context + data
    )
    return RegionProcess(
        pid=pid, host_pid=host_pid, status=1, used=(usage,) * devices, sm_percent=(0,) * devices,
        pid_namespace=namespace, start_time=start_time,
    )  # fmt: skip


def region(*slots: RegionProcess, uuids: Sequence[str] = (A,), ours: bool = True,
           slot_count: int | None = None, **values: int) -> Region:  # fmt: skip
    """A region of our library (or of HAMi-core) in which these processes count."""
    return Region(
        major=1, minor=2, processes=slots, utilisation_switch=1, recent_kernel=2, priority=1,
        devices=tuple(
            RegionDevice(
                uuid=uuid, limit_bytes=1000 * MIB, core_percent=30,
                counters=counters(**values) if ours else None,
            )
            for uuid in uuids
        ),
        last_kernel_time_s=0, has_tail=ours,
        slot_count=len(slots) if slot_count is None else slot_count,
    )  # fmt: skip


def process(pid: int = 500, *, pid_inside: int = 7, start_time: int = 99) -> Process:
    return Process(
        pid=pid, pid_inside=pid_inside, pid_namespace=NAMESPACE, start_time=start_time,
        library=True, uses_gpu=True,
    )  # fmt: skip


def gpu(uuid: str = A, *processes: GpuProcess, listed: bool = True) -> GpuUse:
    return GpuUse(
        uuid=uuid, index=0, name="NVIDIA A40", memory_used_bytes=0, memory_total_bytes=46068 * MIB,
        utilisation_percent=0, memory_utilisation_percent=0,
        processes=processes if listed else None,
    )  # fmt: skip


@dataclass
class FakeRegions:
    """Implements `RegionReader`: readings by pod uid and container."""

    readings: dict[tuple[str, str], RegionReading] = field(default_factory=dict)
    listed: tuple[tuple[str, str], ...] = ()
    asked: list[RegionName] = field(default_factory=list)
    broken: str = ""

    def directories(self) -> tuple[tuple[str, str], ...]:
        if self.broken:
            raise NodeNotReady(self.broken)
        return self.listed

    def read(self, names: Iterable[RegionName]) -> Iterator[RegionReading]:
        if self.broken:
            raise NodeNotReady(self.broken)
        self.asked = []
        for name in names:
            self.asked.append(name)
            yield self.readings.get((name.pod_uid, name.container), RegionReading())


@dataclass
class FakeLimits:
    """Implements `LiveLimits`."""

    files: dict[tuple[str, str], LimitsFile] = field(default_factory=dict)
    broken: str = ""

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        if self.broken:
            raise NodeNotReady(self.broken)
        return self.files.get((pod_uid, container))

    def change(
        self, pod_uid: str, container: str, change: Callable[[LimitsFile], LimitsFile]
    ) -> LimitsFile | None:
        raise AssertionError("accounting changes nothing")


@dataclass
class FakeStore:
    """Implements `TotalsStore` in memory."""

    saved: Ledger = field(default_factory=dict)
    saves: int = 0
    broken: str = ""

    def load(self) -> Ledger:
        return dict(self.saved)

    def save(self, ledger: Ledger) -> None:
        if self.broken:
            raise NodeNotReady(self.broken)
        self.saved = dict(ledger)
        self.saves += 1


@dataclass
class FakeMeter:
    """Implements `GpuMeter`."""

    gpus: tuple[GpuUse, ...] = ()
    error: NvmlError | None = None
    closed: int = 0

    def look(self) -> tuple[GpuUse, ...]:
        if self.error:
            raise self.error
        return self.gpus

    def close(self) -> None:
        self.closed += 1


class _Asked(Metering):
    """Answers at once, in the thread of whoever asks, or never."""

    hangs = False

    def ask(self, *, within_s: float) -> GpuLook:
        return self.looks.now() if self.hangs else self.look_once(self.looks.now().answers + 1)


class World:
    """What lives longer than the agent, and the agent's accounting."""

    def __init__(self, store: TotalsStore | None = None) -> None:
        self.now_s, self.clock_s = 2000.0, 50.0
        self.grants = FakeGrantLog()
        self.pods = Published(PodTable())
        self.regions, self.limits, self.meter = FakeRegions(), FakeLimits(), FakeMeter()
        self.states: Published[tuple[ContainerState, ...]] = Published(())
        self.seen: Published[Seen] = Published(Seen(seeing=False, processes={}))
        self.store = FakeStore() if store is None else store
        self.told: list[tuple[ContainerUse, DeviceUse]] = []
        self.priorities_of_regions = False
        self.start()

    def start(self, *, per_process: bool = False) -> None:
        """An agent starts anew."""
        self.metering = _Asked(self.meter, clock=lambda: self.clock_s)
        books = Books(
            grants=self.grants, pods=self.pods, regions=self.regions, limits=self.limits,
            states=self.states, seen=self.seen, boot_s=lambda: self.clock_s,
            priorities_of_regions=self.priorities_of_regions, per_process=per_process,
        )  # fmt: skip
        self.accounting = Accounting(
            books, self.metering, self.store,
            on_disagree=lambda use, device: self.told.append((use, device)),
            now_s=lambda: self.now_s, clock=lambda: self.clock_s,
        )  # fmt: skip

    def give(self, grant: GrantRecord, found: Region | None = None) -> None:
        """A container with a grant, and what it counts."""
        self.grants.record(grant)
        table = {**self.pods.now().pods}
        names = [c.name for c in table[grant.pod_uid].containers] if grant.pod_uid in table else []
        table[grant.pod_uid] = pod(grant.pod_name, *dict.fromkeys([*names, grant.container]))
        self.pods.publish(PodTable(table, synced=True))
        if found is not None:
            self.count(found, grant.pod_uid, grant.container)

    def count(self, found: Region, pod_uid: str = "uid-train", container: str = "main") -> None:
        self.regions.readings[pod_uid, container] = RegionReading(region=found)

    def see(self, *processes: Process, key: tuple[str, str] = ("uid-train", "main")) -> None:
        """These are its processes."""
        self.seen.publish(
            Seen(
                seeing=True, processes={key: processes}, began_at_ticks=1000,
                looked_for=frozenset({key}),
            )
        )  # fmt: skip

    def judge(self, state: State, reason: Reason = Reason.NONE) -> None:
        """What enforcement says of it."""
        said = ContainerState(
            namespace="team", pod="train", container="main", state=state, reason=reason
        )
        self.states.publish((said,))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.clock_s += seconds

    def look(self, after_s: float = 5.0) -> NodeUse:
        self.pass_s(after_s)
        return self.accounting.look_once()

    def only(self, after_s: float = 5.0) -> ContainerUse:
        (container,) = self.look(after_s).containers
        return container

    def device(self, after_s: float = 5.0) -> DeviceUse:
        (device,) = self.only(after_s).devices
        return device

    def reported(self, after_s: float = 5.0) -> SelfReported:
        """What the only device's region says."""
        reported = self.device(after_s).reported
        assert reported is not None
        return reported
