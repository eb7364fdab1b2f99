"""What the end of the process costs, once its services have stopped."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import gc
from agent import app
from agent.config import Config

class Stopped:
    def __init__(self, config): pass
    def run(self): return 7

app.Agent = Stopped
print(app.run(Config(node_name="node-1")), len(gc.get_objects()) < gc.get_freeze_count())
"""


def test_the_interpreter_need_not_look_for_garbage_at_the_end() -> None:
    """Which took seconds where 16 others wanted the CPU, after everything had been done."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.stdout == "7 True\n", done.stderr
