"""What is told of containers, from their grants, regions, processes and the driver."""

import gc
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from agent import logs
from agent.domain.accounting import ContainerUse, GpuProcess, GpuUse, Tier, Totals
from agent.domain.enforcement import Reason, State
from agent.domain.expected_region import ANY, Expected
from agent.domain.grants import Claim, Mount
from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile
from agent.domain.new_region import RegionMark
from agent.domain.node_picture import NodePicture, of_container
from agent.domain.pods import Container
from agent.domain.region import (
    MAX_DEVICES,
    ProcessCounters,
    Refusal,
    Region,
    RegionProcess,
    Rejected,
)
from agent.domain.region_reading import RegionName, RegionReading
from agent.errors import NvmlAbsent
from agent.ports import ClusterEvent
from agent.services.accounting import EVENT, events_of
from agent.services.published import PodTable
from tests.unit.accounting_world import (
    HOOK,
    MIB,
    A,
    B,
    FakeRegions,
    FakeStore,
    World,
    gpu,
    pod,
    process,
    record,
    region,
    slot,
)

S = 1_000_000_000


@pytest.fixture
def world() -> World:
    return World()


def test_a_container_as_it_is(world: World) -> None:
    world.give(
        record(), region(slot(200 * MIB), peak_bytes=900 * MIB, charged_ns=S, throttled_ns=2 * S,
                         launches=3, refusals=4, refused_bytes=5)
    )  # fmt: skip
    world.see(process(500))
    world.meter.gpus = (
        gpu(A, GpuProcess(pid=500, used_bytes=510 * MIB), GpuProcess(pid=9, used_bytes=MIB)),
    )
    world.judge(State.ENFORCED)
    node = world.look()
    (use,) = node.containers
    assert (node.gpus, node.gpus_problem, node.taken_at_s) == (world.meter.gpus, "", 2005.0)
    assert (use.namespace, use.pod, use.container, use.pod_uid) == (
        "team",
        "train",
        "main",
        "uid-train",
    )
    assert (use.tier, use.hook_version, use.priority) == (Tier.HOOK, HOOK, 1)
    assert use.state is not None
    assert [(p.pid, p.used_bytes) for p in use.processes] == [(7, (500 * MIB,))]
    (device,) = use.devices
    assert (device.place, device.uuid) == (0, A)
    assert (device.memory_limit_bytes, device.core_permille) == (1000 * MIB, 300)
    assert (device.driver_bytes, device.disagrees, device.blocked) == (510 * MIB, False, False)
    assert device.totals == Totals(
        gpu_ns=S, throttled_ns=2 * S, refusals=4, refused_bytes=5, launches=3
    )
    reported = device.reported
    assert reported is not None
    assert (reported.used_bytes, reported.context_bytes) == (500 * MIB, 300 * MIB)
    assert (reported.buffer_bytes, reported.peak_bytes) == (200 * MIB, 900 * MIB)
    assert (reported.limit_bytes, reported.sm_percent) == (1000 * MIB, None)


def test_the_dead_do_not_count(world: World) -> None:
    dead = slot(700 * MIB, pid=8, start_time=50)
    world.give(record(), region(slot(200 * MIB), dead))
    world.see(process(500))
    use = world.only()
    assert [p.pid for p in use.processes] == [7]
    assert use.devices[0].reported is not None
    assert use.devices[0].reported.used_bytes == 500 * MIB
    world.see()
    assert world.only().processes == ()
    world.seen.publish(replace(world.seen.now(), seeing=False))
    assert len(world.only().processes) == 2


COUNTED = ProcessCounters(
    peak_bytes=700 * MIB, refusals=3, charged_ns=600_000_000, throttled_ns=400_000_000
)


@pytest.mark.parametrize(
    ("counted", "start_time", "told"),
    [
        pytest.param((COUNTED,), 99, (COUNTED,), id="what it counts"),
        pytest.param((), 99, (), id="nothing, by a library that does not count"),
        pytest.param(
            (
                ProcessCounters(
                    peak_bytes=1 << 60, refusals=9, charged_ns=9 * S, throttled_ns=9 * S
                ),
            ),
            99,
            (ProcessCounters(peak_bytes=900 * MIB, refusals=4, charged_ns=S, throttled_ns=2 * S),),
            id="no more than what the container did",
        ),
        pytest.param(
            (COUNTED,),
            5480,  # 0.2 s before the look
            (COUNTED._replace(charged_ns=210_000_000, throttled_ns=210_000_000),),
            id="no more time than it lives",
        ),
    ],
)
def test_what_processes_count(
    world: World,
    counted: tuple[ProcessCounters, ...],
    start_time: int,
    told: tuple[ProcessCounters, ...],
) -> None:
    one = replace(slot(200 * MIB, start_time=start_time), counters=counted)
    world.give(
        record(), region(one, peak_bytes=900 * MIB, charged_ns=S, throttled_ns=2 * S, refusals=4)
    )
    world.see(process(500, start_time=start_time))
    assert [process.counters for process in world.only().processes] == [told]


