"""Programs under the hook, on a simulated driver."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from built_hook import ROOT, built
from c_programs import library

from agent.sim.driver import SimDriver

CALLS = Path(__file__).resolve().parent / "hook"  # cuda_calls.py
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"


@dataclass(frozen=True)
class Node:
    """A simulated node, and a directory that a container's cache file lies in."""

    sim: SimDriver
    cache: Path

    def environment(self, hook: bool = True, **more: str) -> dict[str, str]:
        """Env of a process in the container."""
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CALLS),
            **self.sim.environment(),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.cache),
        }
        return {**env, **({"LD_PRELOAD": str(built() / "libvgpu.so")} if hook else {}), **more}

    def start(
        self, code: str, *, hook: bool = True, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """A Python program that has `cuda_calls` imported; stdin and stdout are pipes."""
        return subprocess.Popen(
            [sys.executable, "-c", "from cuda_calls import *\n" + code],
            env=self.environment(hook, **(env or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *, hook: bool = True, **env: str) -> dict[str, Any]:
        """Run such a program to its end; gives what it said, its stderr and exit code."""
        with self.start(code, hook=hook, env=env) as process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()  # who hangs here fails this test, and no later one
        said = json.loads(out.splitlines()[-1]) if out.strip() else {}
        return {**said, "stderr": err, "rc": process.returncode}

    def run_in_virtual_time(self, code: str, **env: str) -> dict[str, Any]:
        """The same under the simulated driver's virtual clock, where nothing else takes any time."""
        clock = library("virtual.c", f"-I{ROOT / 'hook' / 'sim'}", "-ldl", name="virtual.so")
        self.sim.execution(clock="virtual")
        preload = f"{built() / 'libvgpu.so'}:{clock}"
        return self.run(
            "assert ctypes.CDLL(None).virtual_begin()\n" + code, **{"LD_PRELOAD": preload, **env}
        )

    def run_program(self, words: Sequence[str], **env: str) -> "subprocess.CompletedProcess[str]":
        """Run any program under the hook."""
        return subprocess.run(
            words, env=self.environment(**env), capture_output=True, text=True,
            timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
