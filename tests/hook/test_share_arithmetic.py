"""The arithmetic of shares (throttle.c, residency.c, past.c): pure, so judged on a model GPU in virtual time."""

import ctypes
import subprocess
from collections.abc import Iterator

import pytest
from built_hook import ROOT
from c_programs import compiled
from hypothesis import example, given
from hypothesis import strategies as st
from share_model import MS, SECOND, Share, Tenant, kernels_of, load, run

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT64 = st.integers(0, (1 << 64) - 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load(tmp_path_factory.mktemp("share"))


def errors(library: ctypes.CDLL, tenants: list[Tenant], window_ns: float) -> list[float]:
    """How many points each tenant had more than its share, over a window in the steady state."""
    gpu = run(library, tenants, SECOND / 2)
    before = list(gpu.done_ns)
    began = gpu.now_ns
    run(library, tenants, began + window_ns, gpu)
    return [
        (after - then) / (gpu.now_ns - began) * 100 - tenant.permille / 10
        for after, then, tenant in zip(gpu.done_ns, before, tenants, strict=True)
    ]


KERNELS = [
    pytest.param(2, 2, 1, id="2 us"),
    pytest.param(50, 50, 1, id="50 us"),
    pytest.param(700, 700, 1, id="700 us"),
    pytest.param(5000, 5000, 1, id="5 ms"),
    pytest.param(200_000, 200_000, 2, id="200 ms"),
    pytest.param(2, 200_000, 40, id="2 us to 200 ms"),
]


@pytest.mark.parametrize(("low_us", "high_us", "seconds"), KERNELS)
@pytest.mark.parametrize("percent", [10, 30, 50, 70, 90])
def test_alone_a_tenant_gets_its_share(
    library: ctypes.CDLL, percent: int, low_us: float, high_us: float, seconds: int
) -> None:
    tenant = Tenant(percent * 10, kernels_of(low_us, high_us))
    assert abs(errors(library, [tenant], seconds * SECOND)[0]) <= 2


@pytest.mark.parametrize(
    "depth", [pytest.param(1, id="waits for each"), pytest.param(8, id="8 deep")]
)
def test_a_tenant_that_waits_for_its_kernels_gets_its_share(
    library: ctypes.CDLL, depth: int
) -> None:
    tenant = Tenant(500, kernels_of(5000, 5000), depth=depth)
    assert abs(errors(library, [tenant], SECOND)[0]) <= 2


PAIRS = [
    pytest.param([10, 90], id="10 and 90"),
    pytest.param([30, 70], id="30 and 70"),
    pytest.param([50, 50], id="50 and 50"),
    pytest.param([25] * 4, id="4 of 25"),
    pytest.param([12] * 8, id="8 of 12"),
]


@pytest.mark.parametrize(
    ("low_us", "high_us"), [(50, 50), (700, 700), (5000, 5000), (20_000, 20_000)]
)
@pytest.mark.parametrize("percents", PAIRS)
def test_beside_others_everyone_gets_their_share(
    library: ctypes.CDLL, percents: list[int], low_us: float, high_us: float
) -> None:
    tenants = [Tenant(percent * 10, kernels_of(low_us, high_us)) for percent in percents]
    assert max(map(abs, errors(library, tenants, SECOND))) <= 3


def test_a_long_kernel_beside_short_ones(library: ctypes.CDLL) -> None:
    tenants = [Tenant(100, kernels_of(200_000, 200_000)), Tenant(900, kernels_of(100, 100))]
    assert max(map(abs, errors(library, tenants, 4 * SECOND))) <= 3


def test_without_the_limit_the_same_judgement_fails(library: ctypes.CDLL) -> None:
    tenants = [
        Tenant(percent * 10, kernels_of(700, 700), depth=64, limited=False) for percent in (30, 70)
    ]
    assert max(map(abs, errors(library, tenants, SECOND))) > 3


def test_who_was_idle_may_catch_up_by_one_point_of_a_second(library: ctypes.CDLL) -> None:
    tenant = Tenant(500, kernels_of(50, 50), asleep=lambda now: SECOND / 2 < now < 3 * SECOND)
    gpu = run(library, [tenant], 3 * SECOND)
    before = gpu.done_ns[0]
    run(library, [tenant], 4 * SECOND, gpu)
    assert abs((gpu.done_ns[0] - before) / SECOND * 100 - 50) <= 2


def test_a_changed_limit_holds_within_half_a_second(library: ctypes.CDLL) -> None:
    tenant = Tenant(300, kernels_of(700, 700))
    gpu = run(library, [tenant], 2 * SECOND)
    for permille in (700, 300):
        tenant.permille = permille
        run(library, [tenant], gpu.now_ns + SECOND / 2, gpu)
        before, began = gpu.done_ns[0], gpu.now_ns
        run(library, [tenant], began + SECOND, gpu)
        assert abs((gpu.done_ns[0] - before) / SECOND * 1000 - permille) <= 20


def test_shares_do_not_swing(library: ctypes.CDLL) -> None:
    """No tenth of a second is far from the others: no limit cycle."""
    tenants = [Tenant(300, kernels_of(500, 500)), Tenant(700, kernels_of(500, 500))]
    gpu = run(library, tenants, SECOND)
    shares = []
    for _ in range(20):
        before, began = gpu.done_ns[0], gpu.now_ns
        run(library, tenants, began + SECOND / 10, gpu)
        shares.append((gpu.done_ns[0] - before) / (gpu.now_ns - began))
    assert max(shares) - min(shares) <= 0.1


# --- one budget --------------------------------------------------------------------------------------------


@given(
    budget=INT64,
    refilled_at=UINT64,
    contended_at=UINT64,
    now=UINT64,
    permille=st.integers(0, 5000),
    cost=INT64,
)
def test_whatever_a_tenant_writes_the_budget_stays_within_bounds(
    library: ctypes.CDLL,
    budget: int,
    refilled_at: int,
    contended_at: int,
    now: int,
    permille: int,
    cost: int,
) -> None:
    share = Share(budget_ns=budget, refilled_at_ns=refilled_at, contended_at_ns=contended_at)
    library.share_refill(share, now, permille)
    library.share_correct(share, cost)
    assert -10 * SECOND <= share.budget_ns <= 200 * MS
    assert MS <= library.share_wait_ns(share, permille) <= 10 * MS


def test_a_debt_is_bounded_by_ten_seconds_of_gpu_time(library: ctypes.CDLL) -> None:
    share = Share(budget_ns=1)
    assert library.share_take(share, 60 * SECOND, MS) == 60 * SECOND
    assert share.budget_ns == -10 * SECOND


@pytest.mark.parametrize(
    ("refilled_at", "now"),
    [
        pytest.param(0, 5 * SECOND, id="never refilled"),
        pytest.param(9 * SECOND, 5 * SECOND, id="refilled in the future: another boot"),
    ],
)
def test_an_impossible_time_gives_nothing(library: ctypes.CDLL, refilled_at: int, now: int) -> None:
    share = Share(refilled_at_ns=refilled_at)
    library.share_refill(share, now, 500)
    assert (share.budget_ns, share.refilled_at_ns) == (0, now)


def test_who_looked_at_the_clock_before_another_gives_no_time_twice(library: ctypes.CDLL) -> None:
    """A thread that is put aside between its look and the refill comes after one that looked later."""
    share = Share(refilled_at_ns=SECOND)
    for now in (SECOND + 4 * MS, SECOND + MS, SECOND + 5 * MS):
        library.share_refill(share, now, 500)
    assert share.budget_ns == pytest.approx(2.5 * MS, abs=20_000)


@pytest.mark.parametrize(
    ("contended_at", "now", "contended"),
    [
        pytest.param(0, SECOND, False, id="never"),
        pytest.param(5 * SECOND, 5 * SECOND + 49 * MS, True, id="lately"),
        pytest.param(5 * SECOND, 5 * SECOND + 51 * MS, False, id="before"),
        pytest.param(5 * SECOND, 5 * SECOND - MS, True, id="seen by a thread that looked later"),
        pytest.param(9000 * SECOND, 5 * SECOND, False, id="in the future: another boot"),
    ],
)
def test_others_had_the_gpu_lately(
    library: ctypes.CDLL, contended_at: int, now: int, contended: bool
) -> None:
    share = Share(contended_at_ns=contended_at)
    assert library.share_contended(share, now) is contended


def test_a_long_pause_is_worth_no_more_than_a_short_one(library: ctypes.CDLL) -> None:
    share = Share(refilled_at_ns=SECOND)
    library.share_refill(share, 3600 * SECOND, 500)
    assert share.budget_ns == 10 * MS


def test_what_was_saved_beside_others_goes_as_fast_as_it_could_be_spent(
    library: ctypes.CDLL,
) -> None:
    share = Share(refilled_at_ns=SECOND, contended_at_ns=SECOND + 100 * MS)
    library.share_refill(share, SECOND + 100 * MS, 500)
    assert share.budget_ns == 50 * MS
    for ms in range(110, 150, 10):
        library.share_refill(share, SECOND + ms * MS, 500)
    assert share.budget_ns == 70 * MS  # no more than 100 ms less 20 ms
    for ms in range(150, 210, 10):
        library.share_refill(share, SECOND + ms * MS, 500)
    assert share.budget_ns == 50 * MS
    library.share_refill(share, SECOND + 600 * MS, 500)
    assert share.budget_ns == 10 * MS


def test_while_all_pause_no_more_is_saved_than_by_an_idle_container(library: ctypes.CDLL) -> None:
    """What was saved before stays, as far as it could not have been spent since."""
    begun = SECOND + 100 * MS
    empty = Share(refilled_at_ns=begun, contended_at_ns=begun)
    library.share_refill(empty, begun + 160 * MS, 800)
    assert empty.budget_ns == 10 * MS
    saved = Share(refilled_at_ns=begun, contended_at_ns=begun, budget_ns=100 * MS)
    library.share_refill(saved, begun + 160 * MS, 800)
    assert saved.budget_ns == 108 * MS  # and what came due in the 10 ms before the pause


# --- who has the GPU ---------------------------------------------------------------------------------------


class Residency(ctypes.Structure):
    """`struct residency`."""

    _fields_ = [
        ("looks", ctypes.c_uint64 * (3 * 2048)),
        ("count", ctypes.c_uint64),
        ("undecided", ctypes.c_uint64),
        ("next_ns", ctypes.c_int64),
        ("next_later", ctypes.c_bool),
    ]


def looks(slice_ns: int, others_ns: int, until_ns: int) -> Iterator[tuple[int, int]]:
    """Times of probes each millisecond, and when each was handled, with turns of these lengths."""
    period = slice_ns + others_ns
    for at in range(0, until_ns, MS):
        phase = at % period
        yield at, at if phase < slice_ns else at - phase + period


def looked(
    library: ctypes.CDLL,
    slice_ms: float,
    others_ms: float,
    until_ns: int = 500 * MS,
    running: int = 1,
) -> Residency:
    """What such looks leave."""
    library.residency_away_ns.restype = library.residency_back_ns.restype = ctypes.c_int64
    library.residency_away_ns.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_bool,
    ]
    library.residency_back_ns.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.residency_look.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.residency_handled.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    residency = Residency()
    out_until = -1
    for at, handled in looks(int(slice_ms * MS), int(others_ms * MS), until_ns):
        if out_until >= 0 and out_until <= at:
            library.residency_handled(ctypes.byref(residency), out_until, 100_000)
            out_until = -1
        library.residency_look(ctypes.byref(residency), at, running)
        out_until = handled if out_until < 0 else out_until
    return residency


