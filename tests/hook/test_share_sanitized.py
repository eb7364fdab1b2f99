"""The launch gate under the thread sanitizer and the one for undefined behaviour."""

import subprocess
from pathlib import Path

import pytest
from built_hook import ROOT

from tests.sanitized import COMPILE_S, LOADING, SANITIZERS, build, sources_of

pytestmark = pytest.mark.timeout(COMPILE_S)

WRAPPERS = ("cuda_", "nvml_")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_at_the_launch_gate_race_on_nothing(tmp_path: Path, sanitizer: str) -> None:
    """Under a limit of all devices, and where one of them has a limit now and then."""
    program = tmp_path / "launches"
    gate = sources_of("libvgpu.so", without=(*WRAPPERS, *LOADING))
    more = [ROOT / "hook/nvml_stride.c", ROOT / "tests/hook/launches.c"]
    build(sanitizer, program, [*gate, *more])
    for percent, passed in (("90", "18000 0\n"), ("0", "18000 1\n")):
        environment = {
            "CUDA_DEVICE_SM_LIMIT": percent,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / f"{percent}.cache"),
            "LIBCUDA_LOG_LEVEL": "1",
        }
        ran = subprocess.run(
            [program, "3000"], env=environment, capture_output=True, text=True, check=False,
            timeout=250,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, passed, "")
