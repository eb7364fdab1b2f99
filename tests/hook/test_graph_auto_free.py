"""Graphs that free at their launch what they have left: flag AUTO_FREE_ON_LAUNCH."""

import json

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
BEGIN = """
from memory_calls import *
start()
r = []


def leaving(*sizes_mib, make=lambda g: instantiate(g, AUTO_FREE)):
    made = graph()
    addresses = [add_allocation(made, mib)[1] for mib in sizes_mib]
    return made, make(made), *addresses


def with_params(g, flags=AUTO_FREE, suffix=""):
    made, params = ctypes.c_void_p(), (ctypes.c_uint64 * 4)(flags)
    call = getattr(cuda, "cuGraphInstantiateWithParams" + suffix)
    assert call(ctypes.byref(made), g, params) == 0
    return made


def freeing(address):
    made = graph()
    add_free(made, address)
    return instantiate(made)


"""
NONE = [0, 0]


def run(node: Node, steps: str, limit: str = "100m") -> list[object]:
    """What each of the steps gives; the GPU never had more than the limit."""
    said = node.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: limit})
    assert said["rc"] == 0, said["stderr"]
    assert node.sim.peak_mib(GPU) <= int(limit[:-1])
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("lambda g: instantiate(g, AUTO_FREE)", id="cuGraphInstantiateWithFlags"),
        pytest.param("with_params", id="cuGraphInstantiateWithParams"),
        pytest.param("lambda g: with_params(g, suffix='_ptsz')", id="its _ptsz"),
        pytest.param("lambda g: with_params(g, AUTO_FREE | 2)", id="and uploaded"),
    ],
)
@pytest.mark.parametrize(
    "give",
    [
        pytest.param("free(b)", id="cuMemFree"),
        pytest.param("put(b)", id="cuMemFreeAsync"),
        pytest.param("launch(freeing(b))", id="a node"),
    ],
)
def test_what_the_launch_itself_frees_makes_room_for_it(node: Node, make: str, give: str) -> None:
    """Whatever others have left and freed since: its own is there, nobody else has it."""
    steps = (
        f"(_, e, a), (_, f, b) = leaving(60, make={make}), leaving(20)\n"
        f"r += [launch(e), launch(f), both(), {give}, launch(e), launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, [96, 96], 0, 0, 0, [96, 96]]


def test_without_the_flag_it_is_the_driver_that_refuses(node: Node) -> None:
    """What was left is as it was, and no refusal of ours."""
    steps = (
        "(_, e, a), (_, f, b) = leaving(60, make=instantiate), leaving(20)\n"
        "r += [launch(e), launch(f), free(b), launch(e), both(), free(a), launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, 0, 1, [96, 96], 0, 0, [64, 64]]


def test_what_was_freed_by_hand_is_asked_for_again(node: Node) -> None:
    """It may be another's now. What is left of the graph's own it need not ask for."""
    steps = (
        "(_, e, a, b), (_, f, c), (_, other, _) = leaving(40, 40), leaving(60), leaving(70)\n"
        "r += [launch(e), launch(f), both(), free(a), launch(e), both()]\n"
        "r += [free(a), free(b), launch(other), launch(e), both()]"
    )
    begin, own = [0, 0, [160, 160], 0], [0, [160, 160]]
    assert run(node, steps, "200m") == [*begin, *own, 0, 0, 0, 2, [160, 160]]


def test_what_was_freed_by_hand_and_taken_does_not_count(node: Node) -> None:
    steps = (
        "(_, e, a), (_, f, b) = leaving(60), leaving(50)\n"
        "r += [launch(e), free(a), launch(f), launch(e), both(), free(b), launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, 0, 2, [64, 64], 0, 0, [64, 64]]


@pytest.mark.parametrize(
    ("call", "free"),
    [("cuMemFree_v2", "free(a)"), ("cuMemFreeAsync", "put(a)")],
)
def test_what_the_driver_did_not_free_is_there_still(node: Node, call: str, free: str) -> None:
    node.sim.fail(call, 900)
    steps = (
        "(_, e, a), (_, f, _) = leaving(60), leaving(20)\n"
        f"r += [launch(e), launch(f), {free}, launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, 900, 0, [96, 96]]


def test_an_upload_frees_nothing(node: Node) -> None:
    steps = (
        "(_, e, _), (_, f, b) = leaving(60), leaving(20)\n"
        "r += [launch(e), launch(f), free(b), cuda.cuGraphUpload(e, None), launch(f), launch(e)]\n"
        "r += [both()]"
    )
    assert run(node, steps) == [0, 0, 0, 0, 0, 0, [96, 96]]


@pytest.mark.parametrize("suffix", ["", "_v2"])
def test_an_update_changes_nothing_about_what_was_left(node: Node, suffix: str) -> None:
    """Updated from its own graph it frees that; from another one, that stays the program's."""
    steps = (
        "(g, e, a), (_, f, b), (other, _, _) = leaving(60), leaving(20), leaving(50)\n"
        "info = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)\n"
        f"def update(e, g): return cuda.cuGraphExecUpdate{suffix}(e, g, *info)\n"
        "r += [launch(e), launch(f), free(b), update(e, g), launch(e), both()]\n"
        "r += [update(e, other), launch(e), both(), free(a), launch(e), launch(e), both()]"
    )
    answers = run(node, steps)
    assert answers[:6] == [0, 0, 0, 0, 0, [96, 96]]
    assert answers[6:] == [0, 2, [64, 64], 0, 0, 0, [64, 64]]


def test_what_was_left_outlives_the_graph(node: Node) -> None:
    """A new executable one of the same graph frees it; otherwise the program has to."""
    steps = (
        "(g, e, a), (_, f, b), trim = leaving(60), leaving(20), cuda.cuDeviceGraphMemTrim\n"
        "r += [launch(e), launch(f), free(b), cuda.cuGraphExecDestroy(e)]\n"
        "e = instantiate(g, AUTO_FREE); r += [launch(e), both()]\n"
        "r += [cuda.cuGraphExecDestroy(e), cuda.cuGraphDestroy(g), trim(0), both()]\n"
        "r += [alloc(60)[0], free(a), alloc(60)[0], both()]"
    )
    answers = run(node, steps)
    assert answers[:6] == [0, 0, 0, 0, 0, [96, 96]]
    assert answers[6:] == [0, 0, 0, [64, 64], 2, 0, 0, [60, 60]]


def test_a_launch_that_the_driver_refuses_may_have_freed_it(node: Node) -> None:
    """Nobody knows: it is asked for again, besides what others may have got of it."""
    code = (
        "(_, e, a), (_, f, b) = leaving(60), leaving(30); r += [launch(e)]\n"
        "say(done=1); input(); r += [launch(e)]; say(done=2); input(); "
    )
    steps = "r += [launch(f), launch(e), both(), free(a), free(b), launch(e), both()]\nsay(r=r)"
    tenant = node.start(BEGIN + code + steps, env={LIMIT: "100m"})
    assert tenant.stdin is not None
    assert tenant.stdout is not None
    tenant.stdout.readline()
    node.sim.fail("cuGraphLaunch", 999)
    tenant.stdin.write("\n")
    tenant.stdin.flush()
    tenant.stdout.readline()
    node.sim.heal()
    told, errors = tenant.communicate("\n", timeout=60)
    assert json.loads(told) == {"r": [0, 999, 0, 2, [96, 96], 0, 0, 0, [64, 64]]}, errors
    assert node.sim.peak_mib(GPU) <= 100


REFUSALS = [
    pytest.param("cuGraphLaunch", 906, id="for the sake of a capture"),
    pytest.param("cuGraphLaunch", 999, id="having done nothing"),
    pytest.param("cuGraphLaunch.memory", 999, id="having freed what was left"),
]


@pytest.mark.parametrize(("call", "code"), REFUSALS)
def test_after_a_launch_that_the_driver_refuses_there_is_room_for_the_next(
    node: Node, call: str, code: int
) -> None:
    """What the graph left is there or free, but no other's."""
    steps = f"""
_, e, a = leaving(60)
r += [launch(e), launch(e)]
with refused("{call}", {code}):
    r += [launch(e), launch(e)]
r += [launch(e), launch(e), both()]
"""
    assert run(node, steps) == [0, 0, code, code, 0, 0, [64, 64]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("launch(f)", "", id="another graph before"),
        pytest.param("", "launch(f)", id="another graph"),
        pytest.param("", "free(a), alloc(60)", id="another use, after a trim"),
    ],
)
def test_unless_others_may_have_got_that(node: Node, before: str, after: str) -> None:
    """Nobody knows whether there was something to get: it is asked for again."""
    steps = f"""
(_, e, a), (_, f, _) = leaving(60), leaving(30)
r.append(launch(e))
{before}
with refused("cuGraphLaunch"):
    r.append(launch(e))
{after}
r += [launch(e), launch(e)]
"""
    assert run(node, steps) == [0, 999, 2, 2]


def test_others_get_what_a_refused_launch_has_freed(node: Node) -> None:
    steps = """
(_, e, a), (_, f, _) = leaving(60), leaving(30)
r.append(launch(e))
with refused("cuGraphLaunch.memory"):
    r.append(launch(e))
r += [launch(f), launch(e), both(), launch(e), both()]
"""
    assert run(node, steps) == [0, 999, 0, 0, [96, 96], 0, [96, 96]]
