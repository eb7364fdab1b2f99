"""NVIDIA's CUDA runtime of some releases, from the wheels that the headers come from."""

import functools
import platform
import re
import sys
from pathlib import Path

import pytest
from built_hook import ROOT
from c_programs import compiled

from hook.driver_symbols import generate, headers
from hook.driver_symbols.headers import HeadersUnavailableError, Release

FETCHED = ROOT / ".build" / "cuda-runtimes"
FILES = re.compile(r".*/lib/(libcudart(?:\.so\.\d+|_static\.a))")
PACKAGE = headers.PACKAGES[0]
PINNED = list(headers.read_pins(generate.LOCK))
NEWEST = [max(r for r in PINNED if r[0] == major) for major in sorted({r[0] for r in PINNED})]
RELEASES = [PINNED[0], *NEWEST]


@functools.cache
def _fetched() -> dict[Release, Path] | HeadersUnavailableError:
    """Asked once, also where it fails: each attempt takes its time."""
    try:
        return headers.fetch(
            generate.LOCK,
            FETCHED,
            sys.executable,
            wanted=FILES,
            only=lambda pin: pin.package.startswith(PACKAGE) and pin.release in RELEASES,
        )
    except HeadersUnavailableError as error:
        return error


def runtime_of(release: Release) -> Path:
    """The directory of its files; the test is skipped where the wheels cannot be had."""
    if platform.machine() != "x86_64":
        pytest.skip("the runtimes that are pinned are for x86_64")
    found = _fetched()
    if isinstance(found, HeadersUnavailableError):
        pytest.skip(str(found))
    return found[release]


def program(source: str, release: Release, link: str, *flags: str) -> Path:
    """`source` with the runtime of a release: `linked` to it, `opened` by it, or `static`."""
    directory = runtime_of(release)
    library = next(directory.glob("libcudart.so.*"))
    how = {
        "linked": (str(library), f"-Wl,-rpath,{directory}"),
        "opened": (f'-DOPENED="{library}"',),
        "static": (str(directory / "libcudart_static.a"), "-lpthread", "-lrt"),
    }
    return compiled(source, *how[link], "-ldl", *flags)
