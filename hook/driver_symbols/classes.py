"""Every function of the driver is hooked, passed through or knowingly ignored: which, and why.

Hooked is what symbols.h lists. The other two are in classes.toml, by family: one entry stands for
all ABIs and per-thread forms of a function, and may be a pattern (`cuTexRef*`).
"""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hook.driver_symbols.tables import split

BUDGETS = ("memory", "compute", "view")


@dataclass(frozen=True)
class Group:
    """Functions that are left alone for one reason."""

    entries: tuple[str, ...]
    reason: str
    budget: str = ""  # of what is ignored: which budget or view it goes past

    @property
    def kind(self) -> str:
        """`ignored` or `passed`."""
        return "ignored" if self.budget else "passed"


@dataclass(frozen=True)
class Judged:
    """What classes.toml says about a list of symbols."""

    groups: tuple[tuple[Group, tuple[str, ...]], ...]  # each with the symbols it decides
    problems: tuple[str, ...]  # sentences; empty when every symbol has exactly one class


def read_groups(path: Path, library: str) -> tuple[Group, ...]:
    """The groups for `cuda` or `nvml`. Raises ValueError for what is not well-formed."""
    table = tomllib.loads(path.read_text())[library]
    groups = [Group(tuple(entry["symbols"]), entry["reason"]) for entry in table["passed"]]
    for entry in table["ignored"]:
        if entry["budget"] not in BUDGETS:
            raise ValueError(
                f"{path.name}: budget {entry['budget']!r} is none of {', '.join(BUDGETS)}"
            )
        groups.append(Group(tuple(entry["symbols"]), entry["reason"], entry["budget"]))
    return tuple(groups)


def judge(symbols: Iterable[str], hooked: Collection[str], groups: Iterable[Group]) -> Judged:
    """Put every symbol into its class; say what is wrong with those that have none, or several."""
    groups = tuple(groups)
    problems: list[str] = []
    decided: dict[int, list[str]] = {index: [] for index in range(len(groups))}
    used: set[str] = set()
    symbols = sorted(symbols)
    for symbol in symbols:
        matching = [
            (index, entry)
            for index, group in enumerate(groups)
            for entry in group.entries
            if fnmatchcase(split(symbol)[0][0], entry) or symbol == entry
        ]
        used.update(entry for _, entry in matching)
        by_group = dict(reversed(matching))
        problem = _problem(symbol, symbol in hooked, [groups[i].kind for i in sorted(by_group)])
        if problem:
            problems.append(f"{problem} {', '.join(entry for _, entry in matching)}".strip())
        elif matching:
            decided[matching[0][0]].append(symbol)
    entries = [entry for group in groups for entry in group.entries]
    problems += [
        f"{entry} in classes.toml matches no function of the driver: correct it or delete it"
        for entry in entries
        if entry not in used
    ]
    problems += [
        f"{symbol} in symbols.h is no function of the driver: is it spelled as it is exported?"
        for symbol in sorted(set(hooked) - set(symbols))
    ]
    return Judged(tuple((g, tuple(decided[i])) for i, g in enumerate(groups)), tuple(problems))


def _problem(symbol: str, is_hooked: bool, kinds: list[str]) -> str:
    if not is_hooked and not kinds:
        return (
            f"{symbol} is in no class: read what it does to memory, launches and what is shown of "
            "them, then hook it (a line in symbols.h and a wrapper), or put it into classes.toml "
            "under `passed` or `ignored` with the reason"
        )
    if is_hooked and kinds:
        return f"{symbol} is hooked and also {kinds[0]}: from classes.toml, delete"
    if len(kinds) > 1:
        return f"{symbol} is decided {len(kinds)} times ({', '.join(kinds)}): keep one of"
    return ""
