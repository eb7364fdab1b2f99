"""The C parsers as programs: to give kept inputs to them again, or with libFuzzer to look for new ones."""

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOOK = HERE.parents[1] / "hook"

# By target: the sources of hook/ that it is linked with, beside those that it includes.
C_TARGETS: Mapping[str, tuple[str, ...]] = {
    "amounts": (),
    "driver_version": (),
    "limits": (),
    "process": (),
    "region": ("ledger.c", "log.c", "process.c"),
    "settings": ("amounts.c",),
    "simulated_node": ("sim/node.c", "sim/node_parse.c", "sim/node_words.c",
                       "sim/node_execution.c", "sim/mig_profiles.c"),
}  # fmt: skip
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wno-unused-function")
# A finding ends the program. The compiler's own runtime says which; a trap alone would not.
UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=undefined")
COVERAGE = ("-fsanitize=address", "-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp")
RUNTIME = "asan_with_fuzzer.so"  # in atheris' wheel: libFuzzer and the address sanitizer


class CannotBuildError(Exception):
    """The compiler refused; the message carries what it said."""


def cc(*arguments: str | Path) -> None:
    """Run the pinned compiler. Raises CannotBuildError."""
    command = [sys.executable, "-m", "ziglang", "cc", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(done.stderr[-3000:])


def sources(name: str) -> list[Path]:
    """What a target is made of, without a program around it."""
    return [HERE / "c" / f"{name}.c", *(HOOK / source for source in C_TARGETS[name])]


def build_replay(name: str, program: Path) -> None:
    """A program that takes files, and dies of undefined behaviour and of reading past an input."""
    cc(*FLAGS, *UNDEFINED, *sources(name), HERE / "c" / "replay.c", "-lpthread", "-ldl",
       "-o", program)  # fmt: skip


def fuzzer_runtime() -> Path | None:
    """LibFuzzer with the address sanitizer, where atheris is installed."""
    found = importlib.util.find_spec("atheris")
    path = Path(str(found.origin)).parents[1] / RUNTIME if found else None
    return path if path and path.is_file() else None


def build_fuzzer(name: str, program: Path) -> None:
    """A program that looks for new inputs; with the sanitizers for addresses and undefined behaviour."""
    runtime = fuzzer_runtime()
    if runtime is None:
        raise CannotBuildError("atheris, which brings libFuzzer, is not installed")
    objects = []
    for source in sources(name):
        objects.append(program.with_name(f"{program.name}-{source.stem}.o"))
        cc(*FLAGS, *UNDEFINED, *COVERAGE, "-c", source, "-o", objects[-1])
    loop = program.with_name(f"{program.name}-loop.o")
    cc(*FLAGS, "-fno-sanitize=all", "-c", HERE / "c" / "libfuzzer.c", "-o", loop)
    cc("-fno-sanitize=all", *objects, loop, runtime, f"-Wl,-rpath,{runtime.parent}",
       "-Wl,--allow-shlib-undefined", "-lpthread", "-ldl", "-o", program)  # fmt: skip
