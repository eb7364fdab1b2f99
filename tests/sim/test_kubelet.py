"""The stand-in kubelet does what the measured kubelets did, seen by a plugin of a few lines."""

import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from waiting import eventually

from agent.sim.kubelet import ContainerSpec, NodeStatus, PodSpec, StandInKubelet
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

GPU = "nvidia.com/gpu"
CHECKPOINT = "kubelet_internal_checkpoint"
both = pytest.mark.parametrize("behaviour", ["1.20", "1.36"])


def first_ones(request: dp.ContainerPreferredAllocationRequest) -> list[str]:
    must = list(request.must_include_device_ids)
    rest = sorted(set(request.available_device_ids) - set(must))
    return (must + rest)[: request.allocation_size]


class ToyPlugin:
    """Serves devices that the test changes at will and records what it is asked."""

    def __init__(self, socket: Path, ids: list[str], *, preference: bool = True) -> None:
        self.socket = socket
        self.health = dict.fromkeys(ids, rpc.HEALTHY)
        self.options = dp.DevicePluginOptions(get_preferred_allocation_available=preference)
        self.asked: list[Any] = []
        self.metadata: list[Any] = []
        self.allocate_error = ""
        self.preferred_error = ""
        self.options_error = ""
        self.prefer: Callable[[Any], list[str]] = first_ones
        self.response: Any = dp.ContainerAllocateResponse(envs={"FROM": "plugin"})
        self.hang = threading.Event()
        self.hang.set()
        self.changed = threading.Condition()
        self.closing = False
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[rpc.device_plugin_handler(self)])
        self.server.add_insecure_port(rpc.unix_target(socket))
        self.server.start()

    def get_device_plugin_options(self, _: dp.Empty, context: Any) -> dp.DevicePluginOptions:
        if self.options_error:
            context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    def list_and_watch(self, _: dp.Empty, context: Any) -> Iterator[dp.ListAndWatchResponse]:
        context.add_callback(self.wake)
        while context.is_active() and not self.closing:
            sent = dict(self.health)
            yield dp.ListAndWatchResponse(
                devices=[dp.Device(id=i, health=h) for i, h in sent.items()]
            )
            with self.changed:
                while self.health == sent and not self.closing and context.is_active():
                    self.changed.wait()

    def get_preferred_allocation(
        self, request: dp.PreferredAllocationRequest, context: Any
    ) -> dp.PreferredAllocationResponse:
        self.asked.append(request)
        if self.preferred_error:
            context.abort(grpc.StatusCode.INTERNAL, self.preferred_error)
        ids = self.prefer(request.container_requests[0])
        answer = dp.ContainerPreferredAllocationResponse(device_ids=ids)
        return dp.PreferredAllocationResponse(container_responses=[answer])

    def allocate(self, request: dp.AllocateRequest, context: Any) -> dp.AllocateResponse:
        self.asked.append(request)
        self.hang.wait()
        if self.allocate_error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        answers = [self.response] if self.response else []
        return dp.AllocateResponse(container_responses=answers)

    def pre_start_container(
        self, request: dp.PreStartContainerRequest, _: Any
    ) -> dp.PreStartContainerResponse:
        self.asked.append(request)
        return dp.PreStartContainerResponse()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def set_health(self, health: dict[str, str]) -> None:
        self.health = health
        self.wake()

    def allocations(self) -> list[list[str]]:
        return [
            sorted(r.container_requests[0].device_ids)
            for r in self.asked
            if isinstance(r, dp.AllocateRequest)
        ]

    def stop(self) -> None:
        self.closing = True
        self.hang.set()
        self.wake()
        self.server.stop(None).wait()


def register(kubelet: StandInKubelet, plugin: ToyPlugin, resource: str = GPU) -> None:
    request = dp.RegisterRequest(
        version="v1beta1",
        endpoint=plugin.socket.name,
        resource_name=resource,
        options=plugin.options,
    )
    channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
    try:
        rpc.REGISTER.client(channel)(request, timeout=20)
    finally:
        channel.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def node(tmp_path: Path, stack: ExitStack) -> Callable[..., tuple[StandInKubelet, ToyPlugin]]:
    """A started kubelet with one registered plugin of four devices."""

    def build(
        behaviour: str = "1.36", ids: str = "abcd", *, preference: bool = True, **options: Any
    ) -> tuple[StandInKubelet, ToyPlugin]:
        kubelet = stack.enter_context(
            StandInKubelet(tmp_path / "dp", tmp_path / "pr", behaviour=behaviour, **options)
        )
        plugin = ToyPlugin(kubelet.directory / "toy.sock", list(ids), preference=preference)
        stack.callback(plugin.stop)
        register(kubelet, plugin)
        eventually(lambda: allocatable(kubelet) == len(ids))
        return kubelet, plugin

    return build


