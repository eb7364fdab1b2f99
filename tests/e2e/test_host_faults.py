"""What breaks under the agent: the disk and the driver."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.app import JOIN_WITHIN_S, LEAVE_WITHIN_S
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, REGISTER
from agent.supervisor import EXIT_GAVE_UP
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.whole import serves, up
from tests.waiting import eventually

# --- the disk ------------------------------------------------------------------------------------

MOUNTED = """
mount -t tmpfs -o {options} tmpfs {where} && exec "$@"
"""


def on_a_bad_disk(options: str, where: str) -> list[str]:
    """A command prefix that puts a small or read-only disk over a directory, for the agent alone."""
    script = MOUNTED.format(options=options, where=where)
    return [
        "unshare",
        "--mount",
        *([] if os.geteuid() == 0 else ["--map-root-user"]),
        "sh",
        "-c",
        script,
        "sh",
        *COMMAND,
    ]


def test_whatever_the_umask_nobody_else_may_write_where_the_agent_does(
    make_node: NodeMaker,
) -> None:
    """Who can rename the state directory can have it forget every grant."""
    node = make_node(started=False, command=["sh", "-c", 'umask 0; exec "$@"', "sh", *COMMAND])
    node.start_agent("--state-dir", str(node.root / "var" / "lib" / "state"))
    up(node, 20)
    assert node.run_pod("one", [Ask()]).admitted.ok
    made = [node.root / "var", *(node.root / "var").rglob("*")]
    assert node.root / "var" / "lib" / "state" / "grants" in made
    assert [path for path in made if path.stat().st_mode & 0o022] == []


@pytest.mark.skipif(
    subprocess.run(
        ["unshare", "--user", "--pid", "--fork", "true"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="pid namespaces are not allowed here",
)
def test_as_process_1_it_ends_at_a_signal_before_it_serves(make_node: NodeMaker) -> None:
    """It was lost, and a pod deleted as it started registered and stayed until kubelet killed it."""
    prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    node = make_node(started=False, command=[*prefix, *COMMAND])
    begun, plugin = node.root / "begun", node.root / "plugin"
    plugin.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 30\n")
    plugin.chmod(0o755)
    content = json.loads((node.root / "kubeconfig").read_text())
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    content["users"][0]["user"] = {"exec": exec_}
    (node.root / "kubeconfig").write_text(json.dumps(content))
    node.start_agent()
    eventually(begun.exists, what="it waits for its credentials")
    assert node.agent is not None
    outer = node.agent.pid
    (inner,) = (Path("/proc") / str(outer) / "task" / str(outer) / "children").read_text().split()
    os.kill(int(inner), signal.SIGTERM)
    assert node.agent.wait(5) == 0, "it has no handler of its own yet"


def can_mount() -> bool:
    prefix = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mount namespaces are not allowed here")
@pytest.mark.parametrize(
    ("options", "directory"),
    [
        pytest.param("ro", "host/vgpu", id="the hook directory is read-only"),
        pytest.param("size=4k,nr_inodes=2", "host/vgpu", id="the hook directory is full"),
        pytest.param("size=1m,nr_inodes=9", "host/vgpu", id="no room for the usage region"),
        pytest.param("size=9m,nr_inodes=8", "host/vgpu", id="full when the limits are written"),
        pytest.param("ro", "state", id="the state directory is read-only"),
        pytest.param("size=4k,nr_inodes=3", "state", id="the state directory is full"),
    ],
)
def test_a_bad_disk_is_a_clear_refusal(make_node: NodeMaker, options: str, directory: str) -> None:
    node = make_node(started=False)
    where = node.root / directory
    where.mkdir(parents=True, exist_ok=True)
    node._command = on_a_bad_disk(options, str(where))
    node.start_agent()
    eventually(lambda: node.allocatable() == 20 and REGISTER in node.annotations(), within_s=60)
    asks = [Ask(memory_mib=800)]
    pod = node.run_pod("unlucky", asks)
    assert not pod.admitted.ok
    assert "Allocate failed" in pod.admitted.message
    assert str(where) in pod.admitted.message or "read-only" in pod.admitted.message.lower()
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    assert node.agent is not None
    seen = Path(f"/proc/{node.agent.pid}/root") / node.root.relative_to("/")
    eventually(lambda: made_for_pods(seen) == [], what="nothing half-made stays")
    assert node.stop_agent() == 0


MOUNTED_AGAIN = """
for name in dp pr host/vgpu state run; do
    mkdir -p "$0/$name" "$0/in/$name" && mount --bind "$0/$name" "$0/in/$name" || exit 9
