"""One Python target under atheris, which is libFuzzer: TARGET and libFuzzer's own arguments."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import atheris

with atheris.instrument_imports(include=["agent"]):
    from tests.fuzz.python_targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    sys.argv[0] = os.environ.get("VGPU_FUZZ_SELF", sys.argv[0])  # what libFuzzer starts to merge
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
