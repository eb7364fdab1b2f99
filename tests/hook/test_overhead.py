"""What the driver takes for itself: contexts, code, heaps; measured, and charged when they are made."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nr = []\n"
CONTEXT = (
    "def context(function='cuCtxCreate_v2', device=0, *more):\n"
    "    made = ctypes.c_void_p()\n"
    "    result = getattr(cuda, function)(ctypes.byref(made), *more, 0, device)\n"
    "    return result, made\n"
)


@pytest.fixture(params=["pids visible", "pids hidden"])
def costly(node: Node, request: pytest.FixtureRequest) -> Node:
    """A node where a context takes 300 MiB and a module 20."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=20))
    node.sim.hidden_pids(request.param == "pids hidden")
    return node


def run(node: Node, steps: str, **env: str) -> list[object]:
    """What each of the steps gives."""
    said = node.run(BEGIN + CONTEXT + steps + "\nsay(r=r)", **{LIMIT: "1000m", **env})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


def test_a_primary_context_is_charged_once_while_anybody_retains_it(costly: Node) -> None:
    steps = (
        "r += [start(), both(), start(), both()]\n"
        "cuda.cuDevicePrimaryCtxRelease_v2(0); r += [both()]\n"
        "cuda.cuDevicePrimaryCtxRelease_v2(0); r += [held_mib()]\n"
        "e, c = context(); r += [e, both()]"
    )
    assert run(costly, steps) == [0, [300, 300], 0, [300, 300], [300, 300], 0, 0, [300, 300]]


def test_threads_that_retain_and_release_at_once_leave_nothing_charged(costly: Node) -> None:
    """Who retains it may find the one that was there, or one that was made anew meanwhile."""
    steps = (
        "import threading\n"
        "cuda.cuInit(0)\n"
        "def one():\n"
        "    for i in range(200):\n"
        "        context = ctypes.c_void_p()\n"
        "        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "        cuda.cuCtxSetCurrent(context)\n"
        "        error, address = alloc(1)\n"
        "        assert error == 0\n"
        "        if i % 4:\n"
        "            free(address)\n"
        "        assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0\n"
        "threads = [threading.Thread(target=one) for _ in range(3)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "r.append(held_mib())\n"
        "start(); r.append(both())"
    )
    said = costly.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: "4000m"})
    assert said["rc"] == 0, said["stderr"]
    assert said["r"] == [0, [300, 300]]


def test_a_release_that_the_driver_refuses_changes_nothing(costly: Node) -> None:
    costly.sim.fail("cuDevicePrimaryCtxRelease_v2", 999)
    steps = "start(); r += [cuda.cuDevicePrimaryCtxRelease_v2(0), start(), both()]"
    assert run(costly, steps) == [999, 0, [300, 300]]


def test_a_context_that_others_retained_unseen_stays_charged(costly: Node) -> None:
    """By a function of the driver that was not looked up through us."""
    steps = (
        "start(); c = ctypes.c_void_p(); retain = unseen('cuDevicePrimaryCtxRetain', ctypes.c_void_p, ctypes.c_int)\n"
        "r += [retain(ctypes.byref(c), 0), cuda.cuDevicePrimaryCtxRelease_v2(0), both()]\n"
        "r += [start(), cuda.cuDevicePrimaryCtxReset_v2(0), held_mib()]"
    )
    assert run(costly, steps) == [0, 0, [300, 300], 0, 0, 0]


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_a_reset_gives_the_context_back(costly: Node, reset: str) -> None:
    steps = (
        f"start(); start(); cuda.{reset}(0); r += [held_mib()]; e, c = context(); r += [e, both()]"
    )
    assert run(costly, steps) == [0, 0, [300, 300]]


def test_a_reset_is_no_release(costly: Node) -> None:
    """What came after it was charged for ever: whoever had not retained the context anew did not own it."""
    steps = (
        "start(); r += [(alloc(64)[0], held_mib(), cuda.cuDevicePrimaryCtxReset_v2(0), ledger_mib()) for _ in range(3)]\n"
        "r += [alloc(64)[0], start(), held_mib(), cuda.cuDevicePrimaryCtxRelease_v2(0), held_mib()]\n"
        "r += [cuda.cuDevicePrimaryCtxRelease_v2(0), both()]"
    )
    told = [[0, 364, 0, 0], [0, 64, 0, 0], [0, 64, 0, 0]]
    assert run(costly, steps) == [*told, 0, 0, 364, 0, 364, 0, [0, 0]]