def test_a_slot_of_a_mig_geometry_is_on_its_gpu(world: World) -> None:
    """As HAMi 2.5 to 2.9 name them; nobody else does, so the GPU would seem to be gone."""
    slots = tuple(Claim(f"{A}[0-{number}]", "NVIDIA", 4864, 0) for number in range(2))
    world.give(replace(record(preload=False), claims=slots))
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=100 * MIB)),)
    use = world.only()
    assert [(one.uuid, one.driver_bytes) for one in use.devices] == [(A, 100 * MIB)]
    shown = NodePicture(
        node="n", agent_version="1", answered_at_s=0.0, use=world.accounting.use.now()
    )
    assert of_container(shown, use) == ()


def test_who_was_not_looked_for_is_believed(world: World) -> None:
    world.give(record(), region(slot(MIB)))
    world.see(key=("uid-another", "main"))
    use = world.only()
    assert len(use.processes) == 1
    assert use.devices[0].driver_bytes is None


def test_how_busy_a_gpu_was_kept(world: World) -> None:
    world.give(record(), region(slot(), charged_ns=10 * S))
    assert world.reported().sm_percent is None
    percents = []
    for charged_ns, after_s in (
        (12 * S, 5.0),
        (12 * S, 5.0),
        (99 * S, 5.0),
        (99 * S, 0.1),
        (0, 5.0),
    ):
        world.count(region(slot(), charged_ns=charged_ns))
        percents.append(world.reported(after_s).sm_percent)
    assert percents == [40, 0, 100, 100, None]


def test_what_hami_core_says_of_its_processes(world: World) -> None:
    busy = replace(slot(MIB, start_time=0), sm_percent=(30,))
    world.give(record(), region(busy, replace(busy, pid=8), ours=False))
    use = world.only()
    assert use.tier is Tier.HAMI_CORE
    reported = use.devices[0].reported
    assert reported is not None
    assert (reported.sm_percent, reported.peak_bytes, reported.gpu_ns) == (60, None, None)
    assert use.devices[0].totals == Totals()


LINE = DeviceLimit(uuid=A, memory_limit_bytes=500 * MIB, core_permille=400)
NS = 55 * S  # of the clock at the first look


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param(LINE, (500 * MIB, 400, 0, False), id="as it was changed"),
        pytest.param(
            replace(LINE, lent_permille=200, lent_until_ns=NS + S), (500 * MIB, 400, 200, False),
            id="lent",
        ),
        pytest.param(
            replace(LINE, lent_permille=200, lent_until_ns=NS - 1), (500 * MIB, 400, 0, False),
            id="lent until a moment ago",
        ),
        pytest.param(
            replace(LINE, blocked_until_ns=NS + S), (500 * MIB, 400, 0, True), id="blocked"
        ),
        pytest.param(
            replace(LINE, blocked_until_ns=NS - 1), (500 * MIB, 400, 0, False), id="blocked before"
        ),
        pytest.param(replace(LINE, core_permille=1000), (500 * MIB, 0, 0, False), id="all of it"),
    ],
)  # fmt: skip
def test_limits_are_shown_as_they_are_now(
    world: World, line: DeviceLimit, shown: tuple[int, int, int, bool]
) -> None:
    world.give(record(), region(slot()))
    world.limits.files["uid-train", "main"] = LimitsFile(
        devices=(line,), core_policy=CorePolicy.DEFAULT
    )
    device = world.device()
    assert (
        device.memory_limit_bytes, device.core_permille, device.lent_permille, device.blocked
    ) == shown  # fmt: skip


FORCED = LimitsFile(devices=(LINE,), core_policy=CorePolicy.FORCE)
FREE = replace(FORCED, devices=(replace(LINE, core_permille=0),))


