"""Programs that use a stream for each request have their share: one by one, or one after the other begun.

Requests differ in length, and launches of one do not. What sweeps tell of a few requests was taken for a bound of
all: the kind was charged as in the shortest, up to 98 of 50 % of the GPU were had.
"""

from pathlib import Path

import pytest
from share_bed import Alike, Microseconds, Tenant, holds, run

SKIP_S = 2
ROWS = [
    pytest.param(50, Alike(30, 40), "streams=4,stay=100,sync=100", id="30 or 40 us: 58 of 50 had"),
    pytest.param(30, Alike(20, 60), "streams=4,stay=100,sync=100", id="20 or 60 us: 59 of 30 had"),
    pytest.param(70, Alike(20, 60), "streams=4,stay=100,sync=100", id="98 of 70 had"),
    pytest.param(50, Alike(120, 180), "streams=4,stay=100,sync=100", id="120 or 180 us: 67 had"),
    pytest.param(50, Alike(5, 8), "streams=4,stay=100,sync=100", id="5 or 8 us: 63 had"),
    pytest.param(50, Alike(100, 180, 200), "streams=2,stay=200,sync=200", id="two streams: 60 had"),
]


@pytest.mark.parametrize(("percent", "us", "phase"), ROWS)
def test_each_is_waited_for(tmp_path: Path, percent: int, us: Microseconds, phase: str) -> None:
    (container,) = run(tmp_path, [Tenant(percent, (f"ms=6000,{phase}",))], {"kernel": us})
    assert container.results == [0]
    assert holds([container], skip_s=SKIP_S), container.worst_error(skip_s=SKIP_S)


def test_a_neighbour_loses_nothing(tmp_path: Path) -> None:
    tenants = [
        Tenant(30, ("ms=6000,kernel=a,streams=4,stay=100,sync=100",)),
        Tenant(70, ("ms=6000,kernel=b",)),
    ]
    containers = run(tmp_path, tenants, {"a": Alike(20, 60), "b": 100})
    assert holds(containers, skip_s=SKIP_S), [c.worst_error(skip_s=SKIP_S) for c in containers]


def test_graphs_have_their_share_on_average_where_none_is_waited_for(tmp_path: Path) -> None:
    """They run beside each other at their ends: 74 of 50 % had. In single seconds it is 10 points off."""
    tenant = Tenant(50, ("ms=8000,streams=4,stay=100,by=graph,nodes=1",))
    (container,) = run(tmp_path, [tenant], {"kernel": Alike(100, 200)})
    worked_ns = container.worked_ns[10 * SKIP_S : container.together]
    assert abs(sum(worked_ns) / len(worked_ns) / 1e6 - 50) <= 3
