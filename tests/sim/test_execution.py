"""How the simulated GPUs work: streams, events, graphs, and turns between processes.

Times are those of the virtual clock, and so exact: a program that takes no part in it moves it by
waiting, and sim-gpu-tenant takes part.
"""

import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_hook import sim_libraries
from hooked_programs import Node
from waiting import eventually

from agent.sim.driver import SimDriver, made_up_uuid

A, B = made_up_uuid(0), made_up_uuid(1)


@pytest.fixture
def sim(tmp_path: Path) -> SimDriver:
    """One GPU in virtual time; kernels k1, k2 and k3 take so many milliseconds."""
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu()
    driver.execution(clock="virtual")
    for ms in (1, 2, 3):
        driver.kernel(f"k{ms}", ms * 1000)
    driver.kernel("k50us", 50)
    return driver


@pytest.fixture
def node(sim: SimDriver, tmp_path: Path) -> Node:
    return Node(sim, tmp_path / "none")


def say(node: Node, code: str, **env: str) -> object:
    """Run `code`, which has all calls at hand, a context and the kernels; gives its `said`."""
    before = "import os\nfrom gpu_calls import *\nstart()\nk1, k2, k3 = kernel('k1'), kernel('k2'), kernel('k3')\n"
    done = node.run(before + code + "\nsay(said=said)", hook=False, **env)
    assert done["rc"] == 0, done["stderr"]
    return done["said"]


# --- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "us"),
    [
        pytest.param("launch(k1, s)", 1000, id="one kernel"),
        pytest.param(
            "launch(k1, s), launch(k2, s), launch(k3, s)", 6000, id="in order in a stream"
        ),
        pytest.param("launch(k2, s), launch(k2, t)", 4000, id="two streams share the GPU evenly"),
        pytest.param("launch(k1, s), launch(k3, t)", 2000, id="the shorter of two is done first"),
        pytest.param(
            "launch(k1, s, 'cuLaunchKernel_ptsz')", 1000, id="per thread, explicit stream"
        ),
        pytest.param("launch(k3)", 0, id="a non-blocking stream ignores the NULL stream"),
        pytest.param(
            "launch(k3, t), cuda.cuStreamWaitEvent(s, record(t), 0), launch(k1, s)",
            4000,
            id="waits for an event of another stream",
        ),
        pytest.param(
            "cuda.cuStreamWaitEvent(s, event(), 0), launch(k1, s)",
            1000,
            id="an event never recorded",
        ),
    ],
)
def test_what_a_stream_does_takes_its_time(node: Node, code: str, us: int) -> None:
    code = (
        "s, t = stream(), stream()\nfirst = record(s)\n" + code + "\nlast = record(s)\n"
        "assert cuda.cuCtxSynchronize() == 0\nsaid = elapsed_us(first, last)"
    )
    assert say(node, code) == us


@pytest.mark.parametrize(
    ("code", "us"),
    [
        pytest.param("", 5, id="right behind another"),
        pytest.param("launch(k1, s)", 1005, id="behind a kernel"),
        pytest.param("record(s)", 10, id="behind two"),
        pytest.param("cuda.cuEventRecord(event(2), s)", 5, id="one without a time takes none"),
        pytest.param("launch(k1, s), launch(k3, t)", 2005, id="another stream works meanwhile"),
        pytest.param("[record(t) for _ in range(9)]", 5, id="in another stream"),
        pytest.param("launch(k1, s), [record(t) for _ in range(9)]", 1005, id="beside a kernel"),
    ],
)
def test_an_event_holds_up_its_stream_and_nothing_else(node: Node, code: str, us: int) -> None:
    node.sim.execution(event_ns=5000)
    code = (
        f"s, t = stream(), stream()\nfirst = record(s)\n{code}\nlast = record(s)\n"
        "assert cuda.cuCtxSynchronize() == 0\nsaid = [elapsed_us(first, last)]"
    )
    assert say(node, code) == [us]


@pytest.mark.parametrize(
    ("launches", "us"),
    [
        pytest.param("launch(k1, s), launch(k1), launch(k1, s)", 3000, id="NULL is in between"),
        pytest.param("launch(k1, s), launch(k1, t)", 2000, id="blocking streams among themselves"),
        pytest.param(
            "launch(k1, s), launch(k1, None, 'cuLaunchKernel_ptsz')", 2000, id="per-thread default"
        ),
        pytest.param("launch(k2, Handle(1)), launch(k1, s)", 3000, id="CU_STREAM_LEGACY"),
        pytest.param("launch(k1, Handle(2)), launch(k1, s)", 2000, id="CU_STREAM_PER_THREAD"),
    ],
)
def test_the_null_stream_and_blocking_streams_wait_for_each_other(
    node: Node, launches: str, us: int
) -> None:
    code = (
        "s, t = stream(0), stream(0)\nfirst = record(s)\n" + launches + "\nlast = record(s)\n"
        "assert cuda.cuCtxSynchronize() == 0\nsaid = elapsed_us(first, last)"
    )
    assert say(node, code) == us


