"""CDI files in the directory where container runtimes look for them."""

import contextlib
import os
from pathlib import Path

from agent.adapters.safe_files import (
    check_ours,
    ensured_directory,
    read_small,
    refusing,
    write_whole,
)
from agent.domain.cdi import CdiSpec, encode

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
