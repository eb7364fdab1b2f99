"""What was measured on a real GPU, whether it is good enough, and how that is written down. Pure."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

BIN_S = 0.05  # of the picture of a step
WINDOW_S = 0.2  # over which a share is judged to have arrived
ARRIVED_POINTS, ARRIVED_S = 5.0, 0.5
POOL_STEP = 32 << 20  # by what the driver's pools grow
TO_THE_BYTE = ("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemCreate", "cuArrayCreate",
               "cuArray3DCreate", "cuMipmappedArrayCreate")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the page. `passed` None: told for the record, nothing is wanted of it."""

    check: str
    name: str
    value: str
    wanted: str = ""
    passed: bool | None = None
    data: Mapping[str, Any] | None = None  # numbers for pictures and for other programs


def share_result(
    check: str, name: str, *, wanted_percent: float, got_percent: float, within_points: float
) -> Result:
    """Whether a share of GPU time is what was asked for, in points of the whole GPU."""
    return Result(
        check=check,
        name=name,
        value=f"{got_percent:.1f} %",
        wanted=f"{wanted_percent:g} % within {within_points:g} points",
        passed=abs(got_percent - wanted_percent) <= within_points,
        data={"wanted_percent": wanted_percent, "got_percent": got_percent},
    )


def control_result(check: str, disabled: Sequence[Result]) -> Result:
    """The same checks with the limiter disabled must fail, or they show nothing."""
    missed = [result.name for result in disabled if result.passed is not False]
    return Result(
        check=check,
        name="negative control: the same without the limiter is noticed",
        value="; ".join(f"{result.name}: {result.value}" for result in disabled),
        wanted="each of them fails its check",
        passed=bool(disabled) and not missed,
        data={"disabled": [dict(result.data or {}) for result in disabled]},
    )


def step_results(
    check: str, changed: Sequence[tuple[float, float]], done_s: Sequence[float], *, whole: float
) -> list[Result]:
    """How soon the share is what each change wanted, and the whole course for a picture.

    `changed`: when (s) which share in percent was set, the one at the beginning first. `done_s`: when
    each piece of work was done. `whole`: pieces a second without a limit.
    """

    def share(from_s: float, long_s: float) -> float:
        pieces = bisect_left(done_s, from_s + long_s) - bisect_left(done_s, from_s)
        return pieces / long_s / whole * 100

    results = []
    last_s = done_s[-1] if done_s else 0.0
    ends = [*(at for at, _ in changed[1:]), last_s]
    for (at, percent), end in list(zip(changed, ends, strict=True))[1:]:
        starts = [at + BIN_S / 5 * n for n in range(int(max(0.0, end - WINDOW_S - at) / BIN_S * 5))]
        arrived = next(
            (s for s in starts if abs(share(s, WINDOW_S) - percent) <= ARRIVED_POINTS), None
        )
        took = "never" if arrived is None else f"{(arrived - at) * 1e3:.0f} ms"
        results.append(
            Result(check=check, name=f"to {percent:g} %: arrives after", value=took,
                   wanted=f"within {ARRIVED_S * 1e3:.0f} ms ({ARRIVED_POINTS:g} points, over "
                          f"{WINDOW_S * 1e3:.0f} ms)",
                   passed=arrived is not None and arrived - at <= ARRIVED_S)
        )  # fmt: skip
    began = changed[0][0]
    bins = [began + BIN_S * n for n in range(int(max(0.0, last_s - began) / BIN_S))]
    course = [(round(at - began, 3), round(share(at, BIN_S), 2)) for at in bins]
    steps = [(round(at - began, 3), percent) for at, percent in changed]
    results.append(
        Result(check=check, name="course", value=f"{len(course)} points of {BIN_S * 1e3:.0f} ms",
               data={"course": course, "steps": steps})
    )  # fmt: skip
    return results


def memory_results(
    check: str, found: Mapping[str, float | str], *, limit_mib: int, real_mib: float | None
) -> list[Result]:
    """Whether what PyTorch could take is the limit, neither more nor much less.

    `found` is what `torch_work.py memory` says. `real_mib`: what the GPU's memory grew by, seen from
    outside; None if that could not be seen.
    """
    room, total = float(found["room_mib"]), float(found["total_mib"])
    used = total - room
    results = [
        Result(check=check, name="total that CUDA shows", value=f"{total:.0f} MiB",
               wanted=f"{limit_mib} MiB", passed=round(total) == limit_mib),
        Result(check=check, name="used when full", value=f"{used:.0f} MiB",
               wanted=f"at most {limit_mib} MiB, at most 64 MiB less",
               passed=limit_mib - 64 <= used <= limit_mib),
        Result(check=check, name="refused as", value=str(found["refusal"]),
               wanted="OutOfMemoryError", passed=found["refusal"] == "OutOfMemoryError"),
        Result(check=check, name="fits again when given back", value=f"{found['again_mib']} MiB",
               wanted=f"{found['held_mib']} MiB", passed=found["again_mib"] == found["held_mib"]),
    ]  # fmt: skip
    if real_mib is not None:
        results.append(
            Result(check=check, name="taken of the GPU, seen from outside",
                   value=f"{real_mib:.0f} MiB",
                   wanted=f"at most {limit_mib} MiB, at least the {found['held_mib']} MiB held",
                   passed=float(found["held_mib"]) <= real_mib <= limit_mib)
        )  # fmt: skip
    return results