def allocatable(kubelet: StandInKubelet, resource: str = GPU) -> int | None:
    return kubelet.node_status().allocatable.get(resource)


def pod(uid: str, *counts: int, inits: tuple[ContainerSpec, ...] = ()) -> PodSpec:
    containers = [ContainerSpec(f"c{i}", {GPU: count}) for i, count in enumerate(counts)]
    return PodSpec(uid, "default", f"pod-{uid}", containers, inits)


# --- registration ------------------------------------------------------------------------------


@both
def test_registered_plugin_defines_capacity_and_allocatable(node: Any, behaviour: str) -> None:
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
            rpc.REGISTER.client(channel)(request, timeout=10)
        channel.close()

    assert text in refused.value.details()


def test_old_kubelet_answers_before_it_dials(tmp_path: Path) -> None:
    with StandInKubelet(tmp_path / "dp", behaviour="1.20", dial_timeout_s=0.2) as kubelet:
        channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
        request = dp.RegisterRequest(version="v1beta1", endpoint="missing.sock", resource_name=GPU)
        rpc.REGISTER.client(channel)(request, timeout=10)
        channel.close()

        eventually(lambda: kubelet.history("register_failed"))
        assert kubelet.resources == {}


def test_new_kubelet_dials_first_and_says_so_when_it_fails(tmp_path: Path) -> None:
    with StandInKubelet(tmp_path / "dp", behaviour="1.36", dial_timeout_s=0.2) as kubelet:
        channel = rpc.unix_channel(kubelet.socket, max_receive_bytes=1 << 22)
        request = dp.RegisterRequest(version="v1beta1", endpoint="missing.sock", resource_name=GPU)
        with pytest.raises(grpc.RpcError) as failed:
            rpc.REGISTER.client(channel)(request, timeout=10)
        channel.close()

    assert failed.value.details() == "failed to dial device plugin: context deadline exceeded"


def test_new_kubelet_refuses_a_plugin_whose_options_fail(tmp_path: Path, stack: ExitStack) -> None:
    kubelet = stack.enter_context(StandInKubelet(tmp_path / "dp"))
    plugin = ToyPlugin(kubelet.directory / "toy.sock", ["a"])
    stack.callback(plugin.stop)
    plugin.options_error = "no"

    with pytest.raises(grpc.RpcError, match="failed to get device plugin options"):
        register(kubelet, plugin)


@both
def test_message_over_four_mebibytes_breaks_the_stream(node: Any, behaviour: str) -> None:
    kubelet, plugin = node(behaviour)

    plugin.set_health({f"GPU-{i:060}": rpc.HEALTHY for i in range(60_000)})

    eventually(lambda: allocatable(kubelet) == 0)
    [closed] = kubelet.history("stream_closed")
    assert closed.detail["reason"] == "RESOURCE_EXHAUSTED"


@both
def test_end_of_the_stream_makes_every_device_unhealthy_and_is_not_mended(
    node: Any, behaviour: str
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
    ],
)
def test_end_of_an_older_registration(
    node: Any, stack: ExitStack, behaviour: str, left: int
) -> None:
    kubelet, old = node(behaviour)
    new = ToyPlugin(kubelet.directory / "new.sock", ["z"])
    stack.callback(new.stop)
    register(kubelet, new)
    eventually(lambda: kubelet.resources[GPU].healthy == {"z"})

    old.stop()

    eventually(lambda: len(kubelet.history("stream_closed")) == 2 - left)
    eventually(lambda: allocatable(kubelet) == left)
    assert kubelet.resources[GPU].connected == bool(left)