@pytest.mark.parametrize(
    "make",
    [
        "context('cuCtxCreate')",
        "context('cuCtxCreate_v2')",
        "context('cuCtxCreate_v3', 0, None, 0)",
        "context('cuCtxCreate_v4', 0, None)",
    ],
    ids=lambda make: make.split("'")[1],
)
@pytest.mark.parametrize("end", ["cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"])
def test_each_context_is_charged_until_it_is_destroyed(costly: Node, make: str, end: str) -> None:
    steps = f"start(); e, c = {make}; r += [e, both(), cuda.{end}(c), start(), both()]"
    assert run(costly, steps) == [0, [600, 600], 0, 0, [300, 300]]


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuCtxDetach"])
def test_what_was_made_in_a_context_ends_with_it(costly: Node, end: str) -> None:
    steps = (
        "start(); e, c = context(); m = ctypes.c_void_p(); r += [e, alloc(100)[0]]\n"
        "r += [array('cuArrayCreate_v2', Array2D(6400, 1024, FLOAT, 4))[0]]\n"
        "r += [cuda.cuModuleLoadData(ctypes.byref(m), b'x'), both()]\n"
        f"r += [cuda.{end}(c), start(), both()]"
    )
    assert run(costly, steps) == [0, 0, 0, 0, [820, 820], 0, 0, [300, 300]]


@pytest.mark.parametrize(
    ("made", "charged_mib"),
    [
        pytest.param("e, c = context()", 600, id="its own"),
        pytest.param("c = ctypes.c_void_p(); e = cuda.cuCtxGetCurrent(ctypes.byref(c))", 300, id="the device's"),
        pytest.param(
            "c = ctypes.c_void_p(); e = cuda.cuGreenCtxCreate(ctypes.byref(c), ctypes.c_void_p(1), 0, 1)\n"
            "cuda.cuCtxPushCurrent_v2(c)", 375, id="a green one",
        ),
    ],
)  # fmt: skip
def test_a_context_that_is_attached_to_ends_with_nobody_who_detaches_before_the_last(
    costly: Node, made: str, charged_mib: int
) -> None:
    """A device's own, and a green one, not even then; nor one of which the driver refuses that."""
    steps = (
        f"start(); {made}\n"
        "alloc(100); a = ctypes.c_void_p()\n"
        "attach = lambda: (cuda.cuCtxAttach(ctypes.byref(a), 0), a.value == c.value)\n"
        "detach = lambda: (cuda.cuCtxDetach(c), both())\n"
        "r += [e, *attach(), *attach(), *detach()]\n"
        "with refused('cuCtxDetach'): r += [*detach()]\n"
        "r += [*detach()]\n"
        "with refused('cuCtxDetach'): r += [*detach()]\n"
        "for call in ('cuCtxAttach', 'cuCtxGetCurrent'):\n"
        "    with refused(call): r += [attach()[0]]\n"
        "r += [*detach()]"
    )
    there = [charged_mib + 100] * 2
    ends = charged_mib == 600
    assert run(costly, steps) == [
        0, 0, True, 0, True, 0, there, 999, there, 0, there, 999, there, 999, 999,
        *([0, [300, 300]] if ends else [201, there]),
    ]  # fmt: skip


def test_who_looks_at_each_gpu_and_detaches_leaves_nothing_charged(costly: Node) -> None:
    """As many a program does that lists GPUs with the memory that is free, before it uses one of them."""
    steps = (
        "cuda.cuInit(0)\n"
        "for i in range(8):\n"
        "    e, c = context('cuCtxCreate'); r += [e, both(), cuda.cuCtxDetach(c)]\n"
        "r += [start(), both(), alloc(700)[0]]"
    )
    assert run(costly, steps) == [*([0, [300, 300], 0] * 8), 0, [300, 300], 0]


def test_a_green_context_is_charged_what_it_takes(costly: Node) -> None:
    steps = (
        "start(); g = ctypes.c_void_p()\n"
        "r += [cuda.cuGreenCtxCreate(ctypes.byref(g), ctypes.c_void_p(1), 0, 1), both()]\n"
        "r += [cuda.cuGreenCtxDestroy(g), both()]"
    )
    assert run(costly, steps) == [0, [375, 375], 0, [300, 300]]


def test_what_a_green_context_stands_on_is_charged_as_long_as_anybody_holds_it(
    costly: Node,
) -> None:
    """Its device's own context, made with it, which the program retains as well."""
    steps = (
        "cuda.cuInit(0); g, c = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "r += [cuda.cuGreenCtxCreate(ctypes.byref(g), ctypes.c_void_p(1), 0, 1), held_mib()]\n"
        "r += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), cuda.cuCtxSetCurrent(c), both()]\n"
        "r += [cuda.cuGreenCtxDestroy(g), both()]\n"
        "r += [cuda.cuDevicePrimaryCtxRelease_v2(0), held_mib(), start(), both()]"
    )
    assert run(costly, steps) == [
        0, 375, 0, 0, [375, 375], 0, [300, 300], 0, 0, 0, [300, 300],
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["start()", "context()[0]"])
def test_a_context_that_does_not_fit_is_undone(node: Node, how: str) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = f"cuda.cuInit(0); r += [{how}, held_mib(), {how}, held_mib()]"
    assert run(node, steps, **{LIMIT: "200m"}) == [2, 0, 2, 0]


