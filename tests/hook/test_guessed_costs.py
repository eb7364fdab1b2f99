"""What contexts and code cost while nobody can tell this process from its neighbours: guessed, then known."""

import json
from dataclasses import replace

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid
from tests.region_files import RegionFile

NEIGHBOUR = 999_999
HIDDEN_BY = 1 << 24  # of pids, in the simulated NVML of another pid namespace
NO_LIST = "fail call=nvmlDeviceGetComputeRunningProcesses_v3 code=3"
BEGIN = (
    "from memory_calls import *\nr = []\n"
    "def load():\n"
    "    made = ctypes.c_void_p()\n"
    "    return cuda.cuModuleLoadData(ctypes.byref(made), b'x'), made\n"
    "def context():\n"
    "    made = ctypes.c_void_p()\n"
    "    return cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0), made\n"
    "def true(mib): settled(mib, 5); r.append(both())\n"
)


@pytest.fixture
def hidden(node: Node) -> Node:
    """A node where a context takes 300 MiB and a module 20, and pids are those of the node."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300, module_mib=20))
    node.sim.hidden_pids()
    return node


def comes_meanwhile(node: Node, mib: int) -> None:
    """A neighbour that is new when our context has been made: the larger one is taken for ours."""
    node.sim.process(0, NEIGHBOUR, mib, from_mib=300)


def run(node: Node, steps: str, limit: str = "2000m") -> list[object]:
    """What the steps give, with nothing given back that was not taken."""
    said = node.run(f"{BEGIN}{steps}\nsay(r=r)", **{LIMIT: limit})
    assert said["rc"] == 0, said["stderr"]
    assert RegionFile(node.cache).counter("underflows") == 0
    answers: list[object] = said["r"]
    return answers


@pytest.mark.parametrize(
    ("make", "while_mib", "takes_mib", "guessed_mib", "true_mib"),
    [
        pytest.param("r.append(start())", 300, 500, 500, 300, id="a context"),
        pytest.param("start(); r.append(load()[0])", 320, 200, 520, 320, id="code"),
        pytest.param(
            "r.append(start()); free(alloc(400, 'cuMemAllocManaged', 1)[1])", 300, 500, 500, 300,
            id="a context, and there was managed memory, whose pages may have been anywhere",
        ),
    ],
)  # fmt: skip
def test_what_a_neighbour_took_meanwhile_is_given_back(
    hidden: Node, make: str, while_mib: int, takes_mib: int, guessed_mib: int, true_mib: int
) -> None:
    hidden.sim.process(0, NEIGHBOUR, takes_mib, from_mib=while_mib)
    steps = f"{make}; r.append(both()); pid_told(); true({true_mib})"
    assert run(hidden, steps) == [0, [guessed_mib, true_mib], [true_mib, true_mib]]


@pytest.mark.parametrize("others", [3200, 1920], ids=["allocates", "frees"])
def test_what_a_neighbour_does_with_its_memory_meanwhile_is_not_ours(
    hidden: Node, others: int
) -> None:
    """Who was there before this process was is another one."""
    hidden.sim.process(0, NEIGHBOUR, 2000)
    steps = (
        "import threading, time\ncuda.cuInit(0); change('context_ms=0', 'context_ms=400')\n"
        "making = threading.Thread(target=start); making.start(); time.sleep(0.2)\n"
        f"change('memory_mib=2000', 'memory_mib={others}'); making.join(); r.append(ledger_mib())"
    )
    assert run(hidden, steps) == [300]


def test_a_neighbour_is_told_from_this_process_by_all_of_its_pid(hidden: Node) -> None:
    """A part of it is the same for two of a few hundred."""
    hidden.sim.process(0, NEIGHBOUR, 1000)
    steps = (
        f"cuda.cuInit(0); change('pid={NEIGHBOUR} ', f'pid={{os.getpid() + {HIDDEN_BY + (1 << 16)}}} ')\n"
        "change('context_ms=0', 'context_ms=400'); import threading\n"
        "making = threading.Thread(target=start); making.start(); time.sleep(0.2)\n"
        "change('memory_mib=1000', 'memory_mib=2000'); making.join(); r.append(ledger_mib())"
    )
    assert run(hidden, steps) == [300]


def test_beside_very_many_a_context_costs_what_the_gpu_says(hidden: Node) -> None:
    """Who of them has come is not looked at."""
    for number in range(140):
        hidden.sim.process(0, NEIGHBOUR + number, 310 + number)
    hidden.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), memory_mib=80_000, context_mib=300))
    assert run(hidden, "r.append(start()); r.append(both())") == [0, [300, 300]]


def test_containers_that_start_together_do_not_take_each_others_contexts_for_their_own(
    hidden: Node,
) -> None:
    """Whoever began later has less of its context by then."""
    hidden.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300, context_ms=200))
    code = "from memory_calls import *\nsay(e=start(), m=charged_mib())"
    containers = [
        replace(hidden, cache=hidden.cache.with_name(f"{number}.cache")) for number in range(4)
    ]
    programs = [one.start(code, env={LIMIT: "2000m"}) for one in containers]
    told = [json.loads(program.communicate(timeout=60)[0]) for program in programs]
    assert told == [{"e": 0, "m": 300}] * 4


def test_an_allocation_finds_out_too(hidden: Node) -> None:
    """Nobody has to ask how much is free."""
    comes_meanwhile(hidden, 1800)
    steps = "start(); r.append(charged_mib()); pid_told(); r += [alloc(900)[0], both()]"
    assert run(hidden, steps) == [1800, 0, [1200, 1200]]


def test_what_ended_before_it_was_known_was_given_back_then(hidden: Node) -> None:
    comes_meanwhile(hidden, 500)
    steps = (
        "cuda.cuInit(0); e, c = context(); r += [both(), cuda.cuCtxDestroy_v2(c), held_mib()]\n"
        "start(); pid_told(); true(300); r.append(load()[0]); true(320)"
    )
    assert run(hidden, steps) == [[500, 300], 0, 0, [300, 300], 0, [320, 320]]


@pytest.mark.parametrize("told", [True, False])
def test_a_guess_is_given_back_once(hidden: Node, told: bool) -> None:
    """By whoever ends first, or when it became known, never by both."""
    comes_meanwhile(hidden, 500)
    know = "pid_told(); settled(300, 5); " if told else ""
    steps = (
        f"start(); {know}alloc(100); r.append(charged_mib())\n"
        "r += [cuda.cuDevicePrimaryCtxReset_v2(0), held_mib()]; start(); pid_told(); true(300)"
    )
    assert run(hidden, steps) == [400 if told else 600, 0, 0, [300, 300]]


def test_who_ends_gives_back_no_more_than_it_took(hidden: Node) -> None:
    """Which of the guesses was wrong nobody knows."""
    hidden.sim.process(0, NEIGHBOUR, 200, from_mib=320)
    steps = (
        "start(); e, one = load(); e, two = load(); r.append(both()); pid_told(); true(340)\n"
        "cuda.cuModuleUnload(two); r.append(charged_mib() >= held_mib()); true(320)\n"
        "cuda.cuModuleUnload(one); r.append(charged_mib() >= held_mib()); true(300)\n"
        "alloc(50); r.append(cuda.cuDevicePrimaryCtxRelease_v2(0)); start(); true(300)"
    )
    assert run(hidden, steps) == [
        [540, 340], [340, 340], True, [320, 320], True, [300, 300], 0, [300, 300],
    ]  # fmt: skip


def test_what_was_guessed_too_low_is_charged_once_it_is_known(hidden: Node) -> None:
    """NVML told of nobody, and the cheapest context before it was none of this kind."""
    hidden.sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    run(hidden, "r.append(start())")
    hidden.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=500))
    steps = (
        f"start(); settled(300, 5); r.append(both()); change('{NO_LIST}', ''); pid_told()\n"
        "r += [alloc(1600)[0], both()]"
    )
    assert run(hidden, steps) == [[300, 500], 2, [500, 500]]


@pytest.mark.parametrize(
    ("begin", "while_mib", "takes_mib", "make", "true_mib"),
    [
        pytest.param("cuda.cuInit(0)", 300, 500, "start()", 300, id="a context"),
        pytest.param("start(); alloc(80)", 400, 200, "load()[0]", 400, id="code"),
    ],
)
def test_a_first_guess_that_does_not_fit_is_no_reason_to_refuse(
    hidden: Node, begin: str, while_mib: int, takes_mib: int, make: str, true_mib: int
) -> None:
    """The rest of the limit is charged, until it is known."""
    hidden.sim.process(0, NEIGHBOUR, takes_mib, from_mib=while_mib)
    steps = f"{begin}; r += [{make}, both(), alloc(1)[0]]; pid_told(); true({true_mib}); r.append(alloc(50)[0])"
    assert run(hidden, steps, "450m") == [0, [450, true_mib], 2, [true_mib, true_mib], 0]
    assert RegionFile(hidden.cache).counter("refusals") == 1


def test_where_nothing_is_left_code_is_refused(hidden: Node) -> None:
    hidden.sim.process(0, NEIGHBOUR, 200, from_mib=460)
    steps = "start(); r += [alloc(150)[0], load()[0], both()]"
    assert run(hidden, steps, "450m") == [0, 2, [450, 450]]


def test_a_limit_below_any_context_holds_once_it_is_known(hidden: Node) -> None:
    steps = "r += [start(), alloc(1)[0]]; pid_told(); r += [alloc(1)[0], context()[0], held_mib()]"
    assert run(hidden, steps, "200m") == [0, 2, 2, 2, 300]
    refusals = RegionFile(hidden.cache).refusals()
    assert [refusal.used >> 20 for refusal in refusals] == [200, 300, 300]


def test_what_a_context_cost_by_a_guess_keeps_no_other_process_out(hidden: Node) -> None:
    """It is measured again; that the neighbour is still there makes no difference then."""
    comes_meanwhile(hidden, 700)
    first = hidden.start(
        "import sys\nsay(e=start()); sys.stdout.flush(); sys.stdin.read()",
        env={LIMIT: "1200m"},
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == '{"e": 0}'
        assert run(hidden, "r += [start(), charged_mib(), held_mib()]", "1200m") == [0, 1000, 600]
        assert run(hidden, "r += [start(), load()[0], context()[0]]", "1200m") == [0, 0, 2]
    finally:
        first.communicate(timeout=60)


def test_whoever_comes_makes_no_context_dearer_than_the_last_one(hidden: Node) -> None:
    """Of another container, or a worker of this one that has allocated already."""
    run(hidden, "r.append(start())", "1000m")
    comes_meanwhile(hidden, 2000)
    assert run(hidden, "r += [start()]; true(300)", "1000m") == [0, [300, 300]]


def test_who_alone_came_to_the_gpu_makes_a_context_dearer_than_the_last_one(hidden: Node) -> None:
    """The last one was guessed too low, where NVML told of nobody."""
    hidden.sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    run(hidden, "r.append(start())")
    hidden.sim.heal()
    hidden.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=500))
    assert run(hidden, "r += [start()]; true(500)") == [0, [500, 500]]


@pytest.mark.parametrize("other_comes", [False, True], ids=["it came alone", "and was borne out"])
def test_a_guess_that_is_surely_right_lets_no_context_be_made_that_does_not_fit(
    hidden: Node, other_comes: bool
) -> None:
    """By another guess it would be made, measured and ended again."""
    if other_comes:
        hidden.sim.process(0, NEIGHBOUR, 10, from_mib=300)
    first = hidden.start(
        "from memory_calls import *\nimport sys\nstart(); load = ctypes.c_void_p()\n"
        "cuda.cuModuleLoadData(ctypes.byref(load), b'x')\n"
        + ("pid_told(); settled(320, 5); " if other_comes else "")
        + "e = alloc(500)[0]; time.sleep(1.1); say(e=e, m=charged_mib())\n"
        "sys.stdout.flush(); sys.stdin.read()",
        env={LIMIT: "1000m"},
    )
    with first:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline()) == {"e": 0, "m": 820}
        assert run(hidden, "r += [start()]", "1000m") == [2]
        assert hidden.sim.peak_mib(made_up_uuid(0)) == 820
        first.communicate(timeout=60)


def test_a_heap_that_goes_up_and_down_is_charged_once(hidden: Node) -> None:
    steps = (
        "start()\nfor mib in (208, 8, 208, 8): r += [cuda.cuCtxSetLimit(2, u64(mib * MIB)), both()]"
    )
    up, down = [508, 508], [308, 308]
    assert run(hidden, steps, "1000m") == [0, up, 0, down, 0, up, 0, down]


def test_what_a_neighbour_frees_is_not_taken_for_more_than_a_heap_was_lowered_by(
    hidden: Node,
) -> None:
    hidden.sim.process(0, NEIGHBOUR, 500, from_mib=400)
    steps = "start(); cuda.cuCtxSetLimit(2, u64(208 * MIB)); r.append(both())\ncuda.cuCtxSetLimit(2, u64(8 * MIB)); r.append(both())"
    assert run(hidden, steps) == [[508, 508], [308, 308]]


def test_what_a_context_cost_by_nvmls_figure_is_believed(hidden: Node) -> None:
    hidden.sim.process(0, NEIGHBOUR, 200, from_mib=300)
    assert run(hidden, "cuda.cuInit(0); pid_told(); r += [start(), both()]") == [0, [300, 300]]
    hidden.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=290))
    steps = "r.append(start()); settled(300, 5); r.append(both()); pid_told(); true(290)"
    assert run(hidden, steps) == [0, [300, 290], [290, 290]]


def test_a_larger_heap_that_does_not_fit_is_refused(hidden: Node) -> None:
    """How large it is the program chose."""
    steps = "start(); r += [cuda.cuCtxSetLimit(2, u64(200 * MIB)), both()]"
    assert run(hidden, steps, "450m") == [2, [300, 300]]


def test_a_child_gives_back_what_it_took_itself(hidden: Node) -> None:
    """What its parent's guesses were too high by is the parent's."""
    hidden.sim.process(0, NEIGHBOUR, 500, from_mib=300)
    steps = (
        "start(); pid_told(); true(300); said, says = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); e, c = context(); before = both(); cuda.cuCtxDestroy_v2(c)\n"
        "    os.write(says, repr([before, both()]).encode()); os._exit(0)\n"
        "os.close(says); r.append(os.read(said, 99).decode())"
    )
    assert run(hidden, steps) == [[300, 300], "[[900.0, 900.0], [600.0, 600.0]]"]


def test_whatever_threads_do_as_it_becomes_known_it_is_true_in_the_end(hidden: Node) -> None:
    hidden.sim.process(0, NEIGHBOUR, 200, from_mib=320)
    steps = (
        "import threading\nstart(); kept = [load()[1] for _ in range(5)]\n"
        "def allocate():\n"
        "    start()\n"
        "    for _ in range(150): free(alloc(50)[1])\n"
        "def code():\n"
        "    start()\n"
        "    for _ in range(60): cuda.cuModuleUnload(load()[1])\n"
        "threads = [threading.Thread(target=f) for f in (allocate, code) * 2]\n"
        "for t in threads: t.start()\n"
        "threads[0].join(); pid_told()\n"
        "for t in threads: t.join()\n"
        "true(400)\n"
        "for one in kept: cuda.cuModuleUnload(one)\n"
        "true(300); r.append(cuda.cuDevicePrimaryCtxReset_v2(0)); start(); true(300)"
    )
    assert run(hidden, steps, "8000m") == [[400, 400], [300, 300], 0, [300, 300]]


def test_what_another_thread_is_being_given_is_no_guess_that_was_too_high(hidden: Node) -> None:
    """The code's loading has the guess of the context compared, once the pid is known."""
    steps = (
        "start()\n"
        "with being_given(400): pid_told(); r += [load()[0], ledger_mib(), held_mib(), alloc(300)[0]]\n"
        "true(720); r.append(alloc(280)[0])"
    )
    assert run(hidden, steps, "1000m") == [0, 720, 320, 2, [720, 720], 0]


