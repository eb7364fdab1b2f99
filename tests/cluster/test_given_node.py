"""What a node that the environment gives can do; here the stand-in is given, as a stranger."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cluster.given_node import COMMANDS, GivenNode, missing
from cluster.gpu_pods import Container, GpuPods, NodeView
from cluster.node_under_test import (
    LOSES_FILES,
    REBOOTS,
    SEES_STARTS,
    STOPS_API,
    STOPS_KUBELET,
    NodeUnderTest,
)
from cluster.stand_in_node import running_stand_in
from peers.proto_messages import ProtoApi
from peers.tiny_plugin import RESOURCE, TinyPlugin
from waiting import eventually

from agent.wire import deviceplugin_pb2

ALL_COMMANDS = {variable: "true" for variables in COMMANDS.values() for variable in variables}


@pytest.fixture
def stranger() -> Iterator[NodeUnderTest]:
    with (
        tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp") as state,
        running_stand_in(Path(state), "1.36") as node,
    ):
        yield node


def environ(node: NodeUnderTest, **more: str) -> Mapping[str, str]:
    return {
        "VGPU_TEST_KUBECONFIG": str(node.agent_kubeconfig),
        "VGPU_TEST_KUBELET_DIR": str(node.kubelet_socket.parents[1]),
    } | more


@pytest.mark.parametrize("variable", ["VGPU_TEST_KUBECONFIG", "VGPU_TEST_KUBELET_DIR"])
def test_a_node_that_is_given_by_half_is_none(variable: str, stranger: NodeUnderTest) -> None:
    assert missing(environ(stranger)) == ""
    assert variable in missing({**environ(stranger), variable: ""})


@pytest.mark.parametrize(
    ("commands", "lacks"),
    [
        pytest.param({}, {STOPS_KUBELET, STOPS_API, REBOOTS}, id="no commands"),
        pytest.param(
            {"VGPU_TEST_KUBELET_STOP": "true"},
            {STOPS_KUBELET, STOPS_API, REBOOTS},
            id="half a pair",
        ),
        pytest.param(
            {"VGPU_TEST_KUBELET_STOP": "true", "VGPU_TEST_KUBELET_START": "true"},
            {STOPS_API, REBOOTS},
            id="kubelet's only",
        ),
        pytest.param(ALL_COMMANDS, set(), id="all commands"),
    ],
)
def test_what_it_can_do_follows_from_the_commands(
    stranger: NodeUnderTest, commands: Mapping[str, str], lacks: set[str]
) -> None:
    node = GivenNode(environ(stranger, **commands))
    assert set(node.why_not) == lacks | {SEES_STARTS}
    assert not node.abilities & set(node.why_not)
    assert node.abilities | set(node.why_not) == {SEES_STARTS, LOSES_FILES, *COMMANDS}
    for ability in lacks:
        assert "not set" in node.why_not[ability]


def test_the_files_of_a_node_that_others_use_are_left_alone(stranger: NodeUnderTest) -> None:
    plugin = TinyPlugin(ProtoApi.of(deviceplugin_pb2.DESCRIPTOR))
    plugins = stranger.kubelet_socket.parent
    with plugin.serving(plugins):
        NodeView(stranger).wait_for_allocatable(2, RESOURCE)
        pods = GpuPods(stranger)
        ours = pods.create(Container(name="main", limits={RESOURCE: "1"}))
        pods.bind(ours)
        pods.wait_for_phase(ours, "Running")
        given = GivenNode(environ(stranger, **ALL_COMMANDS))
        assert LOSES_FILES in given.abilities

        spec = {"nodeName": stranger.name, "containers": pods.read(ours)["spec"]["containers"]}
        path = "/api/v1/namespaces/kube-system/pods"
        stranger.api.request("POST", path, {"metadata": {"name": "theirs"}, "spec": spec})
        eventually(lambda: len(plugin.allocated) == 2)
        given = eventually(
            lambda: (
                (node := GivenNode(environ(stranger, **ALL_COMMANDS))).why_not.get(LOSES_FILES)
                and node
            )
        )
    assert "kube-system/theirs" in given.why_not[LOSES_FILES]
    assert LOSES_FILES not in given.abilities