TWO = """
primary = Handle()
cuda.cuCtxGetCurrent(ctypes.byref(primary))
"""
OTHER = "other = made('cuCtxCreate_v2', 0, 0)\n"
GREEN = (
    "green = made('cuGreenCtxCreate', Handle(1), 0, 1); other = made('cuCtxFromGreenCtx', green)\n"
    "cuda.cuCtxSetCurrent(other)\n"
)


@pytest.mark.parametrize(
    ("other", "streams", "us"),
    [
        # a slice of each of the two, then what is left of each
        pytest.param(OTHER, "stream()", [5000, 4000], id="two contexts: in turn"),
        pytest.param(OTHER, "None", [5000, 4000], id="each with a NULL stream of its own"),
        pytest.param("other = primary\n", "stream()", [6000, 6000], id="two streams: at once"),
        pytest.param("other = primary\n", "None", [3000, 3000], id="one NULL stream"),
        pytest.param(GREEN, "stream()", [6000, 6000], id="a green one is part of its device's own"),
    ],
)
def test_contexts_of_a_process_take_turns(
    node: Node, other: str, streams: str, us: list[int]
) -> None:
    """Two kernels of 3 ms, and slices of 2 ms."""
    code = (
        TWO
        + other
        + f"cuda.cuCtxSetCurrent(other); t = {streams}; before, after = event(), event()\n"
        f"cuda.cuCtxSetCurrent(primary); s = {streams}\n"
        "first = record(s); launch(k3, s); last = record(s)\ncuda.cuCtxSetCurrent(other)\n"
        "cuda.cuEventRecord(before, t); launch(k3, t); cuda.cuEventRecord(after, t)\n"
        "assert cuda.cuEventSynchronize(after) == cuda.cuEventSynchronize(last) == 0\n"
        "said = [elapsed_us(first, last), elapsed_us(before, after)]"
    )
    assert say(node, code) == us


def test_contexts_that_come_and_go_leave_the_gpu_and_their_time_is_known(node: Node) -> None:
    """More than can be there at once; what they had to do yet is done when they are gone."""
    code = (
        "for wait in [True] * 200 + [False]:\n"
        "    other = made('cuCtxCreate_v2', 0, 0); assert launch(k1) == 0\n"
        "    if wait: cuda.cuCtxSynchronize()\n"
        "    assert cuda.cuCtxDestroy_v2(other) == 0\n"
        "assert launch(k3) == 0; cuda.cuCtxSynchronize()\n"
        f"said = gpu_us({A!r}, os.getpid())"
    )
    assert say(node, code) == 204_000


URGENT = "t = made('cuStreamCreateWithPriority', 1, -5)"


@pytest.mark.parametrize(
    ("connections", "second", "us"),
    [
        pytest.param(0, "", 0, id="no queues"),
        pytest.param(1, "", 2000, id="one queue: behind the first kernel and its event"),
        pytest.param(2, "", 0, id="two queues"),
        pytest.param(1, URGENT, 0, id="another queue for another priority"),
    ],
)
def test_streams_share_the_queues_of_the_hardware(
    node: Node, sim: SimDriver, connections: int, second: str, us: int
) -> None:
    sim.execution(connections=connections)
    code = (
        f"s, t = stream(), stream()\n{second}\nfirst = record(s)\nlaunch(k2, s)\nrecord(s)\n"
        "last = record(t)\nassert cuda.cuCtxSynchronize() == 0\nsaid = elapsed_us(first, last)"
    )
    assert say(node, code) == us


def test_what_has_begun_is_waited_for_by_nobody_in_its_queue(node: Node, sim: SimDriver) -> None:
    """Two kernels run beside each other; a third stands behind what waits for the first of them."""
    sim.execution(connections=1)
    code = (
        "s, t = stream(), stream()\nfirst = record(s)\nlaunch(k2, s)\nlaunch(k1, t)\n"
        "launch(k1, s)\nlaunch(k1, t)\nlast = record(t)\n"
        "assert cuda.cuCtxSynchronize() == 0\nsaid = elapsed_us(first, last)"
    )
    assert say(node, code) == 5000


def test_a_launch_returns_before_the_kernel_ends(node: Node) -> None:
    code = (
        "s = stream()\nfor _ in range(3): launch(k3, s)\nlast = record(s)\n"
        "said = [cuda.cuStreamQuery(s), cuda.cuEventQuery(last), cuda.cuEventSynchronize(last),\n"
        "        cuda.cuEventQuery(last), cuda.cuStreamQuery(s), cuda.cuStreamSynchronize(s)]"
    )
    # a query moves the time, as nobody else does, but only to the next thing that happens
    assert say(node, code) == [600, 600, 0, 0, 0, 0]


def test_in_real_time_too(node: Node) -> None:
    code = (
        "import time\ns = stream()\nbefore = time.monotonic()\n"
        "for _ in range(100): launch(k3, s)\n"
        "launched = time.monotonic() - before\nearly = cuda.cuStreamQuery(s)\n"
        "cuda.cuStreamSynchronize(s)\nwaited = time.monotonic() - before\n"
        "said = [early, launched < waited, waited >= 0.3, cuda.cuStreamQuery(s)]"
    )
    assert say(node, code, VGPU_SIM_CLOCK="real") == [600, True, True, 0]


