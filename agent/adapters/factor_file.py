"""The memory factor on disk: a small file of one number, replaced as a whole."""

from pathlib import Path

from agent.adapters.safe_files import opened_for, read_small, write_whole
from agent.domain.volcano_units import LARGEST_FACTOR
from agent.errors import NodeNotReady

NAME = "gpu-memory-factor"
MAX_BYTES = 64


class FactorFile:
    """Implements `agent.services.memory_factor.FactorStore` in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir

    def load(self) -> int:
        """See `FactorStore.load`. What is no factor counts as none."""
        try:
            with opened_for("read the memory factor", self._folder, NAME) as folder:
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
        with opened_for("write the memory factor", self._folder, NAME) as folder:
            write_whole(NAME, b"%d\n" % factor, 0o600, dir_fd=folder)
