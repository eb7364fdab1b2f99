"""The vendor's headers of each CUDA release: fetched, pinned by hash, read by the preprocessor.

Standard library only. The headers come from wheels on PyPI (requirements/cuda-headers.lock) and
stay in .build/; nothing of theirs is committed. Compiling the hook needs none of this: only the
tables of this directory and their tests do.
"""

import hashlib
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

WANTED = re.compile(r".*/include/(cuda(?:EGL|GL|VDPAU)?(?:\w*Typedefs)?\.h|nvml\.h)")
PIN = re.compile(r"([\w-]+)==(\d+\.\d+[\d.]*)(?:\s+--hash=sha256:[0-9a-f]{64})+\s*")
PLATFORM = "manylinux2014_x86_64"  # the headers of all platforms are the same
PACKAGES = ("nvidia-cuda-runtime", "nvidia-nvml-dev")
# Headers of others that the vendor's include. Their types do not matter to a list of functions.
STAND_INS = ("EGL/egl.h", "EGL/eglext.h", "GL/gl.h", "vdpau/vdpau.h")
DOWNLOADS_AT_ONCE = 4
OLDEST_MAJOR = 12

Release = tuple[int, int]


class HeadersError(Exception):
    """The headers cannot be read, or are not what the lock file says."""


class HeadersUnavailableError(HeadersError):
    """The package index cannot be reached; nothing is known to be wrong."""


@dataclass(frozen=True)
class Pin:
    """One wheel: its package, version and line for pip."""

    package: str
    version: str
    requirement: str

    @property
    def release(self) -> Release:
        """(12, 9) of 12.9.79."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def read_pins(lock: Path) -> dict[Release, list[Pin]]:
    """The wheels of each release, oldest release first. Raises HeadersError."""
    pins: dict[Release, list[Pin]] = {}
    text = lock.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = PIN.fullmatch(line)
        if not found:
            raise HeadersError(
                f"{lock.name}: {line.strip()!r} is no `name==version --hash=sha256:...`; "
                "write one wheel per line, with its hash"
            )
        pin = Pin(found[1], found[2], line)
        same = pins.setdefault(pin.release, [])
        if any(other.package == pin.package for other in same):
            raise HeadersError(
                f"{lock.name} pins {pin.package} twice for CUDA {dotted(pin.release)}; "
                "keep the newer"
            )
        same.append(pin)
    return dict(sorted(pins.items()))


def add_pins(lock: Path, release: Release, python: str) -> None:
    """Write the newest wheels of a release into the lock file. Raises HeadersError."""
    if release in read_pins(lock):
        raise HeadersError(f"{lock.name} has CUDA {dotted(release)}; delete its lines to pin anew")
    with tempfile.TemporaryDirectory() as scratch:
        suffix = "-cu12" if release < (13, 0) else ""
        _download(python, scratch, *(f"{name}{suffix}=={dotted(release)}.*" for name in PACKAGES))
        lines = []
        for wheel in sorted(Path(scratch).glob("*.whl")):
            package, version = wheel.name.split("-")[:2]
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{package.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n")
    lock.write_text(lock.read_text() + "".join(lines))


def release_of(text: str) -> Release:
    """(13, 6) of 13.6. Raises HeadersError."""
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if not found or int(found[1]) < OLDEST_MAJOR:
        raise HeadersError(f"{text!r} is no CUDA release with headers on PyPI; give one like 13.6")
    return int(found[1]), int(found[2])


def dotted(release: Release) -> str:
    """12.9 of (12, 9)."""
    return f"{release[0]}.{release[1]}"


def fetch(
    lock: Path,
    out: Path,
    python: str,
    say: Callable[[str], None] = lambda _: None,
    *,
    wanted: re.Pattern[str] = WANTED,
    only: Callable[[Pin], bool] = lambda _: True,
) -> dict[Release, Path]:
    """The directory of headers of each release, downloaded into `out` unless it is there.

    The wheels hold more than headers: `wanted` says which files are kept, under the name in its
    group, and `only` which of the wheels are asked for. Several processes may do so at once.
    Raises HeadersError, HeadersUnavailableError.
    """
    chosen = {
        release: [p for p in wheels if only(p)] for release, wheels in read_pins(lock).items()
    }
    pins = {release: wheels for release, wheels in chosen.items() if wheels}
    directories = {
        release: out / f"{dotted(release)}-{'-'.join(pin.version for pin in wheels)}"
        for release, wheels in pins.items()
    }
    missing = [release for release, directory in directories.items() if not directory.exists()]
    if missing:
        say(f"fetching the wheels of {len(missing)} CUDA releases")
        out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=DOWNLOADS_AT_ONCE) as pool:
            jobs = [pool.submit(_fetch, pins[r], directories[r], python, wanted) for r in missing]
            for job in jobs:
                job.result()
    return directories


def _fetch(wheels: list[Pin], directory: Path, python: str, wanted: re.Pattern[str]) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetching-") as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("".join(f"{pin.requirement}\n" for pin in wheels))
        _download(python, scratch, "--require-hashes", "-r", str(requirements))
        files = Path(scratch) / "files"
        files.mkdir()
        for wheel in Path(scratch).glob("*.whl"):
            _unpack(wheel, files, wanted)
        _put(files, directory)


def _download(python: str, directory: str, *what: str) -> None:
    pip = [python, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    pip += ["--disable-pip-version-check", "--retries", "2", "--only-binary", ":all:"]
    done = subprocess.run(  # noqa: S603 - pip of our own environment
        [*pip, "--platform", PLATFORM, "--dest", directory, *what],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        complaint = done.stderr.strip()[-1000:]
        wrong = "DO NOT MATCH THE HASHES" in complaint
        raise (HeadersError if wrong else HeadersUnavailableError)(
            f"pip does not get the wheels of CUDA; see that it reaches a package index: {complaint}"
        )


def _unpack(wheel: Path, files: Path, wanted: re.Pattern[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = wanted.fullmatch(name)
            if found:
                (files / found[1]).write_bytes(archive.read(name))


def _put(files: Path, directory: Path) -> None:
    try:
        files.rename(directory)
    except OSError:
        if not directory.exists():  # otherwise another process was faster
            raise


def stand_ins(out: Path) -> Path:
    """A directory with empty headers of others that the vendor's headers include."""
    directory = out / "stand-ins"
    for name in STAND_INS:
        path = directory / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return directory


def zig_cc(
    python: str, arguments: list[str], source: str, include: list[Path]
) -> subprocess.CompletedProcess[str]:
    """Run the C compiler on `source`; its output and complaints are in the answer."""
    command = [python, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17", "-std=c11"]
    command += [*arguments, *(f"-I{path}" for path in include), "-x", "c", "-"]
    return subprocess.run(  # noqa: S603 - our own compiler
        command, input=source, capture_output=True, text=True, check=False
    )


def preprocessed(python: str, source: str, include: list[Path], *definitions: str) -> str:
    """`source` with all that it includes, without comments and macros. Raises HeadersError."""
    flags = ["-E", "-P", *(f"-D{name}" for name in definitions)]
    done = zig_cc(python, flags, source, include)
    if done.returncode:
        raise HeadersError(f"the headers in {include[0]} cannot be read: {done.stderr[-1000:]}")
    return done.stdout


def declarations(text: str, name: str) -> Iterator[tuple[str, str]]:
    """(function, its parameters) for each prototype of a function whose name matches `name`."""
    for found in re.finditer(rf"\b({name})\s*\(([^;{{}}]*)\)\s*;", text):
        yield found[1], " ".join(found[2].split())
