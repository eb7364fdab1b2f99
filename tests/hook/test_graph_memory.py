"""Memory of graphs: charged at the launch that needs it, until the driver is told to give it back."""

import json

import pytest
from hooked_programs import LIMIT, Node
from region_files import RegionFile

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nstart()\nr = []\n"
NONE = [0, 0]


def run(node: Node, steps: str, **env: str) -> list[object]:
    """What each of the steps gives."""
    said = node.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: "100m", **env})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


def test_a_graph_is_charged_when_it_is_launched_and_until_it_is_trimmed(node: Node) -> None:
    steps = (
        "g = passing(60); e = instantiate(g)\n"
        "r += [both(), launch(e), both(), launch(e), both(), cuda.cuDeviceGraphMemTrim(0), both()]"
    )
    assert run(node, steps) == [NONE, 0, [64, 64], 0, [64, 64], 0, NONE]
    assert node.sim.peak_mib(GPU) <= 100


@pytest.mark.parametrize("then", ["cuda.cuCtxSynchronize()", "launch(e)"], ids=["wait", "launch"])
def test_a_driver_that_ceases_to_tell_what_graphs_keep_changes_no_charge(
    node: Node, then: str
) -> None:
    """As after a kernel has failed, when it refuses everything. It holds what it held."""
    steps = (
        "g = passing(60); e = instantiate(g); launch(e)\n"
        "with refused('cuDeviceGetGraphMemAttribute', 700):\n"
        f"    {then}; r += [ledger_mib() >= 64, held_mib(), alloc(50)[0]]\n"
        "cuda.cuCtxSynchronize(); r += [both(), cuda.cuDeviceGraphMemTrim(0), both()]"
    )
    assert run(node, steps) == [True, 64, 2, NONE, 0, NONE]
    assert node.sim.peak_mib(GPU) <= 100


def test_launches_that_fail_while_the_driver_does_not_tell_what_graphs_keep_are_given_back(
    node: Node,
) -> None:
    """However many; one that it takes is charged besides."""
    steps = (
        "a = instantiate(passing(10)); b = instantiate(passing(20)); launch(a)\n"
        "with refused('cuDeviceGetGraphMemAttribute', 700):\n"
        "    with refused('cuGraphLaunch', 700):\n"
        "        r += [launch(b) for _ in range(9)]; r += [ledger_mib()]\n"
        "    r += [launch(b), ledger_mib(), launch(b), ledger_mib()]\n"
        "cuda.cuCtxSynchronize(); r += [both()]"
    )
    assert run(node, steps) == [700] * 9 + [32, 0, 64, 0, 64, [32, 32]]


def test_a_driver_that_never_tells_what_graphs_keep_gives_their_launches_all_the_same(
    node: Node,
) -> None:
    steps = (
        "g = passing(60); e = instantiate(g)\n"
        "with refused('cuDeviceGetGraphMemAttribute', 1):\n"
        "    r += [launch(e), launch(e), ledger_mib()]"
    )
    assert run(node, steps) == [0, 0, 0]


ADDED = (
    "p = NodeParams(type=ALLOCATION, allocation=allocation(120)); g = graph(); add_params(g, p{})"
)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("g = passing(120)", id="cuGraphAddMemAllocNode"),
        pytest.param(ADDED.format(""), id="cuGraphAddNode"),
        pytest.param(ADDED.format(", '_v2'"), id="cuGraphAddNode_v2"),
        pytest.param(ADDED.format(", '_v3'"), id="cuGraphAddNode_v3"),
        pytest.param(
            "p = allocation(120); p.pool.location = Location(6, 0x500); g = graph()\n"
            "add_params(g, NodeParams(type=ALLOCATION, allocation=p))",
            id="in a domain of the device, whose number is a byte of the place's",
        ),
        pytest.param("g = capture(new_stream(), 120)", id="captured"),
        pytest.param(
            "g = graph()\nfor _ in range(6): add_allocation(g, 20)", id="many nodes together"
        ),
    ],
)
def test_a_graph_that_would_exceed_the_limit_is_not_launched(node: Node, make: str) -> None:
    steps = f"{make}\ne = instantiate(g); r += [launch(e), both(), alloc(99)[0]]"
    assert run(node, steps) == [2, NONE, 0]
    assert node.sim.peak_mib(GPU) <= 100


