"""What is missing for a release? `build.py release-check` prints it; exit code 1 if there is any.

Needs no network and changes nothing.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from bundling import checksums
from bundling.provenance import revision
from bundling.runtime import REQUIREMENTS, ROOT, BundleError

sys.path.insert(0, str(ROOT))

from agent.version import VERSION

TESTS = (".ci/run", "python3 build.py gpu (on a machine with an NVIDIA GPU)")
_ENTRY = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class State:
    """What the tree and dist/ say."""

    version: str
    changelog: str
    tree: Mapping[str, object]  # as bundling.provenance.revision
    made: Mapping[str, object] | None  # of dist/: external parameters of its provenance; None: none
    wrong_sums: tuple[str, ...]  # files of dist/ that are not as listed, or not listed
    stale_locks: tuple[str, ...]  # sentences


def missing(state: State) -> list[str]:
    """Sentences about what is to do before this can be released; none: it can be."""
    return [*_of_the_tree(state), *state.stale_locks, *_of_dist(state)]


def _of_the_tree(state: State) -> list[str]:
    found = []
    newest = _ENTRY.search(state.changelog)
    if newest is None or newest[1] != state.version or not newest[2]:
        told = newest[0] if newest else "nothing"
        found.append(
            f"CHANGELOG.md begins with {told!r}; it must begin with `## [{state.version}] - DATE`, "
            f"which is the version in agent/version.py"
        )
    if state.tree.get("revision") is None:
        found.append("this is not a git checkout; a release is made from a commit")
    elif state.tree.get("modified"):
        found.append("the tree has changes that are not committed; commit them or take them away")
    return found


def _of_dist(state: State) -> list[str]:
    if state.made is None:
        return ["there is no release in dist/; run `python3 build.py dist`"]
    found = []
    again = "run `python3 build.py dist` again"
    if state.made.get("version") != state.version:
        found.append(f"dist/ has version {state.made.get('version')}, not {state.version}; {again}")
    if state.made.get("revision") != state.tree.get("revision"):
        found.append(f"dist/ was made from {state.made.get('revision')}, not from HEAD; {again}")
    elif state.made.get("modified"):
        found.append(f"dist/ was made from a tree with changes that are not committed; {again}")
    found += [f"dist/{name} is not what SHA256SUMS says; {again}" for name in state.wrong_sums]
    return found


def wrong_sums(dist: Path) -> tuple[str, ...]:
    """Names of files that differ from the list, are missing, or are not in it."""
    try:
        lines = (dist / checksums.NAME).read_text().splitlines()
    except OSError:
        return (checksums.NAME,)
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {path.name for path in dist.iterdir()} - {checksums.NAME, f"{checksums.NAME}.sig"}
    differ = {
        name for name in listed.keys() & there if checksums.sha256(dist / name) != listed[name]
    }
    return tuple(sorted(differ | (listed.keys() ^ there)))


def stale(wanted: str, locked: str, name: str) -> list[str]:
    """What a .in file of requirements/ asks for and its lock does not have."""
    pins = {_plain(pin[1]): pin[2] for pin in _PIN.finditer(locked)}
    found = []
    for line in (text.split("#", 1)[0].strip() for text in wanted.splitlines()):
        if not line or line.startswith("-"):
            continue
        requirement = Requirement(line)
        pinned = pins.get(_plain(requirement.name))
        if pinned is None or not requirement.specifier.contains(pinned, prereleases=True):
            found.append(
                f"requirements/{name}.lock has {pinned or 'no'} {requirement.name}, and {name}.in "
                f"asks for {line}; run `python3 build.py lock`"
            )
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_state(dist: Path) -> State:
    """Look at the tree and at dist/."""
    try:
        told = json.loads((dist / "provenance.json").read_bytes())
        made = told["predicate"]["buildDefinition"]["externalParameters"]
    except (OSError, ValueError, KeyError, TypeError):
        made = None
    stale_locks: list[str] = []
    for source in sorted(REQUIREMENTS.glob("*.in")):
        lock = source.with_suffix(".lock")
        locked = lock.read_text() if lock.exists() else ""
        stale_locks += stale(source.read_text(), locked, source.stem)
    return State(
        version=VERSION,
        changelog=(ROOT / "CHANGELOG.md").read_text(),
        tree=revision(),
        made=made,
        wrong_sums=wrong_sums(dist) if made is not None else (),
        stale_locks=tuple(stale_locks),
    )


def main(dist: Path) -> int:
    """Print what is missing; give the exit code."""
    found = missing(read_state(dist))
    for sentence in found:
        print(f"missing: {sentence}")  # noqa: T201
    if found:
        return 1
    signed = (dist / f"{checksums.NAME}.sig").exists()
    print(f"vgpu-agent {VERSION} is complete, {'signed' if signed else 'not signed'}.")  # noqa: T201
    print("What only a person can say: these have passed on this commit:")  # noqa: T201
    for test in TESTS:
        print(f"  {test}")  # noqa: T201
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]).resolve()))
    except BundleError as error:
        sys.exit(f"build.py release-check: {error}")
