"""Containers on a simulated GPU beside the agent's feedback loop, all of it in virtual time.

The loop, its adapters and the hook are the real ones; what the GPU worked for whom the simulated
GPU itself tells, in steps of virtual time, so nothing here depends on the speed of the machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from built_hook import built, sim_libraries

from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES, TAIL
from agent.domain.switch_words import DEVICES_AT
from agent.sim.driver import SimDriver

WORLD = Path(__file__).resolve().parent / "feedback_world.py"
STEP_MS = 50  # what GPU time is told by
UID = "0a1b2c3d-0000-4000-8000-00000000000"


@dataclass(frozen=True)
class Tenant:
    """A container with one process."""

    percent: int  # of the GPU's time; 100: no limit
    phases: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    line: Mapping[str, int] = field(default_factory=dict)  # what else its limits file says
    left: Mapping[str, int] = field(default_factory=dict)  # by another boot, in its usage region


@dataclass(frozen=True)
class Host:
    """The directory of the node that containers' files lie in."""

    root: Path

    def make(self) -> "Host":
        for name in ("", "containers", "limits", "state"):
            (self.root / name).mkdir(mode=0o755)
        return self

    def container(self, number: int, uuid: str, percent: int, **line: int) -> Path:
        """Give a container a usage region and a limits file, as Allocate does; its directory.

        The hook lies there, too, and finds the limits file beside itself.
        """
        name = f"{UID}{number}_main"
        home = self.root / "containers" / name
        home.mkdir(mode=0o777)
        shutil.copy(built() / "libvgpu.so", home)
        device = DeviceLimit(uuid=uuid, core_permille=percent * 10, **line)
        region = home / "region.cache"
        limits = LimitsFile(devices=(device,), cache_path=str(region), region_id=7)
        with region.open("wb") as file:
            os.truncate(file.fileno(), FILE_BYTES)
            for piece in new_region(limits, region_id=7, now_s=1_800_000_000):
                os.pwrite(file.fileno(), piece.content, piece.offset)
        limits = replace(limits, region_inode=region.stat().st_ino)
        kept = self.root / "limits" / name
        kept.write_bytes(encode(limits))
        (home / "vgpu.limits").hardlink_to(kept)
        return home


@dataclass(frozen=True)
class Told:
    """What the GPU did for one container, in percent of each step."""

    percents: list[float]
    step_ms: int = STEP_MS

    def between(self, from_ms: int, until_ms: int) -> float:
        """Its part of the GPU in a stretch of steps."""
        steps = self.percents[from_ms // self.step_ms : until_ms // self.step_ms]
        assert steps, "the run is shorter"
        return sum(steps) / len(steps)

    def first_with(self, percent: float, from_ms: int) -> int:
        """When a step begins in which it had at least so much, in ms."""
        for step in range(from_ms // self.step_ms, len(self.percents)):
            if self.percents[step] >= percent:
                return step * self.step_ms
        raise AssertionError("never")


def run(
    directory: Path,
    tenants: Sequence[Tenant],
    kernels: Mapping[str, int],
    *,
    step_ms: int = STEP_MS,
    **asked: bool | int,
) -> list[Told]:
    """Let them and the loop run from the same moment on; `asked`: see feedback_world.py."""
    sim = SimDriver(directory, libraries=sim_libraries())
    gpu = sim.add_gpu()
    sim.execution(clock="virtual")
    for name, us in kernels.items():
        sim.kernel(name, us)
    host = Host(directory / "vgpu").make()
    parties = len(tenants) + 1
    processes = []
    for number, tenant in enumerate(tenants):
        home = host.container(number, gpu.uuid, tenant.percent, **tenant.line)
        with (home / "region.cache").open("r+b") as region:
            for name, value in tenant.left.items():
                at = DEVICES_AT + TAIL[f"device.{name}"]
                os.pwrite(region.fileno(), value.to_bytes(8, "little"), at)
        words = ["--virtual", str(parties), str(number), "--window-ms", str(step_ms)]
        processes.append(_process(
            [sim.libraries / "sim-gpu-tenant", *words, *tenant.phases],
            {**sim.environment(), "LD_PRELOAD": str(home / "libvgpu.so"), **tenant.env},
        ))  # fmt: skip
    world = [sys.executable, WORLD, str(parties), host.root, json.dumps(asked)]
    processes.append(_process(world, sim.environment()))
    try:
        said = [process.communicate(timeout=250) for process in processes]
    finally:
        for process in processes:
            process.kill()  # one that failed keeps the others waiting for it
    assert all(not err for _, err in said), said
    return [_told(out, step_ms) for out, _ in said[: len(tenants)]]


def _process(words: Sequence[str | Path], env: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words, env={"PATH": os.environ["PATH"], **env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _told(out: str, step_ms: int) -> Told:
    said = json.loads(out)
    assert said["result"] == 0
    return Told([ns / (step_ms * 10_000) for ns in said["windows_ns"]], step_ms)
