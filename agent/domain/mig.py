"""Which MIG profiles a GPU is divided into, and where instances of them lie.

Since HAMi 2.10 the scheduler names profile and placement itself. Up to 2.9 it named a slot of a
geometry that it and the node had in their configuration (`GPU-...[1-2]`): here such a slot becomes
a profile and a placement as well, always the same ones for the same geometry, so that one way leads
to the instance. Sources: HAMi 2.10 docs "dynamic MIG", HAMi 2.9 pkg/device/nvidia/device.go.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.domain.gpu import AllowedProfiles, Gpu, MigPlacement, MigProfile
from agent.domain.grants import Grant

WHOLE_PERCENT = 100
MAX_SLOTS = 64  # of a geometry; no GPU has that many places
_BRACKET = re.compile(
    r"(?P<gpu>[^\[\],:;\s]{1,96})\[(?P<first>[^\[\]-]{1,64})-(?P<slot>\d{1,3})\]", re.ASCII
)
_DIGITS = re.compile(r"\d{1,6}", re.ASCII)
_FOUND = re.compile(r"MIG-[0-9A-Za-z-]{1,60}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance that exists."""

    gpu_uuid: str
    gpu_instance: int
    profile_id: int
    placement: MigPlacement
    devices: tuple[tuple[int, str], ...] = ()  # compute instance and uuid of each MIG device
    busy: bool = False  # a process is on it, or nobody can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedGpu:
    """How a GPU is divided at this moment."""

    uuid: str
    enabled: bool
    instances: tuple[MigInstance, ...] = ()
    busy: bool = False  # a process is on any part of it, or nobody can tell

    def at(self, placement: MigPlacement) -> MigInstance | None:
        """The instance that lies exactly there."""
        return next((one for one in self.instances if one.placement == placement), None)


@dataclass(frozen=True, slots=True)
class Geometries:
    """How GPUs of these models may be divided, each a list of (profile name, how many)."""

    models: tuple[str, ...]
    geometries: tuple[tuple[tuple[str, int], ...], ...]
    names: tuple[str, ...] = ()  # Volcano's name of each


def core_percent(profile: MigProfile, profiles: Iterable[MigProfile]) -> int:
    """What part of the largest instance's multiprocessors it has, rounded up."""
    largest = max((one.multiprocessors for one in profiles), default=0)
    return math.ceil(profile.multiprocessors * WHOLE_PERCENT / largest) if largest else 0


def profile_named(gpu: Gpu, name: str) -> MigProfile | None:
    """The GPU's profile of this name."""
    return next((one for one in gpu.mig_profiles if one.name == name), None)


def mig_uuids(grant: Grant) -> tuple[str, ...]:
    """The MIG devices that a container was given; empty: it has its GPUs whole. Total."""
    named = [
        *grant.envs.get("NVIDIA_VISIBLE_DEVICES", "").split(","),
        *(mount.container_path.rpartition("/")[2] for mount in grant.mounts),
        *(device.rpartition("=")[2] for device in grant.cdi_devices),
    ]
    return tuple(dict.fromkeys(one for one in named if _FOUND.fullmatch(one)))


# --- slots of geometries (HAMi 2.5 to 2.9) ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """`GPU-...[geometry-slot]`."""

    gpu_uuid: str
    geometry: str  # its index, or Volcano's name of it
    slot: int


def decode_slot(uuid: str) -> Slot | None:
    """The slot that a claim's uuid names; None for a plain uuid or anything else. Total."""
    match = _BRACKET.fullmatch(uuid)
    return Slot(match["gpu"], match["first"], int(match["slot"])) if match else None


def gpu_uuid_of(uuid: str) -> str:
    """The GPU of a claim, whether or not a slot is named. Total."""
    slot = decode_slot(uuid)
    return slot.gpu_uuid if slot else uuid


def profile_of_slot(
    slot: Slot, gpu: Gpu, known: Sequence[Geometries]
) -> tuple[MigProfile, MigPlacement] | str:
    """What instance a slot is, and where; or a sentence that says why it cannot be told."""
    entry = next((one for one in known if any(model in gpu.name for model in one.models)), None)
    if entry is None:
        return f"knownMigGeometries has no entry for the model {gpu.name}"
    chosen = _geometry(entry, slot.geometry)
    if chosen is None:
        return f"knownMigGeometries has no geometry {slot.geometry} for the model {gpu.name}"
    names = [name for name, count in chosen for _ in range(min(count, MAX_SLOTS))]
    if slot.slot >= len(names) or len(names) > MAX_SLOTS:
        return f"geometry {slot.geometry} has {len(names)} slots, and none with number {slot.slot}"
    profiles = [profile_named(gpu, name) for name in names]
    if None in profiles:
        missing = names[profiles.index(None)]
        return f"the driver offers no profile {missing} on {gpu.uuid}"
    places = arranged([one for one in profiles if one is not None])
    if places is None:
        return f"geometry {slot.geometry} does not fit on {gpu.uuid}"
    chosen_profile = profiles[slot.slot]
    if chosen_profile is None:
        raise AssertionError("checked above")
    return chosen_profile, places[slot.slot]


