"""The usage region: what the processes of a container hold of its GPUs, as the hook library counts.

A file per container that its processes share; they can write into it whatever they like, so every
figure is somebody's word, and reading is total and bounded: any bytes give a Region or
MalformedRegion. docs/usage-region.md describes the layouts: HAMi-core's 0 and 1.x, and the part of
our own behind the second. hook/region_layout.h is the other side of that.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

MAGIC = 19920718
MAX_DEVICES, MAX_PROCESSES, MAX_REFUSALS = 16, 1024, 32
REFUSAL_WRITING = 1 << 63
UUID_BYTES = 96
V0_BYTES, V1_BYTES = 1197896, 2008952
# HAMi-core made such files for some weeks of 2026 (its commits 1988c5d to e200da2): they say 1.1,
# but their fields lie elsewhere.
MOVED_BYTES = (2008984, 2008985)
TAIL_OFFSET, TAIL_BYTES, TAIL_MAGIC, TAIL_VERSION = 2031616, 8192, 0x75706776, 2  # "vgpu"
FILE_BYTES = TAIL_OFFSET + TAIL_BYTES

# Offsets by name. Those of a slot, a usage, a utilisation, a device and a refusal are within it; in
# both layouts a device's figures in a slot begin with context, module, data, offset and total.
V0: Mapping[str, int] = MappingProxyType({
    "device_count": 48, "uuids": 56, "limit_bytes": 1592, "sm_percent": 1720, "slots": 1848,
    "slot_count": 1197880, "utilisation_switch": 1197884, "recent_kernel": 1197888,
    "priority": 1197892, "slot.pid": 0, "slot.host_pid": 4, "slot.used": 8, "slot.utilisation": 776,
    "slot.status": 1160, "slot": 1168, "usage": 40, "utilisation.sm_percent": 16,
})  # fmt: skip
V1: Mapping[str, int] = MappingProxyType({
    "device_count": 56, "uuids": 64, "limit_bytes": 1600, "sm_percent": 1728, "slots": 1856,
    "slot_count": 2008896, "utilisation_switch": 2008900, "recent_kernel": 2008904,
    "priority": 2008908, "last_kernel_time_s": 2008912, "slot.pid": 0, "slot.host_pid": 4,
    "slot.used": 8, "slot.utilisation": 1160, "slot.status": 1928, "slot.pid_namespace": 1932,
    "slot.start_time": 1944, "slot": 1960, "usage": 64, "usage.peak_bytes": 40,
    "usage.charged_ns": 48, "usage.throttled_ns": 56, "utilisation": 48,
    "utilisation.sm_percent": 16, "utilisation.refusals": 24, "utilisation.counts_since": 32,
})  # fmt: skip
TAIL: Mapping[str, int] = MappingProxyType({
    "magic": 0, "version": 4, "sweeps": 8, "slots_backed": 12, "refusal_count": 16, "id": 32,
    "asked_at_ns": 40, "devices": 64, "refusals": 4160,
    "device.ledger": 0, "device.peak_bytes": 8, "device.refusals": 16, "device.refused_bytes": 24,
    "device.context_bytes": 32, "device.underflows": 40, "device.corrections": 48,
    "device.budget_ns": 64, "device.refilled_at_ns": 72, "device.charged_ns": 80,
    "device.throttled_ns": 88, "device.launches": 96, "device.waits": 104,
    "device.contended_at_ns": 112, "device.overlong_at_ns": 120,
    "device.seen_at_ns": 128, "device.seen_charged_ns": 144, "device.least_had": 160,
    "device.caught_up_at_ns": 168, "device.waits_at_ns": 176, "device.let_out_at_ns": 184,
    "device.waited_until_ns": 192, "device.ended_at_ns": 200, "device.met": 232,
    "device.waited_since_ns": 240,
    "device": 256,
    "refusal.number": 0, "refusal.time_ns": 8, "refusal.pid": 16, "refusal.device": 20,
    "refusal.asked_bytes": 24, "refusal.used_bytes": 32, "refusal.limit_bytes": 40,
    "refusal.largest_bytes": 48, "refusal.largest_pid": 56, "refusal.function": 64, "refusal": 96,
})  # fmt: skip
LEDGER_BYTES_MASK = (1 << 48) - 1  # the bits above count changes

HEADER_BYTES, TRAILER_BYTES = V1["slots"], 24  # before the slots; what is read behind them
SLOTS_AT_ONCE = 32
_UTILISATION_V0_BYTES = 24

_I32, _U32, _U64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<Q")
_USAGE = struct.Struct("<3Q8xQ")
_COUNTED = struct.Struct("<3Q")  # from peak_bytes on
_OWNER = struct.Struct("<I8xQ")  # pid namespace, sequence, start time
_DEVICE = struct.Struct("<7Q8xqQ4Q")
_REFUSAL = struct.Struct("<QQiiQQQQi4x32s")

Read = Callable[[int, int], bytes]  # offset, size -> bytes; fewer where the file is shorter


class Rejected(StrEnum):
    """Why a file is not read as a region; a label of a metric, so there are few."""

    NOT_A_FILE = "not a file"  # a link, pipe, socket, device or directory
    HARD_LINK = "hard link"
    SHORT = "short"
    FOREIGN = "foreign"  # another size, magic or version
    CHANGED = "changed"  # while it was read
    SEVERAL = "several files"  # and none is named by the grant
    UNREADABLE = "unreadable"
    # What was made of a region that the agent knows:
    REMOVED = "removed"
    WIPED = "wiped"
    EXCHANGED = "exchanged"
    GPU_MISSING = "gpu missing"


class MalformedRegion(ValueError):
    """Bytes that are no usage region; the message says why."""

    def __init__(self, message: str, reason: Rejected = Rejected.FOREIGN) -> None:
        super().__init__(message)
        self.reason = reason


class NotMadeYet(MalformedRegion):
    """A region that is being made: its magic is written last."""


class Usage(NamedTuple):
    """What one process holds of one device, in bytes. A tuple, as there may be 16,384 of them."""

    context_bytes: int
    module_bytes: int
    data_bytes: int
    total_bytes: int  # more than its parts while one of them changes


class ProcessCounters(NamedTuple):
    """What our library counts of one process on one device, from the process's start on."""

    peak_bytes: int
    charged_ns: int  # GPU time
    throttled_ns: int
    refusals: int  # allocations refused


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProcess:
    """A process that counts here. `status` is 1 for a running one, 2 for a suspended one."""

    pid: int  # as the container sees it
    host_pid: int  # 0: not known
    status: int
    used: tuple[Usage, ...]  # by place, as in Region.devices
    sm_percent: tuple[int, ...] = ()  # HAMi-core's: of each device's time, as it last saw
    pid_namespace: int = 0  # inode; 0: not known, as in HAMi-core's slots
    start_time: int = 0  # clock ticks from boot; likewise
    counters: tuple[ProcessCounters, ...] = ()  # by place; none: its library does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What our library counts of one device beside what every reader knows."""

    used_bytes: int  # by the living together
    peak_bytes: int
    refusals: int
    refused_bytes: int
    context_bytes: int  # what a context cost when one was made last; 0: not measured
    underflows: int  # how often more was given back than was taken: a fault of the library
    corrections: int  # how often used_bytes was made to agree with the living
    budget_ns: int  # negative: in debt
    refilled_at_ns: int  # CLOCK_MONOTONIC
    charged_ns: int  # GPU time
    throttled_ns: int
    launches: int
    waits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """A device that the container counts."""

    uuid: str
    limit_bytes: int  # 0: no limit
    core_percent: int
    counters: Counters | None  # None: another library's file


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An allocation that was refused."""

    number: int  # counts from 1
    time_ns: int  # CLOCK_REALTIME
    pid: int
    place: int  # in Region.devices
    asked_bytes: int
    used_bytes: int
    limit_bytes: int
    largest_bytes: int  # of the process that held most
    largest_pid: int  # 0: nobody held anything
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One container's region."""

    major: int
    minor: int
    devices: tuple[RegionDevice, ...]
    processes: tuple[RegionProcess, ...]
    utilisation_switch: int
    recent_kernel: int  # < 0: blocked by a monitor; see also `asked_at_ns`
    priority: int
    last_kernel_time_s: int  # 0: not known
    slot_count: int = 0  # slots ever in use lie before it; 0: nobody has counted here yet
    has_tail: bool = False  # our library's
    asked_at_ns: int = 0  # CLOCK_MONOTONIC; since when our library waits for a monitor's answer
    refusal_count: int = 0
    refusals: tuple[Refusal, ...] = ()  # the newest, oldest first

    def used_bytes(self, place: int) -> int:
        """What the processes hold of a device together."""
        return sum(process.used[place].total_bytes for process in self.processes)


