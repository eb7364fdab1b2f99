"""The agent is killed at the writes that are rarer than those of pods: old files, old sockets, MPS, pids.

What makes it write is prepared by hand, and the kill is at a boundary by its name.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.adapters.hook_files import FIRST_PID_NAMESPACE
from agent.adapters.kubelet import SOCKET_PREFIX, SWEEP_AGE_S
from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.lone_node import LoneNode
from agent.sim.node import SimNode
from tests import mps_program
from tests.e2e.conftest import NodeMaker
from tests.e2e.lone_nodes import GPU, SHARING
from tests.e2e.test_cdi import SPEC, driver_root
from tests.e2e.test_enforcement import Pod
from tests.e2e.test_hook_upgrade import UNWANTED
from tests.e2e.test_mps import MPS
from tests.e2e.whole import serves, up
from tests.faults.breaking import COMMAND, Breaking, breaking_node
from tests.faults.invariants import violations
from tests.faults.story import QUICK, Story
from tests.installed_here import without_installed_agent
from tests.pod_cgroups import CgroupsUnavailable, host_pid_of
from tests.waiting import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def died_at(node: SimNode, breaking: Breaking, boundary: str) -> None:
    eventually(breaking.reached, within_s=120, what=f"killed at {boundary}")
    assert breaking.reached() == boundary
    assert node.agent is not None
    assert node.agent.wait(10) == -signal.SIGKILL
    breaking.lift()


# --- what lies about when it starts ---------------------------------------------------------------

GONE = str(uuid.UUID(int=1))
# What an earlier Allocate gave a container, of another region.
EARLIER = encode(
    LimitsFile(
        devices=(DeviceLimit(uuid=made_up_uuid(0), memory_limit_bytes=1 << 20),), region_id=1
    )
)


def a_foreign_journal(node: SimNode) -> Path:
    path = node.root / "state/grants" / f"{GONE}.jsonl"
    path.write_text("nonsense\n")
    return path


def an_empty_journal(node: SimNode) -> Path:
    path = node.root / "state/grants" / f"{GONE}.jsonl"
    path.touch()
    return path


def a_record_of_changed_limits(node: SimNode) -> Path:
    path = node.root / "state/limits" / f"{GONE}_a.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    return path


def an_old_library(node: SimNode) -> Path:
    path = node.root / "host/vgpu" / UNWANTED
    path.write_bytes(b"x")
    return path


def an_old_socket(node: SimNode) -> Path:
    """On which nobody listens; a young one might be somebody's who is about to."""
    path = node.kubelet.directory / f"{SOCKET_PREFIX}gone.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    eventually(lambda: time.time() - path.lstat().st_ctime > SWEEP_AGE_S, within_s=60)
    return path


@pytest.fixture
def hasty(make_node: NodeMaker, tmp_path: Path) -> Story:
    """It looks for old libraries at once, and sees a machine on which nobody else runs."""
    (tmp_path / "1" / "ns").mkdir(parents=True)
    (tmp_path / "1" / "ns" / "pid").symlink_to(FIRST_PID_NAMESPACE)
    flags = (*QUICK, "--host-proc", str(tmp_path))
    node, breaking = breaking_node(make_node, tmp_path, *flags, started=False)
    node._environ["VGPU_TEST_OLD_LIBRARIES"] = "at once"
    node.start_agent()
    up(node, 20)
    return Story(node, breaking)


def test_what_lies_about_is_taken_away(hasty: Story) -> None:
    story, node = hasty, hasty.node
    story.bind()
    for boundary, prepare in {
        "grants-put-aside": a_foreign_journal,
        "grants-swept": an_empty_journal,
        "limit-record-forgotten": a_record_of_changed_limits,
        "hook-deleted": an_old_library,
        "plugin-socket-swept": an_old_socket,
    }.items():
        assert node.stop_agent() == 0
        path = prepare(node)
        story.breaking.order("kill", 1, of=boundary)
        node.start_agent()
        died_at(node, story.breaking, boundary)
        aside = path.with_name(f"{path.name}.corrupt")
        assert aside.exists() is (boundary == "grants-put-aside")
        aside.unlink(missing_ok=True)  # kept for whoever wants to know
        story.succeed()
        eventually(lambda path=path: not path.exists(), within_s=60, what=f"{path.name} is gone")
        node.delete_pod(serves(node, f"after-{boundary}"))
    story.released()


