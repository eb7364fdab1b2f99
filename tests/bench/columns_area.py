"""What the hook costs and how exactly it limits, always in the same four columns.

No hook; the hook without a limit; with limits; and, as a negative control, the same limits with the
limiter switched off, which must fail the check of exactness. With --peer-hook the same of the peer.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from built_hook import sim_libraries
from share_bed import BESIDE_POINTS, STEP_MS, STEPS, Tenant
from share_bed import run as run_tenants

from agent.sim.driver import SimDriver
from tests.bench.hook_area import NONE, OURS, PEER, Bench, BenchError, build_programs
from tests.bench.rows import Row, row

AREA = "columns"
ROUNDS = 5
LIMITED = {"CUDA_DEVICE_MEMORY_LIMIT_0": "16g", "CUDA_DEVICE_SM_LIMIT": "50"}
POLICY = "GPU_CORE_UTILIZATION_POLICY"
CALLS = {"cuLaunchKernel": "launch", "cuMemAlloc and cuMemFree": "alloc", "cuMemGetInfo": "info"}
PAIR, PHASE, KERNEL_US = (30, 70), "ms=4000", 200
CONTROL = "limiter off"


@dataclass(frozen=True)
class Column:
    """Who is preloaded, and with which limits."""

    name: str
    who: str
    env: Mapping[str, str]


COLUMNS = (
    Column("no hook", NONE, {}),
    Column("no limit", OURS, {}),
    Column("limited", OURS, {**LIMITED, POLICY: "force"}),
    Column(CONTROL, OURS, {**LIMITED, POLICY: "disable"}),
    Column("peer, no limit", PEER, {}),
    Column("peer, limited", PEER, {**LIMITED, POLICY: "force"}),
)


def calls(bench: Bench, columns: tuple[Column, ...]) -> Iterator[Row]:
    """Nanoseconds of one call, in turns."""
    for name, measure in CALLS.items():
        found: dict[str, list[float]] = {column.name: [] for column in columns}
        for _ in range(ROUNDS):
            for column in columns:
                try:
                    answer = bench.run(column.who, ["hook_calls", measure], column.env)
                except BenchError as error:
                    if column.who != PEER:
                        raise
                    print(f"the peer: {error}", file=sys.stderr)
                    continue
                found[column.name].append(float(answer["ns"]))
        for column_name, figures in found.items():
            if figures:
                yield row(AREA, f"time of {name}", figures, "ns", column=column_name)


def without_hook(directory: Path) -> list[list[float]]:
    """Shares of a GPU that nobody limits, in windows of a second, as `Container.percents` has them."""
    sim = SimDriver(directory, libraries=sim_libraries())
    gpu = sim.add_gpu()
    sim.execution(clock="virtual")
    sim.kernel("kernel", KERNEL_US)
    processes = []
    for rank in range(len(PAIR)):
        words = [str(sim.libraries / "sim-gpu-tenant"), "--virtual", str(len(PAIR)), str(rank)]
        words += ["--window-ms", str(STEP_MS), "--threads", "1", PHASE]
        environ = {**sim.environment(), "NVIDIA_VISIBLE_DEVICES": gpu.uuid}
        environ["VGPU_SIM_SEED"] = str(rank + 1)
        processes.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True))
    told = [json.loads(process.communicate(timeout=300)[0])["windows_ns"] for process in processes]
    last = min(map(len, told)) - 1  # one may have ended in the last
    return [
        [
            sum(windows[begin : begin + STEPS]) / 1e9 * 100
            for begin in range(STEPS, last - STEPS + 1)
        ]
        for windows in told
    ]


def exactness() -> Iterator[Row]:
    """How far two tenants of 30 % and 70 % are off, on the simulated GPU in virtual time."""
    for column, policy, percents in (
        ("no hook", "", None),
        ("no limit", "", (0, 0)),
        ("limited", "force", PAIR),
        (CONTROL, "disable", PAIR),
    ):
        with tempfile.TemporaryDirectory(prefix="vgpu-columns-") as place:
            if percents is None:
                shares = without_hook(Path(place))
            else:
                tenants = [Tenant(percent, (PHASE,), policy=policy) for percent in percents]
                containers = run_tenants(Path(place), tenants, {"kernel": KERNEL_US})
                shares = [one.percents(1.0, 1.0) for one in containers]
        errors = [
            max(abs(found - wanted) for found in one)
            for one, wanted in zip(shares, PAIR, strict=True)
        ]
        must_fail = column == CONTROL
        yield row(
            AREA, "error of shares of 30 % and 70 %, the worst second", errors, "points",
            value=max(errors), column=column,
            target=BESIDE_POINTS if column in ("limited", CONTROL) else None,
            better="higher" if must_fail else "lower",
        )  # fmt: skip


def columns_area(peer: Path | None = None) -> Iterator[Row]:
    """The hook's cost and exactness in four columns: none, no limit, limited, limiter off (must fail)."""
    build_programs()
    scratch = Path(tempfile.mkdtemp(prefix="vgpu-bench-"))
    bench = Bench(scratch, peer.resolve() if peer else None)
    columns = tuple(column for column in COLUMNS if column.who in bench.libraries)
    try:
        yield from calls(bench, columns)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    yield from exactness()
