"""Faults on demand for the stand-in API server, and the record of what was asked of it."""

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

MAX_RECORDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request as it was answered. `code` 0 means the connection was dropped instead."""

    verb: str  # get, list, watch, create, update, patch, delete: as in RBAC
    resource: str  # "pods", "pods/binding", "nodes/status", ...
    namespace: str
    name: str
    query: dict[str, str]
    content_type: str
    user_agent: str
    code: int
    received_bytes: int
    sent_bytes: int  # of a watch: 0, it is recorded when it starts
    at_s: float  # time.monotonic()
    body: Any = None


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next `count` requests that match. `used` counts how often it happened.

    action:
      `answer`  answer `code` without doing anything (with Retry-After when `retry_after_s` is set)
      `hang`    wait `seconds`, then serve the request normally
      `drop`    close the connection without an answer, having done nothing
      `lose`    do what was asked, then close the connection without an answer
      `expire`  end a watch with an ERROR event 410 inside a 200 answer
    """

    action: str
    count: int = 1
    verb: str = ""  # empty: any
    resource: str = ""  # empty: any
    code: int = 500
    reason: str = ""
    retry_after_s: float | None = None
    seconds: float = 0.0
    used: int = 0

    def fits(self, verb: str, resource: str) -> bool:
        """Whether this fault is meant for such a request."""
        return (
            self.used < self.count and self.verb in ("", verb) and self.resource in ("", resource)
        )


@dataclass(slots=True)
class Faults:
    """The faults ahead. Thread-safe."""

    _planned: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    lifted: threading.Event = field(default_factory=threading.Event)

    def plan(self, fault: Fault) -> Fault:
        """Add a fault; the one planned first strikes first."""
        with self._lock:
            self.lifted.clear()
            self._planned.append(fault)
        return fault

    def strike(self, verb: str, resource: str) -> Fault | None:
        """Take the fault for this request, if there is one."""
        with self._lock:
            for fault in self._planned:
                if fault.fits(verb, resource):
                    fault.used += 1
                    return fault
            return None

    def clear(self) -> None:
        """End all faults; requests that hang are served now."""
        with self._lock:
            self._planned.clear()
            self.lifted.set()


class RequestLog:
    """What was asked, by whom, and how it was answered. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[ApiRequest] = deque(maxlen=MAX_RECORDS)
        self._totals: Counter[tuple[str, str, int]] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, request: ApiRequest) -> None:
        """Record one answered request."""
        with self._lock:
            self._records.append(request)
            self._totals[request.verb, request.resource, request.code] += 1
            self.bytes_in += request.received_bytes
            self.bytes_out += request.sent_bytes

    def sent(self, size_bytes: int) -> None:
        """Add the bytes of watch events."""
        with self._lock:
            self.bytes_out += size_bytes

    def select(self, *, verb: str = "", resource: str = "", code: int = -1) -> list[ApiRequest]:
        """Give the requests that match, oldest first; empty or negative: any."""
        with self._lock:
            records = list(self._records)
        return [
            record
            for record in records
            if verb in ("", record.verb)
            and resource in ("", record.resource)
            and code in (-1, record.code)
        ]

    def totals(self) -> dict[tuple[str, str, int], int]:
        """Count requests by verb, resource and code."""
        with self._lock:
            return dict(self._totals)

    def clear(self) -> None:
        """Forget everything up to now."""
        with self._lock:
            self._records.clear()
            self._totals.clear()
            self.bytes_in = self.bytes_out = 0
