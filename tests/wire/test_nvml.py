"""The adapter against the simulated driver, which pynvml loads as it loads the real one."""

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from built_hook import ROOT, sim_libraries
from waiting import eventually

from agent.adapters.nvml import NvmlDriver, sysfs_name
from agent.domain.gpu import GpuEvent
from agent.domain.topology import GpuPair
from agent.errors import GpuLost, NvmlAbsent, NvmlError, NvmlStale
from agent.sim.driver import SimDriver, SimGpu, SimMig, made_up_uuid

A, B = made_up_uuid(0), made_up_uuid(1)
LONG_S = 5.0  # a wait that a passing test does not wait out


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    """A node with two A40s."""
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))  # the soname pynvml asks for next
    driver = SimDriver(tmp_path, libraries=sim_libraries())
    driver.add_gpu()
    driver.add_gpu(gpu=SimGpu(uuid=B, numa_node=1))
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    return driver


@pytest.fixture
def nvml(sim: SimDriver, tmp_path: Path) -> Iterator[NvmlDriver]:
    driver = NvmlDriver(sysfs=tmp_path / "sys", proc_gpus=tmp_path / "proc")
    driver.open()
    yield driver
    sim.hang(False)
    driver.close()


def test_a_gpu_is_described_by_what_the_driver_says(nvml: NvmlDriver) -> None:
    first, second = nvml.gpus()
    assert (first.uuid, first.index, first.name) == (A, 0, "NVIDIA A40")
    assert (first.memory_mib, first.numa_node, first.minor) == (46068, 0, 0)
    assert first.pci_bus_id == "00000000:10:00.0"
    assert not first.mig_enabled
    assert first.healthy
    assert (second.uuid, second.index, second.numa_node, second.minor) == (B, 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        pytest.param({"memory_mib": None}, "memory_mib", None, id="unified memory, as on GB10"),
        pytest.param({"memory_mib": 0}, "memory_mib", None, id="unified memory, told as nothing"),
        pytest.param({"reserved_mib": 450}, "memory_mib", 46068, id="with the driver's own"),
        pytest.param({"reserved_mib": 450}, "reserved_mib", 450, id="the driver's own memory"),
        pytest.param({"numa_node": None}, "numa_node", None, id="no NUMA node"),
        pytest.param({"mig": True}, "mig_enabled", True, id="MIG on"),
        pytest.param({"compute_capability": "7.5"}, "mig_enabled", False, id="before MIG"),
        pytest.param({"name": "Tesla T4"}, "name", "Tesla T4", id="another product"),
        pytest.param(
            {"name": "A40 \udcff"}, "name", "A40 \N{REPLACEMENT CHARACTER}", id="not utf-8"
        ),
        pytest.param({"minor": 7}, "minor", 7, id="minor differs from index"),
        pytest.param({"bus_id": "00000001:C1:00.0"}, "pci_bus_id", "00000001:C1:00.0", id="domain"),
    ],
)
def test_gpus_that_differ(
    sim: SimDriver, nvml: NvmlDriver, change: dict[str, object], field: str, value: object
) -> None:
    sim.change_gpu(0, replace(SimGpu(uuid=A), **change))
    assert getattr(nvml.gpus()[0], field) == value


@pytest.mark.parametrize(
    ("call", "field", "value"),
    [
        pytest.param("nvmlDeviceGetMigMode", "mig_enabled", False, id="before MIG existed"),
        pytest.param("nvmlDeviceGetNumaNodeId", "numa_node", None, id="before NUMA node ids"),
        pytest.param("nvmlDeviceGetMinorNumber", "minor", None, id="no device nodes, as on Tegra"),
        pytest.param("nvmlDeviceGetPciInfo_v3", "pci_bus_id", "", id="no PCI"),
    ],
)
@pytest.mark.parametrize("code", [3, 13], ids=["not supported", "function not found"])
def test_what_an_old_driver_cannot_say_is_unknown(
    sim: SimDriver, nvml: NvmlDriver, call: str, field: str, value: object, code: int
) -> None:
    sim.fail(call, code)
    assert [getattr(gpu, field) for gpu in nvml.gpus()] == [value, value]


