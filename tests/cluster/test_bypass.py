"""Eviction of who uses a GPU without a grant: by the API server's own rules, and with its leave."""

from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import pytest
import yaml
from cluster.conftest import StartAgent
from cluster.gpu_pods import NAMESPACE, Container, GpuPod, GpuPods
from cluster.node_under_test import NodeUnderTest
from kube_api import ApiFailure
from manifests import DAEMONSET
from pod_cgroups import CgroupsUnavailable, pod_cgroup
from waiting import eventually

from agent.sim.container import Container as Process
from agent.sim.driver import SimDriver

pytestmark = pytest.mark.timeout(600)

ROLES = "/apis/rbac.authorization.k8s.io/v1"
FLAGS = ("--on-bypass=evict", "--bypass-interval=0.2s", "--process-interval=0.2s")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def evicting_rules() -> Any:
    """What the DaemonSet's component adds to the agent's role."""
    component = yaml.safe_load(
        (DAEMONSET / "components" / "evict" / "kustomization.yaml").read_text()
    )
    (patch,) = [p for p in component["patches"] if p["target"]["kind"] == "ClusterRole"]
    return [operation["value"] for operation in yaml.safe_load(patch["patch"])]


def eviction_allowed(node: NodeUnderTest, stack: ExitStack) -> None:
    """Give the agent's user leave until the end of the case; stand-ins ask nobody for leave."""
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "vgpu-agent-evict"}}
    objects: dict[str, dict[str, Any]] = {
        "clusterroles": {"kind": "ClusterRole", "rules": evicting_rules()},
        "clusterrolebindings": {
            "kind": "ClusterRoleBinding",
            "roleRef": {**group, "kind": "ClusterRole", "name": "vgpu-agent-evict"},
            "subjects": [
                {**group, "kind": "User", "name": "vgpu-agent"},
                {"kind": "ServiceAccount", "name": "vgpu-agent", "namespace": "kube-system"},
            ],
        },
    }
    for resource, body in objects.items():
        try:
            node.api.request("POST", f"{ROLES}/{resource}", head | body)
        except ApiFailure as failure:
            if failure.code != HTTPStatus.NOT_FOUND:
                raise
            return
        path = f"{ROLES}/{resource}/vgpu-agent-evict"
        stack.callback(node.api.request, "DELETE", path)


def takes(driver: SimDriver, pod: GpuPod, stack: ExitStack) -> Process:
    """A process in the pod's cgroup that holds memory of a GPU it was never given."""
    words = [str(driver.libraries / "sim-tenant")]
    try:
        words = stack.enter_context(pod_cgroup(pod.uid)).command(*words)
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    taker = Process.start("taker", driver=driver, env={}, command=words, isolated=False)
    stack.callback(taker.stop)
    taker._read_answer("starting")
    assert taker.ask("alloc 500").ok
    return taker


def is_ending(pods: GpuPods, pod: GpuPod) -> bool:
    try:
        now = pods.read(pod)
    except ApiFailure as failure:
        return failure.code == HTTPStatus.NOT_FOUND
    return now["metadata"]["uid"] != pod.uid or "deletionTimestamp" in now["metadata"]


def event_messages(node: NodeUnderTest, pod: GpuPod, reason: str) -> list[str]:
    events = node.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [
        event["message"]
        for event in events
        if event["reason"] == reason and event["involvedObject"].get("uid") == pod.uid
    ]


def test_who_takes_a_gpu_is_evicted_as_soon_as_the_agent_may(
    node: NodeUnderTest,
    pods: GpuPods,
    driver: SimDriver,
    start_working_agent: StartAgent,
    stack: ExitStack,
) -> None:
    agent = start_working_agent(*FLAGS)
    thief, bystander = pods.start(Container(name="main")), pods.start(Container(name="main"))
    for pod in (thief, bystander):
        pods.wait_for_phase(pod, "Running")
    takes(driver, thief, stack)
    eventually(lambda: event_messages(node, thief, "VgpuBypass"), within_s=60)
    if "stand-in" not in node.kind:  # which asks nobody for leave
        eventually(lambda: "pod_not_evicted" in agent.log, within_s=60)
        assert not is_ending(pods, thief)
    eviction_allowed(node, stack)
    eventually(lambda: is_ending(pods, thief), within_s=60)
    (said,) = eventually(lambda: event_messages(node, thief, "VgpuBypassEvicted"), within_s=60)
    assert said.startswith("evicted, as --on-bypass asks: ")
    assert not is_ending(pods, bystander)
