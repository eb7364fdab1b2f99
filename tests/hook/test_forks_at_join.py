"""A thread that forks while another one takes the process's slot hands its children no lock of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT
from hooked_programs import LIMIT, Node

from tests.sanitized import FLAGS, LOADING, sources_of

NO_TRACING = 77
LEAST_MOMENTS = 20  # each child of one stays while the process executes itself
WITHOUT = ("cuda_", "nvml_", *LOADING)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """forks_at_join.c with the accounting linked to it."""
    path = tmp_path_factory.mktemp("forks") / "forks_at_join"
    accounting = sources_of("libvgpu.so", without=WITHOUT)
    sources = [*accounting, ROOT / "hook/nvml_stride.c", ROOT / "tests/hook/forks_at_join.c"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *FLAGS, *map(str, sources), "-lpthread", "-ldl",
         "-lm", "-o", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("how", "locks", "kept_mib"),
    [
        pytest.param("fork", 0, 0, id="another thread forks"),
        pytest.param("files", 0, 0, id="the same, and it opens files"),
        pytest.param("signal", 0, 0, id="the thread itself, in a signal handler"),
        pytest.param("clone", 1, 60, id="no handler of fork sees it"),
    ],
)
def test_children_forked_at_any_system_call_of_a_join_keep_nothing(
    node: Node, program: Path, how: str, locks: int, kept_mib: int
) -> None:
    """Where they could not be kept from the lock, they count as having the driver's files."""
    done = node.run_program([str(program), how], **{LIMIT: "100m", "LD_PRELOAD": ""})
    if done.returncode == NO_TRACING:
        pytest.skip("no process may be traced here")
    assert (done.returncode, done.stderr) == (0, "")
    moments, left_locks, taken_mib, lost_files = map(int, done.stdout.split())
    assert moments > LEAST_MOMENTS
    assert (left_locks, taken_mib, lost_files) == (locks, kept_mib, 0)