def test_a_full_queue_holds_up_the_launching_thread(node: Node) -> None:
    code = (
        "s, before = stream(), now_us()\nfor _ in range(1024): launch(k1, s)\nfree = now_us() - before\n"
        "for _ in range(1024): launch(k1, s)\nsaid = [free, now_us() - before >= 1_000_000]"
    )
    assert say(node, code) == [0, True]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        pytest.param("s = stream(); e = record(s); elapsed(e, e)", 0, id="done"),
        pytest.param("elapsed(event(), event())", 400, id="not recorded"),
        pytest.param(
            "s = stream(); a = event(2); cuda.cuEventRecord(a, s); elapsed(a, a)", 400, id="untimed"
        ),
        pytest.param(
            "s = stream(); launch(k1, s); e = record(s); elapsed(e, e)", 0, id="soon done"
        ),
        pytest.param(
            "s = stream(); launch(k1, s); launch(k1, s); e = record(s); elapsed(e, e)",
            600,
            id="not yet",
        ),
        pytest.param("cuda.cuEventQuery(event())", 0, id="a query of what was never recorded"),
        pytest.param("cuda.cuEventRecord(None, None)", 400, id="no event"),
        pytest.param("cuda.cuStreamDestroy_v2(None)", 400, id="the NULL stream is not destroyed"),
        pytest.param("launch(None)", 400, id="no function"),
        pytest.param(
            "cuda.cuLaunchKernel(k1, 0, 1, 1, 1, 1, 1, 0, None, None, None)", 1, id="no blocks"
        ),
    ],
)
def test_what_events_and_launches_answer(node: Node, code: str, result: int) -> None:
    steps = [step.strip() for step in code.split(";")]
    before = (
        "def elapsed(a, b): return cuda.cuEventElapsedTime(ctypes.byref(ctypes.c_float()), a, b)\n"
    )
    assert say(node, before + "\n".join([*steps[:-1], f"said = {steps[-1]}"])) == result


def test_a_destroyed_stream_still_does_its_work(node: Node) -> None:
    code = (
        "s = stream()\nlaunch(k3, s)\nlast = record(s)\ncuda.cuStreamDestroy_v2(s)\n"
        f"cuda.cuCtxSynchronize()\nsaid = [cuda.cuEventQuery(last), gpu_us({A!r})]"
    )
    assert say(node, code) == [0, 3000]


def test_lengths_are_drawn_from_their_range_the_same_for_the_same_seed(
    node: Node, sim: SimDriver
) -> None:
    sim.kernel("any", 2, 200_000)
    code = (
        "k, s = kernel('any'), stream()\nmarks = [record(s)]\n"
        "for _ in range(200): launch(k, s); marks.append(record(s))\n"
        "cuda.cuCtxSynchronize()\nsaid = [elapsed_us(a, b) for a, b in zip(marks, marks[1:])]"
    )
    first, again, other = say(node, code), say(node, code), say(node, code, VGPU_SIM_SEED="7")
    assert first == again != other
    assert isinstance(first, list)
    assert min(first) >= 2
    assert max(first) <= 200_000
    middle = sorted(first)[100]
    assert 200 < middle < 2000  # half of them below the geometric mean, 632 us


def test_of_some_kernels_one_in_so_many_is_long(node: Node, sim: SimDriver) -> None:
    sim.kernel("any", 2, 50, 10)
    code = (
        "k, s = kernel('any'), stream()\nmarks = [record(s)]\n"
        "for _ in range(500): launch(k, s); marks.append(record(s))\n"
        "cuda.cuCtxSynchronize()\nsaid = [elapsed_us(a, b) for a, b in zip(marks, marks[1:])]"
    )
    lengths = say(node, code)
    assert isinstance(lengths, list)
    assert set(lengths) == {2, 50}
    assert 25 <= lengths.count(50) <= 75


def test_some_kernels_become_long(node: Node, sim: SimDriver) -> None:
    sim.kernel("any", 2, 50, after=3)
    code = (
        "k, s = kernel('any'), stream()\nmarks = [record(s)]\n"
        "for _ in range(6): launch(k, s); marks.append(record(s))\n"
        "cuda.cuCtxSynchronize()\nsaid = [elapsed_us(a, b) for a, b in zip(marks, marks[1:])]"
    )
    assert say(node, code) == [2, 2, 2, 50, 50, 50]


def test_gpus_work_side_by_side(node: Node, sim: SimDriver) -> None:
    sim.add_gpu()
    code = (
        "s = stream()\nfirst = record(s)\nlaunch(k3, s)\nstart(1)\nt = stream()\nlaunch(kernel('k2'), t)\n"
        "cuda.cuCtxSynchronize()\nstart(0)\nlast = record(s)\ncuda.cuCtxSynchronize()\n"
        f"said = [elapsed_us(first, last), gpu_us({A!r}), gpu_us({B!r})]"
    )
    assert say(node, code) == [3000, 3000, 2000]


