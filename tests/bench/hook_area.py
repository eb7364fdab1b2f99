"""What the hook adds to a program's calls, on a driver whose functions do nothing.

The same C programs run without it, with it and, where its path is given, with another library of
the same kind, one after the other and again; what is told of a round is the difference to the
program without it in the same round.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES
from tests.bench.rows import BenchError, Row, row

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ARCH = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
HOOK_DIR = ROOT / ".build" / "hook" / ARCH
HOOK = HOOK_DIR / "libvgpu.so"
BENCH_DIR = ROOT / ".build" / "bench" / ARCH
ROUNDS = 5
EXEC_ROUNDS = 600
AREA = "hook"
NONE, OURS, PEER = "none", "ours", "peer"
PLENTY = {"CUDA_DEVICE_MEMORY_LIMIT_0": "16g"}  # a limit that nothing here reaches
PLENTY_OF_EIGHT = {**PLENTY, "NULL_CUDA_DEVICES": "8"}
HALF = {**PLENTY, "CUDA_DEVICE_SM_LIMIT": "50"}

PROGRAM_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fno-sanitize=undefined", "-Wall", "-Wextra")
LIBRARY_FLAGS = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-z,now")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "hook_calls": ("hook_calls.c", "-ldl", "-lpthread"),
    "hook_start": ("hook_start.c", "-ldl"),
    "hook_exec": ("hook_exec.c",),
    "libcuda.so.1": ("null_cuda.c", "null_cuda_answers.c", *LIBRARY_FLAGS, "-ldl"),
    "empty.so": ("-xc", "/dev/null", *LIBRARY_FLAGS),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """The programs, and the libraries to run them with."""

    scratch: Path
    peer: Path | None = None
    hook: Path = HOOK

    @property
    def libraries(self) -> dict[str, Path | None]:
        """What is preloaded, by who is measured."""
        found: dict[str, Path | None] = {NONE: None, OURS: self.hook}
        return found | ({PEER: self.peer} if self.peer else {})

    def run(self, who: str, words: Sequence[str | int], env: Mapping[str, str]) -> dict[str, Any]:
        """Run a program as a container of its own; give the object that it prints.

        Raises BenchError.
        """
        cache = self.scratch / "container.cache"
        cache.unlink(missing_ok=True)
        library = self.libraries[who]
        command = [str(BENCH_DIR / str(words[0])), *map(str, words[1:])]
        whole = {
            "LD_LIBRARY_PATH": f"{BENCH_DIR}:{HOOK_DIR / 'sim'}",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache),
            **({"LD_PRELOAD": str(library)} if library else {}),
            **env,
        }
        try:
            done = subprocess.run(
                command, env=whole, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{' '.join(command)} with {library} did not end") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            raise BenchError(
                f"{' '.join(command)} with {library}: exit code {done.returncode}: "
                f"{done.stderr.strip()[-300:]}"
            ) from None
        return answer

    def rounds(
        self, words: Sequence[str | int], key: str, env: Mapping[str, str], rounds: int = ROUNDS
    ) -> dict[str, list[float]]:
        """One figure of a program, by who was preloaded; taken in turns.

        A peer that does not run has no figures.
        """
        found: dict[str, list[float]] = {who: [] for who in self.libraries}
        for _ in range(rounds):
            for who, figures in found.items():
                try:
                    figures.append(float(self.run(who, words, env)[key]))
                except BenchError as error:
                    if who != PEER:
                        raise
                    print(f"the peer: {error}", file=sys.stderr)
        return found


def build_programs() -> None:
    """Compile what of the programs is older than its sources."""
    BENCH_DIR.mkdir(parents=True, exist_ok=True)
    newest = max(
        path.stat().st_mtime
        for path in (*HERE.glob("*.c"), *(ROOT / "hook").glob("*.h"), Path(__file__))
    )
    for name, words in PROGRAMS.items():
        target = BENCH_DIR / name
        if target.exists() and target.stat().st_mtime > newest:
            continue
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{ARCH}-linux-gnu.2.17"]
        command += [*PROGRAM_FLAGS, *words, "-o", str(target)]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{name} does not compile:\n{done.stderr.strip()}")


def differences(found: Mapping[str, Sequence[float]], who: str) -> list[float]:
    """What `who` added in each round."""
    return [mine - none for mine, none in zip(found[who], found[NONE], strict=False)]


def added(
    name: str, found: Mapping[str, Sequence[float]], unit: str, target: float | None
) -> Iterator[Row]:
    """What we add; and the peer, with how many times ours that is."""
    ours = differences(found, OURS)
    yield row(AREA, name, ours, unit, target=target)
    if found.get(PEER):
        theirs = differences(found, PEER)
        yield row(AREA, f"{name}, the peer", theirs, unit)
        if median(ours) > 0:
            yield row(AREA, f"{name}, the peer as a multiple of ours",
                      [theirs_ns / median(ours) for theirs_ns in theirs], "x")  # fmt: skip


CALLS: tuple[tuple[str, str, Mapping[str, str], float], ...] = (
    ("cuLaunchKernel, nothing is limited", "launch", {}, 10),
    ("cuLaunchKernel, memory is limited", "launch", PLENTY, 10),
    ("cuLaunchKernel, memory is limited, 8 devices", "launch", PLENTY_OF_EIGHT, 10),
    ("cuLaunchKernel, memory and cores are limited", "launch", HALF, 25),
    ("cuMemGetInfo", "info", PLENTY, 50),
    ("cuGetProcAddress", "proc_address", PLENTY, 100),
    ("cuGetProcAddress, of what is passed through", "proc_address_passed", PLENTY, 100),
    ("dlsym", "dlsym", PLENTY, 100),
    ("dlsym, of what is passed through", "dlsym_passed", PLENTY, 100),
)


def calls(bench: Bench) -> Iterator[Row]:
    """Nanoseconds per call."""
    for name, measure, env, target in CALLS:
        found = bench.rounds(["hook_calls", measure], "ns", env)
        yield from added(f"added to {name}", found, "ns", target)


def allocations(bench: Bench) -> Iterator[Row]:
    """Nanoseconds per pair, alone, in company, and with much that is held already."""
    alone = bench.rounds(["hook_calls", "alloc"], "ns", PLENTY)
    yield from added("added to cuMemAlloc and cuMemFree", alone, "ns", 100)
    beside = bench.rounds(["hook_calls", "alloc", 0, 0, 1], "ns", PLENTY)
    yield from added("added to cuMemAlloc and cuMemFree, with another thread", beside, "ns", 100)
    # In turns: a machine that became slower between the two would be taken for the company's doing.
    one, many = {who: [] for who in bench.libraries}, {who: [] for who in bench.libraries}
    for _ in range(ROUNDS):
        for others, found in ((0, one), (63, many)):
            for who, ns in bench.rounds(["hook_calls", "alloc", others], "ns", PLENTY, 1).items():
                found[who] += ns
    yield from added("added to cuMemAlloc and cuMemFree, 64 processes", many, "ns", 100)
    pairs = zip(differences(many, OURS), differences(one, OURS), strict=True)
    ratios = [in_company / by_itself for in_company, by_itself in pairs]
    yield row(AREA, "the same, 64 processes as a multiple of 1", ratios, "x", target=1.2)
    held = bench.rounds(["hook_calls", "alloc", 0, 10000], "ns", PLENTY, rounds=3)
    yield from added("added to cuMemAlloc and cuMemFree, 10000 blocks held", held, "ns", 100)


def starts(bench: Bench) -> Iterator[Row]:
    """Milliseconds of cuInit, for the first process of a container and for 64 at once."""
    one = bench.rounds(["hook_start", 1, 30], "median_us", HALF)
    in_ms = {who: [us / 1e3 for us in figures] for who, figures in one.items()}
    yield from added("added to cuInit, median", in_ms, "ms", 1)
    for key, name, target in (("p99_us", "p99", 10.0), ("median_us", "median", None)):
        many = bench.rounds(["hook_start", 64, 5], key, HALF)
        ours, none = ([us / 1e3 for us in many[who]] for who in (OURS, NONE))
        yield row(AREA, f"cuInit, 64 processes at once, {name}", ours, "ms", target=target)
        yield row(AREA, f"cuInit, 64 processes at once, {name}, without the hook", none, "ms")
        if many.get(PEER):
            theirs = [us / 1e3 for us in many[PEER]]
            yield row(AREA, f"cuInit, 64 processes at once, {name}, the peer", theirs, "ms")


def granted_starts(bench: Bench) -> Iterator[Row]:
    """The same with the files that the agent gives a container: a limits file, and a region."""
    own = bench.scratch / "granted"
    own.mkdir()
    bed = replace(bench, hook=Path(shutil.copy(HOOK, own)), peer=None)
    gpu = DeviceLimit(uuid=f"GPU-{UUID(int=7)}", memory_limit_bytes=16 << 30, core_permille=500)
    limits = LimitsFile(devices=(gpu,), cache_path=str(own / "region.cache"))
    with (own / "region.cache").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        for piece in new_region(limits, region_id=1, now_s=1):
            os.pwrite(file.fileno(), piece.content, piece.offset)
        inode = os.fstat(file.fileno()).st_ino
    limits = replace(limits, region_inode=inode, region_id=1)
    (own / "vgpu.limits").write_bytes(encode(limits))
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": ""}  # the limits file says where
    for key, name, target in (("p99_us", "p99", 10.0), ("median_us", "median", None)):
        many = bed.rounds(["hook_start", 64, 5], key, env)
        ours = [us / 1e3 for us in many[OURS]]
        called = f"cuInit, 64 processes at once, {name}, with the agent's files"
        yield row(AREA, called, ours, "ms", target=target)


def execs(bench: Bench) -> Iterator[Row]:
    """Microseconds that a program without CUDA pays, over an empty library."""
    libraries = [BENCH_DIR / "empty.so", HOOK, *([bench.peer] if bench.peer else [])]
    words = ["hook_exec", EXEC_ROUNDS, *map(str, libraries)]
    runs = [bench.run(NONE, words, {})["libraries"] for _ in range(ROUNDS)]
    for key, name, target in (
        ("more_processor_us", "its processor time", 20.0),
        ("more_wall_us", "until it has ended", None),
    ):
        found = {
            who: [run[place][key] for run in runs] for place, who in enumerate(bench.libraries)
        }
        yield from added(f"exec without CUDA, over an empty library, {name}", found, "us", target)


def size() -> Iterator[Row]:
    """The file's."""
    yield row(AREA, "size of libvgpu.so", [HOOK.stat().st_size / 1024], "KiB", target=150)


def hook_area(peer: Path | None = None) -> Iterator[Row]:
    """What the hook adds to calls, to starts and to programs without CUDA; on a driver that does nothing."""
    build_programs()
    scratch = Path(tempfile.mkdtemp(prefix="vgpu-bench-"))
    bench = Bench(scratch, peer.resolve() if peer else None)
    groups: tuple[Callable[[Bench], Iterator[Row]], ...] = (
        calls, allocations, starts, granted_starts, execs,
    )  # fmt: skip
    try:
        for group in groups:
            yield from group(bench)
        yield from size()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def peer_path(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The other library, by flag or by VGPU_BENCH_PEER_HOOK. Raises BenchError when it is not there."""
    named = environ.get("VGPU_BENCH_PEER_HOOK")
    path = given or (Path(named) if named else None)
    if path is not None and not path.is_file():
        raise BenchError(f"the peer's library, {path}, is not there")
    return path