def decode(content: bytes) -> Region:
    """Read a whole region. Raises MalformedRegion, and nothing else, for bytes that are none."""
    return read_region(len(content), lambda at, size: content[at : at + size])


def read_region(size_bytes: int, read: Read, places: int = MAX_DEVICES) -> Region:
    """Read what is in use of a region of this size. Raises MalformedRegion, and what `read` does.

    `places`: how many devices are read at most; a container may write that it has more.
    Which layout it is follows from size and version, as in HAMi 2.10's monitor.
    """
    if size_bytes == 0:
        raise NotMadeYet("0 bytes: it is not made yet")
    if size_bytes < V0_BYTES:
        raise MalformedRegion(
            f"{size_bytes} bytes, but the shortest layout has {V0_BYTES}", Rejected.SHORT
        )
    header = _whole(read, 0, HEADER_BYTES)
    layout, major, minor = _recognise(header, size_bytes)
    trailer = _whole(read, layout["slot_count"], min(TRAILER_BYTES, _trailer_bytes(layout)))
    count = min(_u64(header, layout["device_count"]), places, MAX_DEVICES)
    slots = max(0, min(_i32(trailer, 0), MAX_PROCESSES))
    tail = _tail(read, size_bytes, count) if layout is V1 else b""
    after = layout["slot_count"]
    time_at = layout.get("last_kernel_time_s")
    return Region(
        major=major,
        minor=minor,
        devices=tuple(_device(header, layout, place, tail) for place in range(count)),
        processes=tuple(_processes(read, layout, slots, count)),
        utilisation_switch=_i32(trailer, layout["utilisation_switch"] - after),
        recent_kernel=_i32(trailer, layout["recent_kernel"] - after),
        priority=_i32(trailer, layout["priority"] - after),
        last_kernel_time_s=_u64(trailer, time_at - after) if time_at is not None else 0,
        slot_count=slots,
        has_tail=bool(tail),
        asked_at_ns=_u64(tail, TAIL["asked_at_ns"]) if tail else 0,
        refusal_count=_u64(tail, TAIL["refusal_count"]) if tail else 0,
        refusals=_refusals(read) if tail and _u64(tail, TAIL["refusal_count"]) else (),
    )


