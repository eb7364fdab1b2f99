"""MIG through NVML: what is listed, and instances made and destroyed on the simulated driver."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from built_hook import sim_libraries

from agent.adapters.mig_files import MigBookFile
from agent.adapters.nvml import NvmlDriver
from agent.adapters.nvml_mig import MigNodes, device_nodes, size_gb
from agent.adapters.nvml_mig_maker import NvmlMigMaker
from agent.domain.gpu import Gpu, GpuEvent, MigPlacement
from agent.domain.mig_allocations import MigIdentity
from agent.domain.mig_books import MigHolding
from agent.errors import MigInUse, MigNoRoom, NodeNotReady, NvmlError
from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

UUID = made_up_uuid(0)
A100 = SimGpu(uuid=UUID, name="NVIDIA A100-SXM4-40GB", memory_mib=40536, compute_capability="8.0")
SMALL, MEDIUM, LARGE = 19, 14, 9
MINORS = "config 1\nmonitor 2\ngpu0/gi9/access 102\ngpu0/gi9/ci0/access 103\ngpu1/gi9/access 7\n"


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu(gpu=A100)
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    return driver


@pytest.fixture
def maker(sim: SimDriver) -> NvmlMigMaker:
    found = NvmlMigMaker()
    found.enable(UUID)
    return found


@pytest.fixture
def nvml(sim: SimDriver, tmp_path: Path) -> Iterator[NvmlDriver]:
    (tmp_path / "mig-minors").write_text(MINORS)
    driver = NvmlDriver(
        sysfs=tmp_path / "none", proc_gpus=tmp_path / "none", mig_minors=tmp_path / "mig-minors"
    )
    driver.open()
    yield driver
    driver.close()


def the_gpu(nvml: NvmlDriver) -> Gpu:
    (gpu,) = nvml.gpus()
    return gpu


def test_a_gpu_that_is_not_divided_tells_nothing(nvml: NvmlDriver) -> None:
    gpu = the_gpu(nvml)
    assert (gpu.mig_enabled, gpu.mig_devices, gpu.mig_profiles) == (False, (), ())


def test_what_is_taken_back_while_it_is_read_takes_no_other_with_it(
    nvml: NvmlDriver, maker: NvmlMigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU had no MIG devices and no profiles then, and the node offered none."""
    gone = maker.create(UUID, SMALL, MigPlacement(2, 1))
    maker.create(UUID, SMALL, MigPlacement(4, 1))
    asked = pynvml.nvmlDeviceGetAttributes

    def taken_back(mig: object) -> object:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetAttributes", asked)
        maker.destroy(gone)
        return asked(mig)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetAttributes", taken_back)
    gpu = the_gpu(nvml)
    assert [one.placement for one in gpu.mig_devices] == [MigPlacement(4, 1)]
    assert gpu.mig_profiles


def test_profiles_and_devices_are_listed(nvml: NvmlDriver, maker: NvmlMigMaker) -> None:
    maker.create(UUID, SMALL, MigPlacement(2, 1))
    gpu = the_gpu(nvml)
    assert [one.name for one in gpu.mig_profiles] == [
        "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me", "1g.10gb",
    ]  # fmt: skip
    large = gpu.mig_profiles[2]
    assert (large.profile_id, large.slice_count, large.multiprocessors) == (9, 3, 42)
    assert large.placements == (MigPlacement(0, 4), MigPlacement(4, 4))
    (device,) = gpu.mig_devices
    assert device.uuid.startswith("MIG-")
    assert (device.profile, device.memory_mib, device.multiprocessors) == ("1g.5gb", 4864, 14)
    assert (device.gpu_instance, device.compute_instance) == (9, 0)
    assert device.placement == MigPlacement(2, 1)
    assert device.device_nodes == (
        "/dev/nvidia-caps/nvidia-cap102", "/dev/nvidia-caps/nvidia-cap103",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param("nvmlDeviceGetGpuInstanceById", 4, id="no permission for instances"),
        pytest.param("nvmlDeviceGetGpuInstanceProfileInfoV", 13, id="a driver without names"),
    ],
)
def test_names_do_not_depend_on_everything(
    sim: SimDriver, nvml: NvmlDriver, maker: NvmlMigMaker, call: str, code: int
) -> None:
    maker.create(UUID, MEDIUM, MigPlacement(4, 2))
    sim.fail(call, code)
    assert [one.profile for one in the_gpu(nvml).mig_devices] == ["2g.10gb"]