def test_what_was_guessed_too_high_is_given_back_once_no_thread_is_being_given_more(
    hidden: Node,
) -> None:
    comes_meanwhile(hidden, 500)
    steps = (
        "start()\n"
        "with being_given(100): pid_told(); r += [load()[0], ledger_mib(), held_mib()]\n"
        "true(420)"
    )
    assert run(hidden, steps) == [0, 620, 320, [420, 420]]


def test_a_further_context_keeps_its_charge_whatever_another_thread_is_being_given(
    node: Node,
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300))
    steps = (
        "start()\n"
        "with being_given(100):\n"
        "    r += [context()[0], ledger_mib(), held_mib(), alloc(400)[0], alloc(300)[0]]\n"
        "true(1000)"
    )
    assert run(node, steps, "1000m") == [0, 700, 600, 2, 0, [1000, 1000]]


def test_code_is_charged_whatever_another_thread_is_being_given(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300, module_mib=100))
    steps = (
        "start()\n"
        "with being_given(200): r += [load()[0], ledger_mib(), held_mib(), alloc(450)[0]]\n"
        "true(600)"
    )
    assert run(node, steps, "1000m") == [0, 600, 400, 2, [600, 600]]


def test_code_is_charged_though_another_thread_allocates_meanwhile(hidden: Node) -> None:
    steps = (
        "start(); context = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(context))\n"
        "import threading\n"
        "def code(): cuda.cuCtxSetCurrent(context); r.append(load()[0])\n"
        "thread = threading.Thread(target=code)\n"
        "with held('cuModuleLoadData'): thread.start(); time.sleep(0.3); r.append(alloc(100)[0])\n"
        "thread.join(); r.append(both())"
    )
    assert run(hidden, steps, "1000m") == [0, 0, [420, 420]]


