"""Even parts of a container's share for its processes, and of a process's for its threads.

Whatever each of them launches. The whole hook on a simulated GPU, in virtual time, as in test_share.py. One
launch is never cut in two, so parts are even but for the longest one.
"""

from pathlib import Path

import pytest
from share_bed import STEPS, Container, Kernels, Tenant, run

KERNELS: Kernels = {
    "short": 20,
    "a": 30,
    "half": 500,
    "ms": 1000,
    "b": 10_000,
    "d": 60_000,
    "long": 200_000,
    "varies": (100, 2000),
}
AROUND_MS = 30  # a chunk and what was launched by the time that others' has begun


def together(
    directory: Path, percent: float, *phases: str | tuple[str, ...], threads: int = 1
) -> Container:
    """Processes of one container, each with its phases."""
    tenants = [
        Tenant(percent, (one,) if isinstance(one, str) else one, threads=threads, container=0)
        for one in phases
    ]
    (container,) = run(directory, tenants, KERNELS)
    return container


def is_used_up(container: Container, longest_ms: int) -> bool:
    """Whether the processes together had what is the container's, but for one launch."""
    share_ms = container.percent * 10 * container.together / STEPS
    return abs(sum(container.had_ms()) - share_ms) <= longest_ms + AROUND_MS


SIDE_BY_SIDE = [  # percent, what each launches, the longest in ms
    pytest.param(20, ["kernel=short", "kernel=long,sync=1"], 200, id="20 us beside 200 ms"),
    pytest.param(20, ["kernel=a", "kernel=b,sync=1"], 10, id="30 us beside 10 ms"),
    pytest.param(90, ["kernel=short,sync=1", "kernel=long"], 200, id="each of 20 us waited for"),
    pytest.param(
        20, ["kernel=short,burst=500,idle_us=10000", "kernel=long"], 200, id="20 us in bursts"
    ),
    pytest.param(50, ["kernel=d,sync=1", "kernel=long,sync=1"], 200, id="60 ms, as it ran"),
    pytest.param(
        30, ["kernel=short", "kernel=b", "kernel=long,sync=1"], 200, id="three, the first of 20 us"
    ),
]


@pytest.mark.parametrize(("percent", "each", "longest_ms"), SIDE_BY_SIDE)
def test_parts_are_even(tmp_path: Path, percent: int, each: list[str], longest_ms: int) -> None:
    """At 20 %, 20 us had 0.8 ms of 1800 beside 200 ms, and 30 us 33 of 1614 beside 10 ms."""
    container = together(tmp_path, percent, *(f"ms=8000,{phase}" for phase in each))
    had_ms = container.had_ms()
    assert max(had_ms) - min(had_ms) <= longest_ms + AROUND_MS, had_ms
    assert is_used_up(container, longest_ms), had_ms


def test_what_one_leaves_the_other_has(tmp_path: Path) -> None:
    """A third of what the container has is asked for by the one, and the share is used up."""
    container = together(
        tmp_path, 20, "ms=8000,kernel=ms,burst=1,idle_us=15000", "ms=8000,kernel=long,sync=1"
    )
    assert is_used_up(container, 200), container.had_ms()


@pytest.mark.parametrize(
    ("stays", "comes_back", "longest_ms"),
    [
        pytest.param("kernel=short", "kernel=long,sync=1", 200, id="200 ms come back to 20 us"),
        pytest.param("kernel=b,sync=1", "kernel=short", 10, id="20 us come back to 10 ms"),
    ],
)
def test_who_was_idle_has_saved_up_nothing(
    tmp_path: Path, stays: str, comes_back: str, longest_ms: int
) -> None:
    """From when it comes back parts are even; meanwhile all was the other's."""
    phases = (f"ms=2000,{comes_back}", "ms=4000,kernel=none", f"ms=6000,{comes_back}")
    container = together(tmp_path, 20, f"ms=12000,{stays}", phases)
    had_ms = container.had_ms(6)
    assert max(had_ms) - min(had_ms) <= longest_ms + AROUND_MS, had_ms
    assert is_used_up(container, longest_ms), container.had_ms()
    assert sum(container.of_each_ns[1][30:60]) == 0
    assert sum(container.of_each_ns[0][30:60]) / 1e6 == pytest.approx(600, abs=AROUND_MS)