done
exec "$@"
"""


@pytest.mark.skipif(not can_mount(), reason="mount namespaces are not allowed here")
@pytest.mark.parametrize("directory", ["dp", "host/vgpu", "state", "run"])
def test_a_directory_is_deleted_on_the_host_behind_its_mount(
    make_node: NodeMaker, directory: str
) -> None:
    """The pod saw the old one for ever, and refused every pod, or had no kubelet.

    So it is when the service of a host is taken off while a pod waits.
    """
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    node = make_node(started=False)
    node._command = [*own, "sh", "-c", MOUNTED_AGAIN, str(node.root), *COMMAND]
    inside = node.root / "in"
    flags = (
        *("--kubelet-socket", str(inside / "dp" / "kubelet.sock")),
        *("--pod-resources-socket", str(inside / "pr" / "kubelet.sock")),
        *("--host-hook-path", str(inside / "host")),
        *("--state-dir", str(inside / "state")),
        *("--runtime-dir", str(inside / "run")),
    )
    node.start_agent(*flags)
    serves(node, "before")
    node.kubelet.stop(leave_socket=False)
    # Not `shutil.rmtree`: the agent removes its own socket meanwhile.
    subprocess.run(["rm", "-rf", str(node.root / directory)], check=True)
    (node.root / directory).mkdir()
    node.kubelet.start()
    assert node.agent is not None
    assert node.agent.wait(60) == EXIT_GAVE_UP
    assert f"{inside / directory} was deleted on the host" in node.log_text()
    node.start_agent(*flags)  # as kubelet does, and gives it the directory that is there
    serves(node)


def made_for_pods(root: Path, uid: str = "") -> list[str]:
    """What stands where things of pods belong, whole or not."""
    places = ("host/vgpu/containers", "host/vgpu/limits", "state/grants", "state/limits")
    paths = [path for place in places for path in (root / place).glob("*")]
    return [f"{path.parent.name}/{path.name}" for path in paths if uid in path.name]


BAD_FSYNC = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd)
{
    const char *how = getenv("VGPU_TEST_FSYNC");
    (void)fd;
    if (how && strcmp(how, "error") == 0) {
        errno = EIO;
        return -1;
    }
    sleep(4);
    return 0;
}
int fdatasync(int fd) { return fsync(fd); }
"""