@pytest.mark.parametrize(
    ("launched_ms", "from_ms", "until_ms", "now_ms", "unseen"),
    [
        pytest.param(98, 98.5, 99.5, 160, False, id="over before looks ceased"),
        pytest.param(98, 99.5, 101.9, 160, True, id="runs as they cease, and ends soon"),
        pytest.param(98, 120, 120.1, 160, True, id="runs while nobody looks"),
        pytest.param(98, 148, 150.5, 160, True, id="ends as they go on"),
        pytest.param(98, 120, 120.1, 150, True, id="they have not gone on yet"),
        pytest.param(151, 151, 152, 160, False, id="launched after"),
        pytest.param(98, 151, 152, 160, False, id="begins after"),
    ],
)
def test_what_ran_while_nobody_was_let_look_is_told(
    library: ctypes.CDLL,
    launched_ms: float,
    from_ms: float,
    until_ms: float,
    now_ms: float,
    unseen: bool,
) -> None:
    """Looks each millisecond until 99 ms, and again from 150 ms on."""
    residency = looked(library, 1000, 0, 100 * MS)
    for at_ms in range(150, int(now_ms)):
        library.residency_look(ctypes.byref(residency), at_ms * MS, 1)
    library.residency_unseen.restype = ctypes.c_bool
    library.residency_unseen.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4]
    times = (int(ms * MS) for ms in (launched_ms, from_ms, until_ms, now_ms))
    assert library.residency_unseen(ctypes.byref(residency), *times) == unseen


