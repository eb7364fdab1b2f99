"""A launcher with a small folder behind it, and a directory for what it unpacks."""

import ctypes
import errno
import os
import struct
import subprocess
from pathlib import Path

import pytest
from bundling.single_file import single_file

SCRIPT = '#!/bin/sh\nexec "${0%/*}/program" "$0" "$@"\n'
PROGRAM = """#!/bin/sh
[ "$2" = wait ] && { echo started; read -r _; }
[ "$2" = exit ] && exit "$3"
[ "$2" = eval ] && { eval "$3"; exit; }
echo "$@"
"""
NOBODY = 65534
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

IN_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")


class Bed:
    """A directory for a single file and for what it unpacks."""

    def __init__(self, root: Path, launcher: Path) -> None:
        self.root, self.launcher = root, launcher
        self.given = root / "given"
        self.place = self.given / "vgpu-agent-runtime"
        self.environment = {"VGPU_AGENT_RUNTIME_DIR": str(self.given), "PATH": os.environ["PATH"]}

    def made(self, name: str = "one", text: str = "first", padding: int = 300_000) -> Path:
        """A single file; other text, other content."""
        folder = self.root / f"{name}.d"
        (folder / "deep" / "er").mkdir(parents=True)
        for script, content in (("vgpu-agent", SCRIPT), ("program", PROGRAM)):
            (folder / script).write_text(content)
            (folder / script).chmod(0o755)
        (folder / "deep" / "er" / "text").write_text(text)
        (folder / "padding").write_bytes(os.urandom(padding))
        return single_file(self.launcher, folder, "1.2.3", self.root / name)

    def run(self, *command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False,
            **{"env": self.environment, **options},
        )  # type: ignore[call-overload]  # fmt: skip

    def start(self, program: Path) -> subprocess.Popen[str]:
        """Start it and wait until it runs; it ends when its stdin does."""
        process = subprocess.Popen(
            [program, "wait"], env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    def unpacked(self) -> list[Path]:
        return sorted(self.place.iterdir()) if self.place.exists() else []


def refuse_locks() -> None:
    """Let this process and those after it be refused flock(2), as some file systems do: ENOLCK.

    Source: Linux, seccomp(2), include/uapi/linux/filter.h; x86_64's number of flock is 73.
    """
    load, equal, give = 0x20, 0x15, 0x06
    steps = ((load, 0, 0, 0), (equal, 0, 1, 73), (give, 0, 0, 0x50000 | errno.ENOLCK),
             (give, 0, 0, 0x7FFF0000))  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((38, 1, 0, 0, 0), (22, 2, program)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")