@pytest.mark.parametrize(
    ("hidden", "listed", "result"),
    [
        pytest.param(False, True, 2, id="pids visible"),
        pytest.param(True, True, 2, id="pids hidden"),
        pytest.param(True, False, 999, id="nobody listed"),
    ],
)
def test_the_second_time_the_driver_is_not_even_asked(
    node: Node, hidden: bool, listed: bool, result: int
) -> None:
    """Unless what one cost is a guess by the GPU's whole use."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    node.sim.hidden_pids(hidden)
    if not listed:
        node.sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    run(node, "r += [start()]")
    node.sim.fail("cuCtxCreate_v2", 999)
    assert run(node, "start(); settled(300); r += [alloc(500)[0], context()[0]]") == [0, result]


def test_what_the_driver_refuses_is_not_charged(costly: Node) -> None:
    run(costly, "r += [start()]")
    costly.sim.fail("cuCtxCreate_v2", 999)
    costly.sim.fail("cuModuleLoadData", 998)
    steps = (
        "start(); settled(300); m = ctypes.c_void_p()\n"
        "r += [context()[0], both(), cuda.cuModuleLoadData(ctypes.byref(m), b'x'), both()]"
    )
    assert run(costly, steps) == [999, [300, 300], 998, [300, 300]]


JIT = "None, None, 0, None, None, 0"


@pytest.mark.parametrize(
    ("load", "unload"),
    [
        pytest.param("cuda.cuModuleLoad(p, b'x')", "cuModuleUnload", id="cuModuleLoad"),
        pytest.param("cuda.cuModuleLoadData(p, b'x')", "cuModuleUnload", id="cuModuleLoadData"),
        pytest.param("cuda.cuModuleLoadDataEx(p, b'x', 0, None, None)", "cuModuleUnload", id="cuModuleLoadDataEx"),
        pytest.param("cuda.cuModuleLoadFatBinary(p, b'x')", "cuModuleUnload", id="cuModuleLoadFatBinary"),
        pytest.param(f"cuda.cuLibraryLoadData(p, b'x', {JIT})", "cuLibraryUnload", id="cuLibraryLoadData"),
        pytest.param(f"cuda.cuLibraryLoadFromFile(p, b'x', {JIT})", "cuLibraryUnload", id="cuLibraryLoadFromFile"),
    ],
)  # fmt: skip
def test_code_is_charged_until_it_is_unloaded(costly: Node, load: str, unload: str) -> None:
    steps = (
        "start(); m = ctypes.c_void_p(); p = ctypes.byref(m)\n"
        f"r += [{load}, both(), cuda.{unload}(m), both()]\n"
        f"_, a = alloc(700); r += [{load}, m.value, both(), free(a), {load}, both()]"
    )
    full, more = [1000, 1000], [320, 320]
    assert run(costly, steps) == [0, more, 0, [300, 300], 2, None, full, 0, 0, more]


def test_code_goes_with_its_context(costly: Node) -> None:
    steps = (
        "start(); e, c = context(); m = ctypes.c_void_p()\n"
        "cuda.cuModuleLoadData(ctypes.byref(m), b'x'); r += [charged_mib(), cuda.cuCtxDestroy_v2(c)]\n"
        "start(); r += [charged_mib()]"
    )
    assert run(costly, steps) == [620, 0, 300]


@pytest.mark.parametrize(
    "end",
    [
        "cuda.cuCtxDestroy_v2(c)",
        "cuda.cuDevicePrimaryCtxReset_v2(0)",
        "cuda.cuDevicePrimaryCtxRelease_v2(0)",
    ],
    ids=lambda end: end.split("(")[0].removeprefix("cuda."),
)
def test_what_was_allocated_in_a_context_goes_with_it(costly: Node, end: str) -> None:
    make = "e, c = context()" if "Destroy" in end else "start()"
    steps = (
        f"cuda.cuInit(0); {make}; alloc(400); r += [both(), {end}, held_mib()]\n"
        f"{make}; settled(300); r += [both(), alloc(600)[0]]"
    )
    assert run(costly, steps) == [[700, 700], 0, 0, [300, 300], 0]


def test_a_larger_heap_is_charged_and_a_smaller_one_given_back(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = (
        "start(); heap = lambda mib: cuda.cuCtxSetLimit(2, u64(mib * MIB))\n"
        "r += [heap(100), both(), heap(800), both(), heap(40), both()]"
    )
    assert run(node, steps) == [0, [400, 400], 2, [400, 400], 0, [340, 340]]


@pytest.mark.parametrize("limit", [1, 2], ids=["of printf", "of malloc"])
def test_a_heap_that_does_not_fit_is_never_on_the_gpu(node: Node, limit: int) -> None:
    """It was taken, measured and given back: 20 GiB of 1000 MiB, for as long as that took."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = f"start(); r += [cuda.cuCtxSetLimit({limit}, u64(20 << 30)), both()]"
    assert run(node, steps) == [2, [300, 300]]
    assert node.sim.peak_mib(GPU) <= 1000