@pytest.mark.parametrize(
    ("slice_ms", "others_ms", "expected"),
    [
        pytest.param(2.3, 2.3, 0.5, id="one other"),
        pytest.param(2.3, 6.9, 0.75, id="three others"),
        pytest.param(5.7, 0.63, 0.1, id="one with little to do"),
        pytest.param(10, 0, 0, id="alone"),
    ],
)
def test_the_time_others_had_is_told(
    library: ctypes.CDLL, slice_ms: float, others_ms: float, expected: float
) -> None:
    residency = looked(library, slice_ms, others_ms)
    away = library.residency_away_ns(ctypes.byref(residency), 0, 500 * MS, False)
    assert away / (500 * MS) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("others_ms", [2.3, 16.1])
def test_the_time_others_had_of_many_seconds_is_told(
    library: ctypes.CDLL, others_ms: float
) -> None:
    """More than there are looks for: one of 200 ms takes that long beside seven others."""
    residency = looked(library, 2.3, others_ms, 5 * SECOND)
    away = library.residency_away_ns(ctypes.byref(residency), SECOND, 5 * SECOND, False)
    assert away / (4 * SECOND) == pytest.approx(others_ms / (2.3 + others_ms), abs=0.04)


def test_time_in_which_nobody_looked_is_not_others(library: ctypes.CDLL) -> None:
    """Nothing ran for a quarter of a second; then others had the first 2 ms of a launch of ours."""
    residency = looked(library, 2.3, 0)
    for at in range(750, 760):
        library.residency_look(ctypes.byref(residency), at * MS, 1)
        handled = max(at, 752) * MS
        library.residency_handled(ctypes.byref(residency), handled, 100_000)
    away = library.residency_away_ns(ctypes.byref(residency), 749 * MS, 759 * MS, False)
    assert away == pytest.approx(2 * MS, abs=MS)


