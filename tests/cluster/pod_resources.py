"""What kubelet's own books say, asked through its PodResources API."""

from cluster.gpu_pods import NAMESPACE, GpuPod
from cluster.node_under_test import RESOURCE, NodeUnderTest

from agent.wire import podresources_pb2 as pr
from agent.wire import rpc


def assigned_ids(
    node: NodeUnderTest, pod: GpuPod, container: str, resource: str = RESOURCE
) -> list[str]:
    """The device ids that kubelet has given to a container, sorted."""
    channel = rpc.unix_channel(node.pod_resources_socket, max_receive_bytes=2**24)
    try:
        listed = rpc.LIST_POD_RESOURCES.client(channel)(pr.ListPodResourcesRequest(), timeout=60)
    finally:
        channel.close()
    return sorted(
        device_id
        for found in listed.pod_resources
        if (found.namespace, found.name) == (NAMESPACE, pod.name)
        for each in found.containers
        if each.name == container
        for devices in each.devices
        if devices.resource_name == resource
        for device_id in devices.device_ids
    )
