"""`python3 build.py soak`: many days of a node in minutes, and what grows meanwhile.

Every day pods come and go, GPUs fail, kubelet, API server and agent are restarted; at its end the
books must agree (tests/soak/node.py). Then all pods go, and nothing may be left of them.
"""

import argparse
import ctypes
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from agent import logs  # noqa: E402
from agent.version import VERSION  # noqa: E402
from tests import provenance  # noqa: E402
from tests.soak.node import SoakNode  # noqa: E402

PAGE = ROOT / "docs" / "results" / "soak.md"
WARM_DAYS = 3  # caches of the interpreter and its allocator fill
MOST_GROWTH_KIB = 2048
# What would be kept of every pod, some 700 a day, is told from what the allocator does with it:
# the slope of resident memory over the warm days, and that of what Python itself holds.
MOST_KIB_A_DAY = 32.0
MOST_BLOCKS_A_DAY = 200.0
SLOPE_DAYS = 10  # fewer have no slope: more or less containers are there at each day's end
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What there was at the end of a day, with all caches of the interpreter empty."""

    day: int
    pods: int  # so far
    grants: int  # so far
    refusals: int  # so far
    agents: int  # lives, the first included
    crashes: int
    gpu_faults: int
    kubelet_restarts: int
    api_restarts: int
    resident_kib: int
    blocks: int  # of memory that Python's allocator has given out
    malloc_kib: int  # that malloc has given out, to Python for what is large among others
    heap_kib: int  # that malloc has of the kernel, whether in use, free or never touched
    descriptors: int
    threads: int
    directories: int


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory, in memory where that is possible: thousands of pods are not worth a disk."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="vgpu-soak-", dir=where))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class _Malloc(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def malloc_kib() -> tuple[int, int]:
    """What malloc has given out and not got back, and all it has; 0 where libc does not tell."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return 0, 0
    tell.restype = _Malloc
    found = tell()
    given, large, all_of_it = (int(n) for n in (found.uordblks, found.hblkhd, found.arena))
    return (given + large) // 1024, (all_of_it + large) // 1024


def look(node: SoakNode, day: int) -> Day:
    """Measure this process, which is the agent and all it works with."""
    gc.collect()
    given_kib, heap_kib = malloc_kib()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Day(
        day=day,
        pods=node.pods_made,
        grants=node.served + len(node.answered),
        refusals=node.refusals,
        agents=node.lives,
        crashes=node.crashes,
        gpu_faults=node.gpu_faults,
        kubelet_restarts=node.kubelet_restarts,
        api_restarts=node.api_restarts,
        resident_kib=resident_pages * PAGE_KIB,
        blocks=sys.getallocatedblocks(),
        malloc_kib=given_kib,
        heap_kib=heap_kib,
        descriptors=_descriptors(),
        threads=threading.active_count(),
        directories=len(node.caches.directories),
    )


def slope(days: Sequence[Day], value: Callable[[Day], int]) -> float | None:
    """What a value gains a day, by least squares after WARM_DAYS; None: too few days.

    Beside the day it is explained by how many containers there are at its end, of each of which a
    page is mapped: what they explain of value and day is taken off first.
    """
    warm = days[WARM_DAYS:]
    if len(warm) < SLOPE_DAYS:
        return None
    there = [one.directories for one in warm]
    left = [_unexplained(there, some) for some in ([d.day for d in warm], [value(d) for d in warm])]
    return linear_regression(*left).slope


def _unexplained(by: Sequence[int], values: Sequence[int]) -> list[float]:
    """What is left of values when a straight line through them is taken off."""
    if len(set(by)) == 1:
        return [float(one) for one in values]
    line = linear_regression(by, values)
    return [one - line.slope * x - line.intercept for x, one in zip(by, values, strict=True)]


def slopes(days: Sequence[Day]) -> list[tuple[str, float | None, float]]:
    """What is measured and its unit, its slope a day, and what is allowed."""
    return [
        ("resident memory, KiB", slope(days, lambda day: day.resident_kib), MOST_KIB_A_DAY),
        ("what malloc has given out, KiB", slope(days, lambda day: day.malloc_kib), MOST_KIB_A_DAY),
        ("malloc's whole heap, KiB", slope(days, lambda day: day.heap_kib), MOST_KIB_A_DAY),
        ("blocks that Python holds", slope(days, lambda day: day.blocks), MOST_BLOCKS_A_DAY),
    ]


def objections_to(days: Sequence[Day]) -> list[str]:
    """What has grown though the node has not, or came to an end, a sentence each."""
    objections = []
    for before, after in pairwise(days):
        granted, made = after.grants - before.grants, after.pods - before.pods
        if granted < made:  # a pod has two containers with GPUs, more or less
            objections.append(f"only {granted} grants for {made} pods on day {after.day}")
    warm = [day.resident_kib for day in days[WARM_DAYS:]]
    if len(warm) > 1 and warm[-1] - warm[0] > MOST_GROWTH_KIB:
        objections.append(f"memory grew by {warm[-1] - warm[0]} KiB after day {WARM_DAYS}")
    objections += [
        f"{what} grew by {found:.1f} a day, and {most:.0f} are allowed"
        for what, found, most in slopes(days)
        if found is not None and found > most
    ]
    if len({day.threads for day in days}) > 1:
        objections.append("the number of threads changed")
    # Of each container a usage region and a limits file are kept open, and nothing else.
    spare = {day.descriptors - 2 * day.directories for day in days}
    if max(spare) > min(spare):
        objections.append(f"{max(spare) - min(spare)} descriptors belong to no container")
    return objections


