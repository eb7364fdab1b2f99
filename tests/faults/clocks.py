"""The clocks of one process: how fast they run, and how far they have jumped (clocks.c)."""

import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clocks.c")


class Clocks:
    """Those of whatever is started with `environ`; all others keep their own."""

    def __init__(self, folder: Path) -> None:
        library = folder / "clocks.so"
        compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-w"]
        subprocess.run([*compiler, SOURCE, "-o", library, "-ldl"], check=True)
        self._file = folder / "clocks"
        self._at_ns, self._ahead_ns, self._fast = time.monotonic_ns(), 0, 1
        self._of_day_s, self._asleep_s = 0, 0
        self._file.touch()
        self._tell()
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "VGPU_TEST_CLOCKS": str(self._file),
        }

    def ahead_s(self) -> float:
        """By running faster."""
        since_ns = time.monotonic_ns() - self._at_ns
        return (self._ahead_ns + since_ns * (self._fast - 1)) / 1e9

    def run(self, fast: int) -> None:
        """From now on so many seconds in one."""
        self._ahead_ns, now_ns = round(self.ahead_s() * 1e9), time.monotonic_ns()
        self._at_ns, self._fast = now_ns, fast
        self._tell()

    def jump(self, of_day_s: int, asleep_s: int) -> None:
        """Away from what the kernel says: the clock of the day, and the one that counts sleep."""
        self._of_day_s, self._asleep_s = of_day_s, asleep_s
        self._tell()

    def _tell(self) -> None:
        words = (self._at_ns, self._ahead_ns, self._fast, self._of_day_s, self._asleep_s)
        with self._file.open("r+b") as file:
            file.write(struct.pack("<qqqqq", *words))
