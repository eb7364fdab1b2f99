"""What is allocated or loaded while a green context is current is its device's primary context's.

NVIDIA's reference: a CUcontext that stands for a green context "does not create a new independent context".
Whether it is the green context's pointer or another is not said: each row is run with both.
"""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = (
    "from memory_calls import *\nr = []\n"
    "def primary_retained():\n"
    "    made = ctypes.c_void_p(); cuda.cuInit(0)\n"
    "    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), 0) == 0\n"
    "    return made\n"
    "def current(context): assert cuda.cuCtxSetCurrent(context) == 0\n"
    "def green():\n"
    "    made, own = ctypes.c_void_p(), ctypes.c_void_p()\n"
    "    assert cuda.cuGreenCtxCreate(ctypes.byref(made), ctypes.c_void_p(1), 0, 1) == 0\n"
    "    assert cuda.cuCtxFromGreenCtx(ctypes.byref(own), made) == 0; current(own)\n"
    "    return made\n"
    "def end(one): assert cuda.cuGreenCtxDestroy(one) == 0\n"
    "def code(function='cuModuleLoadData', *more):\n"
    "    made = ctypes.c_void_p()\n"
    "    return getattr(cuda, function)(ctypes.byref(made), b'x', *more), made\n"
    "def library(): return code('cuLibraryLoadData', None, None, 0, None, None, 0)\n"
)
MAKERS = [
    pytest.param("alloc(100)", "free(made)", id="cuMemAlloc_v2"),
    pytest.param("pitched(100)", "free(made)", id="cuMemAllocPitch_v2"),
    pytest.param("alloc(100, 'cuMemAllocManaged', 1)", "free(made)", id="managed"),
    pytest.param(
        "array('cuArrayCreate_v2', Array2D(6400, 1024, FLOAT, 4))",
        "cuda.cuArrayDestroy(made)",
        id="array",
    ),
    pytest.param(
        "array('cuMipmappedArrayCreate', Array3D(6400, 1024, 0, FLOAT, 4), 1)",
        "cuda.cuMipmappedArrayDestroy(made)",
        id="mipmap",
    ),
    pytest.param("code()", "cuda.cuModuleUnload(made)", id="module"),
    pytest.param("library()", "cuda.cuLibraryUnload(made)", id="library"),
    pytest.param(
        "(cuda.cuCtxSetLimit(2, ctypes.c_size_t(100 << 20)), 0)",
        "cuda.cuCtxSetLimit(2, ctypes.c_size_t(0))",
        id="heap",
    ),
]


@pytest.fixture(params=["same", "apart"])
def greens(node: Node, request: pytest.FixtureRequest) -> Node:
    """A node where a green context takes 10 MiB and what it stands on 40, and a module 100."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=40, module_mib=100))
    node.sim.execution(green_contexts=request.param)
    return node


def run(node: Node, steps: str, **env: str) -> list[object]:
    """What each of the steps gives."""
    said = node.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: "1000m", **env})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize(("make", "give"), MAKERS)
def test_what_was_made_in_a_green_context_outlives_it(greens: Node, make: str, give: str) -> None:
    steps = (
        "primary = primary_retained(); one = green()\n"
        f"error, made = {make}; r += [error, both()]\n"
        "current(primary); end(one); r += [both()]\n"
        f"r += [{give}, both()]"
    )
    assert run(greens, steps) == [0, [150, 150], [140, 140], 0, [40, 40]]


@pytest.mark.parametrize(("make", "give"), MAKERS)
def test_what_was_made_in_a_green_context_ends_with_its_devices_own(
    greens: Node, make: str, give: str
) -> None:
    """By the release of the last green context, or by a reset while there is one."""
    steps = (
        f"cuda.cuInit(0); one = green(); error, made = {make}; r += [error, both()]\n"
        "current(None); end(one); r += [held_mib()]\n"
        "current(primary_retained()); r += [both()]\n"
        f"one = green(); error, made = {make}; r += [error, both()]; current(None)\n"
        "r += [cuda.cuDevicePrimaryCtxReset_v2(0), held_mib()]\n"
        "current(primary_retained()); r += [both()]"
    )
    assert run(greens, steps) == [
        0, [150, 150], 0, [40, 40], 0, [150, 150], 0, 10, [50, 50],
    ]  # fmt: skip


@pytest.mark.parametrize("hidden", [True, False], ids=["pids hidden", "pids visible"])
def test_green_contexts_that_come_and_go_give_nothing_beyond_the_limit(
    greens: Node, hidden: bool
) -> None:
    greens.sim.hidden_pids(hidden)
    steps = (
        "primary = primary_retained()\n"
        "for _ in range(8):\n"
        "    one = green(); r.append(alloc(300)[0]); current(primary); end(one)\n"
        "r += [both()]"
    )
    assert run(greens, steps) == [0, 0, 0, 2, 2, 2, 2, 2, [940, 940]]
    assert greens.sim.peak_mib(GPU) <= 1000


def test_what_is_the_primary_contexts_stays_when_a_green_one_ends(greens: Node) -> None:
    """Whatever was current when it was made, and when the other ended."""
    steps = (
        "primary = primary_retained(); current(primary); alloc(50); code()\n"
        "first, second = green(), green(); alloc(50); r += [both()]\n"
        "end(first); r += [both()]; current(None); end(second); current(primary); r += [both()]\n"
        "alloc(50); r += [both()]"
    )
    assert run(greens, steps) == [[260, 260], [250, 250], [240, 240], [290, 290]]


@pytest.mark.parametrize("green_contexts", ["same", "apart"])
@pytest.mark.parametrize("what", ["alloc(600)[0]", "create(600)[0]"])
def test_what_is_freed_in_a_stream_is_awaited_beside_a_green_context(
    node: Node, green_contexts: str, what: str
) -> None:
    """By a thread of ours, to which that context cannot be current as well."""
    node.sim.kernel("long", 1_000_000)
    node.sim.execution(green_contexts=green_contexts)
    steps = (
        "import gpu_calls as g; start(); k = g.kernel('long'); s = new_stream(); keep(default_pool(), 1 << 20)\n"
        "error, a = draw(600, stream=s); r += [error, g.launch(k, s, 'cuLaunchKernel'), put(a, s)]\n"
        f"green(); r += [{what}, both()]"
    )
    assert run(node, steps) == [0, 0, 0, 0, [600, 600]]