@pytest.mark.parametrize("code", [3, 13, 25], ids=["not supported", "no function", "no version"])
def test_a_driver_that_does_not_tell_its_own_memory_apart(
    sim: SimDriver, nvml: NvmlDriver, code: int
) -> None:
    sim.change_gpu(0, SimGpu(uuid=A, reserved_mib=450))
    sim.fail("nvmlDeviceGetMemoryInfo_v2", code)
    first = nvml.gpus()[0]
    assert (first.memory_mib, first.reserved_mib) == (46068, 0)


def test_what_the_driver_keeps_is_asked_once(sim: SimDriver, nvml: NvmlDriver) -> None:
    """Slices that are handed out beside each other are as large as one another."""
    for reserved_mib in (450, 470):
        sim.change_gpu(0, SimGpu(uuid=A, reserved_mib=reserved_mib))
        assert nvml.gpus()[0].reserved_mib == 450


@pytest.mark.parametrize(
    ("vendor", "numa_node", "expected"),
    [
        pytest.param("0x10de", "1", 1, id="the kernel knows better than NVML"),
        pytest.param("0x10de", "-1", None, id="no affinity"),
        pytest.param("0x8086", "1", 0, id="another device sits there: ask NVML"),
        pytest.param("0x10de", "junk", 0, id="unreadable: ask NVML"),
    ],
)
def test_the_numa_node_is_the_one_of_the_pci_device(
    nvml: NvmlDriver, tmp_path: Path, vendor: str, numa_node: str, expected: int | None
) -> None:
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:10:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "numa_node").write_text(f"{numa_node}\n")
    assert nvml.gpus()[0].numa_node == expected


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param("00000000:17:00.0", "0000:17:00.0", id="usual"),
        pytest.param("00000001:C1:00.0", "0001:c1:00.0", id="lower case"),
        pytest.param("00010000:00:02.0", "10000:00:02.0", id="a virtual machine's wide domain"),
        pytest.param("", "-", id="no PCI"),
    ],
)
def test_bus_ids_are_written_as_the_kernel_writes_them(place: str, name: str) -> None:
    assert sysfs_name(place) == name


# --- the driver as a whole ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("break_it", "error", "advice"),
    [
        pytest.param(lambda sim: sim.driver("absent"), NvmlAbsent, "kernel module", id="absent"),
        pytest.param(lambda sim: sim.driver("mismatch"), NvmlStale, "restarted", id="upgraded"),
        pytest.param(lambda sim: sim.fail("nvmlInit", 4), NvmlError, "as root", id="forbidden"),
        pytest.param(
            lambda sim: sim.fail("nvmlInit", 999), NvmlError, "Unknown Error", id="unknown"
        ),
    ],
)
def test_a_driver_that_does_not_start(
    sim: SimDriver, break_it: Callable[[SimDriver], None], error: type[NvmlError], advice: str
) -> None:
    nvml = NvmlDriver()
    break_it(sim)
    with pytest.raises(error, match=advice) as caught:
        nvml.open()
    assert type(caught.value) is error
    sim.driver("ok")
    sim.heal()
    nvml.open()
    assert len(nvml.gpus()) == 2
    nvml.close()


