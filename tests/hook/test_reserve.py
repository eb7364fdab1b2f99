"""The charge of what a driver reserves in steps: reserve.c by itself, its calls one after the other as threads may."""

import ctypes
from collections.abc import Callable
from enum import IntEnum

import pytest
from built_hook import ROOT
from c_programs import library

MIB = 1 << 20
BUDGET = """
#include "charge.h"
long held = 0, limit = 1L << 40;
long of_the_dead = 0;
bool charge_at_once(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)calls;
    if (held + (long)bytes > limit)
        return false;
    held += (long)bytes;
    return true;
}
void charge_from_the_dead(void)
{
    held -= of_the_dead;
    of_the_dead = 0;
}
CUresult charge_refused(int place, uint64_t bytes, const char *function)
{
    (void)place, (void)bytes, (void)function;
    return CUDA_ERROR_OUT_OF_MEMORY;
}
void charge_anyway(int place, enum charge_kind kind, uint64_t bytes)
{
    (void)place, (void)kind;
    held += (long)bytes;
}
void charge_back(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)calls;
    held -= (long)bytes;
}
"""


class Settled(IntEnum):
    SETTLED = 0
    TOO_MUCH = 1
    ASK_AGAIN = 2


class Reserve:
    """One reserve, and what is charged for it."""

    def __init__(self) -> None:
        self.inside = ctypes.CDLL(
            str(library(BUDGET, f"-I{ROOT / 'hook'}", str(ROOT / "hook" / "reserve.c")))
        )
        self.inside.reserve_changes.restype = ctypes.c_uint64
        self.inside.reserve_pending.restype = ctypes.c_bool
        self.memory = ctypes.create_string_buffer(256)
        self.inside.reserve_init(self.memory, 0)
        self.held.value = 0
        self.limit.value = 1 << 40

    @property
    def held(self) -> ctypes.c_long:
        return ctypes.c_long.in_dll(self.inside, "held")

    @property
    def limit(self) -> ctypes.c_long:
        return ctypes.c_long.in_dll(self.inside, "limit")

    @property
    def held_mib(self) -> int:
        return self.held.value // MIB

    def claim(self, mib: int, stream: int = 8) -> int:
        number, size = ctypes.c_uint64(stream), ctypes.c_uint64(mib * MIB)
        return int(self.inside.reserve_claim(self.memory, number, size, None))

    def freed(self, mib: int, stream: int = 8) -> None:
        self.inside.reserve_freed(self.memory, ctypes.c_uint64(stream), ctypes.c_uint64(mib * MIB))

    def ends(self, stream: int) -> None:
        self.inside.reserve_stream_ends(self.memory, ctypes.c_uint64(stream))

    def claimed(self, mib: int, kept: bool = True) -> None:
        size = ctypes.c_uint64(mib * MIB)
        self.inside.reserve_claimed(self.memory, size, ctypes.c_bool(kept))

    def pending(self) -> bool:
        return bool(self.inside.reserve_pending(self.memory))

    def changes(self) -> int:
        return int(self.inside.reserve_changes(self.memory))

    def settle(self, changes: int, mib: int, anyway: bool = True) -> Settled:
        size = ctypes.c_uint64(mib * MIB)
        answer = self.inside.reserve_settle(
            self.memory, ctypes.c_uint64(changes), size, ctypes.c_bool(anyway)
        )
        return Settled(answer)


def test_what_is_claimed_becomes_what_the_driver_reserved() -> None:
    reserve = Reserve()
    assert (reserve.claim(40), reserve.held_mib) == (0, 64)
    reserve.claimed(40)
    assert (reserve.settle(reserve.changes(), 40), reserve.held_mib) == (Settled.SETTLED, 40)


def test_the_next_claim_is_in_the_steps_that_the_driver_was_seen_to_take() -> None:
    reserve = Reserve()
    reserve.claim(40)
    reserve.claimed(40)
    reserve.settle(reserve.changes(), 40)
    assert (reserve.claim(1), reserve.held_mib) == (0, 48)


@pytest.mark.parametrize("late", [False, True], ids=["alone", "beside one with an old figure"])
def test_what_it_was_lowered_to_says_nothing_of_the_drivers_steps(late: bool) -> None:
    """A pool keeps what its threshold says, to the byte, and grows in steps from there."""
    reserve = Reserve()
    before = reserve.changes()
    reserve.claim(100)
    reserve.claimed(100, kept=False)
    reserve.settle(reserve.changes(), 128)
    assert (reserve.settle(reserve.changes(), 50), reserve.held_mib) == (Settled.SETTLED, 50)
    if late:
        reserve.settle(before, 32)
        reserve.settle(reserve.changes(), 50)
    assert (reserve.claim(51), reserve.held_mib) == (0, 64)


def test_what_it_grew_to_beside_claims_says_nothing_of_the_drivers_steps() -> None:
    """A threshold lowered it to 50 while somebody claimed, and it has grown by a step from there."""
    reserve = Reserve()
    reserve.claim(40)
    reserve.claimed(40)
    reserve.settle(reserve.changes(), 64)
    reserve.claim(1)
    reserve.settle(reserve.changes(), 50)
    reserve.settle(reserve.changes(), 82)
    reserve.claimed(1)
    assert (reserve.settle(reserve.changes(), 82), reserve.held_mib) == (Settled.SETTLED, 82)
    assert (reserve.claim(50), reserve.held_mib) == (0, 96)


