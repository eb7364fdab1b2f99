"""Graphs that free at their launch what they have left, raced for by threads and processes: never over the limit."""

import subprocess
from pathlib import Path

import pytest
from built_hook import ROOT, sim_libraries
from c_programs import compiled
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimDriver, made_up_uuid
from tests.sanitized import ADDRESS, COMPILE_S, SANITIZERS, build, sources_of

pytestmark = pytest.mark.timeout(COMPILE_S)

GPU = made_up_uuid(0)
LIMIT_MIB = 100  # of 144 that the graphs of a process leave
LATE = "void late_find_all(void); void late_find_all(void) { }"  # its jumps stand in libc's place


def racers() -> Path:
    return compiled("graph_threads.c", f"-I{ROOT / 'tests' / 'hook'}", "-lpthread", "-ldl")


@pytest.mark.parametrize(
    ("processes", "threads", "rounds"),
    [pytest.param(1, 64, 100, id="64 threads"), pytest.param(64, 1, 40, id="64 processes")],
)
def test_nobody_gets_over_the_limit(node: Node, processes: int, threads: int, rounds: int) -> None:
    program = racers()
    started = [
        subprocess.Popen(
            [program, str(threads), str(rounds)], env=node.environment(**{LIMIT: f"{LIMIT_MIB}m"}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    said = [process.communicate(timeout=240) for process in started]
    assert {process.returncode for process in started} == {0}, said
    counts = [[int(word) for word in out.split()] for out, _ in said]
    assert sum(launched for launched, _ in counts) > 0
    assert sum(unexpected for _, unexpected in counts) == 0
    assert 0 < node.sim.peak_mib(GPU) <= LIMIT_MIB


@pytest.mark.parametrize("sanitizer", [*SANITIZERS, ADDRESS])
def test_threads_race_on_nothing(tmp_path: Path, sanitizer: str) -> None:
    late, program = tmp_path / "late.c", tmp_path / "racers"
    late.write_text(LATE)
    sources = [*sources_of("libvgpu.so", without=["late.c"]), late]
    build(sanitizer, program, [*sources, ROOT / "tests/hook/graph_threads.c"], "-rdynamic")
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    env = {
        **sim.environment(),
        LIMIT: f"{LIMIT_MIB}m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        "ASAN_OPTIONS": "detect_leaks=0",  # what lives as long as the process is no leak
    }
    done = subprocess.run(
        [program, "8", "100"], env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")
    launched, unexpected = map(int, done.stdout.split())
    assert (launched > 0, unexpected) == (True, 0)
    assert 0 < sim.peak_mib(GPU) <= LIMIT_MIB
