"""Which of the pinned versions does a file of advisories tell of? No network is asked.

The file is what https://osv.dev exports: a zip of one JSON file for each advisory (PyPI/all.zip), one
such JSON, or a list of them. Only what is from PyPI is matched; versions are compared as pip does.
Source: OSV schema 1.7, "affected".
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from tests.security.dependencies import Advice, Pin, plain

ECOSYSTEM = "PyPI"
Advisory = Mapping[str, Any]
START = "0"  # of a range: before every version


def read(path: Path) -> list[Advisory]:
    """The advisories of a file. Raises ValueError with a sentence where there are none."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".json")]
                told: Any = [json.loads(archive.read(name)) for name in names]
        else:
            told = json.loads(path.read_bytes())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as advisories: {error}") from error
    listed = told if isinstance(told, list) else [told]
    if not listed or not all(isinstance(one, dict) and one.get("id") for one in listed):
        raise ValueError(
            f"{path} is no export of OSV: it has advisories without an id, or none at all"
        )
    return [one for one in listed if not one.get("withdrawn")]


def advice(advisories: Sequence[Advisory], pins: Sequence[Pin]) -> Advice:
    """What they tell of the pins of one lock file."""
    by_name = of_packages(advisories)
    found = [
        f"{pin.name} {pin.version}: {advisory['id']}"
        for pin in pins
        for advisory, affected in by_name.get(pin.name, ())
        if hits(affected, pin.version)
    ]
    return Advice(len(pins), tuple(dict.fromkeys(found)))


def of_packages(
    advisories: Iterable[Advisory],
) -> Mapping[str, list[tuple[Advisory, Mapping[str, Any]]]]:
    """By a package's name: each advisory, and what it says of that package."""
    found: dict[str, list[tuple[Advisory, Mapping[str, Any]]]] = {}
    for advisory in advisories:
        for affected in advisory.get("affected") or ():
            package = affected.get("package") or {}
            if package.get("ecosystem") == ECOSYSTEM:
                found.setdefault(plain(str(package.get("name"))), []).append((advisory, affected))
    return found


def hits(affected: Mapping[str, Any], version: str) -> bool:
    """Whether a version is among those listed, or within one of the ranges."""
    mine = Version(version)
    if any(same(mine, str(one)) for one in affected.get("versions") or ()):
        return True
    ranges = affected.get("ranges") or ()
    return any(
        within(mine, one.get("events") or ()) for one in ranges if one.get("type") == "ECOSYSTEM"
    )


def same(mine: Version, other: str) -> bool:
    try:
        return mine == Version(other)
    except InvalidVersion:
        return False  # no version that pip could install


def within(mine: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Whether the last event up to this version says that it is affected."""
    affected = False
    for version, rank, begins in sorted(_steps(events), key=lambda step: step[:2]):
        # A version that was the last affected one is affected itself; a fixed one is not.
        if version < mine or (version == mine and rank == 0):
            affected = begins
    return affected


def _steps(events: Iterable[Mapping[str, str]]) -> Iterator[tuple[Version, int, bool]]:
    """Each event: its version, whether it counts from there (0) or right after (1), and what begins.

    Raises ValueError for a version that cannot be compared: silence would be no answer.
    """
    for event in events:
        for kind, text in event.items():
            if kind not in ("introduced", "fixed", "last_affected", "limit") or text == "*":
                continue
            version = Version("0.dev0") if text == START else Version(text)
            yield version, int(kind == "last_affected"), kind == "introduced"
