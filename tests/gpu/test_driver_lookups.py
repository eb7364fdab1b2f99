"""What programs get when they look the driver up: as without the library, ours where it is hooked.

On the simulated driver, on this machine's (marker `gpu`), and on any of NVIDIA's whose libraries lie
in a folder that VGPU_DRIVER_LIBRARIES names (several, as PATH has them): it takes no GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_hook import ROOT, built
from gpu.machine import LIMIT, START_S, Machine
from hook_table import cuda_symbols

FOLDERS = [Path(path) for path in os.environ.get("VGPU_DRIVER_LIBRARIES", "").split(":") if path]
PROGRAM = ROOT / "tests/gpu/lookup_program.py"
HOOKED = {symbol.name for symbol in cuda_symbols()}
OURS, DRIVERS = "libvgpu", "libcuda"


def told(machine: Machine, **more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, PROGRAM], env=machine.environment(**more), capture_output=True, text=True,
        timeout=START_S, check=True,
    )  # fmt: skip
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def differing(machine: Machine, cache: Path) -> list[str]:
    """Questions to which another answer came with the library than without, and both."""
    hook = {"LD_PRELOAD": str(built() / "libvgpu.so"), LIMIT: "1024m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache)}  # fmt: skip
    plain, hooked = told(machine), told(machine, **hook)
    assert plain["libraries"], "nothing was found"
    assert plain["init"] == hooked["init"]
    assert plain["answers"].keys() == hooked["answers"].keys()
    whose = {name: OURS if name in HOOKED else DRIVERS for name in plain["libraries"]}
    assert hooked["libraries"] == whose
    return [
        f"{question}: {before} without, {after} with the library"
        for question, before in plain["answers"].items()
        if not same(before, after := hooked["answers"][question])
    ]


def same(before: list[Any], after: list[Any]) -> bool:
    """A function that the driver gives several names may have those of them that are not ours."""
    if before[:2] != after[:2] or before[2] is None or after[2] is None:
        return before == after
    named = bool(before[2]) == bool(after[2])
    return named and set(after[2]) <= set(before[2])


def test_lookups_are_answered_as_without_the_library(machine: Machine, tmp_path: Path) -> None:
    assert differing(machine, tmp_path / "usage.cache") == []


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_lookups_in_a_driver_of_nvidias(folder: Path, tmp_path: Path) -> None:
    machine = Machine(environ={**os.environ, "LD_LIBRARY_PATH": str(folder)}, facts=())
    assert differing(machine, tmp_path / "usage.cache") == []
