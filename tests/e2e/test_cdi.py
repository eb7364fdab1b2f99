"""CDI in the modes that limit containers: devices by name, limits as ever."""

import tempfile
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.lone_node import LoneNode
from agent.sim.node import Ask, SimNode
from agent.sim.volcano_node import VolcanoNode
from tests.cdi_schema import check_cdi
from tests.e2e.conftest import COMMAND, QUICK, NodeMaker
from tests.e2e.whole import env_of
from tests.installed_here import without_installed_agent
from tests.waiting import eventually


def driver_root(root: Path) -> Path:
    folder = root / "driver/usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.570.86.15").write_bytes(b"")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.570.86.15")
    return root / "driver"


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "envvar,cdi-cri"])
def test_hami(make_node: NodeMaker, tmp_path: Path, strategy: str) -> None:
    node = make_node("--device-list-strategy", strategy, "--cdi-spec-dir", str(tmp_path / "cdi"),
                     "--nvidia-driver-root", str(driver_root(tmp_path)))  # fmt: skip
    pod = node.run_pod("a", [Ask(memory_mib=3000, core_percent=30)])
    env, grant = env_of(pod), pod.admitted.containers["main"]
    uuid = pod.claims[0][0].uuid
    name = f"k8s.device-plugin.nvidia.com/gpu={uuid}"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert "/etc/ld.so.preload" in {mount.container_path for mount in grant.mounts}
    assert ("NVIDIA_VISIBLE_DEVICES" in env) is ("envvar" in strategy)
    assert grant.cdi_devices == ((name,) if "cdi-cri" in strategy else ())
    assert list(grant.annotations.values()) == ([name] if "annotations" in strategy else [])
    (file,) = (tmp_path / "cdi").iterdir()
    devices = check_cdi(file.read_text())["devices"]
    assert uuid in {device["name"] for device in devices}


def test_nothing_is_given_that_the_runtime_would_not_know(
    make_node: NodeMaker, tmp_path: Path
) -> None:
    node = make_node("--device-list-strategy", "cdi-cri", "--cdi-spec-dir", str(tmp_path / "cdi"),
                     "--nvidia-driver-root", str(tmp_path), started=False)  # fmt: skip
    node.start_agent()
    node.wait("vgpus", lambda: node.allocatable() == 20)
    pod = node.run_pod("a", [Ask()])
    assert not pod.admitted.ok
    assert "--nvidia-driver-root" in pod.admitted.message
    assert "libcuda.so" in node.fetch("/readyz")[1]


REGISTERED = "registered_with_kubelet"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("hami", SimNode), ("volcano", VolcanoNode), ("slices", LoneNode), ("nvidia", LoneNode)],
)
def test_kubelet_is_told_of_gpus_when_their_file_is_there(
    tmp_path: Path, mode: str, kind: type[SimNode]
) -> None:
    """Kubelet never asks again for a container that it was refused."""
    root = driver_root(tmp_path)
    flags = ("--mode", mode, "--device-list-strategy", "cdi-cri", "--cdi-spec-dir",
             str(tmp_path / "cdi"), "--nvidia-driver-root", str(root))  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="vgpu-e2e-") as short,  # unix sockets live in it
        kind(Path(short), COMMAND, flags=(*QUICK, *flags)) as node,
    ):
        node.driver.add_gpu(0, SimGpu(uuid=made_up_uuid(0)))
        node.start_agent()
        eventually(lambda: REGISTERED in node.log_text(), within_s=60, what="registering")
        said = node.log_text()
    assert said.index("cdi_files_written") < said.index(REGISTERED)


SPEC = "k8s.device-plugin.nvidia.com-gpu.json"
THEIRS = '{"cdiVersion":"0.5.0","kind":"k8s.device-plugin.nvidia.com/gds","devices":[],"containerEdits":{}}'


@without_installed_agent
@pytest.mark.parametrize("holds", [False, True], ids=["nobody has them", "a container has one"])
def test_uninstall_takes_the_files_away(make_node: NodeMaker, tmp_path: Path, holds: bool) -> None:
    specs = tmp_path / "cdi"
    node = make_node("--device-list-strategy", "cdi-cri", "--cdi-spec-dir", str(specs),
                     "--nvidia-driver-root", str(driver_root(tmp_path)))  # fmt: skip
    node.wait("its files", (specs / SPEC).exists)
    if holds:
        node.run_pod("a", [Ask(memory_mib=3000, core_percent=30)])
    assert node.stop_agent() == 0
    theirs = specs / "k8s.device-plugin.nvidia.com-gds.json"
    theirs.write_text(THEIRS)

    def uninstalled(*more: str) -> str:
        done = node.run_command("uninstall", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = uninstalled("--dry-run")
    assert (specs / SPEC).exists()
    assert (f"would remove {specs / SPEC}" in said) is not holds
    said = uninstalled()
    assert (specs / SPEC).exists() is holds
    assert (f"CDI files stay in {specs}: 1 containers" in said) is holds
    if holds:
        said = uninstalled("--purge")
        assert not (specs / SPEC).exists()
    assert f"removed {specs / SPEC}" in said
    assert theirs.read_text() == THEIRS, "NVIDIA's own plugin may have written it"
