"""A glibc that lacks what came after an older one: its newer symbols are made impossible to find.

For hosts whose glibc cannot be had. Whoever asks for a newer version is refused by the loader in
the words that an old host has, and dlsym finds none of the newer names. The code stays the newer
one's: how an old glibc behaves is not shown by it.

Source: LSB 5, symbol versioning (`.gnu.version`, `.gnu.version_d`).
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

VERSION_SYMBOLS, VERSION_DEFINITIONS = 0x6FFFFFFF, 0x6FFFFFFD  # section types
HIDDEN = 0x8000  # in an entry of .gnu.version: dlsym without a version passes it over
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")


def take_newer_away(folder: Path, than: tuple[int, int]) -> set[str]:
    """Change the libraries in a folder; give the versions that nobody finds any more."""
    gone: set[str] = set()
    for path in sorted(folder.glob("*.so*")):
        if path.is_symlink():
            continue
        image = bytearray(path.read_bytes())
        if image[:4] == b"\x7fELF":
            gone |= _change(image, than)
            path.write_bytes(image)
    return gone


def _change(image: bytearray, than: tuple[int, int]) -> set[str]:
    gone = {}
    for at, _, strings_at in _sections(image, VERSION_DEFINITIONS):
        for definition_at, index, name in _definitions(image, at, strings_at):
            version = _GLIBC.fullmatch(name)
            if version and (int(version[1]), int(version[2])) > than:
                gone[index] = name
                (known,) = struct.unpack_from("<I", image, definition_at + 8)
                struct.pack_into("<I", image, definition_at + 8, known ^ 1)  # its hash
    for at, size, _ in _sections(image, VERSION_SYMBOLS):
        for entry_at in range(at, at + size, 2):
            (entry,) = struct.unpack_from("<H", image, entry_at)
            if entry & ~HIDDEN in gone:
                struct.pack_into("<H", image, entry_at, entry | HIDDEN)
    return set(gone.values())


def _sections(image: bytearray, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Of this type: where each is, its size, and where the strings are that it refers to."""
    (headers_at,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    for index in range(count):
        _, kind, _, _, at, length, link = struct.unpack_from(
            "<IIQQQQI", image, headers_at + index * size
        )
        if kind == wanted:
            yield at, length, struct.unpack_from("<Q", image, headers_at + link * size + 0x18)[0]


def _definitions(image: bytearray, at: int, strings_at: int) -> Iterator[tuple[int, int, str]]:
    """Where each is, the index by which symbols refer to it, and its name."""
    while True:
        _, _, index, _, _, auxiliary, following = struct.unpack_from("<HHHHIII", image, at)
        (name,) = struct.unpack_from("<I", image, at + auxiliary)
        end = image.index(b"\0", strings_at + name)
        yield at, index, image[strings_at + name : end].decode()
        if not following:
            return
        at += following
