"""The stand-in kubelet registers, restarts and forgets as the measured kubelets did."""

import json
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from toy_plugin import GPU, ToyNode, allocatable, pod, register
from waiting import eventually

from agent.adapters.podresources import PodResourcesClient
from agent.sim.kubelet import ContainerSpec, NodeStatus, PodSpec, StandInKubelet
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

CHECKPOINT = "kubelet_internal_checkpoint"
both = pytest.mark.parametrize("behaviour", ["1.20", "1.36"])


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyNode]:
    """In a directory with a name so short that sockets fit into it."""
    with ExitStack() as stack:
        yield ToyNode(tmp_path_factory.mktemp("d"), stack)


# --- registration ------------------------------------------------------------------------------


@both
def test_registered_plugin_defines_capacity_and_allocatable(node: ToyNode, behaviour: str) -> None:
    kubelet, plugin = node(behaviour)

    plugin.set_health({"a": rpc.HEALTHY, "b": "Unhealthy", "c": "odd"})

    eventually(lambda: allocatable(kubelet) == 1)
    assert kubelet.node_status().capacity[GPU] == 3


@both
@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        pytest.param("v1alpha1", GPU, 'version "v1alpha1" is not supported', id="version"),
        pytest.param("v1beta1", "gpu", 'ResourceName "gpu" is invalid', id="no domain"),
        pytest.param("v1beta1", "kubernetes.io/x", "is invalid", id="kubernetes.io"),
        pytest.param("v1beta1", "requests.a/x", "is invalid", id="requests."),
    ],
)
def test_bad_registration_is_refused_with_kubelets_words(
    tmp_path: Path, behaviour: str, version: str, resource: str, text: str
) -> None:
    with StandInKubelet(tmp_path / "dp", behaviour=behaviour) as kubelet:
        channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
        request = dp.RegisterRequest(version=version, endpoint="x", resource_name=resource)
        with pytest.raises(grpc.RpcError) as refused:
            rpc.REGISTER.client(channel)(request, timeout=60)
        channel.close()

    assert text in refused.value.details()


def test_old_kubelet_answers_before_it_dials(tmp_path: Path) -> None:
    with StandInKubelet(tmp_path / "dp", behaviour="1.20", dial_timeout_s=0.2) as kubelet:
        channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
        request = dp.RegisterRequest(version="v1beta1", endpoint="missing.sock", resource_name=GPU)
        rpc.REGISTER.client(channel)(request, timeout=60)
        channel.close()

        eventually(lambda: kubelet.history("register_failed"))
        assert kubelet.resources == {}


def test_new_kubelet_dials_first_and_says_so_when_it_fails(tmp_path: Path) -> None:
    with StandInKubelet(tmp_path / "dp", behaviour="1.36", dial_timeout_s=0.2) as kubelet:
        channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
        request = dp.RegisterRequest(version="v1beta1", endpoint="missing.sock", resource_name=GPU)
        with pytest.raises(grpc.RpcError) as failed:
            rpc.REGISTER.client(channel)(request, timeout=60)
        channel.close()

    assert failed.value.details() == "failed to dial device plugin: context deadline exceeded"


def test_new_kubelet_refuses_a_plugin_whose_options_fail(node: ToyNode) -> None:
    kubelet = node.stack.enter_context(StandInKubelet(node.directory / "dp"))
    plugin = node.plugin(kubelet, "toy.sock", "a")
    plugin.options_error = "no"

    with pytest.raises(grpc.RpcError, match="failed to get device plugin options"):
        register(kubelet, plugin)


@both
def test_message_over_four_mebibytes_breaks_the_stream(node: ToyNode, behaviour: str) -> None:
    kubelet, plugin = node(behaviour)

    plugin.set_health({f"GPU-{i:060}": rpc.HEALTHY for i in range(60_000)})

    eventually(lambda: allocatable(kubelet) == 0)
    [closed] = kubelet.history("stream_closed")
    assert closed.detail["reason"] == "RESOURCE_EXHAUSTED"


