"""The stand-in kubelet's PodResources API: what it says about its own assignments.

Does not imitate: CPU, memory and DRA fields, the limit of 100 requests per second, and that 1.20
forgets, when it is asked, the devices of a pod that it is just admitting.
"""

from collections.abc import Callable, Iterable

import grpc

from agent.sim.kubelet_books import Books
from agent.sim.kubelet_types import NEWER, PodSpec
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc


class PodResources:
    """Answers from the books. Kubelet 1.20 knows only `List`, and 1.22 answers nothing else."""

    def __init__(
        self,
        books: Books,
        pods: Callable[[], Iterable[PodSpec]],
        take_back: Callable[[], None],
        *,
        behaviour: str,
    ) -> None:
        """`take_back`: whatever pods had that are gone."""
        self._books = books
        self._pods = pods
        self._take_back = take_back
        self._complete, self._refuses = behaviour in NEWER, behaviour == "1.22"

    def list_pod_resources(
        self, _request: pr.ListPodResourcesRequest, _: rpc.Context
    ) -> pr.ListPodResourcesResponse:
        """All pods on the node, with or without devices."""
        self._take_back()
        return pr.ListPodResourcesResponse(pod_resources=[self._of(pod) for pod in self._pods()])

    def get_allocatable_resources(
        self, _request: pr.AllocatableResourcesRequest, context: rpc.Context
    ) -> pr.AllocatableResourcesResponse:
        """All healthy devices, in use or not."""
        if self._refuses:  # source: 1.21 and 1.22, apis/podresources, where its feature gate is off
            context.abort(
                grpc.StatusCode.UNKNOWN, "Pod Resources API GetAllocatableResources disabled"
            )
        self._only_newer(context)
        with self._books.lock:
            return pr.AllocatableResourcesResponse(
                devices=[
                    _device(name, device_id, numa)
                    for name, known in self._books.devices.items()
                    for device_id, numa in known.healthy.items()
                ]
            )

    def get_pod_resources(
        self, request: pr.GetPodResourcesRequest, context: rpc.Context
    ) -> pr.GetPodResourcesResponse:
        """One pod."""
        self._only_newer(context)
        wanted = (request.pod_namespace, request.pod_name)
        found = [pod for pod in self._pods() if (pod.namespace, pod.name) == wanted]
        if not found:
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
            )
        return pr.GetPodResourcesResponse(pod_resources=self._of(found[0]))

    def _only_newer(self, context: rpc.Context) -> None:
        if not self._complete:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")

    def _of(self, pod: PodSpec) -> pr.PodResources:
        """Ordinary init containers are left out, as kubelet leaves them out."""
        sidecars = [c for c in pod.init_containers if c.sidecar and self._complete]
        return pr.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pr.ContainerResources(name=c.name, devices=self._devices(pod.uid, c.name))
                for c in (*sidecars, *pod.containers)
            ],
        )

    def _devices(self, uid: str, container: str) -> list[pr.ContainerDevices]:
        with self._books.lock:
            found = []
            for assignment in self._books.of_container(uid, container):
                known = self._books.devices.get(assignment.resource)
                for device_id in sorted(assignment.device_ids):
                    numa = known.healthy.get(device_id, -1) if known else -1
                    found.append(_device(assignment.resource, device_id, numa))
            return found


def _device(resource: str, device_id: str, numa: int) -> pr.ContainerDevices:
    topology = pr.TopologyInfo(nodes=[pr.NUMANode(id=numa)]) if numa >= 0 else None
    return pr.ContainerDevices(resource_name=resource, device_ids=[device_id], topology=topology)
