"""Drivers take memory of the GPU in whole pages, also where a program asks for less: the limit is of the pages."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
PAGE_MIB = 2
THREADS = 8
BEGIN = "from memory_calls import *\nstart()\n"
FILL = (
    "held = []\n"
    "def fill(mib, *how, most=1 << 20):\n"
    "    while len(held) < most:\n"
    "        error, address = alloc(mib, *how)\n"
    "        if error: return error\n"
    "        held.append(address)\n"
    "    return 0\n"
)


@pytest.fixture
def paged(node: Node) -> Node:
    """A GPU as real ones are, with pages of 2 MiB."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, page_mib=PAGE_MIB))
    return node


@pytest.mark.parametrize(
    ("mib", "how"),
    [
        pytest.param(1.1, "", id="more than half a page"),
        pytest.param(3, "", id="more than a page"),
        pytest.param(0.7, "", id="two in a page"),
        pytest.param(0.01, "", id="small ones"),
        pytest.param(1.1, ", 'cuMemAllocManaged', 1", id="managed"),
    ],
)
def test_pages_stay_within_the_limit(paged: Node, mib: float, how: str) -> None:
    """Counted by what is asked for, 909 of the first would fit: 1818 MiB."""
    code = f"e = fill({mib}{how}); say(e=e, held=held_mib(), count=len(held))"
    said = paged.run(BEGIN + FILL + code, **{LIMIT: "1000m"})
    assert said["e"] == 2
    assert 950 < said["held"] <= paged.sim.peak_mib(GPU) <= 1000 + PAGE_MIB


def test_pages_of_threads_stay_within_the_limit(paged: Node) -> None:
    """What one of them has compared is not charged yet while the others go on: they compare, too."""
    code = (
        "import threading\n"
        "def thread(): start(); fill(1.1)\n"
        f"threads = [threading.Thread(target=thread) for _ in range({THREADS})]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "say(held=held_mib(), after=alloc(PAGE)[0])"
    )
    said = paged.run(f"PAGE = {PAGE_MIB}\n" + BEGIN + FILL + code, **{LIMIT: "1000m"})
    assert said["after"] == 2
    assert 950 < said["held"] <= paged.sim.peak_mib(GPU) <= 1000 + THREADS * PAGE_MIB


def test_what_pages_gave_back_can_be_had_again(paged: Node) -> None:
    code = "e = fill(1.1)\nfor a in held: free(a)\nsay(e=e, again=alloc(1000)[0], both=both())"
    said = paged.run(BEGIN + FILL + code, **{LIMIT: "1000m"})
    assert (said["e"], said["again"], said["both"]) == (2, 0, [1000, 1000])


def test_of_who_asks_no_more_an_eighth_of_what_was_left_may_be_unseen(paged: Node) -> None:
    """Until it asks again: each process looks at its own figure only."""
    first = "e = fill(1.1, most=100); print('', flush=True); input(); say(e=e)"
    with paged.start(BEGIN + FILL + first, env={LIMIT: "1000m"}) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = paged.run(BEGIN + FILL + "say(e=fill(1.1))", **{LIMIT: "1000m"})
        process.communicate("\n")
    assert said["e"] == 2
    assert paged.sim.peak_mib(GPU) <= 1000 + 1000 // 8 + PAGE_MIB
