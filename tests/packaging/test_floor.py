"""Which glibc a file asks for: files made for the purpose, and those of this machine against readelf."""

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from bundling.__main__ import check_floor
from bundling.__main__ import main as make_release
from bundling.floor import VERSION_NEED, Need, glibc_needs
from bundling.runtime import BundleError, Runtime


def elf(*libraries: tuple[str, ...]) -> bytes:
    """A file of section headers only: of each library its name, and versions that are asked for."""
    strings, needs = b"\0", b""
    for number, (library, *versions) in enumerate(libraries):
        names = []
        for name in (library, *versions):
            names.append(len(strings))
            strings += name.encode() + b"\0"
        size = 16 * (1 + len(versions))
        last = number == len(libraries) - 1
        needs += struct.pack("<HHIII", 1, len(versions), names[0], 16, 0 if last else size)
        for index, name in enumerate(names[1:], 1):
            needs += struct.pack("<IHHII", 0, 0, 2, name, 16 if index < len(versions) else 0)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 3, 1
    )
    strings_at = 64 + 3 * 64
    needs_at = strings_at + len(strings)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings_at, len(strings), 0, 0, 1, 0)
    sections += struct.pack(
        "<IIQQQQIIQQ", 0, VERSION_NEED, 0, 0, needs_at, len(needs), 1, len(libraries), 4, 0
    )
    return header + sections + strings + needs  # fmt: skip


@pytest.mark.parametrize(
    ("libraries", "newest"),
    [
        pytest.param([("libc.so.6", "GLIBC_2.2.5")], (2, 2), id="three numbers"),
        pytest.param([("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.36", "GLIBC_2.4")], (2, 36), id="not in order"),
        pytest.param([("libc.so.6", "GLIBC_2.9"), ("libm.so.6", "GLIBC_2.29")], (2, 29), id="of another library"),
        pytest.param([("libc.so.6", "GLIBC_2.10", "GLIBC_2.9")], (2, 10), id="numbers, not texts"),
        pytest.param([("libc.so.6", "GLIBC_ABI_DT_RELR", "GLIBC_2.2.5")], (2, 36), id="a feature without a number"),
        pytest.param([("libstdc++.so.6", "GLIBCXX_3.4.30")], None, id="of libstdc++ only"),
        pytest.param([("libc.so.6", "GLIBC_PRIVATE")], None, id="private ones"),
        pytest.param([], None, id="none"),
    ],
)  # fmt: skip
def test_the_newest_version_counts(
    libraries: list[tuple[str, ...]], newest: tuple[int, int] | None, tmp_path: Path
) -> None:
    (path := tmp_path / "library.so").write_bytes(elf(*libraries))
    assert glibc_needs(tmp_path) == ([Need(path, newest)] if newest else [])


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        pytest.param("vgpu-agent", "GLIBC_2.28", False, id="the oldest host has it"),
        pytest.param("vgpu-agent", "GLIBC_2.29", True, id="newer than the oldest host"),
        pytest.param("_internal/lib.so", "GLIBC_2.36", True, id="of Debian 12"),
        pytest.param("_internal/hook/libvgpu.so", "GLIBC_2.17", False, id="the oldest container has it"),
        pytest.param("_internal/hook/libvgpu.so", "GLIBC_2.18", True, id="newer than the oldest container"),
        pytest.param("_internal/hook/sim/libcuda.so.1", "GLIBC_2.28", True, id="the simulated driver, too"),
    ],
)  # fmt: skip
def test_what_an_old_host_cannot_load_is_refused(
    name: str, version: str, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(elf(("libc.so.6", version)))
    if not refused:
        check_floor(tmp_path)
        return
    with pytest.raises(BundleError, match=rf"{Path(name).name} needs glibc {version[6:]}"):
        check_floor(tmp_path)


def test_no_release_is_made_of_what_an_old_host_cannot_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def froze(*_: object) -> Path:
        (folder := tmp_path / "frozen").mkdir()
        (folder / "vgpu-agent").write_bytes(elf(("libc.so.6", "GLIBC_2.36")))
        return folder

    (hook := tmp_path / "hook").mkdir()
    (work := tmp_path / "work").mkdir()
    nothing = Runtime(tmp_path, tmp_path, tmp_path, ())
    monkeypatch.setattr("bundling.__main__.made", lambda *_: nothing)
    monkeypatch.setattr("bundling.__main__.frozen", froze)
    with pytest.raises(BundleError, match=r"vgpu-agent needs glibc 2\.36"):
        make_release(tmp_path / "dist", hook, work, None)
    assert list((tmp_path / "dist").iterdir()) == []


def test_what_is_no_elf_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("GLIBC_2.99")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert glibc_needs(tmp_path) == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf to compare with")
def test_files_of_this_machine_as_readelf_sees_them(tmp_path: Path) -> None:
    loaded = {
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if ".so" in line and line.split()[-1].startswith("/")
    }
    compared = 0
    for path in [*loaded, Path(sys.executable).resolve()]:
        shutil.copyfile(path, copy := tmp_path / "copy")
        told = subprocess.run(["readelf", "-VW", copy], capture_output=True, text=True, check=True)
        needed = told.stdout.partition("Version needs section")[2]
        versions = {(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", needed)}
        if "GLIBC_ABI_DT_RELR" not in needed:
            found = glibc_needs(tmp_path)
            assert found == ([Need(copy, max(versions))] if versions else []), path
            compared += bool(versions)
    assert compared >= 3
