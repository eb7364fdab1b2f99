"""The accounting, and the whole library, under sanitizers: for threads, undefined behaviour, addresses."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from built_hook import ROOT, sim_libraries

from agent.sim.driver import SimDriver
from tests.sanitized import ADDRESS, COMPILE_S, LOADING, SANITIZERS, build, sources_of

pytestmark = pytest.mark.timeout(COMPILE_S)

LIMIT_BYTES = "40000"  # of blocks of 1 to 1000 bytes: refused now and then
WRAPPERS = ("cuda_", "nvml_")
LATE = "void late_find_all(void); void late_find_all(void) { }"  # its jumps stand in libc's place
ROUNDS, THREADS = 60, 8
RACY = """
#include <pthread.h>
static volatile long count; /* else each thread counts once, and both at the same time are missed */
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
PAST_ITS_END = """
#include <stdlib.h>
int main(int c, char **v) { (void)v; volatile char *p = malloc(8); return p[7 + c]; }
"""
OVERFLOWING = "int main(int c, char **v) { (void)v; return (0x7fffffff + c) == 5; }"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
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
    accounting = sources_of("libvgpu.so", without=(*WRAPPERS, *LOADING))
    more = [ROOT / "hook/nvml_stride.c", ROOT / "tests/hook/threads.c"]
    build(sanitizer, program, [*accounting, *more])
    env = {
        "CUDA_DEVICE_MEMORY_LIMIT": LIMIT_BYTES,
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        "LIBCUDA_LOG_LEVEL": "1",
    }
    done = subprocess.run(
        [program, *arguments], env=env, capture_output=True, text=True, check=False, timeout=250
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0"] * 4, "")


@pytest.mark.parametrize("sanitizer", [*SANITIZERS, ADDRESS])
def test_threads_that_use_every_kind_of_call_race_on_nothing(
    tmp_path: Path, sanitizer: str
) -> None:
    late, program = tmp_path / "late.c", tmp_path / "everything"
    late.write_text(LATE)
    library = sources_of("libvgpu.so", without=["late.c"])
    sources = [*library, late, ROOT / "tests/hook/everything.c"]
    build(sanitizer, program, sources, "-rdynamic")
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.change_gpu(0, replace(sim.add_gpu(), context_mib=30, module_mib=2))
    sim.kernel_us(20)
    env = {
        **sim.environment(),
        "CUDA_DEVICE_MEMORY_LIMIT": "600m",  # refused now and then
        "CUDA_DEVICE_SM_LIMIT": "60",
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        "LIBCUDA_LOG_LEVEL": "1",
        "ASAN_OPTIONS": "detect_leaks=0",  # what lives as long as the process is no leak
    }
    for hidden in (False, True):  # what contexts and code cost is known, or guessed
        sim.hidden_pids(hidden)
        done = subprocess.run(
            [program, str(ROUNDS)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{ROUNDS * THREADS} 0\n", "")


@pytest.mark.parametrize(
    ("sanitizer", "code", "complaint"),
    [
        pytest.param("thread", RACY, "data race", id="thread"),
        pytest.param("undefined", OVERFLOWING, "overflow", id="undefined"),
        pytest.param(ADDRESS, PAST_ITS_END, "heap-buffer-overflow", id="address"),
    ],
)
def test_the_sanitizers_would_have_noticed(
    tmp_path: Path, sanitizer: str, code: str, complaint: str
) -> None:
    source, program = tmp_path / "wrong.c", tmp_path / "wrong"
    source.write_text(code)
    build(sanitizer, program, [source])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert complaint in done.stderr
