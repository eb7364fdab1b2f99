"""What is launched is charged to the device that works, for as long as it works, whatever else is done.

The oracle is the simulated GPU, which counts what it worked for whom.
"""

import time
from pathlib import Path

import pytest
from built_hook import ROOT
from hooked_programs import CALLS as CALLS_AT
from hooked_programs import Node
from limits_bed import limits_bed
from share_bed import RECENT_KERNEL_AT

from agent.domain.limits_file import DeviceLimit
from agent.domain.region import TAIL, TAIL_OFFSET, V1
from agent.sim.driver import made_up_uuid

UUIDS = [made_up_uuid(number) for number in (0, 1)]
LIMITS_AT = 1728  # of the usage region, HAMi-core 1.2
BLOCKED_AT = 64 + 48  # of the limits file: the first GPU's line
WAITS_AT = TAIL_OFFSET + TAIL["devices"] + TAIL["device.waits"]
THROTTLED_AT = [  # of the first GPU: the container's, the first process's
    TAIL_OFFSET + TAIL["devices"] + TAIL["device.throttled_ns"],
    V1["slots"] + V1["slot.used"] + V1["usage.throttled_ns"],
]
BEGIN = f"""
from gpu_calls import *

LAUNCHES, UUIDS = 30, {UUIDS}


def current(context):
    assert cuda.cuCtxSetCurrent(context) == 0


def context(device=0):
    return made("cuCtxCreate_v2", 0, device)


def retain(device=0):
    return made("cuDevicePrimaryCtxRetain", device)


def release():
    return cuda.cuDevicePrimaryCtxRelease_v2(0)


def library_kernel():
    library = made("cuLibraryLoadData", b"image", None, None, 0, None, None, 0)
    return made("cuLibraryGetKernel", library, b"kernel")


def change_node(change):
    config = Path(os.environ["VGPU_SIM_DRIVER"])
    config.with_suffix(".new").write_text("".join(change(config.read_text().splitlines(True))))
    config.with_suffix(".new").rename(config)


def heal():
    change_node(lambda lines: [line for line in lines if not line.startswith("fail ")])


def fail(call):
    change_node(lambda lines: [*lines, f"fail call={{call}} code=999\\n"])


def told(devices=1):
    worked = [gpu_us(UUIDS[device], os.getpid()) for device in range(devices)]
    charged = [settled_us(worked[device] * 9 // 10, device) for device in range(devices)]
    say(worked=worked, charged=charged)


assert start() == 0
primary = Handle()
assert cuda.cuCtxGetCurrent(ctypes.byref(primary)) == 0
function = kernel("kernel")
"""
RIGHT = pytest.approx(1, abs=0.05)
NOTHING = pytest.approx(0, abs=0.05)


@pytest.fixture
def limited(node: Node) -> Node:
    """Two GPUs whose kernels take 3 ms."""
    node.sim.add_gpu()
    node.sim.kernel("kernel", 3000)
    return node


def charged(node: Node, code: str, **env: str) -> list[float]:
    """What was charged for each device, in parts of what the busiest of them worked."""
    limits = {"CUDA_DEVICE_SM_LIMIT": "60", **env}
    said = node.run_in_virtual_time(BEGIN + code, NVIDIA_VISIBLE_DEVICES=",".join(UUIDS), **limits)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert max(said["worked"]) >= 3000
    return [us / max(said["worked"]) for us in said["charged"]]


# --- how long the calls themselves take ---------------------------------------------------------------------

EACH_WAITED = (
    "for _ in range(LAUNCHES):\n    assert launch(function) == 0; cuda.cuCtxSynchronize()\n"
)
CALLS = (
    "def calls(us): change_node("
    "lambda lines: [*(a for a in lines if 'launch_us' not in a), f'launch_us {us}\\n'])\n"
)


@pytest.mark.parametrize(("us", "launch_us"), [(200, 150), (20_000, 5000)])
def test_time_that_a_launch_takes_is_not_the_gpus(limited: Node, us: int, launch_us: int) -> None:
    """As of the first of a kind, whose code is loaded, or of a thread that was put aside in it."""
    limited.sim.kernel("kernel", us)
    code = f"{CALLS}{EACH_WAITED}calls({launch_us})\n{EACH_WAITED * 3}told()"
    assert charged(limited, code) == [RIGHT]


@pytest.mark.parametrize("us", [20, 50, 200, 3000])
def test_kernels_that_their_launch_waits_for_are_charged(limited: Node, us: int) -> None:
    limited.sim.kernel("kernel", us)
    code = f"LAUNCHES = {max(30, 30_000 // us)}\n{EACH}launch(function)\ntold()"
    found = charged(limited, code, CUDA_LAUNCH_BLOCKING="1")
    assert found == [pytest.approx(1, abs=3 / us + 0.05)]  # 3 us: of the calls