@pytest.fixture(scope="module")
def bad_fsync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes fsync fail or take long in the process it is preloaded into."""
    folder = tmp_path_factory.mktemp("bad-fsync")
    (folder / "fsync.c").write_text(BAD_FSYNC)
    library = folder / "fsync.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1"]
    subprocess.run([*compiler, str(folder / "fsync.c"), "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("how", ["error", "slow"])
def test_a_disk_that_fails_or_dawdles(make_node: NodeMaker, bad_fsync: Path, how: str) -> None:
    """Fsync says EIO, or takes longer than the budget: a refusal in words, nothing left half-made."""
    node = make_node(started=False)
    (node.root / "host/vgpu").mkdir(parents=True, exist_ok=True)
    node.start_agent()  # with a good disk: hook and preload file come into place
    up(node, 20)
    first = node.run_pod("first", [Ask(memory_mib=500)])
    assert first.admitted.ok, first.admitted.message
    node.stop_agent()
    node._environ |= {"LD_PRELOAD": str(bad_fsync), "VGPU_TEST_FSYNC": how}
    node.start_agent()
    up(node, 20)
    pod = node.run_pod("unlucky", [Ask(memory_mib=800)])
    assert not pod.admitted.ok
    assert "Allocate failed" in pod.admitted.message
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    eventually(
        lambda: not made_for_pods(node.root, pod.uid),
        within_s=60,  # a slow disk is slow at cleaning up, too
        what="nothing is left behind",
    )


# --- the driver ----------------------------------------------------------------------------------


def registered_health(node: SimNode) -> dict[str, bool]:
    """GPU -> healthy, as the scheduler reads it (a missing key means false)."""
    gpus = json.loads(node.annotations()[REGISTER])
    return {gpu["id"]: gpu.get("health", False) for gpu in gpus}


def test_no_driver_at_the_start_is_waited_for(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    node.driver.driver("absent")
    node.start_agent()
    eventually(lambda: "driver" in node.fetch("/readyz")[1].lower(), what="/readyz says why")
    assert node.fetch("/healthz")[0] == 200
    assert REGISTER not in node.annotations(), "nothing is known, so nothing is published"
    node.driver.driver("ok")
    serves(node)


def test_no_driver_ends_it_when_told_so(make_node: NodeMaker) -> None:
    node = make_node("--fail-on-init-error=true", started=False)
    node.driver.driver("absent")
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(20) == 1


def test_the_driver_dies_and_comes_back(node: SimNode) -> None:
    node.driver.driver("absent")
    eventually(lambda: node.allocatable() == 0, within_s=60)
    assert node.fetch("/healthz")[0] == 200
    node.driver.driver("ok")
    up(node, 20)
    serves(node)


@pytest.mark.parametrize("code", [1, 4, 15, 17, 27, 999])
def test_every_error_of_the_driver_is_survived(node: SimNode, code: int) -> None:
    node.driver.fail("nvmlDeviceGetMemoryInfo", code)
    node.driver.fail("nvmlDeviceGetHandleByIndex_v2", code)
    eventually(lambda: node.allocatable() == 0, within_s=60)
    node.driver.heal()
    serves(node)


def test_a_gpu_falls_off_the_bus(node: SimNode) -> None:
    node.driver.lost(0)
    eventually(lambda: node.allocatable() == 10, within_s=60)
    eventually(lambda: registered_health(node) == {made_up_uuid(0): False, made_up_uuid(1): True})
    serves(node, "on-the-other", vgpus=10)
    node.driver.lost(0, lost=False)
    serves(node)


def test_a_hanging_driver_blocks_nobody(node: SimNode) -> None:
    """NVML calls hang: GPUs go unhealthy, pods that hold a GPU keep it, the agent still stops."""
    node.driver.hang()
    eventually(lambda: node.allocatable() == 0, within_s=60, what="silence is not health")
    assert node.fetch("/healthz")[0] == 200
    assert "not answered" in node.fetch("/readyz")[1] or node.fetch("/metrics")[0] == 200
    node.driver.hang(hanging=False)
    up(node, 20)
    serves(node)


@pytest.mark.parametrize(
    ("flags", "within_s"),
    [
        pytest.param([], JOIN_WITHIN_S + LEAVE_WITHIN_S, id="nothing else is to be done"),
        pytest.param(["--clean-exit"], JOIN_WITHIN_S, id="annotations are to be taken back"),
    ],
)
def test_a_stop_waits_for_a_driver_as_long_as_it_may(
    make_node: NodeMaker, flags: list[str], within_s: float
) -> None:
    """Slow nodes end cleanly, too; and one whose driver hangs ends all the same."""
    node = make_node(*flags)
    node.driver.hang()
    assert node.stop_agent() == 1
    [line] = [line for line in node.log_text().splitlines() if "services_did_not_stop" in line]
    assert "gpus" in line
    assert line.endswith(f"waited_s={within_s}")


def test_gpus_are_renumbered(node: SimNode) -> None:
    """One is taken out, and the other has its number; later it is put back."""
    node.driver.remove_gpu(0)
    eventually(lambda: node.allocatable() == 10, within_s=60)
    assert eventually(
        lambda: registered_health(node) == {made_up_uuid(0): False, made_up_uuid(1): True}
    ), "what is gone is unhealthy, not forgotten"
    serves(node, "on-the-other", vgpus=10)
    node.driver.add_gpu(0, SimGpu(uuid=made_up_uuid(0), name="NVIDIA A40", memory_mib=46068))
    serves(node)


def test_the_driver_is_upgraded_under_us(node: SimNode) -> None:
    """Only a new process can load the new library: the agent ends, its supervisor starts it anew."""
    node.driver.driver("mismatch")
    assert node.agent is not None
    assert node.agent.wait(20) == 1
    assert "version" in node.log_text().lower()
    node.driver.driver("ok")
    node.start_agent()
    serves(node)


def test_too_many_vgpus_are_refused_before_anything_is_announced(make_node: NodeMaker) -> None:
    """A list that kubelet could not read is refused with the largest number that works."""
    node = make_node("--device-split-count", "60000", started=False)
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(20) == 2
    assert "set the split count to" in node.log_text()
    assert "Traceback" not in node.log_text()
    assert REGISTER not in node.annotations()
    assert node.kubelet.history("registered") == []
