"""The simulated driver's streams under the sanitizers for threads and undefined behaviour."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler, sim_libraries

from agent.sim.driver import SimDriver

pytestmark = pytest.mark.timeout(240)  # the compiler may first have to build the sanitizer itself


@pytest.mark.parametrize("sanitizer", ["thread", "undefined"])
def test_threads_at_streams_race_on_nothing_and_wait_for_nothing_that_is_gone(
    tmp_path: Path, sanitizer: str
) -> None:
    driver = next(a for a in compiler().ARTIFACTS if a.path == "sim/libcuda.so.1")
    program = tmp_path / "streams"
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g",
         f"-fsanitize={sanitizer}", *(str(ROOT / "hook" / source) for source in driver.sources),
         str(ROOT / "tests/sim/streams.c"), "-lm", "-lpthread", "-ldl", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "sanitize" in done.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    sim.kernel_us(20)
    ran = subprocess.run(
        [program], env={**os.environ, **sim.environment()},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
