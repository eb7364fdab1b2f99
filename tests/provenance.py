"""Of which commit, day and machine is a table? The one place where results are described."""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "docs/results"  # what is written there is what a tree measured, not what it was


def commit(root: Path = ROOT) -> str:
    """The commit of a tree, and whether files that it keeps, results aside, were other than in it."""
    short = _said(root, "rev-parse", "--short", "HEAD")
    if not short:
        return "unknown"
    changed = _said(root, "status", "--porcelain", "-uno", "--", ".", f":(exclude){RESULTS}")
    return f"{short}, changed since" if changed else short


def today() -> str:
    """The day, as 2026-01-31."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The machine in words: processors, kernel, Python."""
    models = (
        line.split(":", 1)[1].strip()
        for line in cpuinfo.read_text().splitlines()
        if line.startswith("model name")
    )
    model = next(models, platform.machine())
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def described() -> dict[str, str]:
    """All of it. To be asked before a measurement begins: the tree may change while it runs."""
    return {"commit": commit(), "date": today(), "machine": machine()}


def listed(about: Mapping[str, object]) -> Iterable[str]:
    """The same as lines of a page."""
    return [f"- {key}: {value}" for key, value in about.items()]


def _said(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # a machine with a GPU may have no git
        return ""
    return done.stdout.strip()