@pytest.mark.parametrize(
    "instantiate",
    [
        "cuda.cuGraphInstantiate(ctypes.byref(e), g, None, None, ctypes.c_size_t(0))",
        "cuda.cuGraphInstantiate_v2(ctypes.byref(e), g, None, None, ctypes.c_size_t(0))",
        "cuda.cuGraphInstantiateWithFlags(ctypes.byref(e), g, u64(0))",
        "cuda.cuGraphInstantiateWithParams(ctypes.byref(e), g, ctypes.create_string_buffer(64))",
        "cuda.cuGraphInstantiateWithParams_ptsz(ctypes.byref(e), g, ctypes.create_string_buffer(64))",
    ],
    ids=lambda call: call.split("(")[0].removeprefix("cuda."),
)
def test_every_way_to_make_an_executable_graph_is_followed(node: Node, instantiate: str) -> None:
    steps = f"g = passing(120); e = ctypes.c_void_p(); r += [{instantiate}, launch(e), both()]"
    assert run(node, steps) == [0, 2, NONE]


def test_graphs_of_a_device_share_their_memory(node: Node) -> None:
    steps = (
        "a = instantiate(passing(60)); b = instantiate(passing(50))\n"
        "r += [launch(a), launch(b), launch(a), both(), alloc(60)[0], both()]"
    )
    assert run(node, steps) == [
        0,
        0,
        0,
        [64, 64],
        0,
        [60, 60],
    ]  # what idle graphs hold is taken back


def test_nodes_that_use_the_same_memory_need_it_once(node: Node) -> None:
    steps = (
        "g = graph(); last = None\n"
        "for _ in range(3):\n"
        "    n, a = add_allocation(g, 30, last); last = add_free(g, a, n)\n"
        "e = instantiate(g); r += [launch(e), both()]\n"
        "alloc(30); r += [launch(e), both()]"
    )
    assert run(node, steps, **{LIMIT: "200m"}) == [0, [32, 32], 0, [62, 62]]


def test_what_a_graph_leaves_allocated_is_charged_until_it_is_freed(node: Node) -> None:
    steps = (
        "g = graph(); _, a = add_allocation(g, 60); e = instantiate(g)\n"
        "r += [launch(e), both(), alloc(60)[0], free(a), alloc(60)[0], both()]"
    )
    assert run(node, steps) == [0, [64, 64], 2, 0, 0, [60, 60]]


def test_a_graph_gets_what_a_pool_keeps_unused(node: Node) -> None:
    """And nobody reads that it was refused first."""
    steps = (
        "p = default_pool(); keep(p, 100); error, a = draw(60); put(a)\n"
        "r += [pool_mib(p), launch(instantiate(passing(60))), both()]"
    )
    assert run(node, steps) == [64, 0, [64, 64]]
    assert RegionFile(node.cache).counter("refusals") == 0


