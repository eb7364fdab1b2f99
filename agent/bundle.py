"""Where the files that come with this program lie: beside it when frozen, else in the tree."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path


def data_dir() -> Path:
    """The directory below which files have the names that they have in the tree."""
    frozen = getattr(sys, "_MEIPASS", "")  # set by PyInstaller's bootloader
    return Path(frozen) if frozen else Path(__file__).resolve().parents[1]


def hook_dir() -> Path:
    """The directory of libvgpu.so; the simulated driver is in `sim/` below it."""
    frozen = getattr(sys, "_MEIPASS", "")
    if frozen:
        return Path(frozen) / "hook"
    return data_dir() / ".build" / "hook" / platform.machine()


def web_dir() -> Path:
    """The directory of the web page."""
    return data_dir() / "agent" / "web"


def frozen_folder() -> Path | None:
    """The folder of the frozen program that runs, which can be installed; None: from source."""
    return Path(sys.executable).resolve().parent if getattr(sys, "_MEIPASS", "") else None


def host_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs of the host that are started from here.

    When frozen, ours has the search path of our own libraries in it, with which theirs would fail.
    Source: PyInstaller's bootloader, which keeps the one before as LD_LIBRARY_PATH_ORIG.
    """
    own = {name: value for name, value in environ.items() if not name.startswith("_PYI_")}
    before = own.pop("LD_LIBRARY_PATH_ORIG", None)
    if before is not None:
        own["LD_LIBRARY_PATH"] = before
    elif getattr(sys, "_MEIPASS", ""):
        own.pop("LD_LIBRARY_PATH", None)
    return own


def restore_environment() -> None:
    """Have every program that is started from here begin as if it were started by the host.

    Our own libraries are found all the same: the loader has read the search path by now.
    """
    if getattr(sys, "_MEIPASS", ""):
        own = host_environment(os.environ)
        os.environ.clear()
        os.environ.update(own)
