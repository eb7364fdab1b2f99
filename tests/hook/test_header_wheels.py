"""Pinning and fetching the vendor's headers, with real pip and wheels of our own."""

import hashlib
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hook.driver_symbols import headers
from hook.driver_symbols.headers import HeadersError, HeadersUnavailableError

CUDA_H, NVML_H = "int cuda;\n", "int nvml;\n"


def wheel(shelf: Path, package: str, version: str, files: Mapping[str, str]) -> Path:
    """A wheel for Linux on x86_64."""
    name = package.replace("-", "_")
    about = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    path = shelf / f"{name}-{version}-py3-none-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is pip's whole index, with two patch levels of CUDA 13.6."""
    directory = tmp_path / "shelf"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for patch in ("5", "12"):
        cuda = {"nvidia/cu13/include/cuda.h": CUDA_H, "nvidia/cu13/include/cuda_fp16.h": "int x;"}
        nvml = {"nvidia/cu13/include/nvml.h": NVML_H}
        wheel(directory, "nvidia-cuda-runtime", f"13.6.{patch}", cuda)
        wheel(directory, "nvidia-nvml-dev", f"13.6.{patch}", nvml)
    return directory


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "cuda-headers.lock"
    path.write_text("# pins\n")
    return path


def test_the_newest_wheels_of_a_release_are_pinned(shelf: Path, lock: Path) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    (pins,) = headers.read_pins(lock).values()
    assert [(pin.package, pin.version) for pin in pins] == [
        ("nvidia-cuda-runtime", "13.6.12"),
        ("nvidia-nvml-dev", "13.6.12"),
    ]
    newest = shelf / "nvidia_nvml_dev-13.6.12-py3-none-manylinux2014_x86_64.whl"
    assert hashlib.sha256(newest.read_bytes()).hexdigest() in lock.read_text()


def test_a_release_is_pinned_once(shelf: Path, lock: Path) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    with pytest.raises(HeadersError, match=r"has CUDA 13\.6; delete its lines"):
        headers.add_pins(lock, (13, 6), sys.executable)


def test_what_is_pinned_is_fetched_once(shelf: Path, lock: Path, tmp_path: Path) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    (directory,) = headers.fetch(lock, tmp_path / "out", sys.executable).values()
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "cuda.h": CUDA_H,
        "nvml.h": NVML_H,
    }
    for path in shelf.iterdir():
        path.unlink()
    assert headers.fetch(lock, tmp_path / "out", sys.executable) == {(13, 6): directory}


@pytest.mark.usefixtures("shelf")
def test_other_files_of_the_wheels_are_fetched_from_those_that_have_them(
    lock: Path, tmp_path: Path
) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    fetched = headers.fetch(
        lock,
        tmp_path / "out",
        sys.executable,
        wanted=re.compile(r".*/include/(cuda_fp16\.h)"),
        only=lambda pin: pin.package == "nvidia-cuda-runtime",
    )
    (directory,) = fetched.values()
    assert directory.name == "13.6-13.6.12"
    assert [path.name for path in directory.iterdir()] == ["cuda_fp16.h"]


def test_a_wheel_that_was_exchanged_is_refused(shelf: Path, lock: Path, tmp_path: Path) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    wheel(shelf, "nvidia-cuda-runtime", "13.6.12", {"nvidia/cu13/include/cuda.h": "int evil;"})
    with pytest.raises(HeadersError, match="DO NOT MATCH THE HASHES") as refused:
        headers.fetch(lock, tmp_path / "out", sys.executable)
    assert not isinstance(refused.value, HeadersUnavailableError)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_index_without_the_wheels_is_told_apart(shelf: Path, lock: Path, tmp_path: Path) -> None:
    headers.add_pins(lock, (13, 6), sys.executable)
    for path in shelf.iterdir():
        path.unlink()
    with pytest.raises(HeadersUnavailableError, match="see that it reaches a package index"):
        headers.fetch(lock, tmp_path / "out", sys.executable)


@pytest.mark.parametrize("text", ["13", "13.6.1", "eleven", "11.8", ""])
def test_what_is_no_release_is_said(text: str) -> None:
    with pytest.raises(HeadersError, match=r"give one like 13\.6"):
        headers.release_of(text)
