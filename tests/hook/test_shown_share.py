"""What a monitor is shown of each process's use of a GPU: percent of its time, in the process's slot.

By HAMi's monitor that is added up over the slots of a container. The time is the simulated driver's.
"""

import os
import struct

import pytest
from hooked_programs import Node

from agent.domain.region import V1, decode

SHOWN_AT = V1["slots"] + V1["slot.utilisation"] + V1["utilisation.sm_percent"]  # the first slot's
PROGRAM = f"""
import os, struct, time

assert start() == 0
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0


def launch():
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0


def shown():
    with open(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"], "rb") as file:
        return struct.unpack("<Q", os.pread(file.fileno(), 8, {SHOWN_AT}))[0]


def watch(seconds, step=lambda: time.sleep(0.1)):
    '''What is shown at the end of each second in which it takes these steps.'''
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        second = time.monotonic() + 1
        while time.monotonic() < second:
            step()
        found.append(shown())
    return found
"""


@pytest.fixture
def limited(node: Node) -> Node:
    """A node whose kernels take 300 us."""
    node.sim.kernel("kernel", 300)
    return node


@pytest.mark.parametrize("percent", [20, 50, 90])
def test_a_process_is_shown_to_use_what_it_is_charged(limited: Node, percent: int) -> None:
    """And after that to be idle."""
    said = limited.run_in_virtual_time(
        PROGRAM + "busy = watch(8, launch)\nsay(busy=busy, idle=watch(5))",
        CUDA_DEVICE_SM_LIMIT=str(percent),
    )
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["busy"][2:] == pytest.approx([percent] * 6, abs=3), said
    assert max(said["busy"]) <= percent + 3, said
    assert said["idle"][2:] == [0, 0, 0], said


def test_one_that_computes_now_and_then_is_shown_its_part(limited: Node) -> None:
    """30 ms of a second, in ten portions between which nobody reads measurements."""
    code = """
def a_little():
    for _ in range(10):
        launch()
    time.sleep(0.1)

busy = watch(8, a_little)
say(busy=busy, idle=watch(5))
"""
    said = limited.run_in_virtual_time(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert said["busy"][3:] == pytest.approx([3] * 5, abs=1), said
    assert said["idle"][2:] == [0, 0, 0], said


def test_what_is_charged_ahead_is_shown_as_it_passes(node: Node) -> None:
    """Kernels of three seconds: never more than all of the GPU, and not for longer than they run."""
    node.sim.kernel("kernel", 3_000_000)
    code = "time.sleep(5); launch(); time.sleep(8); launch()\nsay(shown=watch(12))"
    said = node.run_in_virtual_time(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert (said["rc"], said["stderr"]) == (0, "")
    assert 95 <= max(said["shown"]) <= 100, said
    assert 270 <= sum(said["shown"]) <= 330, said
    assert said["shown"][-3:] == [0, 0, 0], said


def test_where_its_share_is_not_kept_any_more_nothing_is_shown(limited: Node) -> None:
    """As HAMi's monitor decides while nobody else uses the GPU: then its time is not counted."""
    code = f"""
busy = watch(4, launch)
with open(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"], "r+b") as file:
    os.pwrite(file.fileno(), bytes(4), {V1["utilisation_switch"]})
def one_and_a_rest():
    launch()
    time.sleep(0.001)
say(busy=busy, free=watch(6, one_and_a_rest))
"""
    said = limited.run_in_virtual_time(PROGRAM + code, CUDA_DEVICE_SM_LIMIT="50")
    assert said["busy"][-1] == pytest.approx(50, abs=3), said
    assert said["free"][3:] == [0, 0, 0], said


def test_who_takes_a_slot_is_not_shown_what_was_in_it(limited: Node) -> None:
    assert limited.run("start(); say()")["rc"] == 0
    with limited.cache.open("r+b") as file:
        for slot in range(4):
            os.pwrite(file.fileno(), struct.pack("<Q", 77), SHOWN_AT + V1["slot"] * slot)
    tenant = limited.start("start()\nprint(flush=True)\ninput()")
    assert tenant.stdout is not None
    tenant.stdout.readline()
    (process,) = decode(limited.cache.read_bytes()).processes
    tenant.communicate("\n", timeout=60)
    assert process.sm_percent == (0,)
