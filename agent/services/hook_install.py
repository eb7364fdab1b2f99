"""Loop: keep the hook library where containers are given it from, and older ones while wanted.

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
LOOKING_S = 600.0  # reading /proc waits for processes that hold their memory map


class HookInstall:
    """Calls `install`, which changes nothing when all is in place; then what follows from it."""

    name = "hook-install"

    def __init__(
        self,
        install: Callable[[], Path],
        *,
        offer: Callable[[Path], None] = lambda _: None,
        collect: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`offer` puts the file under HAMi's name; `collect` deletes others, given its name."""
        self._install = install
        self._offer = offer
        self._collect = collect
        self._installed: Path | None = None

    def run(self, life: Lifeline) -> None:
        for _ in life.every(EVERY_S):
            life.pulse(LOOKING_S)
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
        try:
            self._offer(path)
        except AgentError as error:
            log.failing("hook not offered under HAMi's name", error=error)
            return  # what is there may be told by an older file only
        log.recovered("hook not offered under HAMi's name")
        self._collect(path.name)
