"""Freeze the agent into a folder that needs no Python, and pack the folder.

Usage: freeze.py DIST HOOK_DIR. Writes DIST/vgpu-agent/ (start it as vgpu-agent/vgpu-agent) and
DIST/vgpu-agent-<version>-linux-<arch>.tar.gz. Runs in the environment that `build.py dist` made.
"""

import gzip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agent.version import VERSION  # noqa: E402 - the path above leads to it

# Found by PyInstaller because something could import them; nothing of ours does.
UNUSED = (
    *("aiohttp", "aiohttp_retry", "multidict", "yarl", "frozenlist", "propcache"),
    *("kubernetes.aio", "grpc_tools", "setuptools", "pkg_resources", "_distutils_hack"),
    *("tkinter", "unittest", "lib2to3", "test", "readline", "curses", "sqlite3", "idlelib"),
)

# The parts of the client package that agent/adapters/kube_config.py imports one by one.
LOADED_BY_NAME = (
    "kubernetes.client.configuration",
    "kubernetes.client.rest",
    "kubernetes.config.incluster_config",
    "kubernetes.config.kube_config",
)


def freeze(dist: Path, hook_dir: Path) -> Path:
    """Run PyInstaller; give the folder."""
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--onedir", "--log-level=WARN"]
    command += ["--name=vgpu-agent", f"--distpath={dist}", f"--workpath={hook_dir.parent}/freeze"]
    command += [f"--specpath={hook_dir.parent}/freeze", f"--add-data={hook_dir}:hook"]
    for module in LOADED_BY_NAME:
        command += ["--hidden-import", module]
    for module in UNUSED:
        command += ["--exclude-module", module]
    # A fixed hash seed makes PyInstaller's output the same for the same input.
    subprocess.run(  # noqa: S603 - our own interpreter
        [*command, str(ROOT / "agent.py")],
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "1700000000"},
    )
    return dist / "vgpu-agent"


def pack(folder: Path, target: Path) -> None:
    """Write a tarball that depends on nothing but the folder's content."""

    def neutral(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 1_700_000_000
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            archive.add(path, str(path.relative_to(folder.parent)), recursive=False, filter=neutral)


def main(dist: Path, hook_dir: Path) -> None:
    """Freeze, pack, and say what came out."""
    shutil.rmtree(dist / "vgpu-agent", ignore_errors=True)
    dist.mkdir(parents=True, exist_ok=True)
    folder = freeze(dist, hook_dir)
    target = dist / f"vgpu-agent-{VERSION}-linux-{platform.machine()}.tar.gz"
    pack(folder, target)
    unpacked = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {unpacked / 1e6:.1f} MB")  # noqa: T201 - it talks to a person
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")  # noqa: T201 - likewise


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
