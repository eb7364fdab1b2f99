"""What somebody asks a container's limits to be: parsed, whoever wrote it.

From the control socket, POST /v1/limits:

    {"pod": "namespace/name", "container": "main", "gpu": "0", "memory": "8Gi", "cores": 40,
     "reset": false, "force": false}         or, in place of pod and container, "target": "..."

From the pod, annotation vgpu-agent/limits, which its author and any editor can write:

    {"main": {"memory": "8Gi", "cores": 40}, "side": [{"gpu": "0", "cores": "none"}, ...]}

Memory is spelled as Kubernetes spells it (apimachinery, resource.Quantity; no exponents), cores
are percent of a GPU. Parsers are total: MalformedRequest, and nothing else, for any other bytes.
"""

import functools
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agent.domain.limits_file import MAX_DEVICES, MIB
from agent.errors import AgentError

ANNOTATION = "vgpu-agent/limits"
MAX_BODY_BYTES = 1 << 16
MAX_ANNOTATION_CHARS = 1 << 14
MAX_CONTAINERS = 64
MAX_REMEMBERED = 256  # annotations; a node has hardly as many pods
MAX_NAME_CHARS = 400  # namespace, pod and container together
MAX_MEMORY_BYTES = 1 << 50  # of one GPU: a thousand times what there is
WHOLE_PERCENT = 100
NO_CORES = "none"

_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_PERCENT = re.compile(r"[0-9]{1,3}%?", re.ASCII)
_FACTORS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}  # fmt: skip
_LIMIT_KEYS = ("gpu", "memory", "cores")
_BODY_KEYS = ("pod", "container", "target", *_LIMIT_KEYS, "reset", "force")
_SHOWN_CHARS, _SHOWN_NAMES = 60, 5


class MalformedRequest(AgentError):
    """A request that cannot be read; the message says what is wrong and how it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRequest:
    """New limits of some or all GPUs of one container. None: it stays as it is."""

    gpu: str = ""  # uuid, or the driver's index; empty: all that the container has
    memory_bytes: int | None = None
    core_permille: int | None = None  # 0: none
    reset: bool = False  # back to what was granted


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketRequest:
    """What the operator asks for, and of whom."""

    target: str  # "namespace/pod/container" or less, as far as it is unambiguous
    limits: LimitRequest
    force: bool = False  # also beyond what the GPU has


@dataclass(frozen=True, slots=True)
class AnnotationEntry:
    """What the annotation says of one container."""

    digest: str  # another one whenever it says something else
    limits: tuple[LimitRequest, ...] = ()
    problem: str = ""  # why it cannot be read


@dataclass(frozen=True, slots=True)
class Strangers:
    """Names in the annotation that are nobody's; none of them: an empty digest."""

    digest: str = ""  # another one whenever something else is said of them
    names: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """For people; never long."""
        more = len(self.names) - _SHOWN_NAMES
        listed = ", ".join(_shown(name) for name in self.names[:_SHOWN_NAMES])
        return f"{listed} and {more} more" if more > 0 else listed


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def parse_memory(value: Any) -> int:
    """Bytes of a quantity such as `8Gi` or `8192Mi`. Raises MalformedRequest."""
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise MalformedRequest(
            f"memory {_shown(value)} is no amount of memory: write a text such as 8Gi or 8192Mi"
        )
    whole, fraction, suffix = found[1], found[2] or "", found[3] or ""
    memory_bytes = int(whole + fraction) * _FACTORS[suffix] // int("1" + "0" * len(fraction))
    if memory_bytes < MIB:
        raise MalformedRequest(
            f"memory {_shown(value)} is less than 1 MiB: a number alone is bytes, so write 8Gi or "
            "8192Mi; what was granted comes back with reset"
        )
    if memory_bytes > MAX_MEMORY_BYTES:
        raise MalformedRequest(f"memory {_shown(value)} is more than any GPU has: write e.g. 8Gi")
    return memory_bytes


def parse_cores(value: Any) -> int:
    """Permille of a GPU's time; 0 for `none`. Raises MalformedRequest."""
    if value == NO_CORES:
        return 0
    cores = -1
    if type(value) is int:
        cores = value
    elif isinstance(value, str) and _PERCENT.fullmatch(value):
        cores = int(value.removesuffix("%"))
    if not 1 <= cores <= WHOLE_PERCENT:
        shown = value if type(value) is int and abs(value) < 10**9 else _shown(value)
        raise MalformedRequest(
            f"cores {shown} is no share of a GPU: write a whole number of percent from 1 to 100, "
            f"or {NO_CORES} for no limit"
        )
    return cores * 10


def _gpu(value: Any) -> str:
    if type(value) is int and 0 <= value < 1000:  # noqa: PLR2004 - more than a node has
        return str(value)
    if isinstance(value, str) and value.isprintable() and 0 < len(value) <= _SHOWN_CHARS:
        return value
    raise MalformedRequest(
        f"gpu {_shown(value)} is none: write the uuid, or the number that nvidia-smi shows"
    )


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise MalformedRequest(f"{what} {_shown(value)} is neither true nor false")
    return value