MIB = 1 << 20


def race_results(
    name: str, held: Sequence[Mapping[str, int]], shown: Sequence[Mapping[str, int]], *, limit: int,
    real_mib: float | None,
) -> list[Result]:  # fmt: skip
    """Whether processes that raced for memory have the limit together, to the byte.

    `held`: what each has (held), its smallest allocation and how often it was refused. `shown`: total
    and room of cuMemGetInfo in each, when all had been refused. `real_mib`: see `memory_results`.
    """
    check = f"race of {len(held)} processes, {name}"
    sums = sum(one["held"] for one in held)
    refused = sum(one["refused"] for one in held)
    rooms, totals = {one["room"] for one in shown}, {one["total"] for one in shown}
    # What is left is less than the least that any of them could have taken; pools grow by steps.
    least = min(one["smallest"] for one in held)
    spare = max(least, 0 if name in TO_THE_BYTE else POOL_STEP)
    used = max(totals) - min(rooms)
    results = [
        Result(check=check, name="in use when all were refused",
               value=f"{used} bytes ({sums} allocated, the rest contexts and pools), "
                     f"{refused} refusals",
               wanted=f"at most {limit} bytes, less than {spare} bytes left",
               passed=totals == {limit} and sums <= used <= limit and limit - used < spare,
               data={"held": [one["held"] for one in held], "used": used, "limit": limit}),
    ]  # fmt: skip
    if real_mib is not None:
        results.append(
            Result(check=check, name="taken of the GPU, seen from outside",
                   value=f"{real_mib:.0f} MiB", wanted=f"at most {limit // MIB} MiB, at least the "
                   f"{sums // MIB} MiB allocated", passed=sums // MIB <= real_mib <= limit // MIB)
        )  # fmt: skip
    return results


def view_results(
    check: str, told: Mapping[str, Any], inside: tuple[float, float] | None, *, limit_mib: int,
    smi_is_there: bool,
) -> list[Result]:  # fmt: skip
    """Whether all who can be asked in a container say the same. `told`: pairs of room and total."""
    room, total = told["cuda"]
    used_mib = (total - room) / MIB
    results = [
        Result(check=check, name="cuMemGetInfo", value=f"{used_mib:.2f} of {total / MIB:.0f} MiB",
               wanted=f"total {limit_mib} MiB", passed=total == limit_mib * MIB)
    ]  # fmt: skip
    if "torch" in told:
        torch_room, torch_total = told["torch"]
        results += [
            Result(check=check, name="torch.cuda.mem_get_info",
                   value=f"{torch_total - torch_room} of {torch_total} bytes",
                   wanted=f"{total - room} of {total} bytes, what is held ({told['held']}) in it",
                   passed=told["torch"] == told["cuda"] and total - room >= told["held"]),
            Result(check=check, name="torch.cuda.get_device_properties",
                   value=f"{told['properties']} bytes", wanted=f"{total} bytes",
                   passed=told["properties"] == total),
        ]  # fmt: skip
    if inside is not None:
        smi_total, smi_used = inside
        results.append(
            Result(check=check, name="nvidia-smi inside", value=f"{smi_used:g} of {smi_total:g} MiB",
                   wanted=f"{used_mib:.0f} of {limit_mib} MiB, within 1",
                   passed=smi_total == limit_mib and abs(smi_used - used_mib) <= 1)
        )  # fmt: skip
    elif smi_is_there:
        results.append(
            Result(check=check, name="nvidia-smi inside", value="says nothing",
                   wanted="what it says outside, of the share", passed=False)
        )  # fmt: skip
    else:
        results.append(Result(check=check, name="nvidia-smi inside", value="is not there"))
    return results


def same_results(check: str, plain: str, again: str, hooked: str, *, twice: bool) -> list[Result]:
    """Whether the digests of what came out are the same; not judged where it never is the same."""
    results = []
    if twice:
        results.append(
            Result(check=check, name="without the hook, twice", value=again[:16],
                   wanted=f"{plain[:16]}, or it is not the same by itself")
        )  # fmt: skip
    itself = plain == again
    results.append(
        Result(check=check, name="with the hook, limited", value=hooked[:16],
               wanted=plain[:16] if itself else "nothing, because two runs without it differ",
               passed=hooked == plain if itself else None)
    )  # fmt: skip
    return results


def as_markdown(facts: Mapping[str, str], results: Sequence[Result]) -> str:
    """The page."""
    failed = [result for result in results if result.passed is False]
    judged = [result for result in results if result.passed is not None]
    verdict = f"{len(judged) - len(failed)} of {len(judged)} checks passed"
    lines = ["# On a real GPU", "", f"`python3 build.py gpu` measured this: {verdict}.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "| check | what | found | wanted | |", "|---|---|---|---|---|"]
    for result in results:
        mark = {None: "", True: "ok", False: "**FAILED**"}[result.passed]
        cells = (result.check, result.name, result.value, result.wanted, mark)
        lines.append(
            "| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def as_json(facts: Mapping[str, str], results: Sequence[Result]) -> str:
    """The same for machines."""
    content = {"facts": dict(facts), "results": [asdict(result) for result in results]}
    return json.dumps(content, indent=1) + "\n"
