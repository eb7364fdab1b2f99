"""How exactly containers get their shares of GPU time: the cases, on the simulated GPU in virtual time.

`build.py shares` (shares.py) runs them all. `share_area` gives the same, but for mixes drawn at random, as
rows of the benchmark: the worst error in any window of the steady state, in points, where a window is the
longer of 1 s and 10 times the longest kernel; and, as a negative control, the smallest error among the same
cases with the limiter switched off. One row is of real time: what the hook's own thread works to tell what
launches on many streams cost.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from built_hook import ROOT
from c_programs import compiled
from share_bed import (
    ALONE_POINTS,
    BESIDE_POINTS,
    Kernels,
    Tenant,
    allowed_points,
)
from share_oracle import ideal_error

from tests.bench.rows import Row, row
from tests.bench.share_case import SKIP_S, Case, judged, lasting, length, target_points
from tests.bench.share_contexts import RARE, contexts_cases, events_cases
from tests.bench.share_mixes import random_mixes

CAPS = (10, 20, 30, 40, 50, 60, 70, 80, 90)
MIXES = ((10, 90), (30, 70), (50, 50), (20, 30, 40), (25,) * 4, (12,) * 8, (5, 15, 25, 45))
VARYING = ((2, 20), (5, 300), (20, 2000), (2, 20_000))
RARE_AND_SHORT = ((2, 1000, 1000), (3, 300, 400), (3, 1000, 400), (5, 1000, 400), (10, 1000, 200))
RARE_BESIDE = (
    (20, 2000, 100),
    (100, 3000, 60),
    (10, 200, 40),
)  # no turns of others, by length or number
SWEEP_EVERY_US = 17_000  # where lengths vary, at a limit of nearly 100 %; at most 60,000


def alone_cases(first_seed: int = 1) -> Iterator[Case]:
    """One tenant: every cap with kernels of every length, and every way to launch."""
    lengths: tuple[tuple[int | tuple[int, int], float], ...] = (
        (2, 1), (20, 1), (200, 1), (2000, 1), (20_000, 1), (200_000, 2),
    )  # fmt: skip
    for us, window_s in lengths:
        for cap in CAPS:
            tenant = Tenant(cap, lasting("", window_s))
            yield Case(f"alone, {length(us)}", f"{cap} %", (tenant,), {"kernel": us}, window_s)
    for varying in VARYING:
        for cap in CAPS[::2]:
            tenant = Tenant(cap, lasting("", 1))
            yield Case(f"alone, {length(varying)}", f"{cap} %", (tenant,), {"kernel": varying})
    for us in (5, 20, 200, 5000, 20_000):
        for cap in CAPS[::2]:
            tenant = Tenant(cap, lasting("shapes=1000000000", 1))
            yield Case(f"alone, {length(us)}, each new", f"{cap} %", (tenant,), {"kernel": us})
    for kinds, us in ((500, (20, 2000)), (2000, (10, 40))):
        for cap in CAPS[::2]:
            tenant = Tenant(cap, lasting(f"shapes={kinds}", 1))
            yield Case(f"alone, {length(us)}, {kinds} kinds", f"{cap} %", (tenant,), {"kernel": us})
    for cap in CAPS:
        yield _of_every_length("alone", (cap,), first_seed)


def ways_cases() -> Iterator[Case]:
    """One tenant that launches in every way."""
    ways = ("by=ex", "by=cooperative", "by=graph,nodes=20", "sync=1", "streams=4", "streams=0",
            "burst=200,idle_us=1000")  # fmt: skip
    for way in ways:
        for cap in CAPS[::2]:
            tenant = Tenant(cap, lasting(way, 1))
            yield Case(f"alone, {way}", f"{cap} %", (tenant,), {"kernel": 100})
    for cap in CAPS[::2]:
        yield Case("alone, 4 threads", f"{cap} %", (Tenant(cap, lasting("", 1), threads=4),),
                   {"kernel": 100})  # fmt: skip
        processes = tuple(Tenant(cap, lasting("", 1), container=0) for _ in range(3))
        yield Case("alone, 3 processes", f"{cap} %", processes, {"kernel": 700})


MANY_STREAMS = ((8, 4, 5), (4, 4, 20), (8, 8, 50), (8, 1, 5), (1, 8, (2, 20)), (4, 8, (2, 20)), (8, 8, (2, 20)),
                (2, 8, (10, 200)))  # fmt: skip


def streams_cases() -> Iterator[Case]:
    """Short kernels on many streams from many threads, alone and in pairs."""
    for threads, streams, us in MANY_STREAMS:
        phases = lasting(f"streams={streams}", 1)
        name = f"{threads} threads x {streams} streams, {length(us)}"
        for mix in ((10,), (30,), (50,), (70,), (90,), (30, 70), (50, 50)):
            tenants = tuple(Tenant(cap, phases, threads=threads) for cap in mix)
            group = f"{'alone' if len(mix) == 1 else 'beside others'}, {name}"
            yield Case(group, "/".join(map(str, mix)), tenants, {"kernel": us})


def beside_cases() -> Iterator[Case]:
    """Two to eight tenants, alike and unlike."""
    for us in (20, 200, 700, 2000, 20_000):
        for mix in MIXES:
            tenants = tuple(Tenant(cap, lasting("", 1)) for cap in mix)
            yield Case(
                f"beside others, {length(us)}", "/".join(map(str, mix)), tenants, {"kernel": us}
            )
    for long_us, window_s in ((2000, 1), (5000, 1), (20_000, 1), (200_000, 2)):
        kernels: Kernels = {"a": long_us, "b": 100}
        for caps in ((10, 90), (30, 70), (50, 50), (70, 30)):
            tenants = (
                Tenant(caps[0], lasting("kernel=a", window_s)),
                Tenant(caps[1], lasting("kernel=b", window_s)),
            )
            name = "/".join(map(str, caps))
            yield Case(f"{length(long_us)} beside 100 us", name, tenants, kernels, window_s)


def varying_cases(first_seed: int = 1) -> Iterator[Case]:
    """Two to eight tenants whose kernels vary from launch to launch, and every way to launch them."""
    for us in VARYING:
        for mix in MIXES:
            tenants = tuple(Tenant(cap, lasting("", 1)) for cap in mix)
            group = f"beside others, {length(us)}"
            yield Case(group, "/".join(map(str, mix)), tenants, {"kernel": us})
    for mix in MIXES:
        yield _of_every_length("beside others", mix, first_seed)
    ways = (("sync=1",) * 2, ("streams=4",) * 2, ("by=graph,nodes=3",) * 2, ("by=graph,nodes=3", ""),
            ("burst=50,idle_us=5000", ""), ("shapes=1000000000",) * 2)  # fmt: skip
    for first, second in ways:
        for caps in ((10, 90), (30, 70), (50, 50)):
            tenants = (Tenant(caps[0], lasting(first, 1)), Tenant(caps[1], lasting(second, 1)))
            group = f"{first} beside {second or 'a busy one'}, {length((20, 2000))}"
            yield Case(group, "/".join(map(str, caps)), tenants, {"kernel": (20, 2000)})
    for caps in ((10, 90), (30, 70), (50, 50), (70, 30)):
        tenants = (
            Tenant(caps[0], lasting("kernel=a", 1)),
            Tenant(caps[1], lasting("kernel=b", 1)),
        )
        yield Case(f"200 us beside {length((20, 2000))}", "/".join(map(str, caps)), tenants,
                   {"a": 200, "b": (20, 2000)})  # fmt: skip


def rare_cases() -> Iterator[Case]:
    """Kernels that are short and now and then long, alone and beside steady ones."""
    for rare in RARE:
        for cap in CAPS[::2]:
            tenant = Tenant(cap, lasting("", 1))
            yield Case(f"alone, {length(rare)}", f"{cap} %", (tenant,), {"kernel": rare})
    for rare in RARE_BESIDE:
        for caps in ((10, 90), (30, 70), (50, 50), (70, 30)):
            tenants = (
                Tenant(caps[0], lasting("kernel=a", 1)),
                Tenant(caps[1], lasting("kernel=b", 1)),
            )
            yield Case(f"{length(rare)} beside 100 us", "/".join(map(str, caps)), tenants,
                       {"a": rare, "b": 100})  # fmt: skip
    for rare, (steady, caps) in product(RARE_AND_SHORT, ((3, (30, 70)), (2000, (30, 50)))):
        tenants = tuple(
            Tenant(cap, lasting(f"kernel={name}", 1)) for cap, name in zip(caps, "ab", strict=True)
        )
        yield Case(f"rare: {length(rare)} beside {length(steady)}", "/".join(map(str, caps)), tenants,
                   {"a": rare, "b": steady})  # fmt: skip


FAR_LONGER: Kernels = {"a": (20, 400, 20), "b": 40}
EIGHT_KINDS: Kernels = {"a": 5, "b": 8, "c": 12, "d": 20, "e": 30, "f": 45, "g": 60, "h": 80}
ONE_VARIES: Kernels = {"b": (20, 300), "f": 10, "p": 5}
ONE_OF_FOUR: Kernels = {"a": 5, "b": 30, "c": (10, 200), "d": 15}
BURSTS = "burst=40,idle_us=300"
SEVERAL_KINDS: tuple[tuple[str, int, Kernels, str], ...] = (
    ("one far longer now and then, 2 streams", 1, FAR_LONGER, "kernel=a+b,streams=2"),
    ("the same, waited for", 1, FAR_LONGER, "kernel=a+b,streams=2,sync=50"),
    ("the same, 4 threads", 4, FAR_LONGER, "kernel=a+b,streams=2,sync=20"),
    ("eight, 8 threads that wait", 8, EIGHT_KINDS, "kernel=a+b+c+d+e+f+g+h,sync=100"),
    ("25 and 5 us, 4 threads that wait", 4, {"a": 25, "b": 5}, "kernel=a+b,sync=5"),
    ("one varies widely, 4 threads that wait", 4, ONE_VARIES, "kernel=b+f+p,sync=20"),
    (
        "one of four varies, 4 threads in bursts",
        4,
        ONE_OF_FOUR,
        f"kernel=a+b+c+d,streams=4,{BURSTS}",
    ),
)


def kinds_cases() -> Iterator[Case]:
    """Several kinds of kernels on several streams and threads, alone and in pairs."""
    for kinds, threads, kernels, phase in SEVERAL_KINDS:
        for mix in ((10,), (30,), (50,), (70,), (90,), (30, 70), (50, 50)):
            tenants = tuple(Tenant(cap, lasting(phase, 1), threads=threads) for cap in mix)
            group = f"{'alone' if len(mix) == 1 else 'beside others'}, kinds: {kinds}"
            yield Case(group, "/".join(map(str, mix)), tenants, kernels)


LENGTHS: Kernels = {
    "a": 20, "b": 8, "c": 180, "d": 500, "e": 1500, "f": 5000, "g": 20_000, "v": (100, 2000), "w": 5,
}  # fmt: skip
LONG = ("kernel=c", "kernel=d", "kernel=e,sync=1", "kernel=f,sync=1", "kernel=g+a,sync=2", "kernel=v",
        "kernel=v,sync=2")  # fmt: skip
SHORT = ("kernel=a", "kernel=a,sync=20", "kernel=w,sync=10", "kernel=a,burst=50,idle_us=3000",
         "kernel=b,burst=200,idle_us=5000")  # fmt: skip
SHAPES: Kernels = {"a": (20, 1000, 40), "b": 80}


def threads_cases() -> Iterator[Case]:
    """A process of which one thread launches long kernels and another one short ones."""
    for long, short in product(LONG, SHORT):
        for cap in CAPS[::2]:
            phases = tuple(
                f"thread={number},{phase}"
                for number, each in enumerate((long, short), 1)
                for phase in lasting(each, 1)
            )
            group = f"alone, threads: {long} | {short}"
            yield Case(group, f"{cap} %", (Tenant(cap, phases, threads=2),), LENGTHS)


NEIGHBOUR: Kernels = {
    "a": 20, "b": 50, "c": 200, "d": 1000, "e": 2000, "v": (5, 300), "r": (20, 400, 20),
}  # fmt: skip
WAYS_BESIDE_LONG = (("kernel=a",), ("kernel=c",), ("kernel=e",), ("kernel=v",), ("kernel=v,streams=4",), ("kernel=r",), ("kernel=r,streams=4",),
                    ("kernel=d", "kernel=a"), ("kernel=d", "kernel=b"), ("kernel=e", "kernel=a"))  # fmt: skip


def long_neighbour_cases() -> Iterator[Case]:
    """One or two threads beside a container whose kernels are cut into many turns."""
    lengths = ((20_000, 1), (50_000, 1), (200_000, 2))
    for ways, (us, window_s) in product(WAYS_BESIDE_LONG, lengths):
        for cap in (50, 70, 80):
            phases = tuple(
                f"thread={number},{phase}"
                for number, each in enumerate(ways, 1)
                for phase in lasting(each, window_s)
            )
            tenants = (
                Tenant(cap, phases, threads=len(ways)),
                Tenant(100 - cap, lasting("kernel=n", window_s)),
            )
            yield Case(f"beside {length(us)}: {' | '.join(ways)}", f"{cap}/{100 - cap}", tenants,
                       {**NEIGHBOUR, "n": us}, window_s)  # fmt: skip


def shapes_cases() -> Iterator[Case]:
    """Kernels that are far longer now and then, in many shapes."""
    for shapes, way in product(
        (20, 100, 300), ("kernel=a", "kernel=a,sync=20", "kernel=a+b,streams=2")
    ):
        for mix in ((10,), (30,), (50,), (90,), (30, 70)):
            phases = lasting(f"{way},shapes={shapes}", 1)
            tenants = tuple(Tenant(cap, phases) for cap in mix)
            group = f"{'alone' if len(mix) == 1 else 'beside others'}, {shapes} shapes: {way}"
            yield Case(group, "/".join(map(str, mix)), tenants, SHAPES)


def _of_every_length(where: str, mix: tuple[int, ...], first_seed: int) -> Case:
    """In windows of ten times the longest; judged by what an ideal limiter does."""
    tenants = tuple(Tenant(cap, ("ms=30000",)) for cap in mix)
    ideal = ideal_error(mix, 2, 200_000, 30, 2, SKIP_S, first_seed)
    return Case(f"{where}, {length((2, 200_000))}", "/".join(map(str, mix)), tenants,
                {"kernel": (2, 200_000)}, 2, ideal)  # fmt: skip


def families(first_seed: int) -> dict[str, tuple[Case, ...]]:
    """All cases, by what they are about."""
    return {
        "one container: each length, each limit": tuple(alone_cases(first_seed)),
        "one container: each way to launch": tuple(ways_cases()),
        "many streams and threads": tuple(streams_cases()),
        "several contexts in a process": tuple(contexts_cases()),
        "events that take time of their stream": tuple(events_cases()),
        "2 to 8 containers, kernels of one length": tuple(beside_cases()),
        "2 to 8 containers, kernels that vary": tuple(varying_cases(first_seed)),
        "short, and now and then long": tuple(rare_cases()),
        "several kinds of kernels": tuple(kinds_cases()),
        "a thread with long kernels, one with short": tuple(threads_cases()),
        "beside kernels of 20, 50 and 200 ms": tuple(long_neighbour_cases()),
        "now and then long, in many shapes": tuple(shapes_cases()),
        "mixes drawn at random": tuple(Case(*mix, waits=True) for mix in random_mixes(5500)),
    }


def share_area() -> Iterator[Row]:
    """Error of shares of GPU time, in virtual time on the simulated GPU; and what telling it costs."""
    cases = [case for family in families(1).values() for case in family if not case.waits]
    beyond = [max(0.0, abs(error) - max(0.0, allowed_points(len(case.tenants), case.ideal) - target_points(case)))
              for case, error in zip(cases, judged(cases), strict=True)]  # fmt: skip
    errors = dict(zip(cases_by_name(cases), beyond, strict=True))
    for group in dict.fromkeys(case.group for case in cases):
        found = [abs(error) for (of, _), error in errors.items() if of == group]
        ideal = any(case.ideal for case in cases if case.group == group)
        target = ALONE_POINTS if group.startswith("alone") else BESIDE_POINTS
        yield row(
            "share",
            f"{group}, less an ideal limiter's" if ideal else group,
            found,
            "points",
            target=target,
            value=max(found),
        )
    controls = [
        replace(case, tenants=tuple(replace(t, policy="disable") for t in case.tenants))
        for case in cases
        if case.group in ("alone, 200 us", "beside others, 700 us") and not _evenly(case.tenants)
    ]
    found = [abs(error) for error in judged(controls)]
    yield row("share", "limiter off (must fail)", found, "points", target=BESIDE_POINTS,
              better="higher", value=min(found), control=True)  # fmt: skip

    for way, where in (("together", "alone"), ("beside", "beside others")):
        name = f"CPU of a sweep of 32 streams {where}, of the time between two"
        yield row("share", name, sweep_percents(way), "%")


def sweep_percents(way: str, runs: int = 5) -> list[float]:
    """What the hook's thread works for a sweep, in percent of SWEEP_EVERY_US, apart from the driver."""
    source = (Path(__file__).resolve().parent / "sweep_cost.c").read_text()
    program = compiled(source, "-O2", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    said = [
        subprocess.run([program, way], capture_output=True, check=True).stdout for _ in range(runs)
    ]
    return [float(text.split()[0]) / SWEEP_EVERY_US * 100 for text in said]


def _evenly(tenants: Sequence[Tenant]) -> bool:
    """Whether the limits are what a GPU that is not limited gives each of them anyway."""
    return len(tenants) > 1 and len({tenant.percent for tenant in tenants}) == 1


def cases_by_name(cases: Sequence[Case]) -> list[tuple[str, str]]:
    """Their names, in order."""
    return [(case.group, case.name) for case in cases]
