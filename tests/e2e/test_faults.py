"""What breaks around the agent: kubelet, API server, disk, driver, the agent itself."""

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, REGISTER
from tests.e2e.conftest import COMMAND, NodeMaker, up
from tests.e2e.test_main_job import finished, got_its_claims
from tests.waiting import eventually


def serves(node: SimNode, name: str = "afterwards") -> None:
    """The node is whole: registered, and a new pod gets exactly its share."""
    up(node, 20)
    asks = [Ask(memory_mib=700)]
    pod = node.run_pod(name, asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


# --- kubelet -------------------------------------------------------------------------------------


def restarted(node: SimNode) -> None:
    node.kubelet.restart()


def away_for_a_while(node: SimNode) -> None:
    node.kubelet.stop()
    eventually(lambda: not node.ready())
    node.kubelet.start()


def registration_server_crashed(node: SimNode) -> None:
    node.kubelet.restart_registration()


def our_socket_removed(node: SimNode) -> None:
    for path in node.kubelet.directory.glob("*.sock"):
        if path != node.kubelet.socket:
            path.unlink()
    before = len(node.kubelet.history("registered"))
    eventually(lambda: len(node.kubelet.history("registered")) > before, within_s=20)


def directory_replaced(node: SimNode) -> None:
    node.kubelet.stop(leave_socket=False)
    node.kubelet.directory.rename(node.root / "old")
    node.kubelet.start()


def stream_dropped(node: SimNode) -> None:
    node.kubelet.drop_stream("nvidia.com/gpu")


def checkpoint_deleted(node: SimNode) -> None:
    node.kubelet.delete_checkpoint()
    node.kubelet.restart()


def checkpoint_corrupt(node: SimNode) -> None:
    node.kubelet.corrupt_checkpoint()
    node.kubelet.restart()


KUBELET_FAULTS = [
    restarted, away_for_a_while, registration_server_crashed, our_socket_removed,
    directory_replaced, stream_dropped, checkpoint_deleted, checkpoint_corrupt,
]  # fmt: skip


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
@pytest.mark.parametrize("fault", KUBELET_FAULTS, ids=lambda fault: fault.__name__)
def test_kubelet_faults(
    make_node: NodeMaker, fault: Callable[[SimNode], None], behaviour: str
) -> None:
    node = make_node(behaviour=behaviour)
    node.run_pod("before", [Ask(memory_mib=500)])
    fault(node)
    serves(node)


def test_an_allocate_after_a_lost_checkpoint_gets_the_same_answer(node: SimNode) -> None:
    """Kubelet forgot the container and asks again while it restarts: nothing new is granted."""
    pod = node.run_pod("pod", [Ask(memory_mib=500)])
    assert eventually(lambda: finished(node, pod))
    before = pod.admitted.containers["main"]
    node.kubelet.delete_checkpoint()
    node.kubelet.restart()
    up(node, 20)
    again = node.kubelet.restart_container(pod.uid, "main")
    if again.device_ids == before.device_ids:  # kubelet may choose other ids of the same GPU
        assert (again.env, again.mounts) == (before.env, before.mounts)
    assert again.env["NVIDIA_VISIBLE_DEVICES"] == before.env["NVIDIA_VISIBLE_DEVICES"]


def test_two_agents_on_one_node(make_node: NodeMaker) -> None:
    """The second waits; when the first ends, it takes over."""
    node = make_node()
    first = node.agent
    assert first is not None
    node.start_agent("--metrics-bind-address", "127.0.0.1:0")
    second = node.agent
    assert second is not None
    eventually(lambda: f"pid {first.pid}" in node.log_text(), what="the second says who is there")
    serves(node, "with-two")
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    eventually(lambda: node.allocatable() == 20, within_s=20)
    pod = node.run_pod("with-the-second", [Ask(memory_mib=300)])
    assert pod.admitted.ok, pod.admitted.message


# --- the agent -----------------------------------------------------------------------------------


def test_killed_and_started_again(node: SimNode) -> None:
    asks = [Ask(memory_mib=800)]
    running = node.run_pod("running", asks)
    node.stop_agent(signal.SIGKILL)
    eventually(lambda: node.allocatable() == 0)
    node.start_agent()
    serves(node)
    assert eventually(lambda: finished(node, running))


def test_killed_while_a_pod_is_being_bound(make_node: NodeMaker) -> None:
    """The lock and the phase it left behind are put right by its successor."""
    node = make_node()
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    node.api.hang(30, verb="patch", resource="nodes")  # the release of the lock
    pod = node.offer("unlucky", uid, asks, claims)
    node.stop_agent(signal.SIGKILL)
    node.api.clear_faults()
    assert pod.admitted.ok or "Allocate failed" in pod.admitted.message
    node.start_agent()
    assert eventually(lambda: LOCK not in node.annotations(), within_s=20)
    serves(node)


# --- the API server --------------------------------------------------------------------------------


def api_restarted(node: SimNode) -> None:
    node.api.restart()


def api_lost_its_history(node: SimNode) -> None:
    node.api.restart(lose_history=True)


def watches_expired(node: SimNode) -> None:
    node.api.expire_watches()


def too_many_requests(node: SimNode) -> None:
    node.api.fail(429, count=3, retry_after_s=1)
    node.api.end_watches()


def server_errors(node: SimNode) -> None:
    node.api.fail(500, count=5)
    node.api.end_watches()


def answers_lost(node: SimNode) -> None:
    node.api.drop(count=3)
    node.api.end_watches()


API_FAULTS = [
    api_restarted, api_lost_its_history, watches_expired, too_many_requests, server_errors,
    answers_lost,
]  # fmt: skip


@pytest.mark.parametrize("fault", API_FAULTS, ids=lambda fault: fault.__name__)
def test_api_server_faults(node: SimNode, fault: Callable[[SimNode], None]) -> None:
    fault(node)
    eventually(
        lambda: node.api.open_watches("pods") and node.api.open_watches("nodes"), within_s=40
    )
    node.api.clear_faults()
    serves(node)


def test_the_api_server_is_down_during_allocate(node: SimNode) -> None:
    """The pod is refused with a sentence, and the lock is released when the server is back."""
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    eventually(lambda: node.api.open_watches("pods"))
    node.api.stop()
    pod = node.offer("unlucky", uid, asks, claims)
    node.api.start()
    assert not pod.admitted.ok
    assert "API server" in pod.admitted.message
    node.report_status(pod)
    eventually(lambda: LOCK not in node.annotations(), within_s=40, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    serves(node)


def test_the_api_server_answers_too_late(node: SimNode) -> None:
    """Allocate keeps its budget of 2 s: kubelet is not blocked, the pod's owner is told why."""
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    node.api.hang(30, verb="patch", count=2)
    pod = node.offer("unlucky", uid, asks, claims)
    node.api.clear_faults()
    assert not pod.admitted.ok
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)


def test_allocate_arrives_before_the_watch_event(node: SimNode) -> None:
    """Kubelet was told of the pod, we were not yet: the API server is asked."""
    asks = [Ask(memory_mib=900)]
    with node.api.held_events():
        pod = node.run_pod("early", asks)
        assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


def test_a_removed_annotation_is_published_again(node: SimNode) -> None:
    node.client.annotate("nodes", node.name, {REGISTER: None})
    assert eventually(lambda: REGISTER in node.annotations())


def test_the_api_server_is_down_at_the_start(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    node.api.stop()
    node.start_agent()
    eventually(lambda: node.fetch("/healthz")[0] == 200)
    assert node.fetch("/readyz")[0] == 503
    node.api.start()
    up(node, 20)
    serves(node)


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


def can_mount() -> bool:
    prefix = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mount namespaces are not allowed here")
@pytest.mark.parametrize(
    ("options", "directory"),
    [
        pytest.param("ro", "host/vgpu", id="the hook directory is read-only"),
        pytest.param("size=4k,nr_inodes=2", "host/vgpu", id="the hook directory is full"),
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
    up(node, 20)
    asks = [Ask(memory_mib=800)]
    pod = node.run_pod("unlucky", asks)
    assert not pod.admitted.ok
    assert "Allocate failed" in pod.admitted.message
    assert str(where) in pod.admitted.message or "read-only" in pod.admitted.message.lower()
    eventually(lambda: LOCK not in node.annotations(), within_s=20, what="lock released")
    assert node.pod_annotations("team", "unlucky")[BIND_PHASE] == "failed"
    assert node.stop_agent() == 0


# --- the driver ----------------------------------------------------------------------------------


def registered_health(node: SimNode) -> dict[str, bool]:
    """GPU -> healthy, as the scheduler reads it (a missing key means false)."""
    gpus = json.loads(node.annotations()[REGISTER])
    return {gpu["id"]: gpu.get("health", False) for gpu in gpus}


def test_no_driver_at_the_start_is_waited_for(make_node: NodeMaker) -> None:
    node = make_node(started=False, gpus=1)
    node.driver.driver("absent")
    node.start_agent()
    eventually(lambda: "driver" in node.fetch("/readyz")[1].lower(), what="/readyz says why")
    assert node.fetch("/healthz")[0] == 200
    assert REGISTER not in node.annotations(), "nothing is known, so nothing is published"
    node.driver.driver("ok")
    up(node, 10)


def test_no_driver_ends_it_when_told_so(make_node: NodeMaker) -> None:
    node = make_node("--fail-on-init-error=true", started=False)
    node.driver.driver("absent")
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(20) == 1


def test_the_driver_dies_and_comes_back(node: SimNode) -> None:
    node.driver.driver("absent")
    eventually(lambda: node.allocatable() == 0, within_s=20)
    assert node.fetch("/healthz")[0] == 200
    node.driver.driver("ok")
    up(node, 20)
    serves(node)


@pytest.mark.parametrize("code", [1, 4, 15, 17, 27, 999])
def test_every_error_of_the_driver_is_survived(node: SimNode, code: int) -> None:
    node.driver.fail("nvmlDeviceGetMemoryInfo", code)
    node.driver.fail("nvmlDeviceGetHandleByIndex_v2", code)
    eventually(lambda: node.allocatable() == 0, within_s=20)
    node.driver.heal()
    up(node, 20)


def test_a_gpu_falls_off_the_bus(node: SimNode) -> None:
    node.driver.lost(0)
    eventually(lambda: node.allocatable() == 10, within_s=20)
    eventually(lambda: registered_health(node) == {made_up_uuid(0): False, made_up_uuid(1): True})
    node.driver.lost(0, lost=False)
    up(node, 20)


def test_a_hanging_driver_blocks_nobody(node: SimNode) -> None:
    """NVML calls hang: GPUs go unhealthy, pods that hold a GPU keep it, the agent still stops."""
    node.driver.hang()
    eventually(lambda: node.allocatable() == 0, within_s=30, what="silence is not health")
    assert node.fetch("/healthz")[0] == 200
    assert "not answered" in node.fetch("/readyz")[1] or node.fetch("/metrics")[0] == 200
    node.driver.hang(hanging=False)
    up(node, 20)
    serves(node)


def test_gpus_are_renumbered(node: SimNode) -> None:
    node.driver.remove_gpu(0)
    eventually(lambda: node.allocatable() == 10, within_s=20)
    assert eventually(
        lambda: registered_health(node) == {made_up_uuid(0): False, made_up_uuid(1): True}
    ), "what is gone is unhealthy, not forgotten"


def test_missing_credentials_end_it_with_a_sentence(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    (node.root / "kubeconfig").unlink()
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(20) == 2
    last = node.log_text().strip().splitlines()[-1]
    assert "kubeconfig" in last
    assert "Traceback" not in node.log_text()