def test_what_makes_launches_wait_need_not_be_known(limited: Node) -> None:
    """A debugger, or a variable that came too late for us: it is found out after some launches."""
    code = "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'; LAUNCHES = 400\n"
    assert charged(limited, f"{code}{EACH}launch(function)\ntold()") == [RIGHT]


def test_time_that_passes_after_a_launch_is_not_charged(limited: Node) -> None:
    """The thread is put aside before it can say where the launch ends; what one costs is known by then."""
    slowly = f"LAUNCHES = 10; calls(50_000)\n{EACH_WAITED}calls(2); LAUNCHES = 30\n"
    code = f"{CALLS}{EACH_WAITED}{slowly}{EACH_WAITED}{slowly}{EACH_WAITED}told()"
    assert charged(limited, code) == [RIGHT]


def test_the_thread_that_measures_takes_no_signals(limited: Node) -> None:
    """They are the program's, whose own mask is as it was."""
    code = (
        "for _ in range(5): launch(function)\n"
        "def blocked(task):\n"
        "    text = Path(f'/proc/self/task/{task}/status').read_text()\n"
        "    return int(text.split('SigBlk:')[1].split()[0], 16)\n"
        "tasks = {int(task): blocked(task) for task in os.listdir('/proc/self/task')}\n"
        "mine = tasks.pop(os.getpid()); say(mine=mine, others=list(tasks.values()))"
    )
    said = limited.run(BEGIN + code, CUDA_DEVICE_SM_LIMIT="60")
    assert said["mine"] == 0, said
    assert len(said["others"]) == 1
    assert all(mask | 0x1_8000_0000 | 1 << 8 | 1 << 18 == (1 << 64) - 1 for mask in said["others"])


# --- contexts -----------------------------------------------------------------------------------------------

EACH = "for _ in range(LAUNCHES):\n    "
END = "\ncuda.cuCtxSynchronize()\ntold()"
ANEW = "primary = retain(); current(primary)"


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("launch(function); retain(); release()", id="release"),
        pytest.param(f"launch(function); assert release() == 0; {ANEW}", id="last release"),
        pytest.param(f"launch(function); cuda.cuDevicePrimaryCtxReset(0); {ANEW}", id="reset"),
        pytest.param("c = context(); launch(function); cuda.cuCtxDestroy_v2(c)", id="destroy"),
        pytest.param(
            "c = context(); launch(function); assert cuda.cuCtxDetach(c) == 0", id="detach"
        ),
        pytest.param(
            "launch(function); assert cuda.cuCtxDestroy_v2(primary)", id="failing destroy"
        ),
    ],
)
def test_contexts_that_come_and_go_hide_nothing(limited: Node, step: str) -> None:
    assert charged(limited, EACH + step + END) == [RIGHT]


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
def test_an_end_that_the_driver_refuses_hides_nothing(limited: Node, call: str) -> None:
    limited.sim.fail(call, 999)
    assert charged(limited, EACH + f"launch(function); assert cuda.{call}(0) == 999" + END) == [
        RIGHT
    ]


def test_contexts_side_by_side_are_each_charged(limited: Node) -> None:
    """Events are of the context that they were made in."""
    code = "other = context()\n" + EACH + "current(other); launch(function); current(primary)"
    assert charged(limited, code + "; launch(function)" + END) == [RIGHT]


def test_contexts_in_turn_are_each_charged(limited: Node) -> None:
    """What was measured has been read by the time that the next one is launched."""
    code = "other = context()\n" + EACH + "time.sleep(0.02); launch(function)\n"
    code += "    cuda.cuCtxSynchronize(); time.sleep(0.02); current([primary, other][_ % 2])"
    assert charged(limited, code + END) == [RIGHT]


def test_what_still_runs_in_another_context_stays_measured(limited: Node) -> None:
    """The only way that this function is ever known: it runs whenever the other context ends."""
    limited.sim.kernel("brief", 10)
    code = (
        "brief = kernel('brief')\n"
        + EACH
        + "launch(function); c = context(); launch(brief); cuda.cuCtxDestroy_v2(c)\n"
    )
    assert charged(limited, code + END) == [RIGHT]


def test_a_context_is_not_waited_for_for_ever(limited: Node) -> None:
    """More than ten seconds of one launch are forgiven; and nothing is read where nothing is."""
    limited.sim.kernel("endless", 40_000_000)
    code = (
        "endless = kernel('endless'); launch(function)\n"
        "c = context(); launch(endless); cuda.cuCtxDestroy_v2(c); time.sleep(40); launch(function)"
    )
    assert charged(limited, code + END)[0] == pytest.approx(0.25, abs=0.02)


