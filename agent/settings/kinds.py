"""What the raw value of a setting means: text of a flag or variable, or what a file's parser made.

Each kind is total: it gives a value or raises `ValueError` whose text is the end of a sentence
that begins "--device-split-count is 'x', but ...". Ranges are not its business, see `agent.config`.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.adapters.listeners import parse_address
from agent.config import ALL_XIDS, NO_MPS
from agent.domain.gpu import AllowedProfiles
from agent.domain.mig import (
    Geometries,
    decode_allowlist,
    decode_geometries,
    geometries_as_mapping,
)
from agent.domain.nvidia_config import (
    NO_PATTERNS,
    NO_REPLICATION,
    Replication,
    ResourcePatterns,
    parse_patterns,
    parse_replication,
    patterns_as_mapping,
    replication_as_mapping,
)
from agent.domain.slice_sizes import parse_sizes, show_sizes
from agent.errors import ConfigError

T = TypeVar("T")
MAX_TEXT_CHARS = 4096
MAX_LIST_ITEMS = 1024
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_REAL = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TRUE = frozenset({"1", "t", "true", "yes", "on", "y"})
_FALSE = frozenset({"0", "f", "false", "no", "off", "n"})
_LEVELS = {"warn": "warning", "err": "error"}
KLOG_DEBUG = 4  # from this number on, klog's -v means debugging


@dataclass(frozen=True, slots=True)
class Kind:
    """How a raw value is read and a value is shown."""

    parse: Callable[[object], object]
    metavar: str
    show: Callable[[object], str]
    accepts: str = ""  # for the manual, where no rule says more
    repeatable: bool = False  # the flag may be given several times
    bare: str = ""  # what the flag alone means, without a value


@dataclass(frozen=True, slots=True)
class XidList:
    """A list of XIDs; `every` stands for all of them."""

    xids: frozenset[int] = frozenset()
    every: bool = False


def parse_text(raw: object) -> str:
    """A short text without control characters; a bare number of a file counts as its digits."""
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        # one kind of error for every objection
        raise ValueError(  # noqa: TRY004
            "it must be a text; write one, in quotes where it is in a file"
        )
    if isinstance(raw, int):
        return str(parse_whole(raw))
    text = raw.strip()
    if len(text) > MAX_TEXT_CHARS or not text.isprintable():
        raise ValueError(
            f"it is longer than {MAX_TEXT_CHARS} characters or has control characters; shorten it"
        )
    return text


def parse_whole(raw: object) -> int:
    """A whole number."""
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 1e15:  # noqa: PLR2004 - exact
        return int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < 10**15:
        return raw
    if isinstance(raw, str) and _WHOLE.fullmatch(raw.strip()):
        return int(raw)
    raise ValueError("it must be a whole number, for example 10; write one")


def parse_real(raw: object) -> float:
    """A finite number."""
    if isinstance(raw, float) and math.isfinite(raw):
        return raw
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < 10**15:
        return float(raw)
    if isinstance(raw, str) and _REAL.fullmatch(raw.strip()):
        return float(raw)
    raise ValueError("it must be a number, for example 1.8; write one")


def parse_switch(raw: object) -> bool:
    """Yes or no, in the spellings of Go, YAML and people."""
    word = str(raw).strip().lower() if isinstance(raw, bool | int | str) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("it must be true or false; write one of them")


def parse_path(raw: object) -> Path | None:
    """A path; the empty text means none."""
    text = parse_text(raw) if isinstance(raw, str) else None
    if text is None:
        raise ValueError("it must be a path; write one")
    return Path(text) if text else None


def parse_kubeconfig(raw: object) -> Path | None:
    """One kubeconfig file; KUBECONFIG may name several, which this agent does not merge."""
    if isinstance(raw, str) and ":" in raw:
        raise ValueError("it names several files and they are not merged here; name one")
    return parse_path(raw)


def parse_duration(raw: object) -> float:
    """Seconds, from a number or from Go's notation (`5m`, `1h30m`, `500ms`)."""
    if isinstance(raw, str):
        text = raw.strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return parse_real(raw)
    except ValueError:
        raise ValueError(
            "it must be a time such as 300, 5m, 1h30m or 500ms (a bare number counts seconds); "
            "write it so"
        ) from None


def parse_words(raw: object) -> tuple[str, ...]:
    """Words, from a list or separated by commas; each once, in order."""
    items = raw if isinstance(raw, list | tuple) else [raw]
    if len(items) > MAX_LIST_ITEMS:
        raise ValueError(f"it has more than {MAX_LIST_ITEMS} entries; shorten it")
    words = [word.strip() for item in items for word in parse_text(item).split(",")]
    return tuple(dict.fromkeys(word for word in words if word))


def parse_numbers(raw: object) -> frozenset[int]:
    """Whole numbers from 0 on, from a list or separated by commas."""
    items = raw if isinstance(raw, list | tuple) else [raw]
    try:
        words = [word for item in items for word in parse_text(item).split(",")]
        numbers = [parse_whole(word) for word in words if word.strip()]
    except ValueError:
        numbers = [-1]
    if any(number < 0 for number in numbers):
        raise ValueError("it must be a list of whole numbers such as 0,2; write one")
    return frozenset(numbers)


def parse_xids(raw: object) -> XidList:
    """`all` (or `xids`), or XID numbers separated by commas."""
    words = [word.lower() for word in parse_words(raw)]
    every = bool({"all", "xids"}.intersection(words))
    numbers = [word for word in words if word not in ("all", "xids")]
    if any(not _WHOLE.fullmatch(number) or int(number) not in ALL_XIDS for number in numbers):
        raise ValueError(
            f"it must be `all` or a list of XIDs from 0 to {max(ALL_XIDS)} such as 79,95; "
            "write it so"
        )
    return XidList(frozenset(map(int, numbers)), every)


