"""Variables of code in managed memory (`__managed__`): no measurement finds them, so they are charged in full.

They are charged where their address is asked for. On the simulated driver a variable has as many MiB as its
name says, and all its pages are the host's.
"""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

BEGIN = (
    "from memory_calls import *\nr = []\n"
    "def library():\n"
    "    made = ctypes.c_void_p()\n"
    "    assert cuda.cuLibraryLoadData(ctypes.byref(made), b'x', None, None, 0, None, None, 0) == 0\n"
    "    return made\n"
    "def ask(of, name, address=True, bytes=True):\n"
    "    at, size = ctypes.c_uint64(1), ctypes.c_size_t(1)\n"
    "    result = cuda.cuLibraryGetManaged(\n"
    "        ctypes.byref(at) if address else None, ctypes.byref(size) if bytes else None, of, name)\n"
    "    told = [address and at.value > 1, bytes and size.value / MIB]\n"
    "    return [result, *told] if result == 0 else result\n"
    "assert start() == 0; code = library()\n"
)
NONE, INVALID, NOT_FOUND = 20, 1, 500  # MiB that the code takes; CUresults


@pytest.fixture
def variables(node: Node) -> Node:
    """A node where code takes 20 MiB."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), module_mib=20))
    return node


def run(node: Node, steps: str) -> list[object]:
    """What each of the steps gives."""
    said = node.run(BEGIN + steps + "\nsay(r=r)", **{LIMIT: "1000m"})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize(
    ("steps", "answers"),
    [
        pytest.param(
            "r += [ask(code, b'100'), ledger_mib()]", [[0, True, 100], NONE + 100], id="in full"
        ),
        pytest.param(
            "r += [ask(code, b'100', bytes=False), ask(code, b'100', address=False), ledger_mib()]",
            [[0, True, False], [0, False, 100], NONE + 100],
            id="once, whatever is asked of it",
        ),
        pytest.param(
            "r += [ask(code, b'100'), ask(code, b'200'), ask(library(), b'100'), ledger_mib()]",
            [[0, True, 100], [0, True, 200], [0, True, 100], 2 * NONE + 400],
            id="each of several",
        ),
        pytest.param(
            "r += [ask(code, b'981'), ledger_mib(), ask(code, b'980'), alloc(1)[0]]",
            [2, NONE, [0, True, 980], 2],
            id="not past the limit",
        ),
        pytest.param(
            "ask(code, b'100'); r += [cuda.cuLibraryUnload(code), ledger_mib(), ask(library(), b'900')]",
            [0, 0, [0, True, 900]],
            id="until the library is unloaded",
        ),
        pytest.param(
            "other = library(); ask(code, b'100'); ask(other, b'200')\n"
            "r += [cuda.cuLibraryUnload(code), ledger_mib(), cuda.cuLibraryUnload(other), ledger_mib()]",
            [0, NONE + 200, 0, 0],
            id="no longer than its own library",
        ),
        pytest.param(
            "ask(code, b'100')\nwith refused('cuLibraryUnload'): r += [cuda.cuLibraryUnload(code), ledger_mib()]\n"
            "r += [cuda.cuLibraryUnload(code), ledger_mib()]",
            [999, NONE + 100, 0, 0],
            id="as long as it is not unloaded",
        ),
        pytest.param(
            "r += [ask(code, b'100'), free(ctypes.c_uint64(code.value + 100).value) != 0, ledger_mib()]",
            [[0, True, 100], True, NONE + 100],
            id="though it is freed as what was allocated",
        ),
        pytest.param(
            "r += [ask(code, b'no'), ask(code, b'9', False, False), ask(None, b'9'), ledger_mib()]\n"
            "with refused('cuLibraryGetManaged'): r += [ask(code, b'9'), ledger_mib()]",
            [NOT_FOUND, INVALID, INVALID, NONE, 999, NONE],
            id="not what the driver refuses",
        ),
    ],
)
def test_they_are_charged(variables: Node, steps: str, answers: list[object]) -> None:
    assert run(variables, steps) == answers


def test_without_a_limit_they_are_the_drivers(variables: Node) -> None:
    said = variables.run(BEGIN + "say(r=[ask(code, b'100000'), cuda.cuLibraryUnload(code)])")
    assert (said["rc"], said["r"]) == (0, [[0, True, 100000], 0])


def test_threads_that_ask_for_one_at_once_charge_it_once(variables: Node) -> None:
    steps = (
        "context, most = ctypes.c_void_p(), 0\n"
        "assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0\n"
        "def asks(of, all_are_there):\n"
        "    cuda.cuCtxSetCurrent(context); all_are_there.wait()\n"
        "    for _ in range(20): ask(of, b'10')\n"
        "for _ in range(100):\n"
        "    other, all_are_there = library(), threading.Barrier(8)\n"
        "    threads = [threading.Thread(target=asks, args=(other, all_are_there)) for _ in range(8)]\n"
        "    for one in threads: one.start()\n"
        "    for one in threads: one.join()\n"
        "    most = max(most, ledger_mib()); cuda.cuLibraryUnload(other)\n"
        "r += [most, ledger_mib()]"
    )
    assert run(variables, steps) == [2 * NONE + 10, NONE]
