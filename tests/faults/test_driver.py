"""A driver that hangs for a minute, and one that answers each of its calls with each of its errors."""

import sys
import time
from pathlib import Path

import pytest

from agent.sim.node import Ask
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves, up
from tests.faults.invariants import violations
from tests.waiting import eventually

pytestmark = pytest.mark.faults

# Of nvml.h, nvmlReturn_t; 18 (wrong version) ends the agent, which tests/e2e/test_host_faults.py has.
CODES = (*range(1, 18), *range(19, 30), 999)
# All of the loops look as often as they can. The one that lists GPUs waits for 5 s whenever the driver as
# a whole fails, so it is asked for only where that is not so: where one GPU fails.
OFTEN = ("--accounting-interval", "0.1s", "--bypass-interval", "0.1s")
COMMAND = [sys.executable, str(Path(__file__).with_name("nvml_trail_agent.py"))]
CALLS = [
    ("nvmlDeviceGetHandleByIndex_v2", None, ("detector", "metering")),
    ("nvmlDeviceGetHandleByIndex_v2", 0, ("gpus", "detector", "metering")),
    ("nvmlDeviceGetMemoryInfo", None, ("gpus",)),
    ("nvmlDeviceGetUUID", None, ("detector", "metering")),
    ("nvmlDeviceGetUUID", 0, ("gpus", "detector", "metering")),
    ("nvmlDeviceGetCount_v2", None, ("detector", "metering")),
    ("nvmlDeviceGetComputeRunningProcesses_v3", None, ("detector", "metering")),
    ("nvmlDeviceGetUtilizationRates", None, ("metering",)),
]


@pytest.mark.timeout(600)
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
@pytest.mark.parametrize(
    ("call", "number", "loops"),
    [pytest.param(*row, id=f"{row[0]}{'' if row[1] is None else ' of a GPU'}") for row in CALLS],
)
def test_each_error_of_a_call(
    make_node: NodeMaker, tmp_path: Path, call: str, number: int | None, loops: tuple[str, ...]
) -> None:
    """Each is met. While it lasts GPUs may count as ill; when it is over everything is as before."""
    trail = tmp_path / "trail"
    trail.touch()
    environ = {"VGPU_TEST_NVML_TRAIL": str(trail)}
    node = make_node(*OFTEN, command=COMMAND, environ=environ)
    running = node.run_pod("before", [Ask(memory_mib=700)])
    assert running.admitted.ok, running.admitted.message
    for code in CODES:
        node.driver.fail(call, code, number)
        wanted = {f"{call} {code} {loop}" for loop in loops}
        eventually(
            lambda wanted=wanted: wanted <= set(trail.read_text().splitlines()),
            within_s=60,
            every_s=0.05,
            what=f"all of {wanted}",
        )
        assert node.agent is not None
        assert node.agent.poll() is None, f"it has ended: {call} {code}"
        node.driver.heal()
    up(node, 20)
    serves(node)
    assert violations(node, [running]) == []
    assert "Traceback" not in node.log_text()
