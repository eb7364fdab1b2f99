"""The agent as it is shipped, but for an observer at its boundaries that ends or holds it there.

    VGPU_TEST_BREAK=FILE breaking_agent.py run ...

What is to happen stands in FILE, read at every boundary, so that it can be changed while the agent
runs (tests/faults/breaking.py writes it). Only this program looks at the variable.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent import boundaries
from agent.cli import main
from agent.services import hook_gc, hook_install


class Breaker:
    """Counts the boundaries since the present order was given, and carries it out at one of them."""

    def __init__(self, order: Path) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._now = ""
        self._count = 0

    def __call__(self, name: str) -> None:
        with self._lock:
            try:
                text = self._order.read_text()
            except FileNotFoundError:
                return
            if text != self._now:
                self._now, self._count = text, 0
            order = json.loads(text)
            counted = order["of"] in ("", name)
            self._count += counted
            here = counted and self._count == order["at"]
            with Path(order["trail"]).open("a") as trail:
                trail.write(f"{name} {order['do']}\n" if here else f"{name}\n")
            if here and order["do"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if here:
            while self._order.exists() and self._order.read_text() == text:
                time.sleep(0.005)


if __name__ == "__main__":
    boundaries.observe(Breaker(Path(os.environ["VGPU_TEST_BREAK"])))
    if "VGPU_TEST_OLD_LIBRARIES" in os.environ:  # which otherwise stay for ten minutes
        hook_install.EVERY_S = 0.5
        hook_gc.HookGc.__init__.__kwdefaults__["after_s"] = 0
    raise SystemExit(main())
