"""The compiled C under test: built once per run, or the files of an earlier run if still true."""

import functools
import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def compiler() -> ModuleType:
    """`hook/compile.py`, which is no package."""
    sys.path.append(str(ROOT / "hook"))
    return importlib.import_module("compile")


@functools.cache
def built() -> Path:
    """The directory with libvgpu.so and sim/ for this machine."""
    machine = platform.machine()
    compiler().build_all(ROOT / ".build" / "hook", sys.executable, machine)
    return ROOT / ".build" / "hook" / machine


def sim_libraries() -> Path:
    """The directory with the simulated driver, its tenant and its runtime."""
    return built() / "sim"
