"""One limits file, mapped: changed word by word while containers read it.

Sources: docs/limits-file.md (the sequence of a line), hook/limits.c (its reader).
"""

import mmap
import os
import threading
from collections.abc import Mapping

from agent.boundaries import passed
from agent.domain.lending import Lease, capped_permille
from agent.domain.limit_lines import (
    ALIVE_AT,
    BLOCKED_UNTIL_AT,
    CORE_AT,
    LENT_AT,
    LENT_UNTIL_AT,
    MEMORY_AT,
    limits_in,
    line_at,
    sequences,
    whole,
)
from agent.domain.limits_file import FILE_BYTES, DeviceLimit, LimitsFile, MalformedLimits, decode


class MappedLimits:
    """One limits file, mapped. Whoever reads or writes it holds its lock, for microseconds.

    The memory is stored to as words, each in one piece. Python has no fences: between two stores
    a lock is taken and given back, which orders them on every processor.
    """

    def __init__(self, fd: int, info: os.stat_result) -> None:
        """Map an open file of at least FILE_BYTES; `info` says which. Raises MalformedLimits."""
        memory = mmap.mmap(fd, FILE_BYTES)
        self.lock = threading.Lock()
        self.closed = False
        self.identity = (info.st_dev, info.st_ino)
        self._fence = threading.Lock()
        self._memory = memory
        self._u32 = memoryview(memory).cast("I")
        self._u64 = memoryview(memory).cast("Q")
        self._known: tuple[tuple[int, ...], LimitsFile] = ((), self._decoded())
        self._passed: dict[str, int] = {}  # memory limits that held since they were asked for

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self._u32.release()
            self._u64.release()
            self._memory.close()

    def _decoded(self) -> LimitsFile:
        return decode(whole(self._memory[:FILE_BYTES]))

    def _sequences(self) -> tuple[int, ...]:
        return tuple(self._u32[line_at(place) // 4] for place in range(len(self._known[1].devices)))

    def now(self) -> LimitsFile:
        """What the file says. Raises MalformedLimits."""
        known, limits = self._known
        if known != (found := self._sequences()):
            limits = self._decoded()
            self._known = (found, limits)
        return limits

    def fits(self) -> bool:
        """Whether it is still a limits file."""
        try:
            self.now()
        except MalformedLimits:
            return False
        return True

    def half_written(self) -> bool:
        """Whether a writer that is gone did not come to an end."""
        return any(sequence % 2 for sequence in sequences(self._memory[:FILE_BYTES]))

    def largest_bytes(self) -> dict[str, int]:
        """Each device's largest memory limit since this was asked last; 0: none."""
        now = {d.uuid: d.memory_limit_bytes for d in self.now().devices}
        passed, self._passed = self._passed, {}
        return {
            uuid: 0 if 0 in (limit, passed.get(uuid)) else max(limit, passed.get(uuid, limit))
            for uuid, limit in now.items()
        }

    def put(self, wanted: LimitsFile) -> None:
        """Write the lines that differ, and those that were left half written."""
        before = self.now()
        if limits_in(before) != limits_in(wanted):
            self._passed = self.largest_bytes()
        for place, device in enumerate(wanted.devices):
            if device != before.devices[place] or self._u32[line_at(place) // 4] % 2:
                self._put_line(line_at(place), device)
        if wanted.alive_at_ns != before.alive_at_ns:
            self._u64[ALIVE_AT // 8] = wanted.alive_at_ns
        self._known = (self._sequences(), wanted)

    def _put_line(self, at: int, device: DeviceLimit) -> None:
        u32, u64, sequence = self._u32, self._u64, self._u32[at // 4]
        odd = sequence | 1
        u32[at // 4] = odd
        passed("limit-line-begun")
        self._order()
        u64[(at + MEMORY_AT) // 8] = device.memory_limit_bytes
        u32[(at + CORE_AT) // 4] = device.core_permille
        u32[(at + LENT_AT) // 4] = device.lent_permille
        u64[(at + LENT_UNTIL_AT) // 8] = device.lent_until_ns
        u64[(at + BLOCKED_UNTIL_AT) // 8] = device.blocked_until_ns
        self._order()
        passed("limit-line-filled")
        u32[at // 4] = (odd + 1) & 0xFFFFFFFF
        passed("limit-line-ended")

    def lease(self, leases: Mapping[int, Lease], now_ns: int) -> bool:
        """Write what is lent and blocked of these lines, where it is something else.

        No more is lent than a share leaves that was made larger meanwhile.
        """
        places = len(self._known[1].devices)
        if leases and not 0 <= min(leases) <= max(leases) < places:
            return False
        for place, lease in leases.items():
            self._put_lease(line_at(place), lease)
        self._u64[ALIVE_AT // 8] = now_ns
        return True

    def _put_lease(self, at: int, lease: Lease) -> None:
        u32, u64 = self._u32, self._u64
        lent, until = (at + LENT_AT) // 4, (at + LENT_UNTIL_AT) // 8
        blocked = (at + BLOCKED_UNTIL_AT) // 8
        permille, until_ns, blocked_ns = lease
        permille = capped_permille(u32[(at + CORE_AT) // 4], permille)
        if u64[until] == until_ns and u32[lent] == permille and u64[blocked] == blocked_ns:
            return
        sequence = u32[at // 4]
        if sequence % 2:
            return  # limits are half written there, which nobody but `put` can finish
        u32[at // 4] = sequence + 1
        self._order()
        u32[lent] = permille
        u64[until] = until_ns
        u64[blocked] = blocked_ns
        self._order()
        u32[at // 4] = (sequence + 2) & 0xFFFFFFFF

    def _order(self) -> None:
        self._fence.acquire()
        self._fence.release()
