"""Memory that is freed in a stream which has not come to that yet: others cannot have it, and it is charged."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = """
from memory_calls import *
import gpu_calls as g
start(); k = g.kernel("long"); s1, s2 = new_stream(), new_stream(); r = []; made = ctypes.c_void_p()
def leave(mib, of=None, stream=s1, suffix=""):
    "Allocated and freed in a stream, which comes to the free a second later."
    result, address = draw(mib, of, stream, suffix)
    work = g.launch(k, stream, "cuLaunchKernel" + suffix)
    return result, work, put(address, stream, suffix)
"""


@pytest.fixture
def busy(node: Node) -> Node:
    """A node whose kernels take a second."""
    node.sim.kernel("long", 1_000_000)
    return node


def run(node: Node, steps: str, **env: str) -> list[object]:
    """What the steps give, by a clock that goes on only while somebody waits."""
    said = node.run_in_virtual_time(f"{BEGIN}{steps}\nsay(r=r)", **env)
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


# --- the simulated driver by itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "held"),
    [
        pytest.param("draw(600, stream=s2)", 1216, id="not another stream's"),
        pytest.param("draw(600, stream=s1)", 608, id="the same stream's at once"),
        pytest.param("draw(200, stream=s1); draw(600, stream=s2)", 1216, id="partly the same's"),
        pytest.param("draw(600)", 1216, id="not the legacy stream's"),
        pytest.param("keep(default_pool(), 0); cuda.cuMemPoolTrimTo(default_pool(), None)", 608, id="not to be trimmed"),
        pytest.param("cuda.cuStreamSynchronize(s1); draw(600, stream=s2)", 608, id="another's when it was waited for"),
        pytest.param("cuda.cuCtxSynchronize(); cuda.cuMemPoolTrimTo(default_pool(), None)", 0, id="nobody's then"),
        pytest.param("draw(6000, stream=s2)", 608, id="what does not fit takes nothing"),
    ],
)  # fmt: skip
def test_what_a_stream_has_not_freed_yet_is(busy: Node, then: str, held: int) -> None:
    busy.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=2000))
    keeping = "keep(default_pool(), 5000); leave(600)"
    assert run(busy, f"{keeping}\n{then}\nr.append(held_mib())") == [held]


def test_a_full_gpu_gives_what_another_stream_has_yet_to_free(busy: Node) -> None:
    busy.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=1000))
    assert run(busy, "leave(600); r += [draw(600, stream=s2)[0], held_mib()]") == [0, 608]


def test_a_destroyed_pool_keeps_what_a_stream_has_yet_to_free(busy: Node) -> None:
    steps = (
        "p = pool(); leave(600, p); r.append(cuda.cuMemPoolDestroy(p)); r.append(held_mib())\n"
        "cuda.cuStreamSynchronize(s1); r.append(held_mib())"
    )
    assert run(busy, steps) == [0, 608, 0]


# --- the limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "given"),
    [
        pytest.param("for _ in range(5): r += [*leave(600), *leave(600, stream=s2)]", [0] * 30, id="two streams"),
        pytest.param("for _ in range(5): r += [*leave(900), *leave(900, stream=s2)]", [0] * 30, id="nearly all of it"),
        pytest.param("for _ in range(5): r += leave(900)", [0] * 15, id="one stream"),
        pytest.param("r += [leave(600), draw(600)[0]]", [[0, 0, 0], 0], id="then the legacy stream"),
        pytest.param("r += [leave(600, stream=None), draw(600, stream=s1)[0]]", [[0, 0, 0], 0], id="from the legacy stream"),
        pytest.param("r += [leave(600), draw(600, suffix='_ptsz')[0]]", [[0, 0, 0], 0], id="then a per-thread stream"),
        pytest.param("r += [leave(600), draw(600, pool(), s2)[0]]", [[0, 0, 0], 0], id="then another pool"),
        pytest.param("r += [leave(600), alloc(600)[0]]", [[0, 0, 0], 0], id="then plain memory"),
        pytest.param(
            "others = [new_stream() for _ in range(7)]; r.append(leave(600))\n"
            "for s in [*others, s1]: cuda.cuStreamDestroy_v2(s)\n"
            "same = [s for s in [new_stream() for _ in range(300)] if s.value == s1.value]\n"
            "r.append(draw(600, stream=[s2, *same][-1])[0])",
            [[0, 0, 0], 0], id="then a stream that may have its handle",
        ),
        pytest.param("r += [leave(600), leave(600, stream=s2), draw(1001, stream=s1)[0]]", [[0, 0, 0], [0, 0, 0], 2], id="then too much"),
        pytest.param(
            "_, a = draw(500, stream=s1); r += [leave(300), draw(600, stream=s2)[0], put(a, s1), draw(600, stream=s2)[0]]",
            [[0, 0, 0], 2, 0, 0], id="what waiting does not help is refused",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kept", [0, 5000], ids=["", "kept"])
def test_whoever_needs_it_waits_and_nobody_is_past_the_limit(
    busy: Node, steps: str, given: list[object], kept: int
) -> None:
    steps = f"keep(default_pool(), {kept})\n{steps}\nr.append(both())"
    *answers, (charged, held) = run(busy, steps, **{LIMIT: "1000m"})
    assert answers == given
    assert charged == held
    assert busy.sim.peak_mib(GPU) <= 1000


THREADS = (
    "import threading, random\n"
    "context = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(context))\n"
    "keep(default_pool(), 1 << 20)\n"
)


def test_threads_one_after_the_other_have_streams_of_their_own(busy: Node) -> None:
    code = (
        "def work():\n"
        "    cuda.cuCtxSetCurrent(context); r.append(leave(600, stream=None, suffix='_ptsz'))\n"
        "for _ in range(3):\n"
        "    t = threading.Thread(target=work); t.start(); t.join()\n"
        "say(r=r)"
    )
    assert busy.run(BEGIN + THREADS + code, **{LIMIT: "1000m"})["r"] == [[0, 0, 0]] * 3
    assert busy.sim.peak_mib(GPU) <= 1000


def test_threads_with_a_stream_each_are_given_what_a_gpu_of_that_size_gives(node: Node) -> None:
    node.sim.kernel("long", 20_000)
    code = (
        "def work(seed):\n"
        "    choose = random.Random(seed); cuda.cuCtxSetCurrent(context); s = new_stream()\n"
        "    for i in range(40):\n"
        "        r.append(leave(choose.randrange(150, 240), stream=s))\n"
        "        if i % 8 == 7: cuda.cuStreamSynchronize(s)\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "say(r=r)"
    )
    assert node.run(BEGIN + THREADS + code, **{LIMIT: "1000m"})["r"] == [[0, 0, 0]] * 160
    assert node.sim.peak_mib(GPU) <= 1000


def test_what_was_waited_for_is_any_streams_where_no_more_can_be_reserved(busy: Node) -> None:
    """Cudarc's threads have a stream each; 64 MiB are reserved, and of those 4 are for all of them in turn."""
    steps = "r.append(draw(60)[0])\nfor _ in range(5):\n    r.append(leave(1, stream=new_stream()))"
    assert run(busy, steps, **{LIMIT: "90m"}) == [0, *[[0, 0, 0]] * 5]
    assert busy.sim.peak_mib(GPU) <= 90


