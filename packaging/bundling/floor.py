"""Which hosts are too old? The newest symbol versions that the ELF files of a folder ask for."""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

VERSION_NEED = 0x6FFFFFFE  # SHT_GNU_verneed
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_FEATURES = {"GLIBC_ABI_DT_RELR": (2, 36), "GLIBC_ABI_GNU2_TLS": (2, 42)}  # named without a version


@dataclass(frozen=True, slots=True)
class Need:
    """The newest glibc that one file asks for."""

    path: Path
    glibc: tuple[int, int]


def is_elf(path: Path) -> bool:
    """Whether the file begins as ELF files do."""
    with path.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def glibc_needs(folder: Path) -> list[Need]:
    """What every ELF file below a folder needs; those linked statically need nothing."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        if is_elf(path):
            names = _needed(path)
            versions = [(int(m[1]), int(m[2])) for m in map(_GLIBC.fullmatch, names) if m]
            versions += [_FEATURES[name] for name in names if name in _FEATURES]
            if versions:
                found.append(Need(path, max(versions)))
    return found


def _needed(path: Path) -> list[str]:
    """Names in the version-need section of a 64-bit little-endian ELF. Source: gABI, LSB 5."""
    data = path.read_bytes()
    sections_at, size, count = (
        *struct.unpack_from("<Q", data, 0x28),
        *struct.unpack_from("<HH", data, 0x3A),
    )
    names: list[str] = []
    for index in range(count):
        _, kind, _, _, at, _, link, entries = struct.unpack_from(
            "<IIQQQQII", data, sections_at + index * size
        )
        if kind != VERSION_NEED:
            continue
        strings_at = struct.unpack_from("<Q", data, sections_at + link * size + 0x18)[0]
        for _ in range(entries):
            _, auxiliaries, _, first, following = struct.unpack_from("<HHIII", data, at)
            auxiliary = at + first
            for _ in range(auxiliaries):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, auxiliary)
                end = data.index(b"\0", strings_at + name)
                names.append(data[strings_at + name : end].decode("ascii", "replace"))
                auxiliary += step
            at += following
    return names
