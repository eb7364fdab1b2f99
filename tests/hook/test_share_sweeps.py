"""What a sweep tells (gpu_sweep.c): launches on several streams that were all measured for a while.

Each row is a sweep made by hand; times in us. A stream runs at one share of as many as run.
"""

import subprocess
from dataclasses import dataclass

import pytest
from built_hook import ROOT
from c_programs import compiled

STEADY = 128  # launches that count as much as what was known before
LEAST = 2  # the same at first
SECOND_CONTEXT = 1 << 56  # in the number of a stream


@dataclass(frozen=True)
class Swept:
    """What became of it."""

    together: bool
    until: float | None  # when the first stream was measured no more
    running: int | None  # streams that ran then
    costs: list[float | None]  # that each launch is said to have had
    expected: float  # of the next one

    @property
    def told(self) -> int:
        return sum(cost is not None for cost in self.costs)


Launch = tuple[int, float, float, float | None]  # stream, launched, began, ended


def said(*lines: str) -> list[str]:
    """What the program prints of them."""
    return subprocess.run(
        [compiled("sweeps.c", f"-I{ROOT / 'hook'}")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def told(
    launches: list[Launch], always: list[Launch], *questions: str, goes_on: bool = True
) -> list[str]:
    """What is answered once the sweep is over, to which the ones of a kind that is always measured belong."""
    lines = [
        f"{kind} {stream} {launched} {began} {ended} {number}"
        for kind, number, of_kind in (("launch", 1, launches), ("always", 2, always))
        for stream, launched, began, ended in of_kind
    ]
    return said(*lines, "expected 1 10", *["went_on 2"][:goes_on], "now 20000", *questions)[1:]


def swept(
    launches: list[Launch],
    expected: float = 10.0,
    went_on: float | None = None,
    contended: bool = False,
    now: float = 20_000.0,
    seen: tuple[int, ...] = (),
    known: int = 0,
    busy: tuple[int, ...] = (),
) -> Swept:
    lines = [
        f"launch {stream} {launched} {began} {'-' if ended is None else ended} 1"
        for stream, launched, began, ended in launches
    ]
    lines += [f"expected 1 {expected}"]
    lines += [f"went_on {went_on}"] if went_on is not None else []
    lines += ["contended"] if contended else []
    lines += [f"seen {stream}" for stream in seen]
    lines += [f"busy {stream}" for stream in busy]
    lines += [f"known 1 {known}"] if known else []
    judged, kind = said(*lines, f"now {now}", "kind 1")
    together, until, running, *costs = judged.split()
    return Swept(
        together == "together",
        None if until == "-" else float(until),
        None if running == "-" else int(running),
        [None if cost == "-" else int(cost) / 1000 for cost in costs],
        int(kind) / 1000,
    )


def in_turn(stream: int, count: int, took: float, queued: float = 0.0) -> list[Launch]:
    """Launched at once, one running after the other; behind what takes until `queued`."""
    return [
        (stream, 1.0 + i / 1000, 1.0 + queued + i * took, 1.0 + queued + (i + 1) * took)
        for i in range(count)
    ]


def four_streams(took: float) -> list[Launch]:
    """Ten launches of each. The last ones are not judged: they would be, if they were longer."""
    return [launch for stream in (1, 2, 3, 4) for launch in in_turn(stream, 10, took)]


@pytest.mark.parametrize(
    ("expected", "known", "moved"),
    [
        pytest.param(10.0, STEADY, 10.0, id="as it was"),
        pytest.param(5.0, STEADY, 5.0 + 5.0 * 36 / (36 + STEADY), id="longer: some of the way"),
        pytest.param(20.0, STEADY, 20.0 - 10.0 * 36 / (36 + STEADY), id="shorter: some of the way"),
        pytest.param(20.0, 12, 20.0 - 10.0 * 72 / (72 + 12), id="little known: most of the way"),
        pytest.param(
            20.0, 0, 20.0 - 10.0 * 72 / (72 + LEAST), id="its first sweep: almost all of it"
        ),
        pytest.param(1.0, STEADY, 10.0, id="ten times longer: at once"),
    ],
)
def test_a_sweep_moves_what_is_expected_by_how_many_launches_say_so(
    expected: float, known: int, moved: float
) -> None:
    found = swept(four_streams(40.0), expected, went_on=2.0, known=known)
    assert (found.together, found.told) == (True, 36)
    assert {cost for cost in found.costs if cost} == {10.0}
    assert found.expected == pytest.approx(moved, abs=0.01)


@pytest.mark.parametrize(
    ("ended", "moved"),
    [
        pytest.param(401.0, 60.0 + 20.0 * 2 / (2 + LEAST), id="all of it was in the sweep"),
        pytest.param(2001.0, 60.0 + 340.0 * 0.4 / (0.4 + LEAST), id="a fifth: 230 it was"),
    ],
)
def test_what_a_launch_took_when_the_sweep_was_over_says_little(ended: float, moved: float) -> None:
    """What runs beside it then is not known: one of 500 us was taken for one of 640, and that was believed."""
    short = [
        f"launch {stream} {at} {began} {end} 1" for stream, at, began, end in four_streams(40.0)
    ]
    known = ["expected 1 8", "expected 3 60", "went_on 2", "now 20000", "kind 3"]
    judged, kind = said(*short, f"launch 5 1 1 {ended} 3", *known)
    assert judged.startswith("together 401.0 5")
    assert int(kind) / 1000 == pytest.approx(moved, abs=0.01)


def test_those_that_run_on_after_it_count_like_the_others() -> None:
    """They are the longer ones, and counted by half: of 2 to 20 us on 32 streams the share was a point too much."""
    short = [
        f"launch {stream} {at} {began} {end} 1" for stream, at, began, end in four_streams(40.0)
    ]
    two = ["launch 5 1 1 201 3", "launch 5 1 201 561 3"]  # of 40 and 72 us
    known = ["expected 1 8", "expected 3 50", "went_on 2", "now 20000", "kind 3"]
    _, kind = said(*short, *two, *known)
    assert int(kind) / 1000 == pytest.approx(50.0 + 6.0 * 4 / (4 + LEAST), abs=0.01)


def test_it_counts_less_in_the_mean_of_its_kind() -> None:
    """Of two launches, of 40 and as it seems 400 us, a tenth of the second was in the sweep: 129 it was."""
    short = [
        f"launch {stream} {at} {began} {end} 1" for stream, at, began, end in four_streams(40.0)
    ]
    two = ["launch 5 1 1 201 3", "launch 5 1 201 2201 3"]
    known = ["expected 1 8", "expected 3 30", "went_on 2", "now 20000", "kind 3"]
    judged, kind = said(*short, *two, *known)
    assert judged.split()[-2:] == ["220000", "220000"]  # what both are charged is what they had
    mean = (40.0 + 400.0 * 0.1) / 1.1
    assert int(kind) / 1000 == pytest.approx(30.0 + (mean - 30.0) * 2.2 / (2.2 + LEAST), abs=0.01)


# Of 100 us. The first stream is measured for 1 ms, the second one for longer, half of that alone.
ONE_STREAM_GOES_ON = [
    *in_turn(1, 5, 200.0),
    *in_turn(2, 5, 200.0),
    *((2, 1.1, 1001.0 + i * 100, 1101.0 + i * 100) for i in range(15)),
]


@pytest.mark.parametrize(
    ("went_on", "until", "running", "told"),
    [
        pytest.param(
            50.0, 1001.0, 2, 10, id="others went on at once: what ran beside the rest is open"
        ),
        pytest.param(2001.0, 2001.0, 1, 5 + 5 + 9, id="others went on later"),
        pytest.param(None, None, None, 25, id="nothing else was launched: all of it is known"),
    ],
)
def test_a_sweep_lasts_until_anything_else_is_launched(
    went_on: float | None, until: float | None, running: int | None, told: int
) -> None:
    found = swept(ONE_STREAM_GOES_ON, 100.0, went_on)
    assert found.together
    assert (found.until, found.running, found.told) == (until, running, told)
    assert [cost for cost in found.costs if cost] == pytest.approx([100.0] * told)


# Of 10 us, two streams. One was measured at once, and no more when the other had not yet been, as that had
# a long queue: those of the first cost 10 us if it ran meanwhile, and 20 us if it did not.
APART = [*in_turn(1, 90, 20.0), *in_turn(2, 90, 20.0, queued=3600.0)]


@pytest.mark.parametrize(
    ("expected", "contended", "known"),
    [
        pytest.param(15.0, False, 15.0, id="possible: as it was"),
        pytest.param(8.0, False, 8.0 + 2.0 * 89 / (89 + STEADY), id="too short: as if all ran"),
        pytest.param(8.0, True, 8.0, id="too short by less than others' turns blur it"),
        pytest.param(6.0, True, 6.0 + 1.5 * 89 / (89 + STEADY), id="too short in spite of these"),
        pytest.param(30.0, False, 30.0 - 10.0 * 89 / (89 + STEADY), id="too long: as if alone"),
    ],
)
def test_streams_that_have_drifted_apart_set_bounds(
    expected: float, contended: bool, known: float
) -> None:
    found = swept(APART, expected, went_on=2.0, contended=contended)
    assert not found.together
    assert found.told == (0 if known == expected else 89)
    assert found.expected == pytest.approx(known, abs=0.05)


@pytest.mark.parametrize(
    ("expected", "seen", "known"),
    [
        pytest.param(8.0, (1, 2), 8.0 + 2.0 * 89 / (89 + STEADY), id="none but those of the sweep"),
        pytest.param(
            8.0, (1, 2, 3), 8.0, id="another: it may have run as well, as may one like it"
        ),
        pytest.param(4.0, (1, 2, 3), 4.0 + 1.0 * 89 / (89 + STEADY), id="too short even so"),
        pytest.param(30.0, (3,), 30.0 - 10.0 * 89 / (89 + STEADY), id="too long in any case"),
    ],
)
def test_streams_in_use_of_which_none_was_measured_may_have_run(
    expected: float, seen: tuple[int, ...], known: float
) -> None:
    """A thread whose queues are full launches nothing in a sweep: with 8 of 32 streams in it, 33 us for 8."""
    found = swept(APART, expected, went_on=2.0, seen=seen)
    assert not found.together
    assert found.expected == pytest.approx(known, abs=0.05)


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        pytest.param((2,), 8.0, id="half may be its"),
        pytest.param((1,), 16.0, id="of the sweep itself"),
        pytest.param((3,), 16.0, id="not in use any more"),
        pytest.param((), 16.0, id="idle"),
    ],
)
def test_what_a_stream_was_busy_with_when_the_sweep_began_may_have_run_beside(
    busy: tuple[int, ...], expected: float
) -> None:
    """One of 500 us beside a burst of short ones, which the whole sweep is of: 76.6 of 90 % were had."""
    found = swept(in_turn(1, 90, 16.0), 8.0, went_on=2.0, seen=(1, 2), busy=busy)
    assert found.expected == pytest.approx(expected, abs=0.2)
    assert found.together == (expected == 16.0)


