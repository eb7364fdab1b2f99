"""The files an operator may already have, read with a bound.

HAMi's device-config.yaml, NVIDIA's configuration file, HAMi's node override. What is not ours in
them is tolerated and told.

Sources: HAMi 2.10, ConfigMaps hami-scheduler-device and hami-device-plugin; NVIDIA
k8s-device-plugin 0.20, api/config/v1.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agent.domain.nvidia_config import unknown_key
from agent.errors import ConfigError
from agent.settings.table import SETTINGS
from agent.settings.yaml_document import parse_yaml

MAX_BYTES = 1 << 20
MAX_NAMED = 20
MAX_KEYS = 1000  # of one section, nested ones included: YAML aliases can make a few lines millions
NVIDIA_VERSION = "v1"
OWN_SECTIONS = ("nvidia", "sizes")
NVIDIA_SECTIONS = frozenset({"version", "flags", "imex", "sharing", "resources"})
SCHEDULER_KEYS = frozenset(
    {
        "resourcePriorityName",
        "overwriteEnv",
        "defaultMemory",
        "defaultCores",
        "defaultGPUNum",
        "gpuCorePolicy",
        "runtimeClassName",
    }
)
_HAMI = {setting.hami: setting for setting in SETTINGS if setting.hami}
_NVIDIA = {setting.nvidia: setting for setting in SETTINGS if setting.nvidia}
FEATURE_DISCOVERY = frozenset(  # of NVIDIA's other program, which reads the same file
    {
        "flags.useNodeFeatureAPI",
        *(
            f"flags.gfd.{key}"
            for key in ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")
        ),
    }
)
_NODE = {setting.node: setting for setting in SETTINGS if setting.node}
# NVIDIA's parser takes a key in any case.
_ANY_CASE = {name.lower(): name for name in (*NVIDIA_SECTIONS, *_NVIDIA, *FEATURE_DISCOVERY)}
_NULL = os.makedev(1, 3)  # what NVIDIA's config-manager links to where there is nothing to say


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody wrote, not yet understood, and where."""

    raw: object
    origin: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing about a source; a `warning` deserves a line in the log."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Contents:
    """What one file says: per setting, and in general."""

    given: dict[str, Given] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # what is wrong with keys of NVIDIA's file


def read_text(path: Path) -> str:
    """The text of a file of at most 1 MiB; links are followed, as ConfigMaps are made of them.

    Raises ConfigError; its cause is FileNotFoundError when the file is absent.
    """
    try:
        # O_NONBLOCK: a FIFO in its place must not keep the agent from starting
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) and info.st_rdev != _NULL:
                raise ConfigError(f"{path} is not a file; name the configuration file itself")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"{path} cannot be read: {reason}; mount or create it, or leave its setting out"
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path} has more than {MAX_BYTES} bytes; a configuration file is much smaller, so "
            "check that it is the right one"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from error


def _parse_json(text: str, path: Path) -> tuple[Any, tuple[str, ...]]:
    """What the text says, and the keys that are twice in one object, in whatever case."""
    twice: dict[str, None] = {}

    def as_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in pairs:
            if key.lower() in seen:
                twice[key] = None
            seen.add(key.lower())
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=as_mapping), tuple(twice)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}; correct the JSON "
            "there"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 10,000 brackets
        raise ConfigError(f"{path} is not usable JSON ({type(error).__name__}); correct it") from (
            error
        )


