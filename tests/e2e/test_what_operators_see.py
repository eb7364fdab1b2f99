"""What the agent tells of itself and of the node: metrics, probes, log, Events; and its broom."""

import os
import uuid
from pathlib import Path

import pytest

from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, SimNode, plain_environment
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, up
from tests.waiting import eventually

SICK = made_up_uuid(1)


def test_the_illness_of_a_gpu_is_told_in_log_metric_and_event(node: SimNode) -> None:
    node.driver.xid(1, 79)
    eventually(lambda: node.allocatable() == 10)
    up(node, 20)
    eventually(lambda: {"GpuUnhealthy", "GpuRecovered"} <= {e["reason"] for e in node.events()})
    events = {e["reason"]: e for e in node.events()}
    for reason, word in (("GpuUnhealthy", "unhealthy"), ("GpuRecovered", "healthy")):
        assert SICK in events[reason]["message"]
        assert events[reason]["involvedObject"]["kind"] == "Node"
        transition = f'vgpu_gpu_health_transitions_total{{gpu="{SICK}",to="{word}"}} 1.0'
        assert transition in node.fetch("/metrics")[1]
    assert f"gpu_unhealthy in=health gpu={SICK}" in node.log_text()
    assert f"gpu_recovered in=health gpu={SICK}" in node.log_text()


def test_the_promised_metrics_are_there_from_the_start(node: SimNode) -> None:
    text = node.fetch("/metrics")[1]
    for name in (
        "vgpu_agent_info{",
        "vgpu_api_requests_total{",
        "vgpu_allocations_total{",
        "vgpu_allocate_seconds_bucket{",
        "vgpu_kubelet_registrations_total{",
        "vgpu_service_restarts_total{",
        "vgpu_gpu_healthy{",
        # a rate or an increase takes a zero to begin with
        f'vgpu_gpu_health_transitions_total{{gpu="{SICK}",to="unhealthy"}} 0.0',
        f'vgpu_gpu_health_transitions_total{{gpu="{SICK}",to="healthy"}} 0.0',
    ):
        assert f"\n{name}" in text, name


def test_readiness_says_what_is_missing(node: SimNode) -> None:
    assert node.fetch("/healthz")[0] == node.fetch("/readyz")[0] == 200
    node.kubelet.stop()
    eventually(lambda: node.fetch("/readyz")[0] == 503)
    assert "not registered with kubelet" in node.fetch("/readyz")[1]
    assert node.fetch("/healthz")[0] == 200, "without kubelet nothing is stuck"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory takes root")
def test_a_lock_directory_of_another_user_is_said_before_a_pod_fails(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    node.root.chmod(0o1777)  # as /tmp is: anybody could have made it
    taken = node.root / "vgpulock"
    taken.mkdir()
    os.chown(taken, 65534, 65534)
    node.start_agent()
    eventually(lambda: node.allocatable() == 20, within_s=60)
    eventually(lambda: "belongs to user 65534" in node.fetch("/readyz")[1], within_s=60)
    assert node.fetch("/readyz")[0] == 503
    taken.rmdir()
    eventually(node.ready, within_s=60, what="it is mended")
    assert node.run_pod("pod", [Ask()]).admitted.ok


def test_a_list_that_makes_kubelet_slow_is_warned_about(make_node: NodeMaker) -> None:
    node = make_node("--device-split-count", "501", started=False)
    node.start_agent()
    up(node, 1002)
    assert "1002 vGPUs on one node make kubelet slow" in node.log_text()


@pytest.mark.timeout(600)
def test_directories_of_pods_that_are_gone_are_collected(make_node: NodeMaker) -> None:
    """Also one from before the start; never that of a pod that is there."""
    node = make_node("--cache-gc-after", "10s", "--cache-gc-interval", "1s", started=False)
    containers = node.root / "host" / "vgpu" / "containers"
    containers.mkdir(mode=0o755)
    left_over = containers / f"{uuid.uuid4()}_main"
    left_over.mkdir()
    (left_over / "1.cache").write_bytes(b"region")
    node.start_agent()
    up(node, 20)
    gone, stays = node.run_pod("gone", [Ask()]), node.run_pod("stays", [Ask()])
    eventually(lambda: finished(node, gone) and finished(node, stays))
    node.delete_pod(gone)
    kept = containers / f"{stays.uid}_main"
    eventually(lambda: list(containers.iterdir()) == [kept], within_s=60)


def test_what_compiling_took_is_given_back(make_node: NodeMaker, tmp_path: Path) -> None:
    """As in an image without .pyc files, on which none can be written."""
    nowhere = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    node = make_node(environ=plain_environment() | nowhere)
    assert node.agent is not None
    status = Path(f"/proc/{node.agent.pid}/status")

    def spared_kib() -> int:
        facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(facts["VmHWM"].split()[0]) - int(facts["VmRSS"].split()[0])

    eventually(lambda: spared_kib() > 5 * 1024, what="5 MiB less than at most")