def _geometry(entry: Geometries, wanted: str) -> tuple[tuple[str, int], ...] | None:
    if wanted in entry.names:
        return entry.geometries[entry.names.index(wanted)]
    if _DIGITS.fullmatch(wanted) and int(wanted) < len(entry.geometries):
        return entry.geometries[int(wanted)]
    return None


def arranged(profiles: Sequence[MigProfile]) -> tuple[MigPlacement, ...] | None:
    """A place for each, none over another; None: they do not fit. Always the same for the same.

    The largest are placed first, each at the first of its places that leaves room for the rest.
    """
    order = sorted(range(len(profiles)), key=lambda i: (-_size(profiles[i]), i))
    found = _placed([profiles[i] for i in order], {})
    if found is None:
        return None
    by_index = dict(zip(order, found, strict=True))
    return tuple(by_index[i] for i in range(len(profiles)))


def _size(profile: MigProfile) -> int:
    return max((place.size for place in profile.placements), default=0)


def _placed(
    profiles: Sequence[MigProfile], dead_ends: dict[tuple[int, frozenset[MigPlacement]], None]
) -> list[MigPlacement] | None:
    """Depth first, remembering what led nowhere: GPUs have 8 slices, so this is small."""

    def place(index: int, taken: frozenset[MigPlacement]) -> list[MigPlacement] | None:
        if index == len(profiles):
            return []
        if (index, taken) in dead_ends:
            return None
        for candidate in sorted(profiles[index].placements):
            if any(candidate.overlaps(other) for other in taken):
                continue
            rest = place(index + 1, taken | {candidate})
            if rest is not None:
                return [candidate, *rest]
        dead_ends[(index, taken)] = None
        return None

    return place(0, frozenset())


# --- configuration -------------------------------------------------------------------------------


def decode_allowlist(value: object) -> tuple[AllowedProfiles, ...] | str:
    """Read `migProfileAllowlist`; a sentence says what is wrong with it."""
    entries = []
    for item in value if isinstance(value, list) else [None]:
        models, profiles = _words(item, "models"), _words(item, "profiles")
        if not models or not profiles:
            return "every entry needs models and profiles, both lists of names"
        entries.append(AllowedProfiles(models, profiles))
    return tuple(entries)


def decode_geometries(value: object) -> tuple[Geometries, ...] | str:
    """Read `knownMigGeometries`; a sentence says what is wrong with it."""
    entries = []
    for item in value if isinstance(value, list) else [None]:
        models = _words(item, "models")
        listed = item.get("allowedGeometries") if isinstance(item, Mapping) else None
        if not models or not isinstance(listed, list):
            return "every entry needs models and allowedGeometries, both lists"
        decoded = [_decode_geometry(one) for one in listed]
        if any(one is None for one in decoded):
            return "a geometry is a list of entries with name and count"
        entries.append(
            Geometries(
                models,
                tuple(one[1] for one in decoded if one is not None),
                tuple(one[0] for one in decoded if one is not None),
            )
        )
    return tuple(entries)


def geometries_as_mapping(entry: Geometries) -> dict[str, object]:
    """The entry as `decode_geometries` reads it."""
    names = entry.names or ("",) * len(entry.geometries)
    listed: list[object] = []
    for name, parts in zip(names, entry.geometries, strict=True):
        plain = [{"name": part, "count": count} for part, count in parts]
        listed.append({"group": name, "geometries": plain} if name else plain)
    return {"models": entry.models, "allowedGeometries": listed}


def _decode_geometry(value: object) -> tuple[str, tuple[tuple[str, int], ...]] | None:
    """A list of parts, or Volcano's `{group: name, geometries: [...]}`."""
    name = ""
    if isinstance(value, Mapping):
        name, value = str(value.get("group", "")), value.get("geometries")
    if not isinstance(value, list):
        return None
    parts = []
    for item in value:
        if not isinstance(item, Mapping):
            return None
        part, count = item.get("name"), item.get("count", 1)
        if not isinstance(part, str) or type(count) is not int or not 0 < count <= MAX_SLOTS:
            return None
        parts.append((part, count))
    return name, tuple(parts)


def _words(item: object, key: str) -> tuple[str, ...]:
    listed = item.get(key) if isinstance(item, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(one, str) and one for one in listed):
        return ()
    return tuple(listed)