def test_nobody_waits_for_one_that_was_killed(tmp_path: Path) -> None:
    """It had less than the other, and waited: one thread of it kills it beside another that does."""
    container = together(
        tmp_path, 20, "ms=3000,kernel=short,kill=1", "ms=9000,kernel=long,sync=1", threads=2
    )
    (had_ns,) = container.of_each_ns  # of who is left
    assert sum(had_ns[:30]) / 1e6 <= 400 + AROUND_MS  # of 600, while the other was there
    assert sum(had_ns[45:85]) / 1e6 == pytest.approx(800, abs=200)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_pause_together_save_no_more_than_one(
    tmp_path: Path, processes: int
) -> None:
    """They have the GPU in turns, and none of that is others': the best second had 92 % of 80."""
    phases = ("ms=1000,kernel=short", *("ms=160,kernel=none", "ms=1000,kernel=short") * 3)
    container = together(tmp_path, 80, *[phases] * processes)
    seconds = range(len(container.worked_ns) - STEPS + 1)
    best = max(sum(container.worked_ns[i : i + STEPS]) / 1e7 for i in seconds)
    assert 78 < best <= 82


# --- the threads of a process -------------------------------------------------------------------------------


def threads(*each: str) -> tuple[str, ...]:
    """The phases of a process of which each thread does something else, on streams of its own."""
    return tuple(f"thread={number},{phase}" for number, phase in enumerate(each, 1))


def parts_ms(container: Container, *us: int) -> list[list[float]]:
    """GPU time of what each thread of each process launched, the kernels of each being so long."""
    return [
        [count * one / 1000 for count, one in zip(launched, us, strict=True)]
        for launched in container.launches_of_threads
    ]


def of_threads_ms(longest_ms: int) -> int:
    """How uneven their parts may be: some are of a kind that is not known yet, or not run in the end."""
    return 4 * longest_ms + 2 * AROUND_MS


THREADS = [  # percent, what each launches, how long that is in us
    pytest.param(30, ["kernel=short", "kernel=b"], [20, 10_000], id="20 us beside 10 ms"),
    pytest.param(20, ["kernel=short", "kernel=long,sync=1"], [20, 200_000], id="beside 200 ms"),
    pytest.param(
        50, ["kernel=short,sync=1", "kernel=d"], [20, 60_000], id="each of 20 us waited for"
    ),
    pytest.param(
        30, ["kernel=short", "kernel=ms", "kernel=b"], [20, 1000, 10_000], id="three threads"
    ),
    pytest.param(30, ["kernel=short", "kernel=half"], [20, 500], id="beside what chunks pay for"),
]


