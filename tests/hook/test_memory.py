"""Memory by address, of the GPU and of others; and shares that exceed the GPU."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nstart()\n"


@pytest.mark.parametrize(
    ("allocate", "free"),
    [
        pytest.param("alloc(1 / MIB)", "free(a)", id="cuMemAlloc_v2"),
        pytest.param("alloc(513 / MIB)", "free(a)", id="one byte over"),
        pytest.param("alloc(1 / MIB, 'cuMemAlloc')", "free(a, 'cuMemFree')", id="cuMemAlloc"),
        pytest.param("alloc(1 / MIB, 'cuMemAllocManaged', 1)", "free(a)", id="cuMemAllocManaged"),
        pytest.param("draw(1 / MIB)", "put(a)", id="cuMemAllocAsync"),
    ],
)
def test_whole_granules_are_charged(node: Node, allocate: str, free: str) -> None:
    code = f"e, a = {allocate}\nheld = both()\nsay(e=e, held=held, free={free}, left=0)"
    said = node.run(BEGIN + code, **{LIMIT: "1g"})
    assert (said["e"], said["free"]) == (0, 0)
    assert said["held"][0] == said["held"][1] > 0


ASKED, TOO_MUCH = 999, 2


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        pytest.param("cuMemAlloc_v2(p, u64(1 << 57))", ASKED, id="by address"),
        pytest.param("cuMemAlloc_v2(p, u64((1 << 64) - 1))", ASKED, id="as much as there are numbers"),
        pytest.param("cuMemAlloc_v2(p, u64((1 << 57) - 512))", TOO_MUCH, id="what an address could name"),
        pytest.param("cuMemAllocManaged(p, u64(1 << 63), 1)", ASKED, id="managed"),
        pytest.param("cuMemAllocPitch_v2(p, p, u64(1 << 50), u64(1 << 50), 4)", ASKED, id="rows"),
        pytest.param("cuMemAllocPitch_v2(p, p, u64((1 << 64) - 1), u64(1), 4)", ASKED, id="a row"),
        pytest.param("cuMemAllocAsync(p, u64(1 << 57), None)", ASKED, id="of a stream"),
        pytest.param("cuMemAllocAsync(p, u64((1 << 64) - 1), None)", ASKED, id="of a stream, rounded"),
        pytest.param("cuMemAllocAsync(p, u64((1 << 57) - 512), None)", TOO_MUCH, id="of a stream, less"),
        pytest.param("cuMemAllocFromPoolAsync(p, u64(1 << 57), default_pool(), None)", ASKED, id="of a pool"),
        pytest.param("cuMemCreate(p, u64(1 << 57), ctypes.byref(prop), u64(0))", ASKED, id="by handle"),
        pytest.param("cuMemCreate(p, u64((1 << 57) - 1), ctypes.byref(prop), u64(0))", TOO_MUCH, id="by handle, less"),
        pytest.param(
            "cuArrayCreate_v2(p, ctypes.byref(Array2D(1 << 60, 1 << 60, FLOAT, 4)))", ASKED, id="an array",
        ),
        pytest.param(
            "cuMipmappedArrayCreate(p, ctypes.byref(Array3D(1 << 60, 9, 9, FLOAT, 4)), 3)", ASKED, id="a mipmap",
        ),
    ],
)  # fmt: skip
def test_what_nothing_could_hold_is_the_drivers_to_refuse(
    node: Node, call: str, answer: int
) -> None:
    """It knows which of its errors that is."""
    node.sim.fail(call.partition("(")[0], ASKED)
    code = (
        "p = ctypes.create_string_buffer(64); prop = AllocationProp(type=1, location=Location(1, 0))\n"
        f"say(r=[cuda.{call}, both()])"
    )
    assert node.run(BEGIN + code, **{LIMIT: "1g"})["r"] == [answer, [0, 0]]


def test_what_the_driver_did_not_free_is_freed_later(node: Node) -> None:
    code = (
        "_, a = alloc(60)\n"
        "with refused('cuMemFree_v2'): r = [free(a), both()]\n"
        "say(r=[*r, free(a), both()])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert said["r"] == [999, [60, 60], 0, [0, 0]]


def test_without_a_context_the_driver_says_what_is_wrong(node: Node) -> None:
    node.sim.fail("cuMemAlloc_v2", ASKED)
    code = "cuda.cuCtxSetCurrent(None); say(r=alloc(60)[0])"
    assert node.run(BEGIN + code, **{LIMIT: "100m"})["r"] == ASKED


@pytest.mark.parametrize(
    ("take", "give"),
    [
        pytest.param("cuda.cuMemAllocHost_v2(ctypes.byref(p), u64(1 << 30))", "cuda.cuMemFreeHost(p)", id="pinned"),
        pytest.param("cuda.cuMemHostAlloc(ctypes.byref(p), u64(1 << 30), 0)", "cuda.cuMemFreeHost(p)", id="mapped"),
        pytest.param(
            "cuda.cuMemHostRegister_v2(ctypes.byref(p), u64(8), 0)", "cuda.cuMemHostUnregister(ctypes.byref(p))",
            id="registered",
        ),
        pytest.param(
            "cuda.cuImportExternalMemory(ctypes.byref(p), ctypes.create_string_buffer(256))"
            " or cuda.cuExternalMemoryGetMappedBuffer(ctypes.byref(a), p, ctypes.create_string_buffer(256))",
            "cuda.cuDestroyExternalMemory(p)", id="of another interface",
        ),
        pytest.param(
            "cuda.cuIpcOpenMemHandle_v2(ctypes.byref(a), Handle(), 1)", "cuda.cuIpcCloseMemHandle(a)",
            id="of another process",
        ),
    ],
)  # fmt: skip
def test_memory_that_is_not_of_this_gpu_or_process_is_not_charged(
    node: Node, take: str, give: str
) -> None:
    code = (
        "class Handle(ctypes.Structure): _fields_ = [('bytes', ctypes.c_char * 64)]\n"
        f"p, a = ctypes.c_void_p(), ctypes.c_uint64()\ntaken = {take}\n"
        f"held = both()\nsay(taken=taken, held=held, given={give}, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "10m"})
    assert (said["taken"], said["given"]) == (0, 0)
    assert said["held"] == said["left"] == [0, 0]


def test_memory_shared_by_ipc_is_charged_to_its_exporter(node: Node) -> None:
    code = (
        "class Handle(ctypes.Structure): _fields_ = [('bytes', ctypes.c_char * 64)]\n"
        "_, a = alloc(60); h = Handle(); cuda.cuIpcGetMemHandle(ctypes.byref(h), u64(a))\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); b = ctypes.c_uint64(); there = [cuda.cuIpcOpenMemHandle_v2(ctypes.byref(b), h, 1), charged_mib()]\n"
        "    there += [cuda.cuIpcCloseMemHandle(b), charged_mib()]\n"
        "    os.write(write, json.dumps(there).encode()); os._exit(0)\n"
        "os.wait(); say(there=json.loads(os.read(read, 1000)), freed=free(a), left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert said["there"] == [0, 60, 0, 60]
    assert (said["freed"], said["left"]) == (0, [0, 0])


# --- a share that exceeds the GPU -----------------------------------------------------------------

SMALL = SimGpu(uuid=GPU, memory_mib=1000)


@pytest.mark.parametrize(
    "allocate",
    [
        "alloc(600)",
        "pitched(600)",
    ],
    ids=["cuMemAlloc_v2", "cuMemAllocPitch_v2"],
)
def test_what_does_not_fit_the_gpu_goes_to_the_host_up_to_the_limit(
    node: Node, allocate: str
) -> None:
    node.sim.change_gpu(0, SMALL)
    code = (
        f"r = [total_mib(), info_mib()]\n"
        f"first, a = {allocate}\nr += [first, held_mib()]\n"
        f"second, b = {allocate}\nr += [second, held_mib(), info_mib()]\n"
        f"third, _ = {allocate}\nr += [third, free(b), free(a), held_mib(), info_mib()]\nsay(r=r)"
    )
    said = node.run(BEGIN + code, **{LIMIT: "1500m", "CUDA_OVERSUBSCRIBE": "true"})
    whole = [1500, 1500]
    assert said["r"] == [1500, whole, 0, 600, 0, 600, [300, 1500], 2, 0, 0, 0, whole]


def test_without_oversubscription_a_share_ends_where_the_gpu_does(node: Node) -> None:
    node.sim.change_gpu(0, SMALL)
    code = "say(total=total_mib(), info=info_mib(), first=alloc(600)[0], second=alloc(600)[0], used=used_mib())"
    said = node.run(BEGIN + code, **{LIMIT: "1500m"})
    assert (said["total"], said["info"]) == (1000, [1000, 1000])
    assert (said["first"], said["second"], said["used"]) == (0, 2, 600)


def test_rows_on_the_host_have_the_width_that_is_told(node: Node) -> None:
    node.sim.fail("cuMemAllocPitch_v2", 2)
    code = (
        "pitch = ctypes.c_size_t()\n"
        "e = cuda.cuMemAllocPitch_v2(ctypes.byref(u64(0)), ctypes.byref(pitch), u64(700), u64(2048), 4)\n"
        "say(r=[e, pitch.value, charged_mib()])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "1500m", "CUDA_OVERSUBSCRIBE": "true"})
    assert said["r"] == [0, 1024, 2]


def test_rows_whose_width_nobody_asks_for_do_not_go_to_the_host(node: Node) -> None:
    """Where the driver looks at its memory before it looks at the arguments."""
    node.sim.fail("cuMemAllocPitch_v2", 2)
    code = "say(r=cuda.cuMemAllocPitch_v2(ctypes.byref(u64(0)), None, u64(500), u64(500), 4), left=both())"
    said = node.run(BEGIN + code, **{LIMIT: "1500m", "CUDA_OVERSUBSCRIBE": "true"})
    assert (said["rc"], said["r"], said["left"]) == (0, 2, [0, 0])


def test_a_failure_of_the_host_is_the_drivers_first_answer(node: Node) -> None:
    node.sim.change_gpu(0, SMALL)
    node.sim.fail("cuMemAllocManaged", 999)
    code = "alloc(600)\nsay(second=alloc(600)[0], used=used_mib())"
    said = node.run(BEGIN + code, **{LIMIT: "1500m", "CUDA_OVERSUBSCRIBE": "true"})
    assert (said["second"], said["used"]) == (2, 600)


def test_what_is_being_freed_while_its_context_ends_is_given_back(node: Node) -> None:
    """The driver refuses that free, which came too late: it stayed charged for as long as the process lived."""
    code = (
        "made = ctypes.c_void_p(); cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0); _, a = alloc(60); r = []\n"
        "thread = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(made), r.append(free(a))))\n"
        "with held('cuMemFree_v2'): thread.start(); time.sleep(0.3); r.append(cuda.cuCtxDestroy_v2(made))\n"
        "thread.join(); start(); say(r=[*r, both(), alloc(100)[0]])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["rc"], said["r"]) == (0, [0, 1, [0, 0], 0])


def test_a_free_that_is_refused_after_another_context_ended_changes_nothing(node: Node) -> None:
    code = (
        "own, made = ctypes.c_void_p(), ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(own)); _, a = alloc(60); r = []\n"
        "cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0)\n"
        "thread = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(own), r.append(free(a))))\n"
        "with held('cuMemFree_v2'): thread.start(); time.sleep(0.3); r.append(cuda.cuCtxDestroy_v2(made))\n"
        "thread.join(); start(); say(r=[*r, both(), alloc(100)[0]])"
    )
    node.sim.fail("cuMemFree_v2", 999)
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["rc"], said["r"]) == (0, [0, 999, [60, 60], 2])


def test_what_is_allocated_in_a_context_that_is_not_told_outlasts_it(node: Node) -> None:
    """Too much is charged rather than too little, until it is freed or the process ends."""
    code = (
        "made = ctypes.c_void_p(); cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0)\n"
        "with refused('cuCtxGetCurrent'): r = [alloc(60)[0]]\n"
        "r += [*both(), cuda.cuCtxDestroy_v2(made)]; start(); r += both()\n"
        "say(r=r, more=[alloc(60)[0], alloc(30)[0]])"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["r"], said["more"]) == ([0, 60, 60, 0, 60, 0], [2, 0])
