"""Runs inside the programs under test: what the hook itself makes of shares of GPU time."""

import ctypes
import mmap
import os
from pathlib import Path

from limits_bed import LINES_AT, Line


class CoreShare(ctypes.Structure):
    """`struct core_share` of limits.h."""

    _fields_ = (
        ("enforced", ctypes.c_bool),
        ("permille", ctypes.c_uint32),
        ("container_permille", ctypes.c_uint32),
        ("lent_permille", ctypes.c_uint32),
        ("lent_until_ns", ctypes.c_uint64),
        ("blocked_until_ns", ctypes.c_uint64),
    )


_hook = ctypes.CDLL(os.environ["LD_PRELOAD"])
_hook.limits_core.restype = CoreShare


def share(place: int = 0) -> list[int]:
    """Every field of limits_core, in order, but what is the container's."""
    found = _hook.limits_core(place)
    names = [name for name, _ in CoreShare._fields_]
    return [getattr(found, name) for name in names if name != "container_permille"]


def container_permille(place: int = 0) -> int:
    """What the container has, whatever the process has lowered for itself."""
    return int(_hook.limits_core(place).container_permille)


def change_line(path: str, memory_bytes: int, **more: int) -> None:
    """Change the first device's line of a limits file as the agent does."""
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        Line(memory, LINES_AT).change(memory_bytes, **more)
