"""CPU time of processes, and what a wake costs on this machine: little else is in what seldom works."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from tests.bench.rows import BenchError, Row, row

SAMPLES, FOR_S, EVERY_S = 3, 3.0, 0.02
# Runs when nothing else would on its core, and ends with who started it.
SPINNER = f"""
import os
os.sched_setaffinity(0, {{%d}})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print(flush=True)
while os.getppid() == {os.getpid()}:
    for _ in range(1_000_000):
        pass
"""
SLEEPER = f"import time\nprint(flush=True)\nwhile True:\n    time.sleep({EVERY_S})"


def cpu_s(pid: int) -> float:
    """CPU time of a process's threads, to the nanosecond; /proc/PID/stat counts 10 ms ticks."""
    ran_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        ran_ns += int((thread / "schedstat").read_text().split()[0])
    return ran_ns / 1e9


@contextmanager
def cores_awake() -> Iterator[None]:
    """No core of ours sleeps meanwhile, as on a node at work: whoever wakes one pays for it."""
    with ExitStack() as spinners:
        for core in sorted(os.sched_getaffinity(0)):
            spinners.enter_context(_running(SPINNER % core))
        yield


def cores(state: str) -> AbstractContextManager[None]:
    """`awake` or `asleep`: what the cores do while nobody computes."""
    return {"awake": cores_awake, "asleep": nullcontext}[state]()


def wake_area() -> Iterator[Row]:
    """CPU time of a Python process that only sleeps and wakes, each time; cores awake, and asleep."""
    for state in ("awake", "asleep"):
        with cores(state), _running(SLEEPER) as pid:
            samples = []
            for _ in range(SAMPLES):
                before_s, began_s = cpu_s(pid), time.monotonic()
                time.sleep(FOR_S)
                wakes = (time.monotonic() - began_s) / EVERY_S
                samples.append((cpu_s(pid) - before_s) / wakes * 1e6)
        yield row("wake", f"CPU of one wake, nothing done, cores {state}", samples, "us")


@contextmanager
def _running(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise BenchError(f"a process did not start: {program.strip()}")
            yield process.pid
        finally:
            process.kill()
