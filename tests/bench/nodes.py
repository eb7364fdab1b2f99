"""The nodes on which the agent is measured: simulated, with the agent as a process."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import SimNode

ROOT = Path(__file__).resolve().parents[2]
FROM_SOURCE = (sys.executable, str(ROOT / "agent.py"))
MIB = 1 << 20
# As whoever installs it has them: some machines forbid Python to write .pyc files.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


@contextmanager
def a_node(
    *flags: str, gpus: int = 2, started: bool = True, command: Sequence[str] = FROM_SOURCE,
    kind: type[SimNode] = SimNode,
) -> Iterator[SimNode]:  # fmt: skip
    """A node with GPUs; the agent runs and is registered."""
    root = Path(tempfile.mkdtemp(prefix="vgpu-bench-"))
    try:
        with kind(root, list(command), flags=flags, environ=COMPILED) as node:
            for number in range(gpus):
                uuid = made_up_uuid(number)
                node.driver.add_gpu(number, SimGpu(uuid=uuid, memory_mib=81559, name="NVIDIA H100"))
            if started:
                node.start_agent()
                node.wait("registration", lambda: node.allocatable() > 0)
                node.wait("readiness", node.ready)
            yield node
    finally:
        shutil.rmtree(root, ignore_errors=True)


def resident_mib(pid: int) -> float:
    """Resident memory of a process (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MIB
    raise RuntimeError(f"process {pid} has no resident memory")
