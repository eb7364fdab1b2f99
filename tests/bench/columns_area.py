"""What the hook costs and how exactly it limits, always in the same four columns.

No hook; the hook without a limit; with limits; and, as a negative control, the same limits with the
limiter switched off, which must fail the check of exactness. With --peer-hook the same of the peer.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
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


def call(*words: str | int) -> Callable[[Bench, Column], float]:
    """Nanoseconds of a call."""
    return lambda bench, column: float(
        bench.run(column.who, ["hook_calls", *words], column.env)["ns"]
    )


def start(processes: int, times: int, key: str) -> Callable[[Bench, Column], float]:
    """Milliseconds of cuInit."""
    return lambda bench, column: (
        float(bench.run(column.who, ["hook_start", processes, times], column.env)[key]) / 1e3
    )


MEASURES: tuple[tuple[str, str, Callable[[Bench, Column], float]], ...] = (
    ("time of cuLaunchKernel", "ns", call("launch")),
    ("time of cuMemAlloc and cuMemFree", "ns", call("alloc")),
    ("time of cuMemAlloc and cuMemFree, 64 processes", "ns", call("alloc", 63)),
    ("time of cuMemAlloc and cuMemFree, 10000 blocks held", "ns", call("alloc", 0, 10000)),
    ("time of cuMemGetInfo", "ns", call("info")),
    ("time of cuGetProcAddress", "ns", call("proc_address")),
    ("time of dlsym", "ns", call("dlsym")),
    ("time of cuInit", "ms", start(1, 30, "median_us")),
    ("time of cuInit, 64 processes at once, p99", "ms", start(64, 5, "p99_us")),
)


def costs(bench: Bench, columns: tuple[Column, ...]) -> Iterator[Row]:
    """What each of them takes, in turns."""
    for name, unit, measure in MEASURES:
        found: dict[str, list[float]] = {column.name: [] for column in columns}
        for _ in range(ROUNDS):
            for column in columns:
                try:
                    found[column.name].append(measure(bench, column))
                except BenchError as error:
                    if column.who != PEER:
                        raise
                    print(f"the peer: {error}", file=sys.stderr)
        for column_name, figures in found.items():
            if figures:
                yield row(AREA, name, figures, unit, column=column_name)


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
            better="higher" if must_fail else "lower", control=must_fail,
        )  # fmt: skip


def columns_area(peer: Path | None = None) -> Iterator[Row]:
    """The hook's cost and exactness in four columns: none, no limit, limited, limiter off (must fail)."""
    build_programs()
    scratch = Path(tempfile.mkdtemp(prefix="vgpu-bench-"))
    bench = Bench(scratch, peer.resolve() if peer else None)
    columns = tuple(column for column in COLUMNS if column.who in bench.libraries)
    try:
        yield from costs(bench, columns)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    yield from exactness()
