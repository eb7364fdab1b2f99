"""Stream-ordered memory: a pool is charged for what the driver reserves for it."""

import subprocess

import pytest
from built_hook import ROOT, built
from c_programs import compiled
from hooked_programs import LIMIT, Node
from region_files import RegionFile

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nstart()\n"
TELLS_OF_POOLS = 13020  # the driver that tells where a pool is, and of what


@pytest.mark.parametrize(
    ("allocate", "give_back"),
    [
        pytest.param("draw(100)", "put(a)", id="cuMemAllocAsync"),
        pytest.param("draw(100, suffix='_ptsz')", "put(a, suffix='_ptsz')", id="per-thread stream"),
        pytest.param("draw(100, p)", "put(a)", id="a pool of its own"),
        pytest.param("draw(100, p, suffix='_ptsz')", "put(a)", id="the same, per-thread stream"),
        pytest.param("draw(100, default_pool())", "put(a)", id="the default pool, by name"),
        pytest.param("draw(100)", "free(a)", id="cuMemFree of a stream's memory"),
        pytest.param("alloc(100)", "put(a)", id="cuMemFreeAsync of other memory"),
    ],
)
def test_both_counts_agree_from_the_first_byte_to_the_last(
    node: Node, allocate: str, give_back: str
) -> None:
    code = (
        "p = pool()\n"
        f"first, a = {allocate}\n"
        "held = both()\n"
        f"too_much, none = {allocate}\n"
        "peak = both()\n"
        f"freed = {give_back}\n"
        "cuda.cuCtxSynchronize()\n"
        "left = both()\n"
        f"again, _ = {allocate}\n"
        "say(first=first, held=held, too_much=[too_much, none], peak=peak, freed=freed, left=left, again=again)"
    )
    said = node.run(BEGIN + code, **{LIMIT: "199m"})
    assert (said["first"], said["freed"], said["again"]) == (0, 0, 0)
    assert said["held"][0] == said["held"][1] >= 100
    assert said["too_much"] == [2, 0]
    assert said["peak"] == said["held"]
    assert said["left"] == [0, 0]
    assert node.sim.peak_mib(GPU) <= 199


