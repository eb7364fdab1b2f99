"""A launcher with a small folder behind it, and a directory for what it unpacks."""

import os
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