# --- graphs --------------------------------------------------------------------------------------

CAPTURED = "s = stream()\nbegin(s)\nfor k in (k1, k2, k3): launch(k, s)\nresult, graph = end(s)\n"
BUILT = (
    "class Params(ctypes.Structure):\n"
    "    _fields_ = [('func', Handle), ('dims', ctypes.c_uint * 7), ('rest', Handle * 4)]\n"
    "s, graph, node, result = stream(), made('cuGraphCreate', 0), Handle(), 0\n"
    "for k in (k1, k2, k3):\n"
    "    result |= cuda.cuGraphAddKernelNode_v2(ctypes.byref(node), graph, None, ctypes.c_size_t(0),\n"
    "                                           ctypes.byref(Params(func=k)))\n"
)
FORKED = (
    "s, t = stream(), stream()\nbegin(s)\nlaunch(k1, s)\ncuda.cuStreamWaitEvent(t, record(s), 0)\n"
    "launch(k2, t)\nlaunch(k3, s)\ncuda.cuStreamWaitEvent(s, record(t), 0)\nresult, graph = end(s)\n"
)
CHILD = (
    BUILT + "parent = made('cuGraphCreate', 0)\n"
    "result |= cuda.cuGraphAddChildGraphNode(ctypes.byref(node), parent, None, ctypes.c_size_t(0), graph)\n"
    "graph = parent\n"
)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(CAPTURED, id="captured"),
        pytest.param(BUILT, id="built"),
        pytest.param(FORKED, id="captured from two streams"),
        pytest.param(CHILD, id="a graph in a graph"),
        pytest.param(CAPTURED + "graph = made('cuGraphClone', graph)\n", id="a clone"),
    ],
)
def test_a_graph_runs_as_one_piece(node: Node, build: str) -> None:
    code = (
        build + "run = executable(graph)\nfirst = record(s)\nresult |= cuda.cuGraphLaunch(run, s)\n"
        "last = record(s)\ncuda.cuCtxSynchronize()\nsaid = [result, elapsed_us(first, last)]"
    )
    assert say(node, code) == [0, 6000]


def test_what_is_captured_does_not_run(node: Node) -> None:
    code = CAPTURED + f"cuda.cuCtxSynchronize()\nsaid = [result, gpu_us({A!r})]"
    assert say(node, code) == [0, 0]


def test_an_executable_graph_can_be_changed(node: Node) -> None:
    code = (
        CAPTURED + "run = executable(graph)\n"
        "begin(s)\nfor _ in range(3): launch(k3, s)\n_, other = end(s)\n"
        "begin(s)\nlaunch(k3, s)\n_, shorter = end(s)\noutcome = ctypes.c_int()\n"
        "results = [cuda.cuGraphExecUpdate_v2(run, g, ctypes.byref(outcome)) for g in (other, shorter)]\n"
        "first = record(s)\ncuda.cuGraphLaunch(run, s)\nlast = record(s)\ncuda.cuCtxSynchronize()\n"
        "said = [results, elapsed_us(first, last)]"
    )
    assert say(node, code) == [[0, 910], 9000]


LEAVING = (
    "from memory_calls import *\n"
    "g = graph(); _, a = add_allocation(g, 60); trim = cuda.cuDeviceGraphMemTrim\n"
)


@pytest.mark.parametrize(
    ("flags", "second"), [pytest.param("AUTO_FREE", 0, id="flag"), pytest.param("0", 1, id="none")]
)
def test_a_graph_is_launched_again_if_what_it_left_is_freed(
    node: Node, flags: str, second: int
) -> None:
    code = (
        f"e = instantiate(g, {flags})\n"
        "said = [launch(e), launch(e), held_mib(), free(a), launch(e), free(a), free(a)]"
    )
    assert say(node, LEAVING + code) == [0, second, 64, 0, 0, 0, 1]


def test_an_update_leaves_it_at_that(node: Node) -> None:
    code = (
        "e, info = instantiate(g, AUTO_FREE), ctypes.create_string_buffer(64)\n"
        "said = [launch(e), cuda.cuGraphExecUpdate_v2(e, g, info), launch(e), held_mib()]"
    )
    assert say(node, LEAVING + code) == [0, 0, 0, 64]


def test_a_graph_that_frees_at_its_launch_is_none_for_devices_to_launch(node: Node) -> None:
    code = (
        "made = ctypes.c_void_p()\n"
        "said = [cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), g, u64(f)) for f in (4, 5)]"
    )
    assert say(node, LEAVING + code) == [0, 1]


def test_what_a_graph_left_outlives_it(node: Node) -> None:
    code = (
        "e = instantiate(g); said = [launch(e)]\n"
        "said += [cuda.cuGraphExecDestroy(e), cuda.cuGraphDestroy(g), trim(0), held_mib()]\n"
        "said += [free(a), free(a), trim(0), held_mib()]"
    )
    assert say(node, LEAVING + code) == [0, 0, 0, 0, 64, 0, 1, 0, 0]


RECAPTURE = "cuda.cuStreamBeginRecaptureToGraph(s, RELAXED, graph, None, None)"


