"""Which slots of a region are of processes that live."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.enforcement import Process
from agent.domain.region import RegionProcess
from agent.domain.region_reading import Sight, living

NAMESPACE, LOOKED_AT, NOW = 4026532000, 1000, 1500
PROCESS = Process(
    pid=500, pid_inside=7, pid_namespace=NAMESPACE, start_time=99, library=True, uses_gpu=True
)
SLOT = RegionProcess(
    pid=7, host_pid=0, status=1, used=(), pid_namespace=NAMESPACE, start_time=99
)  # fmt: skip
FOREIGN = replace(SLOT, pid_namespace=0, start_time=0)  # as HAMi-core writes them
UNREADABLE = replace(PROCESS, pid_inside=0, pid_namespace=0, readable=False)


@pytest.mark.parametrize(
    ("slot", "processes", "counts"),
    [
        pytest.param(SLOT, [PROCESS], True, id="alive"),
        pytest.param(SLOT, [], False, id="dead"),
        pytest.param(replace(SLOT, start_time=98), [PROCESS], False, id="its pid was given away"),
        pytest.param(replace(SLOT, pid_namespace=1), [PROCESS], False, id="same pid, another namespace"),
        pytest.param(replace(SLOT, pid=8), [PROCESS], False, id="another pid"),
        pytest.param(replace(SLOT, pid_namespace=0), [PROCESS], False, id="namespace not known"),
        pytest.param(
            replace(SLOT, pid=1, pid_namespace=5),
            [PROCESS, replace(PROCESS, pid=501, pid_inside=1, pid_namespace=5)],
            True,
            id="in a namespace of its own",
        ),
        pytest.param(replace(SLOT, host_pid=500, start_time=98), [PROCESS], False, id="told once, dead"),
        pytest.param(replace(SLOT, start_time=LOOKED_AT), [], True, id="started as we looked"),
        pytest.param(replace(SLOT, start_time=LOOKED_AT + 5), [], True, id="started since"),
        pytest.param(replace(SLOT, start_time=NOW), [], True, id="started just now"),
        pytest.param(replace(SLOT, start_time=NOW + 1), [], False, id="started in the future"),
        pytest.param(replace(SLOT, start_time=(1 << 64) - 1), [], False, id="at the end of time"),
        pytest.param(SLOT, [UNREADABLE], True, id="one that cannot be looked into"),
        pytest.param(replace(SLOT, start_time=98), [UNREADABLE], False, id="not that one either"),
        pytest.param(FOREIGN, [PROCESS], True, id="HAMi-core's, by pid"),
        pytest.param(replace(FOREIGN, pid=8, host_pid=500), [PROCESS], True, id="HAMi-core's, by host pid"),
        pytest.param(replace(FOREIGN, host_pid=9), [PROCESS], True, id="HAMi-core's, guessed wrongly"),
        pytest.param(replace(FOREIGN, pid=8), [PROCESS], False, id="HAMi-core's, dead"),
        pytest.param(FOREIGN, [], False, id="HAMi-core's, nobody there"),
        pytest.param(replace(FOREIGN, pid=0), [PROCESS], False, id="HAMi-core's, without a pid"),
    ],
)  # fmt: skip
def test_who_counts(slot: RegionProcess, processes: list[Process], counts: bool) -> None:
    assert living([slot], Sight(tuple(processes), LOOKED_AT, NOW)) == ((slot,) if counts else ())


def test_where_nobody_can_be_seen_slots_are_believed() -> None:
    assert living([SLOT, FOREIGN], None) == (SLOT, FOREIGN)


NUMBERS = st.integers(-1, 3)
SLOTS = st.builds(
    RegionProcess, pid=NUMBERS, host_pid=NUMBERS, status=st.just(1), used=st.just(()),
    pid_namespace=st.integers(0, 3), start_time=st.integers(0, 3),
)  # fmt: skip
PROCESSES = st.builds(
    Process, pid=st.integers(1, 3), pid_inside=st.integers(0, 3), pid_namespace=st.integers(0, 3),
    start_time=st.integers(0, 3), library=st.booleans(), uses_gpu=st.booleans(),
)  # fmt: skip


@given(st.lists(SLOTS), st.lists(PROCESSES), st.integers(0, 4))
def test_only_what_is_there_counts_and_more_is_never_less(
    slots: list[RegionProcess], processes: list[Process], looked_at: int
) -> None:
    found = living(slots, Sight(tuple(processes), looked_at, NOW))
    assert set(found) <= set(slots)
    more = Sight((*processes, PROCESS), looked_at, NOW)
    assert set(found) <= set(living(slots, more))


def is_of(slot: RegionProcess, process: Process) -> bool:
    if slot.start_time == 0:
        by_host = slot.host_pid > 0 and process.pid == slot.host_pid
        return by_host or process.pid_inside in (slot.pid, 0)
    return (
        process.start_time == slot.start_time
        and process.pid_inside in (slot.pid, 0)
        and process.pid_namespace in (slot.pid_namespace, 0)
    )


@given(st.lists(SLOTS), st.lists(PROCESSES))
def test_who_counts_is_somebody_who_was_seen(
    slots: list[RegionProcess], processes: list[Process]
) -> None:
    counted = living(slots, Sight(tuple(processes), LOOKED_AT, NOW))
    assert counted == tuple(s for s in slots if any(is_of(s, process) for process in processes))


class Counted(tuple[Process, ...]):
    """Processes that count how often one looks through them."""

    __slots__ = ()
    looks: ClassVar[int] = 0

    def __iter__(self) -> Iterator[Process]:
        Counted.looks += 1
        return super().__iter__()


def test_processes_are_not_looked_through_for_each_slot() -> None:
    """A container decides how many there are of both, and whoever asks for a picture when they are compared."""
    before = Counted.looks
    assert living([SLOT, FOREIGN] * 500, Sight(Counted((PROCESS,)), LOOKED_AT, NOW))
    assert 0 < Counted.looks - before < 10
