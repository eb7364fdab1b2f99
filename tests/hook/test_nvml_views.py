"""What NVML tells a container: its own share, its own processes, and one story with CUDA."""

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from built_hook import built
from c_programs import library
from hook_table import nvml_symbols
from hooked_programs import LIMIT, Node
from limits_bed import LimitsBed, limits_bed
from waiting import eventually

from agent.domain.limits_file import CorePolicy, DeviceLimit
from agent.domain.region import decode
from agent.sim.driver import SimGpu, SimMig, made_up_uuid

GPU, OTHER, MIB = made_up_uuid(0), 4242, 1 << 20
FULL = 46068
HOST_PID_OFFSET = 4
FIRST_SLOT = 1856

TENANT = """
import sys
start()
say(answer="ready"); sys.stdout.flush()
for line in sys.stdin:
    say(answer=eval(line)); sys.stdout.flush()
"""


@dataclass(frozen=True)
class Tenant:
    """A process of the container that evaluates what it is told."""

    process: "subprocess.Popen[str]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, expression: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return json.loads(line)["answer"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)


@contextmanager
def tenants(node: Node, count: int, env: Mapping[str, str]) -> Iterator[list[Tenant]]:
    with ExitStack() as ending:
        started = []
        for _ in range(count):
            process = node.start("from nvml_calls import *\n" + TENANT, env=env)
            ending.callback(process.communicate, timeout=60)
            ending.callback(process.kill)
            started.append(Tenant(process))
        for tenant in started:
            assert tenant.answer() == "ready"  # what one does is in no other's cost of a context
        yield started


def look(node: Node, expression: str, **env: str) -> Any:
    """What a process of the container sees that does nothing but look."""
    said = node.run(f"from nvml_calls import *\nsay(answer={expression})", **env)
    assert said["rc"] == 0, said["stderr"]
    return said["answer"]


@pytest.fixture
def bed(node: Node, tmp_path: Path) -> LimitsBed:
    return limits_bed(node, tmp_path / "lib")


# --- one story ------------------------------------------------------------------------------------


def cuda_story(tenant: Tenant) -> list[int]:
    """Total, used and free by CUDA."""
    free, total = tenant.ask("info_mib()")
    assert tenant.ask("total_mib()") == total
    return [total, total - free, free]


def test_cuda_and_nvml_tell_one_story_whatever_happens(node: Node, bed: LimitsBed) -> None:
    node.sim.process(0, OTHER, 9000)  # another tenant of the GPU
    bed.write(DeviceLimit(uuid=GPU, memory_limit_bytes=1000 * MIB))
    env = bed.environment()
    with tenants(node, 2, env) as (first, second):
        assert first.ask("alloc(300)")[0] == second.ask("alloc(200)")[0] == 0
        smi = look(node, "smi()", **env)
        for story in (smi["v1"], smi["v2"], cuda_story(first), cuda_story(second)):
            assert story == [1000, 500, 500]
        assert sorted(smi["processes"]) == sorted([[first.pid, 300], [second.pid, 200]])
        assert (smi["sum"], smi["name"]) == (500, [True, True])

        with bed.line() as line:
            line.change(400 * MIB)  # below what they hold
        smi = look(node, "smi()", **env)
        for story in (smi["v1"], smi["v2"], cuda_story(first)):
            assert story == [400, 400, 0]
        assert smi["sum"] == 500  # who holds too much can be seen

        second.kill()
        eventually(lambda: look(node, "smi()", **env)["sum"] == 300)
        smi = look(node, "smi()", **env)
        for story in (smi["v1"], smi["v2"], cuda_story(first)):
            assert story == [400, 300, 100]
        assert smi["processes"] == [[first.pid, 300]]


