"""The launch gate under the thread sanitizer and the one for undefined behaviour."""

import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler

pytestmark = pytest.mark.timeout(240)  # the compiler may first have to build the sanitizer itself

DRIVER_SIDE = ("cuda_", "nvml_")
LOADING = {"real.c", "dlsym.c", "late.c", "loaded.c", "names.c", "proc_address.c"}


@pytest.mark.parametrize("sanitizer", ["thread", "undefined"])
def test_threads_at_the_launch_gate_race_on_nothing(tmp_path: Path, sanitizer: str) -> None:
    library = next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")
    sources = [
        str(ROOT / "hook" / source)
        for source in library.sources
        if source not in LOADING and not source.startswith(DRIVER_SIDE)
    ]
    program = tmp_path / "launches"
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g",
         f"-fsanitize={sanitizer}", *sources, str(ROOT / "tests/hook/launches.c"), "-lpthread",
         "-ldl", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "sanitize" in done.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    environment = {
        "CUDA_DEVICE_SM_LIMIT": "90",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        "LIBCUDA_LOG_LEVEL": "1",
    }
    ran = subprocess.run(
        [program, "3000"], env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "18000\n", "")