# --- restart -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "survivors"),
    [
        pytest.param("1.20", {CHECKPOINT, "sub"}, id="1.20 wipes every file but its checkpoint"),
        pytest.param("1.36", {CHECKPOINT, "sub", "note"}, id="1.36 wipes only sockets"),
    ],
)
def test_restart_wipes_the_directory(node: Any, behaviour: str, survivors: set[str]) -> None:
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
    node: Any, stack: ExitStack, behaviour: str
) -> None:
    kubelet, _ = node(behaviour)
    kubelet.restart()

    refused = kubelet.admit(pod("1", 1))
    again = ToyPlugin(kubelet.directory / "again.sock", ["a"])
    stack.callback(again.stop)
    register(kubelet, again)
    eventually(lambda: allocatable(kubelet) == 1)

    assert refused.reason == "UnexpectedAdmissionError"
    assert kubelet.admit(pod("2", 1)).ok


@both
def test_a_killed_kubelet_leaves_a_socket_on_which_nobody_listens(
    node: Any, behaviour: str
) -> None:
    kubelet, plugin = node(behaviour)

    kubelet.stop()

    assert stat.S_ISSOCK(kubelet.socket.lstat().st_mode)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        register(kubelet, plugin)


def test_crash_of_the_registration_server_leaves_streams_alone(node: Any) -> None:
    kubelet, plugin = node()
    before = kubelet.socket.lstat()

    kubelet.restart_registration()

    after = kubelet.socket.lstat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    plugin.set_health({"a": rpc.HEALTHY})
    eventually(lambda: allocatable(kubelet) == 1)


def test_running_pods_keep_their_devices_over_a_restart(node: Any, stack: ExitStack) -> None:
    kubelet, plugin = node()
    given = kubelet.admit(pod("1", 2)).containers["c0"]
    kubelet.restart()
    again = ToyPlugin(kubelet.directory / "again.sock", list("abcd"))
    stack.callback(again.stop)
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
    node: Any, stack: ExitStack, mishap: Callable[[StandInKubelet], None], found: str
) -> None:
    kubelet, _ = node(ids="a")
    assert kubelet.admit(pod("1", 1)).ok
    kubelet.stop()
    mishap(kubelet)
    kubelet.start()
    again = ToyPlugin(kubelet.directory / "again.sock", ["a", "b"])
    stack.callback(again.stop)
    register(kubelet, again)
    eventually(lambda: allocatable(kubelet) == 2)

    assert kubelet.history("checkpoint")[-1].detail["found"] == found
    assert kubelet.resources[GPU].in_use == frozenset()
    kubelet.restart_container("1", "c0")  # no record of it: the plugin is asked once more
    assert len(again.allocations()) == 1
    assert len(kubelet.resources[GPU].in_use) == 1


def test_checkpoint_has_kubelets_shape(node: Any) -> None:
    kubelet, _ = node(ids="ab")
    kubelet.admit(pod("1", 1))
    path = kubelet.directory / CHECKPOINT

    data = json.loads(path.read_text())["Data"]

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert data["RegisteredDevices"] == {GPU: ["a", "b"]}
    [entry] = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == ("1", "c0", GPU)
    assert entry["DeviceIDs"] == {"-1": ["a"]}


@pytest.mark.parametrize(
    ("waited_s", "capacity", "reason"),
    [
        pytest.param(299.0, 4, "UnexpectedAdmissionError", id="within five minutes it stays"),
        pytest.param(301.0, 0, f"OutOf{GPU}", id="after five minutes it is gone, the key stays"),
    ],
)
def test_resource_outlives_its_plugin_for_five_minutes(
    node: Any, waited_s: float, capacity: int, reason: str
) -> None:
    now_s = [1000.0]
    kubelet, plugin = node(clock=lambda: now_s[0])
    plugin.stop()
    eventually(lambda: allocatable(kubelet) == 0)

    now_s[0] += waited_s

    assert kubelet.node_status().capacity == {GPU: capacity}
    assert kubelet.admit(pod("1", 1)).reason == reason


# --- admission ---------------------------------------------------------------------------------