@pytest.mark.parametrize(
    ("kernels", "second", "end"),
    [
        pytest.param("k2, k3, k3", 0, 0, id="as many"),
        pytest.param("k2, k3", 0, 918, id="too few"),
        pytest.param("k2, k3, k3, k3", 918, 901, id="too many"),
    ],
)
def test_a_graph_is_recaptured_node_by_node(
    node: Node, kernels: str, second: int, end: int
) -> None:
    code = (
        f"{CAPTURED}nodes = graph.value; begun = {RECAPTURE}\n"
        f"results = [launch(k, s) for k in ({kernels})]; ended, same = end(s)\n"
        "said = [begun, results[-1], ended, ended != 0 or same.value == nodes]\n"
    )
    assert say(node, code) == [0, second, end, True]


def test_what_was_recaptured_runs(node: Node) -> None:
    code = (
        f"{CAPTURED}begun = {RECAPTURE}\nfor k in (k3, k3, k3): launch(k, s)\n_, graph = end(s)\n"
        "run = executable(graph)\nfirst = record(s)\ncuda.cuGraphLaunch(run, s)\nlast = record(s)\n"
        "cuda.cuCtxSynchronize()\nsaid = [begun, elapsed_us(first, last)]"
    )
    assert say(node, code) == [0, 9000]


@pytest.mark.parametrize("change", ["draw(61, stream=s)", "launch(k1, s)", "put(a, s)"])
def test_memory_is_recaptured_as_it_was(node: Node, change: str) -> None:
    """The same node, at the same address; anything else fails."""
    code = (
        "from memory_calls import draw, put\ns = stream()\nbegin(s)\n_, a = draw(60, stream=s)\n"
        f"_, graph = end(s)\nbegun = {RECAPTURE}\nsaid = [begun, draw(60, stream=s) == (0, a)]\n"
        f"said += [end(s)[0], {RECAPTURE}]\n{change}\nsaid += [end(s)[0]]"
    )
    assert say(node, code) == [0, True, 0, 0, 901]


CHILD_CAPTURED = (
    "from cuda_calls import free\nfrom memory_calls import add_allocation, graph as empty, held_mib\n"
    "def leaving(mib):\n    of = empty(); _, address = add_allocation(of, mib)\n"
    "    return executable(of), address\n"
    "def into(e): return [cuda.cuGraphLaunch(e, s), end(s)[0]]\n"
    "s, (e, a), (other, _) = stream(), leaving(60), leaving(60)\n"
    "assert begin(s) == 0 == cuda.cuGraphLaunch(e, s)\n_, graph = end(s)\n"
)


def test_a_graph_that_is_launched_into_a_capture_is_part_of_it_with_its_memory(node: Node) -> None:
    code = (
        f"{CHILD_CAPTURED}held, run = held_mib(), executable(graph)\n"
        "said = [held, cuda.cuGraphLaunch(run, None), held_mib(), cuda.cuGraphLaunch(e, None)]\n"
        "said += [free(a), cuda.cuGraphLaunch(e, None), held_mib()]"
    )
    assert say(node, code) == [0, 0, 64, 1, 0, 0, 64]


@pytest.mark.parametrize(
    ("second", "answers"),
    [
        pytest.param("e", [0, 0], id="the same"),
        pytest.param("other", [918, 901], id="one with other memory"),
        pytest.param("executable(empty())", [918, 901], id="one without"),
    ],
)
def test_it_is_recaptured_as_it_was(node: Node, second: str, answers: list[int]) -> None:
    assert say(node, f"{CHILD_CAPTURED}said = [{RECAPTURE}, *into({second})]") == [0, *answers]


UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, EVENT, THREAD = range(
    900, 909
)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("cuda.cuStreamSynchronize(s)", UNSUPPORTED, id="synchronise the stream"),
        pytest.param("cuda.cuStreamQuery(s)", UNSUPPORTED, id="query the stream"),
        pytest.param("cuda.cuCtxSynchronize()", UNSUPPORTED, id="synchronise everything"),
        pytest.param("cuda.cuEventQuery(captured)", EVENT, id="query a captured event"),
        pytest.param("cuda.cuEventSynchronize(captured)", EVENT, id="wait for a captured event"),
        pytest.param("cuda.cuEventQuery(other)", UNSUPPORTED, id="query another event"),
        pytest.param("alloc(1)[0]", UNSUPPORTED, id="allocate"),
        pytest.param(
            "cuda.cuModuleLoadData(ctypes.byref(Handle()), b'')", UNSUPPORTED, id="load code"
        ),
        pytest.param("cuda.cuStreamSynchronize(t)", UNSUPPORTED, id="synchronise another stream"),
        pytest.param(
            "cuda.cuStreamWaitEvent(s, other, 0)", ISOLATION, id="wait for an event outside"
        ),
        pytest.param(
            "[begin(t), cuda.cuStreamWaitEvent(t, captured, 0)][1]",
            MERGE,
            id="join another capture",
        ),
        pytest.param(
            "[cuda.cuStreamWaitEvent(t, captured, 0), end(t)[0]][1]", UNMATCHED, id="end elsewhere"
        ),
    ],
)
def test_what_a_capture_forbids_ends_it(node: Node, call: str, result: int) -> None:
    code = (
        "s, t, other = stream(), stream(), event()\ncuda.cuEventRecord(other, t)\nbegin(s)\n"
        f"launch(k1, s)\ncaptured = record(s)\nanswer = {call}\n"
        "found = status(s)\nlater = launch(k1, s)\nsaid = [answer, found[1], later, end(s)[0], status(s)[1]]"
    )
    assert say(node, code) == [result, 2, INVALIDATED, INVALIDATED, 0]


