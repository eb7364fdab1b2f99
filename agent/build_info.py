"""What exactly is this program? For bug reports, for programs, and for the release's own tests."""

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

from agent.bundle import hook_dir
from agent.domain.hook_files import hook_name
from agent.version import VERSION

RECORD = "build.json"  # beside the hook's directory in the frozen agent; made with the release
MAX_RECORD_BYTES = 65536


def build_info() -> dict[str, Any]:
    """Everything by which two installations can differ; the values are JSON."""
    from agent.config import REGISTER_FORMATS
    from agent.domain import limits_file, new_region, region
    from agent.wire import rpc

    return {
        "name": "vgpu-agent",
        "version": VERSION,
        "build": _record(),
        "python": platform.python_version(),
        "hook": _hook(hook_dir() / "libvgpu.so"),
        "protocols": {
            "device_plugin": rpc.API_VERSION,
            "register_formats": list(REGISTER_FORMATS),
            "limits_file": limits_file.VERSION,
            "usage_region": f"{new_region.MAJOR}.{new_region.MINOR}",
            "usage_region_tail": region.TAIL_VERSION,
        },
    }


def _record() -> dict[str, Any]:
    """The git revision and such, as `build.py dist` wrote it; from source there is none."""
    frozen = getattr(sys, "_MEIPASS", "")
    if not frozen:
        return {"kind": "source"}
    with (Path(frozen) / RECORD).open("rb") as file:
        record: dict[str, Any] = json.loads(file.read(MAX_RECORD_BYTES))
    return {"kind": "release", **record}


def _hook(path: Path) -> dict[str, str] | None:
    """None where the library was not built yet."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    return {
        "file": path.name,
        "on_the_host": hook_name(VERSION, digest),
        "architecture": platform.machine(),
        "sha256": digest,
    }
