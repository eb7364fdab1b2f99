"""As much of ELF (64 bit, little endian) as it takes to check what a shared library asks and offers."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

DYNAMIC, DYNSYM, STRTAB, VERNEED, INIT_ARRAY, NOTE = 6, 11, 3, 0x6FFFFFFE, 14, 7
NEEDED = 1


@dataclass
class Elf:
    """What matters to whoever loads it."""

    exports: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    needed: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)  # e.g. GLIBC_2.2.5
    constructors: int = 0
    sections: set[str] = field(default_factory=set)
    machine: int = 0

    @property
    def newest_glibc(self) -> tuple[int, ...]:
        """The oldest glibc that it loads with."""
        found = [v.removeprefix("GLIBC_") for v in self.versions if v.startswith("GLIBC_")]
        return max(tuple(int(part) for part in text.split(".")) for text in found)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    content: bytes
    link: int


def read_elf(path: Path) -> Elf:
    """Read a shared library."""
    raw = path.read_bytes()
    assert raw[:6] == b"\x7fELF\x02\x01", path
    elf = Elf(machine=struct.unpack_from("<H", raw, 18)[0])
    sections = _sections(raw)
    elf.sections = {section.name for section in sections}
    for section in sections:
        if section.kind == DYNSYM:
            _symbols(elf, section.content, sections[section.link].content)
        elif section.kind == DYNAMIC:
            _dynamic(elf, section.content, sections[section.link].content)
        elif section.kind == VERNEED:
            _versions(elf, section.content, sections[section.link].content)
        elif section.kind == INIT_ARRAY:
            elf.constructors += len(section.content) // 8
    return elf


def _sections(raw: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", raw, 40)
    size, count, names_at = struct.unpack_from("<HHH", raw, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", raw, table + i * size) for i in range(count)]
    names = raw[heads[names_at][4] :]
    return [
        _Section(_text(names, head[0]), head[1], raw[head[4] : head[4] + head[5]], head[6])
        for head in heads
    ]


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def _symbols(elf: Elf, content: bytes, strings: bytes) -> None:
    for at in range(24, len(content), 24):
        name, _, _, section = struct.unpack_from("<IBBH", content, at)
        (elf.exports if section else elf.imports).add(_text(strings, name))


def _dynamic(elf: Elf, content: bytes, strings: bytes) -> None:
    for tag, value in struct.iter_unpack("<QQ", content):
        if tag == NEEDED:
            elf.needed.append(_text(strings, value))


def _versions(elf: Elf, content: bytes, strings: bytes) -> None:
    at = 0
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", content, at)
        entry = at + first
        for _ in range(count):
            _, _, _, name, next_entry = struct.unpack_from("<IHHII", content, entry)
            elf.versions.add(_text(strings, name))
            entry += next_entry
        if not following:
            return
        at += following