@pytest.mark.parametrize(
    ("limits", "switch", "counted"),
    [
        pytest.param(FORCED, 0, True, id="a share is kept"),
        pytest.param(
            replace(FORCED, devices=(replace(LINE, core_permille=0),)), 1, False, id="no core limit"
        ),
        pytest.param(
            replace(FORCED, devices=(replace(LINE, core_permille=1000),)), 1, False, id="all of it"
        ),
        pytest.param(
            replace(FORCED, core_policy=CorePolicy.DISABLE), 1, False, id="shares are not kept"
        ),
        pytest.param(None, 1, True, id="kept by the monitor's switch"),
        pytest.param(None, 0, False, id="not kept by it"),
    ],
)
def test_gpu_time_is_counted_where_a_share_of_it_is_kept(
    world: World, limits: LimitsFile | None, switch: int, counted: bool
) -> None:
    """Elsewhere the library's counter stands still, however busy the GPU is: the driver is asked."""
    world.give(record(), replace(region(slot(), charged_ns=S), utilisation_switch=switch))
    if limits:
        world.limits.files["uid-train", "main"] = limits
    world.see(process(500))
    mine = GpuProcess(pid=500, used_bytes=MIB, sm_percent=70)
    world.meter.gpus = (gpu(A, mine, replace(mine, pid=9, sm_percent=20)),)
    world.look()
    reported = world.reported(5.0)
    assert (reported.gpu_ns, reported.sm_percent) == ((S, 0) if counted else (None, None))
    assert reported.throttled_ns == 0
    device = world.device(5.0)
    assert device.driver_sm_percent == 70
    assert device.totals.gpu_ns == (S if counted else S + 10 * S * 70 // 100)


def test_processes_have_gpu_time_by_the_driver_where_none_is_counted(world: World) -> None:
    """Each its own, over a restart of the agent; one that names another's pid gets nothing of it."""
    slots = (slot(host_pid=500), slot(pid=8, host_pid=501), slot(pid=9, host_pid=600))
    world.give(record(), region(*slots))
    free = replace(FORCED, devices=(replace(LINE, core_permille=0),))
    world.limits.files["uid-train", "main"] = free
    world.see(process(500), process(501, pid_inside=8), process(502, pid_inside=9))

    def told_ns() -> list[int | None]:
        return [one.gpu_ns[0] if one.gpu_ns else None for one in world.only(5.0).processes]

    shares = {500: 40, 501: 20, 502: 0, 600: 30}
    held = (GpuProcess(pid=pid, used_bytes=MIB, sm_percent=part) for pid, part in shares.items())
    world.meter.gpus = (gpu(A, *held),)
    assert told_ns() == [None, None, None]  # nobody has asked for them
    world.start(per_process=True)
    assert told_ns() == [0, 0, None]
    assert told_ns() == [2 * S, S, None]
    world.seen.publish(replace(world.seen.now(), seeing=False))
    world.start(per_process=True)
    assert told_ns() == [2 * S, S, None]
    world.see(process(501, pid_inside=8))
    assert told_ns() == [2 * S]
    assert len(world.store.saved) == 2  # the container's, and the process's that lives
    world.start()
    assert told_ns() == [None]
    assert len(world.store.saved) == 1  # nobody asks for them any more


def test_what_a_process_counted_and_what_the_driver_told_add_up(world: World) -> None:
    counted = ProcessCounters(peak_bytes=0, refusals=0, charged_ns=S, throttled_ns=0)
    mine = replace(slot(host_pid=500), counters=(counted,))
    world.start(per_process=True)
    world.give(record(), region(mine, charged_ns=S))
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=MIB, sm_percent=50)),)
    free = replace(FORCED, devices=(replace(LINE, core_permille=0),))
    told = []
    for limits in (FORCED, FORCED, free, free, FORCED, free):
        world.limits.files["uid-train", "main"] = limits
        told.append(world.only(5.0).processes[0].gpu_ns)
    assert told == [(S,), (S,), (S,), (7 * S // 2,), (7 * S // 2,), (6 * S,)]


@pytest.mark.parametrize(
    ("limits", "told_s"),
    [
        pytest.param(FREE, 10, id="no core limit"),
        pytest.param(replace(FORCED, core_policy=CorePolicy.DISABLE), 10, id="shares are not kept"),
        pytest.param(FORCED, 8, id="its library may go on counting there"),
    ],
)
def test_whose_library_counts_no_gpu_time_cannot_hide_it_with_its_region(
    world: World, limits: LimitsFile, told_s: int
) -> None:
    world.give(record(), region(slot()))
    world.limits.files["uid-train", "main"] = limits
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=MIB, sm_percent=100)),)
    world.look()
    key = ("uid-train", "main")
    world.regions.readings[key] = RegionReading(rejected=Rejected.FOREIGN, problem="it is none")
    assert world.device(5.0).totals.gpu_ns == (0 if limits is FORCED else 5 * S)
    world.count(region(slot(), charged_ns=8 * S))
    assert world.device(5.0).totals.gpu_ns == told_s * S


def test_no_process_had_more_gpu_time_than_its_container(world: World) -> None:
    forged = ProcessCounters(peak_bytes=0, refusals=0, charged_ns=1000 * S, throttled_ns=0)
    world.start(per_process=True)
    world.give(record(), region(replace(slot(host_pid=500), counters=(forged,))))
    world.limits.files["uid-train", "main"] = FREE
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=MIB, sm_percent=50)),)
    world.look()
    use = world.only(10.0)
    assert use.processes[0].gpu_ns == (use.devices[0].totals.gpu_ns,) == (5 * S,)


def test_gpu_time_that_the_driver_tells_of_is_not_believed_a_second_time(world: World) -> None:
    """Not what a tenant writes where nothing counts, nor what was charged before its limit went."""
    world.give(record(), region(slot(), charged_ns=S))
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=MIB, sm_percent=100)),)
    told = []
    for turn, limits in enumerate((FORCED, FREE, FREE, FREE, FORCED)):
        world.limits.files["uid-train", "main"] = limits
        world.count(region(slot(), charged_ns=(1 + 4 * turn) * S))
        told.append(world.device(5.0).totals.gpu_ns)
    assert told == [S, 6 * S, 11 * S, 16 * S, 20 * S]


def test_hami_cores_containers_have_gpu_time_by_the_driver(world: World) -> None:
    """From the first look on, and not for looks at which nobody knows whose the processes are."""
    world.give(record(), region(slot(), ours=False))
    world.see(process(500))
    mine = GpuProcess(pid=500, used_bytes=MIB, sm_percent=50)
    world.meter.gpus = (gpu(A, mine),)
    assert world.device(5.0).totals.gpu_ns == 0
    assert world.device(5.0).totals.gpu_ns == 5 * S // 2
    world.meter.gpus = (gpu(A, replace(mine, sm_percent=None)),)
    assert world.device(5.0).totals.gpu_ns == 5 * S // 2
    world.meter.gpus = (gpu(A, mine),)
    assert world.device(5.0).totals.gpu_ns == 5 * S