def soak(days: int, seed: int, told: Callable[[Day], None]) -> tuple[list[Day], list[str]]:
    """The days, and what is wrong. Raises AssertionError where the books do not agree."""
    with scratch() as root:
        node = SoakNode(root, seed)
        before = _descriptors()
        seen = []
        for number in range(1, days + 1):
            node.day()
            node.limits._drop_gone()  # as when the next container's file is opened
            seen.append(look(node, number))
            told(seen[-1])
        wrong = objections_to(seen)
        node.check_the_end()
        node.feedback.round_once()
        node.switches.close()
        node.limits._drop_gone()  # as when the next container's file is opened
        if (left := _descriptors() - before) > 0:
            wrong.append(f"{left} descriptors stay open when all pods are gone")
    return seen, wrong


def growth(seen: Sequence[Day]) -> list[str]:
    """What the page says of memory."""
    lines = [
        f"| {what} | {'too few days' if found is None else f'{found:+.1f}'} | {most:.0f} |"
        for what, found, most in slopes(seen)
    ]
    return [
        (
            f"What grew a day, by least squares over the days after day {WARM_DAYS}, beside what more or "
            "fewer containers at a day's end explain:"
        ),
        "",
        "| | found | allowed |",
        "|---|---|---|",
        *lines,
        "",
        (
            "Something that is kept of every pod would be some 700 blocks a day at least; this table "
            "itself is some 20. Resident memory that grows while blocks, what malloc has given out "
            "and malloc's heap do not is nothing that is kept: it is pages of a heap of one size that "
            "were free and untouched until malloc chose them. It ends at the size of the heap, of "
            "which "
            f"{seen[-1].malloc_kib} of {seen[-1].heap_kib} KiB were in use on the last day. Threads "
            "are not measured here: every loop's turn is called by one, and at the end there were "
            f"{seen[-1].threads}. Nor are counters compared from day to day. Both are done with an "
            "agent process, in every run of the tests: `tests/soak/test_process.py` holds its threads, "
            "descriptors, memory and counters against what they were before pods, scrapes and restarts."
        ),
    ]


def page(
    seen: Sequence[Day],
    wrong: Sequence[str],
    about: Mapping[str, str],
    *,
    seed: int,
    took_s: float,
) -> str:
    """docs/results/soak.md; `about`: as `provenance.described`."""
    days = [{k: v for k, v in asdict(day).items() if k != "threads"} for day in seen]
    rows = ["| " + " | ".join(str(value) for value in day.values()) + " |" for day in days]
    names = [name.replace("_kib", ", KiB").replace("_", " ") for name in days[0]]
    return "\n".join(
        [
            "# Soak",
            "",
            (
                f"`python3 build.py soak --days {len(seen)} --seed {seed}`, version {VERSION}: "
                f"{len(seen)} days of a node in virtual time, in {took_s / 60:.1f} minutes. Pods come "
                "and go, GPUs report XIDs, kubelet, API server and agent are restarted, the agent "
                "crashes at any effect. Directories, limits, usage regions, journal and ledger are "
                "files; scheduler, kubelet, API server and driver are in memory. At the end of each "
                "day every container has exactly the grant that was decided for it, no lock and no "
                "directory, grant, counter or metric of a pod that is gone is left. The numbers are "
                "of the process that holds all of this."
            ),
            "",
            *provenance.listed(about),
            "",
            f"What grew or ended though it should not: {'; '.join(wrong) or 'nothing'}.",
            "",
            *growth(seen),
            "",
            "| " + " | ".join(names) + " |",
            "|" + "---|" * len(names),
            *rows,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build.py soak", description=__doc__)
    parser.add_argument("--days", type=int, default=30, help="how many (30)")
    parser.add_argument("--seed", type=int, default=1, help="of the pods and their mishaps (1)")
    chosen = parser.parse_args(arguments)
    if chosen.days < 1:
        parser.error("--days: at least 1, or nothing is lived through")
    logs.configure(level="error")
    began_s, about = time.monotonic(), provenance.described()

    def told(day: Day) -> None:
        print(
            f"day {day.day}: {day.pods} pods, {day.grants} grants, {day.agents} lives, "
            f"{day.resident_kib} KiB, {day.descriptors} descriptors of {day.directories} "
            "directories",
            flush=True,
        )

    seen, wrong = soak(chosen.days, chosen.seed, told)
    took_s = time.monotonic() - began_s
    PAGE.write_text(page(seen, wrong, about, seed=chosen.seed, took_s=took_s))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    for objection in wrong:
        print(f"soak: {objection}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