def parse_level(raw: object) -> str:
    """The name of a log level, or klog's number (`-v 4`)."""
    word = parse_text(raw).lower()
    if word.isascii() and word.isdigit():
        return "debug" if len(word) > 1 or int(word) >= KLOG_DEBUG else "info"
    return _LEVELS.get(word, word)


def parse_listen(raw: object) -> str:
    """Where the HTTP endpoint listens; empty or `off`: nowhere."""
    text = parse_text(raw)
    if text.lower() in ("", "off", "none"):
        return ""
    try:
        parse_address(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return text


def _section(raw: object) -> object:
    """A section of a file as its parser made it, or the same as JSON in a flag."""
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(parse_text(raw)) if raw.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError(
            "it must be the section of NVIDIA's configuration file, as JSON of at most "
            f"{MAX_TEXT_CHARS} characters; write it so, or in the file"
        ) from None


def parse_time_slicing(raw: object) -> Replication:
    """`sharing.timeSlicing` of NVIDIA's file."""
    section = _section(raw)
    return parse_replication(section) if section else NO_REPLICATION


def parse_mps(raw: object) -> Replication:
    """`sharing.mps` of NVIDIA's file."""
    section = _section(raw)
    return parse_replication(section, fail_above_one=True) if section else NO_MPS


def parse_resources(raw: object) -> ResourcePatterns:
    """`resources` of NVIDIA's file."""
    section = _section(raw)
    return parse_patterns(section) if section else NO_PATTERNS


def show_section(value: object) -> str:
    """The section as JSON; empty when it says nothing."""
    if isinstance(value, ResourcePatterns):
        section = patterns_as_mapping(value)
    elif isinstance(value, Replication) and value != NO_MPS:
        section = replication_as_mapping(value)
    else:
        section = {}
    return json.dumps(section) if section else ""


def show_plain(value: object) -> str:
    """A value as it would be written."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, XidList):
        return "all" if value.every else ",".join(map(str, sorted(value.xids)))
    if isinstance(value, frozenset | tuple):
        return ",".join(map(str, sorted(value) if isinstance(value, frozenset) else value))
    return str(value)


def show_seconds(value: object) -> str:
    """A time with its unit."""
    return f"{show_plain(value)}s"


def show_listen(value: object) -> str:
    """An address, or that there is none."""
    return str(value) or "off"


def parse_mig_allowlist(raw: object) -> tuple[AllowedProfiles, ...]:
    """HAMi's `migProfileAllowlist`."""
    return _list_section(raw, decode_allowlist)


def parse_mig_geometries(raw: object) -> tuple[Geometries, ...]:
    """HAMi's and Volcano's `knownMigGeometries`."""
    return _list_section(raw, decode_geometries)


def _list_section(raw: object, decode: Callable[[object], T | str]) -> T:
    """A list of a file, or the same as JSON in a flag."""
    try:
        found = decode(json.loads(raw or "[]") if isinstance(raw, str) else raw)
    except (ValueError, RecursionError):
        found = "it is no JSON"
    if isinstance(found, str):
        raise ValueError(  # noqa: TRY004 - one kind of error for every objection
            f"it cannot be read: {found}; write it as in HAMi's device-config.yaml"
        )
    return found


def show_mig(value: object) -> str:
    """The list as JSON; empty when it says nothing."""
    entries: list[object] = []
    for one in value if isinstance(value, tuple) else ():
        if isinstance(one, AllowedProfiles):
            entries.append({"models": one.models, "profiles": one.profiles})
        elif isinstance(one, Geometries):
            entries.append(geometries_as_mapping(one))
    return json.dumps(entries) if entries else ""


TEXT = Kind(parse_text, "TEXT", show_plain)
WHOLE = Kind(parse_whole, "N", show_plain)
REAL = Kind(parse_real, "X", show_plain)
SIZES = Kind(parse_sizes, "SIZES", show_sizes, accepts="name=memory:cores, separated by commas")
SWITCH = Kind(parse_switch, "BOOL", show_plain, accepts="true, false", bare="true")
PATH = Kind(parse_path, "PATH", show_plain)
KUBECONFIG = Kind(parse_kubeconfig, "PATH", show_plain)
DURATION = Kind(parse_duration, "TIME", show_seconds)
WORDS = Kind(parse_words, "LIST", show_plain, repeatable=True)
NUMBERS = Kind(
    parse_numbers, "LIST", show_plain, accepts="whole numbers, separated by commas", repeatable=True
)
XIDS = Kind(parse_xids, "LIST", show_plain, accepts="all, or XIDs separated by commas")
LEVEL = Kind(parse_level, "LEVEL", show_plain)
LISTEN = Kind(parse_listen, "ADDRESS", show_listen, accepts="[host]:port, or off")
TIME_SLICING = Kind(parse_time_slicing, "JSON", show_section, accepts="the section, as JSON")
MPS = Kind(parse_mps, "JSON", show_section, accepts="the section, as JSON")
MIG_ALLOWLIST = Kind(parse_mig_allowlist, "JSON", show_mig, accepts="the list, as JSON")
MIG_GEOMETRIES = Kind(parse_mig_geometries, "JSON", show_mig, accepts="the list, as JSON")
RESOURCES = Kind(parse_resources, "JSON", show_section, accepts="the section, as JSON")
