"""Do the nodes behave alike, and as the cases assume? With a tiny plugin instead of the agent.

What holds on a real kubelet holds on the stand-in here, or the stand-in is wrong.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.gpu_pods import Container, GpuPod, GpuPods, NodeView
from cluster.node_under_test import (
    ENDS_CONTAINERS,
    SEES_CONTAINERS,
    STOPS_API,
    STOPS_KUBELET,
    NodeUnderTest,
)
from cluster.pod_resources import assigned_ids
from peers.build_peers import available, default_cache
from peers.node import PeerNode
from peers.proto_messages import ProtoApi
from peers.tiny_plugin import RESOURCE, TinyPlugin
from waiting import eventually


@pytest.fixture
def plugin(view: NodeView) -> Iterator[TinyPlugin]:
    built = available(default_cache())
    if built is None:
        pytest.skip("upstream's messages come with the real peers: run `build.py cluster-peers`")
    yield TinyPlugin(ProtoApi(built.descriptors("deviceplugin"), "v1beta1"))
    view.wait_for_allocatable(0, RESOURCE)


def start_pod(pods: GpuPods, **env: str) -> GpuPod:
    pod = pods.create(Container(name="main", env=env, limits={RESOURCE: "1"}))
    pods.bind(pod)
    return pod


@pytest.mark.needs(SEES_CONTAINERS)
def test_what_a_plugin_grants_reaches_the_container_before_its_own_env(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods, MINE="1")
        pods.wait_for_phase(pod, "Running")
    (ids,) = plugin.allocated
    (started,) = node.containers(pod.uid, "main")
    assert started.env == (("THINGS", ids[0]), ("MINE", "1"))
    assert started.mounts == (("/thing", "/dev/null", True),)
    assert started.devices == (("/dev/thing", "/dev/null", "rw"),)
    assert started.annotations == {"example.com/things": "1"}


@pytest.mark.needs(SEES_CONTAINERS, ENDS_CONTAINERS)
def test_a_container_that_is_started_again_gets_the_same_and_nobody_is_asked(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods)
        pods.wait_for_phase(pod, "Running")
        node.end_container(pod.uid, "main", 1)
        eventually(lambda: len(node.containers(pod.uid, "main")) == 2, within_s=30)
    first, second = node.containers(pod.uid, "main")
    assert second.gives_the_same_as(first)
    assert len(plugin.allocated) == 1


def test_a_refusal_is_shown_to_the_owner_of_the_pod(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    plugin.refusal = "no: ask for less"
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        status = pods.wait_for_phase(start_pod(pods), "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    said = "rpc error: code = FailedPrecondition desc = no: ask for less, which is unexpected"
    assert f"Allocate failed due to {said}" in status["message"]


def test_kubelet_tells_which_devices_a_pod_has(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods)
        pods.wait_for_phase(pod, "Running")
        (ids,) = plugin.allocated
        assert assigned_ids(node, pod, "main", RESOURCE) == ids


@pytest.mark.needs(STOPS_KUBELET)
def test_a_restart_of_kubelet_removes_the_socket_and_spares_the_pod(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    plugins = node.kubelet_socket.parent
    with plugin.serving(plugins):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods)
        pods.wait_for_phase(pod, "Running")
        node.stop_kubelet()
        node.start_kubelet()
        eventually(lambda: not (plugins / "tiny.sock").exists())
        view.wait_for_allocatable(0, RESOURCE)
    with plugin.serving(plugins):
        view.wait_for_allocatable(2, RESOURCE)
    assert pods.status(pod)["phase"] == "Running"
    assert len(plugin.allocated) == 1


def test_a_plugin_that_leaves_takes_its_devices_along_but_not_the_resource(
    node: NodeUnderTest, view: NodeView, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
    view.wait_for_allocatable(0, RESOURCE)
    assert view.capacity(RESOURCE) == 2


@pytest.mark.needs(STOPS_API)
def test_kubelet_does_not_care_for_an_absence_of_the_api_server(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    node.stop_api()
    with plugin.serving(node.kubelet_socket.parent):
        eventually(lambda: plugin.streams == 1, within_s=30)
        node.start_api()
        view.wait_for_allocatable(2, RESOURCE)
        pods.wait_for_phase(start_pod(pods), "Running")


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_a_real_kubelet_changes_nothing_on_this_machine(
    knobs_before: dict[Path, str], peer_node: PeerNode
) -> None:
    assert {knob: knob.read_text() for knob in knobs_before} == knobs_before
    assert str(peer_node.state) not in Path("/proc/self/mountinfo").read_text()
    assert not list(Path("/var/log").glob("pods/default_*"))
    # It did try: this is what a kubelet sets.
    assert (peer_node.state / "knobs" / "kernel.panic").read_text().strip() == "10"
