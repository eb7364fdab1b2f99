"""Kubelet's answer to GetAllocatableResources, read piece by piece.

It has a message for each device. Where amounts of memory are counted as devices that is more than
a hundred thousand, which read as a whole would take more memory than all the rest of the agent.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.message import DecodeError

from agent.domain.ownership import MAX_IDS
from agent.wire import podresources_pb2 as pr

PIECE_BYTES = 1 << 15
_MORE, _LAST_SHIFT = 0x80, 63


def ids_in(answer: bytes) -> Mapping[str, tuple[str, ...]]:
    """By resource, ids of healthy devices, sorted, at most MAX_IDS. Raises DecodeError.

    Kubelet gives them in random order, so no GPU is missing.
    """
    ids: dict[str, set[str]] = {}
    for piece in _pieces(answer):
        for devices in pr.AllocatableResourcesResponse.FromString(piece).devices:
            known = ids.setdefault(devices.resource_name, set())
            if len(known) < MAX_IDS:
                known.update(devices.device_ids[: MAX_IDS - len(known)])
    return {resource: tuple(sorted(found)) for resource, found in ids.items()}


def _pieces(message: bytes) -> Iterator[bytes]:
    """Whole fields of a message, some at a time: each piece is a message by itself."""
    begin = at = 0
    while at < len(message):
        at = _after_field(message, at)
        if at - begin >= PIECE_BYTES:
            yield message[begin:at]
            begin = at
    if begin < at:
        yield message[begin:at]


def _after_field(message: bytes, at: int) -> int:
    tag, at = _varint(message, at)
    match tag & 7:  # source: protobuf, encoding: VARINT, I64, LEN, I32
        case 0:
            _, at = _varint(message, at)
        case 1:
            at += 8
        case 2:
            size, at = _varint(message, at)
            at += size
        case 5:
            at += 4
        case kind:
            raise DecodeError(f"a field of kind {kind}")
    if at > len(message):
        raise DecodeError("it is cut short")
    return at


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift <= _LAST_SHIFT:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & _MORE:
            return value, at
        shift += 7
    raise DecodeError("it is cut short")