def test_what_a_stream_of_another_context_has_yet_to_free_is_nobody_elses(busy: Node) -> None:
    """It is not waited for."""
    steps = (
        "first, other = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "cuda.cuCtxGetCurrent(ctypes.byref(first)); cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)\n"
        "s3, k = new_stream(), g.kernel('long'); r.append(leave(600, stream=s3))\n"
        "cuda.cuCtxSetCurrent(first); r.append(draw(600)[0])"
    )
    assert run(busy, steps, **{LIMIT: "1000m"}) == [[0, 0, 0], 2]
    assert busy.sim.peak_mib(GPU) <= 1000


@pytest.mark.parametrize(
    "crossing",
    [
        pytest.param(
            "result, address = draw(600, default_pool(0), s1)\n"
            "r.append([result, g.launch(k1, others), put(address, others)])\n"
            "cuda.cuCtxSetCurrent(first); r.append(draw(600)[0])",
            id="one of another GPU's frees it",
        ),
        pytest.param(
            "cuda.cuCtxSetCurrent(first); r.append(leave(600))\n"
            "r.append(draw(600, default_pool(0), others)[0])",
            id="one of another GPU's takes it",
        ),
    ],
)
def test_what_a_stream_has_yet_to_free_is_not_waited_for_on_another_gpu(
    busy: Node, crossing: str
) -> None:
    busy.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    steps = (
        "keep(default_pool(), 5000); first = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(first))\n"
        f"start(1); k1 = g.kernel('long'); others = new_stream()\n{crossing}"
    )
    assert run(busy, steps, **{LIMIT: "1000m"}) == [[0, 0, 0], 2]
    assert busy.sim.peak_mib(GPU) <= 1000


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
def test_while_a_stream_is_captured_nobody_waits(busy: Node, mode: int) -> None:
    steps = (
        "leave(600); s3 = new_stream()\n"
        f"r.append(cuda.cuStreamBeginCapture_v2(s3, {mode}))\n"
        "r += [draw(600, stream=s2)[0], draw(300, stream=s2)[0], draw(20, stream=s3)[0]]\n"
        "r += [cuda.cuStreamEndCapture(s3, ctypes.byref(made)), draw(600, stream=s2)[0], both()]"
    )
    assert run(busy, steps, **{LIMIT: "1000m"}) == [0, 2, 0, 0, 0, 0, [928, 928]]
    assert busy.sim.peak_mib(GPU) <= 1000


