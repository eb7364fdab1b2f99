"""Do the nodes behave alike, and as the cases assume? With a tiny plugin instead of the agent.

What holds on a real kubelet holds on the stand-in here, or the stand-in is wrong.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster.checkpoint import CHECKPOINT, given_to, read_assignments
from cluster.gpu_pods import Container, GpuPod, GpuPods, NodeView
from cluster.node_under_test import (
    SEES_STARTS,
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

from agent.wire import deviceplugin_pb2


@pytest.fixture
def plugin(view: NodeView) -> Iterator[TinyPlugin]:
    built = available(default_cache())
    if built is None:  # upstream's own messages come with the peers
        api = ProtoApi.of(deviceplugin_pb2.DESCRIPTOR)
    else:
        api = ProtoApi.read(built.descriptors("deviceplugin"), "v1beta1")
    yield TinyPlugin(api)
    view.wait_for_allocatable(0, RESOURCE)


def start_pod(pods: GpuPods, *, command: Sequence[str] = ("sleep", "3600"), **env: str) -> GpuPod:
    main = Container(name="main", env=env, limits={RESOURCE: "1"}, command=command)
    pod = pods.create(main)
    pods.bind(pod)
    return pod


@pytest.mark.needs(SEES_STARTS)
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


@pytest.mark.needs(SEES_STARTS)
def test_kubelets_checkpoint_tells_what_a_container_was_started_with(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    """Which is what a given node is asked instead of its runtime."""
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods)
        pods.wait_for_phase(pod, "Running")
    books = read_assignments(node.kubelet_socket.with_name(CHECKPOINT).read_bytes())
    (started,) = node.containers(pod.uid, "main")
    assert started.mounts
    assert given_to(books, pod.uid, "main").gives_the_same_as(started)
    (found,) = (a for a in books if a.pod_uid == pod.uid)
    assert (found.container, found.resource) == ("main", RESOURCE)
    assert [list(found.device_ids)] == plugin.allocated


def test_what_a_plugin_grants_reaches_the_container(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods)
        pods.wait_for_phase(pod, "Running")
    (ids,) = plugin.allocated
    (started,) = node.containers(pod.uid, "main")
    assert started.env == (("THINGS", ids[0]),)
    assert started.mounts == (("/thing", "/dev/null", True),)
    assert started.devices == (("/dev/thing", "/dev/null", "rw"),)
    assert started.annotations == {"example.com/things": "1"}


def test_a_container_that_is_started_again_gets_the_same_and_nobody_is_asked(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, plugin: TinyPlugin
) -> None:
    with plugin.serving(node.kubelet_socket.parent):
        view.wait_for_allocatable(2, RESOURCE)
        pod = start_pod(pods, command=["sleep", "2"])
        pods.wait_for_phase(pod, "Running")
        before = len(node.containers(pod.uid, "main"))
        eventually(lambda: len(node.containers(pod.uid, "main")) > before, within_s=60)
    first, *_, last = node.containers(pod.uid, "main")
    assert first.mounts
    assert last.gives_the_same_as(first)
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
        eventually(lambda: plugin.streams == 1, within_s=60)
        node.start_api()
        view.wait_for_allocatable(2, RESOURCE)
        pods.wait_for_phase(start_pod(pods), "Running")


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_real_kubelet_changes_nothing_on_this_machine(
    knobs_before: dict[Path, str], peer_node: PeerNode
) -> None:
    assert {knob: knob.read_text() for knob in knobs_before} == knobs_before
    assert str(peer_node.state) not in Path("/proc/self/mountinfo").read_text()
    assert not list(Path("/var/log").glob("pods/default_*"))
    # It did try: this is what a kubelet sets.
    assert (peer_node.state / "knobs" / "kernel.panic").read_text().strip() == "10"
