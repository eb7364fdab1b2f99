"""Codec of `hami.io/vgpu-mig-allocations`: which GPU instance goes to which container.

A JSON array. The scheduler (HAMi 2.10) writes, per vGPU, who it is for, profile and placement; the
node adds what became of it:

    [{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-...","profile":"1g.10gb",
      "placement":{"start":6,"size":1},
      "migUUID":"MIG-...","gpuInstanceID":13,"computeInstanceID":0}]

Containers count as kubelet starts them, init containers first. Read by the rules of HAMi (nvidia,
DecodeMigAllocations): one bad entry makes all of it unreadable. A pod's author can write it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from agent.domain.gpu import MigPlacement
from agent.errors import MalformedAnnotation

MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
MAX_CHARS = 262_144  # the API server's limit on all annotations of an object together
MAX_ALLOCATIONS = 2_048
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class MigIdentity:
    """What the driver calls an instance that exists."""

    mig_uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """One vGPU of one container."""

    container_index: int
    device_index: int
    gpu_uuid: str
    profile: str
    placement: MigPlacement
    identity: MigIdentity | None = None  # None: not made yet


def decode_allocations(text: str) -> tuple[MigAllocation, ...]:
    """Read the annotation, in its order; empty text is an empty list.

    Raises MalformedAnnotation, and nothing else, whatever the text is.
    """
    if not text:
        return ()
    if len(text) > MAX_CHARS:
        _malformed(f"it has more than {MAX_CHARS} characters")
    try:
        items = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _malformed(f"it is not JSON ({str(error)[:_SHOWN_CHARS]})")
    if items is None:
        return ()
    if not isinstance(items, list) or len(items) > MAX_ALLOCATIONS:
        _malformed(f"it is not a list of at most {MAX_ALLOCATIONS} entries")
    found = tuple(_allocation(place, item) for place, item in enumerate(items))
    seen: set[tuple[int, int]] = set()
    for one in found:
        key = one.container_index, one.device_index
        if key in seen:
            _malformed(f"container {key[0]} has two entries for its device {key[1]}")
        seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _malformed(why: str) -> NoReturn:
    raise MalformedAnnotation(
        f"the annotation {MIG_ALLOCATIONS} cannot be read: {why}; the scheduler writes it, so "
        "check that nothing else edits it and that the scheduler is HAMi 2.10, then delete the "
        "pod so that it is scheduled again"
    )


def _allocation(place: int, item: Any) -> MigAllocation:
    if not isinstance(item, dict):
        _malformed(f"entry {place} is not an object")
    # Go matches keys without regard to case, and takes null for "not given".
    values = {key.lower(): value for key, value in item.items() if value is not None}
    where = values.get("placement", {})
    if not isinstance(where, dict):
        _malformed(f"the placement of entry {place} is not an object")
    bounds = {key.lower(): value for key, value in where.items() if value is not None}
    allocation = MigAllocation(
        container_index=_number(values, "containerindex", place, INT32_MAX),
        device_index=_number(values, "deviceindex", place, INT32_MAX),
        gpu_uuid=_text(values, "gpuuuid", place),
        profile=_text(values, "profile", place),
        placement=MigPlacement(
            _number(bounds, "start", place, INT32_MAX), _number(bounds, "size", place, INT32_MAX)
        ),
        identity=_identity(values, place),
    )
    if not allocation.gpu_uuid or not allocation.profile or not allocation.placement.size:
        _malformed(f"entry {place} lacks gpuUUID, profile or the size of its placement")
    return allocation


def _identity(values: Mapping[str, Any], place: int) -> MigIdentity | None:
    mig_uuid = _text(values, "miguuid", place)
    given = [bool(mig_uuid), "gpuinstanceid" in values, "computeinstanceid" in values]
    if not any(given):
        return None
    if not all(given):
        _malformed(f"entry {place} has a part of migUUID, gpuInstanceID, computeInstanceID only")
    return MigIdentity(
        mig_uuid,
        _number(values, "gpuinstanceid", place, UINT32_MAX),
        _number(values, "computeinstanceid", place, UINT32_MAX),
    )


def _number(values: Mapping[str, Any], key: str, place: int, most: int) -> int:
    value = values.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        _malformed(f"{key} of entry {place} is no whole number from 0 to {most}")
    return value


def _text(values: Mapping[str, Any], key: str, place: int) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        _malformed(f"{key} of entry {place} is not a string")
    return value


def encode_allocations(allocations: Iterable[MigAllocation]) -> str:
    """Write the annotation, in Go's order of keys and without blanks."""
    return json.dumps([_object(one) for one in allocations], separators=(",", ":"))


def _object(one: MigAllocation) -> dict[str, Any]:
    identity = one.identity
    return {
        "containerIndex": one.container_index,
        "deviceIndex": one.device_index,
        "gpuUUID": one.gpu_uuid,
        "profile": one.profile,
        "placement": {"start": one.placement.start, "size": one.placement.size},
    } | (
        {}
        if identity is None
        else {
            "migUUID": identity.mig_uuid,
            "gpuInstanceID": identity.gpu_instance,
            "computeInstanceID": identity.compute_instance,
        }
    )
