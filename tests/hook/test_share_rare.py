"""Kinds of kernels that are short and now and then long get their share: one function, one shape.

A sample of them seldom has a long one, and what is measured until the estimate is calm again ends when
none was long for a while: such a kind had up to twice its share. As in test_share.py, the GPU itself says.
"""

from pathlib import Path

import pytest
from share_bed import Kernels, Microseconds, Tenant, holds, run

SKIP_S = 2  # until a long one has been seen

ALONE = [
    pytest.param(30, (20, 2000, 100), "", id="20 us, one in 100 of 2 ms: 58 had"),
    pytest.param(30, (20, 2000, 100), "sync=1", id="each waited for"),
    pytest.param(30, (20, 2000, 100), "sync=8", id="waited for now and then"),
    pytest.param(30, (20, 2000, 100), "streams=4", id="four streams"),
    pytest.param(10, (20, 2000, 100), "", id="a limit of 10"),
    pytest.param(90, (20, 2000, 100), "", id="a limit of 90"),
    pytest.param(30, (50, 1000, 50), "", id="50 us, one in 50 of 1 ms"),
    pytest.param(30, (100, 3000, 60), "", id="100 us, one in 60 of 3 ms"),
    pytest.param(30, (10, 200, 40), "", id="10 us, one in 40 of 200 us"),
    pytest.param(70, (10, 200, 40), "", id="10 us, one in 40 of 200 us, at 70"),
    pytest.param(30, (5, 100, 20), "", id="5 us, one in 20 of 100 us: 3.7 too little"),
    pytest.param(50, (3, 60, 30), "", id="3 us, one in 30 of 60 us: one in 7 is measured"),
    pytest.param(70, (4, 100, 14), "", id="4 us, one in 14 of 100 us: 75 had"),
    pytest.param(70, (20, 80, 30), "", id="20 us, one in 30 of 80 us"),
    pytest.param(70, (20, 60, 20), "", id="20 us, one in 20 of 60 us: never far off twice in 16"),
    pytest.param(70, (20, 50, 10), "", id="20 us, one in 10 of 50 us"),
]


@pytest.mark.parametrize(("percent", "us", "phase"), ALONE)
def test_alone(tmp_path: Path, percent: int, us: Microseconds, phase: str) -> None:
    tenant = Tenant(percent, (f"ms=6000,{phase}".rstrip(","),))
    (container,) = run(tmp_path, [tenant], {"kernel": us})
    assert container.results == [0]
    assert holds([container], skip_s=SKIP_S), container.worst_error(skip_s=SKIP_S)


def test_long_ones_are_met_soon_at_a_low_limit(tmp_path: Path) -> None:
    """One launch in 6 ms looked at the budget, and could be measured: with seed 1 no long one was for 2.7 s."""
    errors = {}
    for seed in range(1, 9):
        (tmp_path / str(seed)).mkdir()
        (container,) = run(
            tmp_path / str(seed),
            [Tenant(10, ("ms=3000",))],
            {"kernel": (20, 2000, 100)},
            first_seed=seed,
        )
        errors[seed] = container.worst_error(skip_s=0.5)
    assert all(abs(error) <= 2 for error in errors.values()), errors


RARE: Kernels = {"a": (20, 1000, 40), "b": 80}
SHAPES = [
    pytest.param(50, "kernel=a,shapes=100", id="100 shapes: 72 had for seconds"),
    pytest.param(90, "kernel=a,shapes=300", id="300 shapes: 100 had for longer"),
    pytest.param(50, "kernel=a,shapes=100,sync=20", id="waited for: 73.8 had"),
    pytest.param(30, "kernel=a+b,streams=2,shapes=300", id="on two streams: 15.6 had"),
    pytest.param(90, "kernel=a+b,streams=2,shapes=300", id="on two streams, at 90"),
]


@pytest.mark.parametrize(("percent", "phase"), SHAPES)
def test_a_kernel_of_many_shapes(tmp_path: Path, percent: int, phase: str) -> None:
    """Each is a kind of its own, of which hardly any launch is measured."""
    (container,) = run(tmp_path, [Tenant(percent, (f"ms=6000,{phase}",))], RARE, launch_us=4)
    assert holds([container]), container.worst_error()


STEADY = {"b": 100}
BESIDE: list[tuple[Kernels, str, list[int]]] = [
    ({"kernel": (20, 2000, 100)}, "", [30, 70]),
    ({"kernel": (20, 2000, 100), **STEADY}, "", [30, 70]),
    ({"kernel": (20, 2000, 100), **STEADY}, "streams=4", [30, 70]),
    ({"kernel": (100, 3000, 60), **STEADY}, "", [30, 70]),
    ({"kernel": (10, 200, 40), **STEADY}, "", [30, 70]),
    ({"kernel": (50, 1000, 50), **STEADY}, "", [30, 70]),
    (
        {"kernel": (5, 1000, 400), "b": 2000},
        "",
        [30, 50],
    ),  # had 49 %, as if these were others' turns
    ({"kernel": (10, 1000, 200), "b": 2000}, "", [30, 50]),  # had 48
    ({"kernel": (5, 300, 300), "b": 3}, "", [30, 70]),  # had 33.8
]


@pytest.mark.parametrize(("kernels", "phase", "percents"), BESIDE, ids=str)
def test_beside_another(tmp_path: Path, kernels: Kernels, phase: str, percents: list[int]) -> None:
    """The neighbour lost 20 points."""
    second = "kernel=b" if "b" in kernels else ""
    tenants = [
        Tenant(percent, (f"ms=6000,{one}".rstrip(","),))
        for percent, one in zip(percents, (phase, second), strict=True)
    ]
    containers = run(tmp_path, tenants, kernels)
    found = [one.worst_error(skip_s=SKIP_S) for one in containers]
    assert holds(containers, skip_s=SKIP_S), found


@pytest.mark.parametrize("percents", [[30], [30, 70]], ids=str)
def test_with_the_limiter_off_the_same_judgement_fails(tmp_path: Path, percents: list[int]) -> None:
    tenants = [Tenant(percent, ("ms=4000",), policy="disable") for percent in percents]
    assert not holds(run(tmp_path, tenants, {"kernel": (20, 2000, 100)}), skip_s=SKIP_S)
