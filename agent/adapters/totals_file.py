"""The ledger of totals on disk: one small file, replaced as a whole.

It is renamed into place before anybody is shown what it says, so a killed agent goes on where it
was: what one process has written the next one reads, flushed or not. Only a machine that loses its
power needs more, and there every container starts anew too; so the disk is made to write once a
minute and not with every look.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from agent import logs
from agent.adapters.safe_files import opened_for, read_small, write_whole
from agent.domain.totals import EMPTY, Ledger, MalformedTotals, decode, encode
from agent.errors import NodeNotReady

log = logs.get(__name__)

NAME = "totals.json"
MAX_FILE_BYTES = 16 << 20
FLUSH_EVERY_S = 60.0
MAX_LEFTOVERS = 1000


class TotalsFile:
    """Implements `ports.TotalsStore` in the state directory. Used by one thread."""

    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = state_dir
        self._clock = clock
        self._flushed_s: float | None = None

    def load(self) -> Ledger:
        """See `ports.TotalsStore.load`."""
        try:
            with opened_for("read the totals of containers", self._folder, NAME) as folder:
                _remove_leftovers(folder)
                content = read_small(NAME, MAX_FILE_BYTES, dir_fd=folder)
                return decode(content or b"")
        except NodeNotReady as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                log.warning("totals start anew", error=error)
        except MalformedTotals as error:
            log.warning("totals start anew", file=self._folder / NAME, error=error)
        return EMPTY

    def save(self, ledger: Ledger) -> None:
        """See `ports.TotalsStore.save`."""
        now_s = self._clock()
        flush = self._flushed_s is None or now_s - self._flushed_s >= FLUSH_EVERY_S
        with opened_for("write the totals of containers", self._folder, NAME) as folder:
            write_whole(NAME, encode(ledger), 0o600, dir_fd=folder, flush=flush)
        if flush:
            self._flushed_s = now_s


def _remove_leftovers(folder: int) -> None:
    """What an agent that was killed did not rename."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_LEFTOVERS)]
    for name in names:
        if name.startswith(f".{NAME}."):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