@pytest.mark.parametrize(("busy", "told"), [((2,), 10), ((), 30)])
def test_a_stream_that_was_busy_puts_off_the_beginning_though_it_has_few_launches(
    busy: tuple[int, ...], told: int
) -> None:
    """Its first one found it idle: what it was busy with had ended by then, and ran beside the others."""
    launches = [*in_turn(1, 20, 16.0), *in_turn(1, 10, 16.0, 320.0), (2, 321.0, 321.0, 481.0)]
    found = swept(launches, 8.0, went_on=None, seen=(1, 2), busy=busy)
    assert sum(cost is not None for cost in found.costs[:30]) == told


def test_what_waited_behind_a_stream_that_was_busy_may_have_run_beside_since_the_beginning() -> (
    None
):
    """All but the last of the burst ended before its first one began, which is measured."""
    found = swept([*in_turn(1, 70, 16.0), (2, 1000.0, 1110.0, 1160.0)], 8.0, went_on=2.0)
    assert not found.together
    assert found.expected == 8.0


def test_where_few_ran_before_one_stream_was_measured_no_more_all_are_judged() -> None:
    """Seven did, too few to set a bound. Their stream may have run on beside those of the other."""
    found = swept(in_turn(1, 7, 20.0) + in_turn(2, 7, 20.0, queued=600.0), 1.0, went_on=2.0)
    assert (found.together, found.until) == (False, None)
    assert found.told == 14
    assert found.expected == pytest.approx(10.0, abs=0.05)


