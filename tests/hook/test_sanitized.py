"""The accounting under the thread sanitizer and the one for undefined behaviour."""

import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler

pytestmark = pytest.mark.timeout(240)  # the compiler may first have to build the sanitizer itself

LIMIT_BYTES = "40000"  # of blocks of 1 to 1000 bytes: refused now and then
DRIVER_SIDE = ("cuda_", "nvml_")
LOADING = {"real.c", "dlsym.c", "late.c", "loaded.c", "names.c", "proc_address.c"}
RACY = """
#include <pthread.h>
static long count;
static void *add(void *a) { for (int i = 0; i < 100000; i++) count++; return a; }
int main(void)
{
    pthread_t t;
    pthread_create(&t, 0, add, 0);
    add(0);
    pthread_join(t, 0);
    return 0;
}
"""
OVERFLOWING = "int main(int c, char **v) { (void)v; return (0x7fffffff + c) == 5; }"


def accounting() -> list[str]:
    """The sources of the library, but for the wrappers and what finds the driver."""
    library = next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")
    return [
        str(ROOT / "hook" / source)
        for source in library.sources
        if source not in LOADING and not source.startswith(DRIVER_SIDE)
    ]


def built_with(sanitizer: str, program: Path, sources: list[str]) -> None:
    """Compile; skip where this compiler cannot."""
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g",
         f"-fsanitize={sanitizer}", *sources, "-lpthread", "-ldl", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "sanitize" in done.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sanitizer", ["thread", "undefined"])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["20000"], id="threads"),
        pytest.param(["20000", "fork"], id="threads and forks"),
    ],
)
def test_threads_at_the_accounting_race_on_nothing(
    tmp_path: Path, sanitizer: str, arguments: list[str]
) -> None:
    program = tmp_path / "threads"
    built_with(sanitizer, program, [*accounting(), str(ROOT / "tests/hook/threads.c")])
    env = {
        "CUDA_DEVICE_MEMORY_LIMIT": LIMIT_BYTES,
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        "LIBCUDA_LOG_LEVEL": "1",
    }
    done = subprocess.run(
        [program, *arguments], env=env, capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0", "0", "0"], "")


@pytest.mark.parametrize(
    ("sanitizer", "code", "complaint"),
    [
        pytest.param("thread", RACY, "data race", id="thread"),
        pytest.param("undefined", OVERFLOWING, "overflow", id="undefined"),
    ],
)
def test_the_sanitizers_would_have_noticed(
    tmp_path: Path, sanitizer: str, code: str, complaint: str
) -> None:
    source, program = tmp_path / "wrong.c", tmp_path / "wrong"
    source.write_text(code)
    built_with(sanitizer, program, [str(source)])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert complaint in done.stderr
