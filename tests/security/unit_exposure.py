"""What `systemd-analyze security` says of the service, which needs no systemd that runs."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

UNIT = Path(__file__).resolve().parents[2] / "packaging" / "systemd" / "vgpu-agent.service"
_LEFT = re.compile(r"^✗ (\S+)\s{2,}(.+?)\s{2,}([0-9.]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exposure:
    """The score, from 0 (nothing) to 10, and what it is made of."""

    score: float
    version: str
    left_open: tuple[tuple[str, str, str], ...]  # setting, what it leaves, its weight


def exposure() -> Exposure | None:
    """None: there is no systemd-analyze here."""
    if shutil.which("systemd-analyze") is None:
        return None
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", UNIT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    version = subprocess.run(
        ["systemd-analyze", "--version"], capture_output=True, text=True, check=False
    ).stdout.splitlines()[0]
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    return Exposure(float(score), version, tuple(_LEFT.findall(done.stdout)))
