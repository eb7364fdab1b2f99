"""A measured number, and how a run of them is printed and written down."""

import datetime as dt
import json
import math
import os
import platform
from collections.abc import Sequence
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

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def row(
    area: str, name: str, samples: Sequence[float], unit: str, *, target: float | None = None,
    better: str = "lower", value: float | None = None, column: str = "",
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
    )


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


def as_markdown(rows: Sequence[Row]) -> str:
    """The same for docs/results/bench.md."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(found)) + " |" for found in rows]
    return (
        "# Benchmark\n\nMeasured by `python3 build.py bench --json docs/results/bench.json` on "
        f"{machine()}, with the simulated driver, the stand-in kubelet and the stand-in API server on "
        "loopback, all on the same machine. Values are medians unless the name says otherwise.\n\n"
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
        "\n## The hook, column by column\n\nThe same rows as above. (NO): a target that was not met."
        "\n\n" + "\n".join(lines) + "\n"
    )


def machine() -> str:
    """The machine in words."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def write(rows: Sequence[Row], target: Path) -> None:
    """Write the machine and the rows as JSON, and as Markdown beside it."""
    content = {
        "machine": machine(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "rows": [asdict(found) | {"met": found.met} for found in rows],
    }
    target.write_text(json.dumps(content, indent=1) + "\n")
    target.with_suffix(".md").write_text(as_markdown(rows))