@pytest.mark.parametrize(
    ("card", "told"),
    [
        pytest.param(gpu(A), 0, id="it is not there"),
        pytest.param(gpu(A, listed=False), None, id="nobody is listed"),
        pytest.param(gpu(A, GpuProcess(pid=500, used_bytes=0)), None, id="not told of processes"),
        pytest.param(replace(gpu(A), mig_enabled=True), None, id="MIG"),
        pytest.param(gpu(B), None, id="another GPU"),
    ],
)
def test_how_busy_the_driver_says_it_is(world: World, card: GpuUse, told: int | None) -> None:
    world.give(record(), region(slot()))
    world.see(process(500))
    world.meter.gpus = (card,)
    assert world.device().driver_sm_percent == told


def test_without_a_limits_file_the_grant_says_them(world: World) -> None:
    world.give(record(), region(slot()))
    world.limits.broken = "the disk is ill: replace it"
    assert world.device().memory_limit_bytes == 1000 * MIB


def test_refusals_name_the_containers_own_number_of_a_gpu(world: World) -> None:
    """Its region counts them in another order."""
    asked = {"asked_bytes": 9, "used_bytes": 9, "limit_bytes": 10, "time_ns": 1, "pid": 7}
    refusals = tuple(
        Refusal(number=place + 1, place=place, largest_bytes=0, largest_pid=0, function="", **asked)
        for place in (0, 1, 5)
    )
    world.give(
        record("train", "main", Claim(A, "NVIDIA", 1000, 30), Claim(B, "NVIDIA", 1000, 30)),
        replace(region(slot(devices=2), uuids=(B, A)), refusals=refusals),
    )
    use = world.only()
    assert [(device.place, device.uuid) for device in use.devices] == [(0, A), (1, B)]
    assert [(told.number, told.place) for told in use.refusals] == [(1, 1), (2, 0), (6, -1)]


def test_a_monitor_blocks_by_the_region_and_the_agent_by_its_own_file(world: World) -> None:
    """Who has such a file could write into its region that it waits for somebody."""
    world.give(record(), replace(region(slot(), ours=False), recent_kernel=-1))
    assert world.device().blocked
    world.limits.files["uid-train", "main"] = LimitsFile(devices=(LINE,))
    assert not world.device().blocked


@pytest.mark.parametrize(
    ("recent", "ago_ns", "blocked"),
    [
        pytest.param(1, 0, True, id="asks"),
        pytest.param(1, 7 * S - 1, True, id="still"),
        pytest.param(1, 7 * S, False, id="in vain"),
        pytest.param(1, -1, False, id="in the future"),
        pytest.param(0, 0, False, id="let go"),
        pytest.param(2, 0, False, id="computes"),
    ],
)
def test_who_asks_its_monitor_waits(world: World, recent: int, ago_ns: int, blocked: bool) -> None:
    found = replace(region(slot()), recent_kernel=recent, asked_at_ns=NS - ago_ns)
    world.give(record(), found)
    assert world.device().blocked is blocked


@pytest.mark.parametrize(
    ("asked", "in_region", "believed", "shown"),
    [
        pytest.param(None, 1, False, 1, id="nobody asked"),
        pytest.param("0", 0, False, 0, id="its pod asked"),
        pytest.param(None, 0, False, 1, id="a process made it more important than its pod"),
        pytest.param("2", 0, False, 2, id="than its pod asked"),
        pytest.param("0", 3, False, 3, id="a process made it less important"),
        pytest.param(None, 0, True, 0, id="regions are believed, as by HAMi's monitor"),
        pytest.param("0", None, False, 0, id="it has no region yet"),
        pytest.param("0", None, True, 0, id="no region that could be believed"),
        pytest.param("-1", -1, False, -1, id="one that counts for nobody"),
        pytest.param("word", -(1 << 31), False, 1, id="no number"),
        pytest.param(None, (1 << 31) - 1, False, (1 << 31) - 1, id="the least"),
    ],
)
def test_the_priority_is_the_one_that_it_is_steered_by(
    world: World, asked: str | None, in_region: int | None, believed: bool, shown: int
) -> None:
    world.priorities_of_regions = believed
    world.start()
    found = None if in_region is None else replace(region(slot()), priority=in_region)
    world.give(record(), found)
    spec = Container(name="main", vgpus=1, task_priority=asked)
    table = PodTable({"uid-train": pod("train", containers=(spec,))}, synced=True)
    world.pods.publish(table)
    assert world.only().priority == shown


def test_without_its_pod_the_priority_is_what_it_was_granted_with(world: World) -> None:
    world.start()
    world.give(replace(record(), priority=0), replace(region(slot()), priority=0))
    world.pods.publish(PodTable())
    assert world.only().priority == 0


