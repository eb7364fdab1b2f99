"""A machine with NVIDIA GPUs, and programs that run on it with the driver it has.

Everything that loads a driver runs in a process of its own: a process keeps the first libcuda and
libnvidia-ml that it has loaded, and here there may be a real and a simulated one.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from built_hook import ROOT, built

from agent.sim.driver import SimDriver

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
SMI_FIELDS = "index,uuid,name,memory.total,pci.bus_id,mig.mode.current"
START_S = 120.0  # without persistence mode a driver takes seconds to wake each GPU
PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "hook")
SERVE = """
import sys
from cuda_calls import *
say(result=start())
for line in sys.stdin:
    say(result=eval(line))
"""


class NoGpuError(Exception):
    """This machine has no GPU that a program could use; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one GPU from somebody else than the agent."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    bus_id: str  # lower case
    mig: bool


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the programs run."""

    environ: Mapping[str, str]  # in which a program finds the driver
    facts: tuple[Facts, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)  # uuid -> why CUDA is not tried there

    def environment(self, **more: str) -> dict[str, str]:
        """For a Python program of ours, with `cuda_calls` to import."""
        paths = os.pathsep.join(str(path) for path in PATHS)
        return {**self.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **more}

    def driver_answers(self) -> dict[str, Any]:
        """What the agent's adapter makes of this machine's driver (nvml_program.py)."""
        return nvml_program(self.environment())


def nvml_program(environ: Mapping[str, str]) -> dict[str, Any]:
    """Run nvml_program.py. Raises NoGpuError in NVML's words."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "gpu" / "nvml_program.py"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_S,
        check=True,
    )
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if answers["absent"]:
        raise NoGpuError(answers["absent"])
    return answers


def real_machine() -> Machine:
    """This one. Raises NoGpuError."""
    here = Machine(environ=os.environ, facts=())
    answers = here.driver_answers()
    return Machine(
        environ=os.environ,
        facts=_told_by_smi() or _told_by_nvml(answers),
        unusable=answers["unusable"],
    )


def simulated_machine(directory: Path) -> Machine:
    """Two GPUs, so that what is said of one cannot be meant for the other."""
    sim = SimDriver(directory)
    gpus = [sim.add_gpu(), sim.add_gpu()]
    facts = [
        Facts(index=index, uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib,
              bus_id=f"00000000:{0x10 + index:02x}:00.0", mig=gpu.mig)
        for index, gpu in enumerate(gpus)
    ]  # fmt: skip
    return Machine(environ={**os.environ, **sim.environment()}, facts=tuple(facts))


def _told_by_smi() -> tuple[Facts, ...]:
    """What nvidia-smi says; empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=START_S, check=False)
    rows = [line.split(", ") for line in done.stdout.splitlines()] if not done.returncode else []
    return tuple(
        Facts(index=int(index), uuid=uuid, name=name, bus_id=bus.lower(), mig=mig == "Enabled",
              memory_mib=int(memory) if memory.isdigit() else None)
        for index, uuid, name, memory, bus, mig in rows
    )  # fmt: skip


def _told_by_nvml(answers: Mapping[str, Any]) -> tuple[Facts, ...]:
    """Without nvidia-smi there is nobody to compare the agent's adapter with but itself."""
    return tuple(
        Facts(index=gpu["index"], uuid=gpu["uuid"], name=gpu["name"], mig=gpu["mig_enabled"],
              memory_mib=gpu["memory_mib"], bus_id=gpu["pci_bus_id"].lower())
        for gpu in answers["gpus"]
    )  # fmt: skip


class CudaProgram:
    """A process that has a context on one GPU and evaluates what it is sent, e.g. `alloc(512)`."""

    def __init__(self, machine: Machine, uuid: str, *, hook: bool = True, **env: str) -> None:
        """`uuid`: the only GPU that it sees, as in a container."""
        preload = {"LD_PRELOAD": str(built() / "libvgpu.so")} if hook else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            env=machine.environment(**{"CUDA_VISIBLE_DEVICES": uuid, **preload, **env}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """The next answer; waits for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program has ended, exit code {self.process.wait(10)}"
        return json.loads(line)["result"]

    def ask(self, expression: str) -> Any:
        """What `expression` gives, with the functions of `cuda_calls`."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> int:
        """Let it come to its end; give its exit code."""
        self.process.communicate(timeout=30)
        return self.process.returncode

    def kill(self) -> None:
        """End it as the kernel's OOM killer would. Harmless when it has ended."""
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
