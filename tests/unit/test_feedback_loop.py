"""The loop around the table and the lending: who is told what, and by which file."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agent.domain.grants import GrantRecord
from agent.domain.lending import Activity, Lease
from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile
from agent.domain.pods import Container, Pod
from agent.domain.switch_words import DEVICE_BYTES, SwitchWords
from agent.errors import NodeNotReady
from agent.ports import ContainerKey, Held
from agent.services.feedback import LEASE_NS, Feedback, Levers
from agent.services.lending import LATE_NS, LOOK_NS, Lender
from agent.services.lending import LEASE_NS as LENT_NS
from agent.services.published import PodTable, Published
from agent.services.roster import Roster
from agent.supervisor import Supervisor
from tests.unit.accounting_world import record
from tests.waiting import eventually

MS, S = 1_000_000, 1_000_000_000
A, B = "gpu-a", "gpu-b"
UUIDS = {
    A: "GPU-aaaaaaaa-0000-0000-0000-000000000000",
    B: "GPU-bbbbbbbb-0000-0000-0000-000000000000",
}
IDLE = Activity(5 * MS, 0, 0, 0, 0)


def packed(activity: Activity) -> bytes:
    """As a region has it, up to where the next device's would begin."""
    return struct.pack("<qQQ8xQQQ", *activity).ljust(DEVICE_BYTES, b"\0")


@dataclass
class Node:
    """All ports at once: regions and limits files of containers, kept in dictionaries."""

    words: dict[ContainerKey, SwitchWords] = field(default_factory=dict)
    limits: dict[ContainerKey, LimitsFile] = field(default_factory=dict)
    counted: dict[ContainerKey, tuple[Activity, ...]] = field(default_factory=dict)
    leases: dict[tuple[ContainerKey, int], Lease] = field(default_factory=dict)
    guarded: frozenset[ContainerKey] = frozenset()
    guards: bool = True
    broken: bool = False
    written: list[tuple[ContainerKey, str, int]] = field(default_factory=list)
    now_ns: int = 10**15
    refreshed: int = 0
    looks: int = 0
    told: int = 0  # leases

    # ports.RegionSwitches

    def refresh(self) -> Mapping[ContainerKey, SwitchWords]:
        if self.broken:
            raise NodeNotReady("the disk is gone")
        self.refreshed += 1
        return dict(self.words)

    def directories(self) -> frozenset[ContainerKey]:
        return frozenset(self.words) | frozenset(self.limits)

    def put(
        self, key: ContainerKey, *, recent_kernel: int | None = None, switch: int | None = None
    ) -> bool:
        if key not in self.words:
            return False
        for name, value in (("recent_kernel", recent_kernel), ("switch", switch)):
            if value is not None:
                if name == "recent_kernel" and value < 0:
                    assert key in self.guarded, "blocked without a guard"
                self.written.append((key, name, value))
                self.words[key] = replace(self.words[key], **{name: value})
        return True

    def recent_kernel(self, key: ContainerKey) -> int | None:
        return self.words[key].recent_kernel

    def counters(self, wanted: Sequence[tuple[ContainerKey, int]]) -> list[bytes]:
        self.looks += 1
        return [
            b"".join(packed(activity) for activity in self.counted.get(key, ())[:places])
            for key, places in wanted
        ]

    def held(self, key: ContainerKey) -> Held | None:
        return Held(3, 4, (5, 6)) if key in self.words else None

    def close(self) -> None: ...

    # ports.Leases

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        return self.limits.get((pod_uid, container))

    def lease(self, pod_uid: str, container: str, leases: Mapping[int, Lease]) -> bool:
        if self.broken:
            raise NodeNotReady("the disk is gone")
        self.told += 1
        for line, lease in leases.items():
            assert 0 <= line < len(self.limits[pod_uid, container].devices)
            self.leases[(pod_uid, container), line] = lease
        return True

    def change(self, *_: object) -> None:
        raise AssertionError("nobody changes limits here")

    # ports.BlockGuard

    def hold(self, held: Mapping[ContainerKey, Held]) -> bool:
        if not self.guards and held:
            return False
        self.guarded = frozenset(held)
        return True

    # --- what the tests say

    def hami(self, name: str, *devices: str, recent: int = 2, priority: int = 1) -> ContainerKey:
        """A container with HAMi-core's library."""
        key = (name, "main")
        self.words[key] = SwitchWords(
            recent_kernel=recent,
            priority=priority,
            switch=1,
            slot_count=1,
            devices=tuple(UUIDS[d].lower() for d in devices or (A,)),
            core_permille=(300,) * max(len(devices), 1),
        )
        return key

    def ours(
        self, name: str, *devices: str, recent: int = 2, priority: int = 1, permille: int = 300,
        policy: CorePolicy = CorePolicy.DEFAULT,
    ) -> ContainerKey:  # fmt: skip
        """A container with our library."""
        key = self.hami(name, *devices, recent=recent, priority=priority)
        self.limits[key] = LimitsFile(
            devices=tuple(
                DeviceLimit(uuid=UUIDS[d], core_permille=permille) for d in devices or (A,)
            ),
            core_policy=policy,
        )
        self.counted[key] = (IDLE,) * max(len(devices), 1)
        return key

    def until(self, key: ContainerKey, line: int = 0) -> int:
        """For how long it is blocked, in ns."""
        until_ns = self.leases.get((key, line), Lease()).blocked_until_ns
        return max(until_ns - self.now_ns, 0)

    def lent(self, key: ContainerKey, line: int = 0) -> int:
        lease = self.leases.get((key, line), Lease())
        return lease.lent_permille if lease.lent_until_ns > self.now_ns else 0

    def works(self, key: ContainerKey, *, waits: int = 0) -> None:
        """It launches on its first GPU, and waits so often."""
        before, *rest = self.counted[key]
        now = Activity(5 * MS, self.now_ns, before.charged_ns + 10 * MS, 0, before.waits + waits)
        self.counted[key] = (now, *rest)


