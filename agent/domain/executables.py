"""Which libc a program was linked for, by its ELF header: only glibc's loader loads the hook.

The file is a tenant's: reading is total, and looks at three short pieces wherever they are.
"""

import struct
from collections.abc import Callable
from enum import StrEnum

Read = Callable[[int, int], bytes]  # offset, size -> at most so many bytes

_IDENT_BYTES, _HEADER_BYTES = 16, 64
_PROGRAM_HEADERS_AT_MOST = 128
_INTERPRETER_BYTES = 256
_PT_INTERP = 3
_MAX_OFFSET = (1 << 63) - 1
_64_BIT, _LITTLE = 2, 1


class Linkage(StrEnum):
    """How a program gets its libraries."""

    GLIBC = "glibc"
    MUSL = "musl"
    STATIC = "static"
    OTHER = "other"  # another loader, or no program that can be read


def loader_linkage(path: str) -> Linkage:
    """What a dynamic loader's path says."""
    name = path.rpartition("/")[2]
    if name.startswith("ld-musl-"):
        return Linkage.MUSL
    return Linkage.GLIBC if name.startswith(("ld-linux", "ld64.so")) else Linkage.OTHER


def linkage_of(read: Read, *, name: str = "") -> Linkage:
    """Tell by PT_INTERP; a program without one is static.

    `name` is the file's path: a loader that was started itself, with the program as an argument,
    has no PT_INTERP either. Source: elf(5).
    """
    if (itself := loader_linkage(name)) is not Linkage.OTHER:
        return itself
    header = read(0, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header[:4] != b"\x7fELF":
        return Linkage.OTHER
    wide, order = header[4] == _64_BIT, "<" if header[5] == _LITTLE else ">"
    rest = struct.Struct(order + ("HHIQQQIHHH" if wide else "HHIIIIIHHH"))
    fields = rest.unpack_from(header, _IDENT_BYTES)
    table_at, entry_bytes, entries = fields[4], fields[8], fields[9]
    entry = struct.Struct(order + ("IIQQQQ" if wide else "IIIII"))
    if entry_bytes < entry.size or not 0 < entries <= _PROGRAM_HEADERS_AT_MOST:
        return Linkage.OTHER
    table = read(table_at, entry_bytes * entries) if table_at <= _MAX_OFFSET else b""
    if len(table) < entry_bytes * entries:
        return Linkage.OTHER
    for index in range(entries):
        kind, *values = entry.unpack_from(table, index * entry_bytes)
        if kind == _PT_INTERP:
            at, size = (values[1], values[4]) if wide else (values[0], values[3])
            return _interpreter(read, at, size)
    return Linkage.STATIC


def _interpreter(read: Read, at: int, size: int) -> Linkage:
    path = read(at, min(size, _INTERPRETER_BYTES)) if at <= _MAX_OFFSET else b""
    return loader_linkage(path.partition(b"\0")[0].decode("latin-1"))
