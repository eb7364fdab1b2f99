"""The usage region: what the processes of a container hold of its GPUs, as the hook library counts.

A file per container that its processes share; they can write into it whatever they like, so every
figure is somebody's word, and reading is total and bounded: any bytes give a Region or
MalformedRegion. docs/usage-region.md describes the layouts: HAMi-core's 0 and 1.x, and the part of
our own behind the second. hook/region_layout.h is the other side of that.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAGIC = 19920718
MAX_DEVICES, MAX_PROCESSES, MAX_REFUSALS = 16, 1024, 32
REFUSAL_WRITING = 1 << 63
UUID_BYTES = 96
V0_BYTES, V1_BYTES = 1197896, 2008952
TAIL_OFFSET, TAIL_BYTES, TAIL_MAGIC, TAIL_VERSION = 2031616, 8192, 0x75706776, 2  # "vgpu"
FILE_BYTES = TAIL_OFFSET + TAIL_BYTES

# Offsets by name. Those of a slot, a device and a refusal are within it; in both layouts a device's
# figures in a slot begin with context, module, data, offset and total.
V0: Mapping[str, int] = MappingProxyType({
    "device_count": 48, "uuids": 56, "limit_bytes": 1592, "sm_percent": 1720, "slots": 1848,
    "slot_count": 1197880, "utilisation_switch": 1197884, "recent_kernel": 1197888,
    "priority": 1197892, "slot.pid": 0, "slot.host_pid": 4, "slot.used": 8, "slot.status": 1160,
    "slot": 1168, "usage": 40,
})  # fmt: skip
V1: Mapping[str, int] = MappingProxyType({
    "device_count": 56, "uuids": 64, "limit_bytes": 1600, "sm_percent": 1728, "slots": 1856,
    "slot_count": 2008896, "utilisation_switch": 2008900, "recent_kernel": 2008904,
    "priority": 2008908, "last_kernel_time_s": 2008912, "slot.pid": 0, "slot.host_pid": 4,
    "slot.used": 8, "slot.status": 1928, "slot": 1960, "usage": 64,
})  # fmt: skip
TAIL: Mapping[str, int] = MappingProxyType({
    "magic": 0, "version": 4, "sweeps": 8, "slots_backed": 12, "refusal_count": 16, "id": 32,
    "devices": 64, "refusals": 4160,
    "device.ledger": 0, "device.peak_bytes": 8, "device.refusals": 16, "device.refused_bytes": 24,
    "device.context_bytes": 32, "device.underflows": 40, "device.corrections": 48,
    "device.budget_ns": 64, "device.refilled_at_ns": 72, "device.charged_ns": 80,
    "device.throttled_ns": 88, "device.launches": 96, "device.waits": 104,
    "device.contended_at_ns": 112, "device.seen_at_ns": 128, "device.seen_charged_ns": 144,
    "device": 256,
    "refusal.number": 0, "refusal.time_ns": 8, "refusal.pid": 16, "refusal.device": 20,
    "refusal.asked_bytes": 24, "refusal.used_bytes": 32, "refusal.limit_bytes": 40,
    "refusal.largest_bytes": 48, "refusal.largest_pid": 56, "refusal.function": 64, "refusal": 96,
})  # fmt: skip
LEDGER_BYTES_MASK = (1 << 48) - 1  # the bits above count changes

_I32, _U32, _U64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<Q")
_USAGE = struct.Struct("<3Q8xQ")
_DEVICE = struct.Struct("<7Q8xqQ4Q")
_REFUSAL = struct.Struct("<QQiiQQQQi4x32s")


class MalformedRegion(ValueError):
    """Bytes that are no usage region; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one process holds of one device, in bytes."""

    context_bytes: int
    module_bytes: int
    data_bytes: int
    total_bytes: int  # more than its parts while one of them changes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProcess:
    """A process that counts here. `status` is 1 for a running one, 2 for a suspended one."""

    pid: int  # as the container sees it
    host_pid: int  # 0: not known
    status: int
    used: tuple[Usage, ...]  # by place, as in Region.devices


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
    recent_kernel: int  # < 0: blocked by a monitor
    priority: int
    last_kernel_time_s: int  # 0: not known
    refusal_count: int = 0
    refusals: tuple[Refusal, ...] = ()  # the newest, oldest first

    def used_bytes(self, place: int) -> int:
        """What the processes hold of a device together."""
        return sum(process.used[place].total_bytes for process in self.processes)


def decode(content: bytes) -> Region:
    """Read a region. Raises MalformedRegion, and nothing else, for bytes that are none.

    Which layout it is follows from size and version, as in HAMi 2.10's monitor.
    """
    layout, major, minor = _recognise(content)
    count = min(_u64(content, layout["device_count"]), MAX_DEVICES)
    has_tail = layout is V1 and _has_tail(content)
    time_at = layout.get("last_kernel_time_s")
    return Region(
        major=major,
        minor=minor,
        devices=tuple(_device(content, layout, place, has_tail) for place in range(count)),
        processes=_processes(content, layout, count),
        utilisation_switch=_i32(content, layout["utilisation_switch"]),
        recent_kernel=_i32(content, layout["recent_kernel"]),
        priority=_i32(content, layout["priority"]),
        last_kernel_time_s=_u64(content, time_at) if time_at is not None else 0,
        refusal_count=_u64(content, TAIL_OFFSET + TAIL["refusal_count"]) if has_tail else 0,
        refusals=_refusals(content) if has_tail else (),
    )


def _i32(content: bytes, at: int) -> int:
    return int(_I32.unpack_from(content, at)[0])


def _u32(content: bytes, at: int) -> int:
    return int(_U32.unpack_from(content, at)[0])


def _u64(content: bytes, at: int) -> int:
    return int(_U64.unpack_from(content, at)[0])


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "backslashreplace")


def _recognise(content: bytes) -> tuple[Mapping[str, int], int, int]:
    if len(content) < V0_BYTES:
        raise MalformedRegion(f"{len(content)} bytes, but the shortest layout has {V0_BYTES}")
    if _i32(content, 0) != MAGIC:
        raise MalformedRegion(
            f"magic {_i32(content, 0)} is not {MAGIC}: not made yet, or no region"
        )
    if len(content) < V1_BYTES:
        return V0, 0, 0
    major, minor = _u32(content, 4), _u32(content, 8)
    if major != 1:
        raise MalformedRegion(f"version {major}.{minor} is not a layout we know")
    return V1, major, minor


def _has_tail(content: bytes) -> bool:
    if len(content) < TAIL_OFFSET + TAIL_BYTES:
        return False
    magic = _u32(content, TAIL_OFFSET + TAIL["magic"])
    return (magic, _u32(content, TAIL_OFFSET + TAIL["version"])) == (TAIL_MAGIC, TAIL_VERSION)


def _device(content: bytes, layout: Mapping[str, int], place: int, has_tail: bool) -> RegionDevice:
    uuid_at = layout["uuids"] + place * UUID_BYTES
    return RegionDevice(
        uuid=_text(content[uuid_at : uuid_at + UUID_BYTES]),
        limit_bytes=_u64(content, layout["limit_bytes"] + 8 * place),
        core_percent=_u64(content, layout["sm_percent"] + 8 * place),
        counters=_counters(content, place) if has_tail else None,
    )


def _counters(content: bytes, place: int) -> Counters:
    at = TAIL_OFFSET + TAIL["devices"] + place * TAIL["device"]
    (
        word, peak, refusals, refused, context, underflows, corrections,
        budget, refilled, charged, throttled, launches, waits,
    ) = _DEVICE.unpack_from(content, at)  # fmt: skip
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
    content: bytes, layout: Mapping[str, int], devices: int
) -> tuple[RegionProcess, ...]:
    """Those that a monitor counts: marked as used, before the count of slots."""
    slots = max(0, min(_i32(content, layout["slot_count"]), MAX_PROCESSES))
    starts = (layout["slots"] + layout["slot"] * index for index in range(slots))
    return tuple(
        RegionProcess(
            pid=_i32(content, at + layout["slot.pid"]),
            host_pid=_i32(content, at + layout["slot.host_pid"]),
            status=_i32(content, at + layout["slot.status"]),
            used=tuple(
                _usage(content, at + layout["slot.used"] + layout["usage"] * place)
                for place in range(devices)
            ),
        )
        for at in starts
        if _i32(content, at + layout["slot.status"]) != 0
    )


def _usage(content: bytes, at: int) -> Usage:
    context, module, data, total = _USAGE.unpack_from(content, at)
    return Usage(context_bytes=context, module_bytes=module, data_bytes=data, total_bytes=total)


def _refusals(content: bytes) -> tuple[Refusal, ...]:
    """The whole ones: number 0 is none, and with its highest bit one that is being written."""
    start = TAIL_OFFSET + TAIL["refusals"]
    ring = content[start : start + MAX_REFUSALS * TAIL["refusal"]]
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