def test_where_nothing_could_be_measured_another_context_is_another_chance(limited: Node) -> None:
    limited.sim.fail("cuStreamCreateWithPriority", 2)
    code = (
        "c = context(); launch(function); launch(function); heal(); cuda.cuCtxDestroy_v2(c)\n"
        "for _ in range(100): launch(function)"
    )
    assert charged(limited, code + END) == [RIGHT]


@pytest.mark.parametrize(
    "call",
    ["cuStreamCreateWithPriority", "cuEventCreate", "cuEventRecord", "cuEventQuery",
     "cuEventElapsedTime", "cuCtxPushCurrent_v2"],
)  # fmt: skip
def test_a_failure_that_passes_leaves_the_share_as_it_was(limited: Node, call: str) -> None:
    """As where the GPU was full for a moment: charged 20 us instead of 3 ms, such a program had all of it."""
    code = (
        f"fail('{call}')\nfor _ in range(2): assert launch(function) == 0; cuda.cuCtxSynchronize()\n"
        "time.sleep(0.05); heal(); before, began = gpu_us(UUIDS[0]), time.monotonic()\n"
        "while time.monotonic() < began + 3: assert launch(function) == 0\n"
        "cuda.cuCtxSynchronize()\n"
        "say(percent=(gpu_us(UUIDS[0]) - before) / (time.monotonic() - began) / 1e4)"
    )
    said = limited.run_in_virtual_time(BEGIN + code, CUDA_DEVICE_SM_LIMIT="30")
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percent"] == pytest.approx(30, abs=1)


def test_a_kernel_that_waits_for_the_program_is_not_waited_for_for_ever(limited: Node) -> None:
    """Where nothing can be measured: for as long as one launch is charged, before the next and after it."""
    limited.sim.fail("cuEventRecord", 999)
    limited.sim.kernel("endless", 40_000_000)
    code = (
        "endless = kernel('endless'); began = time.monotonic()\n"
        "say(result=launch(endless), waited_s=time.monotonic() - began)"
    )
    said = limited.run_in_virtual_time(BEGIN + code, CUDA_DEVICE_SM_LIMIT="60")
    assert (said["rc"], said["result"]) == (0, 0)
    assert said["waited_s"] == pytest.approx(10, abs=1)


@pytest.mark.parametrize("first", ["primary", "other"])
def test_the_end_of_one_context_is_not_the_end_of_another(limited: Node, first: str) -> None:
    code = (
        f"other = context(); current({first}); launch(function)\n"
        + EACH
        + "current(other); launch(function); current(primary); launch(function)\n"
        "assert cuda.cuCtxDestroy_v2(other) == 0\n" + EACH + "launch(function)"
    )
    assert charged(limited, code + END) == [RIGHT]


def test_a_stream_of_a_context_that_is_not_current_is_measured(limited: Node) -> None:
    code = "other = context(); there = stream(); current(primary); function = library_kernel()\n"
    code += EACH + "launch(function, there)\ncuda.cuStreamSynchronize(there)"
    assert charged(limited, code + END) == [RIGHT]


def test_a_green_context_that_ended_is_left_alone(limited: Node) -> None:
    code = (
        "for _ in range(5):\n"
        "    green = made('cuGreenCtxCreate', Handle(1), 0, 1)\n"
        "    current(made('cuCtxFromGreenCtx', green))\n"
        "    for _ in range(3): assert launch(function) == 0\n"
        "    current(primary); assert cuda.cuGreenCtxDestroy(green) == 0\n"
        "    assert launch(function) == 0"
    )
    assert charged(limited, code + END) == [RIGHT]


GREEN = (
    "green = made('cuGreenCtxCreate', Handle(1), 0, 1); own = made('cuCtxFromGreenCtx', green)\n"
    "current(own); here, there = stream(), stream()\n"
)


@pytest.mark.parametrize("where", ["None", "here", "Handle(2)"])
def test_a_green_context_is_current_to_the_programs_thread_alone(limited: Node, where: str) -> None:
    """The simulated driver ends a program in which it is made current to a second one."""
    code = f"{GREEN}{EACH}assert launch(function, {where}) == 0; time.sleep(0.005)"
    assert charged(limited, code + END) == [RIGHT]


def test_streams_of_a_green_context_may_be_launched_on_by_any_thread(limited: Node) -> None:
    """While it is current to another, or to none."""
    code = GREEN + (
        "import threading\n"
        "def work(where):\n"
        "    current(primary)\n"
        "    for _ in range(LAUNCHES): assert launch(function, where) == 0; time.sleep(0.004)\n"
        "def both():\n"
        "    threads = [threading.Thread(target=work, args=[s]) for s in (here, there)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
        "both(); current(primary); both()\n"
        "current(own); assert launch(function) == 0"
    )
    assert charged(limited, code + END) == [RIGHT]


