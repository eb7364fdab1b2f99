"""The clock of the day jumps under a running agent, as when somebody sets it or a machine slept.

A library that is preloaded into the agent alone adds what a file says to what the kernel says.
CLOCK_MONOTONIC is left alone, as Linux does: it neither jumps nor counts the time asleep.
"""

from pathlib import Path

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves
from tests.faults.clocks import Clocks
from tests.faults.invariants import Counters, violations
from tests.waiting import eventually

HOUR_S = 3600


@pytest.fixture
def jumping(make_node: NodeMaker, tmp_path: Path) -> tuple[SimNode, Clocks]:
    clocks = Clocks(tmp_path)
    return make_node("--allocate-budget", "10s", environ=dict(clocks.environ)), clocks


@pytest.mark.parametrize(
    "jumps",
    [
        pytest.param([(HOUR_S, 0)], id="an hour forward"),
        pytest.param([(-HOUR_S, 0)], id="an hour back"),
        pytest.param([(HOUR_S, HOUR_S)], id="an hour was slept"),
        pytest.param(
            [(HOUR_S, 0), (-HOUR_S, 0), (86400 * 365, 60), (0, 120)],
            id="to and fro",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_clocks_jump_while_pods_run(
    jumping: tuple[SimNode, Clocks], jumps: list[tuple[int, int]]
) -> None:
    """Who runs keeps what it has, its counters go on, and the next pod is served."""
    node, clocks = jumping
    counters = Counters(node)
    pod = node.run_pod("before", [Ask(memory_mib=700)])
    grant = pod.admitted.containers["main"]
    tenant = Container.start(
        "tenant", driver=node.driver, env=grant.env,
        mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
    )  # fmt: skip
    try:
        assert tenant.ask("alloc 600").ok
        assert not tenant.ask("alloc 101").ok
        eventually(lambda: not counters.violations() and counters.seen, within_s=60)
        for number, (of_day_s, asleep_s) in enumerate(jumps):
            clocks.jump(of_day_s, asleep_s)
            serves(node, f"after-{number}")
            assert counters.violations() == []
            assert violations(node, [pod]) == []
            assert tenant.running
            assert not tenant.ask("alloc 101").ok
        assert counters.seen
    finally:
        tenant.stop()


def test_the_clock_is_really_shifted(jumping: tuple[SimNode, Clocks]) -> None:
    """Otherwise the rows above would prove nothing."""
    node, clocks = jumping
    clocks.jump(0, 0)
    today = node.log_text().splitlines()[0][:2]
    clocks.jump(11 * HOUR_S, 0)
    node.run_pod("later", [Ask(memory_mib=700)])
    eventually(lambda: node.log_text().splitlines()[-1][:2] != today)
