"""The simulated driver divides GPUs: through pynvml, as a program that manages MIG does it."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from built_hook import sim_libraries

from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

UUID = made_up_uuid(0)
A100 = SimGpu(uuid=UUID, name="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability="8.0")
ONE_SLICE, TWO_SLICES, THREE_SLICES, WHOLE, MEDIA = 19, 14, 9, 0, 20


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimDriver]:
    """A node with one A100, and NVML in this process."""
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu(gpu=A100)
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    pynvml.nvmlInit()
    yield driver
    pynvml.nvmlShutdown()


def gpu() -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def enable() -> Any:
    pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    return gpu()


def make(profile: int, start: int, size: int) -> Any:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        gpu(), profile, ctypes.byref(placement)
    )
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0 if size == 1 else 1)
    return instance


def devices() -> dict[str, tuple[int, int, int]]:
    """MIG devices: uuid -> GPU instance, compute instance, MiB."""
    found = {}
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu())):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), position)
        except pynvml.NVMLError_NotFound:
            continue
        found[pynvml.nvmlDeviceGetUUID(mig)] = (
            pynvml.nvmlDeviceGetGpuInstanceId(mig),
            pynvml.nvmlDeviceGetComputeInstanceId(mig),
            pynvml.nvmlDeviceGetAttributes(mig).memorySizeMB,
        )
    return found


@pytest.mark.usefixtures("sim")
def test_profiles_are_told_with_their_places() -> None:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(
        gpu(), pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE
    )
    assert (info.name, info.id, info.sliceCount) == ("MIG 2g.10gb", TWO_SLICES, 2)
    assert (info.multiprocessorCount, info.instanceCount, info.memorySizeMB) == (28, 3, 9856)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)
    count, room = pynvml.c_uint(8), (pynvml.c_nvmlGpuInstancePlacement_t * 8)()
    with pytest.raises(pynvml.NVMLError_NotSupported):  # not before MIG is enabled
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), TWO_SLICES, room, count)
    enable()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), TWO_SLICES, room, ctypes.byref(count))
    assert [(one.start, one.size) for one in room[: count.value]] == [(0, 2), (2, 2), (4, 2)]


@pytest.mark.usefixtures("sim")
def test_an_instance_is_made_at_its_place_and_destroyed() -> None:
    enable()
    instance = make(TWO_SLICES, 2, 2)
    ((uuid, place),) = devices().items()
    assert uuid.startswith("MIG-")
    assert place == (4, 0, 9856)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (4, 14, 2, 2)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert devices() == {}
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlGpuInstanceDestroy(instance)
    make(TWO_SLICES, 2, 2)
    assert list(devices()) == [uuid]  # the driver names places


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize(
    ("taken", "profile", "start", "size", "error"),
    [
        pytest.param((THREE_SLICES, 4, 4), ONE_SLICE, 5, 1, "InsufficientResources", id="taken"),
        pytest.param((ONE_SLICE, 6, 1), WHOLE, 0, 8, "InsufficientResources", id="not all free"),
        pytest.param((MEDIA, 0, 1), MEDIA, 1, 1, "InsufficientResources", id="engines taken"),
        pytest.param((ONE_SLICE, 0, 1), TWO_SLICES, 1, 2, "InvalidArgument", id="no such place"),
        pytest.param((ONE_SLICE, 0, 1), ONE_SLICE, 1, 2, "InvalidArgument", id="another size"),
        pytest.param((ONE_SLICE, 0, 1), 77, 1, 1, "NotSupported", id="no such profile"),
    ],
)
def test_what_cannot_be_made(
    taken: tuple[int, int, int], profile: int, start: int, size: int, error: str
) -> None:
    enable()
    make(*taken)
    with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
        make(profile, start, size)
    assert len(devices()) == 1


def test_nothing_is_taken_from_under_a_process(sim: SimDriver) -> None:
    enable()
    instance = make(ONE_SLICE, 3, 1)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    sim.process(0, 4321, 100, instance=(10, 0))
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())
    assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (4321, 10, 0)
    (mig,) = (pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in devices())
    assert [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [4321]
    sim.end_process(4321)
    pynvml.nvmlComputeInstanceDestroy(compute)


def test_the_mode_waits_for_processes_and_instances(sim: SimDriver) -> None:
    sim.process(0, 4321, 100)
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]  # pending
    sim.end_process(4321)
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
    make(ONE_SLICE, 0, 1)
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_ERROR_IN_USE
    assert len(devices()) == 1


def test_models_without_mig_have_none(sim: SimDriver) -> None:
    sim.add_gpu()  # an A40
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(1), 1)


def test_every_process_of_the_node_sees_the_same_instances(sim: SimDriver) -> None:
    enable()
    make(ONE_SLICE, 0, 1)
    program = (
        "import pynvml as n\nn.nvmlInit()\nd = n.nvmlDeviceGetHandleByIndex(0)\n"
        "print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(d, 0)))\n"
        "n.nvmlDeviceCreateGpuInstance(d, 19)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=sim.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == list(devices())
    count, room = pynvml.c_uint(7), (pynvml.c_nvmlGpuInstance_t * 7)()
    pynvml.nvmlDeviceGetGpuInstances(gpu(), ONE_SLICE, room, ctypes.byref(count))
    places = [pynvml.nvmlGpuInstanceGetInfo(one).placement.start for one in room[: count.value]]
    assert places == [0, 1]


def test_a_program_with_a_mig_device_has_its_memory_and_no_more(sim: SimDriver) -> None:
    enable()
    make(ONE_SLICE, 2, 1)
    ((uuid, _),) = devices().items()
    tenant = subprocess.Popen(
        [str(sim_libraries() / "sim-tenant")],
        env=sim.environment() | {"NVIDIA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tenant.stdin
    assert tenant.stdout
    tenant.stdin.write("alloc 4000\nalloc 1000\n")
    tenant.stdin.flush()
    answers = [json.loads(tenant.stdout.readline()) for _ in range(3)]
    used = pynvml.nvmlDeviceGetMemoryInfo(gpu()).used >> 20
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())
    tenant.stdin.close()
    tenant.wait(10)
    tenant.stdout.close()
    assert [(one["ok"], one["result"]) for one in answers[1:]] == [(True, 0), (False, 2)]
    assert answers[1]["devices"][0]["total_mib"] == 4864
    assert used == 4000
    assert (process.pid, process.gpuInstanceId) == (tenant.pid, 9)
