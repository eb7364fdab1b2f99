"""The agent as it is shipped, but for a trail of what NVML has refused to which of its loops.

    VGPU_TEST_NVML_TRAIL=FILE nvml_trail_agent.py run ...

FILE gets a line for each function, return code and thread, at the first time.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.cli import main


class Trail:
    """What failed, for whom."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def followed(self, find: Callable[[str], Any]) -> Callable[[str], Any]:
        """The binding's look-up of a function by its name, with each function noting what it says."""

        def found(name: str) -> Callable[..., int]:
            function = find(name)

            def call(*arguments: object) -> int:
                code = int(function(*arguments))
                if code != pynvml.NVML_SUCCESS:
                    self._note(f"{name} {code} {threading.current_thread().name}")
                return code

            return call

        return found

    def _note(self, line: str) -> None:
        with self._lock:
            if line not in self._known:
                self._known.add(line)
                with self._path.open("a") as trail:
                    trail.write(f"{line}\n")


if __name__ == "__main__":
    trail = Trail(Path(os.environ["VGPU_TEST_NVML_TRAIL"]))
    pynvml._nvmlGetFunctionPointer = trail.followed(pynvml._nvmlGetFunctionPointer)
    raise SystemExit(main())
