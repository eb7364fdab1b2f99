"""A program that changes files of containers at given moments of the virtual clock.

    python share_world.py PARTIES '[[AT_MS, PATH, OFFSET, FORMAT, VALUE], ...]'

A FORMAT that ends in "t" stands for a time: VALUE counts from the beginning of the run.
"""

import ctypes
import json
import struct
import sys
from pathlib import Path

MS = 1_000_000

cuda = ctypes.CDLL("libcuda.so.1")
cuda.sim_clock_read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
parties, plan = int(sys.argv[1]), json.loads(sys.argv[2])
if cuda.sim_clock_join(parties, parties - 1) != 0:
    sys.exit("the simulated driver's clock is not virtual")
began_ns = cuda.sim_clock_read()
for at_ms, path, offset, layout, value in plan:
    cuda.sim_clock_sleep_until(began_ns + at_ms * MS)
    when = value + began_ns if layout.endswith("t") else value
    with Path(path).open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(layout.rstrip("t"), when))
cuda.sim_clock_leave(0)
