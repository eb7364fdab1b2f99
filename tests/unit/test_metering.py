"""Asking the driver in a thread of its own, and the loop of accounting around it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import eventually

from agent.domain.accounting import GpuUse
from agent.errors import NvmlAbsent
from agent.services.accounting import Accounting, Books
from agent.services.metering import NOT_ASKED, Metering
from agent.services.published import PodTable
from agent.supervisor import Lifeline, Supervisor
from tests.unit.accounting_world import A, FakeMeter, World, gpu, record, region, slot


class SlowMeter(FakeMeter):
    """A driver that answers when it is let."""

    def __init__(self) -> None:
        super().__init__(gpus=(gpu(A),))
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.looks = 0

    def look(self) -> tuple[GpuUse, ...]:
        self.looks += 1
        assert self.may_answer.wait(20), "nobody let it answer"
        return super().look()


@pytest.fixture
def meter() -> Iterator[SlowMeter]:
    slow = SlowMeter()
    yield slow
    slow.may_answer.set()


@pytest.fixture
def metering(meter: SlowMeter) -> Iterator[Metering]:
    service = Metering(meter)
    supervisor = Supervisor([service])
    supervisor.start()
    yield service
    meter.may_answer.set()
    supervisor.stop()
    assert supervisor.join() == 0


def test_nothing_is_asked_until_somebody_wants_to_know(
    metering: Metering, meter: SlowMeter
) -> None:
    assert metering.looks.now().problem == NOT_ASKED
    look = metering.ask(within_s=10)
    assert (look.gpus, look.problem, look.answers, meter.looks) == (meter.gpus, "", 1, 1)
    assert metering.ask(within_s=10).answers == 2


def test_a_driver_that_hangs_keeps_one_waiting_once(metering: Metering, meter: SlowMeter) -> None:
    metering.ask(within_s=10)
    meter.may_answer.clear()
    assert metering.ask(within_s=0.05).answers == 1
    assert metering.ask(within_s=3600).answers == 1  # not waited for again
    meter.may_answer.set()
    eventually(lambda: metering.looks.now().answers == 2)
    assert metering.ask(within_s=10).answers == 3


def test_what_the_driver_refuses_is_told_until_it_is_over(
    metering: Metering, meter: SlowMeter
) -> None:
    meter.error = NvmlAbsent("there is no driver: install one")
    look = metering.ask(within_s=10)
    assert (look.gpus, look.problem) == ((), "there is no driver: install one")
    meter.error = None
    assert metering.ask(within_s=10).problem == ""


def test_a_crash_is_no_end(metering: Metering, meter: SlowMeter) -> None:
    meter.error = ZeroDivisionError()  # type: ignore[assignment]
    assert metering.ask(within_s=0.2).answers == 0
    meter.error = None
    eventually(lambda: metering.looks.now().answers == 1)
    assert meter.closed


def test_the_driver_is_given_back_at_the_end(meter: SlowMeter) -> None:
    supervisor = Supervisor([Metering(meter)])
    supervisor.start()
    supervisor.stop()
    assert supervisor.join() == 0
    assert meter.closed == 1


# --- the loop of accounting -----------------------------------------------------------------------


class Loop:
    """Accounting as it runs, with a real driver's thread beside it."""

    def __init__(self, world: World, meter: SlowMeter, *, every_s: float = 3600.0) -> None:
        metering = Metering(meter)
        books = Books(
            grants=world.grants, pods=world.pods, regions=world.regions, limits=world.limits,
            states=world.states, seen=world.seen,
        )  # fmt: skip
        self.world = world
        self.accounting = Accounting(
            books, metering, world.store, every_s=every_s, idle_every_s=3600.0,
            now_s=lambda: world.now_s,
        )  # fmt: skip
        self.looks = 0
        self.accounting.use.listen(self._count)
        self.supervisor = Supervisor([metering, self.accounting])
        self.supervisor.start()
        eventually(lambda: self.looks)

    def _count(self) -> None:
        self.world.now_s += 100.0  # every picture is another one, and old at once
        self.looks += 1


@pytest.fixture
def world() -> World:
    return World()


def test_a_picture_is_made_when_somebody_wants_one(world: World, meter: SlowMeter) -> None:
    loop = Loop(world, meter)
    assert (loop.looks, meter.looks) == (1, 1)
    loop.accounting.wake()
    eventually(lambda: loop.looks == 2)
    world.now_s = loop.accounting.use.now().taken_at_s
    loop.accounting.wake()  # it is fresh
    loop.supervisor.stop()
    assert loop.supervisor.join() == 0
    assert (loop.looks, meter.looks) == (2, 2)


def test_a_picture_of_a_clock_that_was_set_back_is_not_fresh(
    world: World, meter: SlowMeter
) -> None:
    """It would be for as long as the clock was ahead."""
    loop = Loop(world, meter)
    world.now_s = loop.accounting.use.now().taken_at_s - 3600.0
    loop.accounting.wake()
    eventually(lambda: loop.looks == 2)
    loop.supervisor.stop()
    assert loop.supervisor.join() == 0


@pytest.mark.parametrize(
    "step_s", [pytest.param(100.0, id="later"), pytest.param(-3600.0, id="the clock was set back")]
)
def test_whoever_asks_waits_for_a_picture_that_was_begun_then(
    world: World, meter: SlowMeter, step_s: float
) -> None:
    loop = Loop(world, meter)
    before = loop.accounting.use.now()
    world.now_s = asked_at_s = before.taken_at_s + step_s
    meter.may_answer.clear()
    asker = ThreadPoolExecutor(1)
    answer = asker.submit(loop.accounting.fresh, within_s=60)
    eventually(lambda: meter.looks == 2)
    meter.may_answer.set()
    found = answer.result()
    assert found is not before
    assert found.taken_at_s == asked_at_s
    asker.shutdown()
    loop.supervisor.stop()
    assert loop.supervisor.join() == 0


@pytest.mark.parametrize(
    "age_s",
    [pytest.param(100.0, id="long after a look"), pytest.param(0.0, id="just after a look")],
)
def test_a_container_that_comes_to_an_idle_node_is_seen(
    world: World, meter: SlowMeter, age_s: float
) -> None:
    loop = Loop(world, meter)
    world.now_s = loop.accounting.use.now().taken_at_s + age_s
    world.pods.publish(PodTable(synced=True))  # a pod without a grant, or none
    world.give(record(), region(slot()))
    eventually(lambda: loop.accounting.use.now().containers)
    loop.supervisor.stop()
    assert loop.supervisor.join() == 0


def test_while_there_are_grants_it_looks_again_and_again(world: World, meter: SlowMeter) -> None:
    world.give(record(), region(slot()))
    loop = Loop(world, meter, every_s=0.01)
    eventually(lambda: loop.looks > 3)
    meter.may_answer.clear()  # the driver hangs
    before = loop.looks
    eventually(lambda: loop.looks > before + 3)
    meter.may_answer.set()
    loop.supervisor.stop()
    assert loop.supervisor.join() == 0


def test_a_loop_that_is_stopped_asks_no_more() -> None:
    stop = threading.Event()
    stop.set()
    meter = SlowMeter()
    Metering(meter).run(Lifeline(stop))
    assert (meter.looks, meter.closed) == (0, 1)