@both
def test_end_of_the_stream_makes_every_device_unhealthy_and_is_not_mended(
    node: ToyNode, behaviour: str
) -> None:
    kubelet, _ = node(behaviour)

    kubelet.drop_stream(GPU)

    eventually(lambda: allocatable(kubelet) == 0)
    assert kubelet.node_status().capacity[GPU] == 4
    assert len(kubelet.history("stream_opened")) == 1


@pytest.mark.parametrize(
    ("behaviour", "left"),
    [
        pytest.param("1.20", 1, id="1.20: the newest wins, the end of the old one is ignored"),
        pytest.param("1.36", 0, id="1.36: the end of the old one disconnects the new one"),
        pytest.param("1.37", 1, id="1.37: all are kept"),
    ],
)
def test_end_of_an_older_registration(node: ToyNode, behaviour: str, left: int) -> None:
    kubelet, old = node(behaviour)
    new = node.plugin(kubelet, "new.sock", "z")
    register(kubelet, new)
    eventually(lambda: kubelet.resources[GPU].healthy == {"z"})

    old.stop()

    eventually(lambda: len(kubelet.history("stream_closed")) == 2 - left)
    eventually(lambda: allocatable(kubelet) == left)
    assert kubelet.resources[GPU].connected == bool(left)


def test_end_of_the_newer_registration(node: ToyNode) -> None:
    """1.37 asks the older plugin again, and lists what the newer one had."""
    kubelet, old = node("1.37")
    new = node.plugin(kubelet, "new.sock", "z")
    register(kubelet, new)
    eventually(lambda: kubelet.resources[GPU].healthy == {"z"})

    new.stop()

    eventually(lambda: len(kubelet.history("stream_closed")) == 1)
    assert kubelet.resources[GPU].healthy == {"z"}
    assert kubelet.admit(PodSpec("u-1", "team", "one", [ContainerSpec("main", {GPU: 1})])).ok
    assert old.allocations() == [["z"]]


def test_a_socket_is_connected_once(node: ToyNode) -> None:
    kubelet, plugin = node("1.37")
    with pytest.raises(grpc.RpcError, match="device plugin already connected"):
        register(kubelet, plugin)


# --- restart -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "survivors"),
    [
        pytest.param("1.20", {CHECKPOINT, "sub"}, id="1.20 wipes every file but its checkpoint"),
        pytest.param("1.36", {CHECKPOINT, "sub", "note"}, id="1.36 wipes only sockets"),
    ],
)
def test_restart_wipes_the_directory(node: ToyNode, behaviour: str, survivors: set[str]) -> None:
    kubelet, plugin = node(behaviour)
    (kubelet.directory / "note").touch()
    (kubelet.directory / "sub").mkdir()
    (kubelet.directory / "sub" / "keep").touch()
    before = kubelet.socket.lstat()

    kubelet.restart()

    found = {path.name for path in kubelet.directory.iterdir()}
    assert found == survivors | {"kubelet.sock"}
    assert (kubelet.directory / "sub" / "keep").exists()
    after = kubelet.socket.lstat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    assert not plugin.socket.exists()


@both
def test_after_restart_the_resource_is_empty_until_its_plugin_is_back(
    node: ToyNode, behaviour: str
) -> None:
    kubelet, _ = node(behaviour)
    kubelet.restart()

    refused = kubelet.admit(pod("1", 1))
    again = node.plugin(kubelet, "again.sock", "a")
    register(kubelet, again)
    eventually(lambda: allocatable(kubelet) == 1)

    assert refused.reason == "UnexpectedAdmissionError"
    assert kubelet.admit(pod("2", 1)).ok


def test_after_restart_nothing_counts_as_told_until_the_api_server_took_it(node: ToyNode) -> None:
    """What the Node object says until then is the status of the kubelet before."""
    took = threading.Event()
    took.set()

    def push(_: NodeStatus) -> bool:
        took.wait(10)
        return True

    kubelet, _ = node(on_node_status=push)
    eventually(lambda: kubelet.told == kubelet.node_status())
    took.clear()
    kubelet.restart()
    assert kubelet.told is None
    took.set()
    eventually(lambda: kubelet.told == NodeStatus({GPU: 0}, {GPU: 0}))


