"""NVIDIA's configuration of shared and of renamed GPUs: sections `sharing` and `resources`.

What comes in is what a parser of YAML or JSON made of it; whatever cannot be meant is refused with
a sentence that names the key. Source: NVIDIA k8s-device-plugin 0.19 and 0.20, api/config/v1.
"""

import difflib
import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.domain.shown import shown

PREFIX = "nvidia.com/"
SHARED_SUFFIX = ".shared"  # renameByDefault
MAX_RESOURCES, MAX_REFERENCES, MAX_REPLICAS = 64, 1024, 10_000
MAX_NAME_CHARS, MAX_PATTERN_CHARS = 63, 256
FEWEST_REPLICAS = 2

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_REFERENCE = re.compile(r"[0-9]{1,4}(:[0-9]{1,4})?|(GPU|MIG)-[A-Za-z0-9/-]{1,80}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """A resource of which each device is offered several times."""

    name: str  # "nvidia.com/gpu"
    replicas: int
    rename: str = ""  # what the copies are offered as; empty: the same name, or renameByDefault
    devices: int | tuple[str, ...] | None = None  # None: all; so many; or indices and uuids


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """`sharing.timeSlicing` or `sharing.mps`. Nothing is shared while `resources` is empty."""

    rename_by_default: bool = False
    fail_above_one: bool = False  # failRequestsGreaterThanOne
    resources: tuple[Replicas, ...] = ()

    def of(self, resource: str) -> Replicas | None:
        """How the devices of a resource are shared; None: they are not."""
        return next((one for one in self.resources if one.name == resource), None)

    def offered_as(self, one: Replicas) -> str:
        """The name of the resource that the copies are."""
        if one.rename:
            return one.rename
        return one.name + SHARED_SUFFIX if self.rename_by_default else one.name


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """Devices whose product (or MIG profile) matches are offered under this name."""

    pattern: str  # * stands for anything
    name: str

    def matches(self, product: str) -> bool:
        """Whether a device belongs here. As upstream, anywhere in the text, unless * says more."""
        wanted = "".join("*" if letter == "*" else _literal(letter) for letter in self.pattern)
        return fnmatch.fnmatchcase(product, f"*{wanted}*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePatterns:
    """Section `resources`: the first pattern that matches decides; empty: the usual names."""

    gpus: tuple[ResourcePattern, ...] = ()
    mig: tuple[ResourcePattern, ...] = ()


NO_REPLICATION = Replication()
NO_PATTERNS = ResourcePatterns()


def _literal(letter: str) -> str:
    return f"[{letter}]" if letter in "?[" else letter


# --- from what a parser made of the text --------------------------------------------------------


def parse_replication(raw: object, *, fail_above_one: bool = False) -> Replication:
    """`sharing.timeSlicing` or `sharing.mps`; `fail_above_one` holds where it says nothing.

    Raises ValueError: the end of a sentence that begins "sharing.timeSlicing is ..., but".
    """
    section = _mapping(raw, "it")
    _known(section, ("renameByDefault", "failRequestsGreaterThanOne", "resources"), "")
    entries = _entries(section.get("resources"), "resources")
    resources = tuple(
        _replicas(entry, f"resources[{number}]") for number, entry in enumerate(entries)
    )
    names = [one.name for one in resources]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"resources names {twice} twice; keep one of the two entries")
    return Replication(
        rename_by_default=_switch(section, "renameByDefault", default=False),
        fail_above_one=_switch(section, "failRequestsGreaterThanOne", default=fail_above_one),
        resources=resources,
    )


def parse_patterns(raw: object) -> ResourcePatterns:
    """Section `resources`. Raises ValueError as `parse_replication`."""
    section = _mapping(raw, "it")
    _known(section, ("gpus", "mig"), "")
    found = {}
    for kind in ("gpus", "mig"):
        entries = _entries(section.get(kind), kind)
        found[kind] = tuple(_pattern(one, f"{kind}[{n}]") for n, one in enumerate(entries))
    return ResourcePatterns(gpus=found["gpus"], mig=found["mig"])


def _replicas(raw: object, where: str) -> Replicas:
    entry = _mapping(raw, where)
    _known(entry, ("name", "rename", "devices", "replicas"), where)
    replicas = entry.get("replicas")
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise ValueError(  # noqa: TRY004 - one kind of error
            f"{where}.replicas must be a whole number; write one from {FEWEST_REPLICAS} on"
        )
    if not FEWEST_REPLICAS <= replicas <= MAX_REPLICAS:
        raise ValueError(
            f"{where}.replicas is {str(replicas)[:20]}; a shared device has {FEWEST_REPLICAS} to "
            f"{MAX_REPLICAS} replicas, so choose such a number or remove the entry"
        )
    rename = entry.get("rename")
    return Replicas(
        name=_resource(entry.get("name"), f"{where}.name"),
        replicas=replicas,
        rename=_resource(rename, f"{where}.rename") if rename not in (None, "") else "",
        devices=_devices(entry.get("devices", "all"), f"{where}.devices"),
    )


def _devices(raw: object, where: str) -> int | tuple[str, ...] | None:
    if raw is None or raw == "all":
        return None
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 < raw <= MAX_REFERENCES:
        return raw
    if isinstance(raw, Sequence) and not isinstance(raw, str) and 0 < len(raw) <= MAX_REFERENCES:
        words = [str(item) for item in raw if isinstance(item, str | int)]
        if len(words) == len(raw) and all(map(_REFERENCE.fullmatch, words)):
            return tuple(dict.fromkeys(words))
    raise ValueError(
        f"{where} must be `all`, how many devices (from 1 on), or a list of indices (0, or 0:1 for "
        "a MIG device) and uuids; write one of them"
    )


def _pattern(raw: object, where: str) -> ResourcePattern:
    entry = _mapping(raw, where)
    _known(entry, ("pattern", "name"), where)
    pattern = entry.get("pattern")
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
        raise ValueError(
            f"{where}.pattern must be a text of at most {MAX_PATTERN_CHARS} characters, in which * "
            "stands for anything; write one, e.g. '*A100*'"
        )
    return ResourcePattern(pattern, _resource(entry.get("name"), f"{where}.name"))


def _resource(raw: object, where: str) -> str:
    if isinstance(raw, str):
        name = raw if "/" in raw else PREFIX + raw
        domain = name.partition("/")[0]
        if (
            len(name) <= MAX_NAME_CHARS
            and _NAME.fullmatch(name)
            and not domain.endswith("kubernetes.io")
            and not domain.startswith("requests.")
        ):
            return name
    raise ValueError(
        f"{where} must be the name of a resource such as nvidia.com/gpu, of at most "
        f"{MAX_NAME_CHARS} characters with its domain; write one"
    )


def _mapping(raw: object, where: str) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise ValueError(  # noqa: TRY004 - one kind of error for every objection
            f"{where} must be a mapping of keys to values; write it as NVIDIA's plugin takes it"
        )
    return {str(key)[:80]: value for key, value in raw.items()}


def _entries(raw: object, where: str) -> Sequence[object]:
    if raw is None:
        return ()
    if isinstance(raw, list | tuple) and len(raw) <= MAX_RESOURCES:
        return raw
    raise ValueError(f"{where} must be a list of at most {MAX_RESOURCES} entries; write one")


def _switch(section: Mapping[str, object], key: str, *, default: bool) -> bool:
    value = section.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise ValueError(f"{key} must be true or false; write one of them")


def _known(section: Mapping[str, object], keys: Collection[str], where: str) -> None:
    for key in section:
        if key not in keys:
            raise ValueError(unknown_key(f"{where}.{key}" if where else key, key, keys))


def unknown_key(path: str, key: str, known: Collection[str]) -> str:
    """What is said of a key that nobody knows: which one was meant, if one is near."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.6)
    hint = f"{folded[close[0]]} is near" if close else f"there are {', '.join(sorted(known))}"
    return f"there is no key {shown(path)} ({hint}); correct or remove it"


# --- and back ------------------------------------------------------------------------------------


def replication_as_mapping(sharing: Replication) -> dict[str, object]:
    """What `parse_replication` would read; empty when all is as by default."""
    if sharing == NO_REPLICATION:
        return {}
    return {
        "renameByDefault": sharing.rename_by_default,
        "failRequestsGreaterThanOne": sharing.fail_above_one,
        "resources": [
            {"name": one.name}
            | ({"rename": one.rename} if one.rename else {})
            | ({"devices": _shown(one.devices)} if one.devices is not None else {})
            | {"replicas": one.replicas}
            for one in sharing.resources
        ],
    }


def _shown(devices: int | tuple[str, ...]) -> object:
    return list(devices) if isinstance(devices, tuple) else devices


def patterns_as_mapping(patterns: ResourcePatterns) -> dict[str, object]:
    """What `parse_patterns` would read."""
    kinds = {"gpus": patterns.gpus, "mig": patterns.mig}
    return {
        kind: [{"pattern": one.pattern, "name": one.name} for one in found]
        for kind, found in kinds.items()
        if found
    }
