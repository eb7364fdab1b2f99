"""From what was the release made? The revision of the tree, and whether it was changed since."""

import json
import subprocess
from pathlib import Path

from bundling.runtime import ROOT


def revision() -> dict[str, str | bool | None]:
    """The commit and its hour; None each where the tree is not a git checkout."""
    commit = _git("rev-parse", "HEAD")
    return {
        "revision": commit,
        "committed_at": _git("show", "--no-patch", "--format=%cI", "HEAD") if commit else None,
        # A release of a changed tree must not pass for one of its commit.
        "modified": bool(_git("status", "--porcelain")) if commit else None,
    }


def write_record(target: Path) -> Path:
    """Write what `vgpu-agent version --json` tells of the build."""
    target.write_text(json.dumps(revision(), indent=1) + "\n")
    return target


def _git(*arguments: str) -> str | None:
    done = subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *arguments],  # noqa: S607 - the one that made the checkout
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None
