"""A usage region as the agent makes it: empty, in order, marked as the agent's; and when it does.

The hook library makes the same where there is no agent (hook/region_file.c); a test compares both
byte for byte. A process that makes it counts as active from then on, as with HAMi-core; here nobody
has launched anything yet, and whoever does writes that itself. docs/usage-region.md describes the
layout.
"""

import struct
from dataclasses import dataclass

from agent.domain.limits_file import LimitsFile
from agent.domain.region import (
    MAGIC,
    MAX_DEVICES,
    MAX_PROCESSES,
    TAIL,
    TAIL_MAGIC,
    TAIL_OFFSET,
    TAIL_VERSION,
    UUID_BYTES,
    V1,
)

MAJOR, MINOR = 1, 2
WHOLE_GPU_PERMILLE = 1000
DEFAULT_PRIORITY = 1  # a process that has another one writes it; until one counts it says nothing
SWITCH_ON, NOT_ACTIVE = 1, 0
# An unlocked POSIX semaphore that processes share, as glibc lays it out on 64 bit: programs that
# know HAMi-core's layout take it; the hook waits for none.
_SEMAPHORE = struct.Struct("<Qi20x").pack(1, 128)
_LOCK_AT = 24
HEAD, _TAIL = struct.Struct("<iI"), struct.Struct("<II24xQ")
TAIL_HEAD_BYTES = _TAIL.size


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes at an offset of a file that is otherwise 0."""

    offset: int
    content: bytes


def new_region(limits: LimitsFile, *, region_id: int, now_s: int) -> tuple[Piece, ...]:
    """What a new region of FILE_BYTES holds beside zeros. `region_id` is not 0."""
    header = bytearray(V1["slots"])
    struct.pack_into("<iIIi", header, 0, MAGIC, MAJOR, MINOR, 0)
    header[_LOCK_AT : _LOCK_AT + len(_SEMAPHORE)] = _SEMAPHORE
    struct.pack_into("<Q", header, V1["device_count"], len(limits.devices))
    for place in range(MAX_DEVICES):
        struct.pack_into("<Q", header, V1["sm_percent"] + 8 * place, 100)
    for place, device in enumerate(limits.devices):
        at = V1["uuids"] + UUID_BYTES * place
        header[at : at + len(device.uuid)] = (device.uuid[:4] + device.uuid[4:].lower()).encode()
        share = min(device.core_permille or WHOLE_GPU_PERMILLE, WHOLE_GPU_PERMILLE)
        struct.pack_into("<Q", header, V1["limit_bytes"] + 8 * place, device.memory_limit_bytes)
        struct.pack_into("<Q", header, V1["sm_percent"] + 8 * place, (share + 9) // 10)
    trailer = struct.pack("<iiiiQ", 0, SWITCH_ON, NOT_ACTIVE, DEFAULT_PRIORITY, now_s) + _SEMAPHORE
    tail = bytearray(TAIL["devices"])
    struct.pack_into("<II", tail, TAIL["magic"], TAIL_MAGIC, TAIL_VERSION)
    struct.pack_into("<I", tail, TAIL["slots_backed"], MAX_PROCESSES)
    struct.pack_into("<Q", tail, TAIL["id"], region_id)
    return (
        Piece(0, bytes(header)),
        Piece(V1["slot_count"], trailer),
        Piece(TAIL_OFFSET, bytes(tail)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRegion:
    """What lies where a container's region belongs. Its content is the container's word."""

    inode: int
    head: bytes = b""  # its first bytes, and those of our part; empty where there are none
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class RegionMark:
    """Which file is a container's region. Inode 0: the hook is to make it."""

    inode: int = 0
    id: int = 0


def mark_of(seen: SeenRegion) -> RegionMark:
    """The mark of a region that a hook of this version can count in; else that of none."""
    if len(seen.head) < HEAD.size or len(seen.tail) < _TAIL.size:
        return RegionMark()
    magic, version, region_id = _TAIL.unpack_from(seen.tail)
    if HEAD.unpack_from(seen.head) != (MAGIC, MAJOR) or (magic, version) != (
        TAIL_MAGIC,
        TAIL_VERSION,
    ):
        return RegionMark()
    return RegionMark(seen.inode, region_id)


def kept_region(seen: SeenRegion | None, before: RegionMark) -> RegionMark | None:
    """Which region the container goes on with; None: a new one takes the place of what is there.

    `before` is what its limits file says. What no agent has marked was made by a hook, and
    processes may be counting there. What is not what was marked has been exchanged or spoiled by
    the container; whatever still runs there keeps its limits file, and with it the old mark, so a
    new region gives it nothing.
    """
    if seen is None:
        return None
    mark = mark_of(seen)
    return mark if before.inode == 0 or mark == before else None
