"""A program that launches kernels under HAMi-core's library, as far as its region is concerned.

    python hami_core_tenant.py REGION OFFSET SLEEP_S

Before each launch it waits, in sleeps, while the word at OFFSET is negative, without end; then it
writes 2 there and says "launched".
"""

import mmap
import struct
import sys
import time

path, offset, sleep_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
word = struct.Struct("<i")
with open(path, "r+b") as file:  # noqa: PTH123 - pathlib is slow to load
    memory = mmap.mmap(file.fileno(), 0)
while True:
    while word.unpack_from(memory, offset)[0] < 0:
        time.sleep(sleep_s)
    word.pack_into(memory, offset, 2)
    sys.stdout.write("launched\n")
    sys.stdout.flush()
    time.sleep(0.02)
