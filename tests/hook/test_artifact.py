"""What the compiled library is: what it offers, what it asks of a container, and that it repeats."""

import os
import re
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from built_hook import ROOT, built, compiler
from elf import Elf, read_elf
from hooked_programs import Node

HOOK = ROOT / "hook"


def table() -> set[str]:
    """The symbols of symbols.h that are intercepted."""
    text = (HOOK / "symbols.h").read_text().replace("\\\n", " ")
    macros = re.findall(r"^#define (?:CUDA|NVML)_SYMBOLS\(X\)(.*)$", text, flags=re.MULTILINE)
    return set(re.findall(r"X\((\w+)[,)]", " ".join(macros)))


def lookups() -> set[str]:
    """What libvgpu.map exports besides: libc's own lookup functions, and what one of these calls."""
    text = re.sub(r"/\*.*?\*/", "", (HOOK / "libvgpu.map").read_text(), flags=re.DOTALL)
    return set(re.findall(r"(\w+);", text.split("global:")[1].split("local:")[0]))


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def library(request: pytest.FixtureRequest) -> Path:
    """The library for each architecture."""
    paths = compiler().build_all(ROOT / ".build" / "hook", sys.executable, request.param)
    return next(path for path in paths if path.name == "libvgpu.so")


@pytest.fixture(scope="module")
def hook(library: Path) -> Elf:
    return read_elf(library)


def test_the_callers_of_all_that_it_offers_are_found(hook: Elf) -> None:
    """By the driver's exceptions, and where a thread is cancelled in it (unwind tables)."""
    assert hook.bare_exports == set()


def test_it_is_built_for_the_machine_it_is_named_for(library: Path, hook: Elf) -> None:
    assert hook.machine == {"x86_64": 62, "aarch64": 183}[library.parent.name]


def test_it_exports_the_table_and_nothing_else(hook: Elf) -> None:
    assert len(table()) > 90
    assert lookups() == {"dlopen", "dlsym", "dlvsym", "vgpu_bind_deep"}
    assert hook.exports == table() | lookups()


def test_it_loads_in_containers_as_old_as_centos_7(hook: Elf) -> None:
    assert all(re.fullmatch(r"GLIBC_[\d.]+", version) for version in hook.versions)  # none private
    assert hook.newest_glibc <= (2, 17)
    assert set(hook.needed) <= {
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-aarch64.so.1",
    }


def test_it_asks_for_no_driver(hook: Elf) -> None:
    """An undefined driver symbol would end every process of a container with LD_BIND_NOW."""
    assert not [name for name in hook.imports if name.startswith(("cu", "nvml"))]


def test_it_does_nothing_when_it_is_loaded_and_when_the_process_ends(hook: Elf) -> None:
    """A program without CUDA never reads a page of our code."""
    assert hook.called_by_loader == 0


def test_it_stays_where_it_was_used(hook: Elf) -> None:
    """Handlers of fork and exit, threads and addresses that it gave out lead into it."""
    assert hook.stays_loaded


def test_everything_is_bound_before_the_program_runs_and_read_only_then(hook: Elf) -> None:
    assert hook.binds_now
    assert hook.read_only_after_relocation
    assert not hook.text_relocations
    assert not hook.executable_stack


def test_exceptions_and_cancelled_threads_find_their_way_through_it(hook: Elf) -> None:
    assert {".eh_frame", ".eh_frame_hdr"} <= set(hook.sections)


def test_every_exec_in_the_container_pays_little_for_it(library: Path, hook: Elf) -> None:
    """Each relocation is work at every exec; thread-local bytes come out of a small reserve."""
    assert library.stat().st_size <= 150 * 1024
    assert hook.relative_relocations <= 16  # none for a table of the functions
    assert 0 < hook.thread_local_bytes <= 64
    assert hook.copied_pages == 1  # what is relocated; our variables begin at a page of their own
    assert hook.zeroed_bytes <= 300 * 1024  # counted by mlockall and RLIMIT_AS; it was 8.6 MiB


def test_what_is_compiled_for_speed_or_for_size_are_files_of_the_library() -> None:
    library = next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")
    assert library.fast < set(library.sources)
    assert library.seldom < set(library.sources)
    assert not library.fast & library.seldom