@pytest.mark.parametrize(
    ("has_limits", "slots", "shown"),
    [
        pytest.param(True, 0, 0, id="only granted: its pod's own"),
        pytest.param(True, 1, 1, id="a process has counted there: its word"),
        pytest.param(False, 0, 1, id="not made by us: its library's word"),
    ],
)
@pytest.mark.parametrize("believed", [False, True])
def test_until_a_process_counts_the_priority_is_the_pods(
    world: World, has_limits: bool, slots: int, believed: bool, shown: int
) -> None:
    world.priorities_of_regions = believed
    world.start()
    world.give(record(), replace(region(slot_count=slots), priority=1))
    if has_limits:
        world.limits.files["uid-train", "main"] = LimitsFile(devices=(DeviceLimit(uuid=A),))
    spec = Container(name="main", vgpus=1, task_priority="0")
    world.pods.publish(PodTable({"uid-train": pod("train", containers=(spec,))}, synced=True))
    assert world.only().priority == shown


@pytest.mark.parametrize(
    ("found", "noted_s", "told_s"),
    [
        pytest.param(region(slot(), launches=1), 1990, 1990, id="launched"),
        pytest.param(region(slot(), launches=1), (1 << 64) - 1, 2005, id="in the future: now"),
        pytest.param(region(slot()), 1990, 0, id="made then, and never launched"),
        pytest.param(region(slot(), ours=False), 1990, 1990, id="HAMi-core counts no launches"),
    ],
)
def test_when_the_last_kernel_was(world: World, found: Region, noted_s: int, told_s: int) -> None:
    world.give(record(), replace(found, last_kernel_time_s=noted_s))
    assert world.only().last_kernel_s == told_s


@pytest.mark.parametrize(
    ("found", "state", "tier"),
    [
        pytest.param(None, None, Tier.NONE, id="no region yet"),
        pytest.param(region(), None, Tier.NONE, id="made, and nobody has counted"),
        pytest.param(region(), State.ENFORCED, Tier.HOOK, id="but its library is there"),
        pytest.param(region(slot()), None, Tier.HOOK, id="ours"),
        pytest.param(region(slot_count=1), State.IDLE, Tier.HOOK, id="ours, all have ended"),
        pytest.param(region(slot(), ours=False), State.IDLE, Tier.HAMI_CORE, id="HAMi-core's"),
        pytest.param(region(slot()), State.NOT_ENFORCEABLE, Tier.NONE, id="one has escaped"),
        pytest.param(region(slot()), State.OFF, Tier.NONE, id="switched off"),
        pytest.param(region(slot()), State.UNKNOWN, Tier.HOOK, id="nobody can be seen"),
    ],
)
def test_who_keeps_the_limits(
    world: World, found: Region | None, state: State | None, tier: Tier
) -> None:
    world.give(record(), found)
    if state:
        world.judge(state)
    assert world.only().tier is tier


@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param(f"libvgpu.so.{HOOK}", HOOK, id="ours"),
        pytest.param("libvgpu.so", "", id="without a version"),
        pytest.param("libvgpu.so.v2.10.0", "", id="HAMi's"),
    ],
)
def test_which_library_was_mounted(world: World, name: str, version: str) -> None:
    mount = Mount("/usr/local/vgpu/libvgpu.so", f"/host/vgpu/{name}")
    beside = Mount("/usr/local/vgpu", "/host/vgpu/containers/libvgpu.so.1-0123456789abcdef")
    grant = replace(record().grant, mounts=(beside, mount))
    world.give(replace(record(), grant=grant), region(slot()))
    assert world.only().hook_version == version


# --- devices of a container -----------------------------------------------------------------------


def used_by_place(use: ContainerUse) -> list[int | None]:
    return [d.reported.limit_bytes // MIB if d.reported else None for d in use.devices]


@pytest.mark.parametrize(
    ("uuids", "limits"),
    [
        pytest.param((A, B), [1, 2], id="as they were granted"),
        pytest.param((B, A), [2, 1], id="in another order"),
        pytest.param((A.upper(), B[:40]), [1, 2], id="as others write them"),
        pytest.param(("", ""), [1, 2], id="without names"),
        pytest.param(("GPU-forged", B), [1, 2], id="one is forged"),
        pytest.param((B,), [None, 1], id="one is missing"),
        pytest.param((A,), [1, None], id="the second is not counted yet"),
        pytest.param((), [None, None], id="none is counted yet"),
        pytest.param((B, B), [None, 1], id="the same twice"),
    ],
)
def test_a_device_is_found_by_its_name(
    world: World, uuids: tuple[str, ...], limits: list[int | None]
) -> None:
    found = region(uuids=uuids)
    devices = tuple(
        replace(device, limit_bytes=(place + 1) * MIB) for place, device in enumerate(found.devices)
    )
    claims = (Claim(A, "NVIDIA", 1, 0), Claim(B, "NVIDIA", 2, 0))
    world.give(record("train", "main", *claims), replace(found, devices=devices))
    assert used_by_place(world.only()) == limits


def test_claims_on_one_gpu_are_one_device(world: World) -> None:
    world.give(
        record("train", "main", Claim(A, "NVIDIA", 100, 10), Claim(A, "NVIDIA", 200, 20)),
        region(slot()),
    )
    device = world.device()
    assert (device.memory_limit_bytes, device.core_permille) == (300 * MIB, 300)


def test_ids_that_are_no_uuids_have_their_limits_too(world: World) -> None:
    world.give(record("train", "main", Claim("GPU-odd", "NVIDIA", 5, 100)), region(slot()))
    device = world.device()
    assert (device.uuid, device.memory_limit_bytes, device.core_permille) == ("GPU-odd", 5 * MIB, 0)


# --- granted by HAMi's plugin ---------------------------------------------------------------------

ALLOCATED = "hami.io/vgpu-devices-allocated"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param(f"{A},NVIDIA,700,50:;", 700 * MIB, id="as the annotation says"),
        pytest.param("", 1000 * MIB, id="without one, as the region says"),
        pytest.param("not,one", 1000 * MIB, id="with another one, likewise"),
        pytest.param(f";{A},NVIDIA,700,50:;", 1000 * MIB, id="of more containers than there are"),
    ],
)
def test_who_was_granted_before_us_is_told_of(world: World, text: str, limit: int) -> None:
    world.pods.publish(
        PodTable({"uid-old": pod("old", annotations={ALLOCATED: text})}, synced=True)
    )
    world.regions.listed = (("uid-old", "main"), ("uid-old", "unknown"), ("uid-gone", "main"))
    world.count(region(slot(MIB, start_time=0), ours=False), "uid-old")
    use = world.only()
    assert (use.pod, use.tier, use.hook_version) == ("old", Tier.HAMI_CORE, "")
    assert use.devices[0].memory_limit_bytes == limit
    assert [name.name for name in world.regions.asked] == [""]


