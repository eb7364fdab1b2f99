"""What is frozen is what was pinned: Debian's packages, and the module that carries CPython."""

import base64
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import go_module
from bundling.runtime import PINS, BundleError, _module, check_module, debian_packages

CALLED = "example.com/module@v1.0.0"
PACKAGE = "libgcc-s1_10.2.1-6_amd64.deb"


# --- Debian's packages ---------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    (folder := tmp_path / "debian").mkdir()
    for name in (PACKAGE, "SHA256SUMS"):
        shutil.copy(PINS / "debian" / name, folder)
    return folder


def test_a_package_as_it_was_pinned_is_taken(packages: Path) -> None:
    names = [
        name
        for opened in debian_packages("libgcc-s1", folder=packages)
        for name in opened.getnames()
    ]
    assert any(name.endswith("/libgcc_s.so.1") for name in names)


def test_a_changed_package_is_refused(packages: Path) -> None:
    content = bytearray((packages / PACKAGE).read_bytes())
    content[20] ^= 1  # in the header, where no decompression finds it
    (packages / PACKAGE).write_bytes(content)
    with pytest.raises(BundleError, match=f"{PACKAGE} is not the file"):
        list(debian_packages("libgcc-s1", folder=packages))


def test_a_package_that_nobody_has_pinned_is_refused(packages: Path) -> None:
    (packages / "SHA256SUMS").write_text("")
    with pytest.raises(BundleError, match=f"{PACKAGE} is not the file"):
        list(debian_packages("libgcc-s1", folder=packages))


# --- the module that carries CPython -------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "module"
    (folder / "a").mkdir(parents=True)
    (folder / "go.mod").write_text("module example.com/module\n")
    (folder / "a" / "b").write_text("b")
    (folder / "a-b").write_text("before a/b")
    return folder


def go_sum(module: Path) -> str:
    """The line for these files, as golang.org/x/mod/sumdb/dirhash describes it."""
    lines = [
        f"{hashlib.sha256((module / name).read_bytes()).hexdigest()}  {CALLED}/{name}\n"
        for name in ("a-b", "a/b", "go.mod")
    ]
    digest = hashlib.sha256("".join(lines).encode()).digest()
    name, _, version = CALLED.partition("@")
    return (
        f"{name} {version}/go.mod h1:x=\n"
        f"{name} {version} h1:{base64.b64encode(digest).decode()}\n"
        f"{name} v1.0.1 h1:y=\n"
    )


def test_a_module_as_it_was_pinned_is_taken(module: Path) -> None:
    check_module(module, CALLED, go_sum(module))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: (folder / "a/b").write_text("c"), id="a changed file"),
        pytest.param(lambda folder: (folder / "a/b").unlink(), id="a file that is gone"),
        pytest.param(lambda folder: (folder / "a/c").touch(), id="a file more"),
        pytest.param(lambda folder: (folder / "a/b").rename(folder / "b"), id="a renamed file"),
        pytest.param(lambda folder: (folder / "l").symlink_to("a"), id="a link to a directory"),
        pytest.param(lambda folder: (folder / "l").symlink_to("a/b"), id="a link to a file"),
        pytest.param(lambda folder: os.mkfifo(folder / "pipe"), id="no file at all"),
        pytest.param(shutil.rmtree, id="nothing left"),
    ],
)
def test_a_changed_module_is_refused(module: Path, change: Callable[[Path], object]) -> None:
    pinned = go_sum(module)
    change(module)
    with pytest.raises(BundleError, match="was changed since it was fetched"):
        check_module(module, CALLED, pinned)


def test_a_module_that_nobody_has_pinned_is_refused(module: Path) -> None:
    with pytest.raises(BundleError, match=r"go\.sum does not have"):
        check_module(module, "example.com/module@v2.0.0", go_sum(module))


def test_the_pinned_one_can_be_found() -> None:
    text = (PINS / "go.sum").read_text()
    name, version, _ = text.splitlines()[0].split()
    found = go_module.pinned(text, f"{name}@{version}")
    assert found
    assert found.startswith("h1:")


def test_what_go_gives_is_compared(module: Path, tmp_path: Path) -> None:
    """`go mod download` does not look at what it has unpacked before."""
    (tools := tmp_path / "tools").mkdir()
    name, version, _ = (PINS / "go.sum").read_text().splitlines()[0].split()
    answer = f'{{"Path": "{name}", "Version": "{version}", "Dir": "{module}"}}'
    (tools / "go").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tools / "go").chmod(0o755)
    with pytest.raises(BundleError, match="was changed since it was fetched"):
        _module(tools)
