"""The machine with a GPU that a test runs on: this one (marker `gpu`), or a simulated one.

The simulated one is there so that the tests themselves are run everywhere. On the real one nothing
is changed: no clocks, modes, limits or resets, only a few hundred MiB of memory for a moment.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from built_hook import built
from gpu.machine import LIMIT, CudaProgram, Machine, NoGpuError, real_machine, simulated_machine

from agent.sim.node import SimNode
from tests.gpu.simulated_bed import simulated_bed
from tests.gpu.tenants import Bed

ROOT = Path(__file__).resolve().parents[2]
CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
Programs = Callable[..., CudaProgram]
Limits = Callable[[int], dict[str, str]]


@cache
def _real() -> Machine | NoGpuError:
    try:
        return real_machine()
    except NoGpuError as error:
        return error


@pytest.fixture
def real() -> Machine:
    """This machine; the test is skipped, with the reason, when it has no GPU."""
    machine = _real()
    if isinstance(machine, NoGpuError):
        pytest.skip(f"no NVIDIA GPU here: {machine}")
    return machine


@pytest.fixture(
    params=[
        "simulated",
        pytest.param("real", marks=[pytest.mark.gpu, pytest.mark.timeout(600)]),
    ]
)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """One after the other."""
    if request.param == "real":
        found: Machine = request.getfixturevalue("real")
        return found
    built()
    return simulated_machine(tmp_path)


@pytest.fixture
def start(machine: Machine, tmp_path: Path) -> Iterator[Programs]:
    """Start CUDA programs on the first GPU; those of one test share one container's cache."""
    uuid = next((f.uuid for f in machine.facts if f.uuid not in machine.unusable), None)
    if uuid is None:
        pytest.skip(f"no GPU that CUDA programs of these tests may use: {machine.unusable}")
    programs: list[CudaProgram] = []

    def start_one(**env: str) -> CudaProgram:
        hook = env.pop("hook", "yes") == "yes"
        env = {CACHE: str(tmp_path / "container.cache"), **env}
        program = CudaProgram(machine, uuid, hook=hook, **env)
        programs.append(program)
        result = program.hear()
        assert result == 0, f"CUDA does not start: CUresult {result}"
        return program

    yield start_one
    for program in programs:
        program.kill()


@pytest.fixture
def limited(start: Programs, tmp_path: Path) -> Limits:
    """Limits that leave 1024 MiB to so many processes: a context alone may take half of that."""
    measured = {CACHE: str(tmp_path / "measured.cache"), LIMIT: "4096m"}
    program = start(**measured)
    context_mib = program.ask("used_mib()")
    program.kill()
    return lambda processes: {LIMIT: f"{1024 + processes * context_mib}m"}


@pytest.fixture
def node(machine: Machine) -> Iterator[SimNode]:
    """Stand-ins of kubelet, API server and scheduler, and the agent with the machine's driver."""
    root = Path(tempfile.mkdtemp(prefix="vgpu-gpu-"))  # short: unix sockets live in it
    node = SimNode(
        root, [sys.executable, str(ROOT / "agent.py")], environ=machine.environ, own_gpus=True
    )
    with node:
        node.start_agent()
        yield node
        sys.stderr.write(node.log_text())
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """The first of two simulated GPUs whose kernels take 2 ms."""
    return simulated_bed(tmp_path)