# --- destroyed pools --------------------------------------------------------------------------------

ORDERS = [
    pytest.param("r += [*leave(600, p), cuda.cuMemPoolDestroy(p)]", id="freed, destroyed"),
    pytest.param(
        "first, a = draw(600, p, s1)\n"
        "r += [first, g.launch(k, s1), cuda.cuMemPoolDestroy(p), put(a, s1)]",
        id="destroyed, freed",
    ),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("then", "given"),
    [
        pytest.param("r += [both(), alloc(600)[0]]", [[608, 608], 0], id="until it is needed"),
        pytest.param("cuda.cuStreamSynchronize(s1); r.append(both())", [[0, 0]], id="until its stream was waited for"),
        pytest.param("r += [both(), draw(600, pool(), s1)[0]]", [[608, 608], 0], id="until another pool needs it"),
        pytest.param("r += [both(), draw(1000)[0]]", [[608, 608], 2], id="for who needs too much, too"),
        pytest.param(
            "r += [cuda.cuStreamBeginCapture_v2(s2, 0), both(), cuda.cuStreamEndCapture(s2, ctypes.byref(made))]\n"
            "r.append(alloc(600)[0])",
            [0, [608, 608], 0, 0], id="without disturbing a capture",
        ),
    ],
)  # fmt: skip
def test_a_destroyed_pool_is_charged(
    busy: Node, order: str, then: str, given: list[object]
) -> None:
    answers = run(busy, f"p = pool()\n{order}\n{then}", **{LIMIT: "1000m"})
    assert answers == [0, 0, 0, 0, *given]
    assert busy.sim.peak_mib(GPU) <= 1000


@pytest.mark.parametrize("hidden", [False, True], ids=["pids visible", "pids hidden"])
def test_pools_that_are_destroyed_one_after_the_other_are_never_past_the_limit(
    busy: Node, hidden: bool
) -> None:
    busy.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    busy.sim.hidden_pids(hidden)
    steps = (
        "for _ in range(4):\n"
        "    p = pool(); leave(900, p, new_stream())\n"
        "    r += [cuda.cuMemPoolDestroy(p), ledger_mib(), held_mib()]\n"
        "r += [alloc(900)[0], ledger_mib(), held_mib()]"
    )
    assert run(busy, steps, **{LIMIT: "1300m"}) == [0, 1228, 1228] * 4 + [0, 1200, 1200]
    assert busy.sim.peak_mib(GPU) <= 1300


