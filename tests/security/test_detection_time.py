"""How long may it take until a bypass is said? In virtual time, with the services' own intervals.

Every moment at which an attack can begin is tried, since the worst is between two looks; no clock of
this machine is asked. The loops are the agent's own, `/proc` is made up.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_proc import MAPS_DRIVER, MAPS_PLAIN, FakeProc

from agent.adapters.processes import HostProcesses
from agent.config import Config
from agent.domain.accounting import GpuProcess
from agent.domain.bypass import Allowed, Whereabouts
from agent.domain.enforcement import ContainerState, Granted, Seen
from agent.ports import ClusterEvent
from agent.services.detector import Detector
from agent.services.enforcement import EVENT, Enforcement
from agent.services.published import PodTable, Published
from tests.unit.test_bypass import LIMIT_MIB, A, at, holds
from tests.unit.test_bypass import Bed as BypassBed
from tests.unit.test_enforcement import POD, RECORD
from tests.unit.test_enforcement import Bed as EnforcementBed

WITHIN_S = 5.0
# What a look may take for that: the loop uses a twentieth of a processor at most, so where looks take
# longer, there are fewer.
LOOK_S = 0.1
BEGINS_S = [20.0 + step / 20 for step in range(100)]  # five seconds, which every interval is in
DEFAULTS = Config(node_name="n")
LATEST_S = 60.0


class Clock:
    """Virtual time, as the loops see it: it goes on while they look, and while they wait."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


class Life:
    """A `Lifeline` whose pauses take no time."""

    def __init__(self, clock: Clock, over: Callable[[], bool]) -> None:
        self._clock, self._over = clock, over

    @property
    def stopping(self) -> bool:
        return self._over() or self._clock.now_s > LATEST_S

    def pause(self, seconds: float) -> bool:
        self._clock.passes(seconds)
        return not self.stopping

    def pulse(self, within_s: float) -> None:
        """Nobody watches."""

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Nobody stops it."""


class Waited(Published[tuple[ContainerState, ...]]):
    """States that do not change: waiting for a change takes all of the time that is given."""

    clock: Clock

    def wait_for_change(self, _seen_version: int, timeout_s: float | None) -> bool:
        self.clock.passes(timeout_s or 0.0)
        return False


def worst(said_s: Callable[[float], float]) -> float:
    """The longest from the beginning of an attack until it is said, whenever it begins."""
    return max(said_s(begins_s) - begins_s for begins_s in BEGINS_S)


# --- processes without the library ---------------------------------------------------------------


class SlowProcesses(HostProcesses):
    """The host's processes; a look takes time, and the attack begins at its moment."""

    def __init__(
        self, proc: FakeProc, clock: Clock, begin: Callable[[], None], at_s: float, look_s: float
    ) -> None:
        super().__init__(proc.root, "containers")
        self._clock, self._begin, self._at_s, self._look_s = clock, begin, at_s, look_s
        self._begun = False

    def look(self, granted: Mapping[str, Granted]) -> Seen:
        if not self._begun and self._clock.now_s >= self._at_s:
            self._begun = True
            self._begin()
        seen = super().look(granted)
        self._clock.passes(self._look_s)
        return seen


UID = "0a1b2c3d-0000-4000-8000-00000000000f"
CGROUP = f"0::/kubepods/burstable/pod{UID}/{'ab' * 32}\n"
MOUNTS = f"6 5 8:1 /x/containers/{UID}_main /usr/local/vgpu rw - ext4 /dev/sda1 rw\n"


def said_of_enforcement(root: Path, begins_s: float, every_s: float, look_s: float) -> float:
    """When an Event says that a program without the library uses a GPU."""
    root.mkdir()
    proc, clock, bed, said = FakeProc(root), Clock(), EnforcementBed(record=None, pods=[]), []
    bed.grants.record(replace(RECORD, pod_uid=UID))
    bed.pods.publish(PodTable({UID: replace(POD, uid=UID, container_ids={})}, synced=True))

    def begin() -> None:
        proc.add(70, CGROUP, maps=MAPS_PLAIN + MAPS_DRIVER, mountinfo=MOUNTS)

    def post(event: ClusterEvent) -> None:
        assert event.reason == EVENT
        said.append(clock.now_s)

    processes = SlowProcesses(proc, clock, begin, begins_s, look_s)
    loop = Enforcement(
        bed.grants, bed.pods, processes, bed.regions, every_s=every_s, post=post,
        cpu_s=lambda: clock.now_s, boot_s=lambda: clock.now_s,
    )  # fmt: skip
    loop.run(Life(clock, lambda: bool(said)))  # type: ignore[arg-type] # does what is asked of it
    assert said, "it was never said"
    return said[0]


