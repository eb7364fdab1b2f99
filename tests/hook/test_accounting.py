"""What is counted, across calls, processes and deaths."""

import json
import signal

import pytest
from hooked_programs import LIMIT, Node
from region_files import RegionFile
from tenants import tenants
from waiting import eventually

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)


@pytest.mark.parametrize(
    ("allocate", "give_back"),
    [
        pytest.param("alloc(100)", "free(a)", id="cuMemAlloc_v2"),
        pytest.param("alloc(100, 'cuMemAllocManaged', 1)", "free(a)", id="managed"),
        pytest.param("alloc(100, 'cuMemAlloc')", "free(a, 'cuMemFree')", id="32 bit"),
        pytest.param("pitched(100)", "free(a)", id="pitched"),
    ],
)  # fmt: skip
def test_every_kind_of_allocation_is_charged_and_given_back(
    node: Node, allocate: str, give_back: str
) -> None:
    code = (
        "def pitched(mib):\n"
        "    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()\n"
        "    rows = mib << 11\n"
        "    result = cuda.cuMemAllocPitch_v2(ctypes.byref(address), ctypes.byref(pitch),\n"
        "                                     ctypes.c_size_t(500), ctypes.c_size_t(rows), 4)\n"
        "    return result, address.value\n"
        "start()\n"
        f"first, a = {allocate}\n"
        "used = used_mib()\n"
        f"too_much, _ = {allocate}\n"
        f"freed = {give_back}\n"
        "left = used_mib()\n"
        f"again, _ = {allocate}\n"
        "say(first=first, used=used, too_much=too_much, freed=freed, left=left, again=again)"
    )
    said = node.run(code, **{LIMIT: "150m"})
    assert (said["first"], said["used"], said["too_much"]) == (0, 100, 2)
    assert (said["freed"], said["left"], said["again"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        pytest.param("alloc(0)[0]", 1, id="nothing is asked for"),
        pytest.param("cuda.cuMemAlloc_v2(None, ctypes.c_size_t(1 << 20))", 1, id="no place to put it"),
        pytest.param("free(0)", 0, id="freeing nothing"),
        pytest.param("free(0x1234)", 1, id="freeing what is not there"),
        pytest.param("cuda.cuMemGetInfo_v2(None, None)", 1, id="nobody wants to know"),
        pytest.param("cuda.cuDeviceTotalMem_v2(None, 0)", 1, id="no place for the total"),
        pytest.param("cuda.cuDeviceTotalMem_v2(ctypes.byref(ctypes.c_size_t()), 9)", 101, id="no such device"),
        pytest.param("alloc(1 << 40)[0]", 2, id="an exabyte"),
        pytest.param(
            "cuda.cuMemAllocPitch_v2(ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_size_t()),"
            " ctypes.c_size_t(-1), ctypes.c_size_t(-1), 4)", 1, id="rows that overflow",
        ),
        pytest.param("cuda.cuCtxSetCurrent(None) or alloc(1)[0]", 201, id="no context"),
    ],
)  # fmt: skip
def test_the_answer_to_odd_calls_is_the_drivers_and_nothing_stays_charged(
    node: Node, code: str, result: int
) -> None:
    program = f"start()\nresult = {code}\nstart()\nsay(result=result, used=used_mib())"
    said = node.run(program, **{LIMIT: "1g"})
    assert (said["result"], said["used"], said["rc"]) == (result, 0, 0)


def test_what_the_driver_refuses_is_not_charged(node: Node) -> None:
    node.sim.process(0, 4242, 46000)  # somebody outside the container has nearly all
    code = "start()\nrefused = alloc(100)[0]\nsay(refused=refused, given=alloc(50)[0])"
    said = node.run(code, **{LIMIT: "1g"})
    assert (said["refused"], said["given"]) == (2, 0)


def test_before_cuinit_nothing_is_given(node: Node) -> None:
    assert node.run("say(result=alloc(1)[0])", **{LIMIT: "1g"})["result"] == 3


def test_the_program_cannot_free_more_than_it_has(node: Node) -> None:
    code = (
        "start()\n_, a = alloc(400)\nalloc(400)\n"
        "say(results=[free(a), free(a), free(a)], used=used_mib(), more=alloc(600)[0])"
    )
    said = node.run(code, **{LIMIT: "900m"})
    assert said["results"] == [0, 1, 1]
    assert (said["used"], said["more"]) == (400, 2)


# --- several processes ----------------------------------------------------------------------------


def test_processes_of_a_container_share_one_limit(node: Node) -> None:
    with tenants(node, 2, **{LIMIT: "1000m"}) as (first, second):
        assert first.ask("alloc 600")["ok"]
        assert second.ask("alloc 600")["result"] == 2
        assert second.ask("alloc 400")["ok"]
        assert first.ask("info")["devices"][0]["free_mib"] == 0
        assert first.ask("free")["ok"]
        assert second.ask("alloc 600")["ok"]


