"""What a process that never touches CUDA notices of us: nothing but one more mapping."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from ctypes.util import find_library
from functools import reduce
from operator import and_
from pathlib import Path

import pytest
from built_hook import ROOT, built, compiler
from c_programs import compiled, library
from elf import read_elf
from hooked_programs import LIMIT, Node

OURS = "libvgpu.so"
LOADING = {"openat", "read", "pread64", "fstat", "newfstatat", "mmap", "mprotect", "close"}


def preload(*libraries: object) -> dict[str, str]:
    return {"LD_PRELOAD": ":".join(map(str, libraries)), LIMIT: "1g"}


def bystander(*flags: str) -> Path:
    return compiled("bystander.c", *flags, "-ldl", "-lpthread")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_it_asks_the_loader_for_next_to_nothing(arch: str) -> None:
    """Each further library costs every exec of the container some 20 us, each function 0.2 us."""
    paths = compiler().build_all(ROOT / ".build" / "hook", sys.executable, arch)
    hook = read_elf(next(path for path in paths if path.name == OURS))
    assert hook.needed == ["libc.so.6"]
    assert hook.imports - {""} == {"dl_iterate_phdr", "_r_debug"}


def test_what_it_finds_later_cannot_end_or_talk_over_the_process() -> None:
    text = (ROOT / "hook" / "late.c").read_text()
    late = set(re.findall(r"X\((\w+)\)", text[text.index("#define LATE") : text.index("enum {")]))
    assert len(late) > 60
    assert not late & {"exit", "_exit", "abort", "printf", "puts", "fprintf", "umask", "signal",
                       "sigaction", "atexit", "setenv", "putenv", "system"}  # fmt: skip
    # Each costs room of which little is left. What begins so is called by what libc's headers make of a name.
    sources = [path.read_text() for path in (ROOT / "hook").glob("*.[ch]") if path.name != "late.c"]
    called = set(re.findall(r"\b(\w+)\(", "\n".join([*sources, text.split("enum {")[-1]])))
    assert {name for name in late - called if not name.startswith("__")} == set()


def test_a_process_without_cuda_is_as_it_would_be_without_us(node: Node) -> None:
    with_us = node.run_program([str(bystander())])
    without = node.run_program([str(bystander())], LD_PRELOAD="")
    assert (with_us.returncode, with_us.stderr) == (0, "")
    lines, expected = with_us.stdout.splitlines(), without.stdout.splitlines()
    more = Counter(lines) - Counter(expected)
    mine = [line for line in lines if line.startswith("map") and line.endswith(f"/{OURS}")]
    assert 3 <= len(mine) <= 6
    assert more - Counter(mine) <= Counter(["map rw-p "])  # our variables
    assert not Counter(expected) - Counter(lines)
    assert not node.cache.exists()


def traced(node: Node, log: Path, preloaded: str) -> list[str]:
    """The system calls of the bystander, by name, in order."""
    env = node.environment(LD_PRELOAD="", **{LIMIT: "1g"})
    words = [
        "strace",
        "-f",
        "-o",
        str(log),
        "-E",
        f"LD_PRELOAD={preloaded}",
        str(bystander()),
        "quiet",
    ]
    subprocess.run(words, env=env, check=True, timeout=60, capture_output=True)
    return re.findall(r"^\d+ +(\w+)\(", log.read_text(), flags=re.MULTILINE)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_it_makes_no_system_call_after_it_is_loaded(node: Node, tmp_path: Path) -> None:
    """Two threads that meet make one more now and then: only of that call the most without us counts."""
    runs = [
        [traced(node, tmp_path / f"{name}{run}", preloaded) for run in range(8)]
        for name, preloaded in (("with", str(built() / OURS)), ("without", ""))
    ]
    loading = [[Counter(c[: c.index("getppid")]) for c in calls] for calls in runs]
    after = [[Counter(c[c.index("getppid") :]) for c in calls] for calls in runs]
    with_us, without = (reduce(and_, counts) for counts in after)
    without["futex"] = max(calls["futex"] for calls in after[1])
    assert with_us["getppid"] == 2
    assert not with_us - without
    assert set(loading[0][0] - loading[1][0]) <= LOADING


def installed(name: str) -> str:
    found = find_library(name)
    if not found:
        pytest.skip(f"{name} is not installed (apt-get install libjemalloc2 libtcmalloc-minimal4)")
    return found


@pytest.mark.parametrize("first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("allocator", ["jemalloc", "tcmalloc_minimal"])
def test_other_allocators_are_preloaded_together_with_us(
    node: Node, allocator: str, first: bool
) -> None:
    both = [installed(allocator), str(built() / OURS)]
    env = preload(*(both if first else reversed(both)))
    quiet = node.run_program([str(bystander()), "quiet"], **env)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    code = "start()\nsay(results=[alloc(60)[0], alloc(60)[0]])"
    said = node.run(code, **{**env, LIMIT: "100m"})
    assert (said["results"], said["stderr"]) == ([0, 2], "")


def with_asan(*flags: str) -> Path:
    """lives.c as gcc's AddressSanitizer builds it."""
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("gcc is not installed")
    out = compiled("bystander.c", "-ldl", "-lpthread").with_name(f"asan{len(flags)}")
    source = Path(__file__).with_name("lives.c")
    words = [
        gcc,
        "-D_GNU_SOURCE",
        "-fsanitize=address",
        *flags,
        str(source),
        "-o",
        str(out),
        "-ldl",
        "-lpthread",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"gcc has no AddressSanitizer here: {done.stderr[-200:]}")
    return out


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        pytest.param(("-static-libasan",), "", id="its runtime in the program, as clang does"),
        pytest.param((), "verify_asan_link_order=0", id="its runtime as a library"),
    ],
)
@pytest.mark.parametrize("life", ["one", "threads", "fork first"])
def test_programs_under_the_address_sanitizer_work(
    node: Node, flags: tuple[str, ...], options: str, life: str
) -> None:
    program = with_asan(*flags)
    env = {**preload(built() / OURS), LIMIT: "100m", "ASAN_OPTIONS": f"detect_leaks=0:{options}"}
    done = node.run_program([str(program), life], **env)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {
        "one": "new 0 0\n",
        "threads": "threads 11 21\n",
        "fork first": "child 0 0\nparent 0 0\n",
    }
    assert done.stdout == expected[life]


def test_the_sanitizers_library_refuses_every_preload_alike(node: Node) -> None:
    """Its own rule: a program that carries it as a library must have it first. Documented, not ours."""
    empty = library("int empty_library(void) {\n return 0; }\n", name="libempty.so")
    said = [
        node.run_program([str(with_asan()), "one"], **preload(path)).stderr.split("==", 2)[-1]
        for path in (empty, built() / OURS)
    ]
    assert "ASan runtime does not come first" in said[0]
    assert said[0] == said[1]
