"""How do we get a real Prometheus? Debian's binaries, like container_tools.

promtool evaluates rules and queries with the code of the server itself.
"""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .container_tools import PeersUnavailable, unpacked
from .processes import Process, free_port

__all__ = ["PeersUnavailable", "Prometheus", "Promtool", "promtool", "running_prometheus"]

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
    return Promtool(_root() / "promtool")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that scrapes."""

    address: str
    process: Process

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What the expression is now: labels and value of each sample."""
        words = urllib.parse.urlencode({"query": expression})
        url = f"http://{self.address}/api/v1/query?{words}"
        with urllib.request.urlopen(url, timeout=STEP_S) as answer:
            result = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]


@contextmanager
def running_prometheus(state: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Start one in an empty directory. Raises PeersUnavailable."""
    program = _root() / "prometheus"
    (state / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    words = [str(program), f"--config.file={state / 'prometheus.yaml'}"]
    words += [f"--storage.tsdb.path={state / 'data'}", f"--web.listen-address={address}"]
    server = Prometheus(address, Process(words, log=state / "prometheus.log"))
    server.process.start()
    try:
        yield server
    finally:
        server.process.stop()


def _root() -> Path:
    return unpacked("prometheus", ("prometheus",), 1) / "usr" / "bin"