def test_what_other_threads_allocate_meanwhile_is_not_taken_for_the_cost(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=1, module_mib=1))
    steps = (
        "import threading\nstart()\n"
        "def churn():\n"
        "    start()\n"
        "    for _ in range(200): free(alloc(50)[1])\n"
        "def load():\n"
        "    start()\n"
        "    for _ in range(50):\n"
        "        m = ctypes.c_void_p(); cuda.cuModuleLoadData(ctypes.byref(m), b'x'); cuda.cuModuleUnload(m)\n"
        "threads = [threading.Thread(target=f) for f in (churn, load, churn, load)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "r += [held_mib(), charged_mib() <= 60]"
    )
    assert run(node, steps) == [1, True]


def test_a_context_on_a_device_without_a_limit_is_not_measured(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    node.sim.fail("nvmlInit_v2", 999)
    assert run(node, "r += [start()]", **{LIMIT: "0"}) == [0]


@pytest.mark.parametrize(
    ("failing", "charged"),
    [
        pytest.param("", 512, id="no NVML in the container"),
        pytest.param("nvmlDeviceGetHandleByUUID", 512, id="not of this device"),
        pytest.param("nvmlDeviceGetComputeRunningProcesses_v3", 300, id="only of the whole GPU"),
    ],
)
def test_where_nvml_tells_nothing_a_first_context_is_charged_what_many_take(
    node: Node, tmp_path: Path, failing: str, charged: int
) -> None:
    """Of further ones, and of code, the driver's own figure of the whole GPU tells."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=20))
    without = {}
    if failing:
        node.sim.fail(failing, 999)
    else:
        (tmp_path / "lib").mkdir()
        shutil.copy(node.sim.libraries / "libcuda.so.1", tmp_path / "lib")
        without = {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    steps = (
        "r += [start(), charged_mib(), context()[0], charged_mib()]\n"
        "cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b'x'); r += [charged_mib()]"
    )
    said = run(node, steps, **{LIMIT: "8g", **without})
    assert said == [0, charged, 0, charged + 300, charged + 320]


@pytest.mark.parametrize(
    "hidden", [pytest.param(False, id="pids shown"), pytest.param(True, id="hidden")]
)
def test_where_nvml_tells_nothing_any_more_a_first_context_is_charged_what_many_take(
    node: Node, hidden: bool
) -> None:
    """It answers before the context is made, and not after: the context cost nothing, for good."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, context_ms=400))
    if hidden:
        node.sim.hidden_pids()
    steps = (
        "cuda.cuInit(0); import threading, time\n"
        "making = threading.Thread(target=start); making.start(); time.sleep(0.2)\n"
        "with refused('nvmlDeviceGetComputeRunningProcesses_v3'), refused('nvmlDeviceGetMemoryInfo'):\n"
        "    making.join()\n"
        "r += [ledger_mib()]"
    )
    assert run(node, steps, **{LIMIT: "8g"}) == [512]


def test_nvml_is_not_ended_by_the_program_between_two_questions(node: Node) -> None:
    """Whoever looks at the GPU starts and ends it each time, perhaps while another thread makes a context."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = (
        "nvml = ctypes.CDLL('libnvidia-ml.so.1'); nvml.nvmlInit_v2(); cuda.cuInit(0)\n"
        "r += [start(), nvml.nvmlShutdown()]\n"
        "r += [nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())), ledger_mib()]"
    )
    assert run(node, steps) == [0, 0, 0, 300]


def test_nvml_is_found_beside_a_libcuda_that_was_opened_by_its_path(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    code = (
        "import ctypes\n"
        f"c = ctypes.CDLL({str(node.sim.libraries / 'libcuda.so.1')!r})\n"
        "x, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()\n"
        "c.cuInit(0); c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0); c.cuCtxSetCurrent(x)\n"
        "c.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))\n"
        "print((total.value - free.value) >> 20)"
    )
    done = node.run_program([sys.executable, "-c", code], **{LIMIT: "1000m", "LD_LIBRARY_PATH": ""})
    assert (done.stdout, done.stderr) == ("300\n", "")


def test_a_process_is_known_by_the_pid_that_the_agent_told(node: Node) -> None:
    """The slot's host pid is what NVML lists; other processes' memory does not count then."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    node.sim.hidden_pids()
    steps = (
        "cuda.cuInit(0)\n"
        "pid_told()\n"
        "r += [start(), both()]\n"
        "cuda.cuCtxSetLimit(2, u64(100 * MIB)); cuda.cuCtxSetLimit(2, u64(20 * MIB)); r += [both()]"
    )
    assert run(node, steps) == [0, [300, 300], [320, 320]]


@pytest.mark.parametrize("first", ["cuda.cuInit(0)", "start()"], ids=["before", "with a context"])
def test_nvml_may_go_by_a_process_own_pid_though_another_was_told(node: Node, first: str) -> None:
    """As NVIDIA's open kernel modules do in a pod, while the agent tells the node's."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = (
        f"{first}; pid_told(); r += [start(), both()]\n"
        "take, a = unseen('cuMemAlloc_v2', ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64()\n"
        "r += [take(ctypes.byref(a), 400 * MIB)]; settled(700, 5); r += [both(), alloc(400)[0]]"
    )
    assert run(node, steps) == [0, [300, 300], 0, [700, 700], 2]


ASKED = "from nvml_calls import handle, memory; cuda.cuInit(0); pid_told(); memory(handle())"


@pytest.mark.parametrize("before", ["", ASKED], ids=["not asked", "NVML asked before it came"])
@pytest.mark.parametrize("first", ["cuda.cuInit(0)", "start()"], ids=["before", "with a context"])
def test_another_process_of_the_node_with_our_own_pid_is_not_us(
    node: Node, first: str, before: str
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    node.sim.hidden_pids()
    steps = (
        f"import sys; {before}\n"
        "print(os.getpid(), flush=True); sys.stdin.readline()\n"
        f"{first}; pid_told(); r += [start(), charged_mib()]; time.sleep(1.1); r += [charged_mib()]\n"
        "r += [cuda.cuDevicePrimaryCtxReset_v2(0), start(), charged_mib()]"
    )
    program = node.start(f"{BEGIN}{steps}\nsay(r=r)", env={LIMIT: "1000m"})
    try:
        assert program.stdout is not None
        node.sim.process(0, int(program.stdout.readline()), 200)
        said, _ = program.communicate("\n", timeout=60)
    finally:
        program.kill()
    assert json.loads(said)["r"] == [0, 300, 300, 0, 0, 300]


NEWEST = "570.86.15"
LONG_ENTRIES = "535.54.03"  # from 535.43 to 535.97: those of the detail list, under the older name


@pytest.mark.parametrize(
    ("mib", "charged", "processes", "driver"),
    [
        pytest.param(100, 100, 0, NEWEST, id="as code that is loaded when a kernel first runs"),
        pytest.param(3000, 3000, 0, NEWEST, id="much"),
        pytest.param(100, 100, 200, NEWEST, id="among many processes"),
        pytest.param(1, 0, 0, NEWEST, id="less than NVML counts exactly"),
        pytest.param(100, 100, 0, LONG_ENTRIES, id="longer entries"),
        pytest.param(100, 100, 1, LONG_ENTRIES, id="longer entries, after another's"),
        pytest.param(100, 100, 60, LONG_ENTRIES, id="60 longer entries"),
        pytest.param(100, 100, 200, LONG_ENTRIES, id="200 longer entries"),
    ],
)
def test_what_the_driver_took_unseen_is_charged_until_it_is_gone(
    node: Node, mib: int, charged: int, processes: int, driver: str
) -> None:
    """Memory that no intercepted call made."""
    node.sim.versions(driver=driver)
    for pid in range(processes):
        node.sim.process(0, 1_000_000 + pid, 1)
    steps = (
        "start(); other = unseen_driver(); a = ctypes.c_uint64()\n"
        f"other.cuMemAlloc_v2(ctypes.byref(a), u64({mib} * MIB)); settled({mib}, 3); r += [both()]\n"
        "other.cuMemFree_v2(a); settled(0); r += [both()]"
    )
    assert run(node, steps, **{LIMIT: "8g"}) == [[charged, mib], [0, 0]]


@pytest.mark.parametrize(("second", "charged"), [(200, 500), (500, 600), (0, 600)])
def test_of_several_contexts_the_cheapest_tells_what_one_costs(
    node: Node, second: int, charged: int
) -> None:
    """Where others cannot be told from us: what they take or give back meanwhile is in the figure."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    node.sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    steps = (
        f"start(); change('context_mib=300', 'context_mib={second}')\n"
        "r += [context()[0], charged_mib()]"
    )
    assert run(node, steps) == [0, charged]


