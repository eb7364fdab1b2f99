"""What the unwind tables of a linked file say of an address: an interpreter of `.eh_frame`.

Source: DWARF 5, 6.4, and the Linux Standard Base, 10.6. Only what is met is understood.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elf import section_of

PC_RELATIVE = 0x1B


@dataclass(frozen=True)
class Row:
    """How to find the caller: register and offset of the frame, and where registers lie in it."""

    register: int
    offset_bytes: int
    saved: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Described:
    """One function: its addresses, whose personality it has, and a row from each address on."""

    begin: int
    end: int
    personality: int | None
    rows: tuple[tuple[int, Row], ...]

    def at(self, address: int) -> Row:
        assert self.begin <= address < self.end
        return [row for since, row in self.rows if since <= address][-1]


@dataclass(frozen=True)
class _Common:
    code_unit: int
    data_unit: int
    personality: int | None
    operations: bytes


def frames_of(path: Path) -> list[Described]:
    """Every function that the file's tables describe, in order; addresses count from `.text` on."""
    address, content = section_of(path, ".eh_frame")
    address -= section_of(path, ".text")[0]
    found = []
    common: dict[int, _Common] = {}
    at = 0
    while at + 4 <= len(content) and (length := struct.unpack_from("<I", content, at)[0]):
        end = at + 4 + length
        (before,) = struct.unpack_from("<I", content, at + 4)
        if before == 0:
            common[at] = _read_common(content[at + 8 : end], address + at + 8)
        else:
            of = common[at + 4 - before]
            begin, size, augmented = struct.unpack_from("<iiB", content, at + 8)
            assert augmented == 0
            begin += address + at + 8
            rows = tuple(_rows(of, content[at + 17 : end], begin))
            found.append(Described(begin, begin + size, of.personality, rows))
        at = end
    return sorted(found, key=lambda function: function.begin)


def _read_common(content: bytes, address: int) -> _Common:
    version, rest = content[0], content[1:]
    assert version == 1
    letters, rest = rest[: rest.index(0)], rest[rest.index(0) + 1 :]
    (code_unit, data_unit), rest = struct.unpack_from("<Bb", rest), rest[2:]
    data_unit -= 0x80 if data_unit & 0x40 else 0  # sleb128 of one byte
    augmented, augmentation = rest[1], rest[2 : 2 + rest[1]]
    personality = None
    for letter in letters.decode():
        if letter == "P":
            assert augmentation[0] == PC_RELATIVE
            where = address + len(content) - len(rest) + 2 + augmented - len(augmentation) + 1
            personality = where + struct.unpack_from("<i", augmentation, 1)[0]
            augmentation = augmentation[5:]
        elif letter == "R":
            assert augmentation[0] == PC_RELATIVE
            augmentation = augmentation[1:]
        else:
            assert letter == "z"
    return _Common(code_unit, data_unit, personality, rest[2 + augmented :])


@dataclass
class _State:
    """What the operations have said so far."""

    data_unit: int
    register: int = 0
    offset_bytes: int = 0
    saved: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # what the common part said is saved

    def row(self) -> Row:
        return Row(self.register, self.offset_bytes, tuple(sorted(self.saved.items())))

    def advances(self, operations: bytes) -> Iterator[int]:
        """Code units of each step to a later address, up to which the row holds."""
        left = iter(operations)
        for byte in left:
            high, low = byte & 0xC0, byte & 0x3F
            if high == 0x40 or byte in {0x02, 0x03, 0x04}:
                yield low if high else _little(left, {2: 1, 3: 2, 4: 4}[byte])
            elif high == 0x80 or byte == 0x05:
                register = low if high else _uleb128(left)
                self.saved[register] = _uleb128(left) * self.data_unit
            elif high == 0xC0 or byte == 0x06:
                self._restore(low if high else _uleb128(left))
            elif byte:
                assert byte in {0x0C, 0x0D, 0x0E}, f"operation {byte:#x}"
                self.register = self.register if byte == 0x0E else _uleb128(left)
                self.offset_bytes = self.offset_bytes if byte == 0x0D else _uleb128(left)

    def _restore(self, register: int) -> None:
        del self.saved[register]
        if register in self.first:
            self.saved[register] = self.first[register]


def _rows(common: _Common, operations: bytes, begin: int) -> Iterator[tuple[int, Row]]:
    state = _State(common.data_unit)
    assert list(state.advances(common.operations)) == []
    state.first = dict(state.saved)
    address = begin
    for units in state.advances(operations):
        yield address, state.row()
        address += units * common.code_unit
    yield address, state.row()


def _little(left: Iterator[int], count: int) -> int:
    return int.from_bytes([next(left) for _ in range(count)], "little")


def _uleb128(left: Iterator[int]) -> int:
    number = shift = 0
    for byte in left:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return number
