"""The same commit gives the same bytes: a second release, made in another tree by another user's habits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle.conftest import ROOT, made
from bundling.checksums import sha256
from bundling.provenance import revision

LEFT_OUT = {".build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}

pytestmark = pytest.mark.timeout(600)


def copied_tree(target: Path) -> Path:
    """The tree without what was made in it, but with the tools and the Python that is frozen."""
    for path in ROOT.iterdir():
        if path.name in LEFT_OUT:
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / path.name, follow_symlinks=False)
    (target / ".build" / "dist").mkdir(parents=True)
    for tools in (".build/venv", ".build/dist/runtime"):
        (target / tools).symlink_to(made(ROOT / tools))
    return target


def sums(folder: Path) -> dict[str, str]:
    """Every file below a folder, with its right to run."""
    return {
        str(path.relative_to(folder)): f"{sha256(path)} {path.stat().st_mode & 0o100:o}"
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_second_release_is_the_same(frozen_folder: Path, tmp_path: Path) -> None:
    record = json.loads(made(ROOT / ".build" / "dist" / "build.json").read_bytes())
    assert revision() == record, "the tree has changed since dist/ was made: make it anew"
    tree = copied_tree(tmp_path / "a tree of another name")
    habits = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "build.py", "dist"],
        cwd=tree, env={"PATH": os.environ["PATH"], **habits}, umask=0o077,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    first, second = sums(frozen_folder), sums(tree / ".build/dist/frozen/vgpu-agent")
    assert {name for name in first | second if first.get(name) != second.get(name)} == set()
    released, again = sums(ROOT / "dist"), sums(tree / "dist")
    released.pop("SHA256SUMS.sig", None)
    assert {name for name in released | again if released.get(name) != again.get(name)} == set()
    assert len(released) >= 6
