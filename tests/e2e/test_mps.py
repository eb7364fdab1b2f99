"""Mode nvidia with `sharing.mps`: what the daemon is told, and what becomes of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sim.kubelet import ContainerSpec
from tests import mps_program
from tests.e2e.lone_nodes import FIRST, GPU, SECOND, SHARED, SHARING, LoneMaker, given, up
from tests.installed_here import without_installed_agent
from tests.waiting import eventually

MPS = """
version: v1
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


@pytest.fixture
def mps_bed() -> Iterator[tuple[Path, Path]]:
    with mps_program.place() as place:
        yield place


def told_of(root: Path) -> list[str]:
    return (root / GPU / "log/told").read_text().splitlines()


def test_the_daemon_and_its_clients(lone: LoneMaker, mps_bed: tuple[Path, Path]) -> None:
    programs, root = mps_bed
    node = lone("--mps-root", str(root), config=MPS, programs=programs)
    up(node, {GPU: 8})
    assert told_of(root) == [
        f"started {FIRST},{SECOND}",
        "set_default_device_pinned_mem_limit 0 11517M",
        "set_default_device_pinned_mem_limit 1 11517M",
        "set_default_active_thread_percentage 25",
    ]
    grant = given(node, "a", {GPU: 1})
    assert grant.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert [(m.container_path, m.host_path) for m in grant.mounts] == [
        ("/mps/nvidia.com/gpu/pipe", f"{root}/nvidia.com/gpu/pipe"),
        ("/dev/shm", f"{root}/shm"),
    ]
    refused = node.run_static("two", ContainerSpec("main", {GPU: 2}))
    assert "failRequestsGreaterThanOne" in refused.admitted.message
    (root / GPU / "pipe/control").unlink()  # it dies
    eventually((root / GPU / "pipe/control").exists, within_s=60, what="a new daemon")
    eventually(lambda: len(told_of(root)) == 8, within_s=60, what="its limits")
    assert (root / GPU / "gpus").read_text().split() == [FIRST, SECOND]
    node.stop_agent()
    assert (root / GPU / "pipe/control").exists(), "clients run on"
    (node.root / "config.yaml").write_text(SHARING)  # shared in another way from now on
    node.start_agent()
    eventually(lambda: not (root / GPU / "pipe/control").exists(), within_s=60, what="its end")
    eventually(lambda: not (root / GPU / "gpus").exists(), within_s=60, what="everybody's GPUs")
    up(node, {GPU: 0, SHARED: 8})
    assert not (root / SHARED).exists(), "nobody shares by MPS any more"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in given(node, "b", {SHARED: 1}).env


@without_installed_agent
def test_uninstall_ends_the_daemons(lone: LoneMaker, mps_bed: tuple[Path, Path]) -> None:
    programs, root = mps_bed
    node = lone("--mps-root", str(root), config=MPS, programs=programs)
    up(node, {GPU: 8})
    node.stop_agent()
    would = node.run_command("uninstall", "--dry-run")
    assert f"would end the MPS daemon of {GPU}" in would.stdout, would.stderr
    assert (root / GPU / "pipe/control").exists()
    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert f"ended the MPS daemon of {GPU}, and opened {FIRST}, {SECOND}" in done.stdout
    assert not (root / GPU / "pipe/control").exists()
    assert node.run_command("uninstall").stdout.count("MPS") == 0


def test_mps_without_its_program_is_refused_in_words(lone: LoneMaker, tmp_path: Path) -> None:
    node = lone("--mps-root", str(tmp_path / "mps"), config=MPS)
    eventually(lambda: "sharing.mps needs" in node.fetch("/readyz")[1], within_s=60, what="why")
    eventually(lambda: GPU in node.kubelet.resources, within_s=60, what="registered")
    refused = node.run_static("a", ContainerSpec("main", {GPU: 1}))
    assert "nvidia-cuda-mps-control, which is not in the agent's PATH" in refused.admitted.message