@pytest.mark.parametrize(
    ("next_ms", "others_ms"),
    [
        pytest.param(0, 3.0, id="not known: as the last one was"),
        pytest.param(754, 4.0, id="known"),
        pytest.param(790, 3.0, id="known, but nobody was let look meanwhile"),
    ],
)
def test_the_last_look_stands_for_the_time_until_the_next(
    library: ctypes.CDLL, next_ms: int, others_ms: float
) -> None:
    """The last three were at 749, 750 and 751 ms, in a turn of others."""
    residency = looked(library, 2.3, 0, 750 * MS)
    for at in (750, 751):
        library.residency_look(ctypes.byref(residency), at * MS, 1)
    library.residency_handled(ctypes.byref(residency), int(751.5 * MS), 100_000)
    residency.next_ns = next_ms * MS
    away = library.residency_away_ns(ctypes.byref(residency), 745 * MS, 795 * MS, False)
    assert away == pytest.approx(others_ms * MS, abs=MS // 2)


@pytest.mark.parametrize(("running", "each"), [(0, 1.0), (1, 1.0), (8, 0.125)])
def test_others_turn_is_waited_for_by_all_that_run_then(
    library: ctypes.CDLL, running: int, each: float
) -> None:
    residency = ctypes.byref(looked(library, 2.3, 2.3, running=running))
    whole = library.residency_away_ns(residency, 100 * MS, 400 * MS, False)
    part = library.residency_away_ns(residency, 100 * MS, 400 * MS, True)
    assert part == pytest.approx(whole * each, abs=1000)


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "expected_ms"),
    [
        pytest.param(461, 466, 464.6, id="one turn"),
        pytest.param(455, 466, 464.6, id="the last of several"),
        pytest.param(460.1, 464.5, 0, id="it has not ended"),
        pytest.param(465, 466, 0, id="none"),
    ],
)
def test_when_others_turn_ended_is_told(
    library: ctypes.CDLL, from_ms: float, until_ms: float, expected_ms: float
) -> None:
    residency = looked(library, 2.3, 2.3)
    back = library.residency_back_ns(ctypes.byref(residency), int(from_ms * MS), int(until_ms * MS))
    assert back == int(expected_ms * MS)


