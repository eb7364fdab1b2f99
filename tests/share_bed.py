"""Containers with shares of a simulated GPU's time, in virtual time, and the judgement on them.

The oracle is the simulated GPU, which counts what it really worked for each process. Everything
happens in virtual time, so the same run gives the same numbers on any machine.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from built_hook import built, sim_libraries
from limits_bed import LINES_AT

from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.sim.driver import SimDriver

WORLD = Path(__file__).resolve().parent / "share_world.py"
MONITOR = WORLD.with_name("monitor_world.py")
STEP_MS = 100  # what GPU time is noted by
STEPS = 10  # in a second
SWITCH_AT, RECENT_KERNEL_AT = 2008900, 2008904  # of the usage region, HAMi-core 1.2
SHARE_AT = 2031616 + 64 + 64  # of the first device, in our tail
PERMILLE_AT = LINES_AT + 32  # of the first device, in a limits file
BLOCKED_AT = LINES_AT + 48
ALONE_POINTS, BESIDE_POINTS = 2.0, 3.0
ALONE_BEYOND_POINTS, BESIDE_BEYOND_POINTS = 1.0, 3.0  # where the ideal limiter is as far off


@dataclass(frozen=True)
class Grows:
    """Kernels that take longer after so many launches of a process."""

    us: int
    to_us: int
    after: int = 300


@dataclass(frozen=True)
class Alike:
    """Kernels of which so many in a row take as long, one of two times by chance: requests of two sizes."""

    us: int
    to_us: int
    count: int = 100


@dataclass(frozen=True)
class Meets:
    """Kernels that wait for each other on so many GPUs, and take so long from then on."""

    us: int
    gpus: int = 2


# How long; or from and to; or from, to, and one in so many of that.
Microseconds = int | tuple[int, int] | tuple[int, int, int] | Grows | Alike | Meets
Kernels = Mapping[str, Microseconds]


@dataclass(frozen=True)
class Tenant:
    """A process. Those of one container share its budget."""

    percent: float
    phases: tuple[str, ...] = ("ms=3000",)
    threads: int = 1
    container: int | None = None  # None: one of its own
    policy: str = ""  # GPU_CORE_UTILIZATION_POLICY
    limits_file: bool = False  # the share comes from there, not from the environment
    priority: int = 1  # CUDA_TASK_PRIORITY
    quota_ms: tuple[int, int] | None = None  # its threads run for so much of each so many
    gpu: int = 0  # that it uses; its container has all that its processes use


@dataclass(frozen=True)
class Change:
    """Something that the node does to a container's files at a time of the run."""

    at_ms: int
    container: int
    file: str  # "region" or "limits"
    offset: int
    format: str  # of struct
    value: int  # times are given from the beginning of the run, in ns


@dataclass(frozen=True)
class Monitor:
    """A stand-in for HAMi's, whose last round is before `until_ms`: then it is killed."""

    until_ms: int
    every_ms: int = 5000
    first_ms: int = 5000


@dataclass(frozen=True)
class Share:
    """What the container's own account says at the end."""

    budget_ns: int
    charged_ns: int
    throttled_ns: int
    launches: int
    waits: int


@dataclass(frozen=True)
class Container:
    """What the GPU did for one container."""

    percent: float
    worked_ns: list[int]  # in each step
    of_each_ns: list[list[int]]  # the same for each of its processes that was not killed
    together: int  # steps until the first of all tenants ended, and left its time to the others
    results: list[int]  # of its processes that were not killed
    launches_of_each: list[int]  # likewise
    launches_of_threads: list[list[int]]  # of each of these, by thread
    share: Share
    recent_kernel: int
    last_kernel_s: int

    @property
    def launches(self) -> int:
        return sum(self.launches_of_each)

    def percents(self, window_s: float, skip_s: float) -> list[float]:
        """Its part of the GPU in every window of the steady state."""
        return self._percents(self.worked_ns, window_s, skip_s)

    def percents_of_each(self, window_s: float, skip_s: float) -> list[list[float]]:
        """The same for each process: their parts of a GPU each, where it has several."""
        return [self._percents(of_one, window_s, skip_s) for of_one in self.of_each_ns]

    def _percents(self, worked_ns: Sequence[int], window_s: float, skip_s: float) -> list[float]:
        steps, first = round(window_s * STEPS), round(skip_s * STEPS)
        total = window_s * 1e9
        return [
            sum(worked_ns[begin : begin + steps]) / total * 100
            for begin in range(first, self.together - steps + 1)
        ]

    def had_ms(self, skip_s: float = 0) -> list[float]:
        """What the GPU worked for each process from then on, as long as all were there."""
        first = round(skip_s * STEPS)
        return [sum(of_one[first : self.together]) / 1e6 for of_one in self.of_each_ns]

    def worst_error(self, window_s: float = 1.0, skip_s: float = 1.0) -> float:
        """Points that it was off its share in the worst window."""
        windows = self.percents(window_s, skip_s)
        assert windows, "the run is shorter than a window"
        return max((found - self.percent for found in windows), key=abs)