def pods(**containers: Container) -> Published[PodTable]:
    """Pods by uid, with one container each."""
    table = {
        uid: Pod(namespace="team", name=uid, uid=uid, containers=(replace(one, name="main"),))
        for uid, one in containers.items()
    }
    return Published(PodTable(table, synced=True))


def feedback(
    node: Node,
    *,
    lending: bool = True,
    priorities: bool = True,
    of_regions: bool = True,
    known: Published[PodTable] | None = None,
    granted: Sequence[GrantRecord] = (),
    paused: list[bool] | None = None,
    lender: Lender | None = None,
) -> Feedback:
    return Feedback(
        Roster(
            node, node, known or Published(PodTable()), priorities_of_regions=of_regions,
            grants=lambda: granted,
        ),
        Levers(node, node, node),
        priorities=priorities,
        lender=lender or (Lender(node, node) if lending else None),
        paused=lambda: bool(paused and paused[0]),
        clock_ns=lambda: node.now_ns,
    )  # fmt: skip


def turns(loop: Feedback, node: Node, seconds: float) -> None:
    """Let it run for so long."""
    until_ns = node.now_ns + round(seconds * S)
    while node.now_ns < until_ns:
        node.now_ns += max(loop.turn(), MS)


# --- the table, with both libraries ---------------------------------------------------------------

KINDS = [
    pytest.param("ours", "ours", id="our library everywhere"),
    pytest.param("hami", "hami", id="HAMi-core's everywhere"),
    pytest.param("ours", "hami", id="ours is the important one"),
    pytest.param("hami", "ours", id="HAMi-core's is the important one"),
]


def is_blocked(node: Node, key: ContainerKey) -> bool:
    blocked = node.until(key) > 0
    assert key in node.limits or not blocked
    return blocked or (key not in node.limits and node.words[key].recent_kernel < 0)