def test_a_stream_of_which_none_was_measured_yet_puts_off_the_beginning() -> None:
    """Its thread may have waited for what it launched before the sweep, which ran beside the others."""
    launches = in_turn(1, 20, 10.0)[:10]
    late = [(2, 101.0 + i / 1000, 101.0 + i * 20, 121.0 + i * 20) for i in range(10)]
    launches += [(1, 1.1, 101.0 + i * 20, 121.0 + i * 20) for i in range(10)]
    found = swept(launches + late, 10.0, went_on=2.0)
    assert (found.together, found.told) == (True, 20)
    assert [i for i, cost in enumerate(found.costs) if cost] == list(range(10, 30))
    assert {cost for cost in found.costs if cost} == {10.0}


def test_a_queue_of_what_is_not_measured_puts_off_the_beginning() -> None:
    launches = in_turn(1, 20, 20.0) + in_turn(2, 10, 20.0, queued=200.0)
    found = swept(launches, 10.0, went_on=2.0)
    assert (found.together, found.told) == (True, 9 + 9)
    assert [i for i, cost in enumerate(found.costs) if cost] == [*range(10, 19), *range(20, 29)]


def test_what_runs_on_after_the_end_ran_beside_as_many_as_before() -> None:
    """The second stream's are twice as long; its last one runs beside what is not measured any more."""
    launches = in_turn(1, 20, 20.0) + in_turn(2, 10, 40.0)[:9] + [(2, 1.1, 361.0, 441.0)]
    found = swept(launches, 10.0, went_on=2.0)
    assert (found.until, found.running) == (401.0, 2)
    assert {cost for cost in found.costs if cost} == {14.137}  # of 19 x 10, 9 x 20 and 40