def allowed_points(tenants: int, ideal: float = 0.0) -> float:
    """What one may be off; more than usual where the ideal limiter is (share_oracle.py)."""
    if tenants == 1:
        return max(ALONE_POINTS, ideal + ALONE_BEYOND_POINTS)
    return max(BESIDE_POINTS, ideal + BESIDE_BEYOND_POINTS)


def holds(
    containers: Sequence[Container],
    window_s: float = 1.0,
    skip_s: float = 1.0,
    ideal: float = 0.0,
) -> bool:
    """The judgement: nobody is off by more in any window of the steady state."""
    allowed = allowed_points(len(containers), ideal)
    return all(abs(one.worst_error(window_s, skip_s)) <= allowed for one in containers)


def run(
    directory: Path,
    tenants: Sequence[Tenant],
    kernels: Kernels,
    changes: Sequence[Change] = (),
    failing: Mapping[str, int] | None = None,
    first_seed: int = 1,
    monitor: Monitor | None = None,
    **execution: int,
) -> list[Container]:
    """Let them all run from the same moment on; lengths are drawn by a seed for each process.

    What the monitor saw is in the file `rounds` of the directory, a line of JSON for each round.
    """
    sim = SimDriver(directory, libraries=sim_libraries())
    gpus = [sim.add_gpu().uuid for _ in range(1 + max(tenant.gpu for tenant in tenants))]
    sim.execution(clock="virtual", **execution)
    for name, us in kernels.items():
        if isinstance(us, Grows):
            sim.kernel(name, us.us, us.to_us, after=us.after)
        elif isinstance(us, Alike):
            sim.kernel(name, us.us, us.to_us, alike=us.count)
        elif isinstance(us, Meets):
            sim.kernel(name, us.us, meets=us.gpus)
        else:
            sim.kernel(name, *((us,) if isinstance(us, int) else us))
    for call, code in (failing or {}).items():
        sim.fail(call, code)
    numbers = [index if t.container is None else t.container for index, t in enumerate(tenants)]
    for number in set(numbers):
        _make_container(directory, number, tenants[numbers.index(number)], gpus)
    parties = len(tenants) + bool(changes) + bool(monitor)
    processes = [
        _start(sim, directory / f"c{number}", tenant, gpus, parties, rank, first_seed + rank)
        for rank, (tenant, number) in enumerate(zip(tenants, numbers, strict=True))
    ]
    if monitor:
        homes = [directory / f"c{number}" for number in sorted(set(numbers))]
        processes.append(
            _start_monitor(sim, directory / "rounds", monitor, homes, parties, len(tenants))
        )
    if changes:
        processes.append(_start_world(sim, directory, changes, parties))
    said = [process.communicate(timeout=900) for process in processes]
    assert all(not err for _, err in said), said
    told = [json.loads(out) if out else None for out, _ in said[: len(tenants)]]
    together = min(_whole_steps(one) for one in told if one)
    return [
        _judged(directory, number, tenants[numbers.index(number)].percent,
                [one for one, n in zip(told, numbers, strict=True) if one and n == number], together)
        for number in sorted(set(numbers))
    ]  # fmt: skip


