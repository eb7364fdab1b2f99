"""Cases of share_matrix.py: several contexts in a process, and events that take something of their stream."""

from collections.abc import Iterator
from itertools import product

from share_bed import Kernels, Microseconds, Tenant

from tests.bench.share_case import Case, lasting, length

RARE = ((20, 2000, 100), (50, 1000, 50), (10, 200, 40))  # one in so many is long
IN_CONTEXTS: tuple[Microseconds, ...] = (10, 20, 50, 500, 3000, (5, 300), (20, 2000))
WAYS_IN_CONTEXTS = ("sync=1", "sync=8", "streams=0", "streams=2", "burst=200,idle_us=1000")


def contexts_cases() -> Iterator[Case]:
    """One process with several contexts, which take turns as processes do, a thread in each."""
    for contexts in (2, 4):
        ways = [(us, "") for us in IN_CONTEXTS] + [(20, way) for way in WAYS_IN_CONTEXTS]
        ways += [(rare, "") for rare in RARE] if contexts == 2 else []
        for us, way in ways:
            phases = lasting(f"contexts={contexts},{way}", 1)
            name = f"{contexts} contexts, {length(us)} {way}".rstrip()
            for mix in ((10,), (30,), (50,), (90,), (30, 70)):
                tenants = (
                    Tenant(mix[0], phases, threads=contexts),
                    *(Tenant(cap, lasting("kernel=b", 1)) for cap in mix[1:]),
                )
                group = f"{'alone' if len(mix) == 1 else 'beside others'}, {name}"
                yield Case(group, "/".join(map(str, mix)), tenants, {"kernel": us, "b": 100})


def events_cases() -> Iterator[Case]:
    """Short kernels where an event holds up its stream, as real ones do for some time."""
    ways: tuple[tuple[int, Microseconds, str, int], ...] = (
        (70, 3, "", 1), (80, 3, "", 1), (50, (2, 20), "", 1), (50, (5, 50), "", 1), (50, 5, "", 2),
        (50, 5, "streams=4", 1),
    )  # fmt: skip
    for cap, us, way, threads in ways:
        group = f"alone, events of 1 us: {length(us)}, {threads} threads {way}".rstrip()
        tenant = Tenant(cap, lasting(way, 1), threads=threads)
        yield Case(group, f"{cap} %", (tenant,), {"kernel": us}, event_ns=1000)
    beside: tuple[Kernels, ...] = (
        {"a": 3, "b": 3},
        {"a": 20, "b": 2000},
        {"a": (2, 20), "b": 2000},
    )
    for kernels, mix in product(beside, ((30, 50), (30, 70))):
        tenants = tuple(
            Tenant(cap, lasting(f"kernel={name}", 1))
            for cap, name in zip(mix, kernels, strict=True)
        )
        group = f"events of 1 us: {' beside '.join(map(length, kernels.values()))}"
        yield Case(group, "/".join(map(str, mix)), tenants, kernels, event_ns=1000)