def test_a_graph_that_does_not_fit_on_one_device_takes_nothing_of_another(node: Node) -> None:
    node.sim.add_gpu()
    steps = (
        "g = graph()\n"
        "for mib, device in ((30, 0), (120, 1)):\n"
        "    add_params(g, NodeParams(type=ALLOCATION, allocation=allocation(mib, device)))\n"
        "r += [launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [2, NONE]
    (record,) = RegionFile(node.cache).refusals()
    assert (record.asked >> 20, record.function) == (120, "cuGraphLaunch")


def test_a_launch_that_the_driver_refuses_is_not_charged(node: Node) -> None:
    node.sim.fail("cuGraphLaunch", 999)
    assert run(node, "e = instantiate(passing(60)); r += [launch(e), both()]") == [999, NONE]


def test_a_launch_that_the_driver_refuses_says_nothing_of_what_the_graph_needs(node: Node) -> None:
    """A small graph has run: what is reserved then is of that one."""
    steps = (
        "a = instantiate(passing(20)); e = instantiate(passing(60)); r.append(launch(a))\n"
        "say(done=1); input(); r += [launch(e), both()]\n"
        "say(done=2); input(); r += [alloc(60)[0], launch(e), both()]\nsay(r=r)"
    )
    tenant = node.start(BEGIN + steps, env={LIMIT: "100m"})
    assert tenant.stdin is not None
    assert tenant.stdout is not None
    tenant.stdout.readline()
    node.sim.fail("cuGraphLaunch", 2)
    tenant.stdin.write("\n")
    tenant.stdin.flush()
    tenant.stdout.readline()
    node.sim.heal()
    told, errors = tenant.communicate("\n", timeout=60)

    assert json.loads(told) == {"r": [0, 2, [32, 32], 0, 2, [60, 60]]}, errors
    assert node.sim.peak_mib(GPU) <= 100


def test_a_launch_over_the_limit_does_not_ask_the_driver(node: Node) -> None:
    node.sim.fail("cuGraphLaunch", 999)
    assert run(node, "e = instantiate(passing(160)); r += [launch(e)]") == [2]


def test_capture_is_not_disturbed_and_not_charged(node: Node) -> None:
    steps = (
        "s = new_stream(); g = capture(s, 60); r += [both()]\n"
        "e = instantiate(g); r += [launch(e, s), both(), draw(30)[0], both()]"
    )
    assert run(node, steps) == [NONE, 0, [64, 64], 0, [96, 96]]


def test_memory_of_a_capture_is_not_refused_before_it_is_launched(node: Node) -> None:
    assert run(node, "g = capture(new_stream(), 500); r += [both()]") == [NONE]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_graph_that_is_launched_into_a_capture_is_charged_with_what_that_becomes(
    node: Node, suffix: str
) -> None:
    """It does not run yet: it takes nothing, may be of any size, and shows nothing of what it needs."""
    steps = f"""
def into(e):
    assert cuda.cuStreamBeginCapture_v2(s, 2) == 0
    return [cuda.cuGraphLaunch{suffix}(e, s), cuda.cuStreamEndCapture(s, ctypes.byref(g))]
small, e, large = [instantiate(passing(mib)) for mib in (20, 90, 190)]
s, g = new_stream(), ctypes.c_void_p()
r += [launch(small), into(e), both(), alloc(60)[0], launch(e), both(), into(large), both()]
r += [launch(instantiate(g)), both()]
"""
    answers = run(node, steps)
    assert answers[:-2] == [0, [0, 0], [32, 32], 0, 2, [60, 60], [0, 0], [60, 60]]
    assert answers[-2:] == [2, [60, 60]]
    assert node.sim.peak_mib(GPU) <= 100


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param("draw(160, stream=s, suffix={!r})[0]", id="cuMemAllocAsync"),
        pytest.param("draw(160, pool(), s, {!r})[0]", id="cuMemAllocFromPoolAsync"),
        pytest.param("getattr(cuda, 'cuGraphLaunch' + {!r})(e, s)", id="cuGraphLaunch"),
    ],
)
def test_what_does_not_fit_into_an_invalidated_capture_is_the_drivers_to_refuse(
    node: Node, ask: str, suffix: str
) -> None:
    """Nothing is taken there: the answer is that it was invalidated, and nobody reads of a refusal."""
    steps = f"""
e, s, g = instantiate(passing(160)), new_stream(), ctypes.c_void_p()
assert cuda.cuStreamBeginCapture_v2(s, 2) == 0
r += [cuda.cuStreamSynchronize(s), {ask.format(suffix)}, both()]
r += [cuda.cuStreamEndCapture(s, ctypes.byref(g)), {ask.format(suffix)}, both()]
"""
    assert run(node, steps) == [900, 901, NONE, 901, 2, NONE]
    assert RegionFile(node.cache).counter("refusals") == 1


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_capture_that_another_thread_did_not_end_keeps_what_it_allocates(
    node: Node, suffix: str
) -> None:
    """It goes on, and the graph that it becomes is charged."""
    steps = f"""
from concurrent.futures import ThreadPoolExecutor
def end():
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda.cuStreamEndCapture{suffix}(s, ctypes.byref(g))
s, g, a, context = new_stream(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
assert cuda.cuStreamBeginCapture_v2(s, 0) == 0
assert cuda.cuMemAllocAsync(ctypes.byref(a), ctypes.c_size_t(160 << 20), s) == 0
with ThreadPoolExecutor(1) as pool:
    r += [pool.submit(end).result()]
r += [end(), launch(instantiate(g), s), both()]
"""
    assert run(node, steps) == [908, 0, 2, NONE]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("made", ["before", "in it"])
