# ruff: noqa: INP001 - a build script beside the sources, not a package
"""Compiles the C of this directory with zig: hook, simulated driver, its tenant and runtime.

Standard library only; `build.py` imports it. The compiler is the `ziglang` package of the Python
it is told to use, so no system compiler, no CUDA toolkit and no driver is needed, and any machine
builds for any architecture.
"""

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from artifacts import (
    ARCHITECTURES,
    ARTIFACTS,
    C_FLAGS,
    GLIBC,
    LINK_FLAGS,
    WHOLE,
    Artifact,
    flags_of,
)
from unwind_tables import UnwindTableError, compact

HERE = Path(__file__).resolve().parent
EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}  # by what LLD knows them


class CompileError(Exception):
    """The compiler refused; the message carries what it said."""


def build_all(
    out: Path, python: str, arch: str = "x86_64", say: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Build every artifact for `arch` under `out`/`arch`; give their paths.

    What was built from the same sources with the same flags by the same compiler is left alone,
    unless it was changed since. Raises CompileError.
    """
    if arch not in ARCHITECTURES:
        raise CompileError(f"cannot build for {arch!r}; choose one of {', '.join(ARCHITECTURES)}")
    target = Path(out).resolve() / arch
    version = _zig_version(python)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        building = [
            pool.submit(_build, artifact, target, python, arch, version, say)
            for artifact in ARTIFACTS
        ]
        return [path.result() for path in building]


def _build(
    artifact: Artifact,
    target: Path,
    python: str,
    arch: str,
    version: str,
    say: Callable[[str], None],
) -> Path:
    path = target / artifact.path
    stamp = target / ".stamps" / artifact.path.replace("/", "_")
    arguments = (*_objects(artifact, arch).values(), _arguments(artifact, arch))
    words = [word for some in arguments for word in some]
    wanted = _fingerprint(artifact, version, words)
    if _is_of(stamp, path, wanted):
        return path
    made_of = target / ".objects"
    for made in (path, stamp, made_of / path.name):
        made.parent.mkdir(parents=True, exist_ok=True)
    with stamp.with_name(f"{stamp.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another build would write into what this one reads
        if not _is_of(stamp, path, wanted):  # by that one, meanwhile
            say(f"compiling {artifact.path} for {arch}")
            _make(artifact, python, arch, path, made_of)
            stamp.write_text(f"{wanted} {_digest(path)}")
    return path


def _is_of(stamp: Path, path: Path, wanted: str) -> bool:
    """Whether the file was made of what is wanted, and is as it was made."""
    there = path.exists() and stamp.exists()
    return there and stamp.read_text() == f"{wanted} {_digest(path)}"


def _make(artifact: Artifact, python: str, arch: str, path: Path, made_of: Path) -> None:
    objects, final = _objects(artifact, arch), _arguments(artifact, arch)
    parts = []
    for source, arguments in objects.items():
        parts.append(made_of / f"{path.name}.{source}.o")
        _compile(artifact, python, arguments, parts[-1])
    if parts:
        final.append(str(_one_object(artifact, python, arch, parts, made_of / path.name)))
    _compile(artifact, python, final, path)


def _one_object(artifact: Artifact, python: str, arch: str, parts: list[Path], whole: Path) -> Path:
    """Optimise the parts as one, and make unwind tables that take less room (`unwind_tables`)."""
    of_compiler = whole.with_name(f"{whole.name}.lto.s")  # as LLD names it
    of_compiler.unlink(missing_ok=True)
    assembly, made = (whole.with_name(f"{whole.name}{end}") for end in (".s", ".o"))
    link = [word for flag in (*artifact.flags, *LINK_FLAGS) for word in _for_linker(flag)]
    line = ["ld.lld", "-m", EMULATIONS[arch], *link, "--lto-O2", "--lto-emit-asm"]
    _run(artifact, python, [*line, *map(str, parts), "-o", str(whole)], whole)
    try:
        assembly.write_text(compact(of_compiler.read_text(), arch))
    except (OSError, UnwindTableError) as error:
        raise CompileError(f"{artifact.path}: no unwind tables can be made: {error}") from error
    _compile(artifact, python, [*_target(arch), "-c", str(assembly)], made)
    return made


def _for_linker(flag: str) -> list[str]:
    """A flag of the compiler as the linker takes it: none of what is the compiler's own."""
    return [flag] if flag == "-shared" else flag.split(",")[1:]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _environment(path: Path) -> dict[str, str]:
    """That of the compiler, which wants a place for what it keeps: ours where there is no home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME") or ""
    kept = {} if os.access(home, os.W_OK) else {"ZIG_GLOBAL_CACHE_DIR": str(path.parent / ".zig")}
    return kept | os.environ


def _compile(artifact: Artifact, python: str, arguments: list[str], path: Path) -> None:
    fresh = path.with_name(f"{path.stem}.{os.getpid()}.new{path.suffix}")
    try:
        _run(artifact, python, ["cc", *arguments, "-o", str(fresh)], path)
    except CompileError:
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(path)  # a process that has the old file mapped keeps it


def _run(artifact: Artifact, python: str, words: list[str], path: Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own compiler
        [python, "-m", "ziglang", *words],
        cwd=HERE,
        env=_environment(path),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CompileError(f"{artifact.path} does not compile:\n{done.stderr.strip()}")


def _target(arch: str) -> list[str]:
    return ["-target", f"{arch}-linux-gnu.{GLIBC}"]


def _objects(artifact: Artifact, arch: str) -> dict[str, list[str]]:
    """How to make the object of each source, where not all are compiled alike."""
    if artifact.fast is None:
        return {}
    return {
        source: [
            *_target(arch),
            *_but_strip(flags_of(artifact, source)),
            WHOLE,
            "-c",
            source,
        ]
        for source in artifact.sources
    }


def _but_strip(flags: list[str]) -> list[str]:
    return [flag for flag in flags if flag != "-s"]


def _arguments(artifact: Artifact, arch: str) -> list[str]:
    """How to make the file itself, of its sources or of the one object that they make."""
    sources = artifact.sources if artifact.fast is None else ()
    return [*_target(arch), *C_FLAGS, *artifact.tables, *sources, *artifact.flags, *LINK_FLAGS]


def _fingerprint(artifact: Artifact, version: str, arguments: list[str]) -> str:
    digest = hashlib.sha256(repr((version, arguments)).encode())
    shared = sorted(p for p in HERE.rglob("*") if p.suffix in {".h", ".map"})
    shared += [HERE / "compile.py", HERE / "unwind_tables.py"]
    for source in (*(HERE / name for name in artifact.sources), *shared):
        digest.update(str(source.relative_to(HERE)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _zig_version(python: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own compiler
        [python, "-m", "ziglang", "version"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CompileError(
            f"the zig compiler does not run ({python} -m ziglang): {done.stderr.strip()[-300:]}; "
            "install the packages of requirements/hook.lock into that environment"
        )
    return done.stdout.strip()
