"""The functions of the simulated CUDA driver: which there are, and for whom."""

import re
from pathlib import Path

import pytest
from built_hook import ROOT, sim_libraries
from hooked_programs import Node

from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

PER_THREAD = 2
ROW = re.compile(r'^ *X\((cu\w+), "(cu\w+)", (\d+), (\w+)\)', re.MULTILINE)
SYMBOLS = ROW.findall((ROOT / "hook" / "symbols.h").read_text())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    return Node(sim, tmp_path / "none")


def ask(node: Node, code: str) -> object:
    """What a program says that looks functions up."""
    before = (
        "import os\n"
        "def ask(name, version, flags=0):\n"
        "    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)\n"
        "    result = cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), version,\n"
        "                                      ctypes.c_uint64(flags), ctypes.byref(status))\n"
        "    found = [n for n in names if looked_up(n, None) == pointer.value]\n"
        "    return [result, status.value, found[0] if found else None]\n"
        f"names = {sorted({symbol for symbol, *_ in SYMBOLS})}\n"
    )
    done = node.run(before + code, hook=False)
    assert done["rc"] == 0, done["stderr"]
    return done["said"]


def test_the_table_is_read() -> None:
    assert len(SYMBOLS) > 180
    assert ("cuMemAllocAsync_ptsz", "cuMemAllocAsync", "11020", "PER_THREAD") in SYMBOLS


def test_every_function_of_the_table_is_exported_and_found(node: Node) -> None:
    table = [(s, n, int(v), PER_THREAD if f == "PER_THREAD" else 0) for s, n, v, f in SYMBOLS]
    node.sim.versions(cuda=99990)
    code = (
        f"table = {table}\n"
        "said = [row for row in table if ask(row[1], row[2], row[3])[2] != row[0]]\n"
        "said += [n for n in names if not looked_up(n, None)]\nsay(said=said)"
    )
    assert ask(node, code) == []


@pytest.mark.parametrize(
    ("cuda_version", "absent", "question", "answer"),
    [
        pytest.param(12080, [], "'cuMemAlloc', 12080", [0, 0, "cuMemAlloc_v2"], id="the newest"),
        pytest.param(
            12080, [], "'cuMemAlloc', 3010", [0, 0, "cuMemAlloc"], id="for an old program"
        ),
        pytest.param(12080, [], "'cuMemAlloc', 1000", [500, 2, None], id="for too old a program"),
        pytest.param(12080, [], "'cuNothing', 12080", [500, 1, None], id="no such name"),
        pytest.param(
            12080, [], "'cuMemAlloc_v2', 12080", [500, 1, None], id="names have no suffix"
        ),
        pytest.param(
            12080, [], "'cuLaunchKernel', 12080, 2", [0, 0, "cuLaunchKernel_ptsz"], id="per thread"
        ),
        pytest.param(
            12080, [], "'cuLaunchKernel', 5000, 2", [0, 0, "cuLaunchKernel"], id="before per thread"
        ),
        pytest.param(
            12080,
            [],
            "'cuMemAlloc', 12080, 2",
            [0, 0, "cuMemAlloc_v2"],
            id="no stream, no difference",
        ),
        pytest.param(
            12010, [], "'cuGraphAddNode', 13000", [500, 1, None], id="newer than the driver"
        ),
        pytest.param(
            12020,
            [],
            "'cuGraphAddNode', 13000",
            [0, 0, "cuGraphAddNode"],
            id="the driver's own version",
        ),
        pytest.param(
            12030,
            [],
            "'cuGraphAddNode', 13040",
            [0, 0, "cuGraphAddNode_v2"],
            id="as new as it has it",
        ),
        pytest.param(
            12080,
            ["cuMemAlloc_v2"],
            "'cuMemAlloc', 12080",
            [0, 0, "cuMemAlloc"],
            id="one is absent",
        ),
        pytest.param(
            12080,
            ["cuMemCreate"],
            "'cuMemCreate', 12080",
            [500, 1, None],
            id="the only one is absent",
        ),
    ],
)
def test_lookups_are_those_of_the_drivers_age(
    node: Node, cuda_version: int, absent: list[str], question: str, answer: list[object]
) -> None:
    node.sim.versions(cuda=cuda_version)
    node.sim.absent(*absent)
    assert ask(node, f"say(said=ask({question}))") == answer


FORKED = (
    "zeros = [ctypes.c_void_p(0)] * 14\n"
    "def answer(name):\n"
    "    pid = os.fork()\n"
    "    if pid == 0:\n"
    "        os._exit(getattr(cuda, name)(*zeros) % 251)\n"
    "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
)


def test_no_function_ends_the_program_when_it_gets_nothing(node: Node) -> None:
    said = ask(node, FORKED + "start()\nsay(said=[n for n in names if answer(n) < 0])")
    assert said == []


def test_each_function_fails_when_it_is_told_to(node: Node) -> None:
    for symbol, *_ in SYMBOLS:
        if symbol != "cuInit":
            node.sim.fail(symbol, 77)
    code = "assert cuda.cuInit(0) == 0\nsay(said=[n for n in names if n != 'cuInit' and answer(n) != 77])"
    assert ask(node, FORKED + code) == []


def test_a_configuration_can_be_read_once_for_all(node: Node, tmp_path: Path) -> None:
    code = (
        "start()\nbefore = total_mib()\n"
        f"text = open({str(node.sim.config_path)!r}).read().replace('memory_mib=46068', 'memory_mib=100')\n"
        f"open({str(node.sim.config_path)!r}, 'w').write(text)\n"
        "say(said=[before, total_mib()])"
    )
    assert node.run(code, hook=False, VGPU_SIM_RELOAD="never")["said"] == [46068, 46068]
    assert node.run(code.replace("46068", "100").replace("=100', ", "=100', "), hook=False)[
        "said"
    ] == [100, 100]


def test_memory_by_address_takes_whole_pages_where_there_are_such(node: Node) -> None:
    """What fits into one twice shares it with others of its context; it goes with the last of them."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), page_mib=2))
    code = (
        "from memory_calls import *\nstart()\nsaid, made = [], []\n"
        "for mib in (3, 1.1, 0.7, 0.7, 0.7, 0.01):\n"
        "    made.append(alloc(mib)[1]); said.append(held_mib())\n"
        "for address in made: free(address); said.append(held_mib())\n"
        "say(said=said)"
    )
    assert node.run(code, hook=False)["said"] == [4, 6, 8, 8, 10, 10, 6, 4, 4, 2, 2, 0]
