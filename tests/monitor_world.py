"""A stand-in for HAMi's monitor on the virtual clock, as HAMi 2.10's makes its rounds (feedback.go, Observe).

    python monitor_world.py PARTIES RANK FIRST_MS EVERY_MS UNTIL_MS ROUNDS REGION...

First everybody's recent kernels are counted down and who still has some is active, then each is judged
by who is active at a smaller number. All regions are on one GPU here. Words are written one by one,
without a lock, and only where they change. It ends as if killed at UNTIL_MS. In ROUNDS it leaves a
line for each round: what it found in each region, and who was active.
Not imitated: several GPUs, pods that are gone, the switch of shares.
"""

import ctypes
import json
import os
import struct
import sys
from pathlib import Path

MS = 1_000_000
RECENT_KERNEL_AT, PRIORITY_AT = 2008904, 2008908
BETWEEN_NS = MS // 2  # of counting and judging: longer than it takes HAMi, so that it is seen


def word(fd: int, at: int) -> int:
    return int(struct.unpack("<i", os.pread(fd, 4, at))[0])


def put(fd: int, value: int) -> None:
    os.pwrite(fd, struct.pack("<i", value), RECENT_KERNEL_AT)


def sleep_until(ns: int) -> None:
    cuda.sim_clock_sleep_until(ns)


def observe(fds: list[int], judge_ns: int) -> dict[str, list[int]]:
    found = [word(fd, RECENT_KERNEL_AT) for fd in fds]
    active = []
    for fd, recent in zip(fds, found, strict=True):
        if recent > 0:
            put(fd, recent - 1)
            if recent > 1:
                active.append(word(fd, PRIORITY_AT))
    sleep_until(judge_ns)
    for fd in fds:
        recent = word(fd, RECENT_KERNEL_AT)
        if any(priority < word(fd, PRIORITY_AT) for priority in active):
            if recent >= 0:
                put(fd, -1)
        elif recent < 0:
            put(fd, 0)
    return {"found": found, "active": active}


cuda = ctypes.CDLL("libcuda.so.1")
cuda.sim_clock_read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
parties, rank, first_ms, every_ms, until_ms = map(int, sys.argv[1:6])
if cuda.sim_clock_join(parties, rank) != 0:
    sys.exit("the simulated driver's clock is not virtual")
began_ns = cuda.sim_clock_read()
with Path(sys.argv[6]).open("w") as rounds:
    for at_ms in range(first_ms, until_ms, every_ms):
        sleep_until(began_ns + at_ms * MS)
        regions = [os.open(path, os.O_RDWR) for path in sys.argv[7:]]
        said = observe(regions, began_ns + at_ms * MS + BETWEEN_NS)
        print(json.dumps(said), file=rounds)
        for region in regions:
            os.close(region)
cuda.sim_clock_leave(0)