@pytest.mark.parametrize(
    ("mode", "thread_mode", "elsewhere", "disturbs"),
    [
        pytest.param("GLOBAL", "GLOBAL", False, True, id="global"),
        pytest.param("GLOBAL", "GLOBAL", True, True, id="global, from another thread"),
        pytest.param("GLOBAL", "THREAD_LOCAL", True, False, id="another thread minds its own"),
        pytest.param("THREAD_LOCAL", "GLOBAL", False, True, id="thread local"),
        pytest.param("THREAD_LOCAL", "GLOBAL", True, False, id="thread local, from another thread"),
        pytest.param("RELAXED", "GLOBAL", False, False, id="relaxed"),
        pytest.param("GLOBAL", "RELAXED", False, False, id="a thread that is relaxed"),
        pytest.param("GLOBAL", "RELAXED", True, False, id="another thread that is relaxed"),
    ],
)
@pytest.mark.parametrize("call", ["alloc(1)[0]", "cuda.cuEventQuery(other)"])
def test_who_disturbs_a_capture(
    node: Node, call: str, mode: str, thread_mode: str, elsewhere: bool, disturbs: bool
) -> None:
    code = (
        "import threading\ns, other, answers = stream(), record(), []\ncuda.cuCtxSynchronize()\n"
        "def disturb():\n"
        "    start()\n"
        f"    mode = ctypes.c_int({thread_mode})\n"
        "    cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))\n"
        f"    answers.append({call})\n"
        "    cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))\n"
        f"begin(s, {mode})\nlaunch(k1, s)\n"
        + (
            "t = threading.Thread(target=disturb)\nt.start()\nt.join()\n"
            if elsewhere
            else "disturb()\n"
        )
        + "said = [answers[0], end(s)[0]]"
    )
    assert say(node, code) == ([UNSUPPORTED, INVALIDATED] if disturbs else [0, 0])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param("[begin(None)]", [UNSUPPORTED], id="the NULL stream is not captured"),
        pytest.param("[begin(s), begin(s)]", [0, 401], id="twice"),
        pytest.param("[end(s)[0]]", [401], id="end without beginning"),
        pytest.param("[begin(s, 3)]", [1], id="no such mode"),
        pytest.param("[begin(s), status(s), status(t)]", [0, [0, 1], [0, 0]], id="status"),
        pytest.param(
            "[begin(b), status(None), end(b)[0]]", [0, [IMPLICIT, -1], 0], id="status of NULL"
        ),
        pytest.param(
            "[begin(b), launch(k1), end(b)[0]]", [0, IMPLICIT, INVALIDATED], id="use of NULL"
        ),
        pytest.param(
            "[begin(s), launch(k1), end(s)[0]]", [0, 0, 0], id="NULL beside a non-blocking one"
        ),
        pytest.param(
            "[begin(s), cuda.cuStreamWaitEvent(t, record(s), 0), launch(k1, t), end(s)[0], status(t)[1]]",
            [0, 0, 0, UNJOINED, 0],
            id="a fork that is not joined",
        ),
        pytest.param(
            "[begin(s), launch(k1, t), cuda.cuEventRecord(event(), t), end(s)[0]]",
            [0, 0, 0, 0],
            id="work elsewhere goes on",
        ),
        pytest.param(
            "[begin(s), launch(k1, s), len(event_ids(s)), end(s)[0]]", [0, 0, 1, 0], id="info"
        ),
    ],
)
def test_the_rules_of_capture(node: Node, code: str, said: Sequence[object]) -> None:
    before = (
        "s, t, b = stream(), stream(), stream(0)\n"
        "def event_ids(s):\n"
        "    found, ident, graph, nodes, count = ctypes.c_int(), ctypes.c_uint64(), Handle(), Handle(), ctypes.c_size_t()\n"
        "    assert cuda.cuStreamGetCaptureInfo_v2(s, *map(ctypes.byref, (found, ident, graph, nodes, count))) == 0\n"
        "    assert found.value == 1 and ident.value and graph.value and nodes.value\n"
        "    return [0] * count.value\n"
    )
    assert say(node, before + f"said = {code}") == said


def test_a_capture_ends_in_its_own_thread(node: Node) -> None:
    code = (
        "import threading\ns, results = stream(), []\nbegin(s)\n"
        "def other():\n    start()\n    results.append(end(s)[0])\n"
        "t = threading.Thread(target=other)\nt.start()\nt.join()\nsaid = [*results, end(s)[0]]"
    )
    assert say(node, code) == [THREAD, 0]


