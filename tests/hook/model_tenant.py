"""Runs under the hook: does to itself what the model-based test says, over a socket.

Commands: `alloc MIB DEVICE`, `free`, `look`, `fork`, `exec`, `exit`; one answer line each. A fork's
child, and what exec put in place, start CUDA anew and connect to the socket by themselves.
"""

import ctypes
import os
import socket
import sys

from cuda_calls import MIB, cuda

DEVICES = 2


def start() -> list[int]:
    """CuInit and a context on each device."""
    contexts = []
    assert cuda.cuInit(0) == 0
    for device in range(DEVICES):
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        contexts.append(context.value or 0)
    return contexts


def look(contexts: list[int]) -> None:
    """Ask how much is free, which is when the hook looks for the dead."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    for context in contexts:
        cuda.cuCtxSetCurrent(ctypes.c_void_p(context))
        cuda.cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total))


def alloc(contexts: list[int], mib: int, device: int, blocks: list[int]) -> int:
    """CUresult."""
    address = ctypes.c_uint64()
    cuda.cuCtxSetCurrent(ctypes.c_void_p(contexts[device]))
    result = int(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB)))
    if result == 0:
        blocks.append(address.value)
    return result


def serve(path: str) -> None:
    """Connect, start CUDA, say the pid, obey until told to exit."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        contexts = start()
        blocks: list[int] = []
        stream = connection.makefile("rw")
        print(os.getpid(), file=stream, flush=True)
        for line in stream:
            command, *words = line.split()
            answer = 0
            if command == "alloc":
                answer = alloc(contexts, int(words[0]), int(words[1]), blocks)
            elif command == "free" and blocks:
                answer = int(cuda.cuMemFree_v2(ctypes.c_uint64(blocks.pop())))
            elif command == "look":
                look(contexts)
            elif command == "fork" and os.fork() == 0:
                stream.close()
                connection.close()
                serve(path)
                os._exit(0)
            elif command == "exec":
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - a program in place of this
            elif command == "exit":
                return
            print(answer, file=stream, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