@both
def test_each_container_gets_one_allocate_in_order_of_start(node: Any, behaviour: str) -> None:
    kubelet, plugin = node(behaviour)
    init = ContainerSpec("init", {GPU: 1})

    result = kubelet.admit(pod("1", 2, 1, inits=(init,)))

    order = [e.detail["container"] for e in kubelet.history("allocate")]
    assert order == ["init", "c0", "c1"]
    assert all(
        len(r.container_requests) == 1 for r in plugin.asked if isinstance(r, dp.AllocateRequest)
    )
    assert [len(result.containers[name].device_ids[GPU]) for name in ("c0", "c1")] == [2, 1]


def test_later_containers_reuse_the_devices_of_init_containers(node: Any) -> None:
    kubelet, plugin = node()
    result = kubelet.admit(pod("1", 1, 1, inits=(ContainerSpec("init", {GPU: 2}),)))

    ids = {name: set(grant.device_ids[GPU]) for name, grant in result.containers.items()}
    assert ids["c0"] | ids["c1"] == ids["init"]
    assert not ids["c0"] & ids["c1"]
    preferences = [r for r in plugin.asked if isinstance(r, dp.PreferredAllocationRequest)]
    assert len(preferences) == 1  # the pool sufficed for the others


def test_sidecars_keep_their_devices(node: Any) -> None:
    kubelet, _ = node()
    result = kubelet.admit(pod("1", 1, inits=(ContainerSpec("side", {GPU: 1}, sidecar=True),)))

    ids = [result.containers[name].device_ids[GPU] for name in ("side", "c0")]
    assert ids[0] != ids[1]


def test_preference_names_the_reused_devices_as_must_include(node: Any) -> None:
    kubelet, plugin = node()
    kubelet.admit(pod("1", 3, inits=(ContainerSpec("init", {GPU: 1}),)))

    [first, second] = [r for r in plugin.asked if isinstance(r, dp.PreferredAllocationRequest)]
    assert sorted(first.container_requests[0].available_device_ids) == ["a", "b", "c", "d"]
    asked = second.container_requests[0]
    assert (list(asked.must_include_device_ids), asked.allocation_size) == (["a"], 3)
    assert set(asked.must_include_device_ids) <= set(asked.available_device_ids)


@pytest.mark.parametrize(
    ("preferred", "holds"),
    [
        pytest.param(["d", "c"], lambda ids: ids == {"c", "d"}, id="followed"),
        pytest.param(["d"], lambda ids: "d" in ids, id="too short: topped up"),
        pytest.param(["x", "d"], lambda ids: "d" in ids and "x" not in ids, id="unknown: ignored"),
        pytest.param(["b", "c", "d"], lambda ids: "a" not in ids, id="too long: some of it"),
        pytest.param([], lambda _: True, id="empty: kubelet's own choice"),
    ],
)
def test_preference_is_a_hint(
    node: Any, preferred: list[str], holds: Callable[[set[str]], bool]
) -> None:
    kubelet, plugin = node()
    plugin.prefer = lambda _: preferred

    ids = set(kubelet.admit(pod("1", 2)).containers["c0"].device_ids[GPU])

    assert len(ids) == 2
    assert ids <= set("abcd")
    assert holds(ids)


def test_preference_is_not_asked_for_when_not_announced(node: Any) -> None:
    kubelet, plugin = node(preference=False)

    assert kubelet.admit(pod("1", 1)).ok
    assert [type(r) for r in plugin.asked] == [dp.AllocateRequest]


def test_available_leaves_out_used_and_unhealthy_devices(node: Any) -> None:
    kubelet, plugin = node()
    kubelet.admit(pod("1", 1))
    plugin.set_health(dict.fromkeys("abc", rpc.HEALTHY) | {"d": "Unhealthy"})
    eventually(lambda: allocatable(kubelet) == 3)

    kubelet.admit(pod("2", 1))

    asked = [r for r in plugin.asked if isinstance(r, dp.PreferredAllocationRequest)][-1]
    assert sorted(asked.container_requests[0].available_device_ids) == ["b", "c"]


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        pytest.param(
            "1.20",
            "Pod Allocate failed due to rpc error: code = FailedPrecondition desc = buy more, "
            "which is unexpected",
            id="1.20",
        ),
        pytest.param(
            "1.36",
            "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition "
            "desc = buy more, which is unexpected",
            id="1.36",
        ),
    ],
)
def test_plugins_words_reach_the_owner_of_the_pod(node: Any, behaviour: str, text: str) -> None:
    kubelet, plugin = node(behaviour)
    plugin.allocate_error = "buy more"

    result = kubelet.admit(pod("1", 1))

    assert (result.ok, result.reason, result.message) == (False, "UnexpectedAdmissionError", text)
    plugin.allocate_error = ""
    assert kubelet.admit(pod("2", 4)).ok  # nothing stays reserved


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        pytest.param(
            "1.20", f"devices unavailable for {GPU}. Requested: 1, Available: 0", id="1.20"
        ),
        pytest.param("1.36", f"cannot allocate unhealthy devices {GPU}", id="1.36"),
    ],
)
def test_what_is_said_while_the_plugin_is_down(node: Any, behaviour: str, text: str) -> None:
    kubelet, plugin = node(behaviour)
    plugin.stop()
    eventually(lambda: allocatable(kubelet) == 0)

    assert text in kubelet.admit(pod("1", 1)).message