def test_a_turn_that_outlasts_a_launch_did_not_interrupt_it(library: ctypes.CDLL) -> None:
    """Others had the GPU until 464.6 ms; what ended by then was ours, and what the probe waited for."""
    residency = ctypes.byref(looked(library, 2.3, 2.3))
    cut = library.residency_away_ns(residency, 461 * MS, 465 * MS, False)
    assert cut == pytest.approx(2.3 * MS, abs=MS)
    assert library.residency_away_ns(residency, 461 * MS, int(464.5 * MS), False) == 0


PAST_RUNS, FORGOTTEN = 512, -1


class Past(ctypes.Structure):
    """Room for `struct past`, never looked into."""

    _fields_ = [("bytes", ctypes.c_uint64 * 4200)]


@pytest.fixture(scope="module")
def past(library: ctypes.CDLL) -> ctypes.CDLL:
    """The functions of past.h, typed."""
    number, ns = ctypes.c_uint64, ctypes.c_int64
    library.past_began.restype = number
    library.past_began.argtypes = [ctypes.c_void_p, number, ns]
    library.past_launched.argtypes = [ctypes.c_void_p, number, ns, ns]
    library.past_ended.argtypes = [ctypes.c_void_p, number, ns, ns]
    library.past_part_ns.restype = library.past_others_ns.restype = ns
    library.past_part_ns.argtypes = library.past_others_ns.argtypes = [
        ctypes.c_void_p,
        number,
        ns,
        ns,
    ]
    library.past_elsewhere_ns.restype = ns
    library.past_elsewhere_ns.argtypes = [ctypes.c_void_p, number, ns, ns]
    library.past_had_ns.restype = ns
    library.past_had_ns.argtypes = [ctypes.c_void_p, number, ns, ns, ns]
    return library