def _whole(read: Read, at: int, size: int) -> bytes:
    """Bytes that the file has by its size, so if they are missing, it was cut meanwhile."""
    piece = read(at, size)
    if len(piece) != size:
        raise MalformedRegion(
            f"{len(piece)} of {size} bytes at {at}: it was cut while it was read", Rejected.CHANGED
        )
    return piece


def _trailer_bytes(layout: Mapping[str, int]) -> int:
    return (V0_BYTES if layout is V0 else V1_BYTES) - layout["slot_count"]


def _tail(read: Read, size_bytes: int, devices: int) -> bytes:
    """Our part up to the devices in use; empty: there is none of ours."""
    if size_bytes < FILE_BYTES:
        return b""
    tail = _whole(read, TAIL_OFFSET, TAIL["devices"] + devices * TAIL["device"])
    known = (_u32(tail, TAIL["magic"]), _u32(tail, TAIL["version"])) == (TAIL_MAGIC, TAIL_VERSION)
    return tail if known else b""


def _i32(content: bytes, at: int) -> int:
    return int(_I32.unpack_from(content, at)[0])


def _u32(content: bytes, at: int) -> int:
    return int(_U32.unpack_from(content, at)[0])


def _u64(content: bytes, at: int) -> int:
    return int(_U64.unpack_from(content, at)[0])


def _text(raw: bytes) -> str:
    """As it is if it is plain; a tenant's bytes end up in logs and on terminals."""
    text = raw.partition(b"\0")[0].decode("ascii", "backslashreplace")
    return text if text.isprintable() else ascii(text)[1:-1]


def _recognise(header: bytes, size_bytes: int) -> tuple[Mapping[str, int], int, int]:
    magic = _i32(header, 0)
    if magic == 0:
        raise NotMadeYet("its magic is 0: it is not made yet")
    if magic != MAGIC:
        raise MalformedRegion(f"magic {magic} is not {MAGIC}")
    if size_bytes < V1_BYTES:
        return V0, 0, 0
    major, minor = _u32(header, 4), _u32(header, 8)
    if major != 1:
        raise MalformedRegion(f"version {major}.{minor} is not a layout we know")
    if size_bytes in MOVED_BYTES or size_bytes > FILE_BYTES:
        raise MalformedRegion(f"{size_bytes} bytes are not a size of a layout we know")
    return V1, major, minor


