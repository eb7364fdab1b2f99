"""From what was the release made? The revision of the tree, and whether it was changed since."""

import json
import os
import subprocess
from pathlib import Path

from bundling.runtime import ROOT, BundleError

# Variables that git gives to hooks: a hook may build another tree than its own.
_OF_ANOTHER_TREE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def revision(tree: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit and its hour; None each where the tree is not a git checkout itself.

    One that lies inside of another checkout is not: its commit would say nothing of our files.
    Raises BundleError where git does not tell.
    """
    if not (tree / ".git").exists():
        return {"revision": None, "committed_at": None, "modified": None}
    return {
        "revision": _git(tree, "rev-parse", "HEAD"),
        "committed_at": _git(tree, "show", "--no-patch", "--format=%cI", "HEAD"),
        # A release of a changed tree must not pass for one of its commit.
        "modified": bool(_git(tree, "status", "--porcelain")),
    }


def write_record(target: Path) -> Path:
    """Write what `vgpu-agent version --json` tells of the build."""
    target.write_text(json.dumps(revision(), indent=1) + "\n")
    return target


def _git(tree: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_TREE}
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - the one that made the checkout
            cwd=tree,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise BundleError(
            f"{tree} is a git checkout, and there is no git to tell of which revision"
        ) from None
    if done.returncode:
        raise BundleError(
            f"git does not tell of which revision {tree} is, so the release could not either: "
            f"{done.stderr.strip()}"
        )
    return done.stdout.strip()
