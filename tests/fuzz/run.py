"""`build.py fuzz`: look for inputs that a parser does not bear, each for some seconds.

Python's parsers run under atheris, C's under libFuzzer with the address and undefined-behaviour
sanitizers; both begin with the kept inputs of tests/fuzz/corpus. What is found stays in .build/fuzz;
--keep adds what reached something new to the kept inputs, as few as do.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from tests.fuzz.c_targets import C_TARGETS, CannotBuildError, build_fuzzer, fuzzer_runtime
from tests.fuzz.python_targets import TARGETS

CORPUS, WORK = HERE / "corpus", ROOT / ".build" / "fuzz"
SECONDS, SLOWEST_S, MOST_MIB = 20, 25, 2048
FEW = ("-use_counters=0",)  # how often a line runs makes no new input: what is kept stays small
SHOWN_LINES = 25


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
    """A Python target under atheris."""
    return Fuzzer(name, (sys.executable, str(HERE / "under_atheris.py"), name))


def of_c(name: str) -> Fuzzer:
    """A C target, compiled. Raises CannotBuildError."""
    program = WORK / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    build_fuzzer(name, program)
    return Fuzzer(f"c-{name}", (str(program),))


def tried(fuzzer: Fuzzer, seconds: int) -> bool:
    """Look for something new; whether nothing was found that it does not bear."""
    done = fuzzer.run(
        f"-max_total_time={seconds}",
        "-use_value_profile=1",
        *(str(fuzzer.work), str(fuzzer.kept)),
        within_s=seconds + 300,
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        print(f"{fuzzer.name}: FOUND SOMETHING", *lines[-SHOWN_LINES:], sep="\n  ")
        return False
    (last,) = [line for line in lines if "DONE" in line][-1:] or ["no line"]
    print(f"{fuzzer.name:<22} {last.partition('DONE')[2].strip() or last}", flush=True)
    return True


def keep(fuzzer: Fuzzer) -> None:
    """Add what reached something new, the smallest inputs that do."""
    fuzzer.run("-merge=1", *FEW, str(fuzzer.kept), str(fuzzer.work), within_s=900)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: something was found; 3: what looks for it cannot run here."""
    parser = argparse.ArgumentParser(prog="build.py fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="per target (default 20)")
    parser.add_argument("--only", default="", metavar="WORD", help="targets with this word")
    parser.add_argument("--keep", action="store_true", help="add what is new to tests/fuzz/corpus")
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
    borne = [tried(fuzzer, chosen.seconds) for fuzzer in fuzzers]
    if chosen.keep:
        for fuzzer in fuzzers:
            keep(fuzzer)
    print(f"{sum(borne)} of {len(borne)} targets bore everything")
    return 0 if all(borne) else 1


if __name__ == "__main__":
    raise SystemExit(main())