def test_a_figure_from_before_a_claim_takes_nothing_from_it() -> None:
    """One thread asks the driver; another one claims, is given its memory, and settles; the first goes on."""
    reserve = Reserve()
    changes = reserve.changes()
    reserve.claim(40)
    reserve.claimed(40)
    assert (reserve.settle(changes, 0), reserve.held_mib) == (Settled.SETTLED, 64)
    assert (reserve.settle(reserve.changes(), 64), reserve.held_mib) == (Settled.SETTLED, 64)


def test_a_figure_from_the_middle_of_a_claim_takes_nothing_from_it() -> None:
    reserve = Reserve()
    reserve.claim(40)
    assert (reserve.settle(reserve.changes(), 0), reserve.held_mib) == (Settled.SETTLED, 64)
    reserve.claimed(40, kept=False)
    assert (reserve.settle(reserve.changes(), 0), reserve.held_mib) == (Settled.SETTLED, 0)


def test_two_claims_of_one_step_are_each_paid_for() -> None:
    """Either may be refused by the driver, and the other one's memory must be charged then."""
    reserve = Reserve()
    assert (reserve.claim(20), reserve.claim(20)) == (0, 0)
    assert reserve.held_mib >= 40
    reserve.claimed(20, kept=False)
    reserve.claimed(20)
    assert (reserve.settle(reserve.changes(), 32), reserve.held_mib) == (Settled.SETTLED, 32)


@pytest.mark.parametrize("anyway", [False, True], ids=["may be refused", "has been taken"])
def test_what_the_driver_took_beyond_the_claim_is_charged_or_refused(anyway: bool) -> None:
    reserve = Reserve()
    reserve.limit.value = 100 * MIB
    reserve.claim(40)
    reserve.claimed(40)
    assert reserve.settle(reserve.changes(), 128, anyway) is Settled(not anyway)
    assert reserve.held_mib == (128 if anyway else 64)


def test_a_claim_that_does_not_fit_leaves_everything_as_it_was() -> None:
    reserve = Reserve()
    reserve.limit.value = 100 * MIB
    assert (reserve.claim(200), reserve.held_mib) == (2, 0)
    assert (reserve.claim(40), reserve.held_mib) == (0, 64)
    reserve.claimed(40)
    assert (reserve.settle(reserve.changes(), 64), reserve.held_mib) == (Settled.SETTLED, 64)


def test_what_the_dead_held_is_looked_for_before_anything_is_refused() -> None:
    reserve = Reserve()
    reserve.limit.value = 100 * MIB
    reserve.held.value = 70 * MIB
    dead = ctypes.c_long.in_dll(reserve.inside, "of_the_dead")
    dead.value = 70 * MIB
    assert (reserve.claim(40), reserve.held_mib) == (0, 64)
    reserve.claimed(40)
    reserve.held.value, dead.value = 100 * MIB, 36 * MIB
    assert reserve.settle(reserve.changes(), 96, anyway=False) is Settled.SETTLED
    assert reserve.held_mib == 96


def test_a_figure_from_before_another_thread_trimmed_is_asked_for_anew() -> None:
    reserve = Reserve()
    reserve.claim(40)
    reserve.claimed(40)
    seen = reserve.changes()
    assert (reserve.settle(reserve.changes(), 44), reserve.held_mib) == (Settled.SETTLED, 44)
    assert (reserve.settle(seen, 64), reserve.held_mib) == (Settled.ASK_AGAIN, 44)
    assert (reserve.settle(reserve.changes(), 64), reserve.held_mib) == (Settled.SETTLED, 64)


def test_of_two_that_saw_less_the_later_one_settles_too() -> None:
    reserve = Reserve()
    reserve.claim(40)
    reserve.claimed(40)
    seen = reserve.changes()
    assert (reserve.settle(seen, 48), reserve.held_mib) == (Settled.SETTLED, 48)
    assert (reserve.settle(seen, 44), reserve.held_mib) == (Settled.SETTLED, 44)


def nothing(_reserve: Reserve) -> None: ...


@pytest.mark.parametrize(
    ("then", "stream", "held_mib"),
    [
        pytest.param(nothing, 8, 32, id="the same stream"),
        pytest.param(nothing, 16, 64, id="another one"),
        pytest.param(lambda reserve: reserve.freed(0, stream=16), 8, 64, id="any, beside what others freed"),
        pytest.param(lambda reserve: reserve.freed(0, stream=16), 16, 64, id="who freed last, beside what others freed"),
        pytest.param(lambda reserve: reserve.ends(8), 8, 64, id="a later one of the same number"),
        pytest.param(lambda reserve: reserve.ends(1), 8, 64, id="the same, when any may have ended"),
        pytest.param(lambda reserve: reserve.ends(24), 8, 32, id="the same, though some other has ended"),
        pytest.param(lambda reserve: reserve.settle(reserve.changes(), 0), 16, 32, id="another one, of nothing"),
    ],
)  # fmt: skip
def test_what_a_stream_has_freed_is_claimed_once_more_for(
    then: Callable[[Reserve], object], stream: int, held_mib: int
) -> None:
    reserve = Reserve()
    reserve.claim(32)
    reserve.claimed(32)
    reserve.settle(reserve.changes(), 32)
    reserve.freed(32)
    then(reserve)
    assert (reserve.claim(32, stream), reserve.held_mib) == (0, held_mib)


def test_nobody_waits_for_what_a_stream_has_taken_again() -> None:
    reserve = Reserve()
    reserve.claim(32)
    reserve.claimed(32)
    reserve.freed(32)
    reserve.settle(reserve.changes(), 32)
    assert reserve.pending()
    reserve.claim(32)
    reserve.claimed(32)
    reserve.settle(reserve.changes(), 32)
    assert not reserve.pending()
