"""What is left standing when kubelet, the API server or the agent ends and comes back."""

import shutil

import pytest
from cluster.agent_process import VGPUS_PER_GPU, AgentProcess
from cluster.checkpoint import CHECKPOINT
from cluster.conftest import StartAgent
from cluster.gpu_pods import Container, GpuPod, GpuPods, NodeView
from cluster.node_under_test import (
    LOSES_FILES,
    REBOOTS,
    STOPS_API,
    STOPS_KUBELET,
    NodeUnderTest,
)
from cluster.pod_resources import assigned_ids
from waiting import eventually

from agent.sim.driver import SimGpu
from agent.sim.scheduler import BIND_PHASE, PlacedClaim

pytestmark = pytest.mark.timeout(600)

ALL_VGPUS = 2 * VGPUS_PER_GPU
Gpus = tuple[SimGpu, SimGpu]


@pytest.fixture
def gpu_container(gpus: Gpus) -> Container:
    return Container(name="main", claims=[PlacedClaim(gpus[0].uuid, 100, 10)])


def start_and_see_it_run(pods: GpuPods, view: NodeView, container: Container) -> GpuPod:
    """The node does its whole job: a pod gets its GPU, the scheduler gets its node back."""
    pod = pods.start(container)
    pods.wait_for_phase(pod, "Running")
    eventually(lambda: pods.annotations(pod).get(BIND_PHASE) == "success")
    view.wait_for_lock(held=False)
    return pod


def wait_until_older_pods_are_admitted(pods: GpuPods) -> None:
    """A kubelet that starts takes pods in the order of their creation: the newest is the last."""
    pods.wait_for_phase(newest := pods.create(Container(name="plain")), "Pending")
    pods.bind(newest)
    pods.wait_for_phase(newest, "Running")


def kubelet_has_failed(node: NodeUnderTest, pods: GpuPods, pod: GpuPod) -> bool:
    """Whether this kubelet has done to the pod what newer ones do when they start (see the port)."""
    status = pods.status(pod)
    failed = (status["phase"], status.get("reason")) == ("Failed", "UnexpectedAdmissionError")
    return node.fails_pods_when_it_starts and failed


# --- kubelet -------------------------------------------------------------------------------------


@pytest.mark.needs(STOPS_KUBELET)
def test_kubelet_is_restarted_while_pods_run(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    before = start_and_see_it_run(pods, view, gpu_container)
    ids = assigned_ids(node, before, "main")
    with agent.registered_anew():
        node.stop_kubelet()
        node.start_kubelet()
    view.wait_for_allocatable(ALL_VGPUS)
    after = start_and_see_it_run(pods, view, gpu_container)
    assert pods.status(before)["phase"] == "Running"
    assert assigned_ids(node, before, "main") == ids
    assert not set(ids) & set(assigned_ids(node, after, "main"))


@pytest.mark.needs(STOPS_KUBELET)
def test_kubelet_is_restarted_after_an_init_container_with_a_gpu_has_ended(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, agent: AgentProcess, gpus: Gpus
) -> None:
    claim = PlacedClaim(gpus[0].uuid, 100, 10)
    warm_up = Container(name="warm-up", claims=[claim], command=["true"])
    main = Container(name="main", claims=[claim])
    pod = pods.start(main, init=[warm_up])
    pods.wait_for_phase(pod, "Running")
    with agent.registered_anew():
        node.stop_kubelet()
        node.start_kubelet()
    wait_until_older_pods_are_admitted(pods)
    if not kubelet_has_failed(node, pods, pod):
        assert pods.status(pod)["phase"] == "Running"
        assert len(node.containers(pod.uid, "main")) == 1
    start_and_see_it_run(pods, view, main)


@pytest.mark.needs(REBOOTS)
def test_the_machine_reboots(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    pod = start_and_see_it_run(pods, view, gpu_container)
    (first,) = node.containers(pod.uid, "main")
    agent.kill()
    node.stop_kubelet()
    node.lose_containers()
    node.start_kubelet()
    with agent.registered_anew():
        agent.start()
    eventually(
        lambda: kubelet_has_failed(node, pods, pod) or len(node.containers(pod.uid, "main")) == 2,
        within_s=60,
        what="the pod has been started again",
    )
    assert first.env
    assert node.containers(pod.uid, "main")[-1].gives_the_same_as(first)
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)


@pytest.mark.needs(STOPS_KUBELET)
def test_the_agent_is_started_before_kubelet(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    start_agent: StartAgent,
    gpu_container: Container,
) -> None:
    node.stop_kubelet()
    agent = start_agent()
    view.wait_for("hami.io/node-nvidia-register", bool)  # the API server needs no kubelet
    assert agent.process.running
    node.start_kubelet()
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)