def _device(header: bytes, layout: Mapping[str, int], place: int, tail: bytes) -> RegionDevice:
    uuid_at = layout["uuids"] + place * UUID_BYTES
    return RegionDevice(
        uuid=_text(header[uuid_at : uuid_at + UUID_BYTES]),
        limit_bytes=_u64(header, layout["limit_bytes"] + 8 * place),
        core_percent=_u64(header, layout["sm_percent"] + 8 * place),
        counters=_counters(tail, place) if tail else None,
    )


def _counters(tail: bytes, place: int) -> Counters:
    at = TAIL["devices"] + place * TAIL["device"]
    (
        word, peak, refusals, refused, context, underflows, corrections,
        budget, refilled, charged, throttled, launches, waits,
    ) = _DEVICE.unpack_from(tail, at)  # fmt: skip
    return Counters(
        used_bytes=word & LEDGER_BYTES_MASK,
        peak_bytes=peak,
        refusals=refusals,
        refused_bytes=refused,
        context_bytes=context,
        underflows=underflows,
        corrections=corrections,
        budget_ns=budget,
        refilled_at_ns=refilled,
        charged_ns=charged,
        throttled_ns=throttled,
        launches=launches,
        waits=waits,
    )


def _processes(
    read: Read, layout: Mapping[str, int], slots: int, devices: int
) -> Iterator[RegionProcess]:
    """Those that a monitor counts: marked as used, before the count of slots."""
    size, status_at = layout["slot"], layout["slot.status"]
    for first in range(0, slots, SLOTS_AT_ONCE):
        count = min(SLOTS_AT_ONCE, slots - first)
        block = _whole(read, layout["slots"] + first * size, count * size)
        for at in range(0, count * size, size):
            if _i32(block, at + status_at) != 0:
                yield _process(block, at, layout, devices)


def _process(block: bytes, at: int, layout: Mapping[str, int], devices: int) -> RegionProcess:
    namespace = start_time = 0
    has_counters = False
    if layout is V1:
        namespace, start_time = _OWNER.unpack_from(block, at + layout["slot.pid_namespace"])
        since_at = layout["slot.utilisation"] + layout["utilisation.counts_since"]
        has_counters = 0 != start_time == _u64(block, at + since_at)
    utilisation_bytes = layout.get("utilisation", _UTILISATION_V0_BYTES)
    used_at, busy_at = at + layout["slot.used"], at + layout["slot.utilisation"]
    shown_at = busy_at + layout["utilisation.sm_percent"]
    return RegionProcess(
        pid=_i32(block, at + layout["slot.pid"]),
        host_pid=_i32(block, at + layout["slot.host_pid"]),
        status=_i32(block, at + layout["slot.status"]),
        used=tuple(_usage(block, used_at + layout["usage"] * place) for place in range(devices)),
        sm_percent=tuple(
            min(_u64(block, shown_at + utilisation_bytes * place), 100) for place in range(devices)
        ),
        pid_namespace=namespace,
        start_time=start_time,
        counters=_process_counters(block, used_at, busy_at, devices) if has_counters else (),
    )


def _process_counters(
    block: bytes, used_at: int, busy_at: int, devices: int
) -> tuple[ProcessCounters, ...]:
    peak_at, refusals_at = used_at + V1["usage.peak_bytes"], busy_at + V1["utilisation.refusals"]
    refusals = (_u64(block, refusals_at + V1["utilisation"] * place) for place in range(devices))
    return tuple(
        ProcessCounters(peak, charged, throttled, refused)
        for place, refused in enumerate(refusals)
        for peak, charged, throttled in [_COUNTED.unpack_from(block, peak_at + V1["usage"] * place)]
    )


def _usage(content: bytes, at: int) -> Usage:
    return Usage(*_USAGE.unpack_from(content, at))


def _refusals(read: Read) -> tuple[Refusal, ...]:
    """The whole ones: number 0 is none, and with its highest bit one that is being written."""
    ring = _whole(read, TAIL_OFFSET + TAIL["refusals"], MAX_REFUSALS * TAIL["refusal"])
    found = (
        Refusal(
            number=number, time_ns=time_ns, pid=pid, place=place, asked_bytes=asked,
            used_bytes=used, limit_bytes=limit, largest_bytes=largest, largest_pid=largest_pid,
            function=_text(function),
        )
        for (number, time_ns, pid, place, asked, used, limit, largest, largest_pid, function)
        in _REFUSAL.iter_unpack(ring)
        if 0 < number < REFUSAL_WRITING
    )  # fmt: skip
    return tuple(sorted(found, key=lambda refusal: refusal.number))
