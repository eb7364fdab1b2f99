"""Who is steered by its limits file stays so, whatever its processes write where they may."""

import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.adapters.block_guard import ProcessGuard
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.region_switches import HostRegionSwitches
from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.new_region import DEFAULT_PRIORITY, new_region
from agent.domain.pods import Container, Pod
from agent.domain.region import FILE_BYTES, TAIL_OFFSET, V1
from agent.services.feedback import Feedback, Levers
from agent.services.published import PodTable, Published
from agent.services.roster import Roster

HIGH, LOW = "0a1b2c3d-0000-4000-8000-000000000000", "0a1b2c3d-0000-4000-8000-000000000001"
GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
WORD = struct.Struct("<i")


@dataclass
class Bed:
    """Two containers of one GPU, granted by the agent; the pod of one asks to go first."""

    root: Path
    limits: HostLiveLimits
    roster: Roster
    feedback: Feedback

    def region(self, uid: str) -> Path:
        return self.root / "containers" / f"{uid}_main" / "x.cache"

    def put(self, uid: str, at: int, content: bytes) -> None:
        with self.region(uid).open("r+b") as file:
            file.seek(at)
            file.write(content)

    def blocked(self, uid: str) -> bool:
        found = self.limits.read(uid, "main")
        assert found is not None
        return found.devices[0].blocked_until_ns > time.monotonic_ns()


def grant(root: Path, uid: str) -> None:
    """The container's files, as Allocate makes them."""
    limits = LimitsFile(devices=(DeviceLimit(uuid=GPU_A, core_permille=250),), cache_path="/x")
    (root / "limits" / f"{uid}_main").write_bytes(encode(limits))
    home = root / "containers" / f"{uid}_main"
    home.mkdir(mode=0o777)
    with (home / "x.cache").open("wb") as file:
        os.truncate(file.fileno(), FILE_BYTES)
        for piece in new_region(limits, region_id=7, now_s=1_800_000_000):
            os.pwrite(file.fileno(), piece.content, piece.offset)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    root = tmp_path / "vgpu"
    for name in ("", "containers", "limits", "state"):
        (root / name).mkdir(mode=0o755)
    for uid in (HIGH, LOW):
        grant(root, uid)
    pods = {
        uid: Pod(
            namespace="team",
            name=uid,
            uid=uid,
            containers=(Container(name="main", task_priority=asked),),
        )
        for uid, asked in ((HIGH, "0"), (LOW, None))
    }
    switches, limits = HostRegionSwitches(root), HostLiveLimits(root, root / "state")
    roster = Roster(switches, limits, Published(PodTable(pods, synced=True)))
    made = Bed(root, limits, roster, Feedback(roster, Levers(switches, limits, ProcessGuard())))
    made.put(HIGH, V1["priority"], WORD.pack(0))  # as its library does
    made.put(HIGH, V1["slot_count"], WORD.pack(1))
    yield made
    made.feedback.release()
    switches.close()


def test_who_has_launched_nothing_keeps_nobody_waiting(bed: Bed) -> None:
    """It was granted, and its image is still being pulled."""
    bed.feedback.round_once()
    assert not bed.blocked(LOW)
    bed.put(HIGH, V1["recent_kernel"], WORD.pack(2))
    bed.feedback.round_once()
    assert bed.blocked(LOW)


def test_until_a_process_counts_it_goes_by_its_pods_word(bed: Bed) -> None:
    bed.put(HIGH, V1["priority"], WORD.pack(DEFAULT_PRIORITY))  # as it is made
    bed.put(HIGH, V1["slot_count"], WORD.pack(0))
    priorities = [bed.roster.members()[uid, "main"].priority for uid in (HIGH, LOW)]
    assert priorities == [0, 1]
    bed.put(HIGH, V1["slot_count"], WORD.pack(1))
    assert bed.roster.members()[HIGH, "main"].priority == 1


def nothing(bed: Bed) -> None:
    pass


def the_mark_of_our_part(bed: Bed) -> None:
    bed.put(LOW, TAIL_OFFSET, bytes(4))


def the_mark_of_the_region(bed: Bed) -> None:
    bed.put(LOW, 0, bytes(4))


def its_length(bed: Bed) -> None:
    os.truncate(bed.region(LOW), 1024)


def all_of_it(bed: Bed) -> None:
    bed.region(LOW).unlink()


SPOILT = [nothing, the_mark_of_our_part, the_mark_of_the_region, its_length, all_of_it]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("late", [False, True], ids=["before the first round", "after it"])
def test_it_waits_by_its_limits_file(bed: Bed, spoil: Callable[[Bed], None], late: bool) -> None:
    if late:
        bed.feedback.round_once()
    spoil(bed)
    for _ in range(2):
        bed.put(HIGH, V1["recent_kernel"], WORD.pack(2))
        bed.feedback.round_once()
    assert bed.blocked(LOW)
    assert not bed.blocked(HIGH)
    if bed.region(LOW).exists():
        word = bed.region(LOW).read_bytes()[V1["recent_kernel"] :][: WORD.size]
        assert len(word) < WORD.size or WORD.unpack(word)[0] >= 0


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_its_share_is_what_the_agent_gave_it(bed: Bed, spoil: Callable[[Bed], None]) -> None:
    bed.put(LOW, V1["sm_percent"], (90).to_bytes(8, "little"))
    spoil(bed)
    member = bed.roster.members()[LOW, "main"]
    (share,) = member.sharing((LOW, "main"), switch=1, blocked=False).shares
    assert (share.uuid, share.permille) == (GPU_A.lower(), 250)
