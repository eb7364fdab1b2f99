"""Run as a program, several at once: take memory by one way until nothing is left of the limit.

    memory_race.py WAY     "ready" first; then what it holds; then, told to go on, what CUDA shows

    memory_race.py ways    the names of all

A way is a function of the driver. Sizes begin large and are halved at each refusal, down to
the smallest that the way has, so that processes meet at the edge of the limit. Standard library only.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from cuda_work import MIB, CudaError, Gpu, go, say

LARGEST = 64 * MIB
OUT_OF_MEMORY = 2
FLOAT = 0x20
ROW_BYTES = 16384  # of arrays: 4096 floats
ON_DEVICE = 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("allocType", ctypes.c_int), ("handleTypes", ctypes.c_int), ("location", Location),
        ("security", ctypes.c_void_p), ("maxSize", ctypes.c_size_t), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]  # fmt: skip


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handleTypes", ctypes.c_int), ("location", Location),
        ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8),
    ]  # fmt: skip


class AllocationNode(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProps), ("access", ctypes.c_void_p), ("accessCount", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t), ("address", ctypes.c_uint64),
    ]  # fmt: skip


class Array2D(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint),
    ]  # fmt: skip


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


DEVICE_MEMORY = {"location": Location(ON_DEVICE, 0)}


class Ways:
    """How memory can be had: each takes a number of bytes, and gives the driver's answer."""

    def __init__(self, gpu: Gpu) -> None:
        self.cuda, self.gpu = gpu.cuda, gpu
        self._pool: ctypes.c_void_p | None = None

    def plain(self, size: int) -> int:
        address = ctypes.c_uint64()
        return int(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))

    def pitch(self, size: int) -> int:
        address, pitch, rows = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t(size >> 9)
        width = ctypes.c_size_t(512)
        return int(
            self.cuda.cuMemAllocPitch_v2(
                ctypes.byref(address), ctypes.byref(pitch), width, rows, ctypes.c_uint(4)
            )
        )

    def managed(self, size: int) -> int:
        address = ctypes.c_uint64()
        return int(
            self.cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size), ON_DEVICE)
        )

    def ordered(self, size: int, function: str = "cuMemAllocAsync") -> int:
        address = ctypes.c_uint64()
        call = getattr(self.cuda, function)
        return int(
            call(ctypes.byref(address), ctypes.c_size_t(size), None)
            or self.cuda.cuStreamSynchronize(None)
        )

    def per_thread(self, size: int) -> int:
        return self.ordered(size, "cuMemAllocAsync_ptsz")

    def from_pool(self, size: int) -> int:
        if self._pool is None:
            props = PoolProps(allocType=1, **DEVICE_MEMORY)
            self._pool = ctypes.c_void_p()
            self.gpu.call("cuMemPoolCreate", ctypes.byref(self._pool), ctypes.byref(props))
        address = ctypes.c_uint64()
        return int(
            self.cuda.cuMemAllocFromPoolAsync(
                ctypes.byref(address), ctypes.c_size_t(size), self._pool, None
            )
            or self.cuda.cuStreamSynchronize(None)
        )

    def physical(self, size: int) -> int:
        handle, prop = ctypes.c_uint64(), AllocationProp(type=1, **DEVICE_MEMORY)
        none = ctypes.c_ulonglong(0)
        return int(
            self.cuda.cuMemCreate(
                ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), none
            )
        )

    def array(self, size: int) -> int:
        made, rows = ctypes.c_void_p(), size // ROW_BYTES
        shape = Array2D(width=ROW_BYTES // 4, height=rows, format=FLOAT, channels=1)
        return int(self.cuda.cuArrayCreate_v2(ctypes.byref(made), ctypes.byref(shape)))

    def deep_array(self, size: int) -> int:
        made, depth = ctypes.c_void_p(), size // (4 * ROW_BYTES)
        shape = Array3D(width=ROW_BYTES // 4, height=4, depth=depth, format=FLOAT, channels=1)
        return int(self.cuda.cuArray3DCreate_v2(ctypes.byref(made), ctypes.byref(shape)))

    def mipmap(self, size: int) -> int:
        made, rows = ctypes.c_void_p(), size // ROW_BYTES
        shape = Array3D(width=ROW_BYTES // 4, height=rows, depth=0, format=FLOAT, channels=1)
        return int(
            self.cuda.cuMipmappedArrayCreate(
                ctypes.byref(made), ctypes.byref(shape), ctypes.c_uint(1)
            )
        )

    def graph(self, size: int) -> int:
        """A graph with an allocation node, launched; the memory stays until somebody frees it."""
        made, ready, node = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        params = AllocationNode(pool=PoolProps(allocType=1, **DEVICE_MEMORY), bytes=size)
        self.gpu.call("cuGraphCreate", ctypes.byref(made), 0)
        none = ctypes.c_size_t(0)
        return int(
            self.cuda.cuGraphAddMemAllocNode(
                ctypes.byref(node), made, None, none, ctypes.byref(params)
            )
            or self.cuda.cuGraphInstantiateWithFlags(
                ctypes.byref(ready), made, ctypes.c_ulonglong(0)
            )
            or self.cuda.cuGraphLaunch(ready, None)
            or self.cuda.cuStreamSynchronize(None)
        )


PAGE = 2 * MIB
WAYS: dict[str, tuple[Callable[[Ways, int], int], int]] = {
    "cuMemAlloc": (Ways.plain, 512),
    "cuMemAllocPitch": (Ways.pitch, 512),
    "cuMemAllocManaged": (Ways.managed, 512),
    "cuMemAllocAsync": (Ways.ordered, 512),
    "cuMemAllocAsync_ptsz": (Ways.per_thread, 512),
    "cuMemAllocFromPoolAsync": (Ways.from_pool, 512),
    "cuMemCreate": (Ways.physical, PAGE),
    "cuArrayCreate": (Ways.array, ROW_BYTES),
    "cuArray3DCreate": (Ways.deep_array, 4 * ROW_BYTES),
    "cuMipmappedArrayCreate": (Ways.mipmap, ROW_BYTES),
    "cuGraphAddMemAllocNode": (Ways.graph, PAGE),
}


def take(way: Callable[[int], int], smallest: int) -> tuple[int, int]:
    """Bytes held when even the smallest is refused, and how often there was a refusal."""
    held, refused = 0, 0
    size = LARGEST - os.getpid() % 31 * PAGE  # processes are not in step with each other
    while size >= smallest:
        result = way(size)
        if result == 0:
            held += size
        elif result == OUT_OF_MEMORY:
            refused += 1
            size = (size // 2 + smallest - 1) // smallest * smallest if size > smallest else 0
        else:
            raise CudaError(f"an allocation of {size} bytes answers {result}")
    return held, refused


def shown(gpu: Gpu) -> dict[str, Any]:
    """What cuMemGetInfo says, in bytes."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    gpu.call("cuMemGetInfo_v2", ctypes.byref(room), ctypes.byref(total))
    return {"total": total.value, "room": room.value}


def main(name: str) -> None:
    if name == "ways":
        say(ways=list(WAYS))
        return
    gpu, (way, smallest) = Gpu(), WAYS[name]
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(gpu.context), 0)
    gpu.call("cuCtxSetCurrent", gpu.context)
    ways = Ways(gpu)
    go()
    held, refused = take(lambda size: way(ways, size), smallest)
    say(held=held, refused=refused, smallest=smallest)
    sys.stdin.readline()
    say(**shown(gpu))
    sys.stdin.readline()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CudaError as error:
        say(error=str(error))
        raise SystemExit(1) from None