@pytest.mark.parametrize(("percent", "each", "us"), THREADS)
def test_parts_of_threads_are_even(
    tmp_path: Path, percent: int, each: list[str], us: list[int]
) -> None:
    """At 30 %, 20 us had 19 ms of 2400 beside 10 ms, when whoever looked first took."""
    longest_ms = -(-max(us) // 1000)
    phases = threads(*(f"ms=8000,{phase}" for phase in each))
    container = together(tmp_path, percent, phases, threads=len(each))
    (had_ms,) = parts_ms(container, *us)
    assert max(had_ms) - min(had_ms) <= of_threads_ms(longest_ms), had_ms
    assert is_used_up(container, longest_ms), had_ms


def test_a_thread_that_wants_little_has_it(tmp_path: Path) -> None:
    """Inference beside training, in one process: bursts of 1 ms, 5 ms apart, of which 6 ms in all were left to it."""
    phases = threads("ms=4000,kernel=short,burst=50,idle_us=5000", "ms=4000,kernel=b,burst=10")
    container = together(tmp_path, 30, phases, threads=2)
    ((little_ms, _),) = parts_ms(container, 20, 10_000)
    assert little_ms > 500
    assert abs(container.worst_error()) <= 2


@pytest.mark.parametrize("percent", [50, 90, 97])
def test_what_a_thread_leaves_to_bursts_is_not_lost(tmp_path: Path, percent: int) -> None:
    """It waited until so much was saved up that more was lost: 84.8 of 90 and 87.8 of 97 % were had."""
    phases = threads("ms=6000,kernel=varies,sync=2", "ms=6000,kernel=short,burst=20,idle_us=2000")
    container = together(tmp_path, percent, phases, threads=2)
    assert abs(container.worst_error(skip_s=2)) <= 2


def test_a_thread_that_begins_with_a_long_kernel_leaves_the_next_turn(tmp_path: Path) -> None:
    """The other's first was expected to be as long: it looked first each time, and that one had no other."""
    phases = (
        "thread=1,ms=6000,kernel=long,sync=1",
        "thread=2,ms=50,kernel=none",
        "thread=2,ms=5950,kernel=short,sync=40",
    )
    container = together(tmp_path, 30, phases, threads=2)
    ((long_ms, short_ms),) = parts_ms(container, 200_000, 20)
    assert abs(long_ms - short_ms) <= of_threads_ms(200)


def test_threads_share_what_is_their_processs(tmp_path: Path) -> None:
    """The other process has as much alone as both of them have."""
    container = together(
        tmp_path,
        40,
        threads("ms=8000,kernel=short", "ms=8000,kernel=b"),
        threads("ms=8000,kernel=short", "ms=8000,kernel=none"),
        threads=2,
    )
    (short_ms, b_ms), _ = parts_ms(container, 20, 10_000)
    both_ms, other_ms = container.had_ms()
    assert abs(both_ms - other_ms) <= 10 + AROUND_MS
    assert abs(short_ms - b_ms) <= of_threads_ms(10)
    assert is_used_up(container, 10)


def test_a_thread_that_was_idle_has_saved_up_nothing(tmp_path: Path) -> None:
    """While it was, all was the other's, and from when it comes back parts are even."""
    phases = (
        "thread=1,ms=9000,kernel=b",
        "thread=2,ms=1000,kernel=short",
        "thread=2,ms=4000,kernel=none",
        "thread=2,ms=4000,kernel=short",
    )
    container = together(tmp_path, 20, phases, threads=2)
    ((b_ms, short_ms),) = parts_ms(container, 10_000, 20)
    assert short_ms == pytest.approx(500, abs=of_threads_ms(10))
    assert b_ms == pytest.approx(1300, abs=of_threads_ms(10))
    assert is_used_up(container, 10)


# --- a process that lowers its own share --------------------------------------------------------------------

LOWERED = [  # of the container, from a file or not; of each that lowers its own; the kernels of these
    pytest.param(90, True, [1], "a", id="one of 1 %"),
    pytest.param(90, True, [5] * 4, "a", id="four of 5 %"),
    pytest.param(90, True, [10], "ms", id="one of 10 %"),
    pytest.param(50, False, [10], "a", id="without a file"),
    pytest.param(50, False, [10], "b", id="without a file, 10 ms"),
]


@pytest.mark.parametrize(("percent", "limits_file", "own", "kernel"), LOWERED)
def test_a_process_that_lowers_its_own_share_is_held_to_it(
    tmp_path: Path, percent: int, limits_file: bool, own: list[int], kernel: str
) -> None:
    """And the container has its own: of 90 %, 1 % had 40.2 and the other 41.3."""
    first = Tenant(percent, ("ms=5000,kernel=ms",), container=0, limits_file=limits_file)
    lower = [Tenant(one, (f"ms=5000,kernel={kernel}",), container=0) for one in own]
    (container,) = run(tmp_path, [first, *lower], KERNELS)
    assert abs(container.worst_error()) <= 2, container.percents(1, 1)
    for one, found in zip(own, container.percents_of_each(1, 1)[1:], strict=True):
        assert max(abs(percents - one) for percents in found) <= 1, found


def test_one_that_lowers_its_own_where_the_container_has_no_limit(tmp_path: Path) -> None:
    """Nobody else looks at the budget."""
    lower = Tenant(10, ("ms=5000,kernel=ms",), container=0)
    first = Tenant(100, ("ms=5000,kernel=ms",), container=0, limits_file=True)
    (container,) = run(tmp_path, [first, lower], KERNELS)
    found = container.percents_of_each(1, 1)[1]
    assert max(abs(percents - 10) for percents in found) <= 2, found


def test_threads_of_one_that_lowers_its_own(tmp_path: Path) -> None:
    """Parts of what it has are even as well, and who is beside it has the rest."""
    first = Tenant(50, ("ms=8000,kernel=ms",), container=0)
    lower = Tenant(10, threads("ms=8000,kernel=short", "ms=8000,kernel=b"), threads=2, container=0)
    (container,) = run(tmp_path, [first, lower], KERNELS)
    short_ms, b_ms = (
        launched * us / 1000
        for launched, us in zip(container.launches_of_threads[1], (20, 10_000), strict=True)
    )
    assert abs(short_ms - b_ms) <= of_threads_ms(10)
    assert container.had_ms()[1] == pytest.approx(800, abs=10 + AROUND_MS)
    assert is_used_up(container, 10)


def test_tenths_of_a_percent_are_the_containers(tmp_path: Path) -> None:
    """Without a file the container's share is told in whole percents: that lowers nobody's own."""
    tenants = [Tenant(10.5, ("ms=6000,kernel=a",), container=0)] * 2
    (container,) = run(tmp_path, tenants, KERNELS)
    assert container.percents(4, 1)[0] == pytest.approx(10.5, abs=0.2)


@pytest.mark.parametrize("processes", [12, 24])
def test_processes_that_begin_together_do_not_overrun_together(
    tmp_path: Path, processes: int
) -> None:
    """Each has a first launch of which nothing is known: 60 of 30 % were had by turns, and nothing in between."""
    tenants = [
        *(Tenant(30, ("ms=1500,kernel=l,sync=1",), container=0) for _ in range(processes)),
        Tenant(70, ("ms=1500,kernel=n",)),
    ]
    container, _ = run(tmp_path, tenants, {"l": 20_000, "n": 5000})
    had_ms = [worked_ns / 1e6 for worked_ns in container.worked_ns[: container.together]]
    assert min(had_ms) > 0, had_ms
    assert max(had_ms) <= 30 + 20, had_ms
