"""The same commit gives the same bytes: a second release, made in another tree by another user's habits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bundle.conftest import ROOT, made
from bundling.checksums import sha256
from install_page import PAGES, lines

pytestmark = pytest.mark.timeout(600)


def cloned_tree(revision: str, target: Path) -> Path:
    """The commit, whatever was done to this tree since, with the tools and the Python to freeze."""
    git = ["git", "-c", "advice.detachedHead=false"]
    clone = [*git, "clone", "--quiet", "--no-checkout", ROOT, target]
    subprocess.run(clone, check=True)
    subprocess.run([*git, "checkout", "--quiet", revision], cwd=target, check=True)
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
    if record["revision"] is None or record["modified"]:
        pytest.skip("dist/ was not made from a commit, and nothing else can be made again")
    tree = cloned_tree(record["revision"], tmp_path / "a tree of another name")
    habits = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    [line] = [
        typed for typed in lines(PAGES / "verify.md") if re.fullmatch(r"python3 \S+ \S+ist", typed)
    ]
    done = subprocess.run(
        [sys.executable, *line.split()[1:]],  # build.py dist
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