# --- several processes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What a sim-gpu-tenant said at its end."""

    pid: int
    result: int
    launches: int
    launches_of_threads: list[int]
    wall_ns: int
    gpu_ns: int
    windows_ns: list[int]

    @property
    def share(self) -> float:
        """Of the time of all windows but the first and the last."""
        return sum(self.windows_ns[1:9]) / 800e6


def tenants(sim: SimDriver, *workloads: str) -> list[Report]:
    """Run these workloads at once under the virtual clock; killed ones are left out."""
    program = sim.libraries / "sim-gpu-tenant"
    started = [
        subprocess.Popen(
            [program, "--virtual", str(len(workloads)), str(rank), "--window-ms", "100", *workload.split()],
            env={**os.environ, **sim.environment()}, stdout=subprocess.PIPE, text=True,
        )
        for rank, workload in enumerate(workloads)
    ]  # fmt: skip
    outs = [process.communicate(timeout=250)[0] for process in started]
    return [Report(**json.loads(out)) for out in outs if out]


@pytest.mark.parametrize(
    ("workloads", "shares"),
    [
        pytest.param(["ms=1000,kernel=k50us"], [1.0], id="alone"),
        pytest.param(["ms=1000,kernel=k50us"] * 2, [0.5] * 2, id="two"),
        pytest.param(["ms=1000,kernel=k50us"] * 8, [0.125] * 8, id="eight"),
        pytest.param(["ms=1000,kernel=k50us", "ms=1000,kernel=k3"], [0.5] * 2, id="short and long"),
        pytest.param(
            ["ms=1000,kernel=k50us,streams=4", "ms=1000,kernel=k50us"],
            [0.5] * 2,
            id="streams do not count",
        ),
        pytest.param(
            ["--threads 3 ms=1000,kernel=k50us", "ms=1000,kernel=k50us"],
            [0.5] * 2,
            id="nor do threads",
        ),
        pytest.param(
            ["--threads 2 ms=1000,kernel=k50us,contexts=2", "ms=1000,kernel=k50us"],
            [2 / 3, 1 / 3],
            id="but contexts do",
        ),
        pytest.param(
            ["ms=1000,kernel=k50us", "ms=1000,kernel=k50us,by=graph"], [0.5] * 2, id="graphs"
        ),
        pytest.param(["ms=1000,kernel=k1,burst=1,idle_us=3000"], [0.25], id="with pauses"),
        pytest.param(
            ["ms=1000,kernel=none", "ms=1000,kernel=k50us"], [0.0, 1.0], id="who does nothing"
        ),
        pytest.param(
            ["ms=1000,kernel=k50us,sync=1", "ms=1000,kernel=k50us,sync=1"],
            [0.5] * 2,
            id="one by one",
        ),
    ],
)
def test_processes_take_turns(sim: SimDriver, workloads: list[str], shares: list[float]) -> None:
    reports = tenants(sim, *workloads)
    assert [report.result for report in reports] == [0] * len(workloads)
    assert [report.share for report in reports] == pytest.approx(shares, abs=0.01)


def test_the_shares_of_a_busy_gpu_sum_up_to_all_of_its_time(sim: SimDriver) -> None:
    sim.kernel("any", 2, 20_000)
    reports = tenants(sim, *["ms=1000,kernel=any,streams=2"] * 3)
    for window in zip(*(report.windows_ns[1:9] for report in reports), strict=True):
        assert sum(window) == 100_000_000


def test_a_process_that_waits_each_time_loses_its_turn_each_time(sim: SimDriver) -> None:
    eager, patient = tenants(sim, "ms=1000,kernel=k50us", "ms=1000,kernel=k50us,sync=1")
    # one kernel of 50 us to each slice of 2 ms
    assert patient.share == pytest.approx(50 / 2050, abs=0.002)
    assert eager.share > 0.97


def test_a_slice_is_as_long_as_the_configuration_says(sim: SimDriver) -> None:
    sim.execution(slice_us=500)
    _, patient = tenants(sim, "ms=1000,kernel=k50us", "ms=1000,kernel=k50us,sync=1")
    assert patient.share == pytest.approx(50 / 550, abs=0.005)


def test_an_event_happens_only_while_its_process_has_the_gpu(sim: SimDriver) -> None:
    """A kernel of 1 ms between two events takes 1 ms alone; beside others, their slices as well."""
    alone, *_ = tenants(sim, "ms=100,kernel=k3,sync=1")
    beside, *_ = tenants(sim, "ms=100,kernel=k3,sync=1", "ms=100,kernel=k50us")
    assert alone.launches == 33 + 1
    assert beside.launches < alone.launches * 0.65


def test_a_killed_process_leaves_the_gpu_to_the_others(sim: SimDriver) -> None:
    (left,) = tenants(sim, "ms=1000,kernel=k50us", "ms=200,kernel=k50us,kill=1")
    assert left.gpu_ns == pytest.approx(900e6, abs=5e6)
    times = sim.gpu_time_ns(A)
    assert times.pop(left.pid) >= left.gpu_ns
    assert list(times.values()) == pytest.approx([100e6], abs=5e6)


