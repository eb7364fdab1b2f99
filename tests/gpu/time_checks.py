"""Checks of what the hook costs, and of what its clock relies on."""

from collections.abc import Iterator, Sequence
from statistics import median

from tests.gpu.page import Result
from tests.gpu.tenants import CORES, MEMORY, ONE_QUEUE, POLICY, Bed

HANDLED_AT_ONCE_US = 100.0  # what the hook takes for "at once"
ROUNDS = 3
PLENTY = {MEMORY: "4096m"}
HALF = {**PLENTY, CORES: "50"}
COLUMNS: tuple[tuple[str, dict[str, str]], ...] = (
    ("hook, no limit", {}),
    ("hook, memory and cores limited", {**HALF, POLICY: "force"}),
    ("hook, the same limits, limiter disabled", {**HALF, POLICY: "disable"}),
)

OWN_KERNELS: tuple[tuple[str, str, dict[str, str]], ...] = (  # what keeps the GPU busy meanwhile
    ("a stream of ours is full", "1", {}),
    ("16 streams of ours are full", "16", {}),
    ("a stream of ours is full, one connection", "1", ONE_QUEUE),
    ("a stream of another context of ours is full", "context", {}),
)


def overhead(bed: Bed) -> Iterator[Result]:
    """What the hook adds to a launch and to an allocation, in turns with a program without it."""
    for call, words in (("launch", "launches"), ("allocation", "allocations")):
        native: list[float] = []
        found: dict[str, list[float]] = {name: [] for name, _ in COLUMNS}
        for _ in range(ROUNDS):
            native.append(float(bed.run(["cuda_work.py", words], hooked=False)["ns"]))
            for name, env in COLUMNS:
                container = f"{call} {name}"
                told = bed.run(["cuda_work.py", words], container=container, **env)
                found[name].append(float(told["ns"]))
        check = f"time of one {call}"
        base = f"{median(native):.0f} ns ({min(native):.0f} to {max(native):.0f})"
        yield Result(check=check, name="no hook", value=base, wanted="for the record, from Python",
                     data={"ns": native})  # fmt: skip
        for name, taken in found.items():
            added = [one - none for one, none in zip(taken, native, strict=True)]
            value = f"{median(added):+.0f} ns ({min(added):+.0f} to {max(added):+.0f})"
            yield Result(check=check, name=f"{name}: added", value=value, wanted="for the record",
                         data={"added_ns": added})  # fmt: skip


def events(bed: Bed) -> Iterator[Result]:
    """An event on an idle stream is handled at once, unless another process has the GPU."""
    check = "events on an idle stream"
    alone = bed.run(["cuda_work.py", "events"], hooked=False)
    watcher = bed.start(["cuda_work.py", "events"], hooked=False)
    with watcher, bed.start(["cuda_work.py", "hold", 60], hooked=False) as holder:
        watcher.hear()
        holder.hear()
        holder.go()
        watcher.go()
        beside = watcher.hear()
    yield Result(check=check, name="cuEventRecord", value=f"{alone['record_ns']:.0f} ns")
    yield Result(check=check, name="cuEventQuery", value=f"{alone['query_ns']:.0f} ns")
    held_up = alone["held_up_us"]
    yield Result(check=check, name="holds up its stream, behind a kernel and another event",
                 value=f"least {held_up[0]:.2f} us, median {median(held_up):.2f} us",
                 wanted="for the record",
                 data={"held_up_us": held_up})  # fmt: skip
    yield at_once_result(check, "alone", alone["urgent_us"])
    far = beside["urgent_us"]
    late = late_part(far)
    yield Result(check=check, name="another process has the GPU: handled late",
                 value=f"{late:.0%}, {spread(far)}", wanted="at least half",
                 passed=late >= 0.5)  # fmt: skip
    for name, kept_full, env in OWN_KERNELS:
        found = bed.run(["cuda_work.py", "events", kept_full], hooked=False, **env)
        yield at_once_result(check, name, found["urgent_us"], judged=kept_full != "context")
        yield at_once_result(check, f"{name}, of no priority", found["delays_us"], judged=False)


def at_once_result(
    check: str, name: str, delays_us: Sequence[float], *, judged: bool = True
) -> Result:
    """Whether such events were handled at once. Not `judged`: for the record."""
    late = late_part(delays_us)
    return Result(
        check=check,
        name=f"{name}: handled late",
        value=f"{late:.0%}, {spread(delays_us)}",
        wanted=f"at most 5 % after {HANDLED_AT_ONCE_US:.0f} us" if judged else "for the record",
        passed=late <= 0.05 if judged else None,
    )


def late_part(delays_us: Sequence[float]) -> float:
    """How many of them are no latency."""
    return sum(delay > HANDLED_AT_ONCE_US for delay in delays_us) / len(delays_us)


def spread(delays_us: Sequence[float]) -> str:
    """Median and 90th percentile of sorted delays."""
    return f"median {median(delays_us):.0f} us, p90 {delays_us[len(delays_us) * 9 // 10]:.0f} us"
