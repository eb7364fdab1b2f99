"""The image as the DaemonSet runs it: mounts, rights and variables are those of the manifest."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from image_archive import ImageArchive
from pod_cgroups import CgroupsUnavailable, pod_cgroup
from pod_node import ByContainerd, ByRunc, PodNode, Runtime
from waiting import eventually

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("image")]

MakeNode = Callable[[], PodNode]


@pytest.fixture(params=["runc", "containerd"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    if request.param == "runc":
        return ByRunc(request.getfixturevalue("runc"))
    return ByContainerd(request.getfixturevalue("containerd"))


@pytest.fixture
def make_node(
    runtime: Runtime, bundle_directory: Path, archive: ImageArchive
) -> Iterator[MakeNode]:
    with ExitStack() as stack:

        def make() -> PodNode:
            root = Path(tempfile.mkdtemp(prefix="vgpu-pod-"))
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            node = PodNode(root, runtime, bundle_directory, archive.config)
            stack.callback(lambda: print(node.log_text()))  # noqa: T201 - with a test that fails
            node.start()
            stack.callback(node.stop)
            for number in range(2):
                node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
            return node

        yield make


def test_the_manifests_mounts_and_rights_are_enough(make_node: MakeNode) -> None:
    """Register, publish, grant, stop; and everything that kubelet is told is there."""
    node = make_node()
    node.start_container()
    assert len(list((node.root / "vgpu").glob("libvgpu.so.*"))) == 1, "before it registered"
    assert node.allocatable() == 20
    assert "hami.io/node-nvidia-register" in node.annotations()
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    grant = pod.admitted.containers["main"]
    for found in grant.mounts:
        assert node.on_host(found.host_path).exists(), found
    assert (
        node.on_host(f"/usr/local/vgpu/containers/{pod.uid}_main").stat().st_mode & 0o777 == 0o777
    )
    assert eventually(
        lambda: node.pod_annotations("team", "pod")["hami.io/bind-phase"] == "success"
    )
    assert node.stop_agent(signal.SIGTERM) == 0
    assert "agent_stopped" in node.log_text()


def test_it_knows_its_grants_after_a_crash(make_node: MakeNode) -> None:
    node = make_node()
    node.start_container()
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    node.stop_agent(signal.SIGKILL)
    node.runtime.delete(node.container)
    node.start_container()
    assert node.run_pod("other", [Ask(memory_mib=1000)]).admitted.ok
    assert node.stop_agent(signal.SIGTERM) == 0


@dataclass(frozen=True)
class Left:
    """What a pod that is gone has left."""

    closed: Path
    sticky: Path


def leave(node: PodNode) -> Left:
    """Two containers' directories, in which another user made what root without rights keeps."""
    top = node.root / "vgpu" / "containers"
    top.mkdir(mode=0o755, exist_ok=True)
    found = []
    for name, mode in (("closed", 0o700), ("sticky", 0o1777)):
        own = top / f"6f1d7b2e-0000-4000-8000-000000000000_{name}"
        inner = own / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        own.chmod(0o777)
        for path in (inner / "file", inner):
            os.chown(path, 1000, 1000)
        inner.chmod(mode)
        found.append(own)
    return Left(*found)


@pytest.mark.parametrize(
    ("runtime", "without", "fails"),
    [
        pytest.param("runc", (), set(), id="as shipped"),
        pytest.param("containerd", (), set(), id="as shipped, under a seccomp profile"),
        pytest.param("runc", ("DAC_OVERRIDE",), {"closed"}, id="without DAC_OVERRIDE"),
        pytest.param("runc", ("FOWNER",), {"sticky"}, id="without FOWNER"),
        pytest.param("runc", ("SYS_PTRACE",), {"look"}, id="without SYS_PTRACE"),
    ],
    indirect=["runtime"],
)
def test_every_capability_is_needed_and_no_other(
    make_node: MakeNode, without: tuple[str, ...], fails: set[str]
) -> None:
    node = make_node()
    left = leave(node)
    node.start_container(without)
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    with ExitStack() as stack:
        reason = "processes not readable" if "look" in fails else "library not loaded"
        look_at_a_process(node, pod, stack)
        eventually(lambda: f'reason="{reason}"' in node.fetch("/metrics")[1], what=reason)
    gone = [left.sticky] if "closed" in fails else [left.closed]
    gone = [left.closed, left.sticky] if not fails & {"closed", "sticky"} else gone
    eventually(lambda: not any(path.exists() for path in gone), within_s=40, what=str(gone))
    stays = {left.closed, left.sticky} - set(gone)
    eventually(lambda: not stays or "cache_directory_not_deleted" in node.log_text(), within_s=20)
    assert all((path / "inner").exists() for path in stays)
    assert node.stop_agent(signal.SIGTERM) == 0


def look_at_a_process(node: PodNode, pod: RanPod, stack: ExitStack) -> None:
    """A process of the pod, by its cgroup, that has a GPU open and not our library."""
    try:
        cgroup = stack.enter_context(pod_cgroup(pod.uid))
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    device = node.root / "dev" / "nvidia0"
    device.parent.mkdir()
    device.touch()
    own = node.root / "vgpu" / "containers" / f"{pod.uid}_main"
    (there := node.root / "mounted").mkdir()
    script = f"mount --bind {own} {there} && exec 3<>{device} && exec sleep 1000"
    process = subprocess.Popen(cgroup.command("unshare", "--mount", "sh", "-c", script))

    def end() -> None:
        process.kill()
        process.wait(10)

    stack.callback(end)
