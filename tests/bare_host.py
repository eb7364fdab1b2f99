"""A host that has a glibc and nothing else: a root of one Debian package, entered by chroot.

What is hard about hosts is all at once there: the root is read-only, /tmp is noexec, there is no
HOME, no shell, no PATH, and no library but glibc's.
"""

import io
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bundling import runtime

# In a mount namespace of its own. $1: the root, $2: where the programs are; then the command.
ENTER = """
set -e
root=$1 programs=$2 chroot=$3; shift 3
mount --bind "$root" "$root"; cd "$root"
mount -t proc none proc
mount -t tmpfs none dev
for node in null zero random urandom; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm
mount -t tmpfs -o noexec,mode=1777 none tmp
mount --rbind "$programs" programs
mount -o remount,bind,ro "$root"
exec env -i "$@"
"""
DIRECTORIES = ("proc", "dev", "tmp", "programs", "run", "var/lib", "var/tmp", "mnt", "root")


@dataclass(frozen=True)
class BareHost:
    """Files are made by `made`; each run is in namespaces of its own and leaves nothing."""

    root: Path
    programs: Path  # a directory, seen as /programs
    network: Sequence[str] = field(default=())  # e.g. ("--net",)

    @classmethod
    def made(cls, package: Path, root: Path, programs: Path) -> "BareHost":
        """Unpack a libc6 package."""
        content = runtime._ar_member(package.read_bytes(), "data.tar.xz")
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(content))) as opened:
            opened.extractall(root, filter="tar")
        for name in DIRECTORIES:
            (root / name).mkdir(parents=True, exist_ok=True)
        return cls(root, programs)

    def command(self, *words: str, **environment: str) -> list[str]:
        """How to run something there."""
        chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
        assert chroot is not None
        own = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        settings = [f"{name}={value}" for name, value in environment.items()]
        enter = [*settings, chroot, str(self.root), *words]
        where = [str(self.root), str(self.programs), chroot]
        return ["unshare", *own, *self.network, "sh", "-c", ENTER, "enter", *where, *enter]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run something there, to its end."""
        return subprocess.run(
            self.command(*words, **environment),
            capture_output=True, text=True, check=False, timeout=250,
        )  # fmt: skip

    def files(self) -> Mapping[str, int]:
        """Everything below the root that is not mounted there, with its time of change."""
        return {str(p): p.lstat().st_mtime_ns for p in self.root.rglob("*")}
