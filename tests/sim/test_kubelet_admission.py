"""The stand-in kubelet gives devices to containers as the measured kubelets did."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from toy_plugin import GPU, ToyNode, allocatable, pod, register
from waiting import eventually

from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

both = pytest.mark.parametrize("behaviour", ["1.20", "1.36"])


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyNode]:
    """In a directory with a name so short that sockets fit into it."""
    with ExitStack() as stack:
        yield ToyNode(tmp_path_factory.mktemp("d"), stack)


# --- admission ---------------------------------------------------------------------------------


@both
def test_each_container_gets_one_allocate_in_order_of_start(node: ToyNode, behaviour: str) -> None:
    kubelet, plugin = node(behaviour)
    init = ContainerSpec("init", {GPU: 1})

    result = kubelet.admit(pod("1", 2, 1, inits=(init,)))

    order = [e.detail["container"] for e in kubelet.history("allocate")]
    assert order == ["init", "c0", "c1"]
    assert all(
        len(r.container_requests) == 1 for r in plugin.asked if isinstance(r, dp.AllocateRequest)
    )
    assert [len(result.containers[name].device_ids[GPU]) for name in ("c0", "c1")] == [2, 1]


def test_later_containers_reuse_the_devices_of_init_containers(node: ToyNode) -> None:
    kubelet, plugin = node()
    result = kubelet.admit(pod("1", 1, 1, inits=(ContainerSpec("init", {GPU: 2}),)))

    ids = {name: set(grant.device_ids[GPU]) for name, grant in result.containers.items()}
    assert ids["c0"] | ids["c1"] == ids["init"]
    assert not ids["c0"] & ids["c1"]
    preferences = [r for r in plugin.asked if isinstance(r, dp.PreferredAllocationRequest)]
    assert len(preferences) == 1  # the pool sufficed for the others


def test_sidecars_keep_their_devices(node: ToyNode) -> None:
    kubelet, _ = node()
    result = kubelet.admit(pod("1", 1, inits=(ContainerSpec("side", {GPU: 1}, sidecar=True),)))

    ids = [result.containers[name].device_ids[GPU] for name in ("side", "c0")]
    assert ids[0] != ids[1]


def test_preference_names_the_reused_devices_as_must_include(node: ToyNode) -> None:
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
    node: ToyNode, preferred: list[str], holds: Callable[[set[str]], bool]
) -> None:
    kubelet, plugin = node()
    plugin.prefer = lambda _: preferred

    ids = set(kubelet.admit(pod("1", 2)).containers["c0"].device_ids[GPU])

    assert len(ids) == 2
    assert ids <= set("abcd")
    assert holds(ids)


def test_preference_is_not_asked_for_when_not_announced(node: ToyNode) -> None:
    kubelet, plugin = node(preference=False)

    assert kubelet.admit(pod("1", 1)).ok
    assert [type(r) for r in plugin.asked] == [dp.AllocateRequest]


def test_available_leaves_out_used_and_unhealthy_devices(node: ToyNode) -> None:
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
def test_plugins_words_reach_the_owner_of_the_pod(node: ToyNode, behaviour: str, text: str) -> None:
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
def test_what_is_said_while_the_plugin_is_down(node: ToyNode, behaviour: str, text: str) -> None:
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
def test_faulty_answers_reject_the_pod(node: ToyNode, breakage: dict[str, Any], text: str) -> None:
    kubelet, plugin = node()
    if "preferred_error" in breakage:
        plugin.preferred_error = breakage["preferred_error"]
    else:
        plugin.response = breakage["response"]

    assert text in kubelet.admit(pod("1", 1)).message


def test_too_many_devices_are_refused_with_the_numbers(node: ToyNode) -> None:
    kubelet, _ = node()

    message = kubelet.admit(pod("1", 5)).message

    assert f"unavailable for {GPU}. Requested: 5, Available: 4" in message


def test_devices_of_a_deleted_pod_come_back_with_the_next_admission(node: ToyNode) -> None:
    kubelet, plugin = node()
    kubelet.admit(pod("1", 4))
    kubelet.remove("1")

    assert len(kubelet.resources[GPU].in_use) == 4
    assert kubelet.admit(pod("2", 4)).ok
    assert len(plugin.allocations()) == 2


def test_a_hanging_allocate_blocks_every_other_pod(node: ToyNode) -> None:
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
        thread.join(timeout=60)
    assert results == {"gpu": True, "plain": True}


def test_stop_ends_a_hanging_allocate(node: ToyNode) -> None:
    kubelet, plugin = node()
    plugin.hang.clear()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(kubelet.admit(pod("1", 1)).ok))
    thread.start()
    eventually(plugin.allocations)

    kubelet.stop()

    thread.join(timeout=60)
    assert results == [False]


def test_pod_authors_variables_come_last_and_win(node: ToyNode) -> None:
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


def test_two_resources_of_one_container_first_writer_wins(node: ToyNode) -> None:
    kubelet, _ = node()
    other = node.plugin(kubelet, "other.sock", "x")
    other.response = dp.ContainerAllocateResponse(envs={"FROM": "other", "MORE": "1"})
    register(kubelet, other, "example.com/thing")
    eventually(lambda: allocatable(kubelet, "example.com/thing") == 1)
    spec = ContainerSpec("c", {GPU: 1, "example.com/thing": 1})

    grant = kubelet.admit(PodSpec("1", "default", "p", [spec])).containers["c"]

    assert grant.env["FROM"] in {"plugin", "other"}
    assert grant.env["MORE"] == "1"
    assert [e.detail["key"] for e in kubelet.history("conflict")] == ["FROM"]


def test_pre_start_is_asked_at_every_start_when_wanted(node: ToyNode) -> None:
    kubelet, plugin = node()
    plugin.options.pre_start_required = True
    register(kubelet, plugin)
    kubelet.admit(pod("1", 1))

    kubelet.restart_container("1", "c0")

    assert [type(r) for r in plugin.asked].count(dp.PreStartContainerRequest) == 2
    assert len(plugin.allocations()) == 1


def test_container_that_restarts_on_a_sick_device_gets_the_same_answer(node: ToyNode) -> None:
    kubelet, plugin = node("1.36", ids="ab")
    kubelet.admit(pod("1", 1))
    plugin.set_health({"a": "Unhealthy", "b": rpc.HEALTHY})
    eventually(lambda: allocatable(kubelet) == 1)

    assert kubelet.restart_container("1", "c0").device_ids == {GPU: ("a",)}
