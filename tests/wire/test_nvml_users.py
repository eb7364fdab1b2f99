"""Who is on the GPUs, against the simulated driver that pynvml loads."""

import pytest

from agent.adapters.nvml_users import NvmlUsers
from agent.domain.accounting import GpuProcess
from agent.errors import NvmlError
from agent.sim.driver import SimDriver
from tests.wire.test_nvml_use import IS_LOST, MIB, NOT_SUPPORTED, UNKNOWN, A, B, sim  # noqa: F401

COMPUTE, GRAPHICS = (f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics"))
ON_A = (GpuProcess(pid=501, used_bytes=1000 * MIB), GpuProcess(pid=502, used_bytes=24 * MIB))


@pytest.mark.parametrize(
    ("call", "code", "found"),
    [
        pytest.param("", 0, {A: ON_A, B: ()}, id="all answer"),
        pytest.param(COMPUTE, NOT_SUPPORTED, {B: ()}, id="the driver does not tell"),
        pytest.param(GRAPHICS, NOT_SUPPORTED, {A: ON_A, B: ()}, id="nobody draws here"),
        pytest.param(COMPUTE, IS_LOST, {B: ()}, id="a GPU is lost"),
        pytest.param("nvmlDeviceGetHandleByIndex_v2", UNKNOWN, {B: ()}, id="a GPU does not answer"),
    ],
)
def test_who_is_listed(
    sim: SimDriver,  # noqa: F811 - the fixture
    call: str,
    code: int,
    found: dict[str, tuple[GpuProcess, ...]],
) -> None:
    if call:
        sim.fail(call, code, 0)
    assert NvmlUsers().look() == found


def test_a_driver_that_does_not_start_is_an_error(sim: SimDriver) -> None:  # noqa: F811
    sim.driver("absent")
    with pytest.raises(NvmlError):
        NvmlUsers().look()
