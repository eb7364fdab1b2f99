"""Which libc a program is for: real ELF headers, and any other bytes."""

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.executables import Linkage, linkage_of, loader_linkage

FIRST = b"\x7fELF"


def elf(
    interpreter: str | None,
    *,
    wide: bool = True,
    order: str = "<",
    table_at: int | None = None,
    entries: int | None = None,
    entry_bytes: int | None = None,
    path_at: int | None = None,
) -> bytes:
    """A header, two program headers, and the interpreter's path behind them."""
    ident = FIRST + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    size = 64 if wide else 52
    entry = 56 if wide else 32
    at = size if table_at is None else table_at
    path = (interpreter or "").encode() + b"\0"
    path_at = size + 2 * entry if path_at is None else path_at
    count = (2 if interpreter is not None else 1) if entries is None else entries
    told = entry if entry_bytes is None else entry_bytes
    if wide:
        head = struct.pack(
            order + "HHIQQQIHHHHHH", 2, 62, 1, 0, at, 0, 0, size, told, count, 0, 0, 0
        )
        table = struct.pack(order + "IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, 0)
        table += struct.pack(order + "IIQQQQQQ", 3, 4, path_at, 0, 0, len(path), 0, 1)
    else:
        head = struct.pack(
            order + "HHIIIIIHHHHHH", 2, 3, 1, 0, at, 0, 0, size, told, count, 0, 0, 0
        )
        table = struct.pack(order + "IIIIIIII", 1, 0, 0, 0, 0, 0, 5, 0)
        table += struct.pack(order + "IIIIIIII", 3, path_at, 0, 0, len(path), 0, 4, 1)
    return ident + head + table + path


def of(content: bytes, name: str = "") -> Linkage:
    def read(at: int, size: int) -> bytes:
        if not 0 <= at < 1 << 63:
            raise OverflowError("as pread has it")
        return content[at : at + size]

    return linkage_of(read, name=name)


GLIBC = "/lib64/ld-linux-x86-64.so.2"
MUSL = "/lib/ld-musl-x86_64.so.1"


@pytest.mark.parametrize("order", [pytest.param("<", id="little"), pytest.param(">", id="big")])
@pytest.mark.parametrize("wide", [pytest.param(True, id="64"), pytest.param(False, id="32")])
@pytest.mark.parametrize(
    ("interpreter", "linkage"),
    [
        pytest.param(GLIBC, Linkage.GLIBC, id="glibc"),
        pytest.param("/nix/store/x-glibc/lib/ld-linux-aarch64.so.1", Linkage.GLIBC, id="nix"),
        pytest.param(MUSL, Linkage.MUSL, id="musl"),
        pytest.param("/system/bin/linker64", Linkage.OTHER, id="another"),
        pytest.param(None, Linkage.STATIC, id="static"),
    ],
)
def test_programs(interpreter: str | None, linkage: Linkage, wide: bool, order: str) -> None:
    assert of(elf(interpreter, wide=wide, order=order)) is linkage


@pytest.mark.parametrize(
    ("content", "name", "linkage"),
    [
        pytest.param(elf(None), MUSL, Linkage.MUSL, id="musl's loader itself"),
        pytest.param(elf(None), GLIBC, Linkage.GLIBC, id="glibc's loader itself"),
        pytest.param(b"", "", Linkage.OTHER, id="empty"),
        pytest.param(b"#!/bin/sh\n" + bytes(64), "", Linkage.OTHER, id="a script"),
        pytest.param(elf(MUSL)[:63], "", Linkage.OTHER, id="a header cut short"),
        pytest.param(elf(MUSL)[:100], "", Linkage.OTHER, id="a table cut short"),
        pytest.param(elf(MUSL, table_at=1 << 40), "", Linkage.OTHER, id="a table far outside"),
        pytest.param(elf(MUSL, table_at=(1 << 64) - 1), "", Linkage.OTHER, id="no offset at all"),
        pytest.param(elf(MUSL, path_at=(1 << 64) - 1), "", Linkage.OTHER, id="a path nowhere"),
        pytest.param(elf(MUSL, entry_bytes=0), "", Linkage.OTHER, id="entries of no size"),
        pytest.param(elf(MUSL, entry_bytes=20), "", Linkage.OTHER, id="short entries"),
        pytest.param(elf(MUSL, entries=0), "", Linkage.OTHER, id="no table"),
        pytest.param(elf(MUSL, entries=65535), "", Linkage.OTHER, id="a huge table"),
        pytest.param(elf("/x" * 4000 + MUSL), "", Linkage.OTHER, id="a path without end"),
    ],
)
def test_other_files(content: bytes, name: str, linkage: Linkage) -> None:
    assert of(content, name) is linkage


def test_this_python() -> None:
    content = Path(sys.executable).resolve().read_bytes()
    assert of(content) in (Linkage.GLIBC, Linkage.MUSL)


@given(
    st.binary(max_size=200)
    | st.tuples(st.booleans(), st.binary(min_size=60, max_size=200)).map(
        lambda drawn: FIRST + bytes([1 + drawn[0], 1]) + drawn[1]
    )
)
def test_any_bytes_have_an_answer(content: bytes) -> None:
    asked = []

    def read(at: int, size: int) -> bytes:
        asked.append(size)
        assert 0 <= at < 1 << 63
        return content[at : at + size]

    assert linkage_of(read) in Linkage
    assert sum(asked) < 1 << 24


@given(st.text())
def test_any_path_has_an_answer(path: str) -> None:
    assert loader_linkage(path) in Linkage
