"""What was measured on a real GPU, whether it is good enough, and how that is written down. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the page. `passed` None: told for the record, nothing is wanted of it."""

    check: str
    name: str
    value: str
    wanted: str = ""
    passed: bool | None = None


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
    )


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
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def as_json(facts: Mapping[str, str], results: Sequence[Result]) -> str:
    """The same for machines."""
    content = {"facts": dict(facts), "results": [asdict(result) for result in results]}
    return json.dumps(content, indent=1) + "\n"
