"""Records of changed limits on disk: `<state dir>/limits/<pod uid>_<container>.json`.

Written whole and synced, so that a power cut leaves the old one or the new one.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agent import logs
from agent.adapters.caches import directory_name, is_directory_name
from agent.adapters.safe_files import opened_directory, read_small, refusing, write_whole
from agent.boundaries import passed
from agent.domain.limit_record import (
    MAX_RECORD_BYTES,
    LimitRecord,
    MalformedRecord,
    decode_record,
    encode_record,
)

log = logs.get(__name__)

FOLDER, SUFFIX = "limits", ".json"


class LimitRecords:
    """Reads and writes them. Keeps no state; writers of one container take turns elsewhere."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / FOLDER

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[int]:
        with refusing(what, self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with opened_directory(self.folder) as fd:
                yield fd

    def read(self, pod_uid: str, container: str) -> LimitRecord | None:
        """A container's record; None: its limits were never changed. Raises NodeNotReady.

        One that cannot be read counts as none: what the file says then holds.
        """
        name = directory_name(pod_uid, container) + SUFFIX
        if not self.folder.is_dir():
            return None
        with self._opened("read the record of changed limits") as folder:
            try:
                content = read_small(name, MAX_RECORD_BYTES, dir_fd=folder)
            except FileNotFoundError:
                return None
        try:
            return decode_record(content or b"")
        except MalformedRecord as error:
            log.failing("limit record unreadable", about=name, error=error)
            return None

    def write(self, pod_uid: str, container: str, record: LimitRecord) -> None:
        """Remember, on disk before this returns. Raises NodeNotReady."""
        name = directory_name(pod_uid, container) + SUFFIX
        with self._opened("remember the changed limits") as folder:
            write_whole(name, encode_record(record), 0o600, dir_fd=folder)

    def listed(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and container of every record. Raises NodeNotReady."""
        if not self.folder.is_dir():
            return ()
        with self._opened("list the records of changed limits") as folder:
            names = _names(folder)
        found = [name.partition("_") for name in names if is_directory_name(name)]
        return tuple((uid, container) for uid, _, container in found)

    def forget(self, pod_uid: str, container: str) -> None:
        """Delete a container's record, if there is one. Raises NodeNotReady."""
        name = directory_name(pod_uid, container) + SUFFIX
        if self.folder.is_dir():
            with (
                self._opened("forget changed limits") as folder,
                contextlib.suppress(FileNotFoundError),
            ):
                os.unlink(name, dir_fd=folder)
                passed("limit-record-forgotten")


def _names(folder: int) -> list[str]:
    return sorted(n.removesuffix(SUFFIX) for n in os.listdir(folder) if n.endswith(SUFFIX))
