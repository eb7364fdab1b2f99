"""What the limiter does inside somebody else's process: its thread, its events, fork and exit."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, built, compiler
from c_programs import compiled, library
from hooked_programs import Node
from share_bed import SHARE_AT

PROGRAM = """
import os, time

assert start() == 0
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0


def launch(count):
    for _ in range(count):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0


def threads():
    return len(os.listdir("/proc/self/task"))


def eventually(predicate):
    until = time.monotonic() + 10
    while not predicate() and time.monotonic() < until:
        time.sleep(0.005)
    return predicate()

"""


@pytest.fixture
def limited(node: Node) -> Node:
    """A node whose kernels take 300 us."""
    node.sim.kernel("kernel", 300)
    return node


def test_the_thread_is_there_only_while_something_is_measured(limited: Node) -> None:
    """And shown to monitors, for two seconds or so."""
    code = "before = threads(); launch(200); during = threads(); cuda.cuCtxSynchronize()\n"
    code += "say(before=before, during=during, gone=eventually(lambda: threads() == 1))"
    said = limited.run(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert (said["before"], said["during"], said["gone"]) == (1, 2, True)


@pytest.mark.parametrize(
    ("source", "threads"),
    [
        pytest.param(
            "much_thread_local.c", 2, id="with much thread-local storage, in a larger one"
        ),
        pytest.param("no_threads.c", 1, id="without, by who launches"),
    ],
)
def test_what_is_measured_is_charged_whatever_the_thread_needs(
    limited: Node, source: str, threads: int
) -> None:
    more = library(source, name=source.replace(".c", ".so"))
    code = (
        "from gpu_calls import settled_us\nlaunch(100); during = threads()\n"
        "for _ in range(100): launch(1); cuda.cuCtxSynchronize()\n"
        "say(during=during, charged=settled_us(57_000))"
    )
    preload = f"{built() / 'libvgpu.so'}:{more}"
    said = limited.run(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50", LD_PRELOAD=preload)
    assert (said["rc"], said["stderr"], said["during"]) == (0, "", threads)
    assert said["charged"] >= 57_000  # of 60,000


def test_without_a_limit_there_is_no_thread(limited: Node) -> None:
    said = limited.run(PROGRAM + "launch(200); say(threads=threads())")
    assert said["threads"] == 1


def test_contexts_come_and_go(limited: Node) -> None:
    code = """
context = ctypes.c_void_p()
for _ in range(10):
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    launch(30)
    assert cuda.cuCtxDestroy_v2(context) == 0
launch(30)
say(released=cuda.cuDevicePrimaryCtxRelease_v2(0))
"""
    said = limited.run(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert (said["rc"], said["stderr"], said["released"]) == (0, "", 0)


def test_a_forked_child_has_none_of_it(limited: Node) -> None:
    code = """
launch(100)
child = os.fork()
if child == 0:
    os._exit(threads())
_, status = os.waitpid(child, 0)
launch(100)
say(threads=os.waitstatus_to_exitcode(status))
"""
    said = limited.run(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert (said["rc"], said["threads"]) == (0, 1)


@pytest.mark.parametrize("end", ["sys.exit(7)", "os._exit(7)", "os.kill(os.getpid(), 15)"])
def test_a_process_ends_with_work_pending(limited: Node, end: str) -> None:
    said = limited.run(PROGRAM + f"import sys\nlaunch(50)\n{end}", CUDA_DEVICE_SM_LIMIT="50")
    assert said["rc"] in (7, -15)
    assert said["stderr"] == ""


def test_a_launch_that_fails_is_not_charged(limited: Node) -> None:
    """Charged 20 us each at a share of 1 %, they would wait every few tens of launches."""
    code = """
launch(3)
bad = [cuda.cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, None, None, None) for _ in range(1000)]
say(bad=sorted(set(bad)))
"""
    said = limited.run(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="1")
    assert said["bad"] == [1]
    (waits,) = struct.unpack_from("<Q", limited.cache.read_bytes(), SHARE_AT + 40)
    assert 1 <= waits <= 10


def with_the_thread(tmp_path: Path, source: str) -> str:
    """What a program says that has the thread which reads measurements, and a driver of its own."""
    program = tmp_path / "watch"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, str(ROOT / "tests/hook" / source), "monotonic.c", "threads.c", "-pthread",
         "-o", str(program)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    ran = subprocess.run([program], capture_output=True, text=True, check=True, timeout=250)
    return ran.stdout


def test_who_asks_for_the_thread_as_it_leaves_has_it(tmp_path: Path) -> None:
    """What was measured then was read late, without others' turns: charged twice what it cost."""
    assert with_the_thread(tmp_path, "watch.c") == "watched\n"


def test_a_child_gets_the_locks_that_the_thread_takes(tmp_path: Path) -> None:
    """The thread was in the driver as a program without threads forked: the child's next call never returned."""
    assert with_the_thread(tmp_path, "watch_forks.c") == "0 of 100 held; read on: 1\n"


@pytest.mark.parametrize("us", [3, 1000])
def test_a_program_may_have_its_arithmetic_trap(limited: Node, us: int) -> None:
    """By what we computed, in its threads and in our own, it was ended; and that shows in no flag."""
    limited.sim.kernel_us(us)
    program = compiled("fp_traps.c", f"-I{ROOT / 'hook'}", "-ldl", "-lm")
    done = limited.run_program([str(program)], CUDA_DEVICE_SM_LIMIT="30")
    assert (done.returncode, done.stdout) == (0, "0 0\n")
