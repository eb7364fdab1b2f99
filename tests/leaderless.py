"""A process whose first thread has ended, as by `pthread_exit` in main, while another goes on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import ctypes, mmap, os, sys, threading, time
files = [open(path, "rb") for path in sys.argv[1:]]
mapped = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]
def goes_on():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z": time.sleep(0.001)
    os.write(1, b"ended"), os.read(0, 1)
    os._exit(0)
threading.Thread(target=goes_on).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@contextmanager
def leaderless(*maps: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Such a process, which has these files mapped."""
    words = [sys.executable, "-c", _PROGRAM, *map(str, maps)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(5) == b"ended"
            yield process
        finally:
            process.kill()
