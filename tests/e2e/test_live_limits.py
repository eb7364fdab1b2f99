"""Limits that change while a container runs: by command, by the pod, through restarts."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.whole import up
from tests.waiting import eventually

MIB = 1 << 20


def limits_file(pod: RanPod) -> Path:
    """What the container has mounted."""
    (mount,) = (
        mount
        for mount in pod.admitted.containers["main"].mounts
        if mount.container_path == "/etc/vgpu.limits"
    )
    assert mount.read_only
    return Path(mount.host_path)


def held(path: Path) -> tuple[int, int]:
    """MiB and percent of the first GPU, by the documented layout."""
    raw = path.read_bytes()
    return (
        int.from_bytes(raw[88:96], "little") // MIB,
        int.from_bytes(raw[96:100], "little") // 10,
    )


def limit(node: SimNode, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "limit", *words, "--runtime-dir", str(node.root / "run")],
        capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def reasons(node: SimNode) -> list[str]:
    return [event["reason"] for event in node.events() if event["reason"].startswith("VgpuLimits")]


def annotate(node: SimNode, value: object) -> None:
    text = None if value is None else json.dumps(value)
    node.client.annotate("pods", "p", {"vgpu-agent/limits": text}, namespace="team")


@pytest.fixture
def pod(node: SimNode) -> RanPod:
    return node.run_pod("p", [Ask(memory_mib=4000, core_percent=40)])


def test_the_command_changes_what_the_running_container_has_mounted(
    node: SimNode, pod: RanPod
) -> None:
    path = limits_file(pod)
    assert held(path) == (4000, 40)
    with path.open("rb") as mounted:
        done = limit(node, "team/p/main", "--memory", "1Gi", "--cores", "20")
        assert (done.returncode, done.stderr) == (0, "")
        assert "GPU 0: 4000 MiB -> 1024 MiB, 40 % -> 20 %" in done.stdout.replace("GPU 1", "GPU 0")
        assert int.from_bytes(mounted.read(96)[88:], "little") == 1024 * MIB
    eventually(lambda: reasons(node) == ["VgpuLimitsChanged"])
    assert re.search(
        r'limits_changed in=limit_changes source=socket asked_by="uid 0, pid \d+" '
        "container=team/p/main",
        node.log_text(),
    )
    eventually(
        lambda: (
            'vgpu_limit_changes_total{outcome="changed",source="socket"} 1.0'
            in node.fetch("/metrics")[1]
        )
    )


def test_it_survives_a_killed_agent_a_kubelet_that_asks_again_and_ends_with_reset(
    node: SimNode, pod: RanPod
) -> None:
    path = limits_file(pod)
    inode = path.stat().st_ino
    assert limit(node, "p", "--memory", "1Gi").returncode == 0
    node.stop_agent(signal.SIGKILL)
    gone = limit(node, "p", "--reset")
    assert gone.returncode == 1
    assert "the agent" in gone.stderr
    node.start_agent()
    up(node, 20)
    assert held(path) == (1024, 40)
    node.kubelet.restart_container(pod.uid, "main")
    assert (held(path), path.stat().st_ino) == ((1024, 40), inode)
    assert limit(node, "p", "--reset").returncode == 0
    assert held(path) == (4000, 40)


def test_the_pod_may_lower_and_not_raise(node: SimNode, pod: RanPod) -> None:
    path = limits_file(pod)
    annotate(node, {"main": {"memory": "2000Mi"}})
    eventually(lambda: held(path) == (2000, 40))
    annotate(node, {"main": {"memory": "5000Mi"}})
    eventually(lambda: reasons(node) == ["VgpuLimitsChanged", "VgpuLimitsRefused"])
    assert held(path) == (2000, 40)
    annotate(node, None)
    eventually(lambda: held(path) == (4000, 40))


def test_an_annotation_that_was_there_first_is_followed_when_the_container_starts(
    make_node: NodeMaker,
) -> None:
    node = make_node("--limits-annotation", "any")
    asks = [Ask(memory_mib=4000, core_percent=40)]
    uid = node.create_pod("p", asks)
    annotate(node, {"main": {"memory": "6000Mi", "cores": "none"}})
    pod = node.offer("p", uid, asks, node.place_pod("p", asks))
    path = limits_file(pod)
    eventually(lambda: held(path) == (6000, 0))
