"""Where the libraries that come with this program lie: beside it when frozen, else in the build."""

import platform
import sys
from pathlib import Path


def hook_dir() -> Path:
    """The directory of libvgpu.so; the simulated driver is in `sim/` below it."""
    frozen = getattr(sys, "_MEIPASS", "")  # set by PyInstaller's bootloader
    if frozen:
        return Path(frozen) / "hook"
    return Path(__file__).resolve().parents[1] / ".build" / "hook" / platform.machine()
