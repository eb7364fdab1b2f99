"""The usage region as a file, read from outside: layout of HAMi-core 1.2 and of our part behind it."""

import struct
from dataclasses import dataclass
from pathlib import Path

REGION_BYTES, FILE_BYTES = 2008952, 2031616 + 8192
FIRST_SLOT, SLOT_BYTES, SLOTS = 1856, 1960, 1024
USED_AT, USED_BYTES = 8, 64
STATUS_AT, OWNER_AT = 1928, 1952
SLOT_COUNT_AT = 2008896
TAIL_AT, DEVICES_AT, DEVICE_BYTES = 2031616, 64, 256
REFUSALS_AT, REFUSAL_BYTES, REFUSALS = TAIL_AT + DEVICES_AT + 16 * DEVICE_BYTES, 96, 32
LEDGER_MASK = (1 << 48) - 1
_REFUSAL = struct.Struct("<QQiiQQQQi4x32s")


@dataclass(frozen=True)
class Refusal:
    """One record of the ring."""

    number: int
    time_ns: int
    pid: int
    place: int
    asked: int
    used: int
    limit: int
    largest_bytes: int
    largest_pid: int
    function: str


class RegionFile:
    """What the file says at one moment."""

    def __init__(self, path: Path) -> None:
        self._raw = path.read_bytes()

    def _u64(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._raw, at)[0])

    def _i32(self, at: int) -> int:
        return int(struct.unpack_from("<i", self._raw, at)[0])

    def ledger(self, place: int = 0) -> int:
        """Bytes that are taken."""
        return self._u64(TAIL_AT + DEVICES_AT + DEVICE_BYTES * place) & LEDGER_MASK

    def counter(self, name: str, place: int = 0) -> int:
        """A counter of a device."""
        names = ("ledger", "peak", "refusals", "refused_bytes", "context_bytes", "underflows")
        return self._u64(TAIL_AT + DEVICES_AT + DEVICE_BYTES * place + 8 * names.index(name))

    def shown(self, place: int = 0) -> dict[int, int]:
        """Total by pid, as a monitor sees it: slots whose status is not 0."""
        return {
            self._i32(at): self._u64(at + USED_AT + USED_BYTES * place + 32)
            for at in self._slots()
            if self._i32(at + STATUS_AT) != 0
        }

    def owned(self) -> int:
        """How many slots somebody has."""
        return sum(self._u64(at + OWNER_AT) != 0 for at in self._slots())

    def _slots(self) -> range:
        end = FIRST_SLOT + SLOT_BYTES * self._i32(SLOT_COUNT_AT)
        return range(FIRST_SLOT, end, SLOT_BYTES)

    def refusals(self) -> list[Refusal]:
        """The records, oldest first."""
        found = [
            _REFUSAL.unpack_from(self._raw, REFUSALS_AT + REFUSAL_BYTES * i)
            for i in range(REFUSALS)
        ]
        return sorted(
            (
                Refusal(*fields[:9], fields[9].rstrip(b"\0").decode())
                for fields in found
                if fields[0]
            ),
            key=lambda refusal: refusal.number,
        )
