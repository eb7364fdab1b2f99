"""One thread's long kernels beside another's short ones: what each is charged, alone and beside a container.

What is asserted is what the GPU itself says it worked for whom, as in test_share.py.
"""

from pathlib import Path

import pytest
from share_bed import Kernels, Tenant, holds, run

SKIP_S = 2.0
KERNELS: Kernels = {
    "x": (2, 20), "a": 20, "b": 50, "c": 100, "d": 400, "e": 1000, "f": 2000, "g": 5000,
    "h": 10_000, "l": 20_000, "n": 50_000, "w": (100, 2000),
}  # fmt: skip


def tenant(percent: int, *phases: str) -> Tenant:
    """Of a thread for each phase."""
    threads = (f"thread={i},ms=5500,kernel={phase}" for i, phase in enumerate(phases, 1))
    return Tenant(percent, tuple(threads), threads=len(phases))


def assert_held(directory: Path, tenants: list[Tenant], seed: int = 1) -> None:
    containers = run(directory, tenants, KERNELS, launch_us=4, first_seed=seed)
    errors = [container.worst_error(skip_s=SKIP_S) for container in containers]
    assert holds(containers, skip_s=SKIP_S), errors


@pytest.mark.parametrize(
    ("percent", "long", "seed"),
    [
        pytest.param(50, "h", 2, id="10 ms: 67.1 had"),
        pytest.param(80, "h", 1, id="10 ms at 80: 83.4 had"),
        pytest.param(80, "g", 2, id="5 ms: 89.1 had"),
        pytest.param(90, "l", 1, id="20 ms: 94.3 had"),
    ],
)
def test_a_sweep_knows_short_ones_though_no_long_one_begins_in_it(
    tmp_path: Path, percent: int, long: str, seed: int
) -> None:
    """It was measured, but not by the sweep: all of those were taken to have missed something."""
    assert_held(tmp_path, [tenant(percent, long, "x,streams=2")], seed)


@pytest.mark.parametrize(
    ("percents", "phases", "neighbour"),
    [
        pytest.param((50, 50), ("g,sync=20", "c,sync=4"), "d,sync=1", id="5 ms, 0.1 ms: 44.8 left of 50"),
        pytest.param((50, 50), ("h,sync=20", "d,sync=1"), "d,sync=1", id="10 ms, 0.4 ms: 47.6 left"),
        pytest.param((50, 50), ("g,sync=20", "c,sync=4,streams=2"), "l", id="5 ms beside 20 ms"),
        pytest.param((80, 10), ("f,sync=1", "b,sync=4,streams=4"), "f,sync=4", id="2 ms: 84.9 had"),
        pytest.param((80, 10), ("e,sync=1", "a,streams=4"), "h,sync=1", id="1 ms: 83.3 had"),
        pytest.param((80, 10), ("g,sync=1", "d,sync=4,streams=2", "c"), "b,sync=20", id="5 ms: 82.2 had"),
        pytest.param((50, 25), ("w,sync=20", "x,sync=20,streams=2"), "g", id="0.1 to 2 ms: 53.5 had"),
        pytest.param((70, 15), ("f", "c,streams=4"), "l", id="2 ms, 0.1 ms on four streams"),
        pytest.param((80, 10), ("h", "x,streams=2"), "x,sync=1", id="a sweep without: 88.1 had"),
        pytest.param((50, 25), ("n,sync=4", "a,sync=20"), "b", id="50 ms, 20 us: 65.3 had"),
        pytest.param((80, 10), ("n,sync=1", "x,sync=4,streams=2"), "f,sync=20", id="50 ms: 89.4 had"),
    ],
)  # fmt: skip
def test_a_neighbour_has_its_share_beside_both(
    tmp_path: Path, percents: tuple[int, int], phases: tuple[str, ...], neighbour: str
) -> None:
    """What a long one had is told by looks, by sweeps and by what short ones did: the least is too little."""
    assert_held(tmp_path, [tenant(percents[0], *phases), tenant(percents[1], neighbour)])


STEP: Kernels = {"s": 20, "a": 1850, "b": 535, "c": 9, "d": 400, "e": 90, "f": 400}
STEPS = [
    pytest.param(
        "kernel=a+b", "kernel=c,burst=1,idle_us=2000", id="1.9 and 0.5 ms in turn: 54.6, 99.2 had"
    ),
    pytest.param(
        "kernel=s+a,rare=25",
        "kernel=c,burst=1,idle_us=2000",
        id="1.9 ms after 24 short ones: 100 had",
    ),
    pytest.param(
        "kernel=d+f,rare=2,fresh=100",
        "kernel=e,burst=1,idle_us=30000",
        id="new shapes: 58.0, 99.7 had",
    ),
]


@pytest.mark.parametrize("percent", [50, 90])
@pytest.mark.parametrize(("both", "other"), STEPS)
def test_long_and_short_ones_in_one_stream(
    tmp_path: Path, percent: int, both: str, other: str
) -> None:
    """These do not run beside each other, so what the short ones are charged is not what the long one lacked."""
    phases = (f"ms=4000,thread=1,{both}", f"ms=4000,thread=2,{other}")
    (container,) = run(tmp_path, [Tenant(percent, phases, threads=2)], STEP)
    assert holds([container]), container.worst_error()