def test_runs_beside_each_other_share_the_time_they_took(past: ctypes.CDLL) -> None:
    all_ = ctypes.byref(Past())
    past.past_began(all_, 1, 0)
    second = past.past_began(all_, 2, 400)
    past.past_began(all_, 3, 600)
    past.past_ended(all_, second, 400, 800)
    # Alone until 400, then two, then three until 800, then with stream 3, which still runs.
    assert past.past_part_ns(all_, 1, 0, 1000) == pytest.approx(400 + 100 + 66 + 100, abs=1)
    assert past.past_part_ns(all_, 2, 400, 800) == pytest.approx(100 + 66, abs=1)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([(0, 600), (200, 800)], id="one behind the other"),
        pytest.param([(200, 800), (0, 600)], id="the later one is seen first"),
        pytest.param([(0, 800), (200, 600)], id="one within the other"),
        pytest.param([(200, 600), (0, 800)], id="and seen first"),
        pytest.param([(0, 300), (500, 800), (200, 600)], id="between two"),
        pytest.param([(0, None), (200, None), (600, None)], id="all run still"),
    ],
)
def test_what_several_threads_have_in_one_stream_is_no_more_than_the_stream_had(
    past: ctypes.CDLL, runs: list[tuple[int, int | None]]
) -> None:
    all_ = ctypes.byref(Past())
    for from_ns, until_ns in runs:
        number = past.past_began(all_, 1, from_ns)
        if until_ns is not None:
            past.past_ended(all_, number, from_ns, until_ns)
    assert past.past_part_ns(all_, 2, 0, 800) == 400


ELSEWHERE = 1 << 56  # a stream of another context


@pytest.mark.parametrize(
    ("runs", "since_ns"),
    [
        pytest.param([], 100, id="nothing"),
        pytest.param([(ELSEWHERE, 0, 300), (ELSEWHERE, 300, 500)], 500, id="waited for both"),
        pytest.param([(ELSEWHERE, 0, 90)], 100, id="over before"),
        pytest.param([(ELSEWHERE, 0, 900)], 100, id="ends later"),
        pytest.param([(ELSEWHERE, 0, None)], 100, id="runs"),
        pytest.param([(2, 0, 500)], 100, id="a stream of its own context"),
        pytest.param([(2, 0, 300), (ELSEWHERE, 0, 500)], 100, id="after its own had the GPU"),
        pytest.param([(2, 0, 700), (ELSEWHERE, 0, 500)], 500, id="and its own waited, too"),
    ],
)
def test_what_ended_last_in_another_context(
    past: ctypes.CDLL, runs: list[tuple[int, int, int | None]], since_ns: int
) -> None:
    """Between 100 and 800, for a launch of stream 1."""
    all_ = ctypes.byref(Past())
    for stream, from_ns, until_ns in runs:
        number = past.past_began(all_, stream, from_ns)
        if until_ns is not None:
            past.past_ended(all_, number, from_ns, until_ns)
    assert past.past_elsewhere_ns(all_, 1, 100, 800) == since_ns


Runs = list[tuple[tuple[int, int], bool]]  # from when until when, and whether it is asked at once


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(0, 90), st.integers(0, 90)).map(
                lambda ends: (min(ends), max(ends))
            ),
            st.booleans(),
        ),
        max_size=8,
    )
)
@example([((20, 30), True), ((0, 90), True)])  # one that was asked, within another
@example([((20, 30), False), ((10, 40), True), ((0, 90), False)])
def test_what_all_of_a_stream_had_is_what_the_stream_had(past: ctypes.CDLL, runs: Runs) -> None:
    """Each is asked once: as soon as it ended, or at the end."""
    all_ = ctypes.byref(Past())
    had_ns, later = 0, []
    for (from_ns, until_ns), at_once in runs:
        number = past.past_began(all_, 1, from_ns)
        past.past_ended(all_, number, from_ns, until_ns)
        if at_once:
            had_ns += past.past_had_ns(all_, number, 0, 100, FORGOTTEN)
        else:
            later.append(number)
    had_ns += sum(past.past_had_ns(all_, number, 0, 100, FORGOTTEN) for number in later)
    assert had_ns == len({ns for (from_ns, until_ns), _ in runs for ns in range(from_ns, until_ns)})