@pytest.mark.parametrize("pids", ["visible", "hidden"])
def test_a_heap_keeps_its_charge_whatever_another_thread_is_being_given(
    node: Node, pids: str
) -> None:
    if pids == "hidden":
        node.sim.hidden_pids()
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300))
    steps = (
        "start()\n"
        "with being_given(100): r += [cuda.cuCtxSetLimit(2, u64(200 * MIB))]\n"
        "r += [both(), alloc(450)[0]]"
    )
    assert run(node, steps, "1000m") == [0, [600, 600], 2]


def test_whatever_threads_make_of_a_heap_it_is_true_in_the_end(node: Node) -> None:
    """What a lowered one gave back cannot be measured beside the others."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300))
    steps = (
        "import random, threading\nstart(); main = ctypes.c_void_p()\n"
        "cuda.cuCtxGetCurrent(ctypes.byref(main))\n"
        "def change_heap(seed):\n"
        "    cuda.cuCtxSetCurrent(main); draw = random.Random(seed)\n"
        "    for _ in range(1000):\n"
        "        mine = [alloc(draw.randint(1, 200))[1] for _ in range(draw.randint(0, 2))]\n"
        "        cuda.cuCtxSetLimit(2, u64(draw.choice([8, 16, 100]) * MIB))\n"
        "        [free(m) for m in mine if m]\n"
        "threads = [threading.Thread(target=change_heap, args=(i,)) for i in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "cuda.cuCtxSetLimit(2, u64(16 * MIB)); true(held_mib()); r.append(both()[0] == held_mib())"
    )
    assert run(node, steps, "1000m")[1] is True


def test_two_guesses_that_are_right_together_only_are_seen_apart_when_one_ends(
    hidden: Node,
) -> None:
    """The neighbour made the first too high, and the second was charged what the first had cost."""
    comes_meanwhile(hidden, 500)
    steps = (
        "cuda.cuInit(0); e, one = context(); change('context_mib=300', 'context_mib=700')\n"
        "e, two = context(); r.append(both()); pid_told(); true(1000)\n"
        "cuda.cuCtxDestroy_v2(two); true(300); cuda.cuCtxDestroy_v2(one); r.append(held_mib())\n"
        "start(); true(700)"
    )
    assert run(hidden, steps) == [[1000, 1000], [1000, 1000], [300, 300], 0, [700, 700]]


def test_what_came_unseen_is_given_back_whatever_was_corrected_before(hidden: Node) -> None:
    comes_meanwhile(hidden, 500)
    steps = (
        "start(); r.append(both()); pid_told(); true(300); time.sleep(1.1); true(300)\n"
        "take, a = unseen('cuMemAlloc_v2', ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64()\n"
        "take(ctypes.byref(a), 300 * MIB); true(600); free(a.value); true(300)"
    )
    assert run(hidden, steps) == [[500, 300], [300, 300], [300, 300], [600, 600], [300, 300]]


@pytest.mark.parametrize("told", ["at first", "meanwhile"])
@pytest.mark.parametrize("kind", ["contexts", "primaries"])
def test_whatever_contexts_come_and_go_on_two_gpus_it_is_true_in_the_end(
    hidden: Node, kind: str, told: str
) -> None:
    """In threads, and beside a neighbour that takes memory as well."""
    hidden.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1), context_mib=300, context_ms=2))
    for gpu in (0, 1):
        hidden.sim.process(gpu, NEIGHBOUR, 200, from_mib=320)
    steps = (
        "import random, threading\nkept = []\n"
        "for gpu in (0, 1): start(gpu); cuda.cuDevicePrimaryCtxReset_v2(gpu)\n"
        "def contexts(gpu, chance):\n"
        "    mine, made = [], ctypes.c_void_p()\n"
        "    for _ in range(12):\n"
        "        assert cuda.cuCtxCreate_v2(ctypes.byref(made), 0, gpu) == 0\n"
        "        mine.append(made.value)\n"
        "        if chance.random() < 0.6:\n"
        "            cuda.cuCtxDestroy_v2(ctypes.c_void_p(mine.pop(chance.randrange(len(mine)))))\n"
        "    kept.extend((gpu, one) for one in mine)\n"
        "def primaries(gpu, chance):\n"
        "    for _ in range(12):\n"
        "        start(gpu)\n"
        "        cuda.cuCtxSetCurrent(None)\n"
        "        if chance.random() < 0.2: cuda.cuDevicePrimaryCtxReset_v2(gpu)\n"
        "        else: cuda.cuDevicePrimaryCtxRelease_v2(gpu)\n"
        "    cuda.cuDevicePrimaryCtxReset_v2(gpu)\n"
        "def true_of(gpu):\n"
        "    start(gpu); settled(held_mib(gpu), 3); r.append([charged_mib(), held_mib(gpu)])\n"
        f"if {told == 'at first'}: pid_told()\n"
        f"threads = [threading.Thread(target={kind}, args=(n % 2, random.Random(n))) for n in range(6)]\n"
        "for t in threads: t.start()\n"
        "time.sleep(0.01); pid_told()\n"
        "for t in threads: t.join()\n"
        "for gpu in (0, 1): true_of(gpu)\n"
        "while kept:\n"
        "    gpu, one = kept.pop(); cuda.cuCtxDestroy_v2(ctypes.c_void_p(one)); true_of(gpu)\n"
        "r.append([held_mib(0), held_mib(1)])"
    )
    answers = run(hidden, steps, "32000m")
    assert answers.pop() == [300, 300]
    assert all(charged == held for charged, held in answers), answers


def test_processes_that_start_together_do_not_take_each_others_contexts_for_their_own(
    node: Node,
) -> None:
    """The first one measures, the others go by that, however long a context takes."""
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=300, context_ms=100))
    node.sim.hidden_pids()
    code = "say(result=start())\nimport sys; sys.stdout.flush(); input()"
    started = [node.start(code, env={LIMIT: "2500m"}) for _ in range(8)]
    try:
        said = [json.loads(process.stdout.readline()) for process in started if process.stdout]
        assert [one["result"] for one in said] == [0] * 8
        assert RegionFile(node.cache).ledger() == 8 * 300 << 20
    finally:
        for process in started:
            process.communicate("\n", timeout=60)