@pytest.mark.parametrize("by", ["region", "annotation"])
def test_a_container_cannot_make_up_gpus_without_end(world: World, by: str) -> None:
    """Each name is a time series, and an entry of the ledger."""
    world.meter.gpus = (gpu(A),)
    world.regions.listed = (("uid-old", "main"),)
    shown = set()
    for turn in range(40):
        name = f"GPU-{turn}"
        text = f"{A},NVIDIA,700,50:{name},NVIDIA,700,50:;" if by == "annotation" else ""
        old = pod("old", annotations={ALLOCATED: text})
        world.pods.publish(PodTable({"uid-old": old}, synced=True))
        world.count(region(slot(devices=2), uuids=(A, name), charged_ns=turn), "uid-old")
        shown |= {device.uuid for device in world.only().devices}
    assert A in {device.uuid for device in world.only().devices}
    assert len(shown) == 1 + MAX_DEVICES
    assert isinstance(world.store, FakeStore)
    assert len(world.store.saved) <= 1 + MAX_DEVICES
    world.regions.listed = ()
    assert world.look().containers == ()
    assert world.accounting._made_up == {}


def test_a_container_whose_grant_was_lost_has_its_limits_all_the_same(world: World) -> None:
    world.pods.publish(PodTable({"uid-train": pod("train")}, synced=True))
    world.regions.listed = (("uid-train", "main"),)
    world.count(region(slot(), charged_ns=S))
    world.limits.files["uid-train", "main"] = LimitsFile(devices=(LINE,))
    use = world.only()
    assert (use.tier, use.devices[0].memory_limit_bytes) == (Tier.HOOK, 500 * MIB)
    assert use.devices[0].totals == Totals()  # since when it runs is not known
    world.count(region(slot(), charged_ns=2 * S))
    assert world.device().totals.gpu_ns == 2 * S


def test_init_containers_have_their_place_in_the_annotation(world: World) -> None:
    init = replace(pod("old").containers[0], name="prepare", kind="init")
    for text in (f";{A},NVIDIA,700,50:;", f"{A},NVIDIA,700,50:;"):  # with it, and without
        old = replace(pod("old", "main"), annotations={ALLOCATED: text})
        old = replace(old, containers=(init, *old.containers))
        world.pods.publish(PodTable({"uid-old": old}, synced=True))
        world.regions.listed = (("uid-old", "main"),)
        world.count(region(ours=False), "uid-old")
        assert world.device().memory_limit_bytes == 700 * MIB


def test_of_finished_pods_nothing_is_told(world: World) -> None:
    world.give(record(), region(slot()))
    world.regions.listed = (("uid-train", "main"),)
    finished = pod("train", phase="Succeeded")
    world.pods.publish(PodTable({"uid-train": finished}, synced=True))
    assert world.look().containers == ()


def test_of_init_containers_that_have_ended_nothing_is_told(world: World) -> None:
    world.give(record(), region(slot()))
    world.give(record("train", "fetch"), region(slot_count=1))
    world.regions.listed = (("uid-old", "fetch"), ("uid-old", "main"))
    assert [one.container for one in world.look().containers] == ["fetch", "main"]
    table = {
        f"uid-{name}": pod(name, "fetch", "main", ended=frozenset({"fetch"}))
        for name in ("train", "old")
    }
    world.pods.publish(PodTable(table, synced=True))
    told = [(one.pod, one.container) for one in world.look().containers]
    assert told == [("old", "main"), ("train", "main")]


# --- what is wrong --------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


