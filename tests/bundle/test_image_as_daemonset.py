"""The image as the DaemonSet runs it: mounts, rights and variables are those of the manifest."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from image_archive import ImageArchive
from pod_cgroups import CgroupsUnavailable, pod_cgroup
from pod_node import ByContainerd, ByRunc, PodNode, Runtime
from waiting import eventually

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("image")]

USER = 1000

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


def test_the_node_can_ask_it(make_node: MakeNode, frozen_folder: Path) -> None:
    node = make_node()
    node.start_container()
    socket = node.on_host("/run/vgpu-agent/read.sock")
    told = {}
    for form in ("--json", "--once"):
        done = subprocess.run(
            [frozen_folder / "vgpu-agent", "top", form, "--socket", socket],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told[form] = done.stdout
    assert len(json.loads(told["--json"])["gpus"]) == 2
    assert "NVIDIA A40" in told["--once"]


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


def leave(node: PodNode) -> dict[str, Path]:
    """Directories of containers that are gone, in which their user made what only he may delete."""
    top = node.root / "vgpu" / "containers"
    top.mkdir(mode=0o755, exist_ok=True)
    found = {}
    for name, mode in (("closed", 0o700), ("sticky", 0o1777)):
        own = found[name] = top / f"6f1d7b2e-0000-4000-8000-000000000000_{name}"
        inner = own / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        own.chmod(0o777)
        for path in (inner / "file", inner):
            os.chown(path, USER, USER)
        inner.chmod(mode)
    return found


@pytest.mark.parametrize(
    ("runtime", "without", "stays"),
    [
        pytest.param("containerd", (), (), id="as shipped"),
        pytest.param("runc", ("DAC_OVERRIDE",), ("closed",), id="without DAC_OVERRIDE"),
        pytest.param("runc", ("FOWNER",), ("sticky",), id="without FOWNER"),
    ],
    indirect=["runtime"],
)
def test_it_may_delete_what_other_users_left(
    make_node: MakeNode, without: tuple[str, ...], stays: tuple[str, ...]
) -> None:
    node = make_node()
    left = leave(node)
    node.start_container(without)
    for name, path in left.items():
        if name in stays:
            refused = f"cache_directory_not_deleted.*{path.name}"
            eventually(lambda: re.search(refused, node.log_text()), within_s=60, what=refused)  # noqa: B023
            assert (path / "inner" / "file").exists()
        else:
            eventually(lambda: not path.exists(), within_s=60, what=f"{path} is gone")  # noqa: B023
    assert node.stop_agent(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("runtime", "without", "reason"),
    [
        pytest.param("containerd", (), "library not loaded", id="as shipped"),
        pytest.param("runc", ("SYS_PTRACE",), "processes not readable", id="without SYS_PTRACE"),
        pytest.param(
            "runc", ("DAC_OVERRIDE",), "processes not readable", id="without DAC_OVERRIDE"
        ),
    ],
    indirect=["runtime"],
)
def test_it_may_look_at_other_users_processes(
    make_node: MakeNode, without: tuple[str, ...], reason: str
) -> None:
    node = make_node()
    node.start_container(without)
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    with ExitStack() as stack:
        use_a_gpu(node, pod, stack)
        eventually(lambda: f'reason="{reason}"' in node.fetch("/metrics")[1], what=reason)
    assert node.stop_agent(signal.SIGTERM) == 0


def use_a_gpu(node: PodNode, pod: RanPod, stack: ExitStack) -> None:
    """A process of the pod and of another user, which has a GPU open and not our library."""
    try:
        cgroup = stack.enter_context(pod_cgroup(pod.uid))
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    device = node.root / "dev" / "nvidia0"
    device.parent.mkdir()
    device.touch()
    own = node.root / "vgpu" / "containers" / f"{pod.uid}_main"
    (there := node.root / "mounted").mkdir()
    user = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
    script = f"mount --bind {own} {there} && exec 3<>{device} && exec {user} sleep 1000"
    process = subprocess.Popen(cgroup.command("unshare", "--mount", "sh", "-c", script))

    def end() -> None:
        process.kill()
        process.wait(10)

    stack.callback(end)
