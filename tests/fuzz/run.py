"""`build.py fuzz`: look for inputs that a parser does not bear, each for some seconds.

Python's parsers run under atheris, C's under libFuzzer with the address and undefined-behaviour
sanitizers; both begin with the kept inputs of tests/fuzz/corpus. What is found stays in .build/fuzz;
--keep adds what reached something new to the kept inputs, as few as do.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from tests import provenance
from tests.fuzz.c_targets import C_TARGETS, CannotBuildError, build_fuzzer, fuzzer_runtime
from tests.fuzz.python_targets import TARGETS

CORPUS, WORK = HERE / "corpus", ROOT / ".build" / "fuzz"
PAGE = ROOT / "docs" / "results" / "fuzz.md"
SECONDS, SLOWEST_S, MOST_MIB = 20, 25, 2048
FEW = ("-use_counters=0",)  # how often a line runs makes no new input: what is kept stays small
SHOWN_LINES = 25
SELF = "VGPU_FUZZ_SELF"  # tells a Python target which program it is


@dataclass(frozen=True, slots=True)
class Fuzzer:
    """One target, and the command that runs it with libFuzzer's arguments."""

    name: str
    command: tuple[str, ...]

    @property
    def kept(self) -> Path:
        return CORPUS / self.name

    @property
    def work(self) -> Path:
        return WORK / self.name

    def run(self, *arguments: str, within_s: float) -> "subprocess.CompletedProcess[str]":
        """Run it on its own directories, which there are."""
        for folder in (self.kept, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        limits = (f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MOST_MIB}")
        found = f"-artifact_prefix={WORK / 'found'}-{self.name}-"
        return subprocess.run(
            [*self.command, *limits, found, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False, timeout=within_s, cwd=WORK, env=os.environ | {"PYTHONPATH": path()},
        )  # fmt: skip


def path() -> str:
    """Where the fuzzers find our modules, and atheris."""
    return os.pathsep.join([str(ROOT), str(HERE.parent), *filter(None, sys.path)])


def of_python(name: str) -> Fuzzer:
    """A Python target under atheris. libFuzzer starts itself again where it merges: so a program."""
    program = program_of(name)
    command = shlex.join([sys.executable, str(HERE / "under_atheris.py"), name])
    program.write_text(f'#!/bin/sh\n{SELF}="$0" exec {command} "$@"\n')
    program.chmod(0o755)
    return Fuzzer(name, (str(program),))


def program_of(name: str) -> Path:
    """Where a target's program lies."""
    program = WORK / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    return program


def of_c(name: str) -> Fuzzer:
    """A C target, compiled. Raises CannotBuildError."""
    program = program_of(f"c-{name}")
    build_fuzzer(name, program)
    return Fuzzer(program.name, (str(program),))


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one target: inputs tried, places of its code reached, whether it bore them all."""

    name: str
    inputs: int
    places: int
    kept: int
    borne: bool
    ran: bool = True

    @property
    def said(self) -> str:
        """What the page says of it."""
        return "yes" if self.borne else "**no**" if self.ran else "did not run"


def tried(fuzzer: Fuzzer, seconds: int) -> Tried:
    """Look for something new, and tell what was found that it does not bear."""
    done = fuzzer.run(
        f"-max_total_time={seconds}",
        "-use_value_profile=1",
        *(str(fuzzer.work), str(fuzzer.kept)),
        within_s=seconds + 300,
    )
    lines = done.stdout.splitlines()
    finished = [line for line in lines if line.startswith("#") and "DONE" in line]
    reached = re.search(r"#(\d+)\s+DONE\s+cov: (\d+)", finished[-1] if finished else "")
    if done.returncode or not reached:
        ran = "Test unit written" in done.stdout
        what = "FOUND SOMETHING" if ran else "DID NOT RUN"
        print(f"{fuzzer.name}: {what}", *lines[-SHOWN_LINES:], sep="\n  ", flush=True)
        return Tried(fuzzer.name, 0, 0, 0, borne=False, ran=ran)
    inputs, places = int(reached[1]), int(reached[2])
    print(f"{fuzzer.name:<22} {inputs:>10} inputs, {places:>5} places reached", flush=True)
    return Tried(fuzzer.name, inputs, places, 0, borne=True)


def keep(fuzzer: Fuzzer) -> None:
    """Add what reached something new, the smallest inputs that do."""
    done = fuzzer.run("-merge=1", *FEW, str(fuzzer.kept), str(fuzzer.work), within_s=900)
    if done.returncode:
        print(f"{fuzzer.name}: nothing was kept", *done.stdout.splitlines()[-3:], sep="\n  ")


def page(
    all_tried: Sequence[Tried], seconds: int, about: Mapping[str, str], words: Sequence[str] = ()
) -> str:
    """The table as Markdown; `about`: as `provenance.described`, `words`: of the command."""
    rows = [
        f"| {one.name} | {one.inputs} | {one.places} | {one.kept} | {one.said} |"
        for one in all_tried
    ]
    return "\n".join(
        [
            "# Fuzzers",
            "",
            "Every parser of bytes that others write; those of C begin with `c-`. Written by the command; do not edit.",
            "What is kept is given to the parser again in every run of the tests.",
            "",
            f"- command: `{shlex.join(['python3', 'build.py', 'fuzz', *words])}`",
            *provenance.listed(about),
            f"- seconds for each target: {seconds}",
            "",
            "| target | inputs tried | places of its code reached | inputs kept | bore them all |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: something was found; 3: what looks for it cannot run here."""
    parser = argparse.ArgumentParser(prog="build.py fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="per target (default 20)")
    parser.add_argument("--only", default="", metavar="WORD", help="targets with this word")
    parser.add_argument("--keep", action="store_true", help="add what is new to tests/fuzz/corpus")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="without --only")
    chosen = parser.parse_args(arguments)
    if fuzzer_runtime() is None:
        print(
            "atheris is not installed: it has wheels for x86_64 and Python 3.11 to 3.13. The kept "
            "inputs are replayed by `build.py test tests/fuzz` on every machine"
        )
        return 3
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        fuzzers = [of_python(name) for name in TARGETS if chosen.only in name]
        fuzzers += [of_c(name) for name in C_TARGETS if chosen.only in f"c-{name}"]
    except CannotBuildError as error:
        print(f"the compiler refused a target: {error}")
        return 3
    about = provenance.described()
    all_tried = [tried(fuzzer, chosen.seconds) for fuzzer in fuzzers]
    if chosen.keep:
        for fuzzer in fuzzers:
            keep(fuzzer)
    if not chosen.only:
        told = [replace(one, kept=len(list((CORPUS / one.name).iterdir()))) for one in all_tried]
        words = sys.argv[1:] if arguments is None else arguments
        chosen.page.write_text(page(told, chosen.seconds, about, words))
    borne = sum(one.borne for one in all_tried)
    print(f"{borne} of {len(all_tried)} targets bore everything")
    return 0 if borne == len(all_tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
