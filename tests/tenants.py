"""Workloads in one container, each a process that answers to commands."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hooked_programs import Node


class Tenant:
    """A workload in the container; answers to commands."""

    def __init__(self, node: Node, **env: str) -> None:
        self.process = subprocess.Popen(
            [node.sim.libraries / "sim-tenant"],
            env=node.environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def ask(self, command: str) -> dict[str, Any]:
        self.tell(command)
        return self.hear()

    def end(self, how: int | None = None) -> None:
        """Let it end, or end it by a signal; it is reaped."""
        if how is not None:
            self.process.send_signal(how)
        with contextlib.suppress(OSError):
            self.process.communicate(timeout=60)


@contextmanager
def tenants(node: Node, count: int, **env: str) -> Iterator[list[Tenant]]:
    """So many of them, started together; whatever is left of them ends with the block."""
    with ExitStack() as ending:
        started = []
        for _ in range(count):
            started.append(Tenant(node, **env))
            ending.callback(started[-1].end, signal.SIGKILL)
        for tenant in started:
            assert tenant.hear()["ok"]
        yield started
