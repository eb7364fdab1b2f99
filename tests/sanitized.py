"""The hook and the simulated driver under sanitizers, built such that tests share what is compiled."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from built_hook import ROOT, compiler

SANITIZERS = ("thread", "undefined")
ADDRESS = "address"  # zig instruments for it, but brings no runtime: gcc's is linked
COMPILE_S = 900  # the compiler may first have to build the sanitizer itself
# The program is linked to the library's sources, so that libc's lookup functions cannot have
# libc's names: the sanitizer calls them before it is ready for what it instruments.
RENAMED = tuple(f"-D{name}=hooks_{name}" for name in ("dlopen", "dlsym", "dlvsym"))
FLAGS = ("-std=c11", "-D_GNU_SOURCE", *RENAMED, "-O1", "-g")
# What finds the driver, instead of which a test has its own.
LOADING = (
    "dlopen.c", "dlsym.c", "late.c", "loaded.c", "names.c", "proc_address.c", "real.c", "rebind.c",
)  # fmt: skip


def sources_of(artifact: str, without: Sequence[str] = ()) -> list[Path]:
    """The sources of one artifact, but for those whose names begin with any of `without`."""
    found = next(a for a in compiler().ARTIFACTS if a.path == artifact)
    return [
        ROOT / "hook" / source
        for source in found.sources
        if not source.startswith(tuple(without) or "/")
    ]


def build(sanitizer: str, program: Path, sources: Sequence[Path], *flags: str) -> None:
    """Compile; skip where this compiler cannot."""
    if sanitizer == ADDRESS:
        build_for_addresses(program, sources, *flags)
        return
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *FLAGS, f"-fsanitize={sanitizer}",
         *map(str, sources), "-lpthread", "-ldl", "-lm", *flags, "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "sanitize" in done.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr


def build_for_addresses(program: Path, sources: Sequence[Path], *flags: str) -> None:
    """The same for the address sanitizer, whose runtime is gcc's; skip where there is none."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc, whose runtime for the address sanitizer is needed")
    whole = program.with_suffix(".o")
    sanitize = ("-fno-sanitize=undefined", "-fsanitize=address")
    zig = (sys.executable, "-m", "ziglang", "cc")
    for command in (
        [*zig, *FLAGS, *sanitize, "-r", *map(str, sources), "-o", str(whole)],
        [
            gcc,
            "-fsanitize=address",
            str(whole),
            "-lpthread",
            "-ldl",
            "-lm",
            *flags,
            "-o",
            str(program),
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "asan" in done.stderr:
            pytest.skip(f"gcc has no address sanitizer here: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