def test_with_the_last_green_context_that_of_its_device_ends(limited: Node) -> None:
    """The driver retains it for them. What is ours there ends with it, and is not read any more."""
    code = (
        "cuda.cuCtxSetCurrent(None); assert release() == 0\n"
        "def active():\n"
        "    flags, on = ctypes.c_uint(), ctypes.c_int()\n"
        "    assert cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(on)) == 0\n"
        "    return on.value\n"
        "for _ in range(5):\n"
        f"    assert not active(); {'; '.join(GREEN.splitlines())}\n"
        "    function = kernel('kernel'); assert active()\n"
        "    for _ in range(3): assert launch(function, here) == 0; time.sleep(0.005)\n"
        "    cuda.cuCtxSetCurrent(None); assert cuda.cuGreenCtxDestroy(green) == 0\n"
        "assert not active() and events() == 0; current(retain()); told()"
    )
    assert charged(limited, code) == [RIGHT]


@pytest.mark.parametrize(
    ("step", "most"),
    [
        pytest.param("c = context(); launch(function); cuda.cuCtxDestroy_v2(c)", 0, id="alone"),
        pytest.param("c = context(); launch(function); cuda.cuCtxDetach(c)", 0, id="detached"),
        pytest.param(
            "launch(function); c = context(); launch(function); cuda.cuCtxDestroy_v2(c)",
            20,
            id="beside another",
        ),
        pytest.param("launch(function); assert cuda.cuCtxDestroy_v2(primary)", 20, id="refused"),
    ],
)
def test_events_are_as_many_as_are_needed_at_a_time(limited: Node, step: str, most: int) -> None:
    """However many contexts came and went: their events went with them."""
    code = EACH + step + "; time.sleep(0.02)\nsay(events=events())"
    said = limited.run_in_virtual_time(BEGIN + code, CUDA_DEVICE_SM_LIMIT="60")
    assert said["rc"] == 0
    assert said["events"] <= most


def test_contexts_that_end_one_after_the_other_are_not_waited_for_in_vain(limited: Node) -> None:
    """What is measured in the second can be read when the first, where others are seen, is gone."""
    code = (
        "launches = []\nfor _ in range(2): launches.append(context()); launch(function); launch(function)\n"
        "ends = [cuda.cuCtxDestroy_v2(c) for c in launches]\n"
        "say(ends=ends, now_s=time.monotonic() - began)"
    )
    said = limited.run_in_virtual_time(
        BEGIN + "began = time.monotonic()\n" + code, CUDA_DEVICE_SM_LIMIT="60"
    )
    assert (said["rc"], said["ends"]) == (0, [0, 0])
    assert said["now_s"] < 1  # of virtual time


# --- several GPUs ---------------------------------------------------------------------------------------------

SECOND = """
second = retain(1); current(second); there = stream(); function = library_kernel()
class Entry(ctypes.Structure):
    _fields_ = [("function", Handle), ("shape", ctypes.c_uint * 7), ("stream", Handle),
                ("parameters", Handle)]
class Config(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_uint * 7), ("stream", Handle), ("more", ctypes.c_char * 24)]
shape = (ctypes.c_uint * 7)(1, 1, 1, 32, 1, 1, 0)
"""
GRAPH = "begin(there); launch(function, there); graph = executable(end(there)[1])\n"
WAIT = "\ncurrent(second); cuda.cuCtxSynchronize(); told(2)"


@pytest.mark.parametrize("now", ["primary", "second"])
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("launch(function, there)", id="cuLaunchKernel"),
        pytest.param("launch(function, there, 'cuLaunchKernel_ptsz')", id="ptsz"),
        pytest.param(
            "cuda.cuLaunchKernelEx(ctypes.byref(Config(shape, there)), function, None, None)",
            id="cuLaunchKernelEx",
        ),
        pytest.param(
            "cuda.cuLaunchCooperativeKernelMultiDevice("
            "ctypes.byref(Entry(function, shape, there, None)), 1, 0)",
            id="multi-device",
        ),
        pytest.param("cuda.cuLaunchGridAsync(function, 1, 1, there)", id="cuLaunchGridAsync"),
        pytest.param("cuda.cuGraphLaunch(graph, there)", id="graph"),
    ],
)
def test_a_launch_is_charged_to_the_device_of_its_stream(
    limited: Node, now: str, step: str
) -> None:
    code = f"{SECOND}{GRAPH}current({now})\n{EACH}assert {step} == 0{WAIT}"
    assert charged(limited, code) == [NOTHING, RIGHT]


@pytest.mark.parametrize("where", ["None", "Handle(1)", "Handle(2)"])
def test_the_special_streams_are_of_the_current_device(limited: Node, where: str) -> None:
    code = f"{SECOND}{EACH}launch(function, {where})"
    assert charged(limited, code + WAIT) == [NOTHING, RIGHT]


