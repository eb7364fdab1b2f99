"""Files of the hook without unwind tables: nothing that unwinds a stack may be called from them.

An exception of the driver's callbacks, or the end of a cancelled thread, ends the process at the
first function without tables. So these files may call each other and the functions of libc below:
no point where a thread is cancelled, nothing that calls back but with functions of their own.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from built_hook import ROOT, compiler

HOOK = ROOT / "hook"
HARMLESS = frozenset({
    "memchr", "memcmp", "bcmp", "memcpy", "memmove", "memset", "strcasecmp", "strchr",
    "strcmp", "strcspn", "strlen", "strncasecmp", "strncmp", "strnlen", "strrchr", "strspn",
    "strtoull", "__errno_location", "snprintf", "clock_gettime", "getpid", "calloc", "free",
    "malloc", "mmap", "munmap", "pthread_mutex_init", "pthread_mutex_lock",
    "pthread_mutex_unlock", "pthread_self", "pthread_setspecific", "syscall",
    # With a function of one of these files:
    "pthread_atfork", "pthread_key_create", "pthread_once",
})  # fmt: skip


def library():  # noqa: ANN201 - an Artifact of compile.py, which is no package
    return next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")


BARE = sorted(library().never_unwound)


@cache
def calls(source: str, arch: str) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    """What a file defines, what it names of others, and its calls through a pointer."""
    with TemporaryDirectory() as scratch:
        return read_llvm(compile_to_llvm(HOOK / source, source, arch, Path(scratch) / "made.ll"))


def compile_to_llvm(path: Path, source: str, arch: str, made: Path) -> str:
    """The file at `path` as clang reads it with the flags of `source`, in LLVM's own words."""
    module = compiler()
    flags = [flag for flag in module.flags_of(library(), source, arch) if flag != "-s"]
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.{module.GLIBC}",
         *flags, "-Wno-unused-command-line-argument", "-I", str(HOOK), "-S", "-emit-llvm",
         str(path), "-o", str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return made.read_text()


def read_llvm(text: str) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    defined = re.findall(r"^define [^@]*@([\w.]+)", text, flags=re.MULTILINE)
    declared = re.findall(r"^declare [^@]*@([\w.]+)", text, flags=re.MULTILINE)
    through_pointers = re.findall(r"\b(?:call|invoke) [^@\n]*%[\w.]+\(.*|\bcall\b.*\basm\b.*", text)
    return (
        frozenset(defined),
        frozenset(name for name in declared if not name.startswith("llvm.")),
        tuple(through_pointers),
    )


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("source", BARE)
def test_what_has_no_tables_calls_nothing_that_unwinds(source: str, arch: str) -> None:
    defined, declared, through_pointers = calls(source, arch)
    ours = frozenset().union(*(calls(other, arch)[0] for other in BARE))
    assert defined
    assert declared <= HARMLESS | ours
    assert through_pointers == ()


@pytest.mark.parametrize("source", sorted(library().sources))
def test_all_others_have_tables(source: str, tmp_path: Path) -> None:
    text = compile_to_llvm(HOOK / source, source, "aarch64", tmp_path / "made.ll")
    assert bool(re.search(r"^attributes .*\buwtable\b", text, flags=re.MULTILINE)) == (
        source not in BARE
    )


@pytest.mark.parametrize("source", BARE)
def test_what_has_no_tables_is_a_file_of_the_library(source: str) -> None:
    assert source in library().sources


def test_what_has_no_tables_never_counts_itself_as_inside() -> None:
    """Leaving by an exception is told to depth.c by the tables alone."""
    assert not [s for s in BARE if "depth_enter" in (HOOK / s).read_text()]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param("extern int cuInit(unsigned); int f(void); int f(void) { return cuInit(0); }",
                     (True, False), id="driver"),
        pytest.param("#include <unistd.h>\nint f(int d); int f(int d) { return close(d); }",
                     (True, False), id="where a thread is cancelled"),
        pytest.param("int f(int (*g)(void)); int f(int (*g)(void)) { return g() + 1; }",
                     (False, True), id="pointer"),
        pytest.param("int f(int (*g)(void)); int f(int (*g)(void)) { return g(); }",
                     (False, True), id="pointer, as its last act"),
        pytest.param('void f(void); void f(void) { __asm__ volatile("nop"); }',
                     (False, True), id="assembler"),
    ],
)  # fmt: skip
def test_a_file_that_may_be_unwound_is_found(
    tmp_path: Path, body: str, found: tuple[bool, bool]
) -> None:
    (tmp_path / "edited.c").write_text(body + "\n")
    text = compile_to_llvm(tmp_path / "edited.c", BARE[0], "x86_64", tmp_path / "made.ll")
    _, declared, through_pointers = read_llvm(text)
    assert (bool(declared - HARMLESS), bool(through_pointers)) == found