def test_a_hundred_racing_processes_never_exceed_the_limit(node: Node) -> None:
    """The simulated driver counts by itself, and remembers the most that was ever held."""
    with tenants(node, 100, **{LIMIT: "1000m"}) as racing:
        for tenant in racing:
            tenant.tell("churn 64 10\nalloc 10\nalloc 10\nfree 1\nalloc 10")
        answers = [[tenant.hear() for _ in range(5)] for tenant in racing]
        held_mib = sum(said[-1]["held_mib"] for said in answers)
        assert {said["result"] for row in answers for said in row} <= {0, 2}
        assert sum(said[-1]["refused"] for said in answers) > 0
        assert 0 < node.sim.peak_mib(GPU) <= 1000
        assert held_mib <= 1000
        # Nothing leaked while they fought: what is left can be had to the last block.
        rest_mib = 1000 - held_mib
        assert racing[0].ask("info")["devices"][0]["free_mib"] == rest_mib
        assert not rest_mib or racing[0].ask(f"alloc {rest_mib}")["ok"]
        assert racing[1].ask("alloc 1")["result"] == 2


def test_what_the_ledger_has_no_room_for_is_in_no_slot(node: Node) -> None:
    """Managed memory without a limit, up to what the ledger can count."""
    code = (
        "most = (1 << 44) // MIB\n"
        "r = [alloc(most, 'cuMemAllocManaged', 1)[0] for _ in range(16)]\n"
        "say(r=r); sys.stdout.flush(); sys.stdin.readline()"
    )
    process = node.start("import sys\n" + "start()\n" + code)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["r"] == [0] * 15 + [2]
        region = RegionFile(node.cache)
        assert region.shown() == {process.pid: region.ledger()} == {process.pid: 15 << 44}
    finally:
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "ended"]
)
def test_memory_of_a_process_that_ended_comes_back(node: Node, how: int | None) -> None:
    with tenants(node, 2, **{LIMIT: "1000m"}) as (first, second):
        assert first.ask("alloc 1000")["ok"]
        assert second.ask("alloc 1")["result"] == 2
        first.end(how)
        assert second.ask("alloc 1000")["ok"]
        assert second.ask("free")["ok"]
        eventually(lambda: second.ask("info")["devices"][0]["free_mib"] == 1000)


def test_all_of_them_killed_leave_nothing_behind(node: Node) -> None:
    with tenants(node, 8, **{LIMIT: "1000m"}) as some:
        for tenant in some:
            tenant.tell("alloc 100\nchurn 1 100000")
        for tenant in some:
            assert tenant.hear()["ok"]
        for tenant in some:
            tenant.process.kill()
        for tenant in some:
            tenant.end()
    with tenants(node, 1, **{LIMIT: "1000m"}) as (alone,):
        assert alone.ask("alloc 1000")["ok"]


def test_a_killed_process_in_the_middle_of_everything_does_not_stop_the_others(node: Node) -> None:
    with tenants(node, 6, **{LIMIT: "400m"}) as some:
        survivor, *victims = some
        for round_ in range(5):
            victims[round_].tell("churn 100 1000000")
            survivor.tell("churn 100 200")
            assert survivor.hear()["result"] in {0, 2}
            victims[round_].end(signal.SIGKILL)
        assert survivor.ask("alloc 400")["ok"]


# --- fork and exec --------------------------------------------------------------------------------


def test_a_forked_child_counts_for_itself(node: Node) -> None:
    code = (
        "import os\n"
        "start(); alloc(300)\n"
        "read, write = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    start(); inside = [alloc(300)[0], used_mib(), alloc(600)[0]]\n"
        "    os.write(write, json.dumps(inside).encode()); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "inside = json.loads(os.read(read, 1000))\n"
        "after = [alloc(700)[0], used_mib()]\n"
        "say(inside=inside, after=after)"
    )
    said = node.run(code, **{LIMIT: "1000m"})
    assert said["inside"] == [0, 600, 2]
    assert said["after"] == [0, 1000]


def test_a_program_that_execs_another_starts_with_nothing(node: Node) -> None:
    code = (
        "import os, sys\n"
        "start(); alloc(900)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'from cuda_calls import *\\n'\n"
        "         'start(); say(used=used_mib(), result=alloc(900)[0])'])"
    )
    said = node.run(code, **{LIMIT: "1000m"})
    assert (said["used"], said["result"]) == (0, 0)


def test_threads_of_one_process_share_its_limit(node: Node) -> None:
    code = (
        "import threading\n"
        "start()\n"
        "results = []\n"
        "def work():\n"
        "    start()\n"
        "    for _ in range(50):\n"
        "        result, address = alloc(30)\n"
        "        results.append(result)\n"
        "        if result == 0: free(address)\n"
        "    results.append(alloc(10)[0])\n"
        "threads = [threading.Thread(target=work) for _ in range(12)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "say(results=sorted(set(results)), used=used_mib(), held=10 * 12)"
    )
    said = node.run(code, **{LIMIT: "150m"})
    assert set(said["results"]) <= {0, 2}
    assert said["used"] <= 120
    assert node.sim.peak_mib(GPU) <= 150