def test_without_a_library_the_driver_is_absent() -> None:
    program = (
        "from agent.adapters.nvml import NvmlDriver\n"
        "from agent.errors import NvmlAbsent\n"
        "nvml = NvmlDriver()\n"
        "for _ in range(2):\n"
        "    try: nvml.open()\n"
        "    except NvmlAbsent as error: print(error.code, error)\n"
        "nvml.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("12 ")
    assert "libnvidia-ml.so.1 is not on the library path" in lines[0]


def test_closing_never_fails(sim: SimDriver) -> None:
    nvml = NvmlDriver()
    nvml.close()
    nvml.open()
    nvml.gpus()
    sim.driver("absent")
    nvml.close()
    nvml.close()


def test_a_driver_that_dies_later_fails_as_a_whole(sim: SimDriver, nvml: NvmlDriver) -> None:
    assert nvml.gpus()
    sim.driver("absent")
    for call in (nvml.gpus, lambda: nvml.wait_event(0.0), lambda: nvml.probe(A)):
        with pytest.raises(NvmlAbsent):
            call()


def test_when_no_gpu_answers_for_an_unknown_reason_it_is_the_driver(
    sim: SimDriver, nvml: NvmlDriver
) -> None:
    sim.fail("nvmlDeviceGetUUID", 999)
    with pytest.raises(NvmlError) as caught:
        nvml.gpus()
    assert caught.value.code == 999


def test_one_gpu_that_cannot_be_read_is_left_out(sim: SimDriver, nvml: NvmlDriver) -> None:
    sim.fail("nvmlDeviceGetMemoryInfo", 999, 0)
    assert [gpu.uuid for gpu in nvml.gpus()] == [B]


# --- GPUs come and go --------------------------------------------------------------------------


def test_lost_gpus_are_left_out_and_come_back(sim: SimDriver, nvml: NvmlDriver) -> None:
    sim.lost(0)
    assert [(gpu.uuid, gpu.index) for gpu in nvml.gpus()] == [(B, 1)]
    sim.lost(1)
    assert nvml.gpus() == ()
    sim.lost(0, False)
    sim.lost(1, False)
    assert [gpu.uuid for gpu in nvml.gpus()] == [A, B]


def test_a_new_gpu_is_seen_and_watched(sim: SimDriver, nvml: NvmlDriver) -> None:
    nvml.gpus()
    added = sim.add_gpu()
    assert [gpu.uuid for gpu in nvml.gpus()] == [A, B, added.uuid]
    sim.xid(2, 79)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=added.uuid, kind="xid", xid=79)


def test_a_new_gpu_is_seen_with_a_driver_that_lists_only_once(
    sim: SimDriver, nvml: NvmlDriver, tmp_path: Path
) -> None:
    sim.fixed_enumeration()
    nvml.close()
    nvml.open()
    for place in ("0000:10:00.0", "0000:11:00.0"):
        (tmp_path / "proc" / place).mkdir(parents=True)
    assert len(nvml.gpus()) == 2
    added = sim.add_gpu()
    assert len(nvml.gpus()) == 2  # the kernel module does not drive it yet
    (tmp_path / "proc" / "0000:12:00.0").mkdir()
    assert [gpu.uuid for gpu in nvml.gpus()] == [A, B, added.uuid]
    sim.xid(0, 48)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=A, kind="xid", xid=48)


def test_renumbered_gpus_keep_their_uuid(sim: SimDriver, nvml: NvmlDriver) -> None:
    nvml.gpus()
    sim.remove_gpu(0)
    assert [(gpu.uuid, gpu.index) for gpu in nvml.gpus()] == [(B, 0)]


def test_mig_devices_are_not_gpus(sim: SimDriver, nvml: NvmlDriver) -> None:
    slices = (SimMig(position=0, uuid="MIG-a", gpu_instance=7),)
    sim.change_gpu(0, SimGpu(uuid=A, mig=True, migs=slices))
    assert [gpu.uuid for gpu in nvml.gpus()] == [A, B]


