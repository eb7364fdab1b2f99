"""What the driver tells of the use of GPUs, against the simulated driver that pynvml loads."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from built_hook import sim_libraries
from hypothesis import given
from hypothesis import strategies as st

from agent.adapters.nvml import NvmlDriver
from agent.adapters.nvml_use import NvmlMeter, by_pid
from agent.domain.accounting import GpuProcess, GpuUse
from agent.errors import NvmlAbsent, NvmlError, NvmlStale
from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

A, B = made_up_uuid(0), made_up_uuid(1)
MIB = 1 << 20
NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN, IS_LOST = 3, 13, 999, 15


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    """A node with two A40s, of which the first works."""
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))  # the soname pynvml asks for next
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu(gpu=SimGpu(uuid=A, gpu_percent=40, reserved_mib=600))
    driver.add_gpu(gpu=SimGpu(uuid=B))
    driver.process(0, 501, 1000, sm_percent=30)
    driver.process(0, 502, 24)
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    return driver


@pytest.fixture
def meter(sim: SimDriver) -> NvmlMeter:
    return NvmlMeter()


def first(meter: NvmlMeter) -> GpuUse:
    return meter.look()[0]


def test_a_gpu_is_described_by_what_the_driver_says(meter: NvmlMeter) -> None:
    busy, idle = meter.look()
    assert busy == GpuUse(
        uuid=A,
        index=0,
        name="NVIDIA A40",
        memory_used_bytes=1024 * MIB,  # without the driver's own part
        memory_total_bytes=46068 * MIB,
        utilisation_percent=40,
        memory_utilisation_percent=0,
        temperature_celsius=45,
        power_watts=138.0,
        ecc_corrected=0,
        ecc_uncorrected=0,
        processes=(
            GpuProcess(pid=501, used_bytes=1000 * MIB, sm_percent=30),
            GpuProcess(pid=502, used_bytes=24 * MIB, sm_percent=0),
        ),
    )
    assert (idle.uuid, idle.index, idle.processes) == (B, 1, ())


@pytest.mark.parametrize(
    ("call", "field"),
    [
        pytest.param("nvmlDeviceGetUtilizationRates", "utilisation_percent", id="utilisation"),
        pytest.param(
            "nvmlDeviceGetUtilizationRates", "memory_utilisation_percent", id="of its memory"
        ),
        pytest.param("nvmlDeviceGetTemperature", "temperature_celsius", id="temperature"),
        pytest.param("nvmlDeviceGetPowerUsage", "power_watts", id="power"),
        pytest.param("nvmlDeviceGetTotalEccErrors", "ecc_corrected", id="corrected"),
        pytest.param("nvmlDeviceGetTotalEccErrors", "ecc_uncorrected", id="uncorrected"),
    ],
)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN])
def test_what_the_driver_does_not_tell_is_none_and_nothing_else_is(
    sim: SimDriver, meter: NvmlMeter, call: str, field: str, code: int
) -> None:
    whole = first(meter)
    sim.fail(call, code, 0)
    assert getattr(first(meter), field) is None
    sim.heal()
    assert first(meter) == whole


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        pytest.param({"memory_mib": None}, "memory_used_bytes", None, id="unified memory: used"),
        pytest.param({"memory_mib": None}, "memory_total_bytes", None, id="unified memory: total"),
        pytest.param({"memory_mib": 0}, "memory_used_bytes", None, id="told as nothing: used"),
        pytest.param({"memory_mib": 0}, "memory_total_bytes", None, id="told as nothing: total"),
        pytest.param({"mig": True}, "mig_enabled", True, id="MIG on"),
        pytest.param({"events": "xid"}, "ecc_uncorrected", None, id="no ECC"),
        pytest.param({"compute_capability": "7.5"}, "mig_enabled", False, id="before MIG"),
        pytest.param(
            {"name": "A40 \udcff"}, "name", "A40 \N{REPLACEMENT CHARACTER}", id="not utf-8"
        ),
    ],
)
def test_gpus_that_differ(
    sim: SimDriver, meter: NvmlMeter, change: dict[str, object], field: str, value: object
) -> None:
    sim.change_gpu(0, replace(SimGpu(uuid=A), **change))
    assert getattr(first(meter), field) == value


def test_ecc_errors_are_those_of_the_gpu(sim: SimDriver, meter: NvmlMeter) -> None:
    for number, kind in [(0, "single"), (0, "double"), (1, "double"), (0, "single")]:
        sim.ecc(number, kind)
    one, other = meter.look()
    assert (one.ecc_corrected, one.ecc_uncorrected) == (2, 1)
    assert (other.ecc_corrected, other.ecc_uncorrected) == (0, 1)


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, 25], ids=["no such call", "no such version"])
def test_an_older_driver_counts_its_own_memory_as_used(
    sim: SimDriver, meter: NvmlMeter, code: int
) -> None:
    sim.fail("nvmlDeviceGetMemoryInfo_v2", code)
    assert first(meter).memory_used_bytes == 1624 * MIB


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(
            lambda sim: sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", FUNCTION_NOT_FOUND),
            [501, 502],
            id="a driver that knows the second version",
        ),
        pytest.param(
            lambda sim: sim.versions(driver="535.54.03"),
            [501, 502],
            id="a driver whose third version has longer entries",
        ),
        pytest.param(
            lambda sim: sim.fail("nvmlDeviceGetGraphicsRunningProcesses_v3", NOT_SUPPORTED),
            [501, 502],
            id="no graphics",
        ),
        pytest.param(
            lambda sim: sim.fail("nvmlDeviceGetComputeRunningProcesses_v3", NOT_SUPPORTED),
            None,
            id="not told",
        ),
        pytest.param(
            lambda sim: sim.process(0, 503, 7, kind="graphics"), [501, 502, 503], id="one draws"
        ),
        pytest.param(lambda sim: sim.end_process(501), [502], id="one ended"),
        pytest.param(
            lambda sim: [sim.process(0, 1000 + n, 1) for n in range(300)],
            [501, 502, *range(1000, 1300)],
            id="hundreds",
        ),
    ],
)
def test_processes(
    sim: SimDriver,
    meter: NvmlMeter,
    spoil: Callable[[SimDriver], object],
    expected: list[int] | None,
) -> None:
    spoil(sim)
    found = first(meter).processes
    assert (None if found is None else [process.pid for process in found]) == expected
    if found and found[0].pid == 501:
        assert found[0].used_bytes == 1000 * MIB


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(
            lambda sim: sim.process(0, 501, 1000, sm_percent=77), [77, 0], id="it works more"
        ),
        pytest.param(lambda sim: sim.process(0, 501, 1000), [0, 0], id="nobody works"),
        pytest.param(
            lambda sim: sim.fail("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED),
            [None, None],
            id="not told, as with MIG",
        ),
    ],
)
def test_shares_of_the_gpus_time(
    sim: SimDriver,
    meter: NvmlMeter,
    spoil: Callable[[SimDriver], object],
    expected: list[int | None],
) -> None:
    meter.look()
    spoil(sim)
    assert [process.sm_percent for process in first(meter).processes or ()] == expected


def test_a_clock_that_was_set_back_hides_no_sample(meter: NvmlMeter) -> None:
    """The driver stamps samples with it, and gives those that are newer than the last."""
    meter.look()
    meter._sampled_us[A] += 3_600_000_000
    assert [process.sm_percent for process in first(meter).processes or ()] == [30, 0]


# --- GPUs and drivers that fail ----------------------------------------------------------------


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda sim: sim.lost(0), id="off the bus"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetMemoryInfo_v2", IS_LOST, 0), id="half-way"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetUUID", UNKNOWN, 0), id="does not answer"),
    ],
)
def test_a_lost_gpu_leaves_the_others(
    sim: SimDriver, meter: NvmlMeter, lose: Callable[[SimDriver], None]
) -> None:
    lose(sim)
    assert [(gpu.uuid, gpu.index) for gpu in meter.look()] == [(B, 1)]
    sim.heal()
    sim.lost(0, False)
    assert [gpu.uuid for gpu in meter.look()] == [A, B]


def test_without_gpus_there_is_nothing_to_tell(sim: SimDriver, meter: NvmlMeter) -> None:
    sim.lost(0)
    sim.lost(1)
    assert meter.look() == ()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(lambda sim: sim.driver("absent"), NvmlAbsent, id="absent"),
        pytest.param(lambda sim: sim.driver("mismatch"), NvmlStale, id="upgraded"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetCount_v2", UNKNOWN), NvmlError, id="count"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetUUID", UNKNOWN), NvmlError, id="no GPU"),
    ],
)
def test_a_driver_that_fails_as_a_whole(
    sim: SimDriver, meter: NvmlMeter, spoil: Callable[[SimDriver], None], error: type[NvmlError]
) -> None:
    spoil(sim)
    with pytest.raises(error):
        meter.look()
    sim.driver("ok")
    sim.heal()
    assert len(meter.look()) == 2


# --- beside the health service -----------------------------------------------------------------


def test_the_health_service_keeps_its_hold(meter: NvmlMeter, tmp_path: Path) -> None:
    nvml = NvmlDriver(sysfs=tmp_path, proc_gpus=tmp_path / "none")
    nvml.open()
    meter.look()
    meter.close()
    assert [gpu.uuid for gpu in nvml.gpus()] == [A, B]
    nvml.close()
    assert len(meter.look()) == 2, "it needs nobody else's hold"


def test_it_does_not_keep_new_gpus_from_being_found(
    sim: SimDriver, meter: NvmlMeter, tmp_path: Path
) -> None:
    """With a driver that lists GPUs as they were when NVML was initialised."""
    sim.fixed_enumeration()
    nvml = NvmlDriver(sysfs=tmp_path, proc_gpus=tmp_path / "none")
    nvml.open()
    assert len(meter.look()) == 2
    added = sim.add_gpu()
    assert len(meter.look()) == 2
    nvml.close()
    nvml.open()
    assert [gpu.uuid for gpu in meter.look()] == [A, B, added.uuid]
    nvml.close()


# --- whose bytes are whose ---------------------------------------------------------------------

WHOLE = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param([((7, WHOLE, WHOLE), 5)], {7: 5}, id="one"),
        pytest.param(
            [((7, WHOLE, WHOLE), 5), ((7, WHOLE, WHOLE), 5)], {7: 5}, id="computes and draws"
        ),
        pytest.param([((7, 1, 0), 5), ((7, 2, 0), 6)], {7: 11}, id="on two parts"),
        pytest.param([((7, WHOLE, WHOLE), None)], {7: None}, id="bytes not told"),
        pytest.param(
            [((7, WHOLE, WHOLE), None), ((7, WHOLE, WHOLE), 3)], {7: 3}, id="told in one list"
        ),
        pytest.param([((7, 1, 0), None), ((7, 2, 0), 6)], {7: 6}, id="told of one part"),
        pytest.param([], {}, id="nobody"),
    ],
)
def test_bytes_by_pid(
    listed: list[tuple[tuple[int, int, int], int | None]], expected: dict[int, int | None]
) -> None:
    assert by_pid(listed) == expected


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)),
            st.none() | st.integers(0, 2**64 - 1),
        )
    )
)
def test_who_is_listed_is_told_of(listed: list[tuple[tuple[int, int, int], int | None]]) -> None:
    found = by_pid(listed)
    assert found.keys() == {instance[0] for instance, _ in listed}
    for pid, used in found.items():
        of_it = [used for instance, used in listed if instance[0] == pid and used is not None]
        assert (used is None) == (not of_it)
        assert used is None or max(of_it) <= used <= sum(of_it)
