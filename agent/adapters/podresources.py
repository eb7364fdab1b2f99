"""Kubelet's PodResources API: which container holds which device, by kubelet's own books."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from agent.adapters.allocatable import ids_in
from agent.adapters.memory import give_memory_back
from agent.domain.ownership import HeldDevice
from agent.errors import KubeletUnavailable
from agent.ports import KubeletAssignment, PodList
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

TIMEOUT_S = 5.0
LARGE_BYTES = 1 << 20
MAX_RECEIVE_BYTES = 16 * 1024 * 1024  # all pods of the node; kubelet sends without a limit


class PodResourcesClient:
    """Asks kubelet (`ports.PodResources`, `ports.PodLists`).

    A fresh connection each time: it is asked rarely.
    """

    def __init__(self, socket: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        """See `ports.PodResources.assignments`. Ids of one container and resource are joined."""
        return self.pod_list().assignments

    def pod_list(self) -> PodList:
        """See `ports.PodLists.pod_list`."""
        pods = self._pods()
        return PodList(
            tuple(assignment for pod in pods for assignment in _of_pod(pod)),
            frozenset((pod.namespace, pod.name) for pod in pods),
        )

    def _pods(self) -> Sequence[pr.PodResources]:
        with self._asking("its assignments") as channel:
            list_pods = rpc.LIST_POD_RESOURCES.client(channel)
            answer = list_pods(pr.ListPodResourcesRequest(), timeout=self._timeout_s)
        return answer.pod_resources

    @contextmanager
    def _asking(self, what: str) -> Iterator[grpc.Channel]:
        channel = rpc.unix_channel(self._socket, max_receive_bytes=MAX_RECEIVE_BYTES)
        try:
            yield channel
        except grpc.RpcError as error:
            raise KubeletUnavailable(
                f"kubelet does not tell {what} on {self._socket} "
                f"({error.code().name}: {error.details()})"
            ) from error
        finally:
            channel.close()

    # --- all devices of the node, for `ports.DeviceBooks`

    def held(self) -> tuple[HeldDevice, ...]:
        """See `ports.DeviceBooks.held`."""
        return tuple(device for pod in self._pods() for device in _held_by(pod))

    def offered(self) -> Mapping[str, tuple[str, ...]] | None:
        """See `ports.DeviceBooks.offered`. Of a resource with very many ids some are missing."""
        with self._asking("which devices it has") as channel:
            get = rpc.GET_ALLOCATABLE.raw_client(channel)
            try:
                answer = get(pr.AllocatableResourcesRequest(), timeout=self._timeout_s)
            except grpc.RpcError as error:
                if _is_without_list(error):
                    return None
                raise
        large = len(answer) > LARGE_BYTES
        try:
            return ids_in(answer)
        except DecodeError as error:
            raise KubeletUnavailable(
                f"kubelet's list of devices on {self._socket} cannot be understood: {error}"
            ) from error
        finally:
            del answer, get
            if large:
                give_memory_back()


def _is_without_list(error: grpc.RpcError) -> bool:
    """Whether this kubelet tells nobody what it has, so that asking again is of no use.

    1.20 does not know the call. 1.21 and 1.22 refuse it, as those up to 1.27 do whose feature gate
    KubeletPodResourcesGetAllocatable is off. Source: Kubernetes, apis/podresources, server_v1.go.
    """
    if error.code() is grpc.StatusCode.UNKNOWN:
        return str(error.details()).endswith("GetAllocatableResources disabled")
    return error.code() is grpc.StatusCode.UNIMPLEMENTED


def _held_by(pod: pr.PodResources) -> Iterator[HeldDevice]:
    for container in pod.containers:
        holder = f"{pod.namespace}/{pod.name}/{container.name}"
        for devices in container.devices:
            for device_id in devices.device_ids:
                yield HeldDevice(holder, devices.resource_name, device_id)
        for claim in container.dynamic_resources:
            for one in claim.claim_resources:
                yield HeldDevice(holder, one.driver_name, one.device_name, claimed=True)


def _of_pod(pod: pr.PodResources) -> list[KubeletAssignment]:
    """Newer kubelets send one entry per device, older ones one per NUMA node."""
    found = []
    for container in pod.containers:
        by_resource: dict[str, set[str]] = {}
        for devices in container.devices:
            by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
        found += [
            KubeletAssignment(pod.namespace, pod.name, container.name, resource, tuple(sorted(ids)))
            for resource, ids in by_resource.items()
        ]
    return found
