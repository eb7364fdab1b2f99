"""What breaks around the agent: kubelet comes and goes, forgets, loses files; so does the agent."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from agent.sim.driver import SimDriver
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import LOCK
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, serves, up
from tests.peers.processes import free_port
from tests.waiting import eventually

# --- kubelet -------------------------------------------------------------------------------------


def restarted(node: SimNode) -> None:
    node.kubelet.restart()


def away_for_a_while(node: SimNode) -> None:
    node.kubelet.stop()
    eventually(lambda: not node.ready())
    node.kubelet.start()


def registration_server_crashed(node: SimNode) -> None:
    """Its streams live on, so that nothing else shows whether it is registered with again."""
    before = len(node.kubelet.history("registered"))
    node.kubelet.restart_registration()
    registered_again(node, before=before)


def registered_again(node: SimNode, *, before: int) -> None:
    eventually(lambda: len(node.kubelet.history("registered")) > before, within_s=60)


def our_socket_removed(node: SimNode) -> None:
    before = len(node.kubelet.history("registered"))
    for path in node.kubelet.directory.glob("*.sock"):
        if path != node.kubelet.socket:
            path.unlink()
    registered_again(node, before=before)


def directory_replaced(node: SimNode) -> None:
    node.kubelet.stop(leave_socket=False)
    node.kubelet.directory.rename(node.root / "old")
    node.kubelet.start()


def stream_dropped(node: SimNode) -> None:
    before = len(node.kubelet.history("registered"))
    node.kubelet.drop_stream("nvidia.com/gpu")
    registered_again(node, before=before)


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


@pytest.mark.parametrize("behaviour", ["1.20", "1.36", "1.37"])
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
    serves(node)


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
    eventually(lambda: node.allocatable() == 20, within_s=60)
    pod = node.run_pod("with-the-second", [Ask(memory_mib=300)])
    assert pod.admitted.ok, pod.admitted.message


@contextlib.contextmanager
def another_beside(node: SimNode, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A second agent, which the node's methods ask from now on; gives the first, which it waits for."""
    first = node.agent
    assert first is not None
    node.metrics_port = free_port()
    node.start_agent(*flags)
    try:
        eventually(lambda: f"pid {first.pid}" in node.log_text(), what="it says who is there")
        yield first
    finally:
        first.terminate()
        first.wait(20)


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        pytest.param((), 503, "another agent serves this node: pid", id="by default"),
        pytest.param(("--ready-standing-by",), 200, "ok", id="where roll-outs wait for it"),
    ],
)
def test_whether_an_agent_that_stands_by_is_ready(
    make_node: NodeMaker, flags: tuple[str, ...], status: int, said: str
) -> None:
    node = make_node()
    with another_beside(node, *flags):
        eventually(lambda: node.fetch("/readyz")[1].startswith(said), what=said)
        assert node.fetch("/readyz")[0] == status
    up(node, 20)


@pytest.mark.parametrize(
    ("ails", "said"),
    [
        pytest.param(lambda driver: driver.driver("absent"), "driver: ", id="none"),
        pytest.param(lambda driver: driver.hang(), "the GPUs are not known yet", id="a silent one"),
    ],
)
def test_an_agent_that_stands_by_without_a_driver_is_not_ready(
    make_node: NodeMaker, ails: Callable[[SimDriver], object], said: str
) -> None:
    """Else a roll-out would take the one away that serves."""
    node = make_node()
    ails(node.driver)
    with another_beside(node, "--ready-standing-by"):
        eventually(lambda: node.fetch("/readyz")[1].startswith(said), what=said)
        assert node.fetch("/readyz")[0] == 503
        node.driver.hang(hanging=False)  # or their end would wait for the driver


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
    assert eventually(lambda: LOCK not in node.annotations(), within_s=60)
    serves(node)


def test_kubelet_is_restarted_while_it_waits_for_an_answer(node: SimNode) -> None:
    """Kubelet dies in the middle of an Allocate: what was begun is ended, the node stays whole."""
    asks = [Ask(memory_mib=800)]
    uid = node.create_pod("unlucky", asks)
    claims = node.place_pod("unlucky", asks)
    node.api.hang(1.0, verb="patch", resource="pods")
    admission = threading.Thread(target=node.offer, args=("unlucky", uid, asks, claims))
    admission.start()
    eventually(lambda: node.kubelet.history("allocate"), what="kubelet asks")
    node.kubelet.stop()
    node.kubelet.start()
    admission.join(20)
    assert not admission.is_alive()
    eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
    serves(node)


def test_a_clean_exit_beside_the_agent_that_serves_takes_nothing_back(make_node: NodeMaker) -> None:
    """The annotations belong to the agent that holds the lock, not to the one that waits for it."""
    node = make_node()
    first = node.agent
    assert first is not None
    node.start_agent("--metrics-bind-address", "127.0.0.1:0", "--clean-exit")
    eventually(lambda: f"pid {first.pid}" in node.log_text(), what="the second says who is there")
    assert node.stop_agent() == 0
    serves(node)
    node.agent = first
