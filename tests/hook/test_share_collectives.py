"""Launches on several GPUs of a container that wait for each other, as collectives do, under a share.

Each GPU has a budget of its own, and what waits on one is charged there. Without credit.c a container
with 30 % of each of two GPUs had one iteration in a hundred of what its share is worth.
The whole hook on simulated GPUs, in virtual time, as in test_share.py.
"""

from pathlib import Path

import pytest
from share_bed import (
    ALONE_POINTS,
    BESIDE_POINTS,
    SHARE_AT,
    Change,
    Container,
    Grows,
    Kernels,
    Meets,
    Microseconds,
    Tenant,
    run,
)

SECONDS = 6
LEARNED_S = 2  # until the GPUs are known to wait for each other
STEP: Kernels = {"c": 1000, "m": Meets(100)}
EIGHT: Kernels = {"c": 1000, "m": Meets(100, 8)}


def on_each(percent: float, phases: list[str]) -> list[Tenant]:
    """A container with a process on each GPU."""
    return [Tenant(percent, (phase,), container=0, gpu=gpu) for gpu, phase in enumerate(phases)]


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def errors(container: Container, skip_s: float = 1, window_s: float = 1) -> list[float]:
    """Points that it was off on each GPU, in the worst window."""
    return [
        max(abs(found - container.percent) for found in percents)
        for percents in container.percents_of_each(window_s, skip_s)
    ]


@pytest.mark.parametrize(
    ("percent", "kernels", "gpus", "phase", "takes_us", "least"),
    [
        pytest.param(90, STEP, 2, "kernel=c+m", 1100, 0.9, id="90 %: nothing to wait for"),
        pytest.param(50, STEP, 2, "kernel=c+m", 1100, 0.45, id="50 %"),
        pytest.param(30, STEP, 2, "kernel=c+m", 1100, 0.4, id="30 %"),
        pytest.param(10, STEP, 2, "kernel=c+m", 1100, 0.3, id="10 %"),
        pytest.param(30, STEP, 2, "kernel=c+m,sync=2", 1100, 0.33, id="waiting for each"),
        pytest.param(30, {**STEP, "c": (200, 2000)}, 2, "kernel=c+m", 880, 0.3, id="that vary"),
        pytest.param(30, {**STEP, "c": 100}, 2, "kernel=c+c+c+c+c+m", 600, 0.25, id="many short ones"),
        pytest.param(30, EIGHT, 8, "kernel=c+m", 1100, 0.35, id="eight GPUs"),
        pytest.param(30, EIGHT, 8, "kernel=c+m,sync=2", 1100, 0.25, id="eight, waiting for each"),
    ],
)  # fmt: skip
def test_they_get_on_within_their_share(
    tmp_path: Path,
    percent: int,
    kernels: Kernels,
    gpus: int,
    phase: str,
    takes_us: int,
    least: float,
) -> None:
    """`least`: of the iterations of `takes_us` that the share is worth."""
    tenants = on_each(percent, [f"ms={SECONDS}000,{phase}"] * gpus)
    (container,) = run(tmp_path, tenants, kernels, launch_us=2)
    assert max(errors(container, LEARNED_S)) <= ALONE_POINTS, container.percents_of_each(1, 1)
    iterations = min(container.launches_of_each) / (1 + phase.count("+"))
    assert iterations >= least * SECONDS * 1e6 * percent / 100 / takes_us


@pytest.mark.parametrize("us", [18_000, 20_000, 22_000])
def test_long_ones_get_on_within_their_share(tmp_path: Path, us: int) -> None:
    """In two seconds: of one, an ideal limiter is off by 1.4 points, and we by 1 to 2.6."""
    tenants = on_each(30, [f"ms={SECONDS}000,kernel=c+m"] * 2)
    (container,) = run(tmp_path, tenants, {**STEP, "c": us}, launch_us=2)
    assert max(errors(container, LEARNED_S, 2)) <= ALONE_POINTS, container.percents_of_each(2, 1)
    iterations = min(container.launches_of_each) / 2
    assert iterations >= 0.8 * SECONDS * 1e6 * 0.3 / (us + 100)


@pytest.mark.parametrize(
    ("percent", "late_ms", "least"),
    [
        pytest.param(50, 300, 0.6, id="50 %, 300 ms"),
        pytest.param(30, 100, 0.6, id="30 %, 100 ms"),
        pytest.param(30, 300, 0.6, id="30 %, 300 ms"),
        pytest.param(30, 1000, 0.6, id="30 %, 1 s"),
        pytest.param(20, 300, 0.5, id="20 %, 300 ms"),
        pytest.param(20, 1000, 0.5, id="20 %, 1 s"),
    ],
)
def test_one_begins_later(tmp_path: Path, percent: int, late_ms: int, least: float) -> None:
    """The first wait is not learned as what a collective takes: it was charged ahead, for good.

    `least`: of the launches of two that begin together.
    """
    work = "kernel=c+m,sync=2"
    together, apart = (
        run(
            made(tmp_path / str(late)),
            [
                Tenant(percent, (f"ms=12000,{work}",), container=0),
                Tenant(
                    percent, (f"ms={late or 1},kernel=none", f"ms=12000,{work}"), container=0, gpu=1
                ),
            ],
            STEP,
            launch_us=2,
        )[0]
        for late in (0, late_ms)
    )
    assert min(apart.launches_of_each) >= least * min(together.launches_of_each)
    assert max(errors(apart, 7)) <= ALONE_POINTS, apart.percents_of_each(1, 1)


