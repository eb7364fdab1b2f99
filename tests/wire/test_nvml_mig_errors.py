"""Each call of NVML that divides a GPU fails: nothing is left, and nothing is taken for free."""

import ctypes
from pathlib import Path

import pytest
from built_hook import sim_libraries

from agent.adapters.nvml_mig_maker import NvmlMigMaker
from agent.domain.gpu import MigPlacement
from agent.errors import NvmlError
from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

UUID, SMALL, PLACE = made_up_uuid(0), 19, MigPlacement(6, 1)
UNKNOWN, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE = 999, 3, 4, 6, 19
MAKING = (
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetUUID",
)
LOOKING = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu(
        gpu=SimGpu(
            uuid=UUID, name="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability="8.0"
        )
    )
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    NvmlMigMaker().enable(UUID)
    return driver


@pytest.mark.parametrize("code", [UNKNOWN, NO_PERMISSION, IN_USE])
@pytest.mark.parametrize("function", MAKING)
def test_what_cannot_be_made_leaves_nothing(sim: SimDriver, function: str, code: int) -> None:
    maker = NvmlMigMaker()
    sim.fail(function, code)
    with pytest.raises(NvmlError):
        maker.create(UUID, SMALL, PLACE)
    sim.heal()
    assert maker.look(UUID).instances == ()


@pytest.mark.parametrize("code", [UNKNOWN, NO_PERMISSION, NOT_SUPPORTED])
@pytest.mark.parametrize("function", LOOKING)
def test_what_is_not_told_is_not_taken_for_free(sim: SimDriver, function: str, code: int) -> None:
    maker = NvmlMigMaker()
    made = maker.create(UUID, SMALL, PLACE)
    sim.fail(function, code)
    with pytest.raises(NvmlError):
        maker.look(UUID)
    sim.heal()
    assert maker.look(UUID).instances == (made,)


@pytest.mark.parametrize(
    ("code", "gone"),
    [
        pytest.param(NOT_FOUND, True, id="it is gone"),
        pytest.param(NOT_SUPPORTED, False, id="not supported"),
        pytest.param(NO_PERMISSION, False, id="no permission"),
    ],
)
def test_what_could_not_be_destroyed_is_not_said_to_be(
    sim: SimDriver, code: int, gone: bool
) -> None:
    maker = NvmlMigMaker()
    made = maker.create(UUID, SMALL, PLACE)
    sim.fail("nvmlDeviceGetGpuInstanceById", code)
    if gone:
        maker.destroy(made)
    else:
        with pytest.raises(NvmlError):
            maker.destroy(made)