@pytest.mark.parametrize(
    ("every_s", "look_s", "in_time"),
    [
        pytest.param(DEFAULTS.process_every_s, LOOK_S, True, id="as it is by default"),
        pytest.param(2 * DEFAULTS.process_every_s, LOOK_S, False, id="looking half as often"),
        pytest.param(DEFAULTS.process_every_s, 2 * LOOK_S, False, id="a node that takes longer"),
    ],
)
def test_a_program_without_the_library_is_told_of(
    tmp_path: Path, every_s: float, look_s: float, in_time: bool
) -> None:
    longest_s = worst(
        lambda begins_s: said_of_enforcement(tmp_path / str(begins_s), begins_s, every_s, look_s)
    )
    assert (longest_s <= WITHIN_S) is in_time, longest_s


# --- what the driver lists -----------------------------------------------------------------------


class SlowUsers:
    """The driver's list, of which the attack is a part from its moment on."""

    def __init__(
        self, clock: Clock, at_s: float, processes: Sequence[GpuProcess], look_s: float = LOOK_S
    ) -> None:
        self._clock, self._at_s, self._processes = clock, at_s, tuple(processes)
        self._look_s = look_s
        self.looked_s = 0.0

    def look(self) -> Mapping[str, tuple[GpuProcess, ...]]:
        listed = self._processes if self._clock.now_s >= self._at_s else ()
        self._clock.passes(self._look_s)
        self.looked_s += self._look_s
        return {A: listed}


class NewUsers(SlowUsers):
    """Another process at each look, so that a second look is wanted each time."""

    def look(self) -> Mapping[str, tuple[GpuProcess, ...]]:
        self._processes = tuple(
            replace(one, pid=one.pid + len(self._processes)) for one in self._processes
        )
        return super().look()


PODS_OWN = at()  # in the container that has the grant
ANOTHER = at("u2")  # in a pod without one


def said_of_detector(
    processes: Sequence[GpuProcess], where: Whereabouts, begins_s: float, every_s: float
) -> float:
    """When an Event says that what the driver lists is not what was granted."""
    clock, bed = Clock(), BypassBed()
    bed.places.now = {process.pid: where for process in processes}
    states = Waited(())
    states.clock = clock
    users = SlowUsers(clock, begins_s, processes)
    books = replace(bed.loop._books, states=states)
    said: list[float] = []
    loop = Detector(
        users, bed.places, books, Allowed(), every_s=every_s,
        post=lambda _: said.append(clock.now_s), cpu_s=lambda: clock.now_s,
    )  # fmt: skip

    loop.run(Life(clock, lambda: bool(said)))  # type: ignore[arg-type] # does what is asked of it
    assert said, "it was never said"
    return said[0]


@pytest.mark.parametrize(
    ("every_s", "in_time"),
    [
        pytest.param(DEFAULTS.bypass_every_s, True, id="as it is by default"),
        pytest.param(2 * DEFAULTS.bypass_every_s, False, id="looking half as often"),
    ],
)
@pytest.mark.parametrize(
    ("processes", "where"),
    [
        pytest.param([holds(LIMIT_MIB + 1000)], PODS_OWN, id="above grant"),
        pytest.param([holds(LIMIT_MIB), holds(1000, 71)], PODS_OWN, id="above grant, by two"),
        pytest.param([holds(1)], ANOTHER, id="no grant"),
        pytest.param([holds(1)], at("", ""), id="host process"),
    ],
)
def test_more_than_was_granted_is_told_of(
    processes: Sequence[GpuProcess], where: Whereabouts, every_s: float, in_time: bool
) -> None:
    longest_s = worst(lambda begins_s: said_of_detector(processes, where, begins_s, every_s))
    assert (longest_s <= WITHIN_S) is in_time, longest_s


class Anywhere:
    """Every process is of the pod without a grant."""

    def trace(self, pids: Collection[int]) -> Mapping[int, Whereabouts]:
        return dict.fromkeys(pids, ANOTHER)


@pytest.mark.parametrize("users", [SlowUsers, NewUsers])
@pytest.mark.parametrize("look_s", [0.001, LOOK_S, 1.0])
def test_looking_takes_a_twentieth_of_a_processor_at_most(
    users: type[SlowUsers], look_s: float
) -> None:
    """Whatever a look takes, and also where processes that come and go want a second one each time."""
    clock, bed = Clock(), BypassBed()
    states = Waited(())
    states.clock = clock
    listed = users(clock, 0.0, [holds(1)], look_s)
    loop = Detector(
        listed, Anywhere(), replace(bed.loop._books, states=states), Allowed(),
        cpu_s=lambda: clock.now_s,
    )  # fmt: skip
    loop.run(Life(clock, lambda: False))  # type: ignore[arg-type] # does what is asked of it
    assert listed.looked_s <= clock.now_s / 20
