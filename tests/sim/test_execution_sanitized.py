"""The simulated driver's streams under the sanitizers for threads and undefined behaviour."""

import os
import subprocess
from pathlib import Path

import pytest
from built_hook import ROOT, sim_libraries

from agent.sim.driver import SimDriver
from tests.sanitized import COMPILE_S, SANITIZERS, build, sources_of

pytestmark = pytest.mark.timeout(COMPILE_S)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_at_streams_race_on_nothing_and_wait_for_nothing_that_is_gone(
    tmp_path: Path, sanitizer: str
) -> None:
    program = tmp_path / "streams"
    build(sanitizer, program, [*sources_of("sim/libcuda.so.1"), ROOT / "tests/sim/streams.c"])
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    sim.kernel_us(20)
    ran = subprocess.run(
        [program], env={**os.environ, **sim.environment()},
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
