"""Small C programs and libraries of the tests' own, compiled once per run."""

import functools
import hashlib
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent / "hook"


@functools.cache
def scratch() -> Path:
    """One directory for all of this run, removed with the process."""
    holder = tempfile.TemporaryDirectory(prefix="vgpu-programs-")
    scratch.holder = holder  # type: ignore[attr-defined] # lives as long as the function
    return Path(holder.name)


@functools.cache
def compiled(source: str, *flags: str, arch: str = platform.machine(), name: str = "") -> Path:
    """The program (or, with -shared, library) made of a file of tests/hook, or of the text itself."""
    text = source if "\n" in source else (HERE / source).read_text()
    digest = hashlib.sha256(repr((text, flags, arch)).encode()).hexdigest()[:12]
    out = scratch() / digest / (name or "program")
    if out.exists():
        return out
    out.parent.mkdir(exist_ok=True)
    path = out.parent / "source.c"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.2.17", "-std=gnu11",
         "-D_GNU_SOURCE", "-O1", "-fno-sanitize=undefined", "-Wall", str(path), "-o", str(out), *flags],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def library(source: str, *flags: str, name: str = "libtest.so") -> Path:
    """A shared library."""
    return compiled(source, "-shared", "-fPIC", *flags, name=name)


def driver(*macros: str, name: str = "libcuda.so.1") -> Path:
    """One of the drivers of tests/hook/driver.c."""
    return library("driver.c", *macros, f"-Wl,-soname,{name}", "-ldl", name=name)