@pytest.mark.parametrize(
    ("breakage", "text"),
    [
        pytest.param(
            {"preferred_error": "hm"}, "GetPreferredAllocation rpc failed", id="preference"
        ),
        pytest.param({"response": None}, "no containers return in allocation", id="no answer"),
    ],
)
def test_faulty_answers_reject_the_pod(node: Any, breakage: dict[str, Any], text: str) -> None:
    kubelet, plugin = node()
    if "preferred_error" in breakage:
        plugin.preferred_error = breakage["preferred_error"]
    else:
        plugin.response = breakage["response"]

    assert text in kubelet.admit(pod("1", 1)).message


def test_too_many_devices_are_refused_with_the_numbers(node: Any) -> None:
    kubelet, _ = node()

    message = kubelet.admit(pod("1", 5)).message

    assert f"unavailable for {GPU}. Requested: 5, Available: 4" in message


def test_devices_of_a_deleted_pod_come_back_with_the_next_admission(node: Any) -> None:
    kubelet, plugin = node()
    kubelet.admit(pod("1", 4))
    kubelet.remove("1")

    assert len(kubelet.resources[GPU].in_use) == 4
    assert kubelet.admit(pod("2", 4)).ok
    assert len(plugin.allocations()) == 2


def test_a_hanging_allocate_blocks_every_other_pod(node: Any) -> None:
    kubelet, plugin = node()
    plugin.hang.clear()
    results: dict[str, bool] = {}

    def admit(spec: PodSpec) -> None:
        results[spec.uid] = kubelet.admit(spec).ok

    threads = [
        threading.Thread(target=admit, args=(spec,))
        for spec in (pod("gpu", 1), PodSpec("plain", "default", "plain", [ContainerSpec("c")]))
    ]
    threads[0].start()
    eventually(plugin.allocations)
    threads[1].start()
    time.sleep(0.1)
    assert results == {}
    plugin.hang.set()
    for thread in threads:
        thread.join(timeout=10)
    assert results == {"gpu": True, "plain": True}


def test_stop_ends_a_hanging_allocate(node: Any) -> None:
    kubelet, plugin = node()
    plugin.hang.clear()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(kubelet.admit(pod("1", 1)).ok))
    thread.start()
    eventually(plugin.allocations)

    kubelet.stop()

    thread.join(timeout=10)
    assert results == [False]


def test_pod_authors_variables_come_last_and_win(node: Any) -> None:
    kubelet, plugin = node()
    plugin.response.envs["LIMIT"] = "1000m"
    plugin.response.mounts.add(container_path="/c", host_path="/h", read_only=True)
    plugin.response.devices.add(container_path="/dev/x", host_path="/dev/y", permissions="rw")
    plugin.response.annotations["k"] = "v"
    plugin.response.cdi_devices.add(name="a/b=c")
    spec = ContainerSpec("c", {GPU: 1}, {"LIMIT": "0m", "OWN": "1"})

    grant = kubelet.admit(PodSpec("1", "default", "p", [spec])).containers["c"]

    assert [value for key, value in grant.cri_env if key == "LIMIT"] == ["1000m", "0m"]
    assert grant.env == {"FROM": "plugin", "LIMIT": "0m", "OWN": "1"}
    [mount], [device] = grant.mounts, grant.devices
    assert (mount.container_path, mount.host_path, mount.read_only) == ("/c", "/h", True)
    assert (device.container_path, device.host_path) == ("/dev/x", "/dev/y")
    assert (dict(grant.annotations), grant.cdi_devices) == ({"k": "v"}, ("a/b=c",))


