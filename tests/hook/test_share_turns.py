"""Whose turn it is among processes and threads (throttle.c): pure, and called as the gate does."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from share_model import MS, SECOND, Share, Turn, Turns, load

UINT64 = st.integers(0, (1 << 64) - 1)
PERMILLE = 200
SHORT_OF_NS = 9 * MS  # a budget below is left to who has had less
LATELY_NS = 50 * MS
CHUNK_NS = MS
BOUND_NS = 10 * SECOND  # of what is held against anybody
UNIT_NS = 1024  # that what was had is told in
HAD_WRAPS_NS = UNIT_NS << 44


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load(tmp_path_factory.mktemp("turns"))


@dataclass
class Process:
    """Looks at a budget that it shares with others."""

    library: ctypes.CDLL
    share: Share
    turn: Turn = field(default_factory=Turn)

    @property
    def word(self) -> Any:
        """Where all leave what they have had."""
        at = ctypes.addressof(self.share) + Share.least_had.offset
        return ctypes.cast(at, ctypes.POINTER(ctypes.c_uint64))

    def look(self, now_ns: int, takes_ns: int = 0) -> bool:
        """Whether it may take; then it has had so much more."""
        may = not self.library.share_is_anothers_turn(
            self.share, self.word, self.turn, now_ns, PERMILLE
        )
        self.turn.had_ns += takes_ns if may else 0
        self.library.share_tell_turn(self.share, self.word, self.turn, now_ns, PERMILLE)
        return may


@pytest.fixture
def pair(library: ctypes.CDLL) -> tuple[Process, Process]:
    """One has had 200 ms while the other waited, after an hour of GPU time of others."""
    share = Share(least_had=(3600 * SECOND // UNIT_NS) << 20)
    less, more = Process(library, share), Process(library, share)
    assert less.look(SECOND)
    assert more.look(SECOND, takes_ns=200 * MS)
    assert less.look(SECOND + MS)
    return less, more


def test_who_has_had_less_goes_first(pair: tuple[Process, Process]) -> None:
    less, more = pair
    now_ns = SECOND + 2 * MS
    while not more.look(now_ns):
        assert less.look(now_ns, takes_ns=CHUNK_NS // 2)
        now_ns += 5 * MS
    assert 0 < more.turn.had_ns - less.turn.had_ns <= CHUNK_NS + UNIT_NS


def test_nobody_waits_for_one_that_is_gone(pair: tuple[Process, Process]) -> None:
    _, more = pair
    looks = [more.look(SECOND + ms * MS) for ms in range(2, 70)]
    assert looks == sorted(looks)  # once it may, it may
    assert looks.index(True) == pytest.approx(LATELY_NS / MS, abs=2)


def test_what_nobody_takes_is_left_to_nobody(pair: tuple[Process, Process]) -> None:
    """And is not held against who took it."""
    less, more = pair
    more.share.budget_ns = SHORT_OF_NS
    assert more.look(SECOND + 2 * MS, takes_ns=CHUNK_NS)
    more.share.budget_ns = 1
    assert more.look(SECOND + 3 * MS)
    assert less.look(SECOND + 3 * MS)


def test_who_is_alone_never_waits(library: ctypes.CDLL) -> None:
    only = Process(library, Share())
    assert all(only.look(step * MS, takes_ns=30 * MS) for step in range(1, 200))


def test_who_was_idle_begins_where_the_others_are(pair: tuple[Process, Process]) -> None:
    idle, busy = pair
    now_ns = SECOND
    for _ in range(100):
        now_ns += 10 * MS
        busy.look(now_ns, takes_ns=10 * MS)
    assert idle.look(now_ns)
    assert abs(idle.turn.had_ns - busy.turn.had_ns) <= UNIT_NS


def test_who_had_no_chance_is_not_taken_to_have_been_idle(pair: tuple[Process, Process]) -> None:
    """As long as the budget is in debt, nobody can take from it: its own launch may be what runs."""
    less, more = pair
    less.share.budget_ns = -100 * MS  # half a second, at that share
    assert less.look(SECOND + 2 * MS)
    before_ns = less.turn.had_ns
    assert more.look(SECOND + 400 * MS)  # to tell how much it has had
    assert less.look(SECOND + 500 * MS)
    assert (less.turn.had_ns, more.look(SECOND + 501 * MS)) == (before_ns, False)


@pytest.mark.parametrize("had_ns", [0, HAD_WRAPS_NS // 2 - 60 * MS, HAD_WRAPS_NS - 60 * MS])
def test_counts_may_wrap_around(library: ctypes.CDLL, had_ns: int) -> None:
    share = Share(least_had=(had_ns // UNIT_NS) << 20)
    less, more = Process(library, share), Process(library, share)
    assert less.look(SECOND)
    assert more.look(SECOND, takes_ns=100 * MS)
    assert less.look(SECOND)
    assert not more.look(SECOND)


@given(word=UINT64, had_ns=UINT64, told=UINT64, idle_at_ns=UINT64, now_ns=UINT64, later_ns=UINT64)
def test_nonsense_holds_nobody_up(
    library: ctypes.CDLL,
    word: int,
    had_ns: int,
    told: int,
    idle_at_ns: int,
    now_ns: int,
    later_ns: int,
) -> None:
    """Anybody in the container may write the word. One that seems to be of later counts as of now."""
    now_ns = min(now_ns, (1 << 63))
    later_ns = 2 * LATELY_NS + 3 * MS + later_ns % (1000 * SECOND)
    one = Process(library, Share(least_had=word), Turn(had_ns, told, idle_at_ns))
    assert one.look(now_ns) or one.look(now_ns + later_ns)


@given(word=UINT64, had_ns=UINT64, now_ns=st.integers(0, 1 << 63))
def test_no_more_is_held_against_anybody_than_a_debt(
    library: ctypes.CDLL, word: int, had_ns: int, now_ns: int
) -> None:
    one = Process(library, Share(least_had=word), Turn(had_ns, 0, now_ns))
    if not one.look(now_ns):
        beyond_ns = (one.turn.had_ns - (word >> 20) * UNIT_NS) % HAD_WRAPS_NS
        assert CHUNK_NS < beyond_ns <= BOUND_NS + UNIT_NS


# --- which turn is whose, of threads or streams -------------------------------------------------------

THREADS = 64


def place_of(library: ctypes.CDLL, turns: Turns, whose: int, now_ns: int = SECOND) -> int:
    """Which of the turns the thread or stream has."""
    place = int(library.share_turn_of(turns, whose, now_ns))
    assert 0 <= place < THREADS
    return place


@given(threads=st.sets(st.integers(1, (1 << 64) - 1), min_size=1, max_size=THREADS))
def test_each_thread_has_a_turn_of_its_own(library: ctypes.CDLL, threads: set[int]) -> None:
    """As many as there are turns, and whatever their numbers are: they keep them."""
    turns = Turns()
    places = {}
    for thread in sorted(threads):
        places[thread] = place_of(library, turns, thread)
        turns.of[places[thread]].idle_at_ns = 2 * SECOND
    assert len(set(places.values())) == len(threads)
    assert {thread: place_of(library, turns, thread) for thread in places} == places


def test_who_comes_when_all_turns_are_taken(library: ctypes.CDLL) -> None:
    """It counts as one with another, until one of those does not look any more; then it is new there."""
    turns = Turns()
    for thread in range(1, THREADS + 1):
        turns.of[place_of(library, turns, thread)].idle_at_ns = 2 * SECOND
    place_of(library, turns, THREADS + 1)
    assert THREADS + 1 not in turns.whose
    gone = place_of(library, turns, 7)
    turns.of[gone].idle_at_ns = SECOND // 2
    assert place_of(library, turns, THREADS + 1) == gone
    assert turns.whose[gone] == THREADS + 1
    assert turns.of[gone].idle_at_ns == 0
