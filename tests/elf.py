"""As much of ELF (64 bit, little endian) as it takes to check what a shared library asks and offers."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RELA, DYNAMIC, DYNSYM, VERNEED = 4, 6, 11, 0x6FFFFFFE  # kinds of sections
INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY = 14, 15, 16
NEEDED, INIT, FINI, TEXTREL, FLAGS, FLAGS_1 = 1, 12, 13, 22, 30, 0x6FFFFFFB  # in .dynamic
FLAG_TEXTREL, FLAG_BIND_NOW, FLAG_1_NODELETE = 4, 8, 8
LOAD, THREAD_LOCAL, STACK, RELRO = 1, 7, 0x6474E551, 0x6474E552  # kinds of segments
EXECUTABLE, WRITABLE = 1, 2
PAGE_BYTES = 4096
RELATIVE = {62: 8, 183: 1027}  # the kind of a relative relocation, for each machine


@dataclass
class Elf:
    """What matters to whoever loads it."""

    exports: set[str] = field(default_factory=set)
    bare_exports: set[str] = field(default_factory=set)  # those without an unwind table
    imports: set[str] = field(default_factory=set)
    needed: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)  # e.g. GLIBC_2.2.5
    called_by_loader: int = 0  # functions, when it is loaded and when the process ends
    sections: set[str] = field(default_factory=set)
    machine: int = 0
    binds_now: bool = False
    text_relocations: bool = False
    relative_relocations: int = 0  # each costs at every exec, and a page it lies in is copied
    read_only_after_relocation: bool = False
    executable_stack: bool = True
    thread_local_bytes: int = 0
    copied_pages: int = 0  # of 4 KiB, at every exec: those of the file that may be written to
    zeroed_bytes: int = 0  # in each process that it is loaded into, used or not
    stays_loaded: bool = False

    @property
    def newest_glibc(self) -> tuple[int, ...]:
        """The oldest glibc that it loads with."""
        found = [version.removeprefix("GLIBC_").split(".") for version in self.versions]
        return max(tuple(int(part) for part in parts) for parts in found)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    content: bytes
    link: int
    address: int


def read_elf(path: Path) -> Elf:
    """Read a shared library."""
    raw = path.read_bytes()
    assert raw[:6] == b"\x7fELF\x02\x01", path
    elf = Elf(machine=struct.unpack_from("<H", raw, 18)[0])
    sections = _sections(raw)
    elf.sections = {section.name for section in sections}
    addresses: dict[str, int] = {}
    has_table: list[range] = []
    for section in sections:
        if section.kind == DYNSYM:
            addresses = _symbols(elf, section.content, sections[section.link].content)
        elif section.kind == DYNAMIC:
            _dynamic(elf, section.content, sections[section.link].content)
        elif section.kind == VERNEED:
            _versions(elf, section.content, sections[section.link].content)
        elif section.kind in {INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY}:
            elf.called_by_loader += len(section.content) // 8
        elif section.kind == RELA:
            kinds = [
                info & 0xFFFFFFFF for _, info, _ in struct.iter_unpack("<QQQ", section.content)
            ]
            elf.relative_relocations += kinds.count(RELATIVE[elf.machine])
        elif section.name == ".eh_frame_hdr":
            has_table = list(_unwound(section, raw))
    elf.bare_exports = {n for n, at in addresses.items() if all(at not in t for t in has_table)}
    _segments(elf, raw)
    return elf


def section_of(path: Path, name: str) -> tuple[int, bytes]:
    """The address and the content of a section."""
    section = next(section for section in _sections(path.read_bytes()) if section.name == name)
    return section.address, section.content


def _segments(elf: Elf, raw: bytes) -> None:
    (table,) = struct.unpack_from("<Q", raw, 32)
    size, count = struct.unpack_from("<HH", raw, 54)
    for i in range(count):
        kind, flags = struct.unpack_from("<II", raw, table + i * size)
        at, _, in_file, bytes_in_memory = struct.unpack_from("<QQQQ", raw, table + i * size + 16)
        elf.zeroed_bytes += bytes_in_memory - in_file if kind == LOAD else 0
        if kind == LOAD and flags & WRITABLE:
            elf.copied_pages += -(-(at + in_file) // PAGE_BYTES) - at // PAGE_BYTES
        elif kind == RELRO:
            elf.read_only_after_relocation = True
        elif kind == STACK:
            elf.executable_stack = bool(flags & EXECUTABLE)
        elif kind == THREAD_LOCAL:
            elf.thread_local_bytes = bytes_in_memory


def _sections(raw: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", raw, 40)
    size, count, names_at = struct.unpack_from("<HHH", raw, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", raw, table + i * size) for i in range(count)]
    names = raw[heads[names_at][4] :]
    return [
        _Section(_text(names, head[0]), head[1], raw[head[4] : head[4] + head[5]], head[6], head[3])
        for head in heads
    ]


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def _symbols(elf: Elf, content: bytes, strings: bytes) -> dict[str, int]:
    """Note the names; give where those that are exported lie."""
    exported = {}
    for name_at, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", content[24:]):
        name = _text(strings, name_at)
        (elf.exports if section else elf.imports).add(name)
        if section:
            exported[name] = value
    return exported


def _unwound(header: _Section, raw: bytes) -> Iterator[range]:
    """The addresses of which there are tables that .eh_frame_hdr lists: as LLD writes it."""
    assert header.content[:4] == b"\x01\x1b\x03\x3b"
    (frames,) = [section for section in _sections(raw) if section.name == ".eh_frame"]
    for begin, table in struct.iter_unpack("<ii", header.content[12:]):
        at = header.address + table - frames.address
        (size,) = struct.unpack_from("<I", frames.content, at + 12)
        yield range(header.address + begin, header.address + begin + size)


def _dynamic(elf: Elf, content: bytes, strings: bytes) -> None:
    for tag, value in struct.iter_unpack("<QQ", content):
        if tag == NEEDED:
            elf.needed.append(_text(strings, value))
        elif tag in {INIT, FINI}:
            elf.called_by_loader += 1
        elif tag == TEXTREL:
            elf.text_relocations = True
        elif tag == FLAGS:
            elf.binds_now |= bool(value & FLAG_BIND_NOW)
            elf.text_relocations |= bool(value & FLAG_TEXTREL)
        elif tag == FLAGS_1:
            elf.stays_loaded = bool(value & FLAG_1_NODELETE)


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
