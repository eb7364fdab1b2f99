"""How the GPUs of this node are joined: PCIe levels and NVLinks, read through NVML.

The caller translates NVML's exceptions and owns the handles.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import pynvml

from agent.domain.topology import MOST_NVLINKS, GpuPair

LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "internal",
    pynvml.NVML_TOPOLOGY_SINGLE: "single",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "multiple",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "hostbridge",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "system",
}
NOT_THERE = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a link number this GPU does not have
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
)
REMOTE_IS_SWITCH = 2  # nvmlIntNvLinkDeviceType_t; not every version of the binding has its name
SWITCH = "switch"  # stands for every GPU of an NVSwitch machine


def read_pairs(handles: Mapping[str, Any], answered: Callable[[], None]) -> tuple[GpuPair, ...]:
    """Every pair of these GPUs (uuid -> handle), in their order. Raises pynvml.NVMLError.

    For `answered` see `agent.ports.Nvml`.
    """
    bus_ids, links = {}, {}
    for uuid, handle in handles.items():
        bus_ids[uuid] = bus_id(handle)
        links[uuid] = _links(handle, answered)
    pairs = []
    for first, second in combinations(handles, 2):
        answered()
        pairs.append(
            GpuPair(
                first=first,
                second=second,
                level=_level(handles[first], handles[second]),
                links=_links_between(links[first], links[second], bus_ids[second]),
                links_back=_links_between(links[second], links[first], bus_ids[first]),
            )
        )
    return tuple(pairs)


def _links_between(mine: Mapping[str, int], other: Mapping[str, int], other_bus_id: str) -> int:
    """Direct links; through switches two GPUs reach each other with what both have."""
    through_switches = min(mine.get(SWITCH, 0), other.get(SWITCH, 0))
    return mine.get(other_bus_id, 0) + through_switches


def _level(first: Any, second: Any) -> str:
    try:
        return LEVELS.get(int(pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second)), "")
    except pynvml.NVMLError as error:
        if error.value in NOT_THERE:
            return ""
        raise


def _links(handle: Any, answered: Callable[[], None]) -> dict[str, int]:
    """Active NVLinks of one GPU, counted by the bus id of the far end, or SWITCH."""
    counted: dict[str, int] = {}
    for link in range(MOST_NVLINKS):
        answered()
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            far_end = _far_end(handle, link)
        except pynvml.NVMLError as error:
            if error.value in NOT_THERE:
                break
            raise
        counted[far_end] = counted.get(far_end, 0) + 1
    return counted


def _far_end(handle: Any, link: int) -> str:
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except pynvml.NVMLError as error:
        if error.value not in NOT_THERE:
            raise
        kind = None  # a driver older than the call, and than NVSwitch machines
    if kind == REMOTE_IS_SWITCH:
        return SWITCH
    return text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).upper()


def bus_id(handle: Any) -> str:
    """Where a GPU sits, e.g. "00000000:17:00.0". Raises pynvml.NVMLError."""
    return text(pynvml.nvmlDeviceGetPciInfo(handle).busId).upper()


def text(value: str | bytes) -> str:
    """What NVML wrote, whether this version of its binding decodes or not."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
