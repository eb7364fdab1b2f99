"""In which order does something bring what it writes to disk? A power cut shows only what was synced."""

import os
import stat
from collections.abc import Callable

import pytest


def disk_calls(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[str]:
    """What `action` syncs and renames: `file`, `directory`, `rename`, in order."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def renamed(*arguments: object, **directories: object) -> None:
        calls.append("rename")
        rename(*arguments, **directories)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        patched.setattr(os, "rename", renamed)
        action()
    return calls