# --- events ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("happen", "event"),
    [
        pytest.param(
            lambda sim: sim.xid(1, 79), GpuEvent(uuid=B, kind="xid", xid=79), id="device XID"
        ),
        pytest.param(
            lambda sim: sim.xid(0, 13), GpuEvent(uuid=A, kind="xid", xid=13), id="application XID"
        ),
        pytest.param(
            lambda sim: sim.ecc(0, "double"), GpuEvent(uuid=A, kind="ecc_double"), id="double bit"
        ),
        pytest.param(
            lambda sim: sim.ecc(0, "single"), GpuEvent(uuid=A, kind="ecc_single"), id="single bit"
        ),
    ],
)
def test_an_event_wakes_the_waiting_thread(
    sim: SimDriver, nvml: NvmlDriver, happen: Callable[[SimDriver], None], event: GpuEvent
) -> None:
    nvml.gpus()
    seen: list[GpuEvent | None] = []
    waiting = threading.Thread(target=lambda: seen.append(nvml.wait_event(LONG_S)))
    waiting.start()
    happen(sim)
    waiting.join(LONG_S + 5)
    assert seen == [event]


def test_events_come_once_in_order_and_none_from_before(sim: SimDriver, nvml: NvmlDriver) -> None:
    sim.xid(0, 62)
    nvml.gpus()
    assert nvml.wait_event(0.0) is None
    for code in (48, 63, 64):
        sim.xid(0, code)
    seen = [nvml.wait_event(0.0) for _ in range(4)]
    assert [event.xid if event else None for event in seen] == [48, 63, 64, None]


def test_a_lost_gpu_is_reported_once_and_does_not_deafen_us_to_the_others(
    sim: SimDriver, nvml: NvmlDriver
) -> None:
    nvml.gpus()
    sim.xid(1, 79)
    sim.lost(1)
    seen = [nvml.wait_event(0.0) for _ in range(4)]
    assert [event for event in seen if event] == [
        GpuEvent(uuid=B, kind="xid", xid=79),
        GpuEvent(uuid=B, kind="lost"),
    ]
    sim.xid(0, 48)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=A, kind="xid", xid=48)
    sim.lost(1, False)
    nvml.gpus()
    sim.xid(1, 74)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=B, kind="xid", xid=74)


def test_a_wait_that_fails_although_every_gpu_answers_is_the_drivers_failure(
    sim: SimDriver, nvml: NvmlDriver
) -> None:
    nvml.gpus()
    sim.fail("nvmlEventSetWait_v2", 15)
    with pytest.raises(GpuLost, match="waiting for GPU events"):
        nvml.wait_event(0.0)
    sim.heal()
    sim.xid(0, 48)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=A, kind="xid", xid=48)


@pytest.mark.parametrize(
    "make_deaf",
    [
        pytest.param(
            lambda sim: [
                sim.change_gpu(n, SimGpu(uuid=u, events="none")) for n, u in ((0, A), (1, B))
            ],
            id="no event types",
        ),
        pytest.param(lambda sim: sim.fail("nvmlDeviceRegisterEvents", 3), id="not supported"),
        pytest.param(lambda sim: sim.fail("nvmlEventSetCreate", 13), id="no event sets"),
    ],
)
def test_without_events_gpus_are_listed_and_nothing_happens(
    sim: SimDriver, nvml: NvmlDriver, make_deaf: Callable[[SimDriver], None]
) -> None:
    make_deaf(sim)
    assert len(nvml.gpus()) == 2
    assert nvml.wait_event(0.01) is None
    nvml.probe(A)


def test_a_gpu_that_could_not_be_watched_for_a_moment_is_tried_again(
    sim: SimDriver, nvml: NvmlDriver
) -> None:
    sim.fail("nvmlDeviceRegisterEvents", 999)
    nvml.gpus()
    sim.heal()
    nvml.gpus()
    sim.xid(0, 79)
    assert nvml.wait_event(LONG_S) == GpuEvent(uuid=A, kind="xid", xid=79)