def test_two_resources_of_one_container_first_writer_wins(node: Any, stack: ExitStack) -> None:
    kubelet, _ = node()
    other = ToyPlugin(kubelet.directory / "other.sock", ["x"])
    stack.callback(other.stop)
    other.response = dp.ContainerAllocateResponse(envs={"FROM": "other", "MORE": "1"})
    register(kubelet, other, "example.com/thing")
    eventually(lambda: allocatable(kubelet, "example.com/thing") == 1)
    spec = ContainerSpec("c", {GPU: 1, "example.com/thing": 1})

    grant = kubelet.admit(PodSpec("1", "default", "p", [spec])).containers["c"]

    assert grant.env["FROM"] in {"plugin", "other"}
    assert grant.env["MORE"] == "1"
    assert [e.detail["key"] for e in kubelet.history("conflict")] == ["FROM"]


def test_pre_start_is_asked_at_every_start_when_wanted(node: Any) -> None:
    kubelet, plugin = node()
    plugin.options.pre_start_required = True
    register(kubelet, plugin)
    kubelet.admit(pod("1", 1))

    kubelet.restart_container("1", "c0")

    assert [type(r) for r in plugin.asked].count(dp.PreStartContainerRequest) == 2
    assert len(plugin.allocations()) == 1


def test_container_that_restarts_on_a_sick_device_gets_the_same_answer(node: Any) -> None:
    kubelet, plugin = node("1.36", ids="ab")
    kubelet.admit(pod("1", 1))
    plugin.set_health({"a": "Unhealthy", "b": rpc.HEALTHY})
    eventually(lambda: allocatable(kubelet) == 1)

    assert kubelet.restart_container("1", "c0").device_ids == {GPU: ("a",)}


# --- PodResources and node status --------------------------------------------------------------


def test_pod_resources_name_the_devices_of_each_container(node: Any) -> None:
    kubelet, _ = node()
    side = ContainerSpec("side", {GPU: 1}, sidecar=True)
    kubelet.admit(pod("1", 1, inits=(side, ContainerSpec("init", {GPU: 1}))))
    channel = rpc.unix_channel(kubelet.pod_resources_socket, max_receive_bytes=1 << 22)

    listed = rpc.LIST_POD_RESOURCES.client(channel)(pr.ListPodResourcesRequest(), timeout=10)
    free = rpc.GET_ALLOCATABLE.client(channel)(pr.AllocatableResourcesRequest(), timeout=10)
    one = rpc.GET_POD_RESOURCES.client(channel)(
        pr.GetPodResourcesRequest(pod_name="pod-1", pod_namespace="default"), timeout=10
    )
    channel.close()

    [found] = listed.pod_resources
    assert one.pod_resources == found
    held = {c.name: [i for d in c.devices for i in d.device_ids] for c in found.containers}
    assert held == {"side": ["a"], "c0": ["b"]}
    assert {i for d in free.devices for i in d.device_ids} == set("abcd")


def test_old_kubelet_knows_only_list(node: Any) -> None:
    kubelet, _ = node("1.20")
    channel = rpc.unix_channel(kubelet.pod_resources_socket, max_receive_bytes=1 << 22)
    call = rpc.GET_ALLOCATABLE.client(channel)
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        call(pr.AllocatableResourcesRequest(), timeout=10)
    channel.close()


def test_node_status_is_pushed_after_each_change(node: Any) -> None:
    pushed: list[NodeStatus] = []
    _, plugin = node(on_node_status=pushed.append)
    eventually(lambda: pushed and pushed[-1].allocatable == {GPU: 4})

    plugin.stop()

    eventually(lambda: pushed[-1].allocatable == {GPU: 0})
    assert pushed[-1].capacity == {GPU: 4}


def test_resource_that_no_plugin_ever_had_is_not_kubelets_business(node: Any) -> None:
    kubelet, _ = node()
    spec = PodSpec("1", "default", "p", [ContainerSpec("c", {"example.com/else": 3})])

    assert kubelet.admit(spec).ok
