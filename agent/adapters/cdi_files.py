"""CDI files in the directory where container runtimes look for them."""

import contextlib
import os
from pathlib import Path

from agent.adapters.safe_files import (
    check_ours,
    ensured_directory,
    opened_directory,
    read_small,
    refusing,
    write_whole,
)
from agent.boundaries import passed
from agent.domain.cdi import VENDOR, CdiSpec, encode, is_encoded_here

MAX_BYTES = 4 << 20


class HostCdiFiles:
    """Implements `CdiFiles`. Readers see the old file or the new one, never half of one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, spec: CdiSpec) -> bool:
        """See `CdiFiles.write`."""
        content, path = encode(spec), self._directory / spec.file_name
        parent = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # /var/run is a link
        with refusing("write the CDI file", path):
            above = os.open(self._directory.parent, parent)
            try:
                with ensured_directory(self._directory.name, 0o755, dir_fd=above) as fd:
                    check_ours(fd, self._directory)
                    with contextlib.suppress(FileNotFoundError):
                        if read_small(spec.file_name, MAX_BYTES, dir_fd=fd) == content:
                            return False
                    write_whole(spec.file_name, content, 0o644, dir_fd=fd)
            finally:
                os.close(above)
        return True

    def ours(self) -> tuple[str, ...]:
        """Names of the files there that this program has written. Raises NodeNotReady."""
        with refusing("look for CDI files", self._directory):
            try:
                with opened_directory(self._directory) as fd:
                    listed = os.listdir(fd)  # noqa: PTH208 - of a descriptor
                    names = sorted(name for name in listed if name.startswith(VENDOR))
                    found = {name: read_small(name, MAX_BYTES, dir_fd=fd) for name in names}
            except FileNotFoundError:
                return ()
        return tuple(name for name, content in found.items() if is_encoded_here(content or b""))

    def remove(self, name: str) -> None:
        """Remove one of them. Raises NodeNotReady."""
        with (
            refusing("remove the CDI file", self._directory / name),
            contextlib.suppress(FileNotFoundError),
            opened_directory(self._directory) as fd,
        ):
            os.unlink(name, dir_fd=fd)
            passed("cdi-file-removed")
