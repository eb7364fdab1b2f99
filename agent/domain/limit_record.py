"""The durable record of a container's changed limits; its limits file is made to say the same.

    {"limits": [{"uuid": ..., "memory_limit_bytes": ..., "core_permille": ...}, ...],
     "ceiling": [...], "annotation": "...", "source": "socket", "largest": [[uuid, bytes], ...],
     "strangers": "..."}

It is on disk before the file is touched, so a change is made whole or not at all: an agent that is
killed in between makes the file say it when it starts.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent.domain.limits_file import MAX_BYTES, MAX_DEVICES

MAX_RECORD_BYTES = 1 << 16
MAX_TEXT_CHARS = 1 << 12
WHOLE_GPU_PERMILLE = 1000


class MalformedRecord(ValueError):
    """Bytes that are no record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """What one device of a container is allowed in place of what was granted."""

    uuid: str
    memory_limit_bytes: int  # 0: none
    core_permille: int  # 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRecord:
    """What was changed for one container, and by whom."""

    limits: tuple[SetLimit, ...] = ()  # what holds, by device; devices that are missing: the grant
    ceiling: tuple[SetLimit, ...] = ()  # what the operator set: up to here an annotation may go
    annotation: str = ""  # the request of the pod's annotation that was dealt with last
    source: str = ""  # of the last change: "socket" | "annotation"; empty: none, or taken back
    # Of each device the largest memory limit that ever held, in bytes; 0: there was none.
    # Of one that is missing, as in a record of an earlier release, it is not known.
    largest: tuple[tuple[str, int], ...] = ()
    # What the pod's annotation says of names that are nobody's, as told last; empty: nothing.
    strangers: str = ""

    def having_held(self, limits: Iterable[SetLimit]) -> "LimitRecord":
        """This record of a container that was allowed these, too."""
        largest = dict(self.largest)
        for limit in limits:
            before = largest.get(limit.uuid, limit.memory_limit_bytes)
            none = 0 in (before, limit.memory_limit_bytes)
            largest[limit.uuid] = 0 if none else max(before, limit.memory_limit_bytes)
        return replace(self, largest=tuple(sorted(largest.items())))


def encode_record(record: LimitRecord) -> bytes:
    """One JSON object on one line."""
    return json.dumps(asdict(record)).encode() + b"\n"


def decode_record(content: bytes) -> LimitRecord:
    """Read a record back. Raises MalformedRecord, and nothing else, for any other bytes."""
    try:
        value = json.loads(content)
        return LimitRecord(
            limits=_limits(value["limits"]),
            ceiling=_limits(value["ceiling"]),
            annotation=_text(value["annotation"]),
            source=_text(value["source"]),
            largest=_largest(value.get("largest", [])),
            strangers=_text(value.get("strangers", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedRecord(f"{type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise MalformedRecord("a short text was expected")
    return value


def _number(value: Any, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise MalformedRecord(f"a number of 0 to {highest} was expected")
    return value


def _largest(value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list) or len(value) > MAX_DEVICES:
        raise MalformedRecord(f"a list of at most {MAX_DEVICES} devices was expected")
    return tuple((_text(uuid), _number(size, MAX_BYTES)) for uuid, size in value)


def _limits(value: Any) -> tuple[SetLimit, ...]:
    if not isinstance(value, list) or len(value) > MAX_DEVICES:
        raise MalformedRecord(f"a list of at most {MAX_DEVICES} limits was expected")
    return tuple(
        SetLimit(
            uuid=_text(item["uuid"]),
            memory_limit_bytes=_number(item["memory_limit_bytes"], MAX_BYTES),
            core_permille=_number(item["core_permille"], WHOLE_GPU_PERMILLE),
        )
        for item in value
    )