def _section(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a mapping of keys to values; correct the file there")
    return {_name(key): item for key, item in value.items()}


def _name(key: object) -> str:
    return key if isinstance(key, str) else repr(key)[:40]


def _named(keys: list[str]) -> str:
    more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    return ", ".join(key[:80] for key in keys[:MAX_NAMED]) + more


def device_config(path: Path) -> Contents:
    """Read `--config-file`: HAMi's section `nvidia`, NVIDIA's `version: v1`, or both.

    Raises ConfigError.
    """
    found, twice = parse_yaml(read_text(path), path)
    document = _section(found, str(path))
    contents = Contents(notes=[Note(sentence, warning=True) for sentence in twice[:MAX_NAMED]])
    _read_hami(_section(document.get("nvidia"), f"section nvidia of {path}"), path, contents)
    _read_nvidia(document, path, contents)
    if document.get("sizes") is not None:
        contents.given["slice-sizes"] = Given(document["sizes"], f"{path}, sizes")
    others = [key for key in document if key.lower() not in NVIDIA_SECTIONS]
    if others := sorted(set(others) - {*OWN_SECTIONS}):
        contents.notes.append(_not_read(path, others, alone=len(others) == len(document)))
    if not document:
        contents.notes.append(Note(f"{path} is empty", warning=True))
    return contents


def _not_read(path: Path, others: list[str], *, alone: bool) -> Note:
    """Of sections for others; a warning where ours may have been meant, so that it is logged."""
    meant = [key.lower() for key in others if key.lower() in OWN_SECTIONS]
    hint = f" (meant: {_named(meant)}? upper and lower case matter)" if meant else ""
    ours = ", so nothing is: there is no section nvidia, sizes, flags or sharing" if alone else ""
    return Note(
        f"{path}: sections for others, not read: {_named(others)}{hint}{ours}",
        warning=alone or bool(meant),
    )


def _read_hami(section: Mapping[str, Any], path: Path, contents: Contents) -> None:
    unknown = []
    for key, value in section.items():
        if key in _HAMI:
            if value is not None:
                contents.given[_HAMI[key].name] = Given(value, f"{path}, nvidia.{key}")
        elif key not in SCHEDULER_KEYS:
            unknown.append(key)
    if scheduler := sorted(SCHEDULER_KEYS.intersection(section)):
        contents.notes.append(Note(f"{path}: read by the scheduler: {_named(scheduler)}"))
    if unknown:
        _tell_unknown(f"{path}: keys of nvidia that nobody reads", unknown, _HAMI, contents)


def _tell_unknown(
    what: str, keys: list[str], known: Mapping[str, object], contents: Contents
) -> None:
    folded = {name.lower(): name for name in known}
    hints = [folded[key.lower()] for key in keys if key.lower() in folded]
    hint = f" (meant: {_named(hints)}? upper and lower case matter)" if hints else ""
    contents.notes.append(Note(f"{what}: {_named(sorted(keys))}{hint}", warning=True))


def _leaves(section: Mapping[str, Any], prefix: str, depth: int = 3) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        name = f"{prefix}.{_name(key)}"
        if isinstance(value, dict) and depth and name.lower() not in _ANY_CASE:
            yield from _leaves(value, name, depth - 1)
        elif value not in (None, ""):
            yield name, value


def _as_nvidia_writes(keys: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    """Keys in NVIDIA's case, as far as they are NVIDIA's, each once. Raises ConfigError."""
    seen: dict[str, str] = {}
    for key, value in keys.items():
        name = _ANY_CASE.get(key.lower(), key)
        if name in seen:
            raise ConfigError(f"{path} has {key} and {seen[name]}, one key twice; remove one")
        seen[name] = key
        yield name, value


def _read_nvidia(written: Mapping[str, Any], path: Path, contents: Contents) -> None:
    document = dict(_as_nvidia_writes(written, path))
    version = document.get("version")
    if version not in (None, NVIDIA_VERSION):
        raise ConfigError(
            f"version in {path} is {str(version)[:40]!r}, but only {NVIDIA_VERSION!r} of NVIDIA's "
            "configuration file is known; write the file in that version"
        )
    unused = []
    _read_sections(document, path, contents)
    for name in ("flags", "imex"):
        section = _section(document.get(name), f"section {name} of {path}")
        found = list(islice(_leaves(section, name), MAX_KEYS + 1))
        if len(found) > MAX_KEYS:
            raise ConfigError(
                f"section {name} of {path} has more than {MAX_KEYS} keys; check that it is the "
                "right file"
            )
        for key, value in _as_nvidia_writes(dict(found), path):
            if key in _NVIDIA:
                contents.given[_NVIDIA[key].name] = Given(value, f"{path}, {key}")
            else:
                unused.append(key)
                if key not in FEATURE_DISCOVERY:
                    names = {known.rpartition(".")[2] for known in _NVIDIA}
                    wrong = unknown_key(key, key.rpartition(".")[2], names)
                    contents.unknown.append(f"{path}: {wrong}")
    if unused:
        contents.notes.append(
            Note(f"{path}: keys this version does not use: {_named(sorted(unused))}", warning=True)
        )


def _read_sections(document: Mapping[str, Any], path: Path, contents: Contents) -> None:
    """Sections that are settings as a whole."""
    sharing = _section(document.get("sharing"), f"section sharing of {path}")
    written = {f"sharing.{name}": value for name, value in sharing.items()}
    found = dict(_as_nvidia_writes(written, path))
    found["resources"] = document.get("resources")
    for key, value in found.items():
        if key not in _NVIDIA:
            wrong = unknown_key(key, key.rpartition(".")[2], ("timeSlicing", "mps"))
            contents.unknown.append(f"{path}: {wrong}")
        elif value:
            contents.given[_NVIDIA[key].name] = Given(value, f"{path}, {key}")


def node_override(path: Path, node_name: str, *, may_be_absent: bool) -> Contents:
    """Read the entries for this node of HAMi's node override file; keys in any case.

    Unlike in HAMi a zero, an empty text and false override, too, wherever they mean something.

    Raises ConfigError.
    """
    contents = Contents()
    try:
        text = read_text(path)
    except ConfigError as error:
        if may_be_absent and isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return contents
        raise
    found, twice = _parse_json(text, path)
    written = _section(found, str(path))
    document = _folded(written)
    if twice:
        contents.notes.append(
            Note(
                f"{path}: keys that are there twice, of which the last holds: "
                f"{_named(list(twice))}; remove one",
                warning=True,
            )
        )
    if document and "nodeconfig" not in document:
        contents.notes.append(
            Note(
                f"{path} has no nodeconfig, so nothing is read: {_named(sorted(written))}",
                warning=True,
            )
        )
    entries = document.get("nodeconfig")
    if not isinstance(entries, list | None):
        raise ConfigError(f"nodeconfig in {path} must be a list of entries; correct it")
    for number, item in enumerate(entries or ()):
        if item is None:
            continue
        entry = _folded(_section(item, f"entry {number} of nodeconfig in {path}"))
        if entry.get("name") == node_name:
            _read_entry(entry, f"{path}, node {node_name}", contents)
    return contents


def _folded(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in section.items()}


def _read_entry(entry: Mapping[str, Any], where: str, contents: Contents) -> None:
    filters = _section(entry.get("filterdevices"), f"{where}, filterdevices")
    flat = {key: value for key, value in entry.items() if key not in ("name", "filterdevices")}
    flat |= {f"filterdevices.{key}": value for key, value in _folded(filters).items()}
    unknown = [key for key in flat if key not in _NODE]
    for key, setting in _NODE.items():
        value = flat.get(key)
        if value is None:
            continue
        if setting.zero_is_none and not isinstance(value, bool) and value in (0, ""):
            contents.notes.append(
                Note(f"{where}: {key} is {value!r}, which is no value; the other sources decide")
            )
            continue
        contents.given[setting.name] = Given(value, f"{where}, {key}")
    if unknown:
        _tell_unknown(f"{where}: keys that nobody reads", unknown, {}, contents)
