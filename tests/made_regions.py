"""Usage regions as libraries write them: HAMi-core's of three layouts, and our own. Offsets of our own.

Sources: HAMi-core, src/multiprocess/multiprocess_memory_limit.h, at 7a9c88b (version 0) and after
August 2024 (1.1, 1.2); docs/usage-region.md for what lies behind.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

GPU = "GPU-a1000000-0000-4000-8000-0000000000b2"
MIB = 1 << 20
MAGIC = 19920718


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a library's version has what."""

    size: int  # of the file: HAMi-core's have one byte more than the structure
    version: tuple[int, int] | None
    count: int
    uuids: int
    limits: int
    percents: int
    slots: int
    slot: int
    usage: int
    utilisation: int
    status: int
    trailer: int
    tail: bool = False


V0 = Layout(
    size=1197897, version=None, count=48, uuids=56, limits=1592, percents=1720, slots=1848,
    slot=1168, usage=40, utilisation=776, status=1160, trailer=1197880,
)  # fmt: skip
V1_1 = Layout(
    size=2008953, version=(1, 1), count=56, uuids=64, limits=1600, percents=1728, slots=1856,
    slot=1960, usage=64, utilisation=1160, status=1928, trailer=2008896,
)  # fmt: skip
V1_2 = Layout(**{**{n: getattr(V1_1, n) for n in V1_1.__dataclass_fields__}, "version": (1, 2)})
OURS = Layout(
    **{
        **{n: getattr(V1_2, n) for n in V1_2.__dataclass_fields__},
        "size": 2031616 + 8192,
        "tail": True,
    }
)
LAYOUTS = {"0": V0, "1.1": V1_1, "1.2": V1_2, "ours": OURS}
TAIL_AT, DEVICES_AT = 2031616, 2031616 + 64


@dataclass(frozen=True, kw_only=True)
class MadeSlot:
    """A process's slot; what is used of the first device."""

    pid: int
    host_pid: int = 0
    context: int = 0
    module: int = 0
    data: int = 0
    status: int = 1
    busy: int = 0  # percent
    namespace: int = 0
    start_time: int = 0
    total: int = field(default=-1)

    @property
    def whole(self) -> int:
        return self.context + self.module + self.data if self.total < 0 else self.total


def made(
    layout: Layout,
    slots: Sequence[MadeSlot] = (),
    *,
    uuids: Sequence[str] = (GPU,),
    limit: int = 1000 * MIB,
    percent: int = 30,
    switch: int = 1,
    recent: int = 2,
    priority: int = 1,
    last_kernel_s: int = 0,
    charged_ns: int = 0,
    throttled_ns: int = 0,
    launches: int = 0,
    refusals: int = 0,
    peak: int = 0,
) -> bytearray:  # fmt: skip
    """The bytes of such a file."""
    raw = bytearray(layout.size)
    struct.pack_into("<i", raw, 0, MAGIC)
    if layout.version:
        struct.pack_into("<II", raw, 4, *layout.version)
    struct.pack_into("<Q", raw, layout.count, len(uuids))
    for place, uuid in enumerate(uuids):
        at = layout.uuids + 96 * place
        raw[at : at + len(uuid)] = uuid.encode()
        struct.pack_into("<Q", raw, layout.limits + 8 * place, limit)
        struct.pack_into("<Q", raw, layout.percents + 8 * place, percent)
    for index, slot in enumerate(slots):
        put_slot(raw, layout, index, slot)
    struct.pack_into("<iiii", raw, layout.trailer, len(slots), switch, recent, priority)
    if layout.version:
        struct.pack_into("<Q", raw, layout.trailer + 16, last_kernel_s)
    if layout.tail:
        struct.pack_into("<II", raw, TAIL_AT, 0x75706776, 2)
        struct.pack_into("<Q", raw, TAIL_AT + 16, refusals)
        struct.pack_into("<QQ", raw, DEVICES_AT + 8, peak, refusals)
        struct.pack_into("<3Q", raw, DEVICES_AT + 80, charged_ns, throttled_ns, launches)
    return raw


def put_slot(raw: bytearray, layout: Layout, index: int, slot: MadeSlot) -> None:
    """Write a slot."""
    at = layout.slots + layout.slot * index
    struct.pack_into("<ii", raw, at, slot.pid, slot.host_pid)
    parts = (slot.context, slot.module, slot.data, 0, slot.whole)
    struct.pack_into("<5Q", raw, at + 8, *parts)
    struct.pack_into("<Q", raw, at + layout.utilisation + 16, slot.busy)
    struct.pack_into("<i", raw, at + layout.status, slot.status)
    if slot.namespace or slot.start_time:
        struct.pack_into("<I8xQ", raw, at + layout.status + 4, slot.namespace, slot.start_time)
