"""Streams that wait for the legacy stream, and it for them, as far as that is held.

The whole hook on a simulated GPU, in virtual time, as in test_share.py. What is not held,
docs/compute-share.md says.
"""

from pathlib import Path

import pytest
from share_bed import Tenant, holds, run


@pytest.mark.parametrize("us", [5, 20, 50])
@pytest.mark.parametrize(
    ("phase", "threads"),
    [
        pytest.param("streams=4,blocking=1,legacy=10", 1, id="one thread, waiting streams"),
        pytest.param("streams=2,legacy=2", 4, id="four threads, streams that do not wait"),
    ],
)
def test_one_launch_in_so_many_goes_to_the_legacy_stream(
    tmp_path: Path, phase: str, threads: int, us: int
) -> None:
    tenant = Tenant(80, (f"ms=3000,kernel=k,{phase}",), threads=threads)
    (container,) = found = run(tmp_path, [tenant], {"k": us}, launch_us=2)
    assert holds(found), container.percents(1, 1)
