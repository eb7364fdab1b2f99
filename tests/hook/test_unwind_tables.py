"""Functions of the hook without unwind tables: nothing that unwinds a stack may be called from them.

An exception of the driver's callbacks ends the process at the first function without tables, and a
cancelled thread passes over the destructors of all that called it. The compiler leaves them out
where it knows that a function is never left like that: by what is declared to be so, and nothing
else.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_hook import ROOT, compiler

HOOK = ROOT / "hook"
# No thread is cancelled there (pthreads(7)), and they call nothing back that leaves like that. Of
# ours what headers have, which the compiler sees the inside of, as does the test of its own file.
HARMLESS = frozenset({
    "__errno_location", "__isoc99_sscanf", "__register_atfork", "atexit", "atoi", "bcmp", "calloc",
    "clock_gettime", "dladdr", "dlclose", "dlerror", "estimate_find", "fchmod", "flock", "free",
    "fstat", "ftruncate", "getauxval", "getenv", "geteuid", "getpid", "getrlimit", "kill",
    "madvise", "malloc", "memchr", "memcmp", "memcpy", "memmove", "memset", "mmap",
    "monotonic_ns", "munmap", "pthread_atfork", "pthread_attr_destroy", "pthread_attr_init", "pthread_attr_setdetachstate",
    "pthread_attr_setstacksize", "pthread_create", "pthread_key_create", "pthread_mutex_init",
    "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_self", "pthread_setspecific",
    "pthread_sigmask", "sched_yield", "sigfillset", "sigprocmask", "snprintf", "sprintf", "stat",
    "strcasecmp", "strchr", "strcmp", "strcpy", "strcspn", "strerror", "strlen", "strncasecmp",
    "strncmp", "strnlen", "strrchr", "strspn", "strtoull", "syscall", "time", "vsnprintf",
})  # fmt: skip
# Has libc's dlsym look libc's own function up, and calls that.
ALLOWED = {"late.c": {("pthread_atfork", "libcs"), ("pthread_atfork", "a pointer")}}


def library():  # noqa: ANN201 - an Artifact of compile.py, which is no package
    return next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")


def compile_to_llvm(path: Path, source: str, arch: str, made: Path) -> str:
    """The file at `path` as clang reads it with the flags of `source`, in LLVM's own words."""
    module = compiler()
    flags = [flag for flag in module.flags_of(library(), source) if flag != "-s"]
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.{module.GLIBC}",
         *flags, "-Wno-unused-command-line-argument", "-I", str(HOOK), "-S", "-emit-llvm",
         str(path), "-o", str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return made.read_text()


def attributes(text: str) -> dict[str, bool]:
    """Which groups of attributes are those of functions without tables."""
    groups = re.findall(r"^attributes #(\d+) = \{(.*)\}", text, flags=re.MULTILINE)
    return {
        number: "nounwind" in words.split() and "uwtable" not in words for number, words in groups
    }


def complaints(text: str) -> Iterator[tuple[str, str]]:
    """Functions without tables, with what they do that may unwind them."""
    groups = attributes(text)
    defined = re.findall(
        r"^define [^@\n]*@([\w.]+)\((.*?)\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
    )
    bare = {name for name, rest, _ in defined if groups[re.findall(r"#(\d+)", rest)[-1]]}
    for name, _, body in defined:
        for call in re.findall(r"\b(?:call|invoke)\b.*", body) if name in bare else []:
            to = re.search(r"(?:@([\w.]+)|%[\w.]+)\(", call)
            if " asm " in call or not to:
                yield name, "assembler"
            elif not to[1]:
                yield name, "a pointer"
            elif not to[1].startswith("llvm.") and to[1] not in HARMLESS | bare:
                yield name, to[1]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("source", sorted(library().sources))
def test_what_has_no_tables_does_nothing_that_unwinds(
    source: str, arch: str, tmp_path: Path
) -> None:
    text = compile_to_llvm(HOOK / source, source, arch, tmp_path / "made.ll")
    assert "\ndefine " in text
    assert set(complaints(text)) == ALLOWED.get(source, set())


@pytest.mark.parametrize(
    ("body", "does"),
    [
        pytest.param("extern int cuInit(unsigned); int f(void) { return cuInit(0); }",
                     "cuInit", id="driver"),
        pytest.param("#include <unistd.h>\nint f(void) { return close(3); }",
                     "close", id="where a thread is cancelled"),
        pytest.param("int (*g)(void); int f(void) { return g() + 1; }", "a pointer", id="pointer"),
        pytest.param("int (*g)(void); int f(void) { return g(); }",
                     "a pointer", id="pointer, as its last act"),
        pytest.param("#include <unistd.h>\nint h(void) { return close(3) + 1; }"
                     "int f(void) { return h() * h(); }", "h", id="by another function"),
        pytest.param('void f(void); void f(void) { __asm__ volatile("call cuInit"); }',
                     "assembler", id="assembler"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("said", [False, True], ids=["", "said to be left by returning alone"])
def test_a_function_that_may_be_unwound_has_tables_or_is_named(
    tmp_path: Path, body: str, does: str, said: bool
) -> None:
    source = min(library().sources)
    quiet = '#pragma GCC diagnostic ignored "-Wmissing-prototypes"'
    lie = "__attribute__((nothrow)) int f(void);" if said and "void f" not in body else ""
    (tmp_path / "edited.c").write_text(f"{quiet}\n{lie}\n{body}\n")
    text = compile_to_llvm(tmp_path / "edited.c", source, "x86_64", tmp_path / "made.ll")
    expected = {("f", does)} if lie or does == "assembler" else set()
    assert set(complaints(text)) == expected
