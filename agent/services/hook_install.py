"""Loop: keep the hook library where containers are given it from.

Done once before anything is served, and again now and then, because host directories are cleaned by
people and by other installers.
"""

from collections.abc import Callable
from pathlib import Path

from agent import logs
from agent.errors import AgentError
from agent.supervisor import Lifeline

log = logs.get(__name__)

EVERY_S = 60.0


class HookInstall:
    """Calls `install`, which changes nothing when all is in place."""

    name = "hook-install"

    def __init__(self, install: Callable[[], Path]) -> None:
        self._install = install
        self._installed: Path | None = None

    def run(self, life: Lifeline) -> None:
        for _ in life.every(EVERY_S):
            self.step_once()

    def step_once(self) -> None:
        try:
            path = self._install()
        except AgentError as error:
            log.failing("hook not installed", error=error)
            return
        log.recovered("hook not installed")
        if path != self._installed:
            self._installed = path
            log.info("hook installed", path=path)