def test_each_device_of_a_launch_on_several_is_charged(limited: Node) -> None:
    code = (
        f"{SECOND}current(primary); here = stream()\n"
        "both = (Entry * 2)(Entry(function, shape, here), Entry(function, shape, there))\n"
        f"{EACH}assert cuda.cuLaunchCooperativeKernelMultiDevice(both, 2, 0) == 0\n"
        "cuda.cuCtxSynchronize()"
    )
    assert charged(limited, code + WAIT) == [RIGHT, RIGHT]


@pytest.mark.parametrize(
    ("make", "end"),
    [
        pytest.param("", "cuda.cuStreamDestroy_v2(s)", id="cuStreamDestroy_v2"),
        pytest.param("", "cuda.cuStreamDestroy(s)", id="cuStreamDestroy"),
        pytest.param("c = context()", "cuda.cuCtxDestroy_v2(c)", id="cuCtxDestroy_v2"),
        pytest.param("c = context()", "cuda.cuCtxDetach(c)", id="cuCtxDetach"),
        pytest.param(
            "green = made('cuGreenCtxCreate', Handle(1), 0, 1)\n"
            "current(made('cuCtxFromGreenCtx', green))",
            "cuda.cuGreenCtxDestroy(green)",
            id="cuGreenCtxDestroy",
        ),
        pytest.param(
            "made('cuDevicePrimaryCtxRetain', 0)", "cuda.cuDevicePrimaryCtxReset_v2(0)", id="reset"
        ),
    ],
)
def test_a_handle_that_is_given_out_anew_is_of_the_new_device(
    limited: Node, make: str, end: str
) -> None:
    """Streams of the first device are launched on and end; those that are made next have their handles."""
    code = (
        f"{SECOND}before, here = set(), []\ncurrent(primary)\n{make or 'pass'}\n"
        "for _ in range(20):\n"
        "    s = stream(); here.append(s); before.add(s.value); assert cuda.cuStreamQuery(s) == 0\n"
        "    assert cuda.cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, s, None, None) != 0\n"
        f"for s in here: {end}\n"
        "current(second); made_now = [stream() for _ in range(40)]\n"
        "again = [s for s in made_now if s.value in before]\n"
        "assert again\n"
        "for i in range(LAUNCHES): assert launch(function, again[i % len(again)]) == 0"
    )
    if "(s)" not in end:
        code = code.replace(f"for s in here: {end}", end)
    assert charged(limited, code + WAIT) == [NOTHING, RIGHT]


def test_where_a_streams_context_cannot_be_told_the_current_one_counts(limited: Node) -> None:
    limited.sim.fail("cuStreamGetCtx", 999)
    code = f"{SECOND}current(primary)\n{EACH}assert launch(function, there) == 0\n"
    assert charged(limited, code + "cuda.cuStreamSynchronize(there); told(2)")[1] == NOTHING


def test_a_stream_that_is_known_needs_no_call_of_the_driver(limited: Node) -> None:
    code = f"{SECOND}current(primary)\nfor _ in range(3): launch(function, there)\n"
    code += (
        f"fail('cuStreamGetCtx')\n{EACH}launch(function, there)\nheal(); launch(function, there)"
    )
    assert charged(limited, code + WAIT) == [NOTHING, RIGHT]


def test_what_could_not_be_told_of_a_stream_is_asked_again(limited: Node) -> None:
    limited.sim.fail("cuStreamGetCtx", 999)
    code = f"{SECOND}current(primary); launch(function, there); heal()\n"
    code += "for _ in range(100): launch(function, there)"
    assert charged(limited, code + WAIT) == [NOTHING, RIGHT]


BOTH = f"""{SECOND}current(primary); here = stream()
def both(count):
    for _ in range(count):
        assert launch(function, here) == 0 == launch(function, there)
"""


@pytest.mark.parametrize("device", [0, 1])
def test_a_limit_of_one_of_several_devices_holds(limited: Node, device: int) -> None:
    env = {"CUDA_DEVICE_SM_LIMIT": "0", f"CUDA_DEVICE_SM_LIMIT_{device}": "60"}
    code = f"{BOTH}both(100); cuda.cuCtxSynchronize(){WAIT}"
    assert charged(limited, code, **env) == [[RIGHT, NOTHING], [NOTHING, RIGHT]][device]


@pytest.mark.parametrize("device", [0, 1])
def test_a_limit_of_one_of_several_devices_holds_where_there_was_none(
    limited: Node, device: int
) -> None:
    """A third of the launches is made after it was told."""
    code = (
        f"{BOTH}both(200)\nwith open({str(limited.cache)!r}, 'r+b') as file:\n"
        f"    os.pwrite(file.fileno(), struct.pack('<Q', 60), {LIMITS_AT} + 8 * {device})\n"
        f"both(100); cuda.cuCtxSynchronize(){WAIT}"
    )
    third = pytest.approx(1 / 3, abs=0.05)
    found = charged(limited, code, CUDA_DEVICE_SM_LIMIT="0")
    assert found == [[third, NOTHING], [NOTHING, third]][device]