@pytest.mark.parametrize("instances", [True, False], ids=["instances", "no instances"])
def test_mig_devices_are_seen_without_the_right_to_monitor_all_of_a_gpu(
    sim: SimDriver, nvml: NvmlDriver, maker: NvmlMigMaker, *, instances: bool
) -> None:
    """As in a container without mig/monitor: the memory of the whole is not for it."""
    maker.create(UUID, SMALL, MigPlacement(2, 1))
    maker.create(UUID, MEDIUM, MigPlacement(4, 2))
    sim.fail("nvmlDeviceGetMemoryInfo", 4)
    if not instances:
        sim.fail("nvmlDeviceGetGpuInstanceById", 4)
    gpu = the_gpu(nvml)
    assert sorted(one.profile for one in gpu.mig_devices) == ["1g.5gb", "2g.10gb"]
    assert gpu.memory_mib is None
    nvml.probe(UUID)


def test_without_names_and_sizes_no_device_is_called_what_it_is_not(
    sim: SimDriver, nvml: NvmlDriver, maker: NvmlMigMaker
) -> None:
    maker.create(UUID, SMALL, MigPlacement(0, 1))
    sim.fail("nvmlDeviceGetMemoryInfo", 4)
    sim.fail("nvmlDeviceGetGpuInstanceProfileInfoV", 13)
    assert (the_gpu(nvml).mig_enabled, the_gpu(nvml).mig_devices) == (True, ())


def test_what_cannot_be_read_of_mig_costs_no_gpu(
    sim: SimDriver, nvml: NvmlDriver, maker: NvmlMigMaker
) -> None:
    maker.create(UUID, SMALL, MigPlacement(0, 1))
    sim.fail("nvmlDeviceGetAttributes_v2", 999)
    assert (the_gpu(nvml).mig_enabled, the_gpu(nvml).mig_devices) == (True, ())


def test_an_event_names_its_instance(sim: SimDriver, nvml: NvmlDriver, maker: NvmlMigMaker) -> None:
    maker.create(UUID, SMALL, MigPlacement(0, 1))
    gpu = the_gpu(nvml)
    sim.xid(0, 94, instance=(7, 0))
    event = nvml.wait_event(5.0)
    assert event == GpuEvent(uuid=UUID, kind="xid", xid=94, instance=(7, 0))
    assert event.concerns(gpu.mig_devices[0])
    sim.xid(0, 79)
    assert nvml.wait_event(5.0) == GpuEvent(uuid=UUID, kind="xid", xid=79)


@pytest.mark.parametrize(
    ("memory_mib", "total_mib", "gb"),
    [
        pytest.param(4864, 40536, 5, id="A100 40GB, a seventh"),
        pytest.param(9856, 40536, 10, id="A100 40GB, two"),
        pytest.param(9728, 81251, 10, id="A100 80GB"),
        pytest.param(16384, 143771, 18, id="H200"),
        pytest.param(71424, 143771, 71, id="H200, a half"),
        pytest.param(5952, 24576, 6, id="A30"),
    ],
)
def test_gigabytes_as_nvidia_counts_them(memory_mib: int, total_mib: int, gb: int) -> None:
    assert size_gb(memory_mib, total_mib) == gb


def test_device_nodes_of_a_strange_list() -> None:
    assert device_nodes("gpu0/gi1/access x\n\ngpuX/gi0/access 3\n" + "9" * 99) == {}
    assert MigNodes(Path("/nonexistent")).of(0, 1, 0) == ()
    assert MigNodes(Path("/nonexistent")).of(None, 1, 0) == ()


# --- making -------------------------------------------------------------------------------------


def test_an_instance_is_made_found_and_destroyed(maker: NvmlMigMaker) -> None:
    made = maker.create(UUID, LARGE, MigPlacement(4, 4))
    assert (made.gpu_instance, made.profile_id, made.placement) == (2, 9, MigPlacement(4, 4))
    gpu = maker.look(UUID)
    assert (gpu.enabled, gpu.busy, gpu.instances) == (True, False, (made,))
    assert gpu.at(MigPlacement(4, 4)) == made
    maker.destroy(made)
    assert maker.look(UUID).instances == ()
    maker.destroy(made)  # once more is no error


