"""The memory factor on disk: a small file of one number, replaced as a whole."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent.adapters.safe_files import opened_directory, read_small, refusing, write_whole
from agent.domain.volcano_units import LARGEST_FACTOR
from agent.errors import NodeNotReady

NAME = "gpu-memory-factor"
MAX_BYTES = 64


class FactorFile:
    """Implements `agent.services.memory_factor.FactorStore` in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[int]:
        with refusing(what, self._folder / NAME):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with opened_directory(self._folder) as fd:
                yield fd

    def load(self) -> int:
        """See `FactorStore.load`. What is no factor counts as none."""
        try:
            with self._opened("read the memory factor") as folder:
                content = read_small(NAME, MAX_BYTES, dir_fd=folder) or b""
        except NodeNotReady as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return 0
            raise
        text = content.decode("ascii", "replace").strip()
        factor = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0  # noqa: PLR2004
        return factor if factor <= LARGEST_FACTOR else 0

    def save(self, factor: int) -> None:
        """See `FactorStore.save`."""
        with self._opened("write the memory factor") as folder:
            write_whole(NAME, b"%d\n" % factor, 0o600, dir_fd=folder)
