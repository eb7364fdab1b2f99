"""Counters that never go back, made of counters that a tenant can set to anything.

A container's region counts GPU time, waits, launches and refusals; it ends with the container's
directory, can be made anew, and every process there can write into it. What is shown is therefore
the sum of the steps that were seen, each believed only as far as it is possible: time passes once
on a GPU, and once for each process that waits. What is too early (a long kernel is charged when it
is launched) is believed as time goes on, what is late (a library of before counts a wait when it is
over) at once.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from agent.domain.accounting import Totals

VERSION = 1
MAX_ENTRIES = 20_000
MAX_NAME_CHARS = 256
MOST = (1 << 63) - 1
NAMES = ("gpu_ns", "throttled_ns", "refusals", "refused_bytes", "launches")
_S = 1_000_000_000
SLACK = 1.05  # what a kernel costs is estimated
BURST_S = 60.0  # how far a counter may run ahead of what is believed, or behind what was possible

# The most that one process can add in a second, but GPU time, of which there is one for all. The
# last three are beyond any driver, and only bound what a forged figure does.
PER_SECOND: Mapping[str, int] = MappingProxyType({
    "gpu_ns": int(_S * SLACK), "throttled_ns": int(_S * SLACK),
    "refusals": 1_000_000, "refused_bytes": 1 << 50, "launches": 10_000_000,
})  # fmt: skip

Key = tuple[str, str, str]  # pod uid, container, GPU, or a process on it
OF_PROCESS = "#"  # in the third, between the GPU and the process's pid on the node


class MalformedTotals(ValueError):
    """Bytes that are no saved totals; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One GPU of one container."""

    totals: Totals = field(default_factory=Totals)  # what is shown
    counted: Totals = field(default_factory=Totals)  # up to where in the container's own counters
    at_s: float = 0.0  # unix time of the last look
    spare: Totals = field(default_factory=Totals)  # what was possible and did not happen


Ledger = Mapping[Key, Entry]
EMPTY: Ledger = MappingProxyType({})


def advance(
    entry: Entry | None, raw: Totals, *, granted_at_s: float, now_s: float, processes: int
) -> Entry:
    """The entry after a look at the container's own counters. Its totals never go back.

    Without an entry all that the container can have used since it was granted is believed.
    `processes`: how many of it live.
    """
    before = entry or Entry(at_s=granted_at_s)
    passed_s = max(0.0, now_s - before.at_s)  # clocks are set back, too
    steps, counted, spare = {}, {}, {}
    for name in NAMES:
        per_s = PER_SECOND[name] * (1 if name == "gpu_ns" else max(1, processes))
        burst = int(per_s * BURST_S)
        possible = getattr(before.spare, name) + int(per_s * passed_s)
        now = min(max(0, getattr(raw, name)), MOST)
        start = getattr(before.counted, name)
        if now < start:  # made anew, or written over
            start = 0
        steps[name] = min(now - start, possible)
        counted[name] = max(start + steps[name], now - burst)
        spare[name] = min(possible - steps[name], burst)
    return Entry(_sum(before.totals, steps), Totals(**counted), now_s, Totals(**spare))


def driven(entry: Entry | None, percent: int, now_s: float, *, since_s: float | None) -> Entry:
    """The entry with the GPU time that the driver told of, where no library counts it.

    `percent`: of the time since `since_s`, the look before; None: there was none.
    """
    before = entry or Entry()
    passed_s = 0.0 if since_s is None else min(max(0.0, now_s - since_s), BURST_S)
    step_ns = int(passed_s * _S * percent / 100)
    return replace(
        before,
        at_s=now_s,
        totals=replace(before.totals, gpu_ns=min(before.totals.gpu_ns + step_ns, MOST)),
        spare=replace(before.spare, gpu_ns=max(0, before.spare.gpu_ns - step_ns)),
    )


def passed_over(entry: Entry, gpu_ns: int) -> Entry:
    """The entry for which GPU time that the container counts up to here is not believed.

    Of the same time the driver's figure is: both together would be more than passed.
    """
    return replace(entry, counted=replace(entry.counted, gpu_ns=min(max(0, gpu_ns), MOST)))


def _sum(totals: Totals, steps: Mapping[str, int]) -> Totals:
    return Totals(**{name: min(getattr(totals, name) + steps[name], MOST) for name in NAMES})


def kept(ledger: Ledger, containers: Iterable[tuple[str, str]]) -> Ledger:
    """Without the entries of containers (pod uid, name) that are not among these."""
    known = frozenset(containers)
    return {key: entry for key, entry in ledger.items() if key[:2] in known}


# --- as a file ------------------------------------------------------------------------------------


def encode(ledger: Ledger) -> bytes:
    """One JSON object. Beyond MAX_ENTRIES processes are left out first, and what is older.

    So is what is named at such length that it would not be read back, and all the others with it.
    """
    named = [item for item in ledger.items() if all(len(n) <= MAX_NAME_CHARS for n in item[0])]
    newest = sorted(named, key=lambda item: (OF_PROCESS in item[0][2], -item[1].at_s))
    entries = [
        [*key, entry.at_s, *map(_numbers, (entry.totals, entry.counted, entry.spare))]
        for key, entry in newest[:MAX_ENTRIES]
    ]
    return json.dumps({"version": VERSION, "entries": entries}).encode() + b"\n"


def _numbers(totals: Totals) -> list[int]:
    return [getattr(totals, name) for name in NAMES]


def decode(content: bytes) -> Ledger:
    """Read them back. Raises MalformedTotals, and nothing else, for any other bytes."""
    try:
        return dict(_entry(line) for line in _entries(json.loads(content)))
    except MalformedTotals:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise MalformedTotals(f"{type(error).__name__}: {error}") from error


def _entries(whole: Any) -> list[Any]:
    if not isinstance(whole, dict) or whole.get("version") != VERSION:
        raise MalformedTotals("it is of another version")
    entries = whole["entries"]
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise MalformedTotals(f"a list of at most {MAX_ENTRIES} entries was expected")
    return entries


def _entry(line: Any) -> tuple[Key, Entry]:
    uid, container, gpu, at_s, totals, counted, *spare = line  # without spare: an older agent's
    names = (uid, container, gpu)
    if not all(isinstance(name, str) and len(name) <= MAX_NAME_CHARS for name in names):
        raise MalformedTotals("three names were expected")
    if len(spare) > 1:
        raise MalformedTotals("at most three lists of numbers were expected")
    if not isinstance(at_s, int | float) or not math.isfinite(at_s):
        raise MalformedTotals("a moment was expected")
    return names, Entry(_totals(totals), _totals(counted), float(at_s), *map(_totals, spare))


def _totals(values: Any) -> Totals:
    if not isinstance(values, list) or len(values) != len(NAMES):
        raise MalformedTotals(f"{len(NAMES)} numbers were expected")
    if not all(type(value) is int and 0 <= value <= MOST for value in values):
        raise MalformedTotals("whole numbers from 0 on were expected")
    return Totals(**dict(zip(NAMES, values, strict=True)))