def test_who_reads_the_status_waits_for_nobody_with_the_books_in_hand(
    node: ToyNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admission holds the pods' lock and waits for the books; an event takes the pods' lock."""
    now = 0.0
    kubelet, plugin = node(clock=lambda: now)
    plugin.stop()
    eventually(lambda: allocatable(kubelet) == 0)
    held = []
    note = kubelet._note

    def noted(kind: str, resource: str, detail: Mapping[str, object]) -> None:
        held.append((kind, kubelet._books.lock._is_owned()))
        note(kind, resource, detail)

    monkeypatch.setattr(kubelet, "_note", noted)
    now = 301.0
    kubelet.node_status()
    assert held == [("dropped_resource", False)]


@both
def test_a_killed_kubelet_leaves_a_socket_on_which_nobody_listens(
    node: ToyNode, behaviour: str
) -> None:
    kubelet, plugin = node(behaviour)

    kubelet.stop()

    assert stat.S_ISSOCK(kubelet.socket.lstat().st_mode)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        register(kubelet, plugin)


def test_crash_of_the_registration_server_leaves_streams_alone(node: ToyNode) -> None:
    kubelet, plugin = node()
    before = kubelet.socket.lstat()

    kubelet.restart_registration()

    after = kubelet.socket.lstat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    plugin.set_health({"a": rpc.HEALTHY})
    eventually(lambda: allocatable(kubelet) == 1)


def test_running_pods_keep_their_devices_over_a_restart(node: ToyNode) -> None:
    kubelet, plugin = node()
    given = kubelet.admit(pod("1", 2)).containers["c0"]
    kubelet.restart()
    again = node.plugin(kubelet, "again.sock", "abcd")
    register(kubelet, again)
    eventually(lambda: allocatable(kubelet) == 4)

    other = kubelet.admit(pod("2", 2)).containers["c0"]

    assert kubelet.restart_container("1", "c0") == given
    assert not set(given.device_ids[GPU]) & set(other.device_ids[GPU])
    assert again.allocations() == [sorted(other.device_ids[GPU])]
    assert len(plugin.allocations()) == 1


@pytest.mark.parametrize(
    ("mishap", "found"),
    [
        pytest.param(StandInKubelet.corrupt_checkpoint, "corrupt", id="corrupt"),
        pytest.param(StandInKubelet.delete_checkpoint, "absent", id="deleted"),
    ],
)
def test_lost_checkpoint_makes_used_devices_look_free(
    node: ToyNode, mishap: Callable[[StandInKubelet], None], found: str
) -> None:
    kubelet, _ = node(ids="a")
    assert kubelet.admit(pod("1", 1)).ok
    kubelet.stop()
    mishap(kubelet)
    kubelet.start()
    again = node.plugin(kubelet, "again.sock", "ab")
    register(kubelet, again)
    eventually(lambda: allocatable(kubelet) == 2)

    assert kubelet.history("checkpoint")[-1].detail["found"] == found
    assert kubelet.resources[GPU].in_use == frozenset()
    kubelet.restart_container("1", "c0")  # no record of it: the plugin is asked once more
    assert len(again.allocations()) == 1
    assert len(kubelet.resources[GPU].in_use) == 1


def test_checkpoint_has_kubelets_shape(node: ToyNode) -> None:
    kubelet, _ = node(ids="ab")
    kubelet.admit(pod("1", 1))
    path = kubelet.directory / CHECKPOINT

    data = json.loads(path.read_text())["Data"]

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert data["RegisteredDevices"] == {GPU: ["a", "b"]}
    [entry] = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == ("1", "c0", GPU)
    assert entry["DeviceIDs"] == {"-1": ["a"]}


def test_who_is_gone_is_in_the_checkpoint_until_it_is_written(node: ToyNode) -> None:
    """Asked who holds what, kubelet takes back what they had, but writes at the next list only."""
    kubelet, plugin = node(ids="ab")
    kubelet.admit(pod("1", 1))
    kubelet.remove("1")
    path = kubelet.directory / CHECKPOINT
    assert kubelet.pod_resources_socket
    assert not PodResourcesClient(kubelet.pod_resources_socket).assignments()
    assert json.loads(path.read_text())["Data"]["PodDeviceEntries"]
    plugin.set_health({"a": rpc.HEALTHY})
    eventually(lambda: allocatable(kubelet) == 1)
    assert not json.loads(path.read_text())["Data"]["PodDeviceEntries"]


@pytest.mark.parametrize(
    ("waited_s", "capacity", "reason"),
    [
        pytest.param(299.0, 4, "UnexpectedAdmissionError", id="within five minutes it stays"),
        pytest.param(301.0, 0, f"OutOf{GPU}", id="after five minutes it is gone, the key stays"),
    ],
)
def test_resource_outlives_its_plugin_for_five_minutes(
    node: ToyNode, waited_s: float, capacity: int, reason: str
) -> None:
    now_s = [1000.0]
    kubelet, plugin = node(clock=lambda: now_s[0])
    plugin.stop()
    eventually(lambda: allocatable(kubelet) == 0)

    now_s[0] += waited_s

    assert kubelet.node_status().capacity == {GPU: capacity}
    assert kubelet.admit(pod("1", 1)).reason == reason


# --- PodResources and node status --------------------------------------------------------------


def test_pod_resources_name_the_devices_of_each_container(node: ToyNode) -> None:
    kubelet, _ = node()
    side = ContainerSpec("side", {GPU: 1}, sidecar=True)
    kubelet.admit(pod("1", 1, inits=(side, ContainerSpec("init", {GPU: 1}))))
    channel = rpc.unix_channel(kubelet.pod_resources_socket, max_receive_bytes=1 << 22)

    listed = rpc.LIST_POD_RESOURCES.client(channel)(pr.ListPodResourcesRequest(), timeout=60)
    free = rpc.GET_ALLOCATABLE.client(channel)(pr.AllocatableResourcesRequest(), timeout=60)
    one = rpc.GET_POD_RESOURCES.client(channel)(
        pr.GetPodResourcesRequest(pod_name="pod-1", pod_namespace="default"), timeout=60
    )
    channel.close()

    [found] = listed.pod_resources
    assert one.pod_resources == found
    held = {c.name: [i for d in c.devices for i in d.device_ids] for c in found.containers}
    assert held == {"side": ["a"], "c0": ["b"]}
    assert {i for d in free.devices for i in d.device_ids} == set("abcd")


@pytest.mark.parametrize(
    ("behaviour", "refusal"),
    [
        pytest.param("1.20", "UNIMPLEMENTED", id="1.20 does not know the call"),
        pytest.param("1.22", "UNKNOWN.*\n.*disabled", id="1.22 knows and refuses it"),
    ],
)
def test_old_kubelets_answer_only_list(node: ToyNode, behaviour: str, refusal: str) -> None:
    kubelet, _ = node(behaviour)
    channel = rpc.unix_channel(kubelet.pod_resources_socket, max_receive_bytes=1 << 22)
    call = rpc.GET_ALLOCATABLE.client(channel)
    with pytest.raises(grpc.RpcError, match=refusal):
        call(pr.AllocatableResourcesRequest(), timeout=60)
    channel.close()


def test_node_status_is_pushed_after_each_change(node: ToyNode) -> None:
    pushed: list[NodeStatus] = []

    def takes(status: NodeStatus) -> bool:
        pushed.append(status)
        return True

    _, plugin = node(on_node_status=takes)
    eventually(lambda: pushed and pushed[-1].allocatable == {GPU: 4})

    plugin.stop()

    eventually(lambda: pushed[-1].allocatable == {GPU: 0})
    assert pushed[-1].capacity == {GPU: 4}


def test_node_status_that_did_not_arrive_is_pushed_again(node: ToyNode) -> None:
    refused: list[NodeStatus] = []
    arrived: list[NodeStatus] = []

    def takes(status: NodeStatus) -> bool:
        whole = status.allocatable == {GPU: 4}
        (arrived if len(refused) == 2 else refused if whole else []).append(status)
        return len(arrived) > 0

    node(on_node_status=takes)

    eventually(lambda: arrived)
    assert [one.allocatable for one in (*refused, *arrived)] == [{GPU: 4}] * 3


def test_resource_that_no_plugin_ever_had_is_not_kubelets_business(node: ToyNode) -> None:
    kubelet, _ = node()
    spec = PodSpec("1", "default", "p", [ContainerSpec("c", {"example.com/else": 3})])

    assert kubelet.admit(spec).ok
