"""Runs inside the programs under test: the CUDA driver API by ctypes, as bare as it is in C."""

import ctypes
import json
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)


def start(device: int = 0) -> int:
    """cuInit, and a context on the device; gives the first CUresult that is not 0."""
    context = ctypes.c_void_p()
    return int(
        cuda.cuInit(0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or cuda.cuCtxSetCurrent(context)
    )


def alloc(mib: float, function: str = "cuMemAlloc_v2", *more: Any) -> tuple[int, int]:
    """CUresult and address of an allocation through any function of the usual shape."""
    address = ctypes.c_uint64()
    result = getattr(cuda, function)(ctypes.byref(address), ctypes.c_size_t(int(mib * MIB)), *more)
    return int(result), address.value


def free(address: int, function: str = "cuMemFree_v2", *more: Any) -> int:
    """CUresult of giving an address back."""
    return int(getattr(cuda, function)(ctypes.c_uint64(address), *more))


def info_mib() -> tuple[int, int]:
    """Free and total of cuMemGetInfo for the current device."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total)) == 0
    return room.value // MIB, total.value // MIB


def total_mib(device: int = 0) -> int:
    """CuDeviceTotalMem."""
    total = ctypes.c_size_t()
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
    return total.value // MIB


def used_mib() -> int:
    """What cuMemGetInfo says is taken."""
    room, total = info_mib()
    return total - room


def owner(function: Any) -> str:
    """File name of the library that a function pointer (or its address) lies in."""

    class DlInfo(ctypes.Structure):
        _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p),
                    ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]  # fmt: skip

    found = DlInfo()
    address = function if isinstance(function, int) else ctypes.cast(function, ctypes.c_void_p)
    if not libc.dladdr(ctypes.c_void_p(getattr(address, "value", address)), ctypes.byref(found)):
        return ""
    return (found.path or b"").decode().rsplit("/", 1)[-1]


def looked_up(name: str, handle: int | None = 0) -> int:
    """Address that dlsym gives; handle 0 is RTLD_DEFAULT, None is libcuda's."""
    libc.dlsym.restype = ctypes.c_void_p
    where = cuda._handle if handle is None else handle
    return int(libc.dlsym(ctypes.c_void_p(where), name.encode()) or 0)


def proc_address(name: str, version: int, flags: int = 0, function: str = "_v2") -> tuple[int, int]:
    """CUresult and pointer of cuGetProcAddress, in its first or second version."""
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    arguments: list[Any] = [name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags)]
    if function == "_v2":
        arguments.append(ctypes.byref(status))
    call: Callable[..., int] = getattr(cuda, "cuGetProcAddress" + function)
    return call(*arguments), pointer.value or 0


def say(**answer: Any) -> None:
    """Tell the test, as the last line of stdout."""
    print(json.dumps(answer))  # noqa: T201 - how it speaks
