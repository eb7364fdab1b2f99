"""Launches of kinds that were never measured, in a stream that waits for what the same thread does next.

Nothing of them is known until the stream goes on, which it does not before all of them are launched: each
waited for 0.5 s, or for longer on a busy machine, and 1000 of them for minutes.
"""

import pytest
from hooked_programs import Node

from agent.sim.driver import made_up_uuid

UUIDS = [made_up_uuid(number) for number in (0, 1)]
BEGIN = """
from gpu_calls import *
start(0)
k = [kernel(name) for name in KINDS]; here = kernel("meet"); gated, other = stream(), stream()
first = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(first))
start(1)
there = kernel("meet"); far = stream(); opened = event()
assert launch(there, far) == 0 and cuda.cuEventRecord(opened, far) == 0
assert cuda.cuCtxSetCurrent(first) == 0 and cuda.cuStreamWaitEvent(gated, opened, 0) == 0
began = time.monotonic()
results = {launch(k[i % len(k)], gated) for i in range(LAUNCHES)}
queued_s = time.monotonic() - began
results |= {launch(here, other), cuda.cuStreamSynchronize(gated)}
say(queued_s=queued_s, results=sorted(results))
"""


@pytest.fixture
def two(node: Node) -> Node:
    node.sim.add_gpu()
    for i in range(20):
        node.sim.kernel(f"kernel{i}", 100)
    node.sim.kernel("meet", 100, meets=2)
    return node


def queued(two: Node, kinds: int, launches: int) -> float:
    """How long it takes to launch so many of so many kinds, by the simulated driver's clock."""
    code = f"KINDS, LAUNCHES = {[f'kernel{i}' for i in range(kinds)]}, {launches}\n{BEGIN}"
    said = two.run_in_virtual_time(
        code, NVIDIA_VISIBLE_DEVICES=",".join(UUIDS), CUDA_DEVICE_SM_LIMIT_0="50"
    )
    assert (said["rc"], said["stderr"], said["results"]) == (0, "", [0])
    return float(said["queued_s"])


@pytest.mark.parametrize(
    ("kinds", "launches"),
    [
        pytest.param(1, 40, id="of one kind: 22 s"),
        pytest.param(20, 20, id="each of another"),
        pytest.param(20, 60, id="of several"),
    ],
)
def test_only_the_first_waits(two: Node, kinds: int, launches: int) -> None:
    assert queued(two, kinds, launches) < 1.5


def test_no_more_go_out_than_are_measured(two: Node) -> None:
    """Or the limit would be passed by as much as is queued: nothing is known of how long they take."""
    assert queued(two, 1, 131) - queued(two, 1, 127) > 1  # three wait for half a second each
