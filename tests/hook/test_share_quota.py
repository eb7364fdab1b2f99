"""Containers whose threads are all stopped now and then, as their processor time is used up.

The whole hook on a simulated GPU, in virtual time, as in test_share.py. `limits.cpu` of a pod stops
its threads for the rest of each 100 ms once they have run for as long as it says.
"""

from pathlib import Path

import pytest
from share_bed import Microseconds, Tenant, holds, run
from share_model import Share, load

MS = 1_000_000
BANK_MS = 200  # times the share: most that is saved up
IDLE_MS = 10


@pytest.mark.parametrize("us", [20, 2000, (20, 2000)])
@pytest.mark.parametrize(("percent", "on_ms"), [(30, 50), (70, 50), (30, 20), (70, 20)])
def test_who_is_stopped_alone_has_its_share(
    tmp_path: Path, percent: int, on_ms: int, us: Microseconds
) -> None:
    """Stopped for 50 of each 100 ms, 70 % had 44.7; stopped for 80, 23.6."""
    tenant = Tenant(percent, ("ms=4000,kernel=k",), quota_ms=(on_ms, 100))
    (container,) = found = run(tmp_path, [tenant], {"k": us}, launch_us=2)
    assert holds(found), container.percents(1, 1)


@pytest.mark.parametrize("on_ms", [40, 50, 60])
@pytest.mark.parametrize(("percent", "own_us"), [(70, 100), (30, 50)])
@pytest.mark.parametrize("us", [50, 1000, 1500, 2000, 3000, (20, 2000)])
def test_who_is_stopped_beside_another_has_its_share(
    tmp_path: Path, us: Microseconds, percent: int, own_us: int, on_ms: int
) -> None:
    """What the other had while nobody looked was charged: of 70 % it had 57 to 60, and 65 where that began or ended with a launch."""
    tenants = [
        Tenant(100 - percent, ("ms=4000,kernel=k",)),
        Tenant(percent, ("ms=4000,kernel=o",), quota_ms=(on_ms, 100)),
    ]
    found = run(tmp_path, tenants, {"k": us, "o": own_us}, launch_us=2)
    assert holds(found), [container.percents(1, 1) for container in found]


@pytest.mark.parametrize(
    ("late_ms", "idle_ms", "saved_ms"),
    [
        pytest.param(0, 1000, IDLE_MS, id="in time: as who is idle"),
        pytest.param(50, 0, 35, id="what came due meanwhile"),
        pytest.param(200, 0, 0.7 * BANK_MS, id="no more than beside others"),
        pytest.param(2000, 0, IDLE_MS, id="stopped by somebody: as who is idle, had 35 of 30 %"),
        pytest.param(3, 1000, IDLE_MS, id="a little late, then idle"),
        pytest.param(50, 60, 10 + 0.7 * 50 - 0.3 * 60, id="lost as fast as it could be spent"),
    ],
)
def test_what_is_saved_up_by_who_is_stopped(
    tmp_path: Path, late_ms: int, idle_ms: int, saved_ms: float
) -> None:
    library = load(tmp_path)
    at_ns = 5000 * MS
    share = Share(refilled_at_ns=at_ns)
    at_ns += late_ms * MS
    if late_ms:
        library.share_held_up(share, at_ns, late_ms * MS, 700)
    library.share_refill(share, at_ns, 700)
    for _ in range(idle_ms):
        at_ns += MS
        library.share_refill(share, at_ns, 700)
    assert share.budget_ns / MS == pytest.approx(saved_ms, abs=0.01)


def test_a_moment_that_is_impossible_saves_nothing(tmp_path: Path) -> None:
    library = load(tmp_path)
    share = Share(refilled_at_ns=MS, caught_up_at_ns=(1 << 64) - 1)
    library.share_refill(share, 1001 * MS, 700)
    assert share.budget_ns == IDLE_MS * MS
