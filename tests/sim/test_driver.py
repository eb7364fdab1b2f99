"""The simulated driver: its configuration language, and that it changes under running programs."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest
from built_hook import sim_libraries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.sim import driver as sim_driver
from agent.sim.driver import SimDriver, SimGpu, SimMig, library_dir, made_up_uuid

A, B = made_up_uuid(0), made_up_uuid(1)


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    """A node with two A40s, and NVML in this process."""
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu()
    driver.add_gpu(gpu=SimGpu(uuid=B, numa_node=1))
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    return driver


@pytest.fixture
def nvml(sim: SimDriver) -> Iterator[None]:
    pynvml.nvmlInit()
    yield
    pynvml.nvmlShutdown()


@dataclass(frozen=True)
class Loaded:
    """What NVML says of a configuration."""

    count: int
    complaint: str


def load(config: Path) -> Loaded:
    """Read a configuration in a process of its own; its complaint is on stderr."""
    program = "import pynvml\npynvml.nvmlInit()\nprint(pynvml.nvmlDeviceGetCount())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"LD_LIBRARY_PATH": str(sim_libraries()), "VGPU_SIM_DRIVER": str(config)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if line.startswith("simulated driver")]
    return Loaded(int(done.stdout or -1), complaints[0] if complaints else "")


GPU = "gpu 0 uuid=GPU-a memory_mib=100\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("# nothing\n\n   \t\n", 0, id="comments and blanks"),
        pytest.param(GPU, 1, id="one"),
        pytest.param(GPU.rstrip(), 1, id="no newline at the end"),
        pytest.param("\t" + GPU.replace(" ", " \t ").replace("\n", "\r\n"), 1, id="odd blanks"),
        pytest.param(GPU + "gpu 7 uuid=GPU-b\n", 2, id="numbers may have gaps"),
        pytest.param('gpu 0 uuid=GPU-a name="a \\"b\\" \\\\ # \\xe9"\n', 1, id="quoting"),
        pytest.param("lost gpu=0\nxid 1 gpu=0 code=79\n" + GPU, 1, id="the gpu line comes later"),
        pytest.param(GPU + "xid 1 gpu=9 code=79\nlost gpu=9\n", 1, id="events of a gpu taken out"),
        pytest.param(
            GPU + "driver ok\ncuda_version 13000\nkernel_us 5\nenumeration fixed\n", 1, id="all"
        ),
        pytest.param(
            GPU
            + "kernel a us=5\nkernel b us=2..200000\nkernel c us=20..2000 one_in=100\nkernel d us=20..500 after=300\nslice_us 1\nlaunch_us 0\nevent_ns 1000000\nqueue_depth 1024\nconnections 32\n"
            "clock virtual\nclock real\nabsent call=cuMemCreate\ngreen_contexts apart\ngreen_contexts same\n",
            1,
            id="how work runs",
        ),
    ],
)
def test_what_the_configuration_can_say(tmp_path: Path, text: str, count: int) -> None:
    config = tmp_path / "node.conf"
    config.write_text(text, newline="")
    assert load(config) == Loaded(count, "")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("bogus 1\n", "line 1: unknown statement bogus", id="unknown word"),
        pytest.param(GPU + "\ngpu\n", "line 3: gpu needs more words", id="cut short"),
        pytest.param("gpu 0\n", "line 1: uuid must have", id="no uuid"),
        pytest.param("gpu x uuid=a\n", "gpu must be a number", id="no number"),
        pytest.param(GPU + "gpu 0 uuid=GPU-b\n", "already there", id="number twice"),
        pytest.param(GPU + "gpu 1 uuid=GPU-a\n", "already there", id="uuid twice"),
        pytest.param("gpu 0 uuid=a memory_mib=-1\n", "memory_mib must be a number", id="negative"),
        pytest.param("gpu 0 uuid=a memory_mib=1x\n", "memory_mib must be a number", id="junk"),
        pytest.param("gpu 0 uuid=a bus=17\n", "bus must look like", id="bus"),
        pytest.param("gpu 0 uuid=a cc=8\n", "cc must look like", id="capability"),
        pytest.param("gpu 0 uuid=a events=never\n", "events must be", id="events"),
        pytest.param("gpu 0 uuid=a mig=maybe\n", "mig must be on or off", id="mig"),
        pytest.param('gpu 0 uuid="a\n', "a quote is not closed", id="quote"),
        pytest.param(GPU + "mig 0 0 uuid=MIG-a\n", "no gpu 0 with mig=on", id="mig of a whole gpu"),
        pytest.param(GPU + "ecc 1 gpu=0 kind=triple\n", "kind must be", id="ecc"),
        pytest.param(GPU + "xid 0 gpu=0 code=79\n", "event number must be", id="event 0"),
        pytest.param(GPU + "process gpu=1 pid=1\n", "there is no gpu 1", id="process elsewhere"),
        pytest.param(GPU + "nvlink 0 0 links=1\n", "two different gpus", id="link to itself"),
        pytest.param(GPU + "nvlink 0 switch links=99\n", "links must be", id="too many links"),
        pytest.param(GPU + "topology 0 0 level=single\n", "two different gpus", id="near itself"),
        pytest.param(GPU + "topology 0 0 level=near\n", "level must be", id="level"),
        pytest.param("driver gone\n", "driver must be", id="driver"),
        pytest.param("enumeration often\n", "enumeration must be", id="enumeration"),
        pytest.param("fail call=nvmlInit code=0\n", "code must be", id="a failure that is none"),
        pytest.param(
            GPU + "xid 2 gpu=0 code=48\necc 2 gpu=0 kind=single\n",
            "line 3: the event number 2 must be above",
            id="event number twice",
        ),
        pytest.param(
            GPU + "xid 2 gpu=0 code=48\nxid 1 gpu=9 code=79\n",
            "line 3: the event number 1 must be above",
            id="event numbers that fall",
        ),
        pytest.param(GPU + "\ndriver ok\0\nhang\n", "line 3: a NUL byte", id="NUL byte"),
        pytest.param(GPU + "# nothing\0", "line 2: a NUL byte", id="NUL byte at the end"),
        pytest.param('gpu 0 uuid="a\\x00b"\n', "other than NUL", id="NUL byte by its number"),
        pytest.param("kernel a us=0..5\n", "us must be a number from 1", id="a range from zero"),
        pytest.param("kernel a us=5..2\n", "us must be a number from 5", id="a range that falls"),
        pytest.param("kernel a us=5.\n", "or two with .. between", id="half a range"),
        pytest.param("kernel a time=5\n", "us= must be", id="a kernel without a time"),
        pytest.param("slice_us 0\n", "slice_us must be", id="no slice"),
        pytest.param("queue_depth 1025\n", "queue_depth must be", id="too deep a queue"),
        pytest.param("connections 33\n", "connections must be", id="too many connections"),
        pytest.param("clock fast\n", "clock must be real or virtual", id="clock"),
        pytest.param(
            "green_contexts far\n", "green_contexts must be same or apart", id="green contexts"
        ),
        pytest.param("absent cuMemCreate\n", "call must have", id="absent what"),
        pytest.param("x " * 30, "more than 24 words", id="too many words"),
        pytest.param(
            "".join(f"gpu {n} uuid=GPU-{n}\n" for n in range(65)), "64 gpus", id="too many"
        ),
    ],
)
def test_what_it_cannot_say_is_pointed_out(tmp_path: Path, text: str, complaint: str) -> None:
    config = tmp_path / "node.conf"
    config.write_text(text)
    loaded = load(config)
    assert loaded.count == -1
    assert complaint in loaded.complaint


@pytest.mark.usefixtures("nvml")
def test_a_broken_file_leaves_the_last_good_one_in_force(
    sim: SimDriver, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pynvml.nvmlDeviceGetCount() == 2
    sim.config_path.write_text("gpu gpu gpu")
    assert pynvml.nvmlDeviceGetCount() == 2
    assert "the last good configuration stays in force" in capfd.readouterr().err
    assert pynvml.nvmlDeviceGetCount() == 2
    assert capfd.readouterr().err == ""  # said once
    sim.config_path.unlink()
    assert pynvml.nvmlDeviceGetCount() == 2
    sim.remove_gpu(1)
    assert pynvml.nvmlDeviceGetCount() == 1


names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=30)


@pytest.mark.usefixtures("nvml")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    name=names,
    memory_mib=st.one_of(st.none(), st.integers(0, 1 << 20)),
    numa_node=st.one_of(st.none(), st.integers(0, 63)),
    minor=st.integers(0, 4095),
    mig=st.booleans(),
)
def test_what_is_written_is_what_nvml_says(
    sim: SimDriver, name: str, memory_mib: int | None, numa_node: int | None, minor: int, mig: bool
) -> None:
    sim.change_gpu(
        0,
        SimGpu(uuid=A, name=name, memory_mib=memory_mib, numa_node=numa_node, minor=minor, mig=mig),
    )
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle) == name
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == minor
    assert pynvml.nvmlDeviceGetMigMode(handle)[0] == mig
    for call, expected in (
        (lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20, memory_mib),
        (lambda: pynvml.nvmlDeviceGetNumaNodeId(handle), numa_node),
    ):
        if expected is None:
            with pytest.raises(pynvml.NVMLError_NotSupported):
                call()
        else:
            assert call() == expected


@pytest.mark.usefixtures("nvml")
def test_every_way_to_a_handle_leads_to_the_same_gpu() -> None:
    by_index = pynvml.nvmlDeviceGetHandleByIndex(1)
    place = pynvml.nvmlDeviceGetPciInfo(by_index).busId
    for handle in (
        pynvml.nvmlDeviceGetHandleByUUID(B),
        pynvml.nvmlDeviceGetHandleByPciBusId(place),
        pynvml.nvmlDeviceGetHandleByPciBusId(place.lower().removeprefix("0000")),
    ):
        assert pynvml.nvmlDeviceGetUUID(handle) == B
        assert pynvml.nvmlDeviceGetIndex(handle) == 1
    for call in (
        lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-none"),
        lambda: pynvml.nvmlDeviceGetHandleByPciBusId("0000:ff:00.0"),
    ):
        with pytest.raises(pynvml.NVMLError_NotFound):
            call()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(2)


@pytest.mark.usefixtures("nvml")
def test_processes_and_memory(sim: SimDriver) -> None:
    sim.process(0, 4242, 500, sm_percent=30)
    sim.process(0, 4343, 100, kind="graphics")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    graphics = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    assert [(p.pid, p.usedGpuMemory >> 20) for p in compute] == [(4242, 500)]
    assert [(p.pid, p.usedGpuMemory >> 20) for p in graphics] == [(4343, 100)]
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20 == 600
    samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    assert [(sample.pid, sample.smUtil) for sample in samples] == [(4242, 30)]
    sim.end_process(4242)
    sim.end_process(4343)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


@pytest.mark.usefixtures("nvml")
def test_the_drivers_own_memory_shows_as_in_real_life(sim: SimDriver) -> None:
    sim.change_gpu(0, SimGpu(uuid=A, memory_mib=1000, reserved_mib=300))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    assert (first.used >> 20, first.free >> 20) == (300, 700)
    assert (second.used >> 20, second.reserved >> 20, second.free >> 20) == (0, 300, 700)


@pytest.mark.usefixtures("nvml")
def test_mig_devices(sim: SimDriver) -> None:
    slices = (
        SimMig(position=0, uuid="MIG-a", gpu_instance=7),
        SimMig(position=2, uuid="MIG-b", gpu_instance=9, compute_instance=1, memory_mib=9728),
    )
    sim.change_gpu(0, SimGpu(uuid=A, mig=True, migs=slices))
    whole = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(whole) == 7
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 1)
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 2)
    assert pynvml.nvmlDeviceGetUUID(part) == "MIG-b"
    assert pynvml.nvmlDeviceGetGpuInstanceId(part) == 9
    assert pynvml.nvmlDeviceGetComputeInstanceId(part) == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(part)
    assert pynvml.nvmlDeviceGetAttributes(part).memorySizeMB == 9728
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    assert pynvml.nvmlDeviceGetUUID(parent) == A
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceId(whole)


@pytest.mark.usefixtures("nvml")
def test_each_event_set_has_its_own_memory_of_events(sim: SimDriver) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    early, late = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, early)
    sim.xid(0, 48)
    sim.ecc(0)  # not asked for
    sim.xid(1, 62)  # not of this GPU
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, late)
    event = pynvml.nvmlEventSetWait_v2(early, 0)
    assert (event.eventType, event.eventData) == (8, 48)
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    for event_set in (early, late):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(event_set, 0)
        pynvml.nvmlEventSetFree(event_set)


@pytest.mark.usefixtures("nvml")
def test_a_lost_gpu_answers_nothing_else(sim: SimDriver) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    sim.lost(0)
    for call in (
        lambda: pynvml.nvmlDeviceGetUUID(handle),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        lambda: pynvml.nvmlDeviceGetHandleByIndex(0),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(A),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call()
    assert pynvml.nvmlDeviceGetCount() == 2


@pytest.mark.usefixtures("sim")
def test_before_init_there_is_nothing() -> None:
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, [A, B], id="not in a container"),
        pytest.param("all", [A, B], id="all"),
        pytest.param("none", [], id="none"),
        pytest.param("void", [], id="void"),
        pytest.param("", [], id="empty"),
        pytest.param("1", [B], id="by index"),
        pytest.param(f"{B},{A}", [A, B], id="the order is the bus's, not the list's"),
        pytest.param(B, [B], id="by uuid"),
        pytest.param("GPU-unknown", [], id="not of this node"),
    ],
)
def test_a_container_sees_the_gpus_it_was_given(
    sim: SimDriver, visible: str | None, expected: list[str]
) -> None:
    program = (
        "import pynvml\npynvml.nvmlInit()\n"
        "print(*[pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))"
        " for i in range(pynvml.nvmlDeviceGetCount())])"
    )
    env = sim.environment() | ({} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible})
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == expected


def test_versions_can_be_chosen(sim: SimDriver) -> None:
    sim.versions(driver="535.43.02", cuda=12020)
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "535.43.02"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12020
    pynvml.nvmlShutdown()


def test_without_the_built_libraries_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"build\.py hook"):
        SimDriver(tmp_path, libraries=tmp_path)


def test_the_libraries_are_found_where_the_environment_says(tmp_path: Path) -> None:
    assert library_dir({"VGPU_SIM_LIBRARY_DIR": str(tmp_path)}) == tmp_path
    assert library_dir({}).parts[-4:] == (".build", "hook", os.uname().machine, "sim")


def test_old_events_are_forgotten_and_numbers_go_on(sim: SimDriver) -> None:
    for _ in range(sim_driver.MAX_EVENTS + 5):
        last = sim.xid(0, 48)
    assert last == sim_driver.MAX_EVENTS + 5
    text = sim.config_path.read_text()
    assert text.count("\nxid ") == sim_driver.MAX_EVENTS
    assert f"xid {last} " in text
