"""Loop: keep what all containers share in place: the hook library, its lock directory, older hooks.

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
MENDED_S = 5.0  # while something is missing: how late it is seen that somebody has mended it
LOOKING_S = 600.0  # reading /proc waits for processes that hold their memory map


class HookInstall:
    """Calls `install`, which changes nothing when all is in place; then what follows from it."""

    name = "hook-install"

    def __init__(
        self,
        install: Callable[[], Path],
        *,
        offer: Callable[[Path], None] = lambda _: None,
        prepare: Callable[[], object] = lambda: None,
        collect: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`offer` puts the file under HAMi's name; `collect` deletes others, given its name.

        `prepare` is what every Allocate does first, so what it raises is why pods would fail.
        """
        self._install = install
        self._offer = offer
        self._prepare = prepare
        self._collect = collect
        self._installed: Path | None = None
        self._missing = "the hook's files have not been looked at yet"

    def missing(self) -> str:
        """Why no container could be given what it needs, a sentence; empty: it could."""
        return self._missing

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pulse(LOOKING_S)
            self.step_once()
            life.pause(MENDED_S if self._missing else EVERY_S)

    def step_once(self) -> None:
        path = self._put_there()
        offered = path is not None and self._offered(path)
        self._look()
        if path is not None and offered:  # else it may be told by an older file only what is there
            self._collect(path.name)

    def _put_there(self) -> Path | None:
        try:
            path = self._install()
        except AgentError as error:
            log.failing("hook not installed", error=error)
            return None
        log.recovered("hook not installed")
        if path != self._installed:
            self._installed = path
            log.info("hook installed", path=path)
        return path

    def _offered(self, path: Path) -> bool:
        try:
            self._offer(path)
        except AgentError as error:
            log.failing("hook not offered under HAMi's name", error=error)
            return False
        log.recovered("hook not offered under HAMi's name")
        return True

    def _look(self) -> None:
        try:
            self._prepare()
        except AgentError as error:
            log.failing("no container can be given the hook", error=error)
            self._missing = str(error)
            return
        log.recovered("no container can be given the hook")
        self._missing = ""