@pytest.mark.parametrize(
    "take",
    [
        pytest.param("alloc(64)", id="an allocation"),
        pytest.param("managed(64)", id="managed memory"),
        pytest.param("draw(64)", id="a stream's"),
        pytest.param("draw(64, pool())", id="a pool's"),
    ],
)
@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_what_a_capture_is_told_to_free_is_still_there(node: Node, take: str, suffix: str) -> None:
    """It becomes a node of a graph. The charge was given back, so that there was no limit."""
    code = (
        "def managed(mib):\n"
        "    a = ctypes.c_uint64(); return cuda.cuMemAllocManaged(ctypes.byref(a), mib << 20, 1), a.value\n"
        f"s, g = new_stream(), ctypes.c_void_p()\nerror, a = {take}\nheld = ledger_mib()\n"
        f"cuda.cuStreamBeginCapture_v2(s, 2); put(a, s, {suffix!r}); cuda.cuStreamEndCapture(s, ctypes.byref(g))\n"
        "captured = ledger_mib()\n"
        f"freed = cuda.cuMemFree_v2(ctypes.c_uint64(a)); cuda.cuCtxSynchronize()\n"
        "say(error=error, held=held, captured=captured, freed=freed, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "199m"})
    assert (said["error"], said["freed"]) == (0, 0)
    assert said["captured"] == said["held"] >= 64
    assert said["left"] == [0, 0]


def test_of_more_pools_than_can_be_counted_nothing_is_given(node: Node) -> None:
    """What the driver reserves for them, a step of 32 MiB each, would be past the limit."""
    code = (
        "drawn = [draw(0.001, pool())[0] for _ in range(1027)]\n"
        "say(given=drawn.count(0), after=drawn[1024:], both=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "40000m"})
    assert (said["given"], said["after"]) == (1024, [2, 2, 2])
    assert said["both"] == [1024 * 32] * 2


def test_what_a_pool_keeps_stays_charged_and_costs_nothing_to_use_again(node: Node) -> None:
    code = (
        "keep(default_pool(), 1000)\n"
        "_, a = draw(100)\nput(a)\ncuda.cuCtxSynchronize()\nkept = both()\n"
        "again, a = draw(120)\nreused = both()\n"
        "say(kept=kept, again=again, reused=reused)"
    )
    said = node.run(BEGIN + code, **{LIMIT: "150m"})
    assert said["kept"] == [128, 128]
    assert (said["again"], said["reused"]) == (0, [128, 128])


def test_a_driver_that_ceases_to_tell_what_a_pool_keeps_changes_no_charge(node: Node) -> None:
    """As after a kernel has failed, when it refuses everything. It holds what it held."""
    code = (
        "p = default_pool(); keep(p, 10000); a = draw(500)[1]; put(a)\n"
        "with refused('cuMemPoolGetAttribute', 700):\n"
        "    cuda.cuCtxSynchronize(); idle = both()\n"
        "    a = draw(300)[1]; used = both(); put(a); cuda.cuCtxSynchronize()\n"
        "    say(idle=idle, used=used, left=both(), more=alloc(480)[0])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "1000m"})
    assert (said["idle"], said["used"], said["left"]) == ([512, 512], [512, 512], [512, 512])
    assert (said["more"], node.sim.peak_mib(GPU) <= 1000) == (0, True)


def test_a_pool_that_is_destroyed_while_the_driver_does_not_tell_what_it_keeps_stays_charged(
    node: Node,
) -> None:
    code = (
        "p = pool(); a = draw(500, p)[1]\n"
        "with refused('cuMemPoolGetAttribute', 700):\n"
        "    gone = cuda.cuMemPoolDestroy(p); kept = both(); put(a); freed = ledger_mib()\n"
        "    more = draw(600)[0]\n"
        "cuda.cuCtxSynchronize()\n"
        "say(gone=gone, kept=kept, freed=freed, more=more, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "1000m"})
    assert (said["gone"], said["kept"], said["freed"]) == (0, [512, 512], 512)
    assert (said["more"], said["left"]) == (2, [0, 0])


def test_a_driver_that_never_tells_what_a_pool_keeps_is_charged_what_is_live(node: Node) -> None:
    code = (
        "with refused('cuMemPoolGetAttribute', 1):\n"
        "    a = draw(70)[1]; live = ledger_mib(); put(a); cuda.cuCtxSynchronize()\n"
        "    say(live=live, left=ledger_mib())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "1000m"})
    assert (said["live"], said["left"]) == (70, 0)


@pytest.mark.parametrize("code", [719, 3, 4, 201])
def test_where_the_driver_does_not_tell_the_device_it_gives_nothing(node: Node, code: int) -> None:
    """It would not be counted, also where it says that there is no context. The error is the driver's own."""
    steps = (
        "p = pool(); s = new_stream()\n"
        f"with refused('cuCtxGetDevice', {code}):\n"
        "    r = [alloc(100), draw(100), draw(100, p), draw(100, None, s)]\n"
        "say(r=r, left=held_mib(), after=draw(100)[0])"
    )
    said = node.run(BEGIN + steps, **{LIMIT: "199m"})
    assert (said["r"], said["left"], said["after"]) == ([[code, 0]] * 4, 0, 0)


@pytest.mark.parametrize("call", ["cuStreamGetCtx", "cuCtxPushCurrent_v2"])
def test_where_the_driver_does_not_tell_where_a_stream_is_it_gives_nothing(
    node: Node, call: str
) -> None:
    """Of the current context's device, which has room, it would be charged to."""
    node.sim.add_gpu(1, SimGpu(uuid=OTHER))
    code = (
        "s = new_stream(); start(1)\n"
        f"with refused('{call}', 999):\n"
        "    r = draw(300, stream=s)\n"
        "say(r=r, left=[held_mib(), held_mib(1)], after=draw(300, stream=s)[0], here=draw(300)[0])"
    )
    limits = {f"{LIMIT}_0": "100m", f"{LIMIT}_1": "1000m"}
    said = node.run(BEGIN + code, NVIDIA_VISIBLE_DEVICES=f"{GPU},{OTHER}", **limits)
    assert (said["r"], said["left"]) == ([400, 0], [0, 0])  # CUDA_ERROR_INVALID_HANDLE
    assert (said["after"], said["here"]) == (2, 0)


@pytest.mark.parametrize("call", ["cuDeviceSetMemPool", "cuDeviceGetDefaultMemPool"])
def test_a_pool_is_charged_until_it_is_gone_though_nothing_takes_its_place(
    node: Node, call: str
) -> None:
    code = (
        "p = pool(); cuda.cuDeviceSetMemPool(0, p); _, a = draw(1, p)\n"
        f"with refused('{call}'): gone = cuda.cuMemPoolDestroy(p)\n"
        "r = [both()]; put(a); settled(0); r.append(both()); say(gone=gone, r=r, after=draw(1)[0])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["gone"], said["r"], said["after"]) == (0, [[32, 32], [0, 0]], 0)


def test_a_pool_that_keeps_part_of_a_step_still_grows_by_whole_ones(node: Node) -> None:
    code = (
        "s = new_stream(); p = pool(); keep(p, 50)\n"
        "_, a = draw(100, p, s); put(a, s); cuda.cuStreamSynchronize(s)\n"
        "r = [both(), alloc(846)[0], draw(51, p, s)[0], both()]\n"
        "say(r=r)"
    )
    said = node.run(BEGIN + code, **{LIMIT: "900m"})
    assert said["r"] == [[50, 50], 0, 2, [846, 846]]
    assert node.sim.peak_mib(GPU) <= 900


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("cuda.cuStreamSynchronize(s)", id="cuStreamSynchronize"),
        pytest.param("cuda.cuStreamSynchronize_ptsz(None)", id="cuStreamSynchronize_ptsz"),
        pytest.param("cuda.cuCtxSynchronize()", id="cuCtxSynchronize"),
        pytest.param("cuda.cuCtxSynchronize_v2(c)", id="cuCtxSynchronize_v2"),
        pytest.param(
            "cuda.cuEventRecord(e, s) or cuda.cuEventSynchronize(e)", id="cuEventSynchronize"
        ),
    ],
)
def test_what_the_driver_gives_back_when_it_is_waited_for_is_there_for_other_processes(
    node: Node, wait: str
) -> None:
    code = (
        "go, tell = os.pipe(); hear, answer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    for _ in range(2):\n"
        "        os.read(go, 1); start(); os.write(answer, bytes([alloc(150)[0]]))\n"
        "    os._exit(0)\n"
        "def there(): os.write(tell, b'x'); return os.read(hear, 1)[0]\n"
        "start(); s = new_stream(); c = ctypes.c_void_p(); e = ctypes.c_void_p()\n"
        "cuda.cuCtxGetCurrent(ctypes.byref(c)); cuda.cuEventCreate(ctypes.byref(e), 0)\n"
        "_, a = draw(100, stream=s)\n"
        f"r = [there(), put(a, s), {wait}, there()]\n"
        "os.wait(); say(r=r)"
    )
    said = node.run("from memory_calls import *\n" + code, **{LIMIT: "199m"})
    assert said["r"] == [2, 0, 0, 0]


@pytest.mark.parametrize("end", ["trimmed", "destroyed", "another pool", "plain memory"])
def test_what_a_pool_keeps_unused_is_there_for_who_needs_it(node: Node, end: str) -> None:
    steps = {
        "trimmed": "trim = cuda.cuMemPoolTrimTo(p, ctypes.c_size_t(0))\nresult, _ = alloc(150)",
        "destroyed": "trim = cuda.cuMemPoolDestroy(p)\nresult, _ = alloc(150)",
        "another pool": "trim = 0\nresult, _ = draw(120)",
        "plain memory": "trim = 0\nresult, _ = alloc(150)",
    }
    code = (
        "p = pool()\nkeep(p, 1000)\n_, a = draw(100, p)\nput(a)\nkept = both()\n"
        f"{steps[end]}\nsay(kept=kept, trim=trim, result=result, now=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "160m"})
    assert said["kept"] == [128, 128]
    assert (said["trim"], said["result"]) == (0, 0)
    assert said["now"][0] == said["now"][1]
    assert node.sim.peak_mib(GPU) <= 160


@pytest.mark.parametrize("mode", [0, 1], ids=["global", "thread local"])
def test_giving_back_what_is_unused_disturbs_no_capture(node: Node, mode: int) -> None:
    """Though a program that did so would, as this driver sees it."""
    code = (
        "p = pool(); keep(p, 1000); _, a = draw(100, p); put(a); s = new_stream(); made = ctypes.c_void_p()\n"
        "def during(what):\n"
        f"    begun = cuda.cuStreamBeginCapture_v2(s, {mode}), what()\n"
        "    return *begun, cuda.cuStreamEndCapture(s, ctypes.byref(made))\n"
        "r = [both(), *during(lambda: draw(120)[0]), both()]\n"
        "say(r=r, own=during(lambda: cuda.cuMemPoolTrimTo(p, ctypes.c_size_t(0))))"
    )
    said = node.run(BEGIN + code, **{LIMIT: "160m"})
    assert said["r"] == [[128, 128], 0, 0, 0, [128, 128]]
    assert said["own"] == [0, 900, 901]


POOLS = ("pools.c", "pool_driver.c", "pooled.c")


def test_a_pool_ends_after_its_last_use_and_has_one_account_till_then() -> None:
    """Not its child's, nor that of the next pool of its handle."""
    parts = [
        str(ROOT / "hook" / name)
        for name in (*POOLS, "blocks.c", "brief.c", "depth.c", "reserve.c", "table.c")
    ]
    program = compiled("pool_visits.c", f"-I{ROOT / 'hook'}", *parts, "-lpthread")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 1 0 2 in time\n"


def test_threads_that_share_a_step_are_not_refused_for_each_others_sake(node: Node) -> None:
    """Eight of them need 8 MiB, for which the driver reserves 32."""
    libraries = (str(built() / "sim" / "libcuda.so.1"), "-ldl", "-lpthread")
    done = node.run_program([str(compiled("pool_racers.c", *libraries)), "200"], **{LIMIT: "40m"})
    assert (done.stdout, done.stderr) == ("0 0\n", "")


def test_a_destroyed_pool_is_charged_until_its_last_piece_is_free(node: Node) -> None:
    code = (
        "p = pool()\n_, a = draw(60, p)\n_, b = draw(60, p)\n"
        "destroyed = cuda.cuMemPoolDestroy(p)\n"
        "put(a)\nhalf = charged_mib()\nput(b)\nsettled(0)\n"
        "say(destroyed=destroyed, half=half, left=both(), more=alloc(200)[0])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "200m"})
    assert (said["destroyed"], said["left"], said["more"]) == (0, [0, 0], 0)
    assert said["half"] >= 60


def test_a_pool_is_destroyed_once_though_something_of_it_is_left(node: Node) -> None:
    code = (
        "p = pool()\n_, a = draw(60, p)\nr = [cuda.cuMemPoolDestroy(p) for _ in range(3)]\n"
        "put(a)\nsettled(0)\nsay(r=[*r, both()])"
    )
    assert node.run(BEGIN + code, **{LIMIT: "100m"})["r"] == [0, 1, 1, [0, 0]]


def test_a_destroyed_pool_is_charged_what_the_driver_keeps_for_its_pieces(node: Node) -> None:
    code = (
        "p = pool()\nkeep(p, 1000)\n_, a = draw(1, p)\n_, b = draw(60, p)\nput(b)\n"
        "cuda.cuCtxSynchronize()\nbefore = both()\n"
        "destroyed = cuda.cuMemPoolDestroy(p)\nleft = both()\n"
        "more = alloc(80)[0]\nput(a)\nsettled(0)\n"
        "say(destroyed=destroyed, before=before, left=left, more=more, after=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["destroyed"], said["before"], said["left"]) == (0, [64, 64], [32, 32])
    assert (said["more"], said["after"]) == (2, [0, 0])


def test_the_current_pool_of_the_device_is_the_one_that_is_charged(node: Node) -> None:
    code = (
        "p = pool()\nkeep(p, 1000)\nset = cuda.cuDeviceSetMemPool(0, p)\n"
        "_, a = draw(40)\nput(a)\ncuda.cuCtxSynchronize()\nkept = [*both(), pool_mib(p)]\n"
        "cuda.cuMemPoolDestroy(p)\n_, a = draw(10)\n"
        "say(set=set, kept=kept, now=[*both(), pool_mib(default_pool())])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "200m"})
    assert (said["set"], said["kept"], said["now"]) == (0, [64, 64, 64], [32, 32, 32])


OTHER = made_up_uuid(1)
TELLS_NOT = pytest.param("cuMemPoolGetAttribute", id="a driver that does not tell where a pool is")


@pytest.mark.parametrize("refused", [pytest.param("", id="any driver"), TELLS_NOT])
@pytest.mark.parametrize(
    "of",
    [
        pytest.param("pool(device=1)", id="of the program"),
        pytest.param(
            "cuda.cuMemPoolDestroy(pool()) or pool(device=1)", id="after one of the current device"
        ),
        pytest.param("default_pool(1)", id="the device's own"),
        pytest.param("default_pool(1, 'cuDeviceGetMemPool')", id="the device's current one"),
        pytest.param("pool_at('cuMemGetDefaultMemPool', 1, 1)", id="own, by location"),
        pytest.param("pool_at('cuMemGetMemPool', 1, 1)", id="current, by location"),
    ],
)
def test_a_pool_is_charged_on_its_own_device_whatever_is_current(
    node: Node, of: str, refused: str
) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    if refused:
        node.sim.fail(refused, 1)
    code = (
        f"p = {of}\ntoo_much = draw(200, p)[0]\ngiven, a = draw(64, p)\nhere = both()\n"
        "start(1); there = [charged_mib(), held_mib(1)]\n"
        "start(0); freed = put(a); cuda.cuCtxSynchronize(); start(1)\n"
        "say(too_much=too_much, given=given, here=here, there=there, freed=freed,\n"
        "    left=[charged_mib(), held_mib(1)])"
    )
    env = {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "100m", "NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}"}
    said = node.run(BEGIN + code, **env)
    assert (said["too_much"], said["given"], said["freed"]) == (2, 0, 0), said
    assert (said["here"], said["there"], said["left"]) == ([0, 0], [64, 64], [0, 0])
    assert node.sim.peak_mib(OTHER) <= 100


def test_what_other_devices_pools_give_back_as_we_wait_is_seen(node: Node) -> None:
    """For want of memory on one GPU all that runs is waited for; the other's pool has shrunk by then."""
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    code = (
        "start(1); there = draw(100)[1]; start(0); put(draw(500)[1])\n"
        "start(1); put(there); start(0); given = alloc(900)[0]; say(given=given, held=held_mib(1))"
    )
    env = {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "1g", "NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}"}
    said = node.run(BEGIN + code, **env)
    assert (said["given"], said["held"]) == (0, RegionFile(node.cache).ledger(1) / (1 << 20))


@pytest.mark.parametrize(
    ("asks", "result"),
    [
        pytest.param("draw(950, p, other)[0]", 0, id="of a pool"),
        pytest.param("create(950)[0]", 0, id="with cuMemCreate"),
        pytest.param("alloc(5000)[0]", 2, id="what can never fit"),
    ],
)
def test_streams_that_wait_for_the_caller_are_not_waited_for_without_end(
    node: Node, asks: str, result: int
) -> None:
    """A collective's first half runs until the thread that asks for memory has launched the other."""
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    node.sim.kernel("allreduce", 1000, meets=2)
    code = (
        "from gpu_calls import kernel, launch, stream\n"
        "halves = []\n"
        "for d in (0, 1): start(d); halves.append((kernel('allreduce'), stream()))\n"
        "start(0); other, work = stream(), stream()\n"
        "p = pool(); keep(p, 4000); put(draw(100, p, work)[1], work)\n"
        f"first = launch(*halves[0]); asked = {asks}\n"
        "start(1); then = launch(*halves[1]); say(r=[first, asked, then, cuda.cuCtxSynchronize()])"
    )
    env = {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "1g", "NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}"}
    said = node.run_in_virtual_time(BEGIN + code, **env)
    assert said["r"] == [0, result, 0, 0], said["stderr"]


def test_a_stream_of_another_device_is_charged_there(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    code = (
        "start(1); s = new_stream(); start(0)\n"
        "r = [draw(200, stream=s)[0], draw(64, stream=s)[0], both()]\n"
        "start(1); say(r=[*r, charged_mib(), held_mib(1)])"
    )
    env = {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "100m", "NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}"}
    assert node.run(BEGIN + code, **env)["r"] == [2, 0, [0, 0], 64, 64]


@pytest.mark.parametrize(
    "of",
    [
        pytest.param("pool(2)", id="of the program"),
        pytest.param("pool(3)", id="of the program, at a NUMA node"),
        pytest.param("pool_at('cuMemGetDefaultMemPool', 2)", id="the host's own"),
        pytest.param("pool_at('cuMemGetMemPool', 3)", id="the current one of a NUMA node"),
    ],
)
def test_pools_of_the_host_are_not_charged(node: Node, of: str) -> None:
    node.sim.versions(cuda=TELLS_OF_POOLS)
    code = (
        f"p = {of}\nfirst, a = draw(100, p)\nheld = both()\nfreed = put(a)\n"
        "say(first=first, held=held, freed=freed, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "50m"})
    assert (said["first"], said["freed"]) == (0, 0)
    assert said["held"] == said["left"] == [0, 0]


@pytest.mark.parametrize(
    ("cuda", "fails"),
    [
        pytest.param(TELLS_OF_POOLS, True, id="it fails"),
        pytest.param(TELLS_OF_POOLS - 10, False, id="an older one"),
    ],
)
def test_the_hosts_own_pool_is_charged_where_the_driver_does_not_tell_what_it_is(
    node: Node, cuda: int, fails: bool
) -> None:
    node.sim.versions(cuda=cuda)
    if fails:
        node.sim.fail("cuMemPoolGetAttribute", 1)
    code = "p = pool_at('cuMemGetDefaultMemPool', 2)\nsay(r=[draw(100, p)[0], draw(32, p)[0], charged_mib()])"
    assert node.run(BEGIN + code, **{LIMIT: "50m"})["r"] == [2, 0, 32]


@pytest.mark.parametrize("refused", [pytest.param("", id="any driver"), TELLS_NOT])
@pytest.mark.parametrize(
    "of",
    [
        pytest.param("pool(0, memory=2)", id="nowhere"),
        pytest.param("pool(2, memory=2)", id="preferably on the host"),
        pytest.param("pool_at('cuMemGetDefaultMemPool', 2, memory=2)", id="the host's own"),
        pytest.param("pool(1, memory=2)", id="preferably on the device"),
    ],
)
def test_pools_of_managed_memory_are_charged_wherever_its_pages_are(
    node: Node, of: str, refused: str
) -> None:
    if refused:
        node.sim.fail(refused, 1)
    code = f"p = {of}\nsay(r=[draw(200, p)[0], draw(64, p)[0], charged_mib()])"
    assert node.run(BEGIN + code, **{LIMIT: "100m"})["r"] == [2, 0, 64]


@pytest.mark.parametrize("refused", [pytest.param("", id="any driver"), TELLS_NOT])
def test_pools_at_a_place_of_a_release_to_come_are_charged_where_they_are_used(
    node: Node, refused: str
) -> None:
    if refused:
        node.sim.fail(refused, 1)
    code = "p = pool(9)\nsay(r=[draw(200, p)[0], draw(64, p)[0], charged_mib()])"
    assert node.run(BEGIN + code, **{LIMIT: "100m"})["r"] == [2, 0, 64]


def test_what_is_captured_from_a_pool_of_another_device_is_charged_there(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    code = (
        "s = new_stream(); made = ctypes.c_void_p()\n"
        "cuda.cuStreamBeginCapture_v2(s, 2)\n"
        "_, a = draw(64, default_pool(1), s)\n"
        "_, host = draw(640, pool(2), s)\n"
        "put(a, s); put(host, s); cuda.cuStreamEndCapture(s, ctypes.byref(made))\n"
        "e = instantiate(made)\n"
        "r = [cuda.cuGraphLaunch(e, None)]\n"
        "say(r=r)"
    )
    env = {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "60m", "NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}"}
    assert node.run(BEGIN + code, **env)["r"] == [2]


def test_what_is_captured_from_a_pool_of_another_device_is_taken_there(node: Node) -> None:
    """Its properties are the node's, says the reference of cuMemAllocFromPoolAsync."""
    node.sim.add_gpu(gpu=SimGpu(uuid=OTHER))
    code = (
        "s = new_stream(); made = ctypes.c_void_p()\n"
        "cuda.cuStreamBeginCapture_v2(s, 2); draw(64, default_pool(1), s)\n"
        "cuda.cuStreamEndCapture(s, ctypes.byref(made)); r = [launch(instantiate(made)), both()]\n"
        "start(1); r += [charged_mib(), held_mib(1)]; say(r=r)"
    )
    assert node.run(BEGIN + code, **{LIMIT: "1g"})["r"] == [0, [0, 0], 64, 64]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        pytest.param("draw(0)[0]", 1, id="nothing is asked for"),
        pytest.param("cuda.cuMemAllocAsync(None, ctypes.c_size_t(99), None)", 1, id="no place to put it"),
        pytest.param("draw(1 << 40)[0]", 2, id="an exabyte"),
        pytest.param("draw(1, ctypes.c_void_p(0x1234))[0]", 1, id="no such pool"),
        pytest.param("put(0x1234)", 1, id="freeing what is not there"),
        pytest.param("cuda.cuMemPoolDestroy(default_pool())", 1, id="destroying the default pool"),
        pytest.param("cuda.cuMemPoolTrimTo(ctypes.c_void_p(7), ctypes.c_size_t(0))", 1, id="trimming no pool"),
        pytest.param("cuda.cuMemPoolCreate(None, None)", 1, id="no properties"),
        pytest.param("cuda.cuCtxSetCurrent(None) or draw(1)[0]", 201, id="no context"),
    ],
)  # fmt: skip
def test_the_answer_to_odd_calls_is_the_drivers_and_nothing_stays_charged(
    node: Node, code: str, result: int
) -> None:
    said = node.run(
        f"{BEGIN}result = {code}\nstart()\nsay(result=result, left=both())", **{LIMIT: "1g"}
    )
    assert (said["result"], said["left"], said["rc"]) == (result, [0, 0], 0)


def test_a_pool_that_the_driver_does_not_destroy_stays_one(node: Node) -> None:
    code = (
        "p = pool()\n"
        "with refused('cuMemPoolDestroy'): r = [cuda.cuMemPoolDestroy(p)]\n"
        "say(r=[*r, draw(60, p)[0], both()])"
    )
    assert node.run(BEGIN + code, **{LIMIT: "1g"})["r"] == [999, 0, [64, 64]]


def test_nothing_is_the_drivers_to_refuse_also_where_nothing_is_left(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, pool_step_mib=0))
    code = "say(r=[draw(1)[0], alloc(32)[0], draw(0)[0], both()])"
    assert node.run(BEGIN + code, **{LIMIT: "33m"})["r"] == [0, 0, 1, [33, 33]]


@pytest.mark.parametrize(
    "of",
    [
        pytest.param("None", id="cuMemAllocAsync"),
        pytest.param("default_pool()", id="cuMemAllocFromPoolAsync"),
    ],
)
def test_what_the_driver_refuses_is_not_charged(node: Node, of: str) -> None:
    node.sim.fail("cuMemAllocFromPoolAsync", 999)
    said = node.run(f"{BEGIN}say(result=draw(10, {of})[0], left=both())", **{LIMIT: "1g"})
    assert (said["result"], said["left"]) == (999, [0, 0])


def test_a_failed_free_stays_charged(node: Node) -> None:
    node.sim.fail("cuMemFreeAsync", 700)
    said = node.run(
        f"{BEGIN}_, a = draw(10)\nsay(result=put(a), left=both(), later=free(a))", **{LIMIT: "1g"}
    )
    assert (said["result"], said["left"], said["later"]) == (700, [32, 32], 0)


def test_over_the_limit_the_driver_is_not_asked(node: Node) -> None:
    node.sim.fail("cuMemAllocFromPoolAsync", 999)
    said = node.run(f"{BEGIN}say(result=draw(200)[0])", **{LIMIT: "100m"})
    assert said["result"] == 2


@pytest.mark.parametrize("step_mib", [0, 2, 20, 64, 200])
def test_a_pool_that_grows_by_other_steps_never_exceeds_the_limit_for_long(
    node: Node, step_mib: int
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, pool_step_mib=step_mib))
    code = "results = [draw(30)[0] for _ in range(10)]\nsay(results=results, now=both())"
    said = node.run(BEGIN + code, **{LIMIT: "150m"})
    assert set(said["results"]) <= {0, 2}
    assert said["results"][-1] == 2
    assert said["now"][0] == said["now"][1] <= 150
    assert step_mib > 32 or node.sim.peak_mib(GPU) <= 150


def test_memory_of_a_pool_in_another_process_is_its_exporters(node: Node) -> None:
    code = (
        "p = pool()\n_, a = draw(60, p)\nfd = ctypes.c_int()\n"
        "exported = cuda.cuMemPoolExportToShareableHandle(ctypes.byref(fd), p, 1, ctypes.c_uint64(0))\n"
        "data = ctypes.create_string_buffer(64)\ncuda.cuMemPoolExportPointer(data, ctypes.c_uint64(a))\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); q = ctypes.c_void_p(); b = ctypes.c_uint64()\n"
        "    there = [cuda.cuMemPoolImportFromShareableHandle(ctypes.byref(q), ctypes.c_void_p(fd.value), 1, ctypes.c_uint64(0)),\n"
        "             cuda.cuMemPoolImportPointer(ctypes.byref(b), q, data), charged_mib(), put(b.value),\n"
        "             charged_mib()]\n"
        "    os.write(write, json.dumps(there).encode()); os._exit(0)\n"
        "os.wait()\n"
        "say(exported=exported, there=json.loads(os.read(read, 1000)), here=both())"
    )  # fmt: skip
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["exported"], said["there"], said["here"]) == (0, [0, 0, 64, 0, 64], [64, 64])


def test_a_forked_child_has_no_pools(node: Node) -> None:
    code = (
        "_, a = draw(60)\nread, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); b = draw(20)[0]\n"
        "    os.write(write, json.dumps([b, draw(40)[0], charged_mib()]).encode()); os._exit(0)\n"
        "os.wait()\n"
        "settled(64)\n"
        "say(there=json.loads(os.read(read, 1000)), here=charged_mib(), freed=put(a))"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert said["there"] == [0, 2, 96]
    assert (said["here"], said["freed"]) == (64, 0)


def test_threads_that_share_a_pool_agree_with_the_driver(node: Node) -> None:
    code = (
        "import threading, random\n"
        "def churn(seed):\n"
        "    start(); choose = random.Random(seed); mine = []\n"
        "    for _ in range(300):\n"
        "        if mine and choose.random() < 0.5: put(mine.pop(choose.randrange(len(mine))))\n"
        "        else:\n"
        "            result, a = draw(choose.choice([0.001, 1, 5, 20]))\n"
        "            if result == 0: mine.append(a)\n"
        "        if choose.random() < 0.1: cuda.cuMemPoolTrimTo(default_pool(), ctypes.c_size_t(0))\n"
        "    for a in mine: put(a)\n"
        "threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "busy = both()\ncuda.cuCtxSynchronize()\nsay(busy=busy, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "150m"})
    assert said["busy"][0] == said["busy"][1]
    assert said["left"] == [0, 0]
    assert node.sim.peak_mib(GPU) <= 150


@pytest.mark.parametrize("call", ["alloc(150)[0]", "draw(150, pool())[0]"], ids=["plain", "pool"])
def test_what_is_given_after_idle_memory_was_taken_back_was_never_refused(
    node: Node, call: str
) -> None:
    code = (
        "keep(default_pool(), 1000)\n"
        "_, a = draw(120)\n"
        "put(a)\n"
        "cuda.cuCtxSynchronize()\n"
        f"say(given={call}, refused={call})"
    )
    said = node.run(BEGIN + code, **{LIMIT: "199m"})
    assert said == {**said, "given": 0, "refused": 2}
    region = RegionFile(node.cache)
    assert region.counter("refusals") == len(region.refusals()) == 1


def test_what_becomes_the_current_pool_meanwhile_is_not_drawn_from_uncharged(node: Node) -> None:
    libraries = (str(built() / "sim" / "libcuda.so.1"), "-ldl", "-lpthread")
    done = node.run_program(
        [str(compiled("pool_switches.c", *libraries)), "1000"], **{LIMIT: "100m"}
    )
    assert (done.stdout, done.stderr) == ("0 1000\n", "")
    assert node.sim.peak_mib(GPU) <= 100


def test_current_pools_that_end_meanwhile_leave_nothing_charged(node: Node) -> None:
    """Charged was an account that nobody had any more: the whole limit, for good."""
    program = compiled("pool_ends.c", f"-I{ROOT / 'hook'}", "-ldl", "-lpthread")
    done = node.run_program([str(program), "3000", "3"], **{LIMIT: "96m"})
    assert done.stderr == ""
    had, wrong, in_use_kib = map(int, done.stdout.split())
    assert had > 0
    assert (wrong, in_use_kib) == (0, 0)
    assert 0 < node.sim.peak_mib(GPU) <= 96


def test_a_pool_of_the_host_ends_as_the_driver_says(node: Node) -> None:
    """It is not counted, so nobody would see that nothing of it is left."""
    code = (
        "p = pool(2); drawn = draw(10, p)[0]\n"
        "with refused('cuMemPoolDestroy'): gone = cuda.cuMemPoolDestroy(p)\n"
        "say(r=[drawn, gone])"
    )
    assert node.run(BEGIN + code, **{LIMIT: "100m"})["r"] == [0, 999]