def test_it_does_not_tell_where_it_was_built(library: Path, hook: Elf) -> None:
    content = library.read_bytes()
    assert str(ROOT).encode() not in content
    assert str(Path.home() / ".").encode() not in content
    assert not re.search(rb"\w+\.[ch]\0", content)
    assert not {name for name in hook.sections if name.startswith((".debug", ".symtab"))}


def test_it_cannot_end_or_talk_over_the_process_it_is_in(hook: Elf) -> None:
    forbidden = {"exit", "_exit", "abort", "printf", "puts", "fprintf", "umask", "signal",
                 "sigaction", "atexit", "setenv", "system"}  # fmt: skip
    assert not hook.imports & forbidden


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_same_sources_give_the_same_bytes_wherever_they_lie(tmp_path: Path, arch: str) -> None:
    module = compiler()
    here, elsewhere = module.HERE, tmp_path / "somewhere" / "else"
    shutil.copytree(HOOK, elsewhere, ignore=shutil.ignore_patterns("__pycache__"))
    built_once = module.build_all(ROOT / ".build" / "hook", sys.executable, arch)
    module.HERE = elsewhere
    try:
        built_again = module.build_all(tmp_path / "out", sys.executable, arch)
    finally:
        module.HERE = here
    assert [path.name for path in built_again] == [path.name for path in built_once]
    for once, again in zip(built_once, built_again, strict=True):
        assert once.read_bytes() == again.read_bytes(), once.name


def test_what_is_built_is_not_built_again() -> None:
    said: list[str] = []
    built()
    compiler().build_all(ROOT / ".build" / "hook", sys.executable, os.uname().machine, said.append)
    assert said == []


def test_what_was_damaged_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiler()
    monkeypatch.setattr(
        module, "ARTIFACTS", [a for a in module.ARTIFACTS if a.path == "sim/sim-container"]
    )
    [path] = module.build_all(tmp_path, sys.executable)
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2])
    assert module.build_all(tmp_path, sys.executable) == [path]
    assert path.read_bytes() == sound


def test_of_two_who_build_at_once_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the linker was writing for the one was assembled by the other, which ended by SIGBUS."""
    module = compiler()
    monkeypatch.setattr(
        module, "ARTIFACTS", [a for a in module.ARTIFACTS if a.path == "sim/libnvidia-ml.so.1"]
    )
    said: list[str] = []
    other: list[Future[list[Path]]] = []

    def say(text: str) -> None:
        said.append(text)
        other.append(pool.submit(module.build_all, tmp_path, sys.executable, say=said.append))

    with ThreadPoolExecutor(1) as pool:
        built_once = module.build_all(tmp_path, sys.executable, say=say)
        assert other[0].result() == built_once
    assert said == ["compiling sim/libnvidia-ml.so.1 for x86_64"]


@pytest.mark.parametrize(
    "home", [pytest.param("", id="none"), pytest.param("/proc/none", id="one that cannot be made")]
)
def test_it_is_built_by_who_has_no_home(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = compiler()
    monkeypatch.setattr(
        module, "ARTIFACTS", [a for a in module.ARTIFACTS if a.path == "sim/sim-container"]
    )
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home) if home else monkeypatch.delenv("HOME")
    [path] = module.build_all(tmp_path, sys.executable)
    assert path.exists()


@pytest.mark.parametrize(
    ("arch", "python", "complaint"),
    [
        pytest.param("riscv64", sys.executable, "x86_64, aarch64", id="unknown architecture"),
        pytest.param("x86_64", "/bin/false", "hook.lock", id="no compiler"),
    ],
)
def test_what_cannot_be_built_is_said_in_a_sentence(
    tmp_path: Path, arch: str, python: str, complaint: str
) -> None:
    with pytest.raises(compiler().CompileError, match=complaint):
        compiler().build_all(tmp_path, python, arch)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["true"], id="true"),
        pytest.param(["sh", "-c", "sh -c true; echo hello | cat >/dev/null"], id="shells"),
        pytest.param([sys.executable, "-c", "import ctypes, ssl"], id="python"),
    ],
)
def test_programs_without_cuda_do_not_notice(node: Node, words: list[str]) -> None:
    done = node.run_program(words, CUDA_DEVICE_MEMORY_LIMIT="1g", LD_BIND_NOW="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not node.cache.exists()
