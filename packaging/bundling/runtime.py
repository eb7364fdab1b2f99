"""What is the frozen agent run by? A CPython, C++ libraries and a bootloader that run on old hosts.

The Python that runs build.py is of this machine, and so is its glibc; what is shipped must run on
hosts with glibc 2.28. So the parts come from elsewhere, each pinned by its hash: CPython from a Go
module that carries one built for glibc 2.17, libstdc++ and libgcc from Debian 11's packages in
packaging/runtime/debian, PyInstaller's bootloader from its source, compiled by zig with its zlib.
"""

import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bundling import go_module

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "packaging" / "runtime"
REQUIREMENTS = ROOT / "requirements"
GLIBC_TARGET = "x86_64-linux-gnu.2.17"
PLATFORM = "linux-amd64"  # as the Go module calls it

Say = Callable[[str], None]


class BundleError(Exception):
    """The artifact cannot be made here; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts, ready to use."""

    python: Path  # an interpreter with everything of frozen.lock
    bootloader: Path  # PyInstaller's, needs nothing of the host but libc
    inflate: Path  # the sources of zlib's inflate that came with it
    libraries: tuple[Path, ...]  # libstdc++.so.6, libgcc_s.so.1


def made(work: Path, tools: Path, say: Say) -> Runtime:
    """Make the runtime in `work`, or take it as it is when its pins have not changed.

    `tools` is the directory that has go, uv, and python with ziglang and pip. Raises
    BundleError.
    """
    key = _key()
    home = work / key
    if not (home / ".complete").exists():
        shutil.rmtree(work, ignore_errors=True)
        home.mkdir(parents=True)
        say("fetching the Python that is frozen")
        _unpack_python(_module(tools), home / "cpython")
        _install(home / "cpython", home / "venv", tools)
        say("compiling the bootloader")
        source = _pyinstaller_source(home, tools)
        _compile_bootloader(source / "bootloader", home / "bootloader", tools)
        shutil.move(source / "bootloader" / "zlib", home / "inflate")
        shutil.rmtree(source.parent)
        _unpack_libraries(home / "lib")
        (home / ".complete").touch()
    libraries = tuple(sorted((home / "lib").iterdir()))
    python = home / "venv" / "bin" / "python"
    return Runtime(python, home / "bootloader", home / "inflate", libraries)


