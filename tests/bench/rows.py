"""A measured number, and how a run of them is printed and written down."""

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median


class BenchError(Exception):
    """A program of the benchmark could not be built or run; the message says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number. `spread` is (lowest, highest) of what it was taken from; target None: for the record."""

    name: str
    area: str
    value: float
    unit: str
    target: float | None
    better: str  # "lower" | "higher"
    spread: tuple[float, float]
    command: str
    column: str = ""  # of a table apart, in which `name` is the line
    control: bool = False  # negative: not met means that what was measured tells nothing

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def row(
    area: str, name: str, samples: Sequence[float], unit: str, *, target: float | None = None,
    better: str = "lower", value: float | None = None, column: str = "", control: bool = False,
) -> Row:  # fmt: skip
    """Make a row of samples; the value is their median unless given."""
    return Row(
        name=name,
        area=area,
        value=median(samples) if value is None else value,
        unit=unit,
        target=target,
        better=better,
        spread=(min(samples), max(samples)),
        command=f"python3 build.py bench --only {area}",
        column=column,
        control=control,
    )


def failed_controls(rows: Sequence[Row]) -> list[Row]:
    """Negative controls that passed the check which they must fail."""
    return [found for found in rows if found.control and found.met is False]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def cells(found: Row) -> list[str]:
    """What a table shows of a row."""
    met = {None: "", True: "yes", False: "NO"}[found.met]
    sign = "<=" if found.better == "lower" else ">="
    target = f"{sign} {_number(found.target)}" if found.target is not None else ""
    spread = f"{_number(found.spread[0])} .. {_number(found.spread[1])}"
    name = f"{found.name}: {found.column}" if found.column else found.name
    return [found.area, name, _number(found.value), found.unit, target, met, spread]


HEAD = ["area", "number", "value", "unit", "target", "met", "spread"]


def as_text(rows: Sequence[Row]) -> str:
    """A table for the terminal."""
    lines = [HEAD, *(cells(found) for found in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@dataclass(frozen=True, slots=True)
class Page:
    """What is written around a table."""

    title: str = "Benchmark"
    how: str = (
        "with the simulated driver (the area `hook`: with one that does nothing), the stand-in kubelet and the stand-in API server on loopback, all on "
        "the same machine.\n\n"
        "Values are medians, `spread` the lowest and the highest sample, except: Allocate's p99 and *the slowest* are what they say; "
        "API writes and reads are the most that any Allocate made; an error of shares is the largest of its cases (in "
        "`columns`, of both tenants), and the control *limiter off* of the area `share`, which must fail, is the smallest "
        "of its. One sample are: the areas `idle` (a minute each) and `memory`, all of `large` but Allocate, every size, "
        "and each case of a share of GPU time, which is run with one seed. The target of "
        "Allocate's p99 is meant without requests to the API server; measured is with its two writes, so a NO there says "
        "that the sum was over it.\n\n"
        "*Cores awake*: on each core spins a process that runs when nothing else would (SCHED_IDLE), so that none sleeps, "
        "as on a node at work. *Cores asleep*: nothing else runs, and whoever wakes a core is charged for it, which on a "
        "virtual machine can cost more than what is then done; the area `wake` is what a process pays that does nothing."
    )


BENCHMARK = Page()


def as_markdown(
    rows: Sequence[Row],
    about: Mapping[str, str],
    words: str = "--json docs/results/bench.json",
    page: Page = BENCHMARK,
) -> str:
    """The same for docs/results/bench.md; `about`: where and of what, `words`: of the command."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(found)) + " |" for found in rows]
    command = f"python3 build.py bench {words}".rstrip()
    return (
        f"# {page.title}\n\nMeasured by `{command}` on "
        f"{about['machine']}, commit {about['commit']}, {about['date']}, {page.how}\n\n"
        + "\n".join(lines)
        + "\n"
        + _columns(rows)
    )


def _columns(rows: Sequence[Row]) -> str:
    """What was measured in several columns, as a table of its own; empty if nothing was."""
    some = [found for found in rows if found.column]
    columns = list(dict.fromkeys(found.column for found in some))
    if not some:
        return ""
    lines = ["| | unit | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 2)]
    for name, unit in dict.fromkeys((found.name, found.unit) for found in some):
        by_column = {found.column: found for found in some if found.name == name}
        values = [
            f"{_number(by_column[one].value)}{' (NO)' if by_column[one].met is False else ''}"
            if one in by_column
            else ""
            for one in columns
        ]
        lines.append(f"| {name} | {unit} | " + " | ".join(values) + " |")
    return (
        "\n## The hook, column by column\n\nThe same rows as above. (NO): a target that was not met. These "
        "columns there are for every call and one figure of shares. What the library adds to each call is in the area `hook`, "
        "with what a program without CUDA pays, for which no limit is read; all other shares are in the area `share`, some of "
        "them with the limiter off, too."
        "\n\n" + "\n".join(lines) + "\n"
    )


def write(
    rows: Sequence[Row],
    target: Path,
    about: Mapping[str, str],
    words: str = "--json docs/results/bench.json",
    page: Page = BENCHMARK,
) -> None:
    """Write the rows as JSON, and as Markdown beside it; `about`: as `provenance.described`."""
    content = {
        **about,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "rows": [asdict(found) | {"met": found.met} for found in rows],
    }
    target.write_text(json.dumps(content, indent=1) + "\n")
    target.with_suffix(".md").write_text(as_markdown(rows, about, words, page))