def test_a_rejected_region_is_counted_and_said_once(world: World, said: io.StringIO) -> None:
    world.give(record("train"))
    world.give(record("serve"), region(slot()))
    world.regions.readings["uid-train", "main"] = RegionReading(
        rejected=Rejected.NOT_A_FILE, problem="it is no regular file"
    )
    for _ in range(3):
        node = world.look()
    assert dict(node.rejected_regions) == {"not a file": 3}
    serve, train = node.containers
    assert (serve.region_problem, train.region_problem) == ("", "it is no regular file")
    assert train.devices[0].reported is None
    assert said.getvalue().count("usage_region_rejected") == 1
    world.count(region(slot()))
    world.look()
    assert said.getvalue().count("recovered") == 1


def test_a_node_whose_directories_are_not_ours_tells_no_use(world: World) -> None:
    world.give(record(), region(slot(), charged_ns=S))
    assert world.device().totals.gpu_ns == S
    world.regions.broken = "the directory /x can be written by others: chmod it"
    use = world.only()
    assert use.region_problem == world.regions.broken
    assert (use.devices[0].reported, use.devices[0].totals.gpu_ns) == (None, S)
    world.regions.broken = ""
    assert world.device().totals.gpu_ns == S


def test_the_driver_sees_more_than_is_counted(world: World, said: io.StringIO) -> None:
    world.give(record(), region(slot(MIB)))
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=5000 * MIB)),)
    assert [world.device().disagrees for _ in range(4)] == [False, True, True, True]
    assert len(world.told) == 1
    assert said.getvalue().count("accounting_disagrees") == 1
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=301 * MIB)),)
    assert [world.device().disagrees for _ in range(2)] == [True, False]
    assert said.getvalue().count("recovered") == 1
    posted: list[ClusterEvent] = []
    events_of(posted.append, world.pods)(*world.told[0])
    assert (posted[0].reason, posted[0].pod) == (EVENT, world.pods.now().pods["uid-train"])
    assert "counts 301 MiB" in posted[0].message
    assert "sees 5000 MiB" in posted[0].message


def test_who_is_gone_disagrees_no_more(world: World, said: io.StringIO) -> None:
    world.give(record(), region(slot(MIB)))
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=5000 * MIB)),)
    world.look()
    world.look()
    world.pods.publish(PodTable(synced=True))
    world.look()
    assert said.getvalue().count("recovered") == 1


@pytest.mark.parametrize(
    "why",
    [
        "no process list",
        "used bytes not told",
        "used bytes of one not told",
        "nobody seen",
        "off",
        "it has the whole GPU, and no library",
        "driver gone",
        "the node's directories not ours",
    ],
)
def test_where_nothing_is_known_nobody_disagrees(world: World, why: str) -> None:
    world.give(record(preload=why != "off"), region(slot(MIB)))
    if why != "nobody seen":
        world.see(process(500))
    used = None if why == "used bytes not told" else 5000 * MIB
    world.meter.gpus = (
        gpu(A, GpuProcess(pid=500, used_bytes=used), listed=why != "no process list"),
    )
    if why == "used bytes of one not told":
        world.see(process(500), process(501, pid_inside=8))
        known, unknown = (
            GpuProcess(pid=500, used_bytes=5000 * MIB), GpuProcess(pid=501, used_bytes=None)
        )  # fmt: skip
        world.meter.gpus = (gpu(A, known, unknown),)
    if why.startswith("the node's"):
        world.regions.broken = "the directory /x can be written by others: chmod it"
    if why.startswith("it has the whole"):
        world.judge(State.UNLIMITED, Reason.WHOLE_GPU)
    if why == "driver gone":
        world.meter.error = NvmlAbsent("there is no driver: install one")
    assert not any(world.device().disagrees for _ in range(3))
    assert world.told == []
    if why.startswith("used bytes"):
        assert world.device().driver_bytes is None


NOTHING_COUNTED = {
    "not made": None,
    "removed": RegionReading(rejected=Rejected.REMOVED, problem="it was removed"),
    "wiped": RegionReading(rejected=Rejected.WIPED, problem="its beginning was wiped out"),
    "no device": RegionReading(region=region(slot(5000 * MIB, devices=0), uuids=())),
}


@pytest.mark.parametrize("reading", NOTHING_COUNTED.values(), ids=NOTHING_COUNTED)
def test_who_counts_nothing_is_compared_with_the_driver(
    world: World, reading: RegionReading | None
) -> None:
    world.give(record())
    if reading:
        world.regions.readings["uid-train", "main"] = reading
    world.see(process(500))
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=65 * MIB)),)
    assert [world.device().disagrees for _ in range(3)] == [False, True, True]
    assert len(world.told) == 1
    posted: list[ClusterEvent] = []
    events_of(posted.append, world.pods)(*world.told[0])
    assert "counts 0 MiB" in posted[0].message
    world.meter.gpus = (gpu(A, GpuProcess(pid=500, used_bytes=64 * MIB)),)
    assert [world.device().disagrees for _ in range(2)] == [True, False]


def test_a_region_is_read_as_its_limits_file_says_it_is(world: World) -> None:
    world.give(record(), region(slot()))
    world.look()
    assert world.regions.asked[0].expected == ANY
    line = DeviceLimit(uuid=A)
    world.limits.files["uid-train", "main"] = LimitsFile(
        devices=(line,), region_inode=12, region_id=34
    )
    world.look()
    assert world.regions.asked[0].expected == Expected(RegionMark(12, 34), (A.lower(),))


