"""A driver that hangs for a minute, and one that answers each of its calls with each of its errors."""

import time

import pytest

from agent.sim.node import Ask
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves, up
from tests.faults.invariants import violations
from tests.waiting import eventually

pytestmark = pytest.mark.faults

# Of nvml.h, nvmlReturn_t; 18 (wrong version) ends the agent, which tests/e2e/test_host_faults.py has.
CODES = (*range(1, 18), *range(19, 30), 999)
CALLS = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetUtilizationRates",
)


@pytest.mark.timeout(300)
def test_it_hangs_for_a_minute(make_node: NodeMaker) -> None:
    node = make_node()
    running = node.run_pod("before", [Ask(memory_mib=700)])
    node.driver.hang()
    end_s = time.monotonic() + 60
    eventually(lambda: node.allocatable() == 0, within_s=60, what="silence is not health")
    while time.monotonic() < end_s:
        assert node.fetch("/healthz")[0] == 200
        assert node.agent is not None
        assert node.agent.poll() is None
        time.sleep(1)
    node.driver.hang(hanging=False)
    up(node, 20)
    serves(node)
    assert violations(node, [running]) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", CALLS)
def test_each_error_of_a_call(make_node: NodeMaker, call: str) -> None:
    """While it lasts GPUs may count as ill; when it is over everything is as before."""
    node = make_node()
    running = node.run_pod("before", [Ask(memory_mib=700)])
    for code in CODES:
        node.driver.fail(call, code)
        time.sleep(0.6)  # longer than between two looks
        assert node.agent is not None
        if node.agent.poll() is not None:  # it may end to be started anew, as it says
            assert "started" in node.log_text()
            node.start_agent()
        node.driver.heal()
    up(node, 20)
    serves(node)
    assert violations(node, [running]) == []
    assert "Traceback" not in node.log_text()