def test_streams_of_two_contexts_do_not_run_beside_each_other() -> None:
    """The time of each is its own: what the other had was taken off already, as a turn of others."""
    launches = in_turn(1, 20, 20.0) + in_turn(SECOND_CONTEXT + 1, 20, 20.0)
    assert {cost for cost in swept(launches, 20.0, went_on=2.0).costs if cost} == {20.0}


@pytest.mark.parametrize(("queued", "together"), [(280.0, True), (320.0, False)])
def test_a_few_launches_are_none_to_judge_by(queued: float, together: bool) -> None:
    found = swept([*in_turn(1, 20, 20.0), *in_turn(2, 10, 20.0, queued)], 10.0, went_on=2.0)
    assert found.together == together


@pytest.mark.parametrize(
    ("went_on", "until"),
    [
        pytest.param(300.0, 300.0, id="until others go on: its next launch is not measured"),
        pytest.param(60.0, 81.0, id="or as long as it ran"),
        pytest.param(500.0, 500.0, id="nobody did as long as any ran"),
    ],
)
def test_a_stream_with_few_launches_is_not_waited_for(went_on: float, until: float) -> None:
    found = swept([*four_streams(10.0), *four_streams(40.0), *in_turn(5, 2, 40.0)], 10.0, went_on)
    assert (found.together, found.until) == (True, until)


def test_what_is_always_measured_is_told_what_part_of_its_time_it_had() -> None:
    """Half of it beside the other stream, all of it in the time before and after that is not asked of."""
    found = told(in_turn(1, 20, 20.0), in_turn(2, 10, 20.0), "part 2", "part 1")
    assert found == ["0.500", "0.000"]  # of the other stream each is known by its kind


