"""The ListAndWatch message, which may name 100,000 devices.

It is made part by part: messages that follow one another on the wire are one message with the
devices of all. So there are never more protobuf objects than those of a part, and the loop on which
kubelet's other calls are answered is not held up.
"""

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from agent.domain.vgpu_ids import Vgpu
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

PART = 2000  # devices; some 5 ms


def encode_list(vgpus: Iterable[Vgpu]) -> dp.ListAndWatchResponse:
    """Encode a list of devices."""
    message = dp.ListAndWatchResponse()
    for vgpu in vgpus:
        device = message.devices.add()
        device.id = vgpu.device_id
        device.health = rpc.HEALTHY if vgpu.healthy else rpc.UNHEALTHY
        if vgpu.numa_node is not None:
            device.topology.nodes.add().id = vgpu.numa_node
    return message


async def encoded_list(vgpus: Sequence[Vgpu]) -> tuple[bytes, int]:
    """The list of all devices as it is on the wire, and how many of them are healthy."""
    parts, healthy, left = [], 0, iter(vgpus)
    while part := list(itertools.islice(left, PART)):
        parts.append(encode_list(part).SerializeToString())
        healthy += sum(vgpu.healthy for vgpu in part)
        await asyncio.sleep(0)
    return b"".join(parts), healthy
