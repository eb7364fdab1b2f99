"""What was asked of an API server, and what it weighed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counts:
    """What was asked and what it weighed, since the last `clear`."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    by_second: Counter[tuple[int, str, int]] = field(default_factory=Counter)  # second, verb, code
    events: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0
    unselected: int = 0  # lists and watches of more than one node's objects
    cached_lists: int = 0

    def add(self, other: "Counts") -> None:
        """Take over what another server counted."""
        self.requests += other.requests
        self.by_second += other.by_second
        self.events += other.events
        for name in ("bytes_in", "bytes_out", "connections", "unselected", "cached_lists"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def total(every: Iterable[Counts]) -> Counts:
    """What several servers counted together."""
    whole = Counts()
    for one in every:
        whole.add(one)
    return whole


def described(counts: Counts) -> dict[str, Any]:
    """For JSON."""
    return {
        "requests": {f"{v} {r} {c}": n for (v, r, c), n in sorted(counts.requests.items())},
        "events": dict(sorted(counts.events.items())),
        "bytes_in": counts.bytes_in,
        "bytes_out": counts.bytes_out,
        "connections": counts.connections,
        "unselected": counts.unselected,
        "cached_lists": counts.cached_lists,
    }