def _key() -> str:
    digest = hashlib.sha256()
    for path in (REQUIREMENTS / "frozen.lock", PINS / "go.sum", PINS / "debian" / "SHA256SUMS"):
        digest.update(path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _checked(label: str, command: list[str | Path], cwd: Path, **environment: str) -> str:
    """Run a command; give what it wrote. Raises BundleError with its last lines."""
    done = subprocess.run(  # noqa: S603 - tools of the locked environment
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise BundleError(f"{label} failed with exit code {done.returncode}:\n" + "\n".join(lines))
    return done.stdout


# --- CPython -------------------------------------------------------------------------------------


def _module(tools: Path) -> Path:
    """Fetch the Go module that carries CPython; what is in Go's cache must be as pinned, too."""
    answer = _checked(
        "fetching CPython (a Go module)",
        [tools / "go", "mod", "download", "-json"],
        PINS,
        GOFLAGS="-mod=readonly",
        GONOSUMDB="*",  # go.sum has the hash
        GOTOOLCHAIN="local",
    )
    told = json.loads(answer)
    folder = Path(told["Dir"])
    check_module(folder, f"{told['Path']}@{told['Version']}", (PINS / "go.sum").read_text())
    return folder / "python" / "internal" / "data" / PLATFORM


def check_module(folder: Path, called: str, go_sum: str) -> None:
    """Refuse a module whose files are not, as they lie there, what go.sum says: BundleError."""
    wanted = go_module.pinned(go_sum, called)
    if wanted is None:
        raise BundleError(f"go.sum does not have {called}")
    try:
        found = go_module.sum_of(folder, called)
    except (OSError, ValueError) as error:
        found = str(error)
    if found != wanted:
        raise BundleError(
            f"{folder} was changed since it was fetched ({found}, and go.sum says {wanted}); "
            "`go clean -modcache` takes it away, then it is fetched again"
        )


def _unpack_python(carried: Path, home: Path) -> None:
    """Copy the distribution; its ELF files are stored compressed, one by one."""
    for path in sorted(carried.rglob("*")):
        if not path.is_file() or path.parent == carried:
            continue
        target = home / path.relative_to(carried)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            target = target.with_suffix("")
            target.write_bytes(gzip.decompress(path.read_bytes()))
            target.chmod(0o755)
        else:
            shutil.copyfile(path, target)


def _install(python_home: Path, venv: Path, tools: Path) -> None:
    [python] = [p for p in (python_home / "bin").glob("python3.*") if not p.name.endswith("config")]
    _checked(
        "creating the environment to freeze", [tools / "uv", "venv", "--python", python, venv], ROOT
    )
    _checked(
        "installing requirements/frozen.lock",
        [
            *(tools / "uv", "pip", "install", "--python", venv / "bin" / "python"),
            *("--require-hashes", "--no-deps", "--only-binary", ":all:"),
            *("-r", REQUIREMENTS / "frozen.lock"),
        ],
        ROOT,
    )


# --- the bootloader ------------------------------------------------------------------------------


def _pyinstaller_source(home: Path, tools: Path) -> Path:
    """Fetch PyInstaller's source archive, whose hash is in frozen.lock too, and unpack it."""
    lock = (REQUIREMENTS / "frozen.lock").read_text()
    stanza = re.search(r"^pyinstaller==(?:.*\\\n)*.*$", lock, re.MULTILINE)
    if stanza is None:
        raise BundleError("requirements/frozen.lock names no pyinstaller; run `build.py lock`")
    work = home / "source"
    work.mkdir()
    (work / "wanted.txt").write_text(stanza[0] + "\n")
    _checked(
        "fetching PyInstaller's source",
        [
            *(tools / "python", "-m", "pip", "download", "--no-deps", "--require-hashes"),
            *("--no-binary", "pyinstaller", "--no-build-isolation", "-r", "wanted.txt"),
        ],
        work,
    )
    [archive] = work.glob("pyinstaller-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    return work / archive.name.removesuffix(".tar.gz")


def _compile_bootloader(source: Path, target: Path, tools: Path) -> None:
    """As PyInstaller's own build does on Linux, but for an old glibc and with zlib inside."""
    has = ("UNSETENV", "MKDTEMP", "BASENAME", "DIRNAME", "WCSDUP", "STDBOOL_H")
    files = sorted([*(source / "src").glob("*.c"), *(source / "zlib").glob("*.c")])
    _checked(
        "compiling PyInstaller's bootloader",
        [
            *(tools / "python", "-m", "ziglang", "cc", "-target", GLIBC_TARGET),
            *("-O2", "-g0", "-s", "-std=gnu11", "-fno-sanitize=all", "-w"),
            *("-DNDEBUG", "-D_REENTRANT", "-D_GNU_SOURCE", "-DPYI_USE_POSIX_SEMAPHORE"),
            *(f"-DHAVE_{name}=1" for name in has),
            *(f"-I{source / 'src'}", f"-I{source / 'zlib'}"),
            *files,
            *("-ldl", "-lpthread", "-o", target),
        ],
        source,
    )


# --- libraries out of Debian's packages ----------------------------------------------------------


def _unpack_libraries(target: Path) -> None:
    target.mkdir()
    wanted = {"libstdc++.so.6", "libgcc_s.so.1"}
    for package in debian_packages("libstdc++6", "libgcc-s1"):
        for name in wanted & {Path(member.name).name for member in package}:
            (target / name).write_bytes(shared_library(package, name))
    if {path.name for path in target.iterdir()} != wanted:
        raise BundleError(f"the packages in {PINS / 'debian'} lack one of {sorted(wanted)}")


def debian_packages(*names: str, folder: Path = PINS / "debian") -> Iterator[tarfile.TarFile]:
    """Open the files of packages in packaging/runtime/debian, whose hashes are checked.

    Raises BundleError.
    """
    sums = {}
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, _, package_name = line.partition("  ")
        sums[package_name] = digest
    for name in names:
        [package] = folder.glob(f"{name}_*.deb")
        content = package.read_bytes()
        if hashlib.sha256(content).hexdigest() != sums.get(package.name):
            raise BundleError(f"{package} is not the file whose hash is in SHA256SUMS")
        files = lzma.decompress(_ar_member(content, "data.tar.xz"))
        with tarfile.open(fileobj=io.BytesIO(files)) as opened:
            yield opened


def shared_library(files: tarfile.TarFile, name: str) -> bytes:
    """The library of this name in a package; the name is that of a link to it, or its own."""
    [member] = [m for m in files if Path(m.name).name == name]
    if member.issym():
        return shared_library(files, Path(member.linkname).name)
    opened = files.extractfile(member)
    if opened is None:
        raise BundleError(f"{member.name} is not a file")
    return opened.read()


def _ar_member(archive: bytes, name: str) -> bytes:
    """One file of an `ar` archive, which is what a .deb is. Source: deb(5)."""
    at = len(b"!<arch>\n")
    while at < len(archive):
        header = archive[at : at + 60]
        size = int(header[48:58])
        if header[:16].decode().strip().rstrip("/") == name:
            return archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise BundleError(f"a package without {name}")


if __name__ == "__main__":
    print(made(Path(sys.argv[1]), Path(sys.argv[2]), print))  # noqa: T201 - it talks to a person
