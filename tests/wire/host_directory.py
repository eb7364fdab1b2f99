"""A host directory with a hook library in it, for the tests of what lives there."""

import os
import stat
from pathlib import Path

import pytest

from agent.adapters.caches import HostCaches

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="changes owners or mounts: run it as root")
UID = "11111111-2222-3333-4444-555555555555"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make_host(tmp_path: Path) -> Path:
    """The host's vgpu directory."""
    made = tmp_path / "vgpu"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    (made / "libvgpu.so").write_bytes(b"hook")
    return made


def make_caches(tmp_path: Path) -> HostCaches:
    """Caches in `make_host`'s directory."""
    return HostCaches(tmp_path / "vgpu", lock_dir=tmp_path / "vgpulock", dev_root=tmp_path / "root")
