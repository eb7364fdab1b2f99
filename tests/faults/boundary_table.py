"""At which write boundaries was the agent killed or held, by which rows, and which did no row meet?"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

# Of those that no row meets.
WHY = {"plugin-socket-removed": "gRPC removes the socket itself, a moment before"}
Named = tuple[str, "Met"]  # a row, as "group: fault"


@dataclass
class Met:
    """How often at which boundary."""

    killed: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "Met") -> Self:
        self.killed += other.killed
        self.held += other.held
        return self


def met_by(case: ET.Element) -> Met:
    """What the report of one test says (tests/faults/conftest.py)."""
    found = {p.get("name"): p.get("value", "") for p in case.iter("property")}
    return Met(
        killed=Counter(found.get("kill at", "").split()),
        held=Counter(found.get("hold at", "").split()),
    )


def of_boundary(name: str, rows: Iterable[Named]) -> dict[str, str]:
    """Which rows killed and held it there, and how often each."""
    rows = list(rows)
    return {
        "killed": _listed({row: met.killed[name] for row, met in rows}),
        "held": _listed({row: met.held[name] for row, met in rows}),
    }


def _listed(times: Mapping[str, int]) -> str:
    return "; ".join(f"{row} ({count})" for row, count in times.items() if count)


def unmet(names: Iterable[str], rows: Iterable[Named]) -> list[str]:
    """The boundaries at which no row killed or held the agent."""
    met = {name for _, one in rows for name in (one.killed | one.held)}
    return sorted(set(names) - met)


def chapter(names: Iterable[str], rows: Sequence[Named]) -> list[str]:
    """Lines of the page."""
    names = sorted(names)
    never = unmet(names, rows)
    lines = [
        "## Write boundaries",
        "",
        f"Where the agent can be killed or held (`agent/boundaries.py`): {len(names)} places. At which of them the rows",
        "above killed it, or held it while somebody else was restarted, and how often:",
        "",
        "| boundary | times killed | killed by | held by |",
        "|---|---|---|---|",
    ]
    for name in names:
        of = of_boundary(name, rows)
        times = sum(met.killed[name] for _, met in rows)
        lines.append(f"| `{name}` | {times} | {of['killed']} | {of['held']} |")
    said = ", ".join(f"`{n}`" + (f" ({WHY[n]})" if n in WHY else "") for n in never) or "none"
    return [*lines, "", f"Met by no row: {said}.", ""]
