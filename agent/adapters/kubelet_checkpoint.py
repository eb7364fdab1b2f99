"""Kubelet's `kubelet_internal_checkpoint`: the books it starts from, beside its socket."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from agent.adapters.safe_files import opened_directory, read_small
from agent.domain.kubelet_books import (
    Entry,
    MalformedCheckpoint,
    decode_checkpoint,
    decode_registered,
)
from agent.errors import KubeletUnavailable

NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 4 << 20

T = TypeVar("T")


class KubeletCheckpoint:
    """Implements `ports.Checkpoint`. Used by one thread; reads again only what has changed."""

    def __init__(self, device_plugins_dir: Path) -> None:
        self._entries = _Part(device_plugins_dir, decode_checkpoint)
        self._registered = _Part(device_plugins_dir, decode_registered)

    def entries(self) -> tuple[Entry, ...]:
        """See `ports.Checkpoint.entries`."""
        return self._entries.now()

    def registered(self) -> Mapping[str, tuple[str, ...]]:
        """By resource, the ids that can be given. Raises KubeletUnavailable."""
        return self._registered.now()


class _Part(Generic[T]):
    """What one look into the file is for."""

    def __init__(self, directory: Path, decode: Callable[[str], T]) -> None:
        self._directory = directory
        self._decode = decode
        self._read: tuple[tuple[int, ...], T] | None = None

    def now(self) -> T:
        """As the file is. Raises KubeletUnavailable."""
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
            found = self._decode(content.decode(errors="replace"))
        except MalformedCheckpoint as error:
            raise KubeletUnavailable(f"kubelet's {path} cannot be understood: {error}") from error
        self._read = identity, found
        return found