IN_THREAD = (  # which waits for NVML itself once a second, and then for as long as that hangs
    "def in_thread(what):\n"
    "    beside = threading.Thread(target=lambda: (start(), eval(what)))\n"
    "    beside.start(); beside.join(0.02)\n"
    "    return beside\n"
)


def test_what_is_allocated_while_nvml_is_asked_is_not_charged_twice(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300))
    steps = (
        "import threading\nstart(); settled(300)\n"
        + IN_THREAD
        + "def look(): start(); charged_mib()\n"
        "time.sleep(1.1)\n"  # it is looked at once a second
        "with nvml_hanging():\n"
        "    asking = threading.Thread(target=look); asking.start(); time.sleep(0.1)\n"
        "    beside = in_thread('alloc(50)')\n"
        "asking.join(); beside.join(); r += [both()]"
    )
    assert run(node, steps) == [[350, 350]]


@pytest.mark.parametrize("hidden", [True, False], ids=["pids hidden", "pids visible"])
@pytest.mark.parametrize("meanwhile", ["alloc(50)", "free(first.pop())"])
def test_what_is_allocated_while_code_is_loaded_is_not_charged_twice(
    node: Node, meanwhile: str, hidden: bool
) -> None:
    """Where others cannot be told from us, neither can our own threads be."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, module_mib=1))
    node.sim.hidden_pids(hidden)
    steps = (
        "import threading\nstart(); go = True; first = [alloc(50)[1] for _ in range(20)]\n"
        "def load():\n"
        "    start()\n"
        "    while go: cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b'x')\n"
        "loading = threading.Thread(target=load); loading.start()\n"
        + IN_THREAD
        + "for _ in range(20):\n"
        f"    with nvml_hanging(): beside = in_thread({meanwhile!r})\n"
        "    beside.join(); time.sleep(0.005)\n"
        "go = False; loading.join(); charged, held = both(); r += [charged <= held]"
    )
    assert run(node, steps, **{LIMIT: "64g"}) == [True]


@pytest.mark.parametrize("driver", [NEWEST, LONG_ENTRIES])
def test_what_others_allocate_meanwhile_is_not_taken_for_the_cost(node: Node, driver: str) -> None:
    """Where NVML lists both, and the other one first."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, module_mib=20))
    node.sim.versions(driver=driver)
    other = node.start(
        "from memory_calls import *\nimport sys\nstart(); say(ready=True); sys.stdout.flush()\n"
        "while True: free(alloc(50)[1])",
        env={"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(node.cache.with_name("another.cache"))},
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        steps = (
            "start()\n"
            "for _ in range(100):\n"
            "    m = ctypes.c_void_p(); cuda.cuModuleLoadData(ctypes.byref(m), b'x')\n"
            "    r += [charged_mib()]; cuda.cuModuleUnload(m)"
        )
        assert set(run(node, steps)) == {20}
    finally:
        other.kill()
        other.communicate(timeout=60)


UNSEEN = (
    "import time\nother = unseen_driver(); a = ctypes.c_uint64()\n"
    "other.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_uint64(300 * MIB))\ntime.sleep(1.1)\n"
)


@pytest.mark.parametrize("ask", ["alloc(800)[0]", "draw(800)[0]", "create(800)[0]"])
def test_who_never_asks_what_is_free_is_charged_for_what_came_unseen(node: Node, ask: str) -> None:
    assert run(node, f"start(); alloc(1)\n{UNSEEN}r += [{ask}]") == [2]


@pytest.mark.parametrize(
    ("mib", "charged_mib"),
    [
        pytest.param(4, 5, id="more than a page"),
        pytest.param(1, 1, id="what NVML's pages may be too much by"),
    ],
)
def test_how_little_that_came_unseen_is_charged(node: Node, mib: int, charged_mib: int) -> None:
    came = UNSEEN.replace("300", str(mib))
    assert run(node, f"start(); alloc(1)\n{came}r += [charged_mib()]") == [charged_mib]


def test_what_came_unseen_is_charged_though_others_allocate_meanwhile(node: Node) -> None:
    """The look during which something was allocated tells nothing, and is made again."""
    steps = (
        f"import threading\nstart(); alloc(1)\n{UNSEEN}{IN_THREAD}"
        "def look(): start(); charged_mib()\n"
        "with nvml_hanging():\n"
        "    asking = threading.Thread(target=look); asking.start(); time.sleep(0.1)\n"
        "    beside = in_thread('alloc(50)')\n"
        "asking.join(); beside.join(); r += [ledger_mib()]"
    )
    assert run(node, steps) == [351]


def test_managed_memory_on_the_host_is_no_sign_that_something_has_gone(node: Node) -> None:
    """NVML counts it where its pages are: here on the host, as a neighbour has filled the GPU."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=2000))
    node.sim.process(0, 1_000_000, 1500)
    steps = (
        "start(); alloc(1)\n" + UNSEEN + "alloc(1); before = ledger_mib()\n"
        "e, m = alloc(400, 'cuMemAllocManaged', 1); time.sleep(1.1); charged_mib()\n"
        "r += [before, e, ledger_mib()]\n"
        "free(m); time.sleep(1.1); charged_mib(); r += [ledger_mib()]"
    )
    assert run(node, steps) == [302, 0, 702, 302]


@pytest.mark.parametrize(
    ("make", "mib"),
    [
        pytest.param(
            "cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b'x')", 120, id="code"
        ),
        pytest.param("context()[0]", 300, id="a context"),
        pytest.param("cuda.cuCtxSetLimit(2, ctypes.c_size_t(250 * MIB))", 250, id="a heap"),
    ],
)
def test_what_is_made_beside_managed_memory_that_nvml_does_not_count_is_charged(
    node: Node, make: str, mib: int
) -> None:
    """It was taken for some of that: drivers count no pages of it for the process (rapidsai/rmm#2259)."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=2000, context_mib=300, module_mib=120))
    node.sim.process(0, 1_000_000, 1500)
    steps = (
        "start(); r += [alloc(400, 'cuMemAllocManaged', 1)[0], ledger_mib(), held_mib()]\n"
        f"change('memory_mib=1500', 'memory_mib=1'); r += [{make}, ledger_mib(), held_mib()]"
    )
    assert run(node, steps) == [0, 700, 300, 0, 700 + mib, 300 + mib]


@pytest.mark.parametrize(
    ("call", "make", "mib"),
    [
        pytest.param("cuModuleLoadData", "cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b'x')",
                     120, id="code"),
        pytest.param("cuCtxCreate_v2", "context()[0]", 300, id="a context"),
    ],
)  # fmt: skip
def test_managed_memory_that_another_thread_frees_meanwhile_is_nothing_that_was_made(
    node: Node, call: str, make: str, mib: int
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=2000, context_mib=300, module_mib=120))
    node.sim.process(0, 1_000_000, 1500)
    steps = (
        "import time\nstart(); c = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(c))\n"
        "result, managed = alloc(400, 'cuMemAllocManaged', 1); r.append(result)\n"
        "change('memory_mib=1500', 'memory_mib=1')\n"
        f"def go(): cuda.cuCtxSetCurrent(c); r.append({make})\n"
        "making = threading.Thread(target=go)\n"
        f"with held('{call}'): making.start(); time.sleep(0.3); free(managed)\n"
        "making.join(); r += [ledger_mib(), held_mib()]"
    )
    assert run(node, steps) == [0, 0, 300 + mib, 300 + mib]


def test_pages_that_come_to_the_gpu_as_a_context_is_made_are_not_the_contexts(node: Node) -> None:
    """What one takes is known by then. Here it takes as much more as the pages would."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, memory_mib=2000, context_mib=300))
    node.sim.process(0, 1_000_000, 1500)
    steps = (
        "start(); r.append(alloc(400, 'cuMemAllocManaged', 1)[0])\n"
        "change('memory_mib=1500', 'memory_mib=1'); change('context_mib=300', 'context_mib=700')\n"
        "r += [context()[0], ledger_mib()]"
    )
    assert run(node, steps, **{LIMIT: "1100m"}) == [0, 0, 1000]


def test_each_device_is_looked_at_whichever_is_asked_about_first(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    code = f"start(1); used_mib(); start(0); used_mib()\n{UNSEEN}start(1); used_mib(); start(0); r += [used_mib()]"
    assert run(node, code) == [300]


def test_without_a_known_pid_nothing_unseen_is_charged(node: Node) -> None:
    node.sim.hidden_pids()
    steps = (
        "start(); other = unseen_driver(); a = ctypes.c_uint64()\n"
        "other.cuMemAlloc_v2(ctypes.byref(a), u64(100 * MIB)); settled(100, 2); r += [both()]"
    )
    assert run(node, steps) == [[0, 100]]


@pytest.mark.parametrize(
    ("gpu", "steps", "expected"),
    [
        pytest.param(SimGpu(uuid=GPU, context_mib=3000), "", 2048, id="context"),
        pytest.param(
            SimGpu(uuid=GPU, module_mib=400),
            "m = ctypes.c_void_p(); cuda.cuModuleLoadData(ctypes.byref(m), b'x')",
            400,
            id="module: it is unloaded once, by which it is seen",
        ),
    ],
)
def test_where_others_cannot_be_told_from_us_a_cost_has_bounds(
    node: Node, gpu: SimGpu, steps: str, expected: int
) -> None:
    """All that the GPU has in use grew by the cost, and by what others did meanwhile."""
    node.sim.change_gpu(0, gpu)
    node.sim.hidden_pids()
    assert run(node, f"start()\n{steps}\nr += [charged_mib()]", **{LIMIT: "8g"}) == [expected]


LOAD = (
    "import threading\n"
    "def load(function='cuModuleLoadData', *more):\n"
    "    made = ctypes.c_void_p()\n"
    "    return getattr(cuda, function)(ctypes.byref(made), b'x', *more)\n"
)


@pytest.mark.parametrize("nvml", [True, False], ids=["hidden pids", "no NVML"])
def test_code_that_is_far_larger_than_any_is_not_given_past_the_limit(
    node: Node, nvml: bool
) -> None:
    """Large arrays in it, where nobody tells whose memory it is: each module was charged 256 MiB, of 5000."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=800))
    node.sim.hidden_pids()
    if not nvml:
        node.sim.fail("nvmlInit_v2", 999)
    steps = f"{LOAD}start(); r += [load(), load(), load(), load(), ledger_mib(), held_mib()]"
    assert run(node, steps, **{LIMIT: "2g"}) == [0, 0, 2, 2, *[1900] * 2]
    assert node.sim.peak_mib(GPU) <= 1900 + 800  # the driver gives it before anybody knows


def test_what_a_neighbour_takes_while_code_is_loaded_is_not_the_codes(node: Node) -> None:
    """It comes as another thread allocates, and stays when the code is unloaded once."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=20))
    node.sim.hidden_pids()
    node.sim.process(0, 4_000_000, 5000, from_mib=380)
    steps = (
        f"{LOAD}start(); c = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(c))\n"
        "def go(): cuda.cuCtxSetCurrent(c); r.append(load())\n"
        "loading = threading.Thread(target=go)\n"
        "with held('cuModuleLoadData'): loading.start(); time.sleep(0.3); alloc(100)\n"
        "loading.join(); r.append(both())"
    )
    assert run(node, "import time\n" + steps, **{LIMIT: "1g"}) == [0, [420, 420]]


def test_code_that_a_neighbour_hides_as_it_is_unloaded_is_charged_what_may_be_the_codes(
    node: Node,
) -> None:
    """What was given back cannot be told then: 1 byte was charged, of 800 MiB."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=800))
    node.sim.hidden_pids()
    node.sim.process(0, 4_000_000, 1)
    steps = (
        f"{LOAD}start(); c = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(c))\n"
        "alone = 'process gpu=0 pid=4000000 memory_mib=1 '; hold = 'hold call=cuModuleUnload\\n' + alone\n"
        "def go(): cuda.cuCtxSetCurrent(c); r.append(load())\n"
        "change(alone, hold); loading = threading.Thread(target=go); loading.start()\n"
        "while held_mib() < 1100 or ledger_mib() < 556: time.sleep(0.001)\n"
        "change(hold, alone.replace('=1 ', '=900 ')); loading.join(); r.append(ledger_mib())"
    )
    assert run(node, "import time\n" + steps, **{LIMIT: "2g"}) == [0, 556]


@pytest.mark.parametrize(
    ("managed_mib", "load"),
    [
        pytest.param(1, "load()", id="hardly any managed memory"),
        pytest.param(200, "load()", id="as much managed memory as code"),
        pytest.param(500, "load()", id="more managed memory than code"),
        pytest.param(1, "load('cuLibraryLoadData', None, None, 0, None, None, 0)", id="a library"),
    ],
)
def test_code_that_does_not_fit_is_refused_beside_managed_memory(
    node: Node, managed_mib: int, load: str
) -> None:
    """Its pages are on the GPU already, so what the process grew by is the code."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=200))
    steps = (
        f"start(); alloc({managed_mib}, 'cuMemAllocManaged', 1); alloc({690 - managed_mib})\n"
        f"r += [both(), {load}, both()]; time.sleep(1.1); r += [both()]"
    )
    full = [990, 990]
    assert run(node, "import time\n" + LOAD + steps) == [full, 2, full, full]


def test_code_that_fits_is_loaded_beside_managed_memory(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=200))
    steps = "start(); alloc(500, 'cuMemAllocManaged', 1); r += [load(), both(), load(), both()]"
    assert run(node, LOAD + steps) == [0, [1000, 1000], 2, [1000, 1000]]


@pytest.mark.parametrize(
    ("mib", "result"),
    [pytest.param(200, 2, id="does not fit"), pytest.param(5, 0, id="fits")],
)
def test_code_that_is_loaded_while_another_thread_loads_some_stays_within_the_limit(
    node: Node, mib: int, result: int
) -> None:
    """What is left of the limit is charged at first; what it took is seen when the other has ended."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, context_mib=300, module_mib=200))
    steps = (
        "start(); alloc(690); main = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(main))\n"
        "said = {}\n"
        "def other(function): cuda.cuCtxSetCurrent(main); said[function] = load(function)\n"
        "def thread(function):\n"
        "    made = threading.Thread(target=other, args=(function,)); made.start(); return made\n"
        "with held('cuModuleLoadFatBinary'):\n"
        "    late = thread('cuModuleLoadFatBinary'); time.sleep(0.3)\n"
        f"    change('module_mib=200', 'module_mib={mib}'); first = thread('cuModuleLoadData')\n"
        "    while said == {} and ledger_mib() == 990: time.sleep(0.001)\n"
        "late.join(); first.join()\n"
        "r += [said['cuModuleLoadData'], said['cuModuleLoadFatBinary']]\n"
        "settled(held_mib(), 5); r += [both()]"
    )
    kept = 990 + (mib if result == 0 else 0)
    assert run(node, "import time\n" + LOAD + steps) == [result, 2, [kept, kept]]


@pytest.mark.parametrize("made", ["module", "context"])
def test_what_comes_while_a_pools_charge_is_stale_is_charged(node: Node, made: str) -> None:
    """The pool had shrunk unseen, and what came seemed to have been charged before: 157 of 100 MiB were had."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=11, module_mib=30))
    make = {
        "module": "cuda.cuModuleLoadData(ctypes.byref(m), b'x')",
        "context": "cuda.cuCtxCreate_v2(ctypes.byref(m), 0, 0)",
    }[made]
    code = (
        "start()\n"
        "result, drawn = draw(64); assert (result, free(drawn)) == (0, 0)\n"
        "m = ctypes.c_void_p()\n"
        f"for _ in range(2): r.append({make})\n"
        "say(r=r, both=both(), more=alloc(88)[0])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert said["r"] == [0, 0]
    assert said["both"][0] == said["both"][1]
    assert said["more"] == 2
    assert node.sim.peak_mib(made_up_uuid(0)) <= 100


def test_who_is_told_the_pid_that_it_has_is_still_found(node: Node) -> None:
    """As the agent tells a process without a pid namespace of its own, after it has found itself."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=9, module_mib=30))
    code = (
        "start(); pid_told(own=True); charged_mib()\n"
        "assert alloc(100 - held_mib() - 0.5)[0] == 0\n"
        "m = ctypes.c_void_p()\n"
        "say(r=cuda.cuModuleLoadData(ctypes.byref(m), b'x'), both=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert said == {**said, "r": 2, "both": [99.5, 99.5]}, said
