"""Runs inside the programs under test, besides cuda_calls: streams, events, kernels and graphs."""

import ctypes
import os
import struct
import time
from pathlib import Path
from typing import Any

from cuda_calls import cuda

Handle = ctypes.c_void_p
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1


def made(function: str, *arguments: Any) -> Handle:
    """What a function gives out by its first parameter."""
    handle = Handle()
    result = getattr(cuda, function)(ctypes.byref(handle), *arguments)
    assert result == 0, (function, result)
    return handle


def kernel(name: str) -> Handle:
    """A function of a fresh module; call after start()."""
    module = made("cuModuleLoadData", b"image")
    return made("cuModuleGetFunction", module, name.encode())


def stream(flags: int = NON_BLOCKING) -> Handle:
    """A new stream, by default one that has nothing to do with the NULL stream."""
    return made("cuStreamCreate", flags)


def event(flags: int = 0) -> Handle:
    """A new event."""
    return made("cuEventCreate", flags)


def launch(function: Handle, where: Handle | None = None, call: str = "cuLaunchKernel") -> int:
    """CUresult of a launch."""
    return int(getattr(cuda, call)(function, 1, 1, 1, 32, 1, 1, 0, where, None, None))


def record(where: Handle | None = None) -> Handle:
    """A new event, recorded."""
    fresh = event()
    assert cuda.cuEventRecord(fresh, where) == 0
    return fresh


def elapsed_us(first: Handle, last: Handle) -> int:
    """Time between two events that happened."""
    ms = ctypes.c_float()
    result = cuda.cuEventElapsedTime(ctypes.byref(ms), first, last)
    assert result == 0, result
    return round(ms.value * 1000)


def begin(where: Handle, mode: int = GLOBAL) -> int:
    """CUresult of beginning a capture."""
    return int(cuda.cuStreamBeginCapture_v2(where, mode))


def end(where: Handle) -> tuple[int, Handle]:
    """CUresult and graph of ending it."""
    graph = Handle()
    return int(cuda.cuStreamEndCapture(where, ctypes.byref(graph))), graph


def status(where: Handle | None) -> tuple[int, int]:
    """CUresult and capture status of a stream."""
    found = ctypes.c_int(-1)
    return int(cuda.cuStreamIsCapturing(where, ctypes.byref(found))), found.value


def executable(graph: Handle) -> Handle:
    """An executable graph."""
    return made("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))


def now_us() -> int:
    """The simulated driver's clock."""
    cuda.sim_now_ns.restype = ctypes.c_uint64
    return int(cuda.sim_now_ns()) // 1000


def gpu_us(uuid: str, pid: int = 0) -> int:
    """How long the simulated GPU worked for a process (0: for all)."""
    cuda.sim_gpu_time.restype = ctypes.c_uint64
    return int(cuda.sim_gpu_time(uuid.encode(), pid)) // 1000


def events() -> int:
    """How many events of this process there are."""
    return int(cuda.sim_event_count())


# --- what the hook has charged --------------------------------------------------------------------

CHARGED_AT, DEVICE_BYTES = 2031616 + 64 + 64 + 16, 256  # in the usage region (hook/region_layout.h)


def charged_us(place: int = 0) -> int:
    """GPU time that the container was charged."""
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return int(struct.unpack_from("<Q", region, CHARGED_AT + DEVICE_BYTES * place)[0]) // 1000


def settled_us(expected_us: int, place: int = 0) -> int:
    """The same, when what was measured last has been read."""
    deadline = time.monotonic() + 10
    while charged_us(place) < expected_us and time.monotonic() < deadline:
        time.sleep(0.005)
    return charged_us(place)
