"""What the schedulers of the HAMi releases write and accept, byte for byte.

Encoded and decoded here with string formatting, on purpose without the agent's own codecs: a
mistake on our side must not be repeated on this one. Sources: HAMi v2.4.1 to v2.10.0,
pkg/device/devices.go, pkg/util/nodelock, pkg/scheduler; "master" is its development after that, of
autumn 2026 (pkg/scheduler/score.go, pkg/device/initContainer.go).
"""

import calendar
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INT32_MAX = 2**31 - 1
GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")
FIELDS_WITHOUT_MODE, FIELDS_WITH_MODE = 7, 9


class UnreadableNode(Exception):
    """The scheduler cannot read the node's register annotation: the node has no GPUs for it."""


class SchedulerCrash(Exception):
    """The annotation would make this scheduler release crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What sets one scheduler release apart from the others, as far as the wire is concerned."""

    release: str
    register: str  # "csv7" (exactly 7 fields), "csv9" (7 or 9), "json"
    padding: str  # containers without GPU: "tuple" (<= 2.6), "empty" (2.7 - 2.9), "missing" (2.10)
    init_first: bool  # init containers have slots, before the app containers
    time_format: str  # of the handshake
    handshake: str  # "timestamp" (<= 2.7), "allocatable" (2.8), "both" (2.9), "plain" (2.10)
    lock_patch: bool  # merge patch with resourceVersion; before: update of the whole node
    lock_steals_orphans: bool  # a lock whose pod is gone may be taken at once
    lock_reacquired: bool  # the same pod may lock twice
    init_locked: bool  # pods take the lock whose init containers alone have GPUs
    init_alone: bool  # an init container is counted beside what runs beside it, not beside all


_DASHES, _DOTS = "%Y-%m-%d %H:%M:%S", "%Y.%m.%d %H:%M:%S"


def _profile(release: str, register: str, padding: str, handshake: str, **more: Any) -> Profile:
    settings: dict[str, Any] = {
        "init_first": False,
        "time_format": _DASHES,
        "lock_patch": True,
        "lock_steals_orphans": True,
        "lock_reacquired": False,
        "init_locked": False,
        "init_alone": False,
    }
    return Profile(
        release=release,
        register=register,
        padding=padding,
        handshake=handshake,
        **(settings | more),
    )


_EARLY_LOCK = {"lock_patch": False, "lock_steals_orphans": False}
PROFILES = {
    profile.release: profile
    for profile in (
        _profile("2.4", "csv7", "tuple", "timestamp", time_format=_DOTS, **_EARLY_LOCK),
        _profile("2.5", "csv9", "tuple", "timestamp", **_EARLY_LOCK),
        _profile("2.7", "csv9", "empty", "timestamp"),
        _profile("2.8", "json", "empty", "allocatable"),
        _profile("2.9", "json", "empty", "both", init_first=True),
        _profile("2.10", "json", "missing", "plain", init_first=True, lock_reacquired=True),
        _profile(
            "master",
            "json",
            "empty",
            "plain",
            init_first=True,
            lock_reacquired=True,
            init_locked=True,
            init_alone=True,
        ),
    )
}


# --- pods -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacedClaim:
    """One vGPU as the scheduler decides it: a share of one physical GPU."""

    uuid: str
    memory_mib: int
    core_percent: int
    instance: tuple[str, int, int] | None = None  # profile, start and size of a MIG instance
    slots: int = 1  # more where it stands for several containers


def encode_claims(containers: Sequence[Sequence[PlacedClaim]], *, padding: str = "empty") -> str:
    """Encode `hami.io/vgpu-devices-to-allocate`.

    `UUID,NVIDIA,MiB,percent:` for each vGPU, `;` after each container.
    `padding` says what becomes of a container without GPU: "empty" keeps an empty slot, "missing"
    leaves it out (2.10.0), "tuple" leaves out those before the first GPU and writes the last one,
    if it has none, as an all-empty tuple (2.6 and earlier).
    """
    slots = [
        "".join(f"{claim.uuid},NVIDIA,{claim.memory_mib},{claim.core_percent}:" for claim in claims)
        for claims in containers
    ]
    if padding == "missing":
        slots = [slot for slot in slots if slot]
    elif padding == "tuple":
        while slots and not slots[0]:
            del slots[0]
        if slots and not slots[-1]:
            slots[-1] = ",,0,0:"
    return "".join(f"{slot};" for slot in slots)


# --- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """One GPU of a node as the scheduler understands it."""

    uuid: str
    index: int
    count: int
    memory_mib: int
    core_percent: int
    type: str
    numa: int
    mode: str
    healthy: bool
    mig_profiles: tuple["SeenProfile", ...] = ()


@dataclass(frozen=True, slots=True)
class SeenProfile:
    """A size of MIG instance, as the scheduler understands it."""

    name: str
    memory_mib: int
    core_percent: int
    placements: tuple[tuple[int, int], ...]  # start, size