def test_what_part_it_had_is_known_by_time_not_by_launches() -> None:
    """A long one runs beside the others' queue, short ones when that is empty."""
    others = [(1, 1.1, 1.0 + i * 20, 21.0 + i * 20) for i in range(20)] + [(1, 1.2, 900.0, 920.0)]
    long = (2, 1.1, 1.0, 401.0)
    short = [(2, 1.2 + i / 1000, 401.0 + i * 50, 451.0 + i * 50) for i in range(8)]
    assert told(others, [long, *short], "part 2") == ["0.750"]


def test_a_long_one_that_began_before_is_told_also_where_the_program_waits_after_the_sweep() -> (
    None
):
    """Nothing is launched later, so all is known that ran."""
    others = [(1, 1.1, 1.0 + i * 20, 21.0 + i * 20) for i in range(20)]
    assert told(others, [(2, 0.1, 0.2, 401.0)], "part 2", goes_on=False) == ["0.500"]


@pytest.mark.parametrize(
    ("charged", "asked", "had"),
    [
        pytest.param([(0, 0), (1000, 0)], (0, 1000), "1000.0", id="alone"),
        pytest.param([(0, 0), (1000, 300)], (0, 1000), "700.0", id="what was charged was worked"),
        pytest.param(
            [(0, 0), (1000, 900)], (0, 1000), "500.0", id="no more than in turn with it"
        ),
        pytest.param(
            [(0, 0), (1000, 900), (2000, 0)], (1000, 2000), "600.0", id="the rest later"
        ),
        pytest.param(
            [(-1000, 0), (0, 900), (1000, 0)], (0, 1000), "1000.0",
            id="before it began others had it to themselves",
        ),
        pytest.param(
            [(-500, 0), (0.0, 900), (1000, 0)], (0, 1000), "600.0",
            id="but could not work off all of it",
        ),
        pytest.param(
            [(0, 0), (1.0, 200), (1000, 0)], (0, 1000), "800.0",
            id="what was charged at once",
        ),
        pytest.param([(0, 0), (1000, 300)], (0, 500), "350.0", id="between what was noted"),
        pytest.param(
            [(0, 0), (50_000, 300)], (0, 50_000), "50000.0", id="nothing is known of so long a time"
        ),
        pytest.param(
            [(i * 100, 0) for i in range(400)], (1000, 39_000), "-", id="it is too long ago"
        ),
        pytest.param([], (0, 1000), "-", id="nothing was noted"),
        pytest.param([(0, 0), (1000, 300)], (0, 1015), "700.0", id="until just now"),
        pytest.param([(0, 0), (1000, 300)], (0, 1030), "-", id="it is not known yet"),
    ],
)  # fmt: skip
def test_what_a_long_one_has_is_known_by_what_others_are_charged_meanwhile(
    charged: list[tuple[float, float]], asked: tuple[int, int], had: str
) -> None:
    """In sweeps others always run beside it: throttled, they do not at other times, and 80 % were 100."""
    lines = [f"charged {at} {cost} 2" for at, cost in charged]
    line = f"had {asked[0]} {asked[1]}"
    assert told([], [(2, 0.0, 0.0, 60_000.0)], *lines, line)[-1] == had


def test_two_long_ones_share_what_others_leave() -> None:
    long = [(2, 0.0, 0.0, 1000.0), (3, 0.0, 500.0, 1000.0)]
    lines = ["charged 0 0 3", "charged 1000 200 3"]
    assert told([], long, *lines, "had 0 500", "had 500 1000")[-2:] == ["400.0", "200.0"]


def test_a_sweep_of_nothing_else_comes_to_an_end() -> None:
    """The one that began it could not be measured."""
    assert told([], in_turn(2, 10, 20.0), "part 2") == ["1.000"]


