"""Reading kubelet's assignments, and finding out that it lost its books, over a real socket."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from plugin_bed import EnvPerVgpu
from toy_plugin import ToyPlugin
from toy_plugin import register as register_toy
from waiting import eventually

from agent.adapters.device_plugin import Answers
from agent.adapters.kubelet import KubeletLink
from agent.adapters.podresources import PodResourcesClient
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Grant, GrantRecord
from agent.domain.ownership import HeldDevice
from agent.domain.pods import Container, Pod
from agent.domain.vgpu_ids import advertised
from agent.errors import KubeletUnavailable
from agent.ports import KubeletAssignment
from agent.services.published import PodTable, Published
from agent.services.reconcile import compare
from agent.sim.kubelet import ContainerSpec, PodSpec, StandInKubelet
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

GPU = "nvidia.com/gpu"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture(params=["1.20", "1.22", "1.36"])
def kubelet(request: pytest.FixtureRequest, directory: Path, stack: ExitStack) -> StandInKubelet:
    return stack.enter_context(
        StandInKubelet(directory / "dp", directory / "pr", behaviour=request.param)
    )


def register(kubelet: StandInKubelet, stack: ExitStack) -> None:
    inventory = Published(
        GpuInventory.of([Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=1024)])
    )
    everything = EnvPerVgpu()
    sharing = Sharing(split_count=4)
    answers = Answers(inventory, lambda now: advertised(now, sharing), everything, everything)
    link = KubeletLink(kubelet.socket, GPU, answers)
    link.serve(lambda _: None)
    stack.callback(link.close)
    link.register()
    eventually(lambda: kubelet.node_status().allocatable.get(GPU) == 4)


def client(kubelet: StandInKubelet) -> PodResourcesClient:
    assert kubelet.pod_resources_socket is not None
    return PodResourcesClient(kubelet.pod_resources_socket)


def pod(uid: str, count: int) -> PodSpec:
    return PodSpec(uid, "ns", f"pod-{uid}", [ContainerSpec("c", {GPU: count}), ContainerSpec("d")])


def test_assignments_are_told_by_container(kubelet: StandInKubelet, stack: ExitStack) -> None:
    register(kubelet, stack)
    given = kubelet.admit(pod("1", 3)).containers["c"].device_ids[GPU]

    assert client(kubelet).assignments() == (
        KubeletAssignment("ns", "pod-1", "c", GPU, tuple(sorted(given))),
    )


def test_pods_without_devices_are_listed_too(kubelet: StandInKubelet, stack: ExitStack) -> None:
    register(kubelet, stack)
    kubelet.admit(pod("1", 1))
    kubelet.admit(pod("2", 0))
    kubelet.admit(
        PodSpec("3", "ns", "init-only", [ContainerSpec("d")], [ContainerSpec("i", {GPU: 1})])
    )

    listed = client(kubelet).pod_list()
    assert listed.pods == {("ns", "pod-1"), ("ns", "pod-2"), ("ns", "init-only")}
    assert [one.pod_name for one in listed.assignments] == ["pod-1"]


def test_lost_checkpoint_is_found_out(kubelet: StandInKubelet, stack: ExitStack) -> None:
    register(kubelet, stack)
    given = kubelet.admit(pod("1", 1)).containers["c"].device_ids[GPU]
    record = GrantRecord(
        pod_uid="1",
        namespace="ns",
        pod_name="pod-1",
        container="c",
        device_ids=tuple(sorted(given)),
        claims=(),
        grant=Grant(),
        granted_at_s=0.0,
        answered=True,
    )
    running = Pod(
        namespace="ns",
        name="pod-1",
        uid="1",
        phase="Running",
        containers=(Container(name="c", vgpus=1),),
    )
    table = PodTable({"1": running}, synced=True)
    before = compare([record], client(kubelet).assignments(), table, now_s=1000.0)

    kubelet.stop()
    kubelet.delete_checkpoint()
    kubelet.start()
    after = compare([record], client(kubelet).assignments(), table, now_s=1000.0)

    assert before.mismatches == ()
    [mismatch] = after.mismatches
    assert "was its checkpoint lost?" in mismatch.problem


def test_absent_kubelet_is_a_sentence(directory: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=r"does not tell its assignments on .*none\.sock"):
        PodResourcesClient(directory / "none.sock").assignments()


def test_deaf_kubelet_is_not_waited_for(directory: Path, stack: ExitStack) -> None:
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
    deaf.bind(str(directory / "kubelet.sock"))
    deaf.listen()

    with pytest.raises(KubeletUnavailable):
        PodResourcesClient(directory / "kubelet.sock", timeout_s=0.1).assignments()


class LongAnswer:
    """A node with many pods; one entry per NUMA node, as older kubelets send them."""

    def list_pod_resources(self, *_: object) -> pr.ListPodResourcesResponse:
        devices = [pr.ContainerDevices(resource_name=GPU, device_ids=["b"])] * 2
        devices.append(pr.ContainerDevices(resource_name=GPU, device_ids=["a"]))
        return pr.ListPodResourcesResponse(
            pod_resources=[
                pr.PodResources(
                    name="p" * 250,
                    namespace=f"ns-{i}",
                    containers=[pr.ContainerResources(name="c", devices=devices)],
                )
                for i in range(20_000)
            ]
        )

    def get_allocatable_resources(self, *_: object) -> pr.AllocatableResourcesResponse:
        return pr.AllocatableResourcesResponse()

    def get_pod_resources(self, *_: object) -> pr.GetPodResourcesResponse:
        return pr.GetPodResourcesResponse()


def test_answer_over_four_mebibytes_is_read(directory: Path, stack: ExitStack) -> None:
    path = directory / "kubelet.sock"
    server = grpc.server(ThreadPoolExecutor(2), handlers=[rpc.pod_resources_handler(LongAnswer())])
    server.add_insecure_port(rpc.unix_target(path))
    server.start()
    stack.callback(lambda: server.stop(None).wait())

    assert LongAnswer().list_pod_resources().ByteSize() > 4 * 1024 * 1024
    assignments = PodResourcesClient(path).assignments()

    assert len(assignments) == 20_000
    assert assignments[0].device_ids == ("a", "b")


# --- all devices, whoever hands them out ---------------------------------------------------------


def test_every_device_and_its_holder_is_told(kubelet: StandInKubelet, stack: ExitStack) -> None:
    register(kubelet, stack)
    toy = ToyPlugin(kubelet.socket.parent / "toy.sock", ["t-0", "t-1"])
    stack.callback(toy.stop)
    register_toy(kubelet, toy, "example.com/toy")
    eventually(lambda: kubelet.node_status().allocatable.get("example.com/toy") == 2)
    wanted = PodSpec("1", "ns", "p", [ContainerSpec("c", {GPU: 1, "example.com/toy": 1})])
    given = kubelet.admit(wanted).containers["c"].device_ids
    [gpu], [device] = given[GPU], given["example.com/toy"]

    assert set(client(kubelet).held()) == {
        HeldDevice("ns/p/c", GPU, gpu),
        HeldDevice("ns/p/c", "example.com/toy", device),
    }
    offered = client(kubelet).offered()
    if offered is not None:  # kubelets before 1.23 do not tell
        assert offered["example.com/toy"] == ("t-0", "t-1")
        assert len(offered[GPU]) == 4


class Claims(LongAnswer):
    """A container with a ResourceClaim of a DRA driver."""

    def list_pod_resources(self, *_: object) -> pr.ListPodResourcesResponse:
        claim = pr.DynamicResource(
            claim_name="gpu",
            claim_namespace="ns",
            claim_resources=[
                pr.ClaimResource(
                    driver_name="gpu.nvidia.com", pool_name="node", device_name="gpu-0"
                )
            ],
        )
        container = pr.ContainerResources(name="c", dynamic_resources=[claim])
        return pr.ListPodResourcesResponse(
            pod_resources=[pr.PodResources(name="p", namespace="ns", containers=[container])]
        )


def test_a_claim_of_a_dra_driver_is_told(directory: Path, stack: ExitStack) -> None:
    path = directory / "kubelet.sock"
    server = grpc.server(ThreadPoolExecutor(2), handlers=[rpc.pod_resources_handler(Claims())])
    server.add_insecure_port(rpc.unix_target(path))
    server.start()
    stack.callback(lambda: server.stop(None).wait())

    assert PodResourcesClient(path).held() == (
        HeldDevice("ns/p/c", "gpu.nvidia.com", "gpu-0", claimed=True),
    )