def test_a_block_of_one_device_holds_beside_another_that_is_free(
    limited: Node, tmp_path: Path
) -> None:
    """However many launches on that one have passed: the gate is open where nobody is kept at all."""
    limited.sim.kernel("kernel", 20)
    bed = limits_bed(limited, tmp_path / "library")
    until_ns = time.monotonic_ns() + 4_000_000_000
    bed.write(DeviceLimit(uuid=UUIDS[0]), DeviceLimit(uuid=UUIDS[1], blocked_until_ns=until_ns))
    code = (
        f"{BOTH}for _ in range(200): assert launch(function, here) == 0\n"
        "began = time.monotonic(); launch(function, there); say(waited_s=time.monotonic() - began)"
    )
    said = limited.run(BEGIN + code, **bed.environment())
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["waited_s"] > 0.9  # it is believed for a second


# A share that is kept, then a block: launches that are paid for are not looked at closely in between.
PAID = "for _ in range(200): launch(function); cuda.cuCtxSynchronize()\n"
THEN_ONE = "\nbegan = time.monotonic(); launch(function); say(waited_s=time.monotonic() - began)"
BESIDE = """
def wait():
    current(primary); launch(function)
threading.Thread(target=wait).start(); time.sleep(0.05)"""


@pytest.mark.parametrize("beside", ["", BESIDE], ids=["the first", "beside one that waits"])
def test_a_block_by_the_agent_holds_from_the_next_launch_on(
    limited: Node, tmp_path: Path, beside: str
) -> None:
    limited.sim.kernel("kernel", 1)
    bed = limits_bed(limited, tmp_path / "library")
    bed.write(DeviceLimit(uuid=UUIDS[0], core_permille=900))
    code = (
        f"{PAID}with open({str(bed.path)!r}, 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:\n"
        "    Line(memory, LINES_AT).change(0, permille=900, blocked=time.monotonic_ns() + 4 * 10**9)"
    )
    imports = "import mmap, threading\nfrom limits_bed import LINES_AT, Line\n"
    path = f"{CALLS_AT}:{CALLS_AT.parent}:{ROOT}"
    said = limited.run(
        imports + BEGIN + code + beside + THEN_ONE, **bed.environment(PYTHONPATH=path)
    )
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["waited_s"] > 0.8  # it is believed for a second


def test_a_block_by_the_monitor_holds_from_the_next_launch_on(limited: Node) -> None:
    limited.sim.kernel("kernel", 20)
    code = (
        f"{PAID}with open({str(limited.cache)!r}, 'r+b') as file:\n"
        f"    os.pwrite(file.fileno(), struct.pack('<i', -1), {RECENT_KERNEL_AT})"
    )
    said = limited.run_in_virtual_time(BEGIN + code + THEN_ONE, CUDA_DEVICE_SM_LIMIT="90")
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["waited_s"] > 6.9  # it is believed for 7 s


def test_what_is_waited_is_counted_while_it_is_waited(limited: Node, tmp_path: Path) -> None:
    """Who is kept for an hour has waited for an hour, and not for nothing until it goes on."""
    bed = limits_bed(limited, tmp_path / "library")
    bed.write(DeviceLimit(uuid=UUIDS[0]))
    code = (
        "import threading\n"
        "cache, done = os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], threading.Event()\n"
        "def work():\n"
        "    current(primary)\n"
        "    while not done.is_set(): assert launch(function) == 0; time.sleep(0.001)\n"
        "def counted():\n"
        "    raw = Path(cache).read_bytes()\n"
        f"    return [struct.unpack_from('<Q', raw, at)[0] for at in {[WAITS_AT, *THROTTLED_AT]}]\n"
        "thread, give_up, seen = threading.Thread(target=work), time.monotonic() + 30, False\n"
        "thread.start(); before = counted()\n"
        "while not seen and time.monotonic() < give_up:\n"
        f"    with open({str(bed.path)!r}, 'r+b') as file:\n"
        "        until_ns = struct.pack('<Q', time.monotonic_ns() + 500_000_000)\n"
        f"        os.pwrite(file.fileno(), until_ns, {BLOCKED_AT})\n"
        "    time.sleep(0.02); now = counted()\n"
        "    seen = now[0] == before[0] and now[1] > before[1] and now[2] > before[2]\n"
        "    before = now\n"
        "done.set(); thread.join(); say(seen=seen, whole=counted()[1:])"
    )
    said = limited.run(BEGIN + code, **bed.environment())
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["seen"]
    assert said["whole"][0] == said["whole"][1] > 0


# --- launches that fail, and graphs that become others -------------------------------------------------------