def test_one_has_twice_as_much_to_do(tmp_path: Path) -> None:
    """What the other waits for it, its share pays."""
    phases = [f"ms={SECONDS}000,kernel=c+m", f"ms={SECONDS}000,kernel=c+c+m"]
    (container,) = run(tmp_path, on_each(30, phases), STEP, launch_us=2)
    assert max(errors(container)) <= ALONE_POINTS, container.percents_of_each(1, 1)
    assert container.launches_of_each[1] / 3 >= 0.5 * SECONDS * 1e6 * 0.3 / 2100


def test_beside_another_container(tmp_path: Path) -> None:
    """Which has no part in it, and loses none of its share."""
    tenants = on_each(30, [f"ms={SECONDS}000,kernel=c+m"] * 2)
    tenants.append(Tenant(70, (f"ms={SECONDS}000,kernel=b",), container=1))
    one, other = run(tmp_path, tenants, {**STEP, "b": 100}, launch_us=2)
    assert max(errors(one)) <= BESIDE_POINTS, one.percents_of_each(1, 1)
    assert abs(other.worst_error()) <= BESIDE_POINTS, other.percents(1, 1)
    assert min(one.launches_of_each) / 2 >= 0.3 * SECONDS * 1e6 * 0.3 / 1100


@pytest.mark.parametrize("pause", ["kernel=none", "kernel=l"])
def test_one_pauses_for_seconds(tmp_path: Path, pause: str) -> None:
    """A checkpoint, or work of its own: what the other waited is paid for, and then they go on as before.

    The one that had waited was ahead of the other by more and more from then on, for good.
    """
    work = "kernel=c+m"
    phases = [(f"ms=2000,{work}", f"ms=2500,{pause}", f"ms=14000,{work}"), (f"ms=18500,{work}",)]
    tenants = [Tenant(30, one, container=0, gpu=gpu) for gpu, one in enumerate(phases)]
    (container,) = run(tmp_path, tenants, {**STEP, "l": 300}, launch_us=2)
    assert max(errors(container, 16)) <= ALONE_POINTS, container.percents_of_each(1, 1)


TWO_JOBS: Kernels = {**STEP, "n": Meets(100)}


def sums(container: Container, gpus: list[int], skip_s: int) -> list[float]:
    """Percent that all processes had of each GPU, in windows of a second."""
    steps = range(skip_s * 10, container.together - 9, 10)
    return [
        sum(
            sum(own[step : step + 10])
            for own, at in zip(container.of_each_ns, gpus, strict=True)
            if at == gpu
        )
        / 1e7
        for gpu in set(gpus)
        for step in steps
    ]


@pytest.mark.parametrize(
    ("percent", "waits", "least"),
    [
        pytest.param(90, "", 0.45, id="90 %"),
        pytest.param(70, "", 0.35, id="70 %"),
        pytest.param(50, "", 0.35, id="50 %"),
        pytest.param(50, ",sync=2", 0.3, id="50 %, waiting for each"),
        pytest.param(30, "", 0.35, id="30 %"),
        pytest.param(30, ",sync=2", 0.35, id="30 %, waiting for each"),
    ],
)
def test_two_programs_on_the_same_gpus(
    tmp_path: Path, percent: int, waits: str, least: float
) -> None:
    """Each keeps the GPU busy that the other needs: neither went on, from 90 % down.

    `least`: of the iterations that half the share is worth.
    """
    gpus = [0, 1, 0, 1]
    tenants = [
        Tenant(percent, (f"ms={SECONDS}000,kernel=c+{job}{waits}",), container=0, gpu=gpu)
        for job, gpu in zip("mmnn", gpus, strict=True)
    ]
    (container,) = run(tmp_path, tenants, TWO_JOBS, launch_us=2)
    had = sums(container, gpus, LEARNED_S)
    assert max(abs(percents - percent) for percents in had) <= ALONE_POINTS, had
    iterations = min(container.launches_of_each) / 2
    assert iterations >= least * SECONDS * 1e6 * percent / 100 / 2 / 1100


UNRELATED = [
    pytest.param([50, (2, 20000)], id="50 us, 2 us to 20 ms"),
    pytest.param([1000, (20, 2000)], id="1 ms, 20 us to 2 ms"),
    pytest.param([(20, 2000), (2, 20000)], id="20 us to 2 ms, 2 us to 20 ms"),
    pytest.param([(2, 20000)] * 4, id="four of 2 us to 20 ms"),
    pytest.param([50, Grows(1200, 200000, 50)], id="50 us, what becomes long"),
]