def _make_container(directory: Path, number: int, tenant: Tenant, gpus: Sequence[str]) -> None:
    home = directory / f"c{number}"
    home.mkdir()
    shutil.copy(built() / "libvgpu.so", home)
    if tenant.limits_file:
        devices = tuple(
            DeviceLimit(uuid=uuid, core_permille=round(tenant.percent * 10)) for uuid in gpus
        )
        limits = LimitsFile(devices=devices, cache_path=str(home / "region.cache"))
        (home / "vgpu.limits").write_bytes(encode(limits))


def _start(
    sim: SimDriver,
    home: Path,
    tenant: Tenant,
    gpus: Sequence[str],
    parties: int,
    rank: int,
    seed: int,
) -> "subprocess.Popen[str]":
    environment = {
        "PATH": os.environ["PATH"],
        **sim.environment(),
        "LD_PRELOAD": str(home / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(home / "region.cache"),
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
        "GPU_CORE_UTILIZATION_POLICY": tenant.policy,
        "CUDA_TASK_PRIORITY": str(tenant.priority),
        "VGPU_SIM_SEED": str(seed),
    }
    if not tenant.limits_file:
        environment["CUDA_DEVICE_SM_LIMIT"] = str(tenant.percent)
    words: list[str | Path] = [
        sim.libraries / "sim-gpu-tenant",
        "--virtual",
        str(parties),
        str(rank),
    ]
    words += ["--window-ms", str(STEP_MS), "--threads", str(tenant.threads), *tenant.phases]
    if tenant.gpu:
        words[1:1] = ["--device", str(tenant.gpu)]
    if tenant.quota_ms:
        words[1:1] = ["--quota", *map(str, tenant.quota_ms)]
    return _process(words, environment)


def _start_world(
    sim: SimDriver, directory: Path, changes: Sequence[Change], parties: int
) -> "subprocess.Popen[str]":
    names = {"region": "region.cache", "limits": "vgpu.limits"}
    plan = [
        [c.at_ms, str(directory / f"c{c.container}" / names[c.file]), c.offset, c.format, c.value]
        for c in sorted(changes, key=lambda change: change.at_ms)
    ]
    words = [sys.executable, str(WORLD), str(parties), json.dumps(plan)]
    return _process(words, {"PATH": os.environ["PATH"], **sim.environment()})


def _start_monitor(
    sim: SimDriver, rounds: Path, monitor: Monitor, homes: Sequence[Path], parties: int, rank: int
) -> "subprocess.Popen[str]":
    words: list[str | Path] = [sys.executable, MONITOR, str(parties), str(rank)]
    words += [str(ms) for ms in (monitor.first_ms, monitor.every_ms, monitor.until_ms)]
    words += [rounds, *(home / "region.cache" for home in homes)]
    return _process(words, {"PATH": os.environ["PATH"], **sim.environment()})


def _process(
    words: Sequence[str | Path], environment: Mapping[str, str]
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _whole_steps(told: Mapping[str, int | list[int]]) -> int:
    """Steps of the windows that a process noted before it ended."""
    assert isinstance(told["windows_ns"], list)
    assert isinstance(told["wall_ns"], int)
    return min(len(told["windows_ns"]), told["wall_ns"] // (STEP_MS * 1_000_000))


def _judged(
    directory: Path,
    number: int,
    percent: float,
    told: Sequence[dict[str, list[int]]],
    together: int,
) -> Container:
    region = (directory / f"c{number}" / "region.cache").read_bytes()
    budget, _, charged, throttled, launches, waits = struct.unpack_from("<qQQQQQ", region, SHARE_AT)
    steps = min(_whole_steps(one) for one in told)
    return Container(
        percent=percent,
        worked_ns=[sum(one["windows_ns"][i] for one in told) for i in range(steps)],
        of_each_ns=[one["windows_ns"][:steps] for one in told],
        together=together,
        results=[int(one["result"]) for one in told],  # type: ignore[call-overload]
        launches_of_each=[int(one["launches"]) for one in told],  # type: ignore[call-overload]
        launches_of_threads=[one["launches_of_threads"] for one in told],
        share=Share(budget, charged, throttled, launches, waits),
        recent_kernel=struct.unpack_from("<i", region, RECENT_KERNEL_AT)[0],
        last_kernel_s=struct.unpack_from("<Q", region, 2008912)[0],
    )
