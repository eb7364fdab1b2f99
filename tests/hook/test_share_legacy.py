"""Streams that wait for the legacy stream, and it for them: what is launched runs in turn, not beside.

The whole hook on a simulated GPU, in virtual time, as in test_share.py. What is not held,
docs/compute-share.md says.
"""

from pathlib import Path

import pytest
from share_bed import Tenant, holds, run

US = pytest.mark.parametrize("us", [5, 20, 50])


@US
@pytest.mark.parametrize(
    ("phase", "threads"),
    [
        pytest.param("streams=4,blocking=1,legacy=10", 1, id="one thread, waiting streams"),
        pytest.param("streams=2,legacy=2", 4, id="four threads, streams that do not wait"),
        pytest.param("streams=1,blocking=1,legacy=2", 2, id="two threads, every second launch"),
        pytest.param("streams=1,blocking=1,legacy=3", 2, id="two threads, every third launch"),
        pytest.param("streams=2,blocking=1,legacy=2", 4, id="four threads, two streams each"),
        pytest.param("streams=1,handle=2,legacy=4", 8, id="eight threads, streams of their own"),
    ],
)
def test_one_launch_in_so_many_goes_to_the_legacy_stream(
    tmp_path: Path, phase: str, threads: int, us: int
) -> None:
    """Between the events of one launch lie others that it waited for: up to 13 points too much."""
    tenant = Tenant(80, (f"ms=3000,kernel=k,{phase}",), threads=threads)
    (container,) = found = run(tmp_path, [tenant], {"k": us}, launch_us=2)
    assert holds(found), container.percents(1, 1)


@pytest.mark.parametrize(
    ("percents", "threads", "us", "phase"),
    [
        pytest.param((80,), 4, (5, 50), "streams=2,blocking=1,legacy=3", id="they vary"),
        pytest.param((50,), 4, 20, "streams=2,shared=1,blocking=1,legacy=4", id="shared streams"),
        pytest.param((30, 70), 4, 5, "streams=2,blocking=1,legacy=2", id="beside others, short"),
        pytest.param((30, 70), 8, 20, "streams=1,handle=2,legacy=4", id="beside others"),
    ],
)
def test_the_legacy_stream_among_others(
    tmp_path: Path, percents: tuple[int, ...], threads: int, us: int | tuple[int, int], phase: str
) -> None:
    """It was 89 of 80, 57.7 of 50 and 34.7 of 30 %."""
    tenants = [Tenant(one, (f"ms=3000,kernel=k,{phase}",), threads=threads) for one in percents]
    found = run(tmp_path, tenants, {"k": us}, launch_us=2)
    assert holds(found), [one.percents(1, 1) for one in found]
