"""Memory limits of cgroups through the simulated NVML of r615, on a tree of directories."""

import ctypes
from pathlib import Path

import pytest
from built_hook import sim_libraries

from agent.adapters.kernel_limits import NvmlKernelLimits
from agent.errors import NvmlError
from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

A, B = made_up_uuid(0), made_up_uuid(1)
UID, CONTAINER, OTHER = "0e4a5f3c-8f0e-4a55-9d0c-2f0f1a2b3c4d", "a" * 64, "b" * 64
GIB = 1 << 30


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimDriver:
    ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))
    (tmp_path / "driver").mkdir()
    driver = SimDriver(tmp_path / "driver", libraries=sim_libraries())
    driver.add_gpu(gpu=SimGpu(uuid=A, bus_id="00000000:17:00.0"))
    driver.add_gpu(gpu=SimGpu(uuid=B, bus_id="00000000:65:00.0"))
    driver.versions(driver="615.71.09", cuda=13040)
    monkeypatch.setenv("VGPU_SIM_DRIVER", str(driver.config_path))
    return driver


@pytest.fixture
def pod_group(tmp_path: Path) -> Path:
    """A pod's cgroup with two containers, as kubelet with the systemd driver makes it."""
    slices = ("kubepods.slice", "kubepods-burstable.slice")
    pod = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    group = tmp_path / "cgroup" / Path(*slices) / pod
    for identity in (CONTAINER, OTHER):
        (group / f"cri-containerd-{identity}.scope").mkdir(parents=True)
    return group


def found(tmp_path: Path, identity: str = CONTAINER) -> Path:
    where = NvmlKernelLimits(tmp_path / "cgroup").cgroup_of(UID, identity)
    assert where is not None
    assert where[0].stat().st_ino == where[1]
    return where[0]


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("dmem.*")}


@pytest.mark.usefixtures("sim")
def test_the_containers_own_cgroup_is_limited_and_no_other(tmp_path: Path, pod_group: Path) -> None:
    kernel = NvmlKernelLimits(tmp_path / "cgroup")
    own = found(tmp_path)
    assert own == pod_group / f"cri-containerd-{CONTAINER}.scope"
    assert kernel.limit(A, own, 4 * GIB)
    assert kernel.limit(B, own, 2 * GIB)
    assert kernel.limit(A, own, 3 * GIB)
    assert (own / "dmem.max").read_text().splitlines() == [
        f"nvidia/0000:65:00.0/vidmem {2 * GIB}", f"nvidia/0000:17:00.0/vidmem {3 * GIB}",
    ]  # fmt: skip
    assert "vidmem 0" in (own / "dmem.min").read_text()  # nothing is reserved
    assert all(name.startswith(str(own.relative_to(pod_group))) for name in files(pod_group))
    assert files(tmp_path / "cgroup").keys() == {
        str((own / name).relative_to(tmp_path / "cgroup")) for name in ("dmem.min", "dmem.max")
    }


@pytest.mark.usefixtures("pod_group")
def test_an_older_driver_offers_no_such_thing(sim: SimDriver, tmp_path: Path) -> None:
    sim.versions(driver="580.82.07")
    assert not NvmlKernelLimits(tmp_path / "cgroup").limit(A, found(tmp_path), GIB)
    assert files(tmp_path / "cgroup") == {}


@pytest.mark.usefixtures("pod_group")
def test_a_gpu_in_mig_mode_has_none(sim: SimDriver, tmp_path: Path) -> None:
    sim.change_gpu(0, SimGpu(uuid=A, mig=True, bus_id="00000000:17:00.0"))
    assert not NvmlKernelLimits(tmp_path / "cgroup").limit(A, found(tmp_path), GIB)


@pytest.mark.usefixtures("pod_group")
def test_without_permission_it_is_an_error(sim: SimDriver, tmp_path: Path) -> None:
    sim.fail("nvmlDeviceSetMemoryLimits_v1", 4)
    with pytest.raises(NvmlError, match="the kernel does not limit"):
        NvmlKernelLimits(tmp_path / "cgroup").limit(A, found(tmp_path), GIB)


@pytest.mark.usefixtures("sim")
def test_a_container_without_cgroup_has_none(tmp_path: Path, pod_group: Path) -> None:
    kernel = NvmlKernelLimits(tmp_path / "cgroup")
    assert kernel.cgroup_of(UID, "c" * 64) is None
    assert kernel.cgroup_of("../..", CONTAINER) is None
    link = pod_group / f"cri-containerd-{'d' * 64}.scope"
    link.symlink_to(pod_group / f"cri-containerd-{OTHER}.scope")
    assert kernel.cgroup_of(UID, "d" * 64) is None
    assert NvmlKernelLimits(tmp_path / "nowhere").cgroup_of(UID, CONTAINER) is None


@pytest.mark.usefixtures("sim")
def test_a_thousand_containers_leave_no_reservation_behind(tmp_path: Path, pod_group: Path) -> None:
    kernel = NvmlKernelLimits(tmp_path / "cgroup")
    for number in range(1000):
        identity = f"{number:064x}"
        group = pod_group / f"cri-containerd-{identity}.scope"
        group.mkdir()
        assert kernel.limit(A, found(tmp_path, identity), GIB)
        for name in ("dmem.min", "dmem.max"):
            (group / name).unlink()
        group.rmdir()
    assert files(tmp_path / "cgroup") == {}