# --- probes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        pytest.param(lambda sim: sim.lost(0), GpuLost, id="off the bus"),
        pytest.param(lambda sim: sim.remove_gpu(0), GpuLost, id="removed"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetPciInfo_v3", 16, 0), GpuLost, id="reset"),
        pytest.param(lambda sim: sim.fail("nvmlDeviceGetMemoryInfo", 999), NvmlError, id="unknown"),
    ],
)
def test_a_probe_notices(
    sim: SimDriver, nvml: NvmlDriver, break_it: Callable[[SimDriver], None], error: type[NvmlError]
) -> None:
    nvml.probe(A)
    nvml.probe(B)
    break_it(sim)
    with pytest.raises(error, match=A):
        nvml.probe(A)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param("nvmlDeviceGetPciInfo_v3", 3, id="no PCI, as on Tegra"),
        pytest.param("nvmlDeviceGetMemoryInfo", 3, id="unified memory"),
        pytest.param("nvmlDeviceGetMemoryInfo", 4, id="memory that is not for this container"),
    ],
)
def test_a_gpu_that_has_no_such_thing_is_no_ill_gpu(
    sim: SimDriver, nvml: NvmlDriver, call: str, code: int
) -> None:
    sim.fail(call, code, 0)
    nvml.probe(A)


def test_a_gpu_that_does_not_tell_its_memory_is_no_ill_gpu(
    sim: SimDriver, nvml: NvmlDriver
) -> None:
    sim.change_gpu(0, SimGpu(uuid=A, memory_mib=None))
    nvml.probe(A)


def test_a_hanging_driver_holds_only_the_thread_that_asks(sim: SimDriver, nvml: NvmlDriver) -> None:
    nvml.gpus()
    sim.hang()
    asking = threading.Thread(target=nvml.probe, args=(A,))
    asking.start()
    asking.join(0.1)
    assert asking.is_alive()
    sim.hang(False)
    eventually(lambda: not asking.is_alive())


# --- topology ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        pytest.param(lambda _: None, ("system", 0, 0), id="different sockets"),
        pytest.param(
            lambda sim: sim.topology(0, 1, "single"), ("single", 0, 0), id="one PCIe switch"
        ),
        pytest.param(lambda sim: sim.nvlink(0, 1, 4), ("system", 4, 4), id="four links"),
        pytest.param(lambda sim: sim.nvlink(1, 0, 4, 3), ("system", 3, 4), id="ends disagree"),
        pytest.param(
            lambda sim: (sim.nvlink(0, "switch", 18), sim.nvlink(1, "switch", 12)),
            ("system", 12, 12),
            id="NVSwitch: what both have",
        ),
        pytest.param(
            lambda sim: sim.fail("nvmlDeviceGetTopologyCommonAncestor", 13), ("", 0, 0), id="old"
        ),
    ],
)
def test_pairs_are_read_from_the_driver(
    sim: SimDriver,
    nvml: NvmlDriver,
    wire: Callable[[SimDriver], object],
    expected: tuple[str, int, int],
) -> None:
    wire(sim)
    level, links, links_back = expected
    assert nvml.pairs() == (
        GpuPair(first=A, second=B, level=level, links=links, links_back=links_back),
    )


@pytest.mark.parametrize("ask", [NvmlDriver.gpus, NvmlDriver.pairs])
def test_it_is_told_that_the_driver_answers_in_between(
    sim: SimDriver, nvml: NvmlDriver, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., object]
) -> None:
    """However many GPUs there are: on a busy node all of them together take long."""
    for _ in range(6):
        sim.add_gpu()
    calls: list[int] = [0]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            calls[-1] += 1
            return real(*args, **more)

        return call

    for name in [name for name in dir(pynvml) if name.startswith("nvmlDevice")]:
        monkeypatch.setattr(pynvml, name, counted(getattr(pynvml, name)))
    nvml.close()
    nvml.open()
    ask(nvml, lambda: calls.append(0))
    assert sum(calls) > 30
    assert max(calls) <= 12


def test_the_topology_of_a_failing_driver_is_an_error(sim: SimDriver, nvml: NvmlDriver) -> None:
    sim.fail("nvmlDeviceGetNvLinkState", 999)
    with pytest.raises(NvmlError, match="topology"):
        nvml.pairs()