@pytest.mark.parametrize("lengths", UNRELATED)
def test_gpus_that_have_nothing_to_do_with_each_other(
    tmp_path: Path, lengths: list[Microseconds]
) -> None:
    """A launch that is long by itself does not end with one on another GPU."""
    phases = [f"ms={SECONDS}000,kernel=k{gpu}" for gpu in range(len(lengths))]
    kernels = {f"k{gpu}": us for gpu, us in enumerate(lengths)}
    (container,) = run(tmp_path, on_each(30, phases), kernels, launch_us=2)
    steady = [gpu for gpu, us in enumerate(lengths) if not isinstance(us, Grows)]
    window_s = 1 if len(steady) == len(lengths) else 2  # ten times the longest kernel
    found = errors(container, window_s=window_s)
    assert max(found[gpu] for gpu in steady) <= ALONE_POINTS, container.percents_of_each(1, 1)


@pytest.mark.parametrize(
    ("threads", "short", "percent"),
    [
        pytest.param(2, "kernel=p,sync=30", 60, id="two threads: 53.6 had"),
        pytest.param(2, "kernel=p,sync=30", 90, id="at 90: 75.0 had"),
        pytest.param(1, "kernel=p+s,streams=2,sync=10", 70, id="two streams: 63.7 had"),
    ],
)
def test_short_launches_beside_one_that_may_wait_for_them(
    tmp_path: Path, threads: int, short: str, percent: int
) -> None:
    """When they run is asked, and says nothing of what they cost, as those beside them are not measured."""
    kernels: Kernels = {"l": (200, 4000), "p": 5, "s": 15}
    tenants = [
        Tenant(percent, (f"ms={SECONDS}000,kernel=l,sync=1",), threads=2, container=0),
        Tenant(percent, (f"ms={SECONDS}000,{short}",), threads=threads, container=0, gpu=1),
    ]
    (container,) = run(tmp_path, tenants, kernels)
    assert max(errors(container)) <= ALONE_POINTS, container.percents_of_each(1, 1)


def test_another_container_beside_one_of_them(tmp_path: Path) -> None:
    """What a GPU is lent for one that does not wait, its neighbour would lose."""
    tenants = on_each(30, [f"ms={SECONDS}000,kernel=v", f"ms={SECONDS}000,kernel=s"])
    tenants.append(Tenant(70, (f"ms={SECONDS}000,kernel=s",), container=1, gpu=1))
    _, other = run(tmp_path, tenants, {"v": (2, 200000), "s": 50}, launch_us=2)
    assert abs(other.worst_error()) <= BESIDE_POINTS, other.percents(1, 1)


@pytest.mark.parametrize("other", [50, 5000], ids=["short", "long"])
def test_a_process_beside_two_that_vary(tmp_path: Path, other: int) -> None:
    """Launches of the container that are long on both GPUs are not taken for two that wait."""
    gpus = [0, 1, 1]
    tenants = [
        Tenant(30, (f"ms={SECONDS}000,kernel={kernel}",), container=0, gpu=gpu)
        for kernel, gpu in zip("vvs", gpus, strict=True)
    ]
    tenants.append(Tenant(70, (f"ms={SECONDS}000,kernel=s",), container=1, gpu=1))
    one, neighbour = run(tmp_path, tenants, {"v": (2, 20000), "s": other}, launch_us=2)
    had = sums(one, gpus, 1)
    assert max(abs(percents - 30) for percents in had) <= BESIDE_POINTS, had
    assert abs(neighbour.worst_error()) <= BESIDE_POINTS, neighbour.percents(1, 1)


def test_one_that_is_killed_while_the_other_waits(tmp_path: Path) -> None:
    """What it said last of its launch is believed for 3 ms; the other has its share after that."""
    kill = "ms=2000,kernel=c+m,kill=1"
    tenants = on_each(30, [kill, f"ms={SECONDS}000,kernel=c+m"])
    (container,) = run(tmp_path, tenants, STEP, launch_us=2)
    (percents,) = container.percents_of_each(1, 3)
    assert max(abs(found - 30) for found in percents) <= ALONE_POINTS, percents


WORDS = {
    "waits_at_ns": 112, "waited_until_ns": 128, "ended_at_ns": 136, "met": 168,
    "waited_since_ns": 176,
}  # of the share  # fmt: skip


@pytest.mark.parametrize("work", ["kernel=c", "kernel=c+m"], ids=["alone", "collectives"])
@pytest.mark.parametrize("value", [-(1 << 63), -1, 32, 1 << 62, (1 << 63) - 1])
def test_nonsense_in_the_region(tmp_path: Path, value: int, work: str) -> None:
    """A tenant may write what it likes there: its share stays what it is."""
    changes = [
        Change(at_ms, 0, "region", SHARE_AT + place, "<q", value)
        for at_ms in range(1000, 2000, 50)
        for place in WORDS.values()
    ]
    tenants = on_each(30, [f"ms=4000,{work}"] * 2)
    (container,) = run(tmp_path, tenants, STEP, changes, launch_us=2)
    assert container.results == [0, 0]
    assert max(errors(container, 2)) <= ALONE_POINTS, container.percents_of_each(1, 1)