def decode_register(text: str, profile: Profile) -> list[SeenGpu]:
    """Read `hami.io/node-nvidia-register` as this release does.

    Raises UnreadableNode for what it rejects (also a list without GPUs) and SchedulerCrash for
    what it does not survive.
    """
    gpus = _decode_json(text) if profile.register == "json" else _decode_csv(text, profile.register)
    if not gpus:
        raise UnreadableNode("no gpu found on node")
    return gpus


def _decode_csv(text: str, form: str) -> list[SeenGpu]:
    if ":" not in text:
        raise UnreadableNode("node annotations not decode successfully")
    gpus = []
    for record in text.split(":"):
        if "," not in record:
            continue
        fields = record.split(",")
        allowed = (FIELDS_WITHOUT_MODE,) if form == "csv7" else (
            FIELDS_WITHOUT_MODE, FIELDS_WITH_MODE,
        )  # fmt: skip
        if len(fields) not in allowed:
            raise UnreadableNode(f"{len(fields)} fields, but {form} has {allowed}")
        gpus.append(_gpu_of_fields(fields))
    return gpus


def _gpu_of_fields(fields: list[str]) -> SeenGpu:
    full = len(fields) == FIELDS_WITH_MODE
    return SeenGpu(
        uuid=fields[0],
        count=_atoi(fields[1]),
        memory_mib=_atoi(fields[2]),
        core_percent=_atoi(fields[3]),
        type=fields[4],
        numa=_atoi(fields[5]),
        healthy=fields[6] in GO_TRUE,
        index=_atoi(fields[7]) if full else 0,
        mode=fields[8] if full else "hami-core",
    )


def _atoi(text: str) -> int:
    """Read a number as Go programs that drop the error do: anything else is 0."""
    try:
        return int(text) if text.strip() == text and "_" not in text else 0
    except ValueError:
        return 0


_STRINGS = {"id", "type", "mode"}
_SIGNED = {"count", "devmem", "devcore", "numa"}


def _decode_json(text: str) -> list[SeenGpu]:
    try:
        items = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise UnreadableNode(f"invalid JSON: {error}") from error
    if items is None:
        return []
    if not isinstance(items, list):
        raise UnreadableNode("not a JSON array")
    if any(item is None for item in items):
        raise SchedulerCrash("a null element is dereferenced")
    return [_gpu_of_object(item) for item in items]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _gpu_of_object(item: Any) -> SeenGpu:
    if not isinstance(item, dict):
        raise UnreadableNode(f"not an object: {item!r}")
    values = {key.lower(): value for key, value in item.items() if value is not None}
    for key, value in values.items():
        if key in _STRINGS and not isinstance(value, str):
            raise UnreadableNode(f"{key} is no string: {value!r}")
        if key in _SIGNED or key == "index":
            least = 0 if key == "index" else -INT32_MAX - 1
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not least <= value <= INT32_MAX:
                raise UnreadableNode(f"{key} is no int32: {value!r}")
        if key == "health" and not isinstance(value, bool):
            raise UnreadableNode(f"health is no bool: {value!r}")
    return SeenGpu(
        uuid=values.get("id", ""),
        index=values.get("index", 0),
        count=values.get("count", 0),
        memory_mib=values.get("devmem", 0),
        core_percent=values.get("devcore", 0),
        type=values.get("type", ""),
        numa=values.get("numa", 0),
        mode=values.get("mode", ""),
        healthy=values.get("health", False),
        mig_profiles=tuple(
            SeenProfile(
                one["name"],
                one["memoryMB"],
                one["core"],
                tuple((place["start"], place["size"]) for place in one["placements"]),
            )
            for one in values.get("migprofiles", [])
        ),
    )


def check_score(text: str) -> None:
    """Read `hami.io/node-nvidia-score`; one that is malformed makes the whole node unreadable."""
    try:
        pairs = json.loads(text)
    except ValueError as error:
        raise UnreadableNode(f"pair score: {error}") from error
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, dict) or not isinstance(pair.get("uuid", ""), str):
            raise UnreadableNode(f"pair score: {pair!r}")
        scores = pair.get("score") or {}
        if not isinstance(scores, dict) or not all(type(v) is int for v in scores.values()):
            raise UnreadableNode(f"pair score: {scores!r}")


# --- times ----------------------------------------------------------------------------------------


def rfc3339(now_s: float) -> str:
    """Unix time as in the node lock; UTC, as in the scheduler's container."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))


def handshake_time(now_s: float, profile: Profile) -> str:
    """Unix time as in `Requesting_<time>`: no zone; UTC, as in the scheduler's container."""
    return time.strftime(profile.time_format, time.gmtime(now_s))


def parse_handshake_time(text: str, profile: Profile) -> float | None:
    """Read it back; None when this release cannot."""
    try:
        return float(calendar.timegm(time.strptime(text, profile.time_format)))
    except ValueError:
        return None
