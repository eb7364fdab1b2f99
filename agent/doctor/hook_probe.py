"""The child of `vgpu-agent doctor`: a CUDA program that tries to take more than it may.

Started by doctor with the hook in LD_PRELOAD and a limit in its environment. `vgpu-agent
doctor-probe load` only says that it lives, `vgpu-agent doctor-probe take BYTES` goes for its limit
of that many. One JSON object on stdout. A program of the standard library alone, so that it starts
fast.
"""

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
MIB = 1 << 20
SLACK_BYTES = 8 * MIB  # drivers give memory in pieces of 2 MiB


def main(arguments: list[str]) -> int:
    """Do what is asked for; the exit code is 0 whatever the driver says."""
    found: dict[str, Any] = {"loaded": True}
    if arguments[:1] == ["take"]:
        found |= take(int(arguments[1]))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


def take(limit_bytes: int) -> dict[str, Any]:
    """Ask for limit + 1 MiB; then for what is free, less a little; then for that little and more.

    Gives CUresults by step; `missing` when there is no CUDA library, `step` where it got stuck.
    """
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:  # of a release its bootloader's guess, caused by the loader's words
        return {"missing": str(error.__cause__ or error)}
    device, context = ctypes.c_int(), ctypes.c_void_p()
    at_device, at_context = ctypes.byref(device), ctypes.byref(context)
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (at_device, 0)),
        ("cuDevicePrimaryCtxRetain", (at_context, device)),
        ("cuCtxSetCurrent", (context,)),
    )
    for step, words in steps:
        if code := getattr(cuda, step)(*words):
            return {"step": step, "code": code}
    over = _allocate(cuda, limit_bytes + MIB)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    within = _allocate(cuda, max(MIB, free.value - SLACK_BYTES))
    beyond = _allocate(cuda, SLACK_BYTES + MIB)
    return {
        "over": over,
        "within": within,
        "beyond": beyond,
        "free_bytes": free.value,
        "total_bytes": total.value,
    }


def _allocate(cuda: ctypes.CDLL, size_bytes: int) -> int:
    address = ctypes.c_uint64()
    return int(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