def test_what_one_had_of_a_window(past: ctypes.CDLL) -> None:
    all_ = ctypes.byref(Past())
    number = past.past_began(all_, 1, 20)
    beside = past.past_began(all_, 2, 60)
    past.past_ended(all_, number, 20, 80)
    past.past_ended(all_, beside, 60, 80)
    assert past.past_had_ns(all_, number, 40, 70, FORGOTTEN) == 20 + 10 // 2
    assert past.past_had_ns(all_, number, 80, 90, FORGOTTEN) == 0


def test_what_one_had_whose_place_is_anothers_is_forgotten(past: ctypes.CDLL) -> None:
    """The other runs still: 5.5e18 ns were charged, and the container stood still."""
    all_ = ctypes.byref(Past())
    number = past.past_began(all_, 1, 20)
    past.past_ended(all_, number, 20, 80)
    for _ in range(PAST_RUNS):
        past.past_began(all_, 1, 30)
    assert past.past_had_ns(all_, number, 0, 2**63 - 1, FORGOTTEN) == FORGOTTEN


def test_launches_between_two_calls_are_those_of_the_same_stream(past: ctypes.CDLL) -> None:
    all_ = ctypes.byref(Past())
    launches = ((5, 1, 100), (2, 1, 1), (4, 1, 20), (6, 2, 300), (7, 1, 4000), (9, 1, 5))
    numbers = [past.past_began(all_, stream, 0) for _, stream, _ in launches]
    for number, (call, _, cost_ns) in zip(numbers, launches, strict=True):
        past.past_launched(all_, number, call, cost_ns)
    assert past.past_others_ns(all_, numbers[0], 2, 9) == 20 + 4000


# --- what launches cost ---------------------------------------------------------------------------------------


class Estimate(ctypes.Structure):
    """`struct estimate` of throttle.h."""

    _fields_ = (
        ("key", ctypes.c_uint64),
        ("ns", ctypes.c_uint32),
        ("deviation", ctypes.c_uint16),
        ("samples", ctypes.c_uint8),
        ("parts", ctypes.c_uint8),
    )


FAMILY_AT = 52


class Predictor(ctypes.Structure):
    """`struct predictor` of throttle.h, all zero: empty."""

    _fields_ = (
        ("sets", Estimate * (2048 * 4)),
        ("event_ns", ctypes.c_uint32),
        ("far", ctypes.c_bool * (1 << (64 - FAMILY_AT))),
    )


def learned(library: ctypes.CDLL, samples: list[int]) -> int:
    """What a launch is expected to cost after these, in ns."""
    return int(learned_of(library, samples).ns)


def learned_of(library: ctypes.CDLL, samples: list[int]) -> Estimate:
    return learn(library, Predictor(), 1, samples)


def learn(library: ctypes.CDLL, predictor: Predictor, key: int, samples: list[int]) -> Estimate:
    library.estimate_claim.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.estimate_claim.restype = ctypes.POINTER(Estimate)
    library.estimate_learn.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64,
    ]  # fmt: skip
    estimate = library.estimate_claim(ctypes.byref(predictor), key)
    for ns in samples:
        library.estimate_learn(ctypes.byref(predictor), estimate, key, ns, ns)
    return Estimate.from_buffer_copy(estimate.contents)


