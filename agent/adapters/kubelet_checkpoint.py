"""Kubelet's `kubelet_internal_checkpoint`: the books it starts from, beside its socket."""

import os
from pathlib import Path

from agent.adapters.safe_files import opened_directory, read_small
from agent.domain.kubelet_books import Entry, MalformedCheckpoint, decode_checkpoint
from agent.errors import KubeletUnavailable

NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 4 << 20


class KubeletCheckpoint:
    """Implements `ports.Checkpoint`. Used by one thread; reads again only what has changed."""

    def __init__(self, device_plugins_dir: Path) -> None:
        self._directory = device_plugins_dir
        self._read: tuple[tuple[int, ...], tuple[Entry, ...]] | None = None

    def entries(self) -> tuple[Entry, ...]:
        """See `ports.Checkpoint.entries`."""
        path = self._directory / NAME
        try:
            with opened_directory(self._directory) as folder:
                info = os.stat(NAME, dir_fd=folder, follow_symlinks=False)
                identity = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
                if self._read is not None and self._read[0] == identity:
                    return self._read[1]
                content = read_small(NAME, MAX_BYTES, dir_fd=folder)
        except OSError as error:
            raise KubeletUnavailable(f"kubelet's {path} cannot be read: {error}") from error
        if content is None:
            raise KubeletUnavailable(
                f"kubelet's {path} is no file of at most {MAX_BYTES} bytes, so it is not read"
            )
        try:
            entries = decode_checkpoint(content.decode(errors="replace"))
        except MalformedCheckpoint as error:
            raise KubeletUnavailable(f"kubelet's {path} cannot be understood: {error}") from error
        self._read = identity, entries
        return entries
