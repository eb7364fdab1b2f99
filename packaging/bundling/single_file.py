"""The one executable: a launcher, the folder behind it, and a trailer that says where what is.

The launcher (packaging/launcher) unpacks the folder once, into a directory of its own that is named
by the hash of the content, and becomes the program in it.
"""

import hashlib
import io
import struct
import subprocess
import tarfile
from pathlib import Path

from bundling import archive
from bundling.runtime import ROOT, BundleError, Runtime

MAGIC = b"VGPUONE2"
TRAILER = struct.Struct("<8sQQQQ64s")  # struct trailer in packaging/launcher/payload.h
LAUNCHER = ROOT / "packaging" / "launcher"


def compiled_launcher(runtime: Runtime, python: Path, target: Path) -> Path:
    """Compile the launcher, linked statically, with the inflate of zlib. Raises BundleError."""
    sources = [*sorted(LAUNCHER.glob("*.c")), *sorted(runtime.inflate.glob("*.c"))]
    command = [python, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-static", "-std=c11"]
    command += ["-O2", "-g0", "-s", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
    command += ["-fno-sanitize=all", "-isystem", runtime.inflate, *sources, "-o", target]
    done = subprocess.run(  # noqa: S603 - the locked compiler
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BundleError(f"compiling the launcher failed:\n{done.stderr[-3000:]}")
    return target


def single_file(launcher: Path, folder: Path, version: str, target: Path) -> Path:
    """Write the executable."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as opened:
        files = archive.add_tree(opened, folder, "")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    content = tar.getvalue()
    name = f"vgpu-agent-{version}-{hashlib.sha256(content).hexdigest()[:16]}"
    front, payload = launcher.read_bytes(), archive.gzipped(content)
    trailer = TRAILER.pack(MAGIC, len(front), len(payload), files, size, name.encode())
    target.write_bytes(front + payload + trailer)
    target.chmod(0o755)
    return target