@pytest.mark.parametrize(
    ("spoil", "place", "result"),
    [
        pytest.param("fork()", "out", 904, id="unjoined"),
        pytest.param("cuda.cuStreamSynchronize(s)", "out", 901, id="invalidated"),
        pytest.param("", "None", 0, id="no place for the graph"),
    ],
)
def test_a_graph_that_was_captured_into_is_charged_however_that_ended(
    node: Node, spoil: str, place: str, result: int, made: str, suffix: str
) -> None:
    """It is the program's before and afterwards, with all nodes that it has got."""
    steps = f"""
def fork():
    joins = ctypes.c_void_p()
    assert cuda.cuEventCreate(ctypes.byref(joins), 0) == 0 == cuda.cuEventRecord(joins, s)
    other = new_stream()
    assert cuda.cuStreamWaitEvent(other, joins, 0) == 0
    assert cuda.cuMemAllocAsync(ctypes.byref(a), ctypes.c_size_t(1 << 20), other) == 0
s, g, a, out = new_stream(), graph(), ctypes.c_uint64(), ctypes.byref(ctypes.c_void_p())
if {made!r} == "before":
    add_allocation(g, 160)
assert cuda.cuStreamBeginCaptureToGraph(s, g, None, None, ctypes.c_size_t(0), 0) == 0
if {made!r} == "in it":
    assert cuda.cuMemAllocAsync(ctypes.byref(a), ctypes.c_size_t(160 << 20), s) == 0
{spoil}
r += [cuda.cuStreamEndCapture{suffix}(s, {place}), launch(instantiate(g), s), both()]
"""
    assert run(node, steps) == [result, 2, NONE]


@pytest.mark.parametrize(
    ("call", "steps"),
    [
        pytest.param("cuGraphDestroy", "cuGraphDestroy(g); e = instantiate(g)", id="graph"),
        pytest.param("cuGraphExecDestroy", "cuGraphExecDestroy(e)", id="executable graph"),
    ],
)
def test_a_graph_that_the_driver_does_not_destroy_is_charged(
    node: Node, call: str, steps: str
) -> None:
    node.sim.fail(call, 900)
    begin = "g = passing(160); e = instantiate(g)\n"
    assert run(node, f"{begin}cuda.{steps}\nr += [launch(e), both()]") == [2, NONE]


def test_a_forgotten_graph_does_not_count_for_the_next_one(node: Node) -> None:
    steps = (
        "for _ in range(20):\n"
        "    g = passing(60); e = instantiate(g)\n"
        "    r += [launch(e)]; cuda.cuGraphExecDestroy(e); cuda.cuGraphDestroy(g)\n"
        "r += [both()]"
    )
    assert run(node, steps) == [0] * 20 + [[64, 64]]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("g = passing(60)", id="made"),
        pytest.param("g = capture(s, 60)", id="captured"),
        pytest.param(
            "g = ctypes.c_void_p(); assert cuda.cuGraphClone(ctypes.byref(g), empty) == 0\n"
            "    add_allocation(g, 60)",
            id="cloned",
        ),
    ],
)
def test_a_capture_that_failed_does_not_count_for_the_next_graph(node: Node, make: str) -> None:
    """The driver has destroyed what it had captured, and gives the handle out again."""
    steps = f"""
s, empty, lost = new_stream(), graph(), set()
info = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
for _ in range(20):
    assert cuda.cuStreamBeginCapture_v2(s, 2) == 0 == draw(60, stream=s)[0]
    assert cuda.cuStreamGetCaptureInfo_v2(s, *map(ctypes.byref, info), None, None) == 0
    cuda.cuStreamSynchronize(s)
    assert cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_void_p())) == 901
    lost.add(info[2].value)
for _ in range(20):
    {make}
    if g.value in lost:
        break
r += [g.value in lost, launch(instantiate(g))]
"""
    assert run(node, steps) == [True, 0]


