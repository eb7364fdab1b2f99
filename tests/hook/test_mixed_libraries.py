"""A node with both libraries: one container under the hook, one under HAMi-core's, in real time.

The agent's loop is a process; the hook runs on the simulated GPU, HAMi-core's library is played by
a program that goes by its region as that does. Rounds come every 0.1 s here.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from built_hook import sim_libraries
from feedback_bed import UID, Host
from hami_regions import HamiRegion, hami_region, hami_tenant
from waiting import eventually

from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.region_switches import HostRegionSwitches
from agent.domain.region import TAIL_OFFSET
from agent.sim.driver import SimDriver

AGENT = Path(__file__).resolve().parents[1] / "feedback_agent.py"
LAUNCHES_AT = TAIL_OFFSET + 64 + 96
HOOKED, HAMI = (f"{UID}0", "main"), (f"{UID}1", "main")


class Bed:
    """The node, and the two programs."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.sim = SimDriver(directory, libraries=sim_libraries())
        self.gpu = self.sim.add_gpu()
        self.sim.kernel("kernel", 200)
        self.host = Host(directory / "vgpu").make()
        self._stack = stack
        self.home = self.host.container(0, self.gpu.uuid, 50)

    def hooked(self, priority: int) -> "subprocess.Popen[str]":
        """A program under the hook that computes until it is killed."""
        return self._started(
            [self.sim.libraries / "sim-gpu-tenant", "ms=600000,sync=1"],
            {
                **self.sim.environment(),
                "LD_PRELOAD": str(self.home / "libvgpu.so"),
                "CUDA_TASK_PRIORITY": str(priority),
            },
        )

    def hami(self, priority: int) -> HamiRegion:
        """One under HAMi-core's library."""
        home = self.host.root / "containers" / "_".join(HAMI)
        home.mkdir()
        region = hami_region(home / "x.cache", self.gpu.uuid, priority=priority, sm_percent=50)
        tenant = self._stack.enter_context(hami_tenant(region, sleep_s=0.05))
        self._stack.callback(tenant.kill)
        return region

    def agent(self) -> "subprocess.Popen[str]":
        agent = self._started([sys.executable, AGENT, self.host.root], {})
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        return agent

    def _started(self, words: list[str | Path], env: dict[str, str]) -> "subprocess.Popen[str]":
        process = self._stack.enter_context(subprocess.Popen(
            words, env={"PATH": os.environ["PATH"], **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True,
        ))  # fmt: skip
        self._stack.callback(process.kill)
        return process

    def launches(self) -> int:
        """What the hook has counted."""
        with (self.home / "region.cache").open("rb") as file:
            file.seek(LAUNCHES_AT)
            return int.from_bytes(file.read(8), "little")

    def blocked_until_ns(self) -> int:
        limits = HostLiveLimits(self.host.root, self.host.root / "state", most_names=2).read(
            *HOOKED
        )
        assert limits is not None
        return limits.devices[0].blocked_until_ns

    def moves(self) -> bool:
        """Whether the program under the hook launches."""
        before = self.launches()
        return bool(eventually(lambda: self.launches() > before + 200))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with ExitStack() as stack:
        yield Bed(tmp_path, stack)


def test_the_hook_goes_first(bed: Bed) -> None:
    bed.hooked(priority=0)
    region = bed.hami(priority=1)
    eventually(lambda: bed.launches() > 0)
    agent = bed.agent()
    eventually(lambda: region.recent_kernel == -1)
    assert bed.moves()
    agent.send_signal(signal.SIGKILL)
    eventually(lambda: region.recent_kernel == 2)  # it launches again


def test_hami_core_goes_first(bed: Bed) -> None:
    bed.hooked(priority=1)
    region = bed.hami(priority=0)
    eventually(lambda: bed.launches() > 0)
    agent = bed.agent()
    eventually(lambda: bed.blocked_until_ns() > 0)

    def stands() -> bool:
        before = bed.launches()
        blocked_until_ns = bed.blocked_until_ns()
        eventually(lambda: bed.blocked_until_ns() > blocked_until_ns)  # a whole renewal
        return bed.launches() <= before + 64  # what a thread has not counted yet

    assert eventually(stands)
    switches = HostRegionSwitches(bed.host.root)
    words = switches.refresh()[HOOKED]
    switches.close()
    assert words.recent_kernel >= 0  # its own memory has no part in it
    assert region.recent_kernel >= 0
    agent.send_signal(signal.SIGKILL)
    assert bed.moves()


def test_equals_both_go(bed: Bed) -> None:
    bed.hooked(priority=1)
    region = bed.hami(priority=1)
    bed.agent()
    assert bed.moves()
    assert region.switch == 1
    assert region.recent_kernel >= 0
    assert bed.blocked_until_ns() == 0
