"""How do we get a real container runtime, and what a container without glibc runs?

Debian's own binaries of runc, of a static busybox and of musl's loader, unpacked once into a cache
outside the tree. They are not what is tested, apt checks their signatures, and a pin would break at
every rebuild in Debian; so each is taken at whatever version the archive holds.

Standard library only.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .build_peers import default_cache
from .debian_archive import DebianArchive, PeersUnavailable

__all__ = ["ContainerTools", "PeersUnavailable", "container_tools", "unpacked"]

PACKAGES = ("runc", "libseccomp2", "busybox-static", "musl", "musl-dev")
RECIPE = 2  # raise when something else is to be unpacked
STEP_S = 120


@dataclass(frozen=True, slots=True)
class ContainerTools:
    """Where the packages are unpacked."""

    root: Path

    @property
    def runc(self) -> Path:
        """The runtime; runs in `environ`."""
        return self.root / "usr" / "sbin" / "runc"

    @property
    def environ(self) -> dict[str, str]:
        """For runc, with the library it needs."""
        libraries = next(self.root.glob("usr/lib/*/libseccomp.so.2")).parent
        return {"PATH": os.environ.get("PATH", os.defpath), "LD_LIBRARY_PATH": str(libraries)}

    @property
    def busybox(self) -> Path:
        """A shell and the usual commands as one static program."""
        return self.root / "bin" / "busybox"

    @property
    def musl(self) -> Path:
        """The libc, which is its own loader; programs look for it at /lib/<its name>."""
        return next(self.root.glob("lib/*-linux-musl*/libc.so"))

    def musl_objects(self, *more: str) -> list[Path]:
        """What a program for musl is linked with, before its own files; and `more` from there."""
        directory = next(self.root.glob("usr/lib/*-linux-musl*/crt1.o")).parent
        return [directory / name for name in ("crt1.o", "crti.o", "crtn.o", *more)]

    @property
    def musl_loader_name(self) -> str:
        """The name of the loader in programs for this machine."""
        return next(self.root.glob("lib/ld-musl-*")).name


def container_tools() -> ContainerTools:
    """The tools, fetched if this machine does not have them yet.

    Raises:
        PeersUnavailable: one sentence saying what is missing.
    """
    return ContainerTools(unpacked("container-tools", PACKAGES, RECIPE))


def unpacked(name: str, packages: Sequence[str], recipe: int) -> Path:
    """A directory with Debian's packages unpacked, in the cache.

    Raises:
        PeersUnavailable: one sentence saying what is missing.
    """
    cache = default_cache().with_name(name)
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"debian-{recipe}"
    with _alone(cache):
        if not root.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as work:
                _fetch(packages, Path(work))
                (Path(work) / "root").rename(root)
    return root


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(packages: Sequence[str], work: Path) -> None:
    archive = DebianArchive(directory=work / "apt")
    archive.prepare()
    _step("reading Debian's package lists", archive.update(), work, archive)
    (work / "root").mkdir()
    for package in packages:
        _step(f"fetching {package}", archive.fetch_binary(package), work, archive)
        (deb,) = work.glob(f"{package}_*.deb")
        unpack = ["dpkg-deb", "-x", str(deb), str(work / "root")]
        _step(f"unpacking {package}", unpack, work, archive)


def _step(what: str, command: list[str], work: Path, archive: DebianArchive) -> None:
    try:
        done = subprocess.run(
            command, cwd=work, env={**os.environ, **archive.environ}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeersUnavailable(f"{what} took more than {STEP_S} s") from None
    if done.returncode:
        raise PeersUnavailable(
            f"{what} failed (exit {done.returncode}): {(done.stderr or done.stdout).strip()[-300:]}"
        )
