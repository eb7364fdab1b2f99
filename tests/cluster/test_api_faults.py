"""What the agent does while an API server, whichever, forgets, refuses and keeps things back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.agent_process import AgentProcess
from cluster.conftest import StartAgent
from cluster.faulty_api import FaultyApi
from cluster.gpu_pods import Container, GpuPods, NodeView
from cluster.node_under_test import NodeUnderTest
from waiting import eventually

from agent.sim.driver import SimGpu
from agent.sim.scheduler import BIND_PHASE, PlacedClaim

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def api(node: NodeUnderTest, tmp_path: Path) -> Iterator[FaultyApi]:
    with FaultyApi(node.agent_kubeconfig, tmp_path / "faulty.kubeconfig") as api:
        yield api


@pytest.fixture
def agent(api: FaultyApi, start_working_agent: StartAgent) -> AgentProcess:
    """An agent that knows the API server through its faults only."""
    return start_working_agent(f"--kubeconfig={api.kubeconfig}")


@pytest.fixture
def gpu_container(gpus: tuple[SimGpu, SimGpu]) -> Container:
    return Container(name="main", claims=[PlacedClaim(gpus[0].uuid, 100, 10)])


def start_and_see_it_run(pods: GpuPods, view: NodeView, container: Container) -> None:
    pod = pods.start(container)
    pods.wait_for_phase(pod, "Running")
    eventually(lambda: pods.annotations(pod).get(BIND_PHASE) == "success", within_s=60)
    view.wait_for_lock(held=False)


@pytest.mark.parametrize("as_status", [True, False], ids=["as a status", "as an event"])
def test_watches_expire(
    api: FaultyApi,
    agent: AgentProcess,
    view: NodeView,
    pods: GpuPods,
    gpu_container: Container,
    as_status: bool,
) -> None:
    expiry = api.expire_watches(count=2, as_status=as_status)
    api.end_watches()
    start_and_see_it_run(pods, view, gpu_container)
    eventually(lambda: expiry.used == 2, within_s=60)
    start_and_see_it_run(pods, view, gpu_container)


def test_the_api_server_has_too_much_to_do(
    api: FaultyApi, agent: AgentProcess, view: NodeView, pods: GpuPods, gpu_container: Container
) -> None:
    pod = pods.create(gpu_container)
    pods.place_unbound(pod, gpu_container)
    refusals = [
        api.fail(429, count=2, verb="patch", resource=resource, retry_after_s=0.1)
        for resource in ("pods", "nodes")
    ]
    pods.bind(pod)
    pods.wait_for_phase(pod, "Running")
    eventually(lambda: pods.annotations(pod).get(BIND_PHASE) == "success", within_s=60)
    view.wait_for_lock(held=False)
    assert [refusal.used for refusal in refusals] == [2, 2]


def test_kubelet_asks_before_the_watch_has_told_of_the_pod(
    api: FaultyApi, agent: AgentProcess, pods: GpuPods, gpu_container: Container
) -> None:
    with api.held_events():
        pods.wait_for_phase(pods.start(gpu_container), "Running")