def test_what_has_the_number_by_now_is_not_destroyed(maker: NvmlMigMaker) -> None:
    made = maker.create(UUID, SMALL, MigPlacement(0, 1))
    maker.destroy(replace(made, placement=MigPlacement(0, 2)))
    assert maker.look(UUID).instances == (made,)


def test_where_another_lies_there_is_no_room(maker: NvmlMigMaker) -> None:
    maker.create(UUID, LARGE, MigPlacement(0, 4))
    with pytest.raises(MigNoRoom, match="another instance lies there"):
        maker.create(UUID, SMALL, MigPlacement(2, 1))


def test_half_an_instance_is_none(sim: SimDriver, maker: NvmlMigMaker) -> None:
    sim.fail("nvmlGpuInstanceCreateComputeInstance", 999)
    with pytest.raises(NvmlError, match=UUID):
        maker.create(UUID, SMALL, MigPlacement(0, 1))
    sim.heal()
    assert maker.look(UUID).instances == ()


HALF = """
import ctypes, pynvml as n
n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, ctypes.byref(n.c_nvmlGpuInstancePlacement_t(3, 1)))
"""


def test_half_an_instance_that_a_killed_agent_left_is_completed(
    sim: SimDriver, maker: NvmlMigMaker
) -> None:
    subprocess.run(
        [sys.executable, "-c", HALF], env=dict(os.environ) | sim.environment(), check=True
    )
    (half,) = maker.look(UUID).instances
    assert half.devices == ()
    assert maker.complete(half).devices == maker.look(UUID).instances[0].devices != ()


def test_what_runs_is_seen_and_kept(sim: SimDriver, maker: NvmlMigMaker) -> None:
    made = maker.create(UUID, SMALL, MigPlacement(3, 1))
    other = maker.create(UUID, SMALL, MigPlacement(4, 1))
    sim.process(0, 4321, 100, instance=(made.gpu_instance, 0))
    gpu = maker.look(UUID)
    assert (gpu.busy, [one.busy for one in gpu.instances]) == (True, [True, False])
    with pytest.raises(MigInUse, match="a process is still on it"):
        maker.destroy(made)
    maker.destroy(other)


def test_processes_that_are_not_told_count_as_there(sim: SimDriver, maker: NvmlMigMaker) -> None:
    maker.create(UUID, SMALL, MigPlacement(3, 1))
    for version in ("", "_v2", "_v3"):
        sim.fail(f"nvmlDeviceGetComputeRunningProcesses{version}", 999)
    gpu = maker.look(UUID)
    assert (gpu.busy, [one.busy for one in gpu.instances]) == (True, [True])


def test_a_gpu_that_is_used_is_not_put_into_mig_mode(sim: SimDriver) -> None:
    sim.process(0, 4321, 100)
    with pytest.raises(MigInUse):
        NvmlMigMaker().enable(UUID)
    assert not NvmlMigMaker().look(UUID).enabled


def test_without_permission_the_driver_says_so(sim: SimDriver) -> None:
    sim.fail("nvmlDeviceSetMigMode", 4)
    with pytest.raises(NvmlError, match="Insufficient Permissions") as refused:
        NvmlMigMaker().enable(UUID)
    assert "CAP_SYS_ADMIN" in str(refused.value)  # as docs/modes/mig.md has it


# --- files --------------------------------------------------------------------------------------

HOLDING = MigHolding(
    pod_uid="uid", container="main", device_index=0, gpu_uuid=UUID, profile="1g.5gb",
    profile_id=19, placement=MigPlacement(3, 1), identity=MigIdentity("MIG-a", 10, 0),
)  # fmt: skip


def test_the_book_is_there_after_a_restart(tmp_path: Path) -> None:
    book = MigBookFile(tmp_path / "state")
    assert book.load() == ()
    book.save((HOLDING, replace(HOLDING, container="other", identity=None)))
    assert MigBookFile(tmp_path / "state").load()[0] == HOLDING


def test_a_book_that_is_none_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "mig.json").write_text("{")
    with pytest.raises(NodeNotReady, match="move it away"):
        MigBookFile(tmp_path).load()
