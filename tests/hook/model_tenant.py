"""Runs under the hook: does to itself what the model-based test says, over a socket.

A command is one packet: its name, a device and further numbers. The answer is a CUresult and a number,
which is an address, a handle or whatever else the command gives. A descriptor that stands for memory goes
beside the packet. A fork's child, and what exec put in place, start CUDA anew and connect by themselves.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Callable

from cuda_calls import alloc, cuda, free
from memory_calls import (
    FLOAT,
    Array2D,
    array,
    create,
    default_pool,
    draw,
    export,
    map_at,
    pitched,
    pool_mib,
    put,
    release,
    reserve,
    take_in,
    u64,
    unmap,
)

DEVICES = 2
LONGEST_BYTES = 4096


def start() -> list[ctypes.c_void_p]:
    """CuInit and a context on each device."""
    contexts = [ctypes.c_void_p() for _ in range(DEVICES)]
    assert cuda.cuInit(0) == 0
    for device, context in enumerate(contexts):
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    return contexts


def look(contexts: list[ctypes.c_void_p]) -> None:
    """Ask how much is free, which is when the hook looks for the dead."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    for context in contexts:
        cuda.cuCtxSetCurrent(context)
        cuda.cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total))


def array_of(mib: int) -> tuple[int, int]:
    """CUresult and handle of an array with rows of 512 bytes."""
    result, made = array("cuArrayCreate_v2", Array2D(128, mib << 11, FLOAT, 1))
    return result, made.value or 0


def map_anywhere(handle: int, mib: int) -> tuple[int, int]:
    """CUresult and address of a mapping."""
    address = reserve(mib)
    return map_at(address, mib, handle), address


class IpcHandle(ctypes.Structure):
    """What another process opens memory by."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def name_of(address: int) -> tuple[int, int]:
    """CUresult and that handle, as one large number."""
    handle = IpcHandle()
    result = cuda.cuIpcGetMemHandle(ctypes.byref(handle), u64(address))
    return int(result), int.from_bytes(handle.bytes, "little")


def open_by(name: int) -> tuple[int, int]:
    """CUresult and address of memory of another process."""
    address = ctypes.c_uint64()
    handle = IpcHandle.from_buffer_copy(name.to_bytes(64, "little"))
    return int(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1)), address.value


# The device is current. The second half gives back; nothing but a CUresult comes of that.
COMMANDS: dict[str, Callable[..., int | tuple[int, int]]] = {
    "alloc": lambda _, mib: alloc(mib),
    "managed": lambda _, mib: alloc(mib, "cuMemAllocManaged", 1),
    "pitched": lambda _, mib: pitched(mib),
    "array": lambda _, mib: array_of(mib),
    "draw": lambda _, mib: draw(mib),
    "create": lambda device, mib: create(mib, 1, device),
    "import": lambda _, fd: (0, take_in(fd)),
    "map": lambda _, handle, mib: map_anywhere(handle, mib),
    "name": lambda _, address: name_of(address),
    "open": lambda _, name: open_by(name),
    "reserved": lambda device: (0, int(pool_mib(default_pool(device)))),
    "free": lambda _, address: free(address),
    "put": lambda _, address: put(address),
    "destroy": lambda _, made: cuda.cuArrayDestroy(ctypes.c_void_p(made)),
    "release": lambda _, handle: release(handle),
    "unmap": lambda _, address, mib: unmap(address, mib),
    "close": lambda _, address: cuda.cuIpcCloseMemHandle(u64(address)),
    "trim": lambda device: cuda.cuMemPoolTrimTo(default_pool(device), u64(0)),
    "synchronize": lambda _: cuda.cuCtxSynchronize(),
}


def answer(connection: socket.socket, result: int = 0, number: int = 0, *fds: int) -> None:
    """Say what came of a command, and keep no descriptor that goes with it."""
    socket.send_fds(connection, [f"{result} {number}".encode()], fds)
    for fd in fds:
        os.close(fd)


def serve(path: str) -> None:
    """Connect, start CUDA, say the pid, obey until told to exit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        contexts = start()
        answer(connection, 0, os.getpid())
        while True:
            packet, fds, _, _ = socket.recv_fds(connection, LONGEST_BYTES, 1)
            command, *words = packet.decode().split() or ["exit"]
            numbers = [*map(int, words), *fds]
            if command == "exit":
                return
            if command == "exec":
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - a program in place of this
            elif command == "fork":
                if os.fork() == 0:
                    connection.close()
                    serve(path)
                    os._exit(0)
                answer(connection)
            elif command == "look":
                look(contexts)
                answer(connection)
            elif command == "export":
                answer(connection, 0, 0, export(numbers[1]))
            else:
                cuda.cuCtxSetCurrent(contexts[numbers[0]])
                came = COMMANDS[command](*numbers)
                answer(connection, *(came if isinstance(came, tuple) else (came,)))
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    serve(sys.argv[1])