HERE = f"""{SECOND}current(primary); here, held = stream(), 0
from memory_calls import draw, put
assert begin(here) == 0
error, address = draw(60, stream=here)
assert error == 0 == launch(function, here) == put(address, here)
graph = executable(end(here)[1])
"""
TIMED = """
def launches(fail):
    began = time.monotonic()
    for _ in range({count}): assert ({step} != 0) == fail
    cuda.cuCtxSynchronize()
    return time.monotonic() - began
launches(False); time.sleep(0.5)
{spoil}
failing_s = launches(True); heal(); free(held)
say(failing_s=failing_s, launched_s=launches(False))
"""


@pytest.mark.parametrize("us", [50, 3000], ids=["paid for ahead", "measured each"])
@pytest.mark.parametrize(
    ("spoil", "step"),
    [
        pytest.param("fail('cuLaunchKernel')", "launch(function, here)", id="cuLaunchKernel"),
        pytest.param(
            "fail('cuLaunchKernel_ptsz')",
            "launch(function, here, 'cuLaunchKernel_ptsz')",
            id="ptsz",
        ),
        pytest.param(
            "fail('cuLaunchKernelEx')",
            "cuda.cuLaunchKernelEx(ctypes.byref(Config(shape, here)), function, None, None)",
            id="cuLaunchKernelEx",
        ),
        pytest.param(
            "fail('cuLaunchCooperativeKernel')",
            "cuda.cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, here, None)",
            id="cooperative",
        ),
        pytest.param(
            "fail('cuLaunchCooperativeKernelMultiDevice')",
            "cuda.cuLaunchCooperativeKernelMultiDevice("
            "(Entry * 2)(Entry(function, shape, here), Entry(function, shape, there)), 2, 0)",
            id="on two devices",
        ),
        pytest.param("fail('cuLaunch')", "cuda.cuLaunch(function)", id="cuLaunch"),
        pytest.param(
            "fail('cuLaunchGrid')", "cuda.cuLaunchGrid(function, 1, 1)", id="cuLaunchGrid"
        ),
        pytest.param(
            "fail('cuLaunchGridAsync')",
            "cuda.cuLaunchGridAsync(function, 1, 1, here)",
            id="cuLaunchGridAsync",
        ),
        pytest.param("fail('cuGraphLaunch')", "cuda.cuGraphLaunch(graph, here)", id="graph"),
        pytest.param(
            "error, held = alloc(60); assert error == 0",
            "cuda.cuGraphLaunch(graph, here)",
            id="graph without memory",
        ),
    ],
)
def test_a_launch_that_fails_costs_nothing_of_the_share(
    limited: Node, spoil: str, step: str, us: int
) -> None:
    """Launches of 100 ms of GPU time fail at once; made well again, they take some 300 ms."""
    limited.sim.kernel("kernel", us)
    code = BEGIN + HERE + TIMED.format(count=100_000 // us, step=step, spoil=spoil)
    said = limited.run_in_virtual_time(
        code,
        NVIDIA_VISIBLE_DEVICES=",".join(UUIDS),
        CUDA_DEVICE_SM_LIMIT="30",
        CUDA_DEVICE_MEMORY_LIMIT="100m",
    )
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["failing_s"] < 0.02
    assert said["launched_s"] > 0.25


@pytest.mark.parametrize("percent", [50, 80])
def test_long_launches_that_fail_leave_the_share_as_it_was(limited: Node, percent: int) -> None:
    """44 of 50 and 70 of 80 were had: short ones passed on what came back, and nobody knew that they ran."""
    limited.sim.kernel("long", 5000)
    limited.sim.kernel("short", 20)
    code = """
class Config(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
                ("count", ctypes.c_uint)]
long, short, a, b = kernel("long"), kernel("short"), stream(), stream()
config = Config((ctypes.c_uint * 7)(1, 1, 1, 32, 1, 1, 0), a, None, 0)
def percent(seconds):
    before, began = gpu_us(UUIDS[0], os.getpid()), time.monotonic()
    while time.monotonic() < began + seconds:
        assert launch(long, a) == 0
        assert cuda.cuLaunchKernelEx(ctypes.byref(config), long, None, None) != 0
        for _ in range(100):
            assert launch(short, b) == 0
    return (gpu_us(UUIDS[0], os.getpid()) - before) / (time.monotonic() - began) / 1e4
fail("cuLaunchKernelEx")
percent(2)
say(percents=[percent(1) for _ in range(3)])
"""
    said = limited.run_in_virtual_time(BEGIN + code, CUDA_DEVICE_SM_LIMIT=str(percent))
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percents"] == [pytest.approx(percent, abs=2)] * 3


# Graphs of one short kernel that are known well, and what makes `again` of them, whose kernel is long.
KNOWN = """
from memory_calls import draw, put
here, graphs = stream(), {}
for name in ("short", "long"):
    function = kernel(name)
    assert begin(here) == 0 == launch(function, here)
    error, address = draw(1, stream=here)
    assert error == 0 == put(address, here)
    graphs[name] = end(here)[1]
known, graph = [executable(graphs["short"]) for _ in range(20)], graphs["long"]
for _ in range(20):
    for exec in known: assert cuda.cuGraphLaunch(exec, here) == 0
    cuda.cuStreamSynchronize(here)
"""
UPDATED = "again = known\nfor exec in known: assert cuda.{} == 0\n"
MADE_ANEW = """
def another():
    made_now = Handle()
    exec = ctypes.byref(made_now)
    assert cuda.{} == 0
    return made_now
before = {{exec.value for exec in known}}
for exec in known: assert cuda.cuGraphExecDestroy(exec) == 0
again = [exec for exec in [another() for _ in range(40)] if exec.value in before]
assert again
"""
ALL_LAUNCHED = """
worked, began = gpu_us(UUIDS[0]), time.monotonic()
for i in range(100): assert cuda.cuGraphLaunch(again[i % len(again)], here) == 0
cuda.cuStreamSynchronize(here)
say(percent=(gpu_us(UUIDS[0]) - worked) / (time.monotonic() - began) / 1e4)
"""


@pytest.mark.parametrize(
    ("become", "call"),
    [
        pytest.param(
            UPDATED,
            "cuGraphExecUpdate(exec, graph, None, ctypes.byref(ctypes.c_int()))",
            id="cuGraphExecUpdate",
        ),
        pytest.param(
            UPDATED,
            "cuGraphExecUpdate_v2(exec, graph, ctypes.create_string_buffer(64))",
            id="cuGraphExecUpdate_v2",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiate(exec, graph, None, None, ctypes.c_size_t(0))",
            id="cuGraphInstantiate",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiate_v2(exec, graph, None, None, ctypes.c_size_t(0))",
            id="cuGraphInstantiate_v2",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiateWithFlags(exec, graph, ctypes.c_uint64(0))",
            id="cuGraphInstantiateWithFlags",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiateWithParams(exec, graph, (ctypes.c_uint64 * 4)(0))",
            id="cuGraphInstantiateWithParams",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiateWithParams_ptsz(exec, graph, (ctypes.c_uint64 * 4)(0))",
            id="cuGraphInstantiateWithParams_ptsz",
        ),
        pytest.param(
            MADE_ANEW,
            "cuGraphInstantiateWithParams(exec, graph, (ctypes.c_uint64 * 4)(2))",
            id="made and uploaded",
        ),
    ],
)
def test_what_a_graph_cost_says_nothing_of_the_one_that_it_becomes(
    limited: Node, become: str, call: str
) -> None:
    """A hundred of 10 ms, charged 50 us each, would be let out at once, and have all of the GPU."""
    limited.sim.kernel("short", 50)
    limited.sim.kernel("long", 10_000)
    code = f"{BEGIN}{KNOWN}{become.format(call)}{ALL_LAUNCHED}"
    limits = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_LIMIT": "1000m"}
    said = limited.run_in_virtual_time(code, **limits)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percent"] == pytest.approx(50, abs=1)


UPDATED_EACH_TIME = """
streams, waits = [stream() for _ in range({streams})], {waits}
function = kernel("short")
assert begin(streams[0]) == 0 == launch(function, streams[0])
graph = end(streams[0])[1]
execs, why = [executable(graph) for _ in streams], ctypes.create_string_buffer(64)
def updated(count):
    for _ in range(count // len(streams)):
        for where, exec in zip(streams, execs):
            assert cuda.cuGraphExecUpdate_v2(exec, graph, why) == 0 == cuda.cuGraphLaunch(exec, where)
            if waits: cuda.cuStreamSynchronize(where)
    for where in streams: cuda.cuStreamSynchronize(where)
updated(2000)
worked, began = gpu_us(UUIDS[0]), time.monotonic()
updated(8000)
say(percent=(gpu_us(UUIDS[0]) - worked) / (time.monotonic() - began) / 1e4)
"""


@pytest.mark.parametrize(
    ("streams", "waits"),
    [
        pytest.param(1, False, id="never waited for"),
        pytest.param(1, True, id="each waited for"),
        pytest.param(4, False, id="on four streams"),
    ],
)
def test_a_graph_that_is_updated_before_each_launch_has_its_share(
    limited: Node, streams: int, waits: bool
) -> None:
    """Were nothing known of it each time, each would wait until the one before is known."""
    limited.sim.kernel("short", 60)
    code = f"{BEGIN}{UPDATED_EACH_TIME.format(streams=streams, waits=waits)}"
    limits = {"CUDA_DEVICE_SM_LIMIT": "90", "CUDA_DEVICE_MEMORY_LIMIT": "1000m"}
    said = limited.run_in_virtual_time(code, **limits)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percent"] == pytest.approx(90, abs=1.5)