@pytest.mark.needs(STOPS_KUBELET)
def test_kubelet_is_restarted_between_bind_and_allocate(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    node.stop_kubelet()
    pod = pods.start(gpu_container)
    node.start_kubelet()
    # Kubelet may look at the pod before any plugin is back, and then it fails it for good.
    ends = ("Running", "Failed")
    eventually(lambda: pods.status(pod).get("phase") in ends, within_s=60)
    view.wait_for_allocatable(ALL_VGPUS)
    if pods.status(pod)["phase"] == "Running":
        eventually(lambda: pods.annotations(pod).get(BIND_PHASE) == "success")
    pods.delete(pod)  # as its controller does, or its owner
    start_and_see_it_run(pods, view, gpu_container)


@pytest.mark.needs(STOPS_KUBELET, LOSES_FILES)
@pytest.mark.parametrize("damage", ["deleted", "cut in half"])
def test_kubelets_books_are_lost(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
    damage: str,
) -> None:
    before = start_and_see_it_run(pods, view, gpu_container)
    node.stop_kubelet()
    checkpoint = node.kubelet_socket.with_name(CHECKPOINT)
    content = checkpoint.read_bytes()
    if damage == "deleted":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(content[: len(content) // 2])
    with agent.registered_anew():
        node.start_kubelet()
    view.wait_for_allocatable(ALL_VGPUS)
    wait_until_older_pods_are_admitted(pods)
    start_and_see_it_run(pods, view, gpu_container)
    assert pods.status(before)["phase"] == "Running"


def test_our_socket_is_removed(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    start_working_agent: StartAgent,
    gpu_container: Container,
) -> None:
    plugins = node.kubelet_socket.parent
    others = set(plugins.glob("*.sock"))
    agent = start_working_agent()
    ours = set(plugins.glob("*.sock")) - others
    with agent.registered_anew():
        for path in ours:
            path.unlink()
    eventually(lambda: set(plugins.glob("*.sock")) - others - ours, within_s=60)
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)


@pytest.mark.needs(STOPS_KUBELET, LOSES_FILES)
@pytest.mark.parametrize("fate", ["renamed", "deleted"])
def test_the_directory_of_sockets_is_replaced(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
    fate: str,
) -> None:
    plugins = node.kubelet_socket.parent
    aside = plugins.with_name(f"{plugins.name}.old")
    node.stop_kubelet()
    plugins.rename(aside)
    if fate == "deleted":
        shutil.rmtree(aside)
    try:
        with agent.registered_anew():
            node.start_kubelet()
        view.wait_for_allocatable(ALL_VGPUS)
        start_and_see_it_run(pods, view, gpu_container)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


# --- the agent -----------------------------------------------------------------------------------


def test_the_agent_is_killed_and_started_again(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    before = start_and_see_it_run(pods, view, gpu_container)
    agent.kill()
    view.wait_for_allocatable(0)
    with agent.registered_anew():
        agent.start()
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)
    assert pods.status(before)["phase"] == "Running"


def test_a_pod_that_came_while_there_was_no_agent_does_not_block_the_node(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    agent.kill()
    view.wait_for_allocatable(0)
    pod = pods.start(gpu_container)
    pods.wait_for_phase(pod, "Failed")  # by kubelet alone: it has no devices
    with agent.registered_anew():
        agent.start()
    view.wait_for_allocatable(ALL_VGPUS)
    pods.delete(pod)
    start_and_see_it_run(pods, view, gpu_container)


def test_a_second_agent_waits_and_takes_over(
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    start_agent: StartAgent,
    gpu_container: Container,
) -> None:
    second = start_agent()
    start_and_see_it_run(pods, view, gpu_container)
    assert second.process.running
    with second.registered_anew():
        agent.kill()
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)
    assert second.process.running


def test_an_agent_replaces_another_one_that_knows_nothing_of_it(
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    start_agent: StartAgent,
    gpu_container: Container,
) -> None:
    second = start_agent(state="elsewhere")  # its own lock file: both run, as in a surge roll-out
    eventually(lambda: second.registrations, within_s=60)
    agent.stop()  # while both drop each other's stream in turn, whoever is left must win
    eventually(lambda: has_run(pods, gpu_container), within_s=60, every_s=0.5)
    view.wait_for_allocatable(ALL_VGPUS)


def has_run(pods: GpuPods, container: Container) -> bool:
    """Whether a pod gets its GPU; one that came at a bad moment is deleted and made anew."""
    pod = pods.start(container)
    ends = ("Running", "Failed")
    eventually(lambda: pods.status(pod).get("phase") in ends, within_s=60)
    running: bool = pods.status(pod)["phase"] == "Running"
    pods.delete(pod)
    return running


# --- the API server ------------------------------------------------------------------------------


@pytest.mark.needs(STOPS_API)
def test_the_api_server_is_restarted(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpu_container: Container,
) -> None:
    start_and_see_it_run(pods, view, gpu_container)
    node.stop_api()
    node.start_api()
    start_and_see_it_run(pods, view, gpu_container)
    assert view.allocatable() == ALL_VGPUS


@pytest.mark.needs(STOPS_API)
def test_the_agent_is_started_while_the_api_server_is_away(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    start_agent: StartAgent,
    gpu_container: Container,
) -> None:
    node.stop_api()
    try:
        agent = start_agent()
        eventually(lambda: "registered" in agent.log, within_s=60)  # kubelet needs no API server
    finally:
        node.start_api()
    view.wait_for("hami.io/node-nvidia-register", bool)
    view.wait_for_allocatable(ALL_VGPUS)
    start_and_see_it_run(pods, view, gpu_container)