def test_an_executable_graph_that_is_updated_needs_what_the_new_one_needs(node: Node) -> None:
    steps = (
        "e = instantiate(passing(30)); info = ctypes.create_string_buffer(64)\n"
        "r += [cuda.cuGraphExecUpdate_v2(e, passing(30), info), launch(e), both()]"
    )
    answers = run(node, steps)
    assert answers[1:] == [0, [32, 32]]


LEAVING = (
    "def leaving(mib):\n    g = graph(); _, a = add_allocation(g, mib); return instantiate(g), a\n"
)


def test_graphs_that_leave_their_memory_have_the_limit_together(node: Node) -> None:
    """A program that launches one after the other and frees nothing gets no more than anybody."""
    steps = (
        "held = [leaving(20) for _ in range(8)]\n"
        "r += [[launch(e) for e, _ in held], both(), alloc(50)[0]]\n"
        "r += [free(held[0][1]), launch(held[5][0])]"
    )
    answers = run(node, f"{LEAVING}{steps}")
    assert answers == [[0] * 4 + [2] * 4, [96, 96], 2, 0, 0]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_graph_that_ran_before_needs_its_memory_besides_what_others_left(node: Node) -> None:
    """Not only the first launch counts: what it used has meanwhile become another's."""
    steps = (
        "p, a = leaving(30); others = [leaving(30)[0] for _ in range(3)]\n"
        "r += [launch(p), free(a), [launch(e) for e in others], launch(p), both()]"
    )
    assert run(node, f"{LEAVING}{steps}") == [0, 0, [0] * 3, 2, [96, 96]]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_graph_waits_for_what_runs_and_does_not_refuse_for_it(node: Node) -> None:
    steps = (
        "e, f = instantiate(passing(60)), instantiate(passing(50))\n"
        "r += [cuda.cuGraphLaunch(e, None), cuda.cuGraphLaunch(f, None), launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, 0, [64, 64]]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_graph_may_not_count_on_what_the_program_has_freed(node: Node) -> None:
    """Two that leave their memory, one at a time until now: the second needs its own."""
    steps = (
        "(a, in_a), (b, in_b) = leaving(60), leaving(60)\n"
        "for e, address in ((a, in_a), (b, in_b)):\n    r += [launch(e), free(address)]\n"
        "r += [launch(a), launch(b), both(), free(in_a), launch(b)]"
    )
    assert run(node, f"{LEAVING}{steps}") == [0, 0, 0, 0, 0, 2, [64, 64], 0, 0]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_graph_may_not_count_on_what_was_given_back(node: Node) -> None:
    steps = (
        "(a, in_a), e = leaving(30), instantiate(passing(60)); trim = cuda.cuDeviceGraphMemTrim\n"
        "r += [launch(a), launch(e), launch(e), trim(0), alloc(30)[0], launch(e), both()]\n"
        "r += [free(in_a), launch(e), both()]"
    )
    assert run(node, f"{LEAVING}{steps}") == [0, 0, 0, 0, 0, 2, [62, 62], 0, 0, [94, 94]]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_graph_whose_memory_is_freed_after_each_launch_uses_it_again(node: Node) -> None:
    """Without waiting for the one before."""
    steps = (
        "e, address = leaving(60); stream = new_stream()\n"
        "for _ in range(3):\n    r += [cuda.cuGraphLaunch(e, stream), put(address, stream)]\n"
        "r.append(both())"
    )
    assert run(node, f"{LEAVING}{steps}") == [0] * 6 + [[64, 64]]
    assert node.sim.peak_mib(GPU) <= 100


FREE_BY_NODE = [
    pytest.param("add_free(f, {})", id="cuGraphAddMemFreeNode"),
    pytest.param("add_free_node(f, {})", id="cuGraphAddNode"),
    pytest.param("add_free_node(f, {}, '_v2')", id="cuGraphAddNode_v2"),
    pytest.param("add_free_node(f, {}, '_v3')", id="cuGraphAddNode_v3"),
    pytest.param("f = capture_free(new_stream(), {})", id="captured"),
]


@pytest.mark.parametrize("free", FREE_BY_NODE)
def test_a_graph_may_not_count_on_what_another_graph_has_freed(node: Node, free: str) -> None:
    """Each leaves its memory, which a node of yet another frees: then both at the same time."""
    steps = (
        "(a, in_a), (b, in_b) = leaving(60), leaving(60)\n"
        f"f = graph(); {free.format('in_a')}; free_a = instantiate(f)\n"
        f"f = graph(); {free.format('in_b')}; free_b = instantiate(f)\n"
        "r += [[launch(e) for e in (a, free_a, b, free_b)]]\n"
        "r += [launch(a), launch(b), both(), launch(free_a), launch(b), both()]"
    )
    assert run(node, f"{LEAVING}{steps}") == [[0] * 4, 0, 2, [64, 64], 0, 0, [64, 64]]
    assert node.sim.peak_mib(GPU) <= 100


def test_graphs_of_several_threads_have_the_limit_together(node: Node) -> None:
    """Each of them alone fits, and both were launched before."""
    steps = (
        "import threading\n"
        "(a, in_a), (b, in_b) = leaving(60), leaving(60); context = ctypes.c_void_p()\n"
        "cuda.cuCtxGetCurrent(ctypes.byref(context)); streams = new_stream(), new_stream()\n"
        "def one(e, stream, barrier, answers):\n"
        "    cuda.cuCtxSetCurrent(context); barrier.wait()\n"
        "    answers.append(cuda.cuGraphLaunch(e, stream))\n"
        "for _ in range(20):\n"
        "    answers, barrier = [], threading.Barrier(2)\n"
        "    threads = [threading.Thread(target=one, args=(e, s, barrier, answers))\n"
        "               for e, s in zip((a, b), streams)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
        "    r.append(sorted(answers)); free(in_a); free(in_b)\n"
        "r.append(both())"
    )
    assert run(node, f"{LEAVING}{steps}") == [[0, 2]] * 20 + [[64, 64]]
    assert node.sim.peak_mib(GPU) <= 100


UPLOADED = (
    "def uploaded(mib, symbol):\n"
    "    e, p = ctypes.c_void_p(), (ctypes.c_uint64 * 4)(2, 0, 0, 0)\n"
    "    result = getattr(cuda, symbol)(ctypes.byref(e), passing(mib), p)\n"
    "    return result, e, p[3], e.value is None, p[0]\n"
)


@pytest.mark.parametrize(
    "symbol", ["cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"]
)
def test_a_graph_that_is_uploaded_as_it_is_made_is_asked_for_then(node: Node, symbol: str) -> None:
    """What is refused is not there: no handle, and the result says so. Idle graphs give back theirs if that helps."""
    steps = (
        f"result, e, *rest = uploaded(60, '{symbol}'); r += [result, *rest, launch(e), both()]\n"
        f"result, e, *rest = uploaded(120, '{symbol}'); r += [result, *rest, both()]\n"
        f"result, e, *rest = uploaded(90, '{symbol}'); r += [result, *rest, both()]"
    )
    made, refused = [0, 0, False, 2], [2, 1, True, 2]
    assert run(node, f"{UPLOADED}{steps}") == [*made, 0, [64, 64], *refused, [64, 64], *made, NONE]


def test_a_graph_that_was_uploaded_has_taken_nothing_yet(node: Node) -> None:
    steps = (
        "(a, _), (b, _) = leaving(60), leaving(60)\n"
        "r += [cuda.cuGraphUpload(b, None), launch(a), launch(b), both()]"
    )
    assert run(node, f"{LEAVING}{steps}") == [0, 0, 2, [64, 64]]
    assert node.sim.peak_mib(GPU) <= 100


COMPUTING = """
from concurrent.futures import ThreadPoolExecutor
from gpu_calls import begin, end, kernel, stream
from gpu_calls import launch as compute
from memory_calls import *

start()
work, context = kernel("work"), ctypes.c_void_p()
cuda.cuCtxGetCurrent(ctypes.byref(context))


def launches(_):
    assert cuda.cuCtxSetCurrent(context) == 0 == begin(where := stream())
    error, address = draw(60, stream=where)
    assert error == 0 == compute(work, where) == put(address, where)
    executable, answers = instantiate(end(where)[1]), []
    for _ in range(2):
        answers.append(cuda.cuGraphLaunch{suffix}(executable, where))
        cuda.cuStreamSynchronize(where)
    return answers


with ThreadPoolExecutor(2) as threads:
    say(answers=list(threads.map(launches, range(2))))
"""


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_graph_that_waits_for_its_share_keeps_no_memory_from_others(
    node: Node, suffix: str
) -> None:
    """They run one after the other, and each finds room."""
    node.sim.kernel("work", 100_000)
    limits = {LIMIT: "100m", "CUDA_DEVICE_SM_LIMIT": "20"}
    said = node.run_in_virtual_time(COMPUTING.replace("{suffix}", suffix), **limits)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["answers"] == [[0] * 2] * 2


WAITING = """
import _thread

from gpu_calls import begin, charged_us, end, kernel, stream
from gpu_calls import launch as compute
from memory_calls import *

start()
work, where, context, other = kernel("work"), stream(), ctypes.c_void_p(), graph()
cuda.cuCtxGetCurrent(ctypes.byref(context))
_, held = add_allocation(other, 60)
assert begin(where) == 0
error, address = draw(60, stream=where)
assert error == 0 == compute(work, where) == put(address, where)
waiting, holding, answers = instantiate(end(where)[1]), instantiate(other), []
before, begins = charged_us(), time.monotonic() + 1


def until(s):
    time.sleep(begins + s - time.monotonic())


def let_go():
    assert cuda.cuCtxSetCurrent(context) == 0
    for n in range(40):
        until(n / 10 + 0.005)
        answers.append(free(held))


_thread.start_new_thread(let_go, ())  # nobody waits for its start, of which the clock would not know
for n in range(40):
    answers.append(launch(holding))
    until(n / 10)
    answers.append(cuda.cuGraphLaunch{suffix}(waiting, where))
    until(n / 10 + 0.05)
say(answers=answers, charged=charged_us() - before)
"""


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(
    ("failing", "env"),
    [
        pytest.param("", {}, id="by events"),
        pytest.param("", {"CUDA_LAUNCH_BLOCKING": "1"}, id="launches are waited for"),
        pytest.param("cuEventCreate", {}, id="no events can be made"),
        pytest.param("cuEventRecord", {}, id="no events can be recorded"),
    ],
)
def test_a_graph_is_not_charged_for_the_time_that_it_waits_for_its_memory(
    node: Node, failing: str, env: dict[str, str], suffix: str
) -> None:
    """5 ms of each call are waiting. Where launches are waited for, or events fail, calls are measured."""
    node.sim.kernel("work", 10)
    if failing:
        node.sim.fail(failing, 999)
    limits = {LIMIT: "100m", "CUDA_DEVICE_SM_LIMIT": "50", **env}
    said = node.run_in_virtual_time(WAITING.replace("{suffix}", suffix), **limits)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["answers"] == [0] * 120
    assert said["charged"] < 2_000  # 0.4 ms ran, 200 ms were waited


@pytest.mark.parametrize("captured", [False, True], ids=["nodes", "capture"])
def test_nodes_take_whole_granules(node: Node, captured: bool) -> None:
    """Each is rounded up to 512 bytes, and two of them to a step more than their sum: 64 of 40 MiB were had."""
    nodes = (
        "g = graph()\n"
        "a, first = add_allocation(g, 32 - 100 / MIB)\n"
        "b, second = add_allocation(g, 100 / MIB, a)\n"
        "add_free(g, first, b); add_free(g, second, b)\n"
    )
    capture = (
        "s = new_stream()\n"
        "assert cuda.cuStreamBeginCapture_v2(s, 2) == 0\n"
        "drawn = [draw(mib, stream=s)[1] for mib in (32 - 100 / MIB, 100 / MIB)]\n"
        "assert [put(p, s) for p in drawn] == [0, 0]\n"
        "g = ctypes.c_void_p(); assert cuda.cuStreamEndCapture(s, ctypes.byref(g)) == 0\n"
    )
    code = (capture if captured else nodes) + "say(r=launch(instantiate(g)))"
    said = node.run(BEGIN + code, **{LIMIT: "40m"})
    assert said == {**said, "r": 2}, said
    assert node.sim.peak_mib(GPU) == 0
