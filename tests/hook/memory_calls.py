"""Runs inside the programs under test: the driver's less common ways to memory, and both counts of it."""

import ctypes
import os
import struct
import time
from pathlib import Path
from typing import Any

from cuda_calls import MIB, cuda

# --- who holds what -------------------------------------------------------------------------------


def charged_mib() -> float:
    """What the hook says is taken of the current device."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total)) == 0
    return (total.value - room.value) / MIB


UUIDS_AT, GPUS, UUID_BYTES, ROW = 8, 64, 96, struct.Struct("<IIQQ")
ROWS_AT = UUIDS_AT + GPUS * UUID_BYTES + GPUS * 8


def held_mib(gpu: int = 0) -> float:
    """What the simulated driver says that all programs hold of a GPU (hook/sim/memory.c)."""
    raw = Path(os.environ["VGPU_SIM_DRIVER"] + ".state").read_bytes()
    rows = struct.unpack_from("<I", raw, 4)[0]
    found = (ROW.unpack_from(raw, ROWS_AT + ROW.size * i) for i in range(rows))
    return sum(held for pid, at, _, held in found if pid and at == gpu) / MIB


def both() -> list[float]:
    """Both counts; they must agree whenever nothing is under way."""
    return [charged_mib(), held_mib()]


def settled(mib: float, within_s: float = 10) -> None:
    """Wait until the hook counts this much: what a process left behind is not gone at once."""
    deadline = time.monotonic() + within_s
    while charged_mib() != mib and time.monotonic() < deadline:
        time.sleep(0.01)


# --- pools ----------------------------------------------------------------------------------------


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("allocType", ctypes.c_int), ("handleTypes", ctypes.c_int), ("location", Location),
        ("security", ctypes.c_void_p), ("maxSize", ctypes.c_size_t), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]  # fmt: skip


RESERVED, USED, THRESHOLD = 5, 7, 4


def pool(kind: int = 1, device: int = 0) -> ctypes.c_void_p:
    """A pool on the device (or, kind 2, in host memory)."""
    made, props = ctypes.c_void_p(), PoolProps(allocType=1, location=Location(kind, device))
    assert cuda.cuMemPoolCreate(ctypes.byref(made), ctypes.byref(props)) == 0
    return made


def default_pool(device: int = 0) -> ctypes.c_void_p:
    """The device's own pool."""
    found = ctypes.c_void_p()
    assert cuda.cuDeviceGetDefaultMemPool(ctypes.byref(found), device) == 0
    return found


def pool_mib(of: ctypes.c_void_p, attribute: int = RESERVED) -> float:
    """A figure of a pool as the driver gives it."""
    value = ctypes.c_uint64()
    assert cuda.cuMemPoolGetAttribute(of, attribute, ctypes.byref(value)) == 0
    return value.value / MIB


def keep(of: ctypes.c_void_p, mib: int) -> None:
    """Let the pool keep this much when it is unused."""
    value = ctypes.c_uint64(mib * MIB)
    assert cuda.cuMemPoolSetAttribute(of, THRESHOLD, ctypes.byref(value)) == 0


def draw(mib: float, of: Any = None, stream: Any = None, suffix: str = "") -> tuple[int, int]:
    """CUresult and address of a stream-ordered allocation."""
    address, size = ctypes.c_uint64(), ctypes.c_size_t(int(mib * MIB))
    if of is None:
        result = getattr(cuda, "cuMemAllocAsync" + suffix)(ctypes.byref(address), size, stream)
    else:
        function = getattr(cuda, "cuMemAllocFromPoolAsync" + suffix)
        result = function(ctypes.byref(address), size, of, stream)
    return int(result), address.value


def put(address: int, stream: Any = None, suffix: str = "") -> int:
    """CUresult of giving stream-ordered memory back."""
    return int(getattr(cuda, "cuMemFreeAsync" + suffix)(ctypes.c_uint64(address), stream))