@pytest.mark.parametrize(
    ("launch", "took", "answer"),
    [
        pytest.param(10, 20.0, "1 20000", id="twice as long as expected"),
        pytest.param(11, 40.0, "1 40000", id="far longer, all streams being measured"),
        pytest.param(9, 60.0, "1 60000", id="far longer, also if it was not"),
        pytest.param(9, 40.0, "1 10000", id="far longer only if the other stream was idle"),
    ],
)
def test_one_is_far_longer_only_if_no_stream_may_have_run_beside_it_unseen(
    launch: int, took: float, answer: str
) -> None:
    """The second stream's first one was launched late, as its thread waited."""
    lengths = (
        [10.0] * 9 + [took if launch == 9 else 10.0] + [20.0] + [took if launch == 11 else 20.0]
    )
    began, launches = 1.0, []
    for length in lengths:
        launches.append((1, 1.0 + len(launches) / 1000, began, began + length))
        began += length
    second = launches[10][2]
    launches += [(1, 1.1, began + i * 20, began + 20 + i * 20) for i in range(20)]
    late = [(2, second, second + i * 20, second + 20 + i * 20) for i in range(30)]
    assert told(launches + late, [], f"seen_launch {launch}") == [answer]


@pytest.mark.parametrize(
    ("away", "asked", "had"),
    [
        pytest.param(0, (1000, 2000), "1000.0", id="nobody else had the GPU"),
        pytest.param(600, (0, 1000), "800.0", id="they had it meanwhile: in turn for the rest"),
        pytest.param(600, (1000, 2000), "800.0", id="and afterwards, for what was queued"),
        pytest.param(1500, (1000, 2000), "750.0", id="for longer than until the next look"),
        pytest.param(1500, (2000, 3000), "850.0", id="and what is queued then"),
    ],
)
def test_what_is_queued_while_other_containers_have_the_gpu_is_worked_later(
    away: int, asked: tuple[int, int], had: str
) -> None:
    """A long one was charged what those had had since: at 80 % beside 50 ms kernels 76 were had."""
    charged = ["charged 0 0 2", f"away {away}", "charged 1000 400 2", "charged 2000 0 2"]
    lines = [*charged, "charged 3000 0 2", f"had {asked[0]} {asked[1]}"]
    assert told([], [(2, 0.0, 0.0, 60_000.0)], *lines)[-1] == had


@pytest.mark.parametrize(
    ("away", "had"),
    [
        pytest.param(23_000, "600.0", id="others had it"),
        pytest.param(3000, "1000.0", id="nobody looked"),
    ],
)
def test_what_is_queued_outlasts_a_long_turn_of_others(away: int, had: str) -> None:
    """But where nothing is known of so long a time, nothing is known of what was queued before."""
    charged = ["charged 0 0 2", f"away {away}", "charged 24000 900 2", "charged 25000 0 2"]
    lines = [*charged, "had 24000 25000"]
    assert told([], [(2, 0.0, 0.0, 60_000.0)], *lines)[-1] == had


@pytest.mark.parametrize(
    ("charged_us", "had"),
    [
        pytest.param(100_000, "14500.0", id="so much: 4.5 ms are left"),
        pytest.param(140_000, "14000.0", id="more: 100 ms are kept, 5 ms are left"),
    ],
)
def test_more_is_not_queued_than_streams_let_be_queued(charged_us: int, had: str) -> None:
    """What was charged and has not run for so long ran before, or never will."""
    charged = ["charged 0 0 2", f"charged 1000 {charged_us} 2"]
    later = [f"charged {1000 + 19_000 * step} 0 2" for step in range(1, 12)]
    lines = [*charged, *later, "had 191000 210000"]
    assert told([], [(2, 0.0, 0.0, 300_000.0)], *lines)[-1] == had


@pytest.mark.parametrize(
    "looks_us",
    [
        pytest.param([450, 480, 580, 620, 700, 900], id="seldom"),
        pytest.param([450, 480, 490, 499, 505, 513, 535, 549, 580, 620, 700, 900], id="often"),
    ],
)
def test_what_is_queued_waits_for_others_once_however_often_threads_look(
    looks_us: list[int],
) -> None:
    said = subprocess.run(
        [compiled("noted_looks.c", f"-I{ROOT / 'hook'}")],
        input="\n".join(map(str, looks_us)),
        capture_output=True,
        text=True,
        check=True,
    )
    queued_us = dict(zip(looks_us, map(int, said.stdout.split()), strict=True))
    queued = [queued_us[at_us] for at_us in (480, 580, 620, 700, 900)]
    assert queued == pytest.approx([1000, 1000, 990, 910, 710], abs=10)  # looks at 10 us each
