"""Are the pins in order? Hashes, licences, the bill of materials, known vulnerabilities.

What is asked of a network is apart (`advisories`): nothing else here can fail for its sake.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"

# What may be in the release, as SPDX names it: each lets everybody use and pass on the whole.
ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-CMU",
        "MPL-2.0", "PSF-2.0", "Python-2.0.1", "X11-distribute-modifications-variant", "Zlib", "blessing", "bzip2-1.0.6",
    }
)  # fmt: skip
# Of the release, by name: what else is allowed, and why.
EXCEPTIONS = {
    "pyinstaller": (
        "GPL-2.0-or-later WITH Bootloader-exception AND Apache-2.0 AND Zlib",
        "the exception is for programs that are packed with it",
    ),
    "libstdc++6": ("GPL-3.0-or-later WITH GCC-exception-3.1", "the exception is for what uses it"),
    "libgcc-s1": ("GPL-3.0-or-later WITH GCC-exception-3.1", "the exception is for what uses it"),
    "libc6": ("LGPL-2.1-or-later", "a library of its own in the image, which can be exchanged"),
}
# Words of metadata that are no SPDX expression.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
UNTOLD = "UNKNOWN"  # what some packages' metadata say
# What a package's own licence file says, where its metadata say nothing.
READ = {"atheris": "Apache-2.0"}
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
_ASKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a lock file."""

    name: str  # as the index compares it
    version: str
    hashes: int


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> list[Pin]:
    """The packages of a lock file. Raises ValueError for a line that pins nothing."""
    found = []
    for entry in re.split(r"\n(?=\S)", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE).strip()):
        match = _PIN.match(entry)
        if not match:
            raise ValueError(f"{entry.splitlines()[0][:80]!r} is no package with its version")
        found.append(Pin(plain(match["name"]), match["version"], len(_HASH.findall(entry))))
    return found


def locks() -> Mapping[str, list[Pin]]:
    """Every lock file, by its name."""
    return {path.stem: pins(path.read_text()) for path in sorted(REQUIREMENTS.glob("*.lock"))}


def wrong_pins(name: str, found: Sequence[Pin], asked: str) -> list[str]:
    """What is wrong with a lock file; `asked` is the text that it was made of."""
    wrong = [f"{name}.lock: {pin.name} has no hash" for pin in found if not pin.hashes]
    listed = {pin.name for pin in found}
    twice = {pin for pin in found if found.count(pin) > 1}
    wrong += [f"{name}.lock: {pin.name} {pin.version} is there twice" for pin in twice]
    wrong += [
        f"{name}.lock: {one} of {name}.in is missing; run `build.py lock`"
        for one in sorted(names(asked) - listed)
    ]
    return wrong


def names(asked: str) -> set[str]:
    """The packages that the text of a .in file asks for."""
    return {plain(match[1]) for line in asked.splitlines() if (match := _ASKED.match(line))}


# --- licences ------------------------------------------------------------------------------------


def licence_of(metadata: Mapping[str, Any], classifiers: Iterable[str]) -> str:
    """The licence that a package tells, as SPDX; empty: none that we understand."""
    classified = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License ::")]
    told = [metadata.get("License-Expression"), metadata.get("License"), *classified]
    for one in filter(lambda text: text and text.strip() != UNTOLD, told):
        spdx = SPDX.get(one.strip(), one.strip())
        if re.fullmatch(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*", spdx):
            return str(spdx)
    return READ.get(plain(str(metadata.get("Name"))), "")


def allowed(expression: str) -> bool:
    """Whether an expression comes down to licences that the release may have."""
    if " WITH " in expression or not expression:
        return False
    ways = expression.replace("(", "").replace(")", "").split(" OR ")
    return any(all(one in ALLOWED for one in way.split(" AND ")) for way in ways)


def licences() -> Mapping[str, str]:
    """Of every package that is installed here, by its name."""
    return {
        plain(one.metadata["Name"]): licence_of(
            one.metadata, one.metadata.get_all("Classifier") or ()
        )
        for one in importlib.metadata.distributions()
    }


def wrong_licences(found: Iterable[Pin], told: Mapping[str, str]) -> list[str]:
    """Packages, among those that are installed, with a licence that is not allowed."""
    return [
        f"{pin.name} {pin.version}: {told[pin.name] or 'tells no licence that is understood'}"
        for pin in found
        if pin.name in told and not allowed(told[pin.name])
    ]


# --- the bill of materials -----------------------------------------------------------------------


def wrong_bill(bill: Mapping[str, Any], pinned: Iterable[Pin], asked: str = "") -> list[str]:
    """What is wrong with the release's bill.

    `pinned` is what may be in it from PyPI; `asked` is run.in, all of which has to be in it.
    """
    versions = {pin.name: pin.version for pin in pinned}
    named = {plain(part["name"]) for part in bill["components"]}
    wrong = [f"{name} of run.in is missing in the bill" for name in sorted(names(asked) - named)]
    for part in bill["components"]:
        licence = part["licenses"][0]
        told = licence.get("expression") or licence["license"]["id"]
        if not allowed(told) and EXCEPTIONS.get(part["name"], ("",))[0] != told:
            wrong.append(f"{part['name']}: the licence {told} is not allowed")
        if part.get("purl", "").startswith("pkg:pypi/"):
            expected = versions.get(plain(part["name"]))
            if expected != part["version"]:
                wrong.append(f"{part['name']} {part['version']}: pinned is {expected}")
    return wrong


# --- known vulnerabilities -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advice:
    """What an advisory service said of one lock file."""

    asked: int  # packages of which it said something; 0: it could not be reached
    found: tuple[str, ...]
    why: str = ""  # where it could not be reached


def advice_of(stdout: str, stderr: str) -> Advice:
    """What pip-audit's answer comes to. A package that it passed over was not looked at."""
    try:
        listed = json.loads(stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = stderr.strip().splitlines()
        return Advice(0, (), lines[-1][:80] if lines else "pip-audit said nothing")
    looked = [one for one in listed if "vulns" in one]
    found = tuple(
        f"{one['name']} {one['version']}: {vulnerability['id']}"
        for one in looked
        for vulnerability in one["vulns"]
    )
    return Advice(len(looked), found, "" if looked else "it knows none of the packages")


def advisories(lock: str, *, service: Sequence[str] = ("--vulnerability-service", "osv")) -> Advice:
    """Ask about a lock file. Needs pip-audit and a network; never raises for want of one."""
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--requirement", REQUIREMENTS / f"{lock}.lock",
         "--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off",
         "--timeout", "10", *service],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return advice_of(done.stdout, done.stderr)
