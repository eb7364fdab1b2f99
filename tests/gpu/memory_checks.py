"""Checks of memory: limits exact to the byte, one story for everybody who asks, what contexts take."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tests.gpu.page import Result, memory_results, race_results, view_results
from tests.gpu.smi import smi, smi_used_mib
from tests.gpu.tenants import MEMORY, Bed, Tenant

LIMIT_MIB = 4096
RACERS, RACED_FOR_MIB, CONTEXT_MORE_MIB = 8, 1024, 64
MIB = 1 << 20
ONE_LIMIT = {MEMORY: f"{LIMIT_MIB}m"}


def allocator(settings: str) -> dict[str, str]:
    """PyTorch's variable for it, by its new name and by its old."""
    return {"PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}


ALLOCATORS = {
    "its own allocator": allocator(""),
    "cudaMallocAsync": allocator("backend:cudaMallocAsync"),
    "expandable segments": allocator("expandable_segments:True"),
}


def race(bed: Bed) -> Iterator[Result]:
    """Eight processes take all there is, by each function that allocates, and by all of them at once."""
    ways = bed.run(["memory_race.py", "ways"], hooked=False)["ways"]
    with bed.start(["cuda_work.py", "context"], container="race", **ONE_LIMIT) as tenant:
        context_mib = float(tenant.hear()["used_mib"])
    limit_mib = RACED_FOR_MIB + RACERS * (round(context_mib) + CONTEXT_MORE_MIB)
    for name in ways:
        yield from race_of(bed, name, [name] * RACERS, limit_mib)
    mixed = ways[:RACERS]
    yield from race_of(bed, "different functions together", mixed, limit_mib)


def race_of(bed: Bed, name: str, ways: Sequence[str], limit_mib: int) -> Iterator[Result]:
    """One race. The processes are one container, which is a new one each time."""
    before = smi_used_mib(bed)
    env = {MEMORY: f"{limit_mib}m"}
    with ExitStack() as stack:
        tenants = [
            stack.enter_context(bed.start(["memory_race.py", way], container=f"race {name}", **env))
            for way in ways
        ]
        for tenant in tenants:
            tenant.hear()
        held = both_told(tenants)
        shown = both_told(tenants)
        during = smi_used_mib(bed)
    taken = None if before is None or during is None else during - before
    yield from race_results(name, held, shown, limit=limit_mib * MIB, real_mib=taken)


def both_told(tenants: Sequence[Tenant]) -> list[dict[str, int]]:
    """Let all go on at once; what each says."""
    for tenant in tenants:
        tenant.go()
    return [tenant.hear() for tenant in tenants]


def torch_memory(bed: Bed) -> Iterator[Result]:
    """The limit is what PyTorch gets, by each of its allocators."""
    for name, settings in ALLOCATORS.items():
        before = smi_used_mib(bed)
        with bed.start(["torch_work.py", "memory"], container=name, **ONE_LIMIT, **settings) as one:
            one.hear()
            during = smi_used_mib(bed)
            found = one.finish()
        seen = None if before is None or during is None else during - before
        check = f"memory that PyTorch gets, {name}"
        yield from memory_results(check, found, limit_mib=LIMIT_MIB, real_mib=seen)


def views(bed: Bed, *, torch: bool) -> Iterator[Result]:
    """nvidia-smi, PyTorch and cuMemGetInfo say the same of a container that holds something."""
    check = "what is said of the memory"
    words = ["torch_work.py", "views"] if torch else ["cuda_work.py", "context"]
    with bed.start(words, container="views", **ONE_LIMIT) as tenant:
        told = tenant.hear()
        inside = smi_inside(bed)
        there = smi(bed, "memory.total", hooked=False) is not None
    if not torch:
        room, total = told["total_mib"] - told["used_mib"], told["total_mib"]
        told = {"cuda": [int(room * MIB), int(total * MIB)]}
        yield Result(check=check, name="PyTorch", value="is not there")
    yield from view_results(check, told, inside, limit_mib=LIMIT_MIB, smi_is_there=there)


def smi_inside(bed: Bed) -> tuple[float, float] | None:
    """Total and used MiB, as nvidia-smi says them in the container "views"; None if it does not."""
    cells = smi(bed, "memory.total,memory.used", hooked=True, container="views", **ONE_LIMIT)
    try:
        return (float(cells[0]), float(cells[1])) if cells else None
    except ValueError:
        return None


def contexts(bed: Bed) -> Iterator[Result]:
    """What a context takes, and what the hook charges for it."""
    before = smi_used_mib(bed)
    with bed.start(["cuda_work.py", "context"], container="context", **ONE_LIMIT) as tenant:
        charged = float(tenant.hear()["used_mib"])
        during = smi_used_mib(bed)
    yield Result(check="context", name="charged", value=f"{charged:.0f} MiB")
    if before is not None and during is not None:
        yield Result(
            check="context", name="taken of the GPU, seen from outside",
            value=f"{during - before:.0f} MiB", wanted="what is charged, within 64 MiB",
            passed=abs(during - before - charged) <= 64,
        )  # fmt: skip


def pools(bed: Bed) -> Iterator[Result]:
    """By how much a pool of the driver grows and shrinks, and what the hook makes of it."""
    for where, hooked, env in (("without the hook", False, {}), ("with a limit", True, ONE_LIMIT)):
        found = bed.run(["cuda_work.py", "pools"], hooked=hooked, container="pools", **env)
        steps = ", ".join(f"{count} x {mib:g} MiB" for mib, count in found["steps_mib"])
        yield Result(check="pools", name=f"{where}: grows by", value=steps)
        yield Result(check="pools", name=f"{where}: kept of {found['top_mib']:g} MiB",
                     value=f"{found['freed_mib']:g} MiB when all is freed, "
                           f"{found['synchronized_mib']:g} after a synchronization, "
                           f"{found['trimmed_mib']:g} after a trim")  # fmt: skip
