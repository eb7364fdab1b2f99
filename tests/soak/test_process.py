"""What stays of many pods, scrapes and restarts in the agent as a process."""

from dataclasses import replace

import pytest

from tests.e2e.conftest import NodeMaker
from tests.faults.invariants import refused_allocations
from tests.faults.story import EVERY
from tests.soak.process import FLAGS, Look, life, objections_to

WARM_ROUNDS, ROUNDS, PODS = 2, (30 if EVERY else 4), 12
# The interpreter and its allocator fill their heap for hundreds of pods: in 60 rounds they took 3.3
# MiB, of which 2 MiB in the first 12 and none in the last 8. Each round maps regions (2 MiB each),
# opens streams and may start threads: what stays of each of thirty rounds is more than this. Less is
# told by the days of `build.py soak`, which count each block that Python holds.
MOST_KIB = 4096

LOOK = Look(threads=35, descriptors=25, connections=6, kept=0, resident_kib=62_000)


@pytest.mark.timeout(600)
def test_pods_and_restarts_leave_nothing_in_the_process(make_node: NodeMaker) -> None:
    """Threads, descriptors and memory are as after the warm-up; directories go; counters go on."""
    node = make_node(*FLAGS)
    with life(node) as agent:
        for _ in range(WARM_ROUNDS):
            agent.round(PODS)
        warm, pid = agent.looked(), agent.pid
        for _ in range(ROUNDS):
            agent.round(PODS)
        agent.released()
        after = agent.looked()
        print(agent.pods, warm, after)  # shown where it fails
        assert agent.pid == pid, "one and the same process"
        assert objections_to(warm, after, most_kib=MOST_KIB) == []
        assert agent.counters.violations() == []
        assert refused_allocations(node, "stays") == WARM_ROUNDS + ROUNDS, (
            "a counter that is not zero went on"
        )


@pytest.mark.parametrize(
    ("after", "told"),
    [
        pytest.param(LOOK, "", id="nothing grew"),
        pytest.param(replace(LOOK, resident_kib=62_000 + MOST_KIB), "", id="as allowed"),
        pytest.param(replace(LOOK, threads=34, descriptors=24, resident_kib=1), "", id="less"),
        pytest.param(replace(LOOK, threads=36), "1 more threads", id="a thread"),
        pytest.param(replace(LOOK, descriptors=26), "1 more descriptors", id="a descriptor"),
        pytest.param(replace(LOOK, connections=9), "", id="connections that were cut"),
        pytest.param(replace(LOOK, connections=10), "4 more connections", id="connections"),
        pytest.param(replace(LOOK, kept=1), "1 more files of the gone", id="a file of the gone"),
        pytest.param(replace(LOOK, resident_kib=66_097), "4097 more KiB", id="memory"),
    ],
)
def test_what_there_is_more_of_is_told(after: Look, told: str) -> None:
    found = objections_to(LOOK, after, most_kib=MOST_KIB)
    assert bool(found) == bool(told)
    assert told in "".join(found)
