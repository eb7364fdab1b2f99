"""The part of the demo that an operator plays: look who uses the GPUs, change a limit, be warned.

Everything goes through the commands that an operator has, of the same program.
"""

import json
from dataclasses import dataclass
from typing import Any

from agent.sim.container import Container
from agent.sim.node import SimNode

MIB = 1 << 20
STOLEN_MIB = 1500
REFUSED = 1  # exit code of `vgpu-agent limit`


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with a shell on the node."""

    node: SimNode

    def top(self) -> str:
        """What `vgpu-agent top --once` prints."""
        return self._ran("top", "--once", "--socket", str(self.node.root / "run" / "read.sock"))

    def use(self) -> dict[str, Any]:
        """What `vgpu-agent top --json` prints."""
        said = self._ran("top", "--json", "--socket", str(self.node.root / "run" / "read.sock"))
        document: dict[str, Any] = json.loads(said)
        return document

    def limit(self, target: str, *flags: str) -> str:
        """What `vgpu-agent limit` prints."""
        return self._ran("limit", target, "--runtime-dir", str(self.node.root / "run"), *flags)

    def refused_limit(self, target: str, *flags: str) -> str:
        """What `vgpu-agent limit` says when it may not."""
        done = self.node.run_plain(
            "limit", target, "--runtime-dir", str(self.node.root / "run"), *flags
        )
        if done.returncode != REFUSED:
            raise RuntimeError(f"limit ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stderr.strip().removeprefix("vgpu-agent limit: ")

    def _ran(self, *words: str) -> str:
        done = self.node.run_plain(*words)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def used_mib(self) -> dict[str, tuple[int, int]]:
        """By container: what it holds by its own count, and by the driver's, in MiB."""
        return {
            f"{one['pod']}/{one['container']}": (
                sum(_bytes(gpu["self_reported"], "used_bytes") for gpu in one["devices"]) // MIB,
                sum(_bytes(gpu["driver"], "memory_used_bytes") for gpu in one["devices"]) // MIB,
            )
            for one in self.use()["containers"]
        }

    def bypasses(self) -> list[str]:
        """Pods that use GPUs past their grants."""
        return [one["pod"] for one in self.use()["bypasses"]]


def _bytes(figures: dict[str, Any] | None, name: str) -> int:
    return int((figures or {}).get(name) or 0)


def thief(node: SimNode) -> Container:
    """A process that holds GPU memory without a grant and without the library."""
    container = Container.start("thief", driver=node.driver, env={}, isolated=False)
    if not container.ask(f"alloc {STOLEN_MIB}").ok:
        container.stop()
        raise RuntimeError("the simulated driver refused memory to a process without limits")
    return container
