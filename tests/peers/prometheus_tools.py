"""How do we get a real Prometheus? Debian's binaries, like container_tools.

promtool evaluates rules and queries with the code of the server itself.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .container_tools import PeersUnavailable, unpacked

__all__ = ["PeersUnavailable", "Promtool", "promtool"]

STEP_S = 60
LINT_ONLY = 3  # exit code of `check metrics` when the page can be read and has bad style


@dataclass(frozen=True, slots=True)
class Promtool:
    """The program."""

    path: Path

    def run(self, *words: str | Path, text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run it with this on stdin."""
        return subprocess.run(
            [self.path, *words], input=text,
            capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip

    def test_rules(self, directory: Path, content: dict[str, Any]) -> str:
        """Run a rule test, as `promtool test rules`; empty: it passed, else what was wrong."""
        file = directory / "test.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        done = self.run("test", "rules", file)
        return "" if done.returncode == 0 else done.stdout + done.stderr


def promtool() -> Promtool:
    """Fetched once. Raises PeersUnavailable."""
    return Promtool(unpacked("prometheus", ("prometheus",), 1) / "usr" / "bin" / "promtool")
