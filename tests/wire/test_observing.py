"""What the wiring joins: whoever changes limits, or divides GPUs, and whoever lends."""

import os
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import observing
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.mig_files import OURS, HamiApplyLock
from agent.domain.limits_file import DeviceLimit, LimitsFile, decode, encode
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES
from agent.domain.switch_words import ACTIVITY_AT
from agent.services.feedback import Feedback
from agent.services.published import PodTable, Published
from agent.supervisor import Supervisor
from tests.waiting import eventually

UID, NAME = "0a1b2c3d-0000-4000-8000-00000000000f", "main"
HOUR_NS = 3600 * 10**9


def wired(root: Path, limits: HostLiveLimits, lock: HamiApplyLock | None = None) -> Feedback:
    """The loop as the agent makes it, with rounds that do not come by themselves."""
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(
            priorities=True,
            core_lending=True,
            host_vgpu_dir=root,
            priority_from="pod",
        ),
        pods=Published(PodTable()),
        mig_lock=lock or HamiApplyLock(root / "hami-mig-apply.lock"),
    )
    (feedback,) = observing._feedback(parts, FileGrantLog(root / "state"), limits)
    assert isinstance(feedback, Feedback)
    feedback._every_ns = HOUR_NS
    return feedback


def waits(region: int, count: int) -> None:
    """Count as the hook does of a launch that waited."""
    os.pwrite(region, struct.pack("<qQQ16xQ", 0, time.monotonic_ns(), 0, count), ACTIVITY_AT)


@pytest.mark.parametrize(
    ("content", "owner", "age_s", "paused"),
    [
        pytest.param(b"", 0, 1, True, id="HAMi's"),
        pytest.param(b"", 0, 3600, False, id="left behind"),
        pytest.param(b"", 12345, 1, False, id="a tenant's"),
        pytest.param(OURS, 0, 1, False, id="of our life before this one"),
    ],
)
def test_who_pauses_priorities_and_lending(
    tmp_path: Path, content: bytes, owner: int, age_s: int, *, paused: bool
) -> None:
    """Who may not divide GPUs beside it, and nobody else."""
    if owner and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    feedback = wired(tmp_path, HostLiveLimits(tmp_path, tmp_path / "state"))
    assert not feedback._paused()
    path = tmp_path / "hami-mig-apply.lock"
    path.write_bytes(content)
    os.chown(path, owner or -1, -1)
    at = path.stat().st_mtime - age_s
    os.utime(path, (at, at))
    assert feedback._paused() is paused


def test_what_we_divide_ourselves_pauses_them_as_well(tmp_path: Path) -> None:
    lock = HamiApplyLock(tmp_path / "hami-mig-apply.lock")
    feedback = wired(tmp_path, HostLiveLimits(tmp_path, tmp_path / "state"), lock)
    with lock.held():
        assert feedback._paused()
    assert not feedback._paused()


def test_a_container_whose_limits_are_made_known_is_lent_to_at_once(tmp_path: Path) -> None:
    root = tmp_path / "vgpu"
    home = root / "containers" / f"{UID}_{NAME}"
    for directory in (root, root / "containers", root / "limits", root / "state"):
        directory.mkdir(mode=0o755)
    limits = HostLiveLimits(root, root / "state")
    feedback = wired(root, limits)
    supervisor = Supervisor([feedback])
    supervisor.start()
    try:
        eventually(lambda: feedback._told_ns > 0, what="the first round")
        home.mkdir(mode=0o777)
        share = DeviceLimit(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000000", core_permille=300)
        file = LimitsFile(devices=(share,), cache_path="/x")
        region = os.open(home / "x.cache", os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(region, FILE_BYTES)
        for piece in new_region(file, region_id=7, now_s=1_800_000_000):
            os.pwrite(region, piece.content, piece.offset)
        path = root / "limits" / home.name
        path.write_bytes(encode(file))
        limits.settle(UID, NAME)  # as at the end of an Allocate
        count = 0

        def is_lent_to() -> bool:
            nonlocal count
            count += 1
            waits(region, count)
            return decode(path.read_bytes()).devices[0].lent_permille > 0

        eventually(is_lent_to, what="a loan")
        os.close(region)
    finally:
        supervisor.stop()
        assert supervisor.join() == 0