def test_a_directory_is_opened_again(make_node: NodeMaker, tmp_path: Path) -> None:
    """Where containers lock: somebody has closed it, in a place where anybody may make one."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o1777)
    shared = place / "vgpulock"
    node, breaking = breaking_node(make_node, tmp_path, *QUICK, "--vgpulock-dir", str(shared))
    story = Story(node, breaking)
    story.bind()
    mode = shared.stat().st_mode
    shared.chmod(0o755)
    breaking.order("kill", 1, of="directory-mended")
    story.bind()
    died_at(node, breaking, "directory-mended")
    assert not story.pods[-1].admitted.ok
    story.succeed()
    serves(node)
    assert shared.stat().st_mode == mode


def test_a_limits_file_is_exchanged(hasty: Story) -> None:
    """Whoever had the one before mounted is known by it, until the pod is gone."""
    story, node = hasty, hasty.node
    host = node.root / "host/vgpu"

    def offered_over_another() -> Path:
        name, uid, asks, claims = story.place()
        before = host / "limits" / f"{uid}_a"
        before.parent.mkdir(exist_ok=True, mode=0o755)
        before.write_bytes(EARLIER)
        story.offer(name, uid, asks, claims)
        return before

    story.breaking.order("kill", 1, of="limits-kept")
    begun = offered_over_another()
    died_at(node, story.breaking, "limits-kept")
    assert not story.pods[-1].admitted.ok
    assert begun.stat().st_nlink == 2
    story.breaking.order("kill", 1, of="limits-not-kept")
    node.start_agent()
    died_at(node, story.breaking, "limits-not-kept")
    assert begun.stat().st_nlink == 1
    story.succeed()
    offered_over_another()
    assert story.pods[-1].admitted.ok
    (kept,) = (host / "exchanged").iterdir()
    assert kept.read_bytes() == EARLIER
    story.breaking.order("kill", 1, of="kept-limits-deleted")
    story.end_pods()
    died_at(node, story.breaking, "kept-limits-deleted")
    story.succeed()
    assert list((host / "exchanged").iterdir()) == []
    node.delete_pod(serves(node))
    story.released()


@without_installed_agent
def test_uninstall_is_killed(make_node: NodeMaker, tmp_path: Path) -> None:
    """The next one takes away what is left."""
    specs = tmp_path / "cdi"
    flags = ("--device-list-strategy", "envvar,cdi-cri", "--cdi-spec-dir", str(specs))
    flags += ("--nvidia-driver-root", str(driver_root(tmp_path)))
    node, breaking = breaking_node(make_node, tmp_path, *flags)
    eventually((specs / SPEC).exists, within_s=60)
    assert node.stop_agent() == 0
    breaking.order("kill", 1, of="cdi-file-removed")
    assert node.run_command("uninstall").returncode == -signal.SIGKILL
    assert breaking.reached() == "cdi-file-removed"
    breaking.lift()
    assert not (specs / SPEC).exists()
    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    node.start_agent()
    serves(node)
    assert (specs / SPEC).exists()


# --- MPS ------------------------------------------------------------------------------------------


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[tuple[LoneNode, Breaking, Path]]:
    with mps_program.place() as (programs, root):
        folder, breaking = Path(tempfile.mkdtemp(prefix="vgpu-e2e-")), Breaking(tmp_path)
        (folder / "config.yaml").write_text(MPS)
        flags = ("--probe-interval", "0.5s", "--mode", "nvidia", "--mps-root", str(root))
        node = LoneNode(
            folder,
            COMMAND,
            flags=(*flags, "--config-file", str(folder / "config.yaml")),
            environ={"PATH": f"{programs}:{os.environ['PATH']}", **breaking.environ},
        )
        node.start()
        for number in range(2):
            node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
        yield node, breaking, root
        sys.stderr.write(node.log_text())
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_mps_begins_and_ends(lone: tuple[LoneNode, Breaking, Path]) -> None:
    """The daemon is the one of the GPUs that are named, or there is none."""
    node, breaking, root = lone
    daemon, named = root / GPU / "pipe/control", root / GPU / "gpus"

    def killed(boundary: str) -> None:
        breaking.order("kill", 1, of=boundary)
        node.start_agent()
        died_at(node, breaking, boundary)

    def begun(wanted: dict[str, int]) -> None:
        node.start_agent()
        eventually(lambda: dict(node.kubelet.node_status().allocatable) == wanted, within_s=60)
        eventually(node.ready, within_s=60)

    killed("mps-gpus-written")
    assert named.exists()
    assert not daemon.exists()
    begun({GPU: 8})
    assert daemon.exists()
    assert named.read_text().split() == [made_up_uuid(0), made_up_uuid(1)]
    assert node.stop_agent() == 0
    (node.root / "config.yaml").write_text(SHARING)  # shared in another way from now on
    killed("mps-gpus-removed")
    assert not daemon.exists()
    begun({GPU: 0, f"{GPU}.shared": 8})
    assert not named.exists()


# --- pids -----------------------------------------------------------------------------------------


def test_a_pid_is_told(make_node: NodeMaker, tmp_path: Path) -> None:
    node, breaking = breaking_node(make_node, tmp_path, *QUICK, gpus=1)
    with ExitStack() as stack:
        try:
            pod = Pod(node, stack)
        except CgroupsUnavailable as error:
            pytest.skip(str(error))
        breaking.order("kill", 1, of="host-pid-told")
        tenant = pod.tenant()
        assert tenant.ask("alloc 100").ok
        died_at(node, breaking, "host-pid-told")
        pod.tell(1)  # by somebody else
        node.start_agent()
        up(node, 10)
        inside, _ = pod.slot()
        eventually(
            lambda: pod.slot() == (inside, host_pid_of(inside, pod.cgroup.pids())), within_s=60
        )
        assert not tenant.ask("alloc 901").ok, "its limit holds"
        serves(node, vgpus=10)
        assert violations(node, [pod.ran]) == []
