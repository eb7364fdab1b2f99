"""Graphs that are captured anew in their place (CUDA 13.3): their nodes are the same as before."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
BEGIN = """
from memory_calls import *
start()
r, s = [], new_stream()
RELAXED, NONE = 2, ctypes.c_size_t(0)


def into(g, anew, *, mib, kept=False, suffix=""):
    if anew:
        begun = getattr(cuda, "cuStreamBeginRecaptureToGraph" + suffix)(s, RELAXED, g, None, None)
    else:
        begun = getattr(cuda, "cuStreamBeginCaptureToGraph" + suffix)(s, g, None, None, NONE, RELAXED)
    assert begun == 0
    result, address = draw(mib, stream=s)
    if result == 0 and not kept:
        put(address, s)
    return [result, cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_void_p()))], address


"""
LAUNCHED = """
def launched_into(g, anew, e, suffix=""):
    if anew:
        begun = cuda.cuStreamBeginRecaptureToGraph(s, RELAXED, g, None, None)
    else:
        begun = cuda.cuStreamBeginCaptureToGraph(s, g, None, None, NONE, RELAXED)
    assert begun == 0
    result = getattr(cuda, "cuGraphLaunch" + suffix)(e, s)
    return [result, cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_void_p()))]


def leaving(mib):
    g = graph(); _, address = add_allocation(g, mib)
    return g, instantiate(g, AUTO_FREE), address


"""
NONE = [0, 0]
FAILED = [918, 901]


def run(node: Node, steps: str) -> list[object]:
    """What each of the steps gives; the GPU never had more than the limit."""
    said = node.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: "100m"})
    assert said["rc"] == 0, said["stderr"]
    assert node.sim.peak_mib(GPU) <= 100
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_what_is_captured_anew_counts_once(node: Node, suffix: str) -> None:
    steps = (
        "g = graph(); r.append(into(g, False, mib=60)[0])\n"
        f"for _ in range(3): r.append(into(g, True, mib=60, suffix='{suffix}')[0])\n"
        "r += [launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [[0, 0]] * 4 + [0, [64, 64]]


def test_nodes_that_were_not_captured_are_those_that_are_captured_anew(node: Node) -> None:
    steps = "g = passing(60); r += [into(g, True, mib=60)[0], launch(instantiate(g)), both()]"
    assert run(node, steps) == [[0, 0], 0, [64, 64]]


def test_what_is_left_is_where_it_was(node: Node) -> None:
    """It is freed at the next launch, or by hand, as if nothing had been captured anew."""
    steps = (
        "g, h = graph(), graph(); _, b = add_allocation(h, 30); f = instantiate(h)\n"
        "_, a = into(g, False, mib=60, kept=True); e = instantiate(g, AUTO_FREE)\n"
        "r += [launch(e), launch(f), free(b)]\n"
        "r += [into(g, True, mib=60, kept=True) == ([0, 0], a)]\n"
        "info = ctypes.create_string_buffer(64); r += [cuda.cuGraphExecUpdate_v2(e, g, info)]\n"
        "r += [launch(e), both(), free(a), alloc(90)[0], launch(e), both()]"
    )
    assert run(node, steps) == [0, 0, 0, True, 0, 0, [96, 96], 0, 0, 2, [90, 90]]


@pytest.mark.parametrize("mib", [20, 170])
def test_one_that_could_not_be_captured_anew_has_what_it_had(node: Node, mib: int) -> None:
    steps = (
        "g = graph(); r.append(into(g, False, mib=160)[0])\n"
        f"r += [into(g, True, mib={mib})[0], launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [[0, 0], FAILED, 2, NONE]


@pytest.mark.parametrize("anew", ["60", "50"])
@pytest.mark.parametrize(
    "add", ["into(g, False, mib=60)[0]", "add_allocation(g, 60)[1] > 0"], ids=["captured", "added"]
)
def test_what_is_added_to_it_later_counts_besides(node: Node, add: str, anew: str) -> None:
    """Also where it could not be captured anew."""
    steps = (
        f"g = graph(); into(g, False, mib=60); into(g, True, mib={anew}); {add}\n"
        "r += [launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [2, NONE]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_graph_that_is_launched_into_it_anew_counts_once(node: Node, suffix: str) -> None:
    steps = (
        f"{LAUNCHED}g, e = graph(), instantiate(passing(60))\n"
        f"for anew in (0, 1, 1): r.append(launched_into(g, anew, e, suffix='{suffix}'))\n"
        "r += [launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [[0, 0]] * 3 + [0, [64, 64]]


def test_what_such_a_graph_leaves_is_where_it_was(node: Node) -> None:
    """Freed at the next launch, or by hand."""
    steps = (
        f"{LAUNCHED}g, (_, e, a), (_, f, b) = graph(), leaving(60), leaving(30)\n"
        "for anew in (0, 1, 1): r.append(launched_into(g, anew, e))\n"
        "e = instantiate(g, AUTO_FREE)\n"
        "r += [launch(e), launch(f), launch(e), both(), free(a), launch(e), both()]\n"
        "r += [free(a), free(b), alloc(90)[0], launch(e), both()]"
    )
    answers = run(node, steps)
    assert answers[:7] == [[0, 0]] * 3 + [0, 0, 0, [96, 96]]
    assert answers[7:] == [0, 0, [96, 96], 0, 0, 0, 2, [90, 90]]


def test_what_it_had_before_it_was_known_to_need_less_counts_once(node: Node) -> None:
    """Of a graph whose nodes share, the sum is what a new executable one needs until it has run."""
    steps = (
        f"{LAUNCHED}g, h = graph(), graph()\n"
        "for _ in range(2):\n    n, a = add_allocation(h, 45); add_free(h, a, n)\n"
        "e = instantiate(h); r += [launch(e), both(), launched_into(g, False, e)]\n"
        "r += [launched_into(g, True, instantiate(h)), alloc(1)[0], launch(instantiate(g)), both()]"
    )
    assert run(node, steps) == [0, [64, 64], [0, 0], [0, 0], 0, 0, [65, 65]]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphUpload"])
def test_what_the_driver_does_not_take_in_does_not_count(
    node: Node, call: str, suffix: str
) -> None:
    steps = f"""{LAUNCHED}
g, e = graph(), instantiate(passing(160))
with refused("{call}{suffix}", 801):
    assert cuda.cuStreamBeginCaptureToGraph(s, g, None, None, NONE, RELAXED) == 0
    r.append(cuda.{call}{suffix}(e, s))
r += [cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_void_p())), add_allocation(g, 60)[1] > 0]
r += [launch(instantiate(g)), both()]
"""
    assert run(node, steps) == [801, 0, True, 0, [64, 64]]