def _limits(value: dict[str, Any], *, reset: bool = False) -> LimitRequest:
    request = LimitRequest(
        gpu=_gpu(value["gpu"]) if value.get("gpu") is not None else "",
        memory_bytes=parse_memory(value["memory"]) if value.get("memory") is not None else None,
        core_permille=parse_cores(value["cores"]) if value.get("cores") is not None else None,
        reset=reset,
    )
    asks = request.memory_bytes is not None or request.core_permille is not None
    if reset and asks:
        raise MalformedRequest(
            "reset brings back what was granted, so memory and cores have no place beside it: ask "
            "for one or the other"
        )
    if not reset and not asks:
        raise MalformedRequest("nothing is asked for: give memory, cores or both")
    return request


def _object(value: Any, keys: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedRequest(f"{what} is {_shown(value)}, but has to be a JSON object")
    for key in value:
        if key not in keys:
            raise MalformedRequest(f"{what} has {_shown(key)}; known are: {', '.join(keys)}")
    return value


def _json(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = error.args[0] if error.args and isinstance(error, json.JSONDecodeError) else ""
        raise MalformedRequest(f"{what} is no JSON{f': {why}' if why else ''}") from error


# --- the control socket --------------------------------------------------------------------------


def parse_body(body: bytes) -> SocketRequest:
    """Read the body of POST /v1/limits. Raises MalformedRequest."""
    if len(body) > MAX_BODY_BYTES:
        raise MalformedRequest(f"the request has more than {MAX_BODY_BYTES} bytes")
    value = _object(_json(body, "the request"), _BODY_KEYS, "the request")
    reset = _flag(value.get("reset", False), "reset")
    return SocketRequest(
        target=_target(value),
        limits=_limits(value, reset=reset),
        force=_flag(value.get("force", False), "force"),
    )


def _target(value: dict[str, Any]) -> str:
    names = [value.get(key) for key in ("target", "pod", "container")]
    for name in names:
        if name is not None and (
            not isinstance(name, str) or not name.isprintable() or len(name) > MAX_NAME_CHARS
        ):
            raise MalformedRequest(f"{_shown(name)} is no name: write namespace/pod/container")
    target, pod, container = names
    if target and not pod and not container:
        return str(target)
    if pod and not target:
        return f"{pod}/{container}" if container else str(pod)
    raise MalformedRequest(
        "it is not said whose limits: give pod (namespace/name) and container, or target "
        "(namespace/pod/container)"
    )


# --- the annotation ------------------------------------------------------------------------------


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise MalformedRequest("it is nested too deep") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _entry(value: Any) -> AnnotationEntry:
    digest = _digest(value)
    try:
        return AnnotationEntry(digest, _entry_limits(value))
    except MalformedRequest as error:
        return AnnotationEntry(digest, problem=str(error))


def _entry_limits(value: Any) -> tuple[LimitRequest, ...]:
    items = value if isinstance(value, list) else [value]
    if not 1 <= len(items) <= MAX_DEVICES:
        raise MalformedRequest(f"{len(items)} entries are given, but 1 to {MAX_DEVICES} may be")
    return tuple(_limits(_object(item, _LIMIT_KEYS, "an entry")) for item in items)


def parse_annotation(text: str) -> dict[str, AnnotationEntry]:
    """What the annotation says of each container that it names. Raises MalformedRequest.

    An entry that cannot be read has a problem in place of limits; the others hold all the same.
    """
    if len(text) > MAX_ANNOTATION_CHARS:
        raise MalformedRequest(f"it has more than {MAX_ANNOTATION_CHARS} characters")
    value = _json(text, "it")
    if not isinstance(value, dict) or len(value) > MAX_CONTAINERS:
        raise MalformedRequest(
            f"it has to be a JSON object with at most {MAX_CONTAINERS} containers, such as "
            '{"main": {"memory": "8Gi", "cores": 40}}'
        )
    return {name: _entry(item) for name, item in value.items()}


@dataclass(frozen=True, slots=True)
class Said:
    """What an annotation says, without what it is."""

    digests: Mapping[str, str]  # by container; empty where it cannot be read
    unread: str = ""  # its digest where it cannot be read; empty: it can


def said(text: str) -> Said:
    """What an annotation says, as far as it takes to know whether that is new. Total.

    Remembered, since it is asked whenever anything changes about any pod of the node.
    """
    return _said(text if len(text) <= MAX_ANNOTATION_CHARS else text[: MAX_ANNOTATION_CHARS + 1])


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def _said(text: str) -> Said:
    try:
        entries = parse_annotation(text)
    except MalformedRequest:
        return Said({}, _digest([text[:MAX_ANNOTATION_CHARS]]))
    return Said({name: entry.digest for name, entry in entries.items()})


def annotation_entry(text: str, container: str) -> AnnotationEntry | None:
    """What the annotation says of one container; None: nothing. Total."""
    try:
        return parse_annotation(text).get(container)
    except MalformedRequest as error:
        return AnnotationEntry(said(text).unread, problem=str(error))


def annotation_digest(text: str, container: str) -> str:
    """The digest of that, and nothing else; empty: it says nothing. Total."""
    found = said(text)
    return found.unread or found.digests.get(container, "")


def strangers(text: str, known: Collection[str]) -> Strangers:
    """Whom the annotation names beside the `known` containers. Total.

    One that cannot be read names nobody.
    """
    others = {name: one for name, one in said(text).digests.items() if name not in known}
    return Strangers(_digest(others), tuple(sorted(others))) if others else Strangers()