# --- containers that fill their regions with forged processes ---------------------------------------

MANY = 1024


class FullRegions(FakeRegions):
    """Every region is made as it is read, and full; how many slots were there at once."""

    most = 0

    def read(self, names: Iterable[RegionName]) -> Iterator[RegionReading]:
        for _ in names:
            slots = (slot(number * MIB, pid=number + 1, context=0) for number in range(MANY))
            yield RegionReading(region=region(*slots))
            self.most = max(self.most, sum(type(one) is RegionProcess for one in gc.get_objects()))


def test_one_full_region_is_held_at_a_time_and_few_of_its_processes(world: World) -> None:
    world.regions = FullRegions()
    world.start()
    names = [f"p{number:02}" for number in range(8)]
    for name in names:
        world.give(record(name))
    gc.collect()
    before = sum(type(one) is RegionProcess for one in gc.get_objects())
    node = world.look()
    assert [one.pod for one in node.containers] == names
    assert MANY <= world.regions.most - before <= 2 * MANY
    after = sum(type(one) is RegionProcess for one in gc.get_objects())
    assert after <= before
    for container in node.containers:
        assert [one.pid for one in container.processes] == [*range(MANY - 63, MANY + 1)]
        reported = container.devices[0].reported
        assert reported is not None
        assert reported.used_bytes == sum(range(MANY)) * MIB


def test_processes_of_the_future_do_not_count(world: World) -> None:
    world.give(record(), region(slot(MIB), slot(700 * MIB, pid=8, start_time=1 << 62)))
    world.see(process(500))
    assert [one.pid for one in world.only().processes] == [7]


def test_a_driver_that_hangs_stops_nobody(world: World) -> None:
    world.give(record(), region(slot(MIB)))
    world.meter.gpus = (gpu(A),)
    world.look()
    world.metering.hangs = True
    world.count(region(slot(2 * MIB)))
    node = world.look()
    assert (node.gpus, node.gpus_problem) == (world.meter.gpus, "")
    for _ in range(4):
        node = world.look()
    assert node.gpus == ()
    assert "has not answered" in node.gpus_problem
    reported = node.containers[0].devices[0].reported
    assert reported is not None
    assert reported.buffer_bytes == 2 * MIB


def test_a_driver_that_is_absent_is_said(world: World) -> None:
    world.meter.error = NvmlAbsent("there is no driver: install one")
    node = world.look()
    assert (node.gpus, node.gpus_problem) == ((), "there is no driver: install one")


# --- totals ---------------------------------------------------------------------------------------


def test_totals_outlive_the_agent_and_end_with_the_container(world: World) -> None:
    world.give(record(), region(slot(), charged_ns=100 * S))
    assert world.device().totals.gpu_ns == 100 * S
    world.start()
    world.count(region(slot(), charged_ns=0))  # the tenant has set it back meanwhile
    assert world.device().totals.gpu_ns == 100 * S
    world.count(region(slot(), charged_ns=2 * S))
    assert world.device().totals.gpu_ns == 102 * S
    world.start()
    world.pods.publish(PodTable())  # not known yet: nothing is forgotten
    assert world.device().totals.gpu_ns == 102 * S
    world.pods.publish(PodTable(synced=True))
    assert world.look().containers == ()
    assert world.accounting.look_once().containers == ()
    world.start()
    world.give(record(), region(slot(), charged_ns=S))
    assert world.device().totals.gpu_ns == S


def test_before_the_pods_are_known_no_totals_are_forgotten(world: World) -> None:
    """Of a container whose grant the journal has lost only its pod is known."""
    table = PodTable({"uid-train": pod()}, synced=True)
    world.pods.publish(table)
    world.regions.listed = (("uid-train", "main"),)
    world.count(region(slot()))
    world.look()
    world.count(region(slot(), charged_ns=4 * S))
    assert world.device().totals.gpu_ns == 4 * S
    world.start()
    world.pods.publish(PodTable())  # the API server does not answer
    assert world.look().containers == ()
    world.pods.publish(table)
    world.count(region(slot(), charged_ns=S))
    assert world.device().totals.gpu_ns == 5 * S


def test_totals_are_written_when_they_change(world: World) -> None:
    saves = world.store
    world.give(record(), region(slot(), charged_ns=S))
    world.look()
    world.look()
    assert saves.saves == 1  # type: ignore[attr-defined]
    world.count(region(slot(), charged_ns=2 * S))
    world.look()
    assert saves.saves == 2  # type: ignore[attr-defined]


def test_what_cannot_be_written_is_shown_all_the_same(world: World, said: io.StringIO) -> None:
    world.give(record(), region(slot(), charged_ns=S))
    world.store.broken = "the disk is full: free some space"  # type: ignore[attr-defined]
    assert world.device().totals.gpu_ns == S
    world.store.broken = ""  # type: ignore[attr-defined]
    world.look()
    assert "totals_not_saved" in said.getvalue()
    assert "recovered" in said.getvalue()