@pytest.mark.parametrize(("first", "second"), KINDS)
def test_who_is_less_important_waits_whatever_the_libraries(first: str, second: str) -> None:
    node = Node()
    high = getattr(node, first)("high", priority=0)
    low = getattr(node, second)("low")
    loop = feedback(node)
    for _ in range(4):
        node.words[high] = replace(node.words[high], recent_kernel=2)
        turns(loop, node, 5)
        assert is_blocked(node, low)
        assert not is_blocked(node, high)
    turns(loop, node, 5.1)  # nothing is launched any more
    assert not is_blocked(node, low)


@pytest.mark.parametrize(("first", "second"), KINDS)
def test_a_tenant_of_ours_is_never_blocked_in_its_region(first: str, second: str) -> None:
    node = Node()
    getattr(node, first)("high", priority=0)
    getattr(node, second)("low")
    turns(feedback(node), node, 5)
    for key, name, value in node.written:
        assert key not in node.limits or (name, value) == ("switch", 1) or value >= 0


def test_who_spoils_its_region_waits_all_the_same() -> None:
    node = Node()
    high, low = node.ours("high", priority=0), node.ours("low", permille=600)
    del node.words[low]
    loop = feedback(node)
    turns(loop, node, 3)
    assert node.until(low)
    turns(loop, node, 8)
    assert not node.until(low)
    for _ in range(10):
        node.works(high, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(high) == 100  # what it does is not known, so its share is not lent
    assert node.lent(low) == 0


def test_blocks_are_leases_that_are_renewed_in_time() -> None:
    node = Node()
    node.ours("high", A, B, priority=0)
    low = node.ours("low", A, B)
    loop = feedback(node)
    loop.turn()
    for _ in range(100):
        assert 0 < node.until(low, 0) <= LEASE_NS
        assert 0 < node.until(low, 1) <= LEASE_NS
        wait_ns = loop.turn()
        assert wait_ns < min(node.until(low, 0), node.until(low, 1))
        node.now_ns += max(wait_ns, MS)
        node.words["high", "main"] = replace(node.words["high", "main"], recent_kernel=2)


def test_after_the_loop_nobody_waits_and_nothing_is_lent() -> None:
    node = Node()
    node.ours("high", priority=0)
    low, other = node.ours("low"), node.hami("other")
    borrower = node.ours("alone", B)
    loop = feedback(node)
    for _ in range(10):
        node.works(borrower, waits=1)
        turns(loop, node, 0.05)
    assert node.until(low)
    assert node.words[other].recent_kernel < 0
    assert node.lent(borrower)
    loop.release()
    assert not node.until(low)
    assert node.words[other].recent_kernel == 0
    assert not node.lent(borrower)
    assert node.guarded == frozenset()


@pytest.mark.parametrize("kind", ["ours", "hami"])
def test_who_launches_no_more_is_counted_down_until_it_is_idle(kind: str) -> None:
    node = Node()
    key = getattr(node, kind)("one")
    loop, seen = feedback(node), []
    for _ in range(4):
        loop.round_once()
        seen.append(node.words[key].recent_kernel)
    assert seen == [1, 0, 0, 0]


def test_nobody_is_blocked_without_a_guard() -> None:
    """One that is blocked already, when the guard is lost, goes on."""
    node = Node(guards=False)
    high, low = node.hami("high", priority=0), node.hami("low")
    loop = feedback(node)
    loop.round_once()
    assert node.words[low].recent_kernel == 1  # counted down, as if it were alone
    node.guards = True
    node.words[high] = replace(node.words[high], recent_kernel=2)
    loop.round_once()
    assert node.words[low].recent_kernel == -1
    node.guards = False
    node.words[high] = replace(node.words[high], recent_kernel=2)
    loop.round_once()
    assert node.words[low].recent_kernel == 0


@pytest.mark.parametrize("kind", ["ours", "hami"])
def test_what_was_left_blocked_is_lifted_at_the_start(kind: str) -> None:
    node = Node()
    key = getattr(node, kind)("left", recent=-1)
    feedback(node).round_once()
    assert node.words[key].recent_kernel == 0


def test_leases_that_were_left_are_ended_at_the_start() -> None:
    node = Node()
    key, other = node.ours("left", recent=0), node.ours("right", recent=0)
    device = replace(node.limits[key].devices[0], blocked_until_ns=1)
    node.limits[key] = replace(node.limits[key], devices=(device,))
    feedback(node).round_once()
    assert node.leases == {(key, 0): Lease()}
    assert other not in {at for at, _ in node.leases}


def test_a_switch_that_a_tenant_of_ours_turned_off_is_turned_on() -> None:
    node = Node()
    key = node.ours("alone")
    node.words[key] = replace(node.words[key], switch=0)
    feedback(node).round_once()
    assert node.words[key].switch == 1


def test_nothing_is_written_that_stays() -> None:
    node = Node()
    node.hami("idle", recent=0)
    node.ours("ours", recent=0)
    loop = feedback(node)
    loop.round_once()
    node.written.clear()
    node.leases.clear()
    for _ in range(3):
        loop.round_once()
    assert node.written == []
    assert node.leases == {}


def test_the_region_of_one_that_is_told_by_its_file_says_nothing_of_its_gpus() -> None:
    """It claims to have the GPU of others, and not its own."""
    node = Node()
    node.ours("liar", A, priority=0)
    node.words["liar", "main"] = replace(node.words["liar", "main"], devices=(UUIDS[B].lower(),))
    victim, beside = node.ours("victim", B), node.ours("beside", A)
    feedback(node).round_once()
    assert not node.until(victim)
    assert node.until(beside)


@pytest.mark.parametrize(
    ("asked", "of_regions", "waits"),
    [
        pytest.param(None, True, True, id="the region is believed"),
        pytest.param(None, False, False, id="the pod says nothing"),
        pytest.param("0", False, True, id="the pod says 0"),
        pytest.param("1", False, False, id="the pod says 1"),
    ],
)
def test_who_says_how_important_it_is(asked: str | None, of_regions: bool, waits: bool) -> None:
    node = Node()
    node.ours("high", priority=0)
    low = node.ours("low")
    known = pods(high=Container(name="", task_priority=asked), low=Container(name=""))
    feedback(node, of_regions=of_regions, known=known).round_once()
    assert (node.until(low) > 0) is waits


@pytest.mark.parametrize(
    ("at_grant", "waits"),
    [
        pytest.param(0, True, id="it was granted as one that goes first"),
        pytest.param(1, False, id="as any other"),
        pytest.param(None, False, id="an agent that did not note it"),
    ],
)
def test_a_new_agent_without_an_api_server_goes_by_what_was_asked_at_the_grant(
    at_grant: int | None, waits: bool
) -> None:
    node = Node()
    node.ours("high", priority=0)
    low = node.ours("low")
    granted = replace(record("high"), pod_uid="high", priority=at_grant)
    feedback(node, of_regions=False, granted=[granted]).round_once()
    assert (node.until(low) > 0) is waits


@pytest.mark.parametrize(
    ("strict", "lent"),
    [
        pytest.param(True, 0, id="never to have more than its share"),
        pytest.param(False, 699, id="nothing, or of an agent that did not note it"),
    ],
)
def test_a_new_agent_without_an_api_server_lends_to_whom_the_grant_allows(
    strict: bool, lent: int
) -> None:
    node = Node()
    key = node.ours("alone")
    granted = replace(record("alone"), pod_uid="alone", strict=strict)
    loop = feedback(node, granted=[granted])
    for _ in range(5):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == lent


def test_paused_everybody_is_left_alone() -> None:
    node, paused = Node(), [False]
    node.ours("high", priority=0)
    low, other = node.ours("low"), node.hami("other")
    loop = feedback(node, paused=paused)
    loop.round_once()
    assert node.until(low)
    paused[0] = True
    loop.round_once()
    assert not node.until(low)
    assert node.words[other].recent_kernel == 0
    node.written.clear()
    for _ in range(3):
        loop.round_once()
    assert node.written == []
    paused[0] = False
    node.words["high", "main"] = replace(node.words["high", "main"], recent_kernel=2)
    loop.round_once()
    assert node.until(low)


def test_a_disk_that_fails_stops_nothing() -> None:
    node = Node()
    node.ours("high", priority=0)
    low = node.ours("low")
    loop = feedback(node)
    turns(loop, node, 1)
    node.broken = True
    turns(loop, node, 10)
    assert not node.until(low)  # its lease has ended
    node.broken = False
    node.words["high", "main"] = replace(node.words["high", "main"], recent_kernel=2)
    turns(loop, node, 5)
    assert node.until(low)


def test_without_priorities_regions_are_not_touched() -> None:
    node = Node()
    node.hami("high", priority=0)
    node.hami("low")
    turns(feedback(node, priorities=False), node, 11)
    assert node.written == []


# --- lending --------------------------------------------------------------------------------------


def test_lent_while_it_waits_and_no_longer_than_a_lease() -> None:
    node = Node()
    key = node.ours("alone")
    loop = feedback(node)
    for _ in range(30):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == 699
    assert node.leases[key, 0].lent_until_ns - node.now_ns <= LENT_NS


def test_without_lending_who_is_alone_keeps_what_it_has_between_two_rounds() -> None:
    """On the GPU on which it has a limit; there is nothing to lend on the other one."""
    node = Node()
    key = node.ours("alone", A, B)
    lines = (DeviceLimit(uuid=UUIDS[A], core_permille=300), DeviceLimit(uuid=UUIDS[B]))
    node.limits[key] = replace(node.limits[key], devices=lines)
    loop = feedback(node, lending=False)
    for _ in range(6):
        turns(loop, node, 0.7)
        assert (node.lent(key, 0), node.lent(key, 1)) == (699, 0)


def lent_to(node: Node) -> tuple[ContainerKey, Lender]:
    """A container that waits, alone, and has just been lent what nobody uses."""
    key = node.ours("alone")
    lender = Lender(node, node)
    feedback(node, lender=lender).turn()
    for _ in range(2):
        node.works(key, waits=1)
        lender.look(node.now_ns)
        node.now_ns += LOOK_NS
    assert node.lent(key) == 699
    return key, lender


def test_a_loan_outlives_a_look_that_is_late() -> None:
    node = Node()
    key, lender = lent_to(node)
    for _ in range(5):
        node.now_ns += LATE_NS
        assert node.leases[key, 0].lent_until_ns >= node.now_ns
        node.works(key, waits=1)
        lender.look(node.now_ns)
        node.now_ns += LOOK_NS


def test_a_loan_is_renewed_at_every_eighth_look() -> None:
    node = Node()
    key, lender = lent_to(node)
    node.told = 0
    for _ in range(24):
        node.works(key, waits=1)
        lender.look(node.now_ns)
        node.now_ns += LOOK_NS
    assert node.told == 3


def test_a_loan_that_could_not_be_written_is_tried_again_at_the_next_look() -> None:
    node = Node()
    key, lender = lent_to(node)
    lender.take_back()
    assert node.lent(key) == 0
    for broken, lent in ((True, 0), (False, 699)):
        node.broken = broken
        node.works(key, waits=1)
        lender.look(node.now_ns)
        assert node.lent(key) == lent
        node.now_ns += LOOK_NS


def test_taken_back_at_the_first_launch_of_another() -> None:
    node = Node()
    key, other = node.ours("one"), node.ours("other", permille=700)
    loop = feedback(node)
    for _ in range(10):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == 699
    node.works(other)
    node.now_ns += max(loop.turn(), MS)  # the next look, however little has passed
    loop.turn()
    assert node.lent(key) == 0


@pytest.mark.parametrize(
    ("change", "lent"),
    [
        pytest.param({}, 699, id="by default"),
        pytest.param({"core_policy": "force"}, 0, id="force"),
        pytest.param({"core_policy": "FORCE"}, 0, id="FORCE"),
        pytest.param({"core_policy": "disable"}, 699, id="disable: the limits file says otherwise"),
    ],
)
def test_what_the_pod_says_of_its_share(change: dict[str, str], lent: int) -> None:
    node = Node()
    key = node.ours("alone")
    loop = feedback(node, known=pods(alone=Container(name="", **change)))
    for _ in range(5):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == lent


@pytest.mark.parametrize(
    ("recent", "lent"), [pytest.param(2, 0, id="active"), pytest.param(0, 699, id="idle")]
)
@pytest.mark.parametrize("kind", ["no limit", "disabled", "HAMi-core's, its share not kept"])
def test_beside_one_without_a_limit(kind: str, recent: int, lent: int) -> None:
    node = Node()
    key = node.ours("one")
    if kind == "no limit":
        node.ours("other", permille=0, recent=recent)
    elif kind == "disabled":
        node.ours("other", policy=CorePolicy.DISABLE, recent=recent)
    else:
        other = node.hami("other", recent=recent)
        node.words[other] = replace(node.words[other], switch=0)
    loop = feedback(node, priorities=False)
    for _ in range(5):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == lent


def test_beside_one_of_hami_cores_that_has_a_share() -> None:
    node = Node()
    key = node.ours("one")
    node.hami("other")
    loop = feedback(node, priorities=False)
    for _ in range(5):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == 400


def test_nothing_is_lent_to_one_that_waits_for_others() -> None:
    node = Node()
    node.ours("high", priority=0, recent=2)
    low = node.ours("low")
    loop = feedback(node)
    for _ in range(10):
        node.works(low, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(low) == 0
    assert node.until(low)


def test_one_whose_counters_cannot_be_read_lends_nothing() -> None:
    node = Node()
    key, other = node.ours("one"), node.ours("other", permille=600)
    node.counted[other] = ()
    loop = feedback(node)
    for _ in range(5):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == 100


def test_each_gpu_by_itself() -> None:
    node = Node()
    key = node.ours("both", A, B)
    other = node.ours("one", B, permille=700)
    loop = feedback(node)
    for _ in range(5):
        for number in (0, 1):
            counters = list(node.counted[key])
            counters[number] = Activity(0, node.now_ns, 0, 0, counters[number].waits + 1)
            node.counted[key] = tuple(counters)
        node.works(other)
        turns(loop, node, 0.04)
    assert (node.lent(key, 0), node.lent(key, 1)) == (699, 0)


def lends_all(node: Node) -> tuple[Feedback, ContainerKey]:
    """A loop some time after a round, and a container with 300 that is lent the rest."""
    key = node.ours("one")
    loop = feedback(node)
    for _ in range(10):
        node.works(key, waits=1)
        turns(loop, node, 0.04)
    assert node.lent(key) == 699
    return loop, key


def within_100_ms(loop: Feedback, node: Node, *working: ContainerKey) -> None:
    """Nearly: what is lent then has not simply ended."""
    until_ns = node.now_ns + 90 * MS
    while node.now_ns < until_ns:
        for key in working:
            node.works(key, waits=1)
        node.now_ns += min(max(loop.turn(), MS), 5 * MS)


def test_who_is_granted_a_share_meanwhile_has_it_at_once() -> None:
    node = Node()
    loop, key = lends_all(node)
    other = node.ours("other", permille=700)
    loop.wake()
    within_100_ms(loop, node, key, other)
    assert node.lent(key) == 0


@pytest.mark.parametrize(
    ("permille", "lent"),
    [pytest.param(700, 299, id="raised"), pytest.param(100, 899, id="lowered")],
)
def test_a_share_that_is_changed_meanwhile(permille: int, lent: int) -> None:
    node = Node()
    loop, key = lends_all(node)
    (device,) = node.limits[key].devices
    changed = replace(device, core_permille=permille)
    node.limits[key] = replace(node.limits[key], devices=(changed,))
    loop.wake()
    within_100_ms(loop, node, key)
    assert node.lent(key) == lent


def test_who_is_woken_between_rounds_counts_nobody_down() -> None:
    """Else one change of limits would let everybody go on that waits."""
    node = Node()
    high, low = node.ours("high", priority=0), node.ours("low")
    loop = feedback(node)
    turns(loop, node, 1)
    before = node.words[high].recent_kernel
    for _ in range(10):
        loop.wake()
        turns(loop, node, 0.1)
    assert node.words[high].recent_kernel == before
    assert node.until(low)


def test_who_is_woken_without_end_looks_around_as_often_as_it_looks() -> None:
    node = Node()
    loop, _ = lends_all(node)
    before = node.refreshed
    for _ in range(300):
        loop.wake()
        node.now_ns += min(max(loop.turn(), MS), 2 * MS)
    assert 0 < node.refreshed - before <= 11


def test_what_is_woken_while_paused_leaves_everybody_alone() -> None:
    node, paused = Node(), [False]
    key = node.ours("one")
    loop = feedback(node, paused=paused)
    turns(loop, node, 1)
    before, paused[0] = node.refreshed, True
    loop.wake()
    turns(loop, node, 1)
    assert node.refreshed == before
    assert node.lent(key) == 0


def test_the_loop_sleeps_until_it_is_woken() -> None:
    node = Node()
    loop = Feedback(
        Roster(node, node, Published(PodTable())),
        Levers(node, node, node),
        lender=Lender(node, node),
        every_s=3600,
    )
    supervisor = Supervisor([loop])
    supervisor.start()
    try:
        assert eventually(lambda: node.refreshed == 1)
        loop.wake()
        assert eventually(lambda: node.refreshed == 2)
    finally:
        supervisor.stop()
    assert supervisor.join() == 0


def test_one_that_waits_for_others_is_nobody_to_share_with() -> None:
    """It has no limit, and has launched just now."""
    node = Node()
    key = node.ours("high", priority=0)
    low = node.ours("low", permille=0)
    loop = feedback(node)
    for _ in range(5):
        node.works(key, waits=1)
        node.words[low] = replace(node.words[low], recent_kernel=2)
        turns(loop, node, 0.04)
    assert node.until(low)
    assert node.lent(key) == 699


def test_while_nobody_computes_a_look_is_as_late_as_a_borrower_may_wait() -> None:
    """It sees what it is lent 10 ms after it was written."""
    node = Node()
    key, _ = node.ours("one", recent=0), node.ours("two", recent=0)
    loop = feedback(node)
    turns(loop, node, 1)
    node.now_ns += max(loop.turn(), MS)
    assert LOOK_NS < loop.turn() <= 90 * MS
    node.now_ns += loop.turn()
    node.works(key, waits=1)
    loop.turn()
    assert node.lent(key) == 699


def test_who_comes_to_a_quiet_node_is_looked_at() -> None:
    node = Node()
    node.ours("one", recent=0)
    loop = feedback(node)
    turns(loop, node, 1)
    key = node.ours("two", recent=0)
    node.works(key)
    loop.wake()
    within_100_ms(loop, node, key)
    assert node.lent(key) == 699


def test_one_that_goes_away_from_a_quiet_node_is_looked_at_no_more() -> None:
    node = Node()
    node.ours("one", recent=0)
    gone = node.ours("two", recent=0)
    loop = feedback(node)
    turns(loop, node, 1)
    del node.words[gone], node.limits[gone]
    turns(loop, node, 5)
    assert loop.turn() <= 90 * MS


def test_there_is_nothing_to_do_but_rounds_without_a_share() -> None:
    node = Node()
    node.ours("one", permille=0)
    node.hami("two")
    loop = feedback(node)
    loop.turn()
    assert loop.turn() == 5 * S


def test_without_lending_the_switch_is_a_lease() -> None:
    node = Node()
    key, strict = node.ours("alone", A), node.ours("strict", B)
    known = pods(strict=Container(name="", core_policy="force"))
    loop = feedback(node, lending=False, known=known)
    turns(loop, node, 6)
    assert node.lent(key) == 699
    assert node.lent(strict) == 0
    assert node.leases[key, 0].lent_until_ns - node.now_ns <= LEASE_NS
    node.ours("other", A)
    node.words[key] = replace(node.words[key], recent_kernel=2)
    turns(loop, node, 5)
    assert node.lent(key) == 0