def test_a_destroyed_pool_is_not_the_current_one_any_more(busy: Node) -> None:
    steps = (
        "p = pool(); cuda.cuDeviceSetMemPool(0, p); leave(600); cuda.cuMemPoolDestroy(p)\n"
        "r += [default_pool(0, 'cuDeviceGetMemPool').value == default_pool().value]\n"
        "r += [draw(64, stream=s2)[0], pool_mib(default_pool()), both()]"
    )
    assert run(busy, steps, **{LIMIT: "1000m"}) == [True, 0, 64, [672, 672]]


def test_a_new_pool_of_a_destroyed_ones_account_is_charged_alone(busy: Node) -> None:
    steps = (
        "for _ in range(1100):\n"
        "    p = pool(); leave(1, p); cuda.cuMemPoolDestroy(p); cuda.cuStreamSynchronize(s1)\n"
        "r += [both(), draw(64, pool())[0], both()]"
    )
    assert run(busy, steps, **{LIMIT: "1000m"}) == [[0, 0], 0, [64, 64]]


# --- waiting for streams, beside what other threads do ----------------------------------------------


def waiting(node: Node, steps: str) -> list[object]:
    """What the steps give, by the clock on the wall; kernels may be running at the end."""
    begin = f"import threading, time\n{BEGIN}context = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(context))\n"
    threads = "def threads(): return len(os.listdir('/proc/self/task'))\n"
    end = "say(r=r); sys.stdout.flush(); os._exit(0)"
    said = node.run(f"import os, sys\n{begin}{threads}{steps}\n{end}", **{LIMIT: "1000m"})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "of the thread", "relaxed"])
def test_a_capture_that_begins_meanwhile_is_not_ended(busy: Node, mode: int) -> None:
    """It was asked for before there was a thread to wait: 42 of 9301 ended with an error."""
    steps = (
        "s3 = new_stream(); leave(600); ready = threading.Event()\n"
        "def allocate():\n"
        "    cuda.cuCtxSetCurrent(context); ready.wait(); draw(600, stream=s2)\n"
        "thread = threading.Thread(target=allocate); thread.start(); time.sleep(0.2)\n"
        "with held('cuCtxSetCurrent'):\n"
        f"    ready.set(); time.sleep(0.3); r.append(cuda.cuStreamBeginCapture_v2(s3, {mode}))\n"
        "thread.join(); r += [g.launch(k, s3), cuda.cuStreamEndCapture(s3, ctypes.byref(made))]"
    )
    assert waiting(busy, steps) == [0, 0, 0]


def test_a_graph_that_never_fits_waits_for_no_stream(node: Node) -> None:
    """Its launch took 10 s, as a stream had a MiB to free, and left a thread of ours that waited on."""
    node.sim.kernel("long", 60_000_000)
    steps = (
        "huge = instantiate(passing(3000)); leave(1); before = threads()\n"
        "r += [cuda.cuGraphLaunch(huge, s2), threads() - before]"
    )
    assert waiting(node, steps) == [2, 0]


def test_a_stream_that_never_ends_is_waited_for_once_and_in_its_own_context(node: Node) -> None:
    """Those on another GPU, that wait a moment, were refused; then each in turn on two took 10 s."""
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    node.sim.kernel("long", 60_000_000)
    node.sim.kernel("short", 50_000)
    steps = (
        "def crossing(kernel):\n"
        "    a, b = new_stream(), new_stream(); freed = draw(600, None, a)[1]\n"
        "    g.launch(g.kernel(kernel), a); put(freed, a); result, other = draw(600, stream=b)\n"
        "    if result == 0: put(other, b)\n"
        "    r.append(result)\n"
        "before = threads(); crossing('long'); r += [draw(600, stream=s2)[0], threads() - before]\n"
        "start(1); crossing('short'); r.append(threads() - before)\n"
        "crossing('long'); cuda.cuCtxSetCurrent(context)\n"
        "r += [draw(600, stream=s2)[0], threads() - before]"
    )
    assert waiting(node, steps) == [2, 2, 1, 0, 1, 2, 2, 2]
