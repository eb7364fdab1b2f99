"""What a monitor steers a container's library by: a few words of its usage region.

Readers of a few bytes beside `agent.domain.region`, which reads everything. All of them are a
tenant's: total and bounded. docs/usage-region.md has the layouts.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from agent.domain.feedback import UUID_CHARS
from agent.domain.lending import WHOLE_PERMILLE, Activity
from agent.domain.region import (
    FILE_BYTES,
    MAGIC,
    MAX_DEVICES,
    MOVED_BYTES,
    TAIL,
    TAIL_MAGIC,
    TAIL_OFFSET,
    TAIL_VERSION,
    UUID_BYTES,
    V0,
    V0_BYTES,
    V1,
    V1_BYTES,
)

HEADER_BYTES = V1["slots"]  # of both layouts: magic, uuids and shares lie before
WORD = struct.Struct("<i")
TRAILER_BYTES = 16  # from the slot count on: that, switch, recent kernel, priority
TAIL_HEAD_BYTES = 8
DEVICES_AT, DEVICE_BYTES = TAIL_OFFSET + TAIL["devices"], TAIL["device"]
ACTIVITY_AT = DEVICES_AT + TAIL["device.budget_ns"]

_TRAILER, _TAIL_HEAD = struct.Struct("<iiii"), struct.Struct("<II")
_HEAD = struct.Struct("<ii")
_PERCENTS = struct.Struct(f"<{MAX_DEVICES}Q")
_ACTIVITY = struct.Struct("<qQQ8xQQQ")  # budget, refilled, charged, launches, waits, contended


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchWords:
    """One container's words, as they are."""

    recent_kernel: int
    priority: int
    switch: int
    slot_count: int  # 0: no process has counted here yet
    devices: tuple[str, ...]  # uuids by place, in small letters; empty: the place is free
    core_permille: tuple[int, ...]  # by place; 1000: no limit


UNREADABLE = SwitchWords(
    recent_kernel=0,
    priority=0,
    switch=1,
    slot_count=0,
    devices=("",) * MAX_DEVICES,
    core_permille=(WHOLE_PERMILLE,) * MAX_DEVICES,
)  # of a container whose region says nothing: what is known of it is the agent's own


def layout_of(size_bytes: int, header: bytes) -> Mapping[str, int] | None:
    """The layout of a file with this size and beginning, as HAMi 2.10 tells them apart.

    None: it is no region, not made yet, or one whose fields lie elsewhere, which HAMi misreads.
    """
    if len(header) < _HEAD.size:
        return None
    magic, major = _HEAD.unpack_from(header)
    if magic != MAGIC or not V0_BYTES <= size_bytes <= FILE_BYTES or size_bytes in MOVED_BYTES:
        return None
    if size_bytes < V1_BYTES:
        return V0
    return V1 if major == 1 else None


def is_ours(tail_head: bytes) -> bool:
    """Whether a file has our library's counters, by the bytes at TAIL_OFFSET: a tenant's word."""
    return len(tail_head) == TAIL_HEAD_BYTES and _TAIL_HEAD.unpack(tail_head) == (
        TAIL_MAGIC,
        TAIL_VERSION,
    )


def words_of(layout: Mapping[str, int], header: bytes, trailer: bytes) -> SwitchWords | None:
    """The words, from HEADER_BYTES of the beginning and those from the slot count on."""
    if len(header) < HEADER_BYTES or len(trailer) < TRAILER_BYTES:
        return None
    slot_count, switch, recent_kernel, priority = _TRAILER.unpack_from(trailer)
    percents = _PERCENTS.unpack_from(header, layout["sm_percent"])
    places = range(layout["uuids"], layout["uuids"] + UUID_BYTES * MAX_DEVICES, UUID_BYTES)
    return SwitchWords(
        recent_kernel=recent_kernel,
        priority=priority,
        switch=switch,
        slot_count=slot_count,
        devices=tuple(_uuid(header[at : at + UUID_CHARS]) if header[at] else "" for at in places),
        core_permille=tuple(
            percent * 10 if 0 < percent < WHOLE_PERMILLE // 10 else WHOLE_PERMILLE
            for percent in percents
        ),
    )


def _uuid(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("ascii", "backslashreplace").lower()


def activity_at(content: bytes, place: int) -> Activity | None:
    """The counters of a place, from the bytes at ACTIVITY_AT on; None: they are not whole."""
    at = DEVICE_BYTES * place
    if at + _ACTIVITY.size > len(content):
        return None
    return tuple.__new__(Activity, _ACTIVITY.unpack_from(content, at))
