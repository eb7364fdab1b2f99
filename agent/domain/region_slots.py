"""The slots of a usage region, as far as telling processes their pid on the node needs them.

A reader of few bytes beside `agent.domain.region`, which reads everything. All bytes are a
tenant's: total and bounded. docs/usage-region.md has the layout.
"""

import struct
from dataclasses import dataclass

from agent.domain.region import FILE_BYTES, MAGIC, MAX_PROCESSES, MOVED_BYTES, V1, V1_BYTES

MAJOR = 1
HEADER_BYTES = 12
SLOTS_AT, SLOT_BYTES, SLOT_COUNT_AT = V1["slots"], V1["slot"], V1["slot_count"]
HOST_PID_AT, HOST_PID = V1["slot.host_pid"], struct.Struct("<i")
STATUS_AT = V1["slot.status"]

_HEADER = struct.Struct("<iII")
_PIDS = struct.Struct("<ii")
_REST = struct.Struct("<iI8xQ")  # status, pid namespace, sequence, start time


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A process that counts in a region, by its own words."""

    index: int
    pid: int  # as the process sees it
    host_pid: int  # as it was told; 0: not yet
    pid_namespace: int  # inode; 0: another library's slot
    start_time: int  # clock ticks from boot; 0: another library's slot

    @property
    def owner(self) -> tuple[int, int, int]:
        """Whose it is: a slot that was taken by another process has another one."""
        return (self.pid, self.pid_namespace, self.start_time)


@dataclass(frozen=True, slots=True)
class HostPid:
    """What is to be written into a slot, if it still is the same process's."""

    slot: Slot
    host_pid: int


def size_problem(size_bytes: int) -> str:
    """Why a file of this size is no region; empty: it may be one."""
    if size_bytes in MOVED_BYTES:
        return (
            f"it has {size_bytes} bytes: a usage region of HAMi-core's whose fields lie elsewhere"
        )
    if V1_BYTES <= size_bytes <= FILE_BYTES:
        return ""
    return f"it has {size_bytes} bytes, but a usage region has {V1_BYTES} to {FILE_BYTES}"


def header_problem(header: bytes) -> str:
    """Why a file with this beginning is no region; empty: it is one, or is not made yet."""
    if len(header) < HEADER_BYTES:
        return "it cannot be read"
    magic, major, minor = _HEADER.unpack_from(header)
    if magic == 0:
        return ""
    if magic != MAGIC:
        return "it is no usage region"
    return "" if major == MAJOR else f"it is a usage region of version {major}.{minor}"


def slots_in_use(slot_count: bytes) -> int:
    """How many slots are worth reading, by the four bytes at `SLOT_COUNT_AT`."""
    count = HOST_PID.unpack(slot_count)[0] if len(slot_count) == HOST_PID.size else 0
    return max(0, min(int(count), MAX_PROCESSES))


def slot_at(content: bytes, index: int, offset: int = 0) -> Slot | None:
    """Slot `index`, whose bytes begin at `offset`; None: free, or not all of it is there."""
    if len(content) < offset + SLOT_BYTES:
        return None
    pid, host_pid = _PIDS.unpack_from(content, offset)
    status, namespace, start_time = _REST.unpack_from(content, offset + STATUS_AT)
    if status == 0 or pid <= 0:
        return None
    return Slot(
        index=index,
        pid=pid,
        host_pid=host_pid,
        pid_namespace=namespace,
        start_time=start_time,
    )


def slots_of(content: bytes) -> tuple[Slot, ...]:
    """Those that are taken, from the bytes of slot 0 on."""
    found = (
        slot_at(content, index, index * SLOT_BYTES)
        for index in range(min(len(content) // SLOT_BYTES, MAX_PROCESSES))
    )
    return tuple(slot for slot in found if slot)