def test_pynvml_sees_what_bare_calls_see(node: Node) -> None:
    code = (
        "import pynvml\n"
        "start(); alloc(300)\n"
        "pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "infos = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)\n"
        "say(infos=[[i.pid, i.usedGpuMemory // MIB] for i in infos], pid=os.getpid(),\n"
        "    graphics=len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)))"
    )
    node.sim.process(0, OTHER, 9000)
    node.sim.process(0, OTHER + 1, 50, kind="graphics")
    said = node.run("import os\n" + code, **{LIMIT: "1000m"})
    assert (said["infos"], said["graphics"]) == ([[said["pid"], 300]], 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_above_the_gpu_shows_the_gpu(node: Node, version: int) -> None:
    assert look(node, f"memory(handle(), {version})", **{LIMIT: "100g"}) == [FULL, 0, FULL]


def test_oversubscribed_memory_shows_the_limit(node: Node) -> None:
    env = {LIMIT: "100g", "CUDA_OVERSUBSCRIBE": "true"}
    assert look(node, "memory(handle())", **env) == [102400, 0, 102400]


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_driver_keeps_for_itself_is_no_part_of_the_share(node: Node, version: int) -> None:
    """It is the GPU's: of a share, used and free are all."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, reserved_mib=300))
    assert look(node, f"memory(handle(), {version})", **{LIMIT: "1000m"}) == [1000, 0, 1000]


MIG = "MIG-c3000000-0000-4000-8000-0000000000d4"


@pytest.fixture
def mig_env(node: Node, bed: LimitsBed) -> dict[str, str]:
    """What a process is started with that has 700 MiB of an instance of a GPU in MIG mode."""
    mig = SimMig(position=0, uuid=MIG, gpu_instance=7, memory_mib=4864)
    node.sim.change_gpu(0, SimGpu(uuid=GPU, mig=True, migs=(mig,), context_mib=100))
    bed.write(DeviceLimit(uuid=MIG, memory_limit_bytes=700 * MIB))
    return bed.environment()


def test_a_gpu_in_mig_mode_lists_processes_in_their_instance(
    node: Node, mig_env: dict[str, str]
) -> None:
    """As the driver does, of the GPU and of the instance."""
    with tenants(node, 1, mig_env) as (tenant,):
        assert tenant.ask("alloc(300)")[0] == 0
        assert tenant.ask("instances(handle()), instances(mig(0))") == [[[7, 0]], [[7, 0]]]


def test_a_mig_device_is_known_by_its_own_uuid(node: Node, mig_env: dict[str, str]) -> None:
    assert look(node, "memory(mig(0))", **mig_env) == [700, 0, 700]
    with node.cache.open("rb") as file:
        assert MIG.encode() in file.read()[64:1600]


@pytest.mark.parametrize(
    ("asks", "of_the_gpu"),
    [
        pytest.param("memory({})", [700, 400, 300], id="memory"),
        pytest.param("memory({}, 2)", [700, 400, 300], id="memory, version 2"),
        pytest.param("processes({}, 'ComputeRunningProcesses', InfoV1)", 400, id="processes"),
        pytest.param("processes({}, 'ComputeRunningProcesses_v3')", 400, id="processes, version 3"),
        pytest.param("details({})", 400, id="processes in detail"),
        pytest.param("by_process({})", 30, id="their utilisation"),
    ],
)
@pytest.mark.parametrize("who", ["itself", "another process"])
def test_a_gpu_in_mig_mode_says_what_the_containers_instance_does(
    node: Node, mig_env: dict[str, str], asks: str, of_the_gpu: Any, who: str
) -> None:
    """And has nothing charged to it: NVML lists what is held on the instance for both."""
    node.sim.process(0, OTHER, 9000, sm_percent=60)
    with tenants(node, 1, mig_env) as (tenant,):
        node.sim.process(0, tenant.pid, 0, sm_percent=30)
        assert tenant.ask("alloc(300)")[0] == 0
        if isinstance(of_the_gpu, int):
            of_the_gpu = [[tenant.pid, of_the_gpu]]
        for device in ("handle()", "mig(0)", "handle()"):
            asked = asks.format(device)
            said = tenant.ask(asked) if who == "itself" else look(node, asked, **mig_env)
            assert said == of_the_gpu
        assert cuda_story(tenant) == [700, 400, 300]
        region = decode(node.cache.read_bytes())
    assert [device.uuid for device in region.devices] == [MIG]
    counted = [
        [used.total_bytes // MIB for used in one.used if used.total_bytes]
        for one in region.processes
    ]
    assert [400] in counted
    assert sum(map(sum, counted)) == 400


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("nvml.nvmlDeviceGetMemoryInfo(handle(), None)", 2, id="nowhere to put it"),
        pytest.param("nvml.nvmlDeviceGetMemoryInfo_v2(handle(), None)", 2, id="nowhere, version 2"),
        pytest.param(
            "nvml.nvmlDeviceGetMemoryInfo_v2(handle(), ctypes.byref(MemoryV2(version=7)))", 25,
            id="a version nobody knows",
        ),
        pytest.param("nvml.nvmlDeviceGetMemoryInfo(None, ctypes.byref(Memory()))", 1, id="before nvmlInit"),
        pytest.param("processes(None, 'ComputeRunningProcesses_v3')", 1, id="a list before nvmlInit"),
        pytest.param(
            "nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(), None, None)", 2, id="a list without length"
        ),
        pytest.param(
            "nvml.nvmlDeviceGetComputeRunningProcesses(handle(), ctypes.byref(ctypes.c_uint(3)), None)", 2,
            id="room for three, but where",
        ),
        pytest.param("details(handle(), version=5)", 2, id="a list of a version nobody knows"),
        pytest.param("details(handle(), mode=9)", 2, id="a list of a mode nobody knows"),
        pytest.param("nvml.nvmlDeviceGetRunningProcessDetailList(handle(), None)", 2, id="no list"),
        pytest.param("nvml.nvmlDeviceGetUtilizationRates(handle(), None)", 2, id="no place for rates"),
        pytest.param("nvml.nvmlDeviceGetProcessUtilization(handle(), None, None, 0)", 2, id="no length"),
        pytest.param("nvml.nvmlDeviceGetProcessesUtilizationInfo(handle(), None)", 2, id="no structure"),
        pytest.param("sampled(handle(), 0)", 3, id="samples of another kind"),
    ],
)  # fmt: skip
def test_odd_calls_are_the_drivers_business(node: Node, call: str, result: int) -> None:
    env = {LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "50"}
    assert look(node, call, **env) == result
    assert node.run(f"from nvml_calls import *\nsay(answer={call})", hook=False)["answer"] == result


# --- process lists --------------------------------------------------------------------------------

LISTS = [
    pytest.param("ComputeRunningProcesses", "InfoV1", id="version 1"),
    pytest.param("ComputeRunningProcesses_v2", "Info", id="version 2"),
    pytest.param("ComputeRunningProcesses_v3", "Info", id="version 3"),
]


@pytest.mark.parametrize(("function", "entry"), LISTS)
def test_a_list_names_the_containers_processes_only(node: Node, function: str, entry: str) -> None:
    node.sim.process(0, OTHER, 9000)
    env = {LIMIT: "1000m"}
    with tenants(node, 3, env) as some:
        for tenant, mib in zip(some, (100, 200, 0), strict=True):
            tenant.ask(f"alloc({mib})" if mib else "1")
        wanted = sorted([[some[0].pid, 100], [some[1].pid, 200]])
        assert sorted(look(node, f"processes(handle(), '{function}', {entry})", **env)) == wanted
        too_small = f"processes(handle(), '{function}', {entry}, 1)"
        assert look(node, too_small, **env) == 7
        with_room = f"processes(handle(), '{function}', {entry}, 9)"
        assert sorted(look(node, with_room, **env)) == wanted


def test_a_killed_process_leaves_the_list_of_who_only_asks_for_that(node: Node) -> None:
    with tenants(node, 2, {LIMIT: "1000m"}) as (asking, killed):
        listed = "processes(handle(), 'ComputeRunningProcesses', InfoV1)"
        asking.ask("alloc(100)")
        killed.ask("alloc(200)")
        assert sorted(asking.ask(listed)) == sorted([[asking.pid, 100], [killed.pid, 200]])
        killed.kill()
        eventually(lambda: asking.ask(listed) == [[asking.pid, 100]])


@pytest.mark.parametrize(
    ("driver", "entry"),
    [
        pytest.param("525.60.13", "Info", id="an older branch"),
        pytest.param("535.42.01", "Info", id="the last with short ones"),
        pytest.param("535.43.02", "Detail", id="the first with long ones"),
        pytest.param("535.54.03", "Detail", id="one between"),
        pytest.param("535.97.01", "Detail", id="the last with long ones"),
        pytest.param("535.98.01", "Info", id="the first with short ones again"),
        pytest.param("535.104.05", "Info", id="a later one"),
        pytest.param("550.54.14", "Info", id="a newer branch"),
    ],
)
def test_version_3_has_the_length_that_this_driver_gives_it(
    node: Node, driver: str, entry: str
) -> None:
    """From 535.43 to 535.97 its entries were those of the detail list."""
    env = {LIMIT: "1000m"}
    node.sim.versions(driver=driver)
    with tenants(node, 2, env) as some:
        for tenant in some:
            tenant.ask("alloc(100)")
        wanted = sorted([tenant.pid, 100] for tenant in some)
        ask = f"processes(handle(), 'ComputeRunningProcesses_v3', {entry})"
        assert sorted(look(node, ask, **env)) == wanted


@pytest.mark.parametrize(
    ("mode", "named"),
    [
        pytest.param(0, True, id="compute"),
        pytest.param(1, False, id="graphics"),
        pytest.param(2, False, id="MPS"),
        pytest.param(3, True, id="all"),
    ],
)
def test_the_detail_list_by_mode(node: Node, mode: int, named: bool) -> None:
    node.sim.process(0, OTHER, 9000)
    node.sim.process(0, OTHER + 1, 50, kind="graphics")
    env = {LIMIT: "1000m"}
    with tenants(node, 1, env) as (tenant,):
        tenant.ask("alloc(100)")
        said = look(node, f"details(handle(), {mode})", **env)
        assert said == ([[tenant.pid, 100]] if named else [])


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
@pytest.mark.parametrize(
    "room",
    [
        pytest.param(None, id="its length first"),
        pytest.param(9, id="with room at once, as nvidia-smi asks"),
    ],
)
def test_other_lists_are_empty(node: Node, kind: str, version: str, room: int | None) -> None:
    node.sim.process(0, OTHER, 50, kind="graphics")
    entry = "Info" if version else "InfoV1"
    call = f"processes(handle(), '{kind}RunningProcesses{version}', {entry}, {room})"
    assert look(node, call, **{LIMIT: "1000m"}) == []


def test_without_a_limit_the_drivers_list_stands(node: Node) -> None:
    node.sim.process(0, OTHER, 9000)
    ask = "processes(handle(), 'ComputeRunningProcesses_v3')"
    assert look(node, ask) == [[OTHER, 9000]]


REFUSED_CALL = """
from nvml_calls import *
device, buffers = handle(), [(ctypes.c_ubyte * 4096)() for _ in range(6)]
answers = {}
for name in NAMES:
    answers[name] = getattr(nvml, name)(device, *buffers)
say(answer=answers)
"""


def test_what_the_driver_refuses_stays_refused(node: Node) -> None:
    """Every function of NVML's table."""
    names = [symbol.name for symbol in nvml_symbols()]
    for name in names:
        node.sim.fail(name, 4)  # no permission
    code = f"NAMES = {names}{REFUSED_CALL}"
    said = node.run(code, **{LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "50"})
    assert said["rc"] == 0, said["stderr"]
    assert said["answer"] == dict.fromkeys(names, 4)


# --- utilisation ----------------------------------------------------------------------------------

CORES = {LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "50", "GPU_CORE_UTILIZATION_POLICY": "force"}
DEVICE_AT = 2031616 + 64
CHARGED_AT, SEEN_AT = DEVICE_AT + 64 + 16, DEVICE_AT + 64 + 64


def percents_of_half(
    node: Node, used_ms: int, seen_ago_s: float, **environment: str
) -> tuple[int, int, int]:
    """What is told to who asks now, and the least and the most that is true.

    Half of the GPU is all there is. The container has used this much since somebody asked, back
    then or when the machine began; how long it took us to ask is between the two.
    """
    began_ns = time.monotonic_ns()
    then_ns = max(1, began_ns - int(seen_ago_s * 1e9))
    note(node, 1000 + used_ms, then_ns, 1000)
    gpu, memory = look(node, "utilization(handle())", **CORES, **environment)
    assert memory <= gpu
    least, most = (
        min(100, used_ms * 2 * 10**8 // (until_ns - then_ns))
        for until_ns in (time.monotonic_ns(), began_ns)
    )
    return gpu, least, most


def note(node: Node, charged_ms: int, then: int, seen_charged_ms: int) -> None:
    """Let the container have used this much, and somebody have asked back then."""
    with node.cache.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", charged_ms * 10**6), CHARGED_AT)
        seen = struct.pack("<4Q", 0, then, 0, seen_charged_ms * 10**6)
        os.pwrite(file.fileno(), seen, SEEN_AT)


@pytest.mark.parametrize(
    "used_ms",
    [
        pytest.param(5000, id="all of the share"),
        pytest.param(2500, id="half of it"),
        pytest.param(9000, id="more than the share"),
        pytest.param(0, id="nothing"),
    ],
)
def test_utilisation_is_of_the_share(node: Node, used_ms: int) -> None:
    """Of ten seconds."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, gpu_percent=90))
    look(node, "memory(handle())", **CORES)
    gpu, least, most = percents_of_half(node, used_ms, 10)
    assert least <= gpu <= most


def test_a_container_that_computes_all_the_time_uses_all_of_its_share(node: Node) -> None:
    """The GPU is busy half of the time: that is all the container may have."""
    node.sim.kernel_us(2000)
    busy = subprocess.Popen(
        [node.sim.libraries / "sim-tenant"], env=node.environment(**CORES),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert busy.stdin is not None
        busy.stdin.write("launch 1000000\n")
        busy.stdin.flush()
        eventually(lambda: look(node, "utilization(handle())", **CORES)[0] > 80, within_s=60)
    finally:
        busy.kill()
        busy.communicate(timeout=60)


AWAKE = """
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    (void)clock, (void)flags, (void)until, (void)left;
    _exit(77);
}
"""


@pytest.mark.parametrize(
    "seen_ago_s",
    [
        pytest.param(10_000, id="nobody computed for hours"),
        pytest.param(0.3, id="it has just begun"),
        pytest.param(5, id="it computes"),
    ],
)
def test_who_asks_first_is_told_without_waiting(node: Node, seen_ago_s: float) -> None:
    """Of 1 s that was charged since."""
    node.sim.change_gpu(0, SimGpu(uuid=GPU, gpu_percent=90))
    look(node, "memory(handle())", **CORES)
    both = f"{library(AWAKE)} {built() / 'libvgpu.so'}"
    gpu, least, most = percents_of_half(node, 1000, seen_ago_s, LD_PRELOAD=both)
    assert least <= gpu <= most


def test_what_is_computed_is_noted_without_anybody_asking(node: Node) -> None:
    """All of the half that it may have; the first who asks is told so."""
    node.sim.kernel_us(2000)
    busy = subprocess.Popen(
        [node.sim.libraries / "sim-tenant"], env=node.environment(**CORES),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert busy.stdin is not None
        busy.stdin.write("launch 1000000\n")
        busy.stdin.flush()
        eventually(lambda: noted(node) > 0, within_s=60, what="a note of what was charged")
    finally:
        busy.kill()
        busy.communicate(timeout=60)


def noted(node: Node) -> int:
    """What charged_ns was when it was noted before last; 0 before there are two notes."""
    if not node.cache.exists():
        return 0
    with node.cache.open("rb") as file:
        older_ns, _, charged_ns, _ = struct.unpack(
            "<4Q", os.pread(file.fileno(), 32, SEEN_AT) or bytes(32)
        )
    return charged_ns if older_ns else 0


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({LIMIT: "1000m"}, id="no share"),
        pytest.param({**CORES, "GPU_CORE_UTILIZATION_POLICY": "disable"}, id="not enforced"),
        pytest.param({**CORES, "CUDA_DEVICE_SM_LIMIT": "100"}, id="all of it"),
    ],
)
def test_where_no_share_is_enforced_the_drivers_utilisation_stands(
    node: Node, env: dict[str, str]
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, gpu_percent=90))
    assert look(node, "utilization(handle())", **env)[0] == 90
    assert look(node, "sampled(handle(), 1)", **env) == [90]


def test_samples_agree_with_the_rates(node: Node) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=GPU, gpu_percent=90))
    assert look(node, "[sampled(handle(), 1), sampled(handle(), 2)]", **CORES) == [[0], [0]]


BY_PROCESS = pytest.mark.parametrize("call", ["by_process", "by_process_newer"])


@BY_PROCESS
def test_others_utilisation_is_not_shown(node: Node, call: str) -> None:
    node.sim.process(0, OTHER, 9000, sm_percent=60)
    env = {LIMIT: "1000m"}
    with tenants(node, 1, env) as (tenant,):
        tenant.ask("alloc(1)")
        assert look(node, f"{call}(handle())", **env) == [6, 0]
        node.sim.process(0, tenant.pid, 1, sm_percent=30)
        assert look(node, f"{call}(handle())", **env) == [[tenant.pid, 30]]
        assert look(node, f"{call}(handle(), 0)", **env) == [7, 1]
        assert look(node, f"{call}(handle())", **CORES) == [[tenant.pid, 60]]  # of the share


@pytest.mark.parametrize(
    ("lent_for_s", "lent", "env", "permille"),
    [
        pytest.param(4, 300, {}, 600, id="lent"),
        pytest.param(4, 2**32 - 300, {}, 1000, id="more than there is"),
        pytest.param(-1, 300, {}, 300, id="over"),
        pytest.param(3600, 300, {}, 300, id="left by another boot"),
        pytest.param(4, 300, {"CUDA_DEVICE_SM_LIMIT": "20"}, 200, id="to who has lowered its own"),
    ],
)
def test_utilisation_is_of_the_share_and_of_what_is_lent(
    node: Node, bed: LimitsBed, lent_for_s: int, lent: int, env: dict[str, str], permille: int
) -> None:
    """The container has had 15 % of the GPU's time since somebody asked."""
    node.sim.process(0, OTHER, 1, sm_percent=15)
    until_ns = time.monotonic_ns() + lent_for_s * 10**9
    bed.write(
        DeviceLimit(
            uuid=GPU, core_permille=300, lent_permille=lent, lent_until_ns=max(0, until_ns)
        ),
        core_policy=CorePolicy.FORCE,
    )
    with tenants(node, 1, bed.environment()) as (tenant,):
        tenant.ask("alloc(1)")
        with node.cache.open("r+b") as file:  # as the agent does
            os.pwrite(file.fileno(), struct.pack("<i", OTHER), FIRST_SLOT + HOST_PID_OFFSET)
        then_ns = time.monotonic_ns() - 10 * 10**9
        note(node, 1500, then_ns, 0)
        told = "[utilization(handle())[0], by_process(handle()), by_process_newer(handle())]"
        gpu, *by_process = look(node, told, **bed.environment(**env))
        least = 1500 * 10**11 // (time.monotonic_ns() - then_ns) // permille
        assert by_process == [[[tenant.pid, 15_000 // permille]]] * 2
        assert least <= gpu <= 15_000 // permille


@BY_PROCESS
def test_a_pid_of_the_node_becomes_the_containers(node: Node, call: str) -> None:
    env = {LIMIT: "1000m"}
    with tenants(node, 1, env) as (tenant,):
        tenant.ask("alloc(1)")
        node.sim.process(0, OTHER, 1, sm_percent=30)
        with node.cache.open("r+b") as file:  # as the agent does
            os.pwrite(file.fileno(), struct.pack("<i", OTHER), FIRST_SLOT + HOST_PID_OFFSET)
        assert look(node, f"{call}(handle())", **env) == [[tenant.pid, 30]]


@BY_PROCESS
def test_a_pid_of_the_containers_own_is_known_though_another_was_told(
    node: Node, call: str
) -> None:
    """Some drivers list a container's processes by their own pids."""
    env = {LIMIT: "1000m"}
    with tenants(node, 1, env) as (tenant,):
        tenant.ask("alloc(1)")
        node.sim.process(0, tenant.pid, 1, sm_percent=30)
        with node.cache.open("r+b") as file:  # as the agent does
            os.pwrite(file.fileno(), struct.pack("<i", OTHER), FIRST_SLOT + HOST_PID_OFFSET)
        assert look(node, f"{call}(handle())", **env) == [[tenant.pid, 30]]


@BY_PROCESS
def test_without_limits_everybody_is_shown(node: Node, call: str) -> None:
    node.sim.process(0, OTHER, 9000, sm_percent=60)
    assert look(node, f"{call}(handle())") == [[OTHER, 60]]


# --- staying out of the way -----------------------------------------------------------------------


def test_looking_at_nvml_loads_no_cuda(node: Node) -> None:
    code = (
        "import os\n"
        "import ctypes, json\n"
        "nvml = ctypes.CDLL('libnvidia-ml.so.1'); nvml.nvmlInit_v2()\n"
        "device, said = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()\n"
        "nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))\n"
        "count = ctypes.c_uint(0)\n"
        "results = [nvml.nvmlDeviceGetMemoryInfo(device, said),\n"
        "           nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None),\n"
        "           nvml.nvmlDeviceGetUtilizationRates(device, said)]\n"
        "print(json.dumps([results, 'libcuda' in open('/proc/self/maps').read()]))"
    )
    done = node.run_program(["python3", "-c", code], **CORES)
    assert json.loads(done.stdout) == [[0, 0, 0], False], done.stderr


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({LIMIT: "lots"}, id="a malformed limit"),
        pytest.param({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/proc/no/such.cache"}, id="no region"),
    ],
)
def test_where_cuda_is_refused_nvml_is_the_drivers(node: Node, env: dict[str, str]) -> None:
    env = {LIMIT: "1000m", **env}
    assert node.run("say(started=start())", **env)["started"] != 0
    node.sim.process(0, OTHER, 9000)
    assert look(node, "memory(handle())", **env) == [FULL, 9000, FULL - 9000]