def test_the_same_workloads_do_the_same_again(sim: SimDriver, tmp_path: Path) -> None:
    workloads = [
        "--threads 2 --window-ms 50 ms=300,kernel=any+k1,streams=2,sync=5",
        "--window-ms 50 ms=300,kernel=any,by=graph,nodes=7,sync=1",
        "--window-ms 50 ms=100,kernel=k50us,burst=50,idle_us=777 ms=200,kernel=k2",
    ]
    runs = []
    for run in range(3):
        directory = tmp_path / str(run)
        directory.mkdir()
        fresh = SimDriver(directory, libraries=sim.libraries)
        fresh.add_gpu()
        fresh.execution(clock="virtual")
        fresh.kernel("any", 2, 20_000)
        fresh.kernel("k1", 1000)
        fresh.kernel("k2", 2000)
        fresh.kernel("k50us", 50)
        runs.append(
            [(r.launches, r.wall_ns, r.gpu_ns, r.windows_ns) for r in tenants(fresh, *workloads)]
        )
    assert runs[0] == runs[1] == runs[2]


def started(sim: SimDriver, *words: str) -> "subprocess.Popen[str]":
    """A sim-gpu-tenant in real time."""
    return subprocess.Popen(
        [sim.libraries / "sim-gpu-tenant", *words],
        env={**os.environ, **sim.environment(), "VGPU_SIM_CLOCK": "real"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_processes_take_turns_in_real_time_too(sim: SimDriver) -> None:
    pair = [started(sim, "ms=300,kernel=k1"), started(sim, "ms=300,kernel=k1")]
    reports = [Report(**json.loads(process.communicate(timeout=250)[0])) for process in pair]
    # How evenly is told in virtual time; here, that neither has the GPU to itself nor waits for the other's end.
    assert [report.result for report in reports] == [0, 0]
    assert all(0 < report.gpu_ns < report.wall_ns for report in reports)


def test_killed_processes_leave_nothing_behind(sim: SimDriver) -> None:
    """At whatever moment: the lock of the state, the queue and the turn go on to the others."""
    for number in range(20):
        victim = started(sim, "--threads", "2", "ms=100000,kernel=k50us,streams=3,sync=1")
        eventually(lambda before=number: len(sim.gpu_time_ns(A)) > before)
        victim.kill()
        victim.communicate()
    survivor = started(sim, "ms=50,kernel=k50us")
    report = Report(**json.loads(survivor.communicate(timeout=250)[0]))
    assert report.result == 0
    assert report.gpu_ns > 40e6


PARTICIPANT = """
import sys
cuda.sim_clock_read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
assert cuda.sim_clock_join(2, {rank}) == 0
began = cuda.sim_clock_read()
for ms in {sleeps_ms}:
    cuda.sim_clock_sleep_until(began + ms * 1000000)
    if {asks}:
        say(ms=ms); sys.stdout.flush(); sys.stdin.readline()
cuda.sim_clock_leave(0)
"""


def test_who_was_too_slow_to_take_a_turn_gets_another(node: Node) -> None:
    """A process that the machine does not run for seconds, and whom the others have left meanwhile."""
    slow, other = (
        node.start(PARTICIPANT.format(rank=rank, sleeps_ms=sleeps, asks=rank), hook=False)
        for rank, sleeps in enumerate(([10], [5, 20]))
    )
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline()  # it has the turn, so the slow one waits for its own
        slow.send_signal(signal.SIGSTOP)
        other.communicate("\n\n", timeout=60)
        slow.send_signal(signal.SIGCONT)
        assert slow.communicate(timeout=60)[1] == ""
        assert (slow.returncode, other.returncode) == (0, 0)
    finally:
        for process in (slow, other):
            process.kill()
            process.communicate()


def test_who_computes_for_long_is_waited_for(node: Node) -> None:
    """On a busy machine a thread may not run for seconds: as much time must pass for it as on any other."""
    code = """
    import time
    until = time.monotonic() + 3
    while time.monotonic() < until:
        pass
    cuda.sim_clock_sleep_until(0)
    say(passed_ns=cuda.sim_clock_read() - began)
    """
    busy = PARTICIPANT.replace("for ms in", textwrap.dedent(code) + "for ms in")
    first = node.start(busy.format(rank=0, sleeps_ms=[], asks=0), hook=False)
    other = node.start(PARTICIPANT.format(rank=1, sleeps_ms=[5000], asks=0), hook=False)
    try:
        out, err = first.communicate(timeout=60)
        assert (err, other.communicate(timeout=60)[1]) == ("", "")
        assert json.loads(out)["passed_ns"] < 1_000_000
    finally:
        for process in (first, other):
            process.kill()
            process.communicate()


def test_virtual_time_does_not_take_as_long(sim: SimDriver) -> None:
    before = time.monotonic()
    (report,) = tenants(sim, "ms=1000000,kernel=k3")
    assert report.wall_ns >= 1_000_000_000_000  # over a quarter of an hour, in less than a minute
    assert time.monotonic() - before < report.wall_ns / 1e9