FEW_SHORT = [3000, 90_000, 2000, 11_000, 40_000, 3000, 15_000]
IN_TURN = [2000, 14_000] * 150
NOW_AND_THEN = ([20_000] * 99 + [2_000_000]) * 30


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([1] * 20, 100, id="1 ns would never be measured again"),
        pytest.param([0] * 20, 100, id="nor would nothing"),
        pytest.param([-5000] * 20, 100, id="nor less"),
        pytest.param([50_000] * 20, pytest.approx(50_000, rel=0.01), id="always the same"),
        pytest.param(
            [*FEW_SHORT, 50_000_000],
            pytest.approx((sum(FEW_SHORT) + 50_000_000) / 8, rel=0.01),
            id="a long one among the first counts as much as they",
        ),
        pytest.param(IN_TURN, pytest.approx(8000, rel=0.01), id="what varies is steadied"),
        pytest.param(
            NOW_AND_THEN,
            pytest.approx(39_800, rel=0.25),
            id="what is long now and then is not forgotten",
        ),
        pytest.param(
            [*IN_TURN, 80_000_000],
            pytest.approx(5_000_000, rel=0.01),
            id="what has become longer is noticed at once",
        ),
    ],
)
def test_what_a_launch_is_expected_to_cost(
    library: ctypes.CDLL, samples: list[int], expected: float
) -> None:
    assert learned(library, samples) == expected


@pytest.mark.parametrize(
    ("samples", "measured"),
    [
        pytest.param([20_000] * 200, False, id="always the same"),
        pytest.param(NOW_AND_THEN, True, id="long now and then"),
        pytest.param([*NOW_AND_THEN, *[20_000] * 10_000], True, id="the last one was long ago"),
        pytest.param([*NOW_AND_THEN, *[20_000] * 20_000], False, id="it never was again"),
        pytest.param([*[20_000] * 200, 2_000_000, *[20_000] * 2000], True, id="long once"),
        pytest.param([*[20_000] * 200, 2_000_000, *[20_000] * 6000], False, id="long only once"),
    ],
)
def test_a_kind_that_was_long_twice_is_measured_for_long_after(
    library: ctypes.CDLL, samples: list[int], measured: bool
) -> None:
    """That none was long lately is no reason to go by the estimate: it is at its lowest then."""
    assert bool(learned_of(library, samples).deviation & 0x8000) == measured


NOW_LONG = [20_000] * 20 + [1_000_000]


@pytest.mark.parametrize(
    ("family", "ns", "measured"),
    [
        pytest.param(5, 20_000, 0xC000, id="of the same kernel: always"),
        pytest.param(5, 4_000, 0x4000, id="short: one in a few"),
        pytest.param(5, 300, 0, id="too short for that"),
        pytest.param(6, 20_000, 0, id="of another"),
    ],
)
@pytest.mark.parametrize("before", [True, False], ids=["known before", "new"])
def test_what_one_shape_is_now_and_then_all_of_the_kernel_may_be(
    library: ctypes.CDLL, family: int, ns: int, measured: int, before: bool
) -> None:
    """With 100 shapes of 20 us, and one launch in 40 of 1 ms, 50 % were 72 for seconds."""
    predictor, other = Predictor(), (family << FAMILY_AT) + 77
    if before:
        learn(library, predictor, other, [ns] * 3)
    learn(library, predictor, (5 << FAMILY_AT) + 1, NOW_LONG)
    found = learn(library, predictor, other, [] if before else [ns])
    assert found.deviation & 0xC000 == measured


def test_once_no_shape_is_long_any_more_new_ones_are_as_any(library: ctypes.CDLL) -> None:
    predictor, family = Predictor(), 5 << FAMILY_AT
    learn(library, predictor, family + 1, NOW_LONG + [20_000] * 5_000)
    assert learn(library, predictor, family + 2, [20_000]).deviation == 0


@pytest.mark.parametrize("apart", [16, 256, 4096], ids="kernels {} bytes apart".format)
def test_kinds_have_keys_of_their_own(apart: int) -> None:
    """And lie in all sets, two to one on average; of one kernel they are one family."""
    program = compiled("kinds.c", f"-I{ROOT / 'hook'}")
    done = subprocess.run([str(program), str(apart)], capture_output=True, text=True, check=True)
    kinds, distinct, fullest, strangers = map(int, done.stdout.split())
    assert (kinds, distinct, strangers) == (4096, 4096, 0)
    assert fullest <= 12  # by chance it would be 8 or 9
