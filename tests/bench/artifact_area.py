"""What the release costs: its size, and how fast and how small it is while it runs."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.nodes import MIB, ROOT, a_node, resident_mib
from tests.bench.rows import Row, row

RUNS = 5


def artifact_area() -> Iterator[Row]:
    """The one executable that `build.py dist` made: size, start, memory."""
    [program] = (ROOT / "dist").glob("vgpu-agent-*-linux-x86_64")
    yield row("artifact", "size of the one executable", [program.stat().st_size / MIB], "MiB",
              target=60)  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        first = [t for n in range(RUNS) for t in _versions(program, Path(place, str(n)), runs=1)]
        yield row("artifact", "`version`, which unpacks", first, "s", target=0.3)
        place_of_last = Path(place, str(RUNS - 1))
        yield row(
            "artifact", "`version`, unpacked before", _versions(program, place_of_last), "s",
            target=0.3,
        )  # fmt: skip
    started, resident = [], []
    for _ in range(RUNS):
        with a_node(started=False, command=[str(program)]) as node:
            began = time.perf_counter()
            node.start_agent()
            node.wait("registration", lambda node=node: node.allocatable() > 0)
            started.append(time.perf_counter() - began)
            node.wait("readiness", node.ready)
            assert node.agent is not None
            resident.append(resident_mib(node.agent.pid))
    yield row("artifact", "exec to registered", started, "s", target=1.5)
    yield row("artifact", "resident, one process", resident, "MiB", target=80)


def _versions(program: Path, place: Path, runs: int = RUNS) -> list[float]:
    """How long it takes; `place`: where it unpacks itself unless it has."""
    took = []
    environ = {**os.environ, "VGPU_AGENT_RUNTIME_DIR": str(place)}
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([program, "version"], check=True, capture_output=True, env=environ)
        took.append(time.perf_counter() - began)
    return took
