"""Regions that the agent made, and what containers make of them."""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_regions import OURS, MadeSlot, put_slot

from agent.adapters.region_reader import HostRegionReader
from agent.adapters.regions import HostRegions
from agent.domain.expected_region import ANY, Expected, expected_region
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES, TAIL, TAIL_OFFSET, V1, Rejected
from agent.domain.region_reading import RegionName, RegionReading
from agent.errors import NodeNotReady

UID, NAME, ID = "0a1b2c3d-0000-4000-8000-00000000000f", "x.cache", 0x1234_5678_9ABC_DEF0
A, B = (f"GPU-{letter * 8}-0000-4000-8000-000000000000" for letter in "ab")
GRANTED = LimitsFile(devices=(DeviceLimit(uuid=A), DeviceLimit(uuid=B.upper())), region_id=ID)


class Bed:
    """A container whose region the agent has made, with one process in it."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "containers" / f"{UID}_main"
        self.directory.mkdir(parents=True)
        self.directory.parent.chmod(0o755)
        self.file = self.directory / NAME
        content = bytearray(FILE_BYTES)
        for piece in new_region(GRANTED, region_id=ID, now_s=0):
            content[piece.offset : piece.offset + len(piece.content)] = piece.content
        put_slot(content, OURS, 0, MadeSlot(pid=7, data=5))
        struct.pack_into("<i", content, V1["slot_count"], 1)
        self.file.write_bytes(content)
        self.limits: LimitsFile | None = replace(GRANTED, region_inode=self.file.stat().st_ino)
        self.reader = HostRegionReader(root)
        self.regions = HostRegions(root, lambda uid, container: self.limits)

    def put(self, at: int, content: bytes) -> None:
        with self.file.open("r+b") as file:
            os.pwrite(file.fileno(), content, at)

    def read(self, expected: Expected | None = None) -> RegionReading:
        expected = expected_region(self.limits) if expected is None else expected
        (reading,) = self.reader.read([RegionName(UID, "main", NAME, expected)])
        return reading

    def problem(self) -> str:
        """What is told of it where processes are judged."""
        return self.regions.look(UID, "main", NAME).problem


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    tmp_path.chmod(0o755)
    return Bed(tmp_path)


def written(at: int, content: bytes) -> Callable[[Bed], None]:
    return lambda bed: bed.put(at, content)


def copied(bed: Bed) -> None:
    """The same bytes in a file of another inode."""
    shutil.copy(bed.file, bed.directory / "copy")
    (bed.directory / "copy").rename(bed.file)


def uuid_at(place: int) -> int:
    return V1["uuids"] + 96 * place


LEFT_ALONE = {
    "as it was made": lambda bed: None,
    "counted in": written(V1["slots"] + 8, b"\1" * 40),
    "a GPU more": lambda bed: (  # as a process notes one that it sees but was not granted
        bed.put(uuid_at(2), b"GPU-c"),
        bed.put(V1["device_count"], struct.pack("<Q", 3)),
    ),
    "limits raised by a tenant": written(V1["limit_bytes"], b"\xff" * 8),
}


@pytest.mark.parametrize("happens", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_may_happen_to_it(bed: Bed, happens: Callable[[Bed], object]) -> None:
    happens(bed)
    region = bed.read().region
    assert region is not None
    assert [len(process.used) for process in region.processes] == [2]
    assert bed.problem() == ""


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda bed: bed.file.unlink(), Rejected.REMOVED, id="unlinked"),
        pytest.param(lambda bed: bed.file.rename(bed.directory / "y"), Rejected.REMOVED, id="renamed"),
        pytest.param(written(0, b"\0" * 4), Rejected.WIPED, id="magic 0"),
        pytest.param(lambda bed: os.truncate(bed.file, 0), Rejected.WIPED, id="no bytes"),
        pytest.param(copied, Rejected.EXCHANGED, id="a copy of it"),
        pytest.param(written(TAIL_OFFSET + TAIL["id"], b"\0"), Rejected.EXCHANGED, id="another id"),
        pytest.param(written(TAIL_OFFSET, b"\0" * 4), Rejected.EXCHANGED, id="without our part"),
        pytest.param(
            written(V1["device_count"], b"\0" * 8), Rejected.GPU_MISSING, id="device count 0"
        ),
        pytest.param(written(V1["device_count"], b"\1"), Rejected.GPU_MISSING, id="one GPU fewer"),
        pytest.param(written(uuid_at(1) + 4, b"\0"), Rejected.GPU_MISSING, id="a GPU's name cut"),
        pytest.param(written(uuid_at(0) + 4, b"\xff"), Rejected.GPU_MISSING, id="another GPU's name"),
    ],
)  # fmt: skip
def test_what_a_container_may_do_to_it_is_said(
    bed: Bed, spoil: Callable[[Bed], None], reason: Rejected
) -> None:
    spoil(bed)
    reading = bed.read()
    assert (reading.rejected, reading.region) == (reason, None)
    assert reading.problem
    assert bed.problem()


UNKNOWN = {
    "no limits file": None,
    "an older agent's": GRANTED,  # inode 0
}


@pytest.mark.parametrize("limits", UNKNOWN.values(), ids=UNKNOWN)
def test_where_the_agent_made_none_it_may_be_missing(bed: Bed, limits: LimitsFile | None) -> None:
    bed.limits = limits
    assert expected_region(limits) == ANY
    bed.put(0, b"\0" * 4)
    assert (bed.read(), bed.problem()) == (RegionReading(), "")
    bed.file.unlink()
    assert (bed.read(), bed.problem()) == (RegionReading(), "")


def test_a_region_that_a_process_made_is_known_by_its_inode(bed: Bed) -> None:
    """An agent that found one keeps it; in which order it has which GPUs is not known."""
    assert bed.limits is not None
    bed.limits = replace(bed.limits, region_id=0)
    bed.put(TAIL_OFFSET + TAIL["id"], b"\0" * 8)
    bed.put(V1["device_count"], b"\0" * 8)
    assert bed.read().region is not None
    assert bed.problem() == ""
    copied(bed)
    assert bed.read().rejected is Rejected.EXCHANGED
    assert bed.problem()


def test_a_container_whose_directory_is_gone_has_removed_nothing(bed: Bed) -> None:
    """The node deletes it, not the container."""
    shutil.rmtree(bed.directory)
    assert bed.read() == RegionReading()


def test_no_more_places_are_read_than_were_granted(bed: Bed) -> None:
    bed.put(V1["device_count"], struct.pack("<Q", 16))
    assert bed.limits is not None
    region = bed.read().region
    assert region is not None
    assert len(region.devices) == 2
    assert [(len(one.used), len(one.sm_percent)) for one in region.processes] == [(2, 2)]
    whole = bed.read(ANY).region
    assert whole is not None
    assert len(whole.devices) == 16


def test_regions_are_read_one_by_one(bed: Bed) -> None:
    asked: list[int] = []

    def names() -> Iterator[RegionName]:
        for number in range(3):
            asked.append(number)
            yield RegionName(UID, "main", NAME)

    readings = bed.reader.read(names())
    for number in range(3):
        assert next(readings).region is not None
        assert asked == [*range(number + 1)]


def test_limits_that_cannot_be_read_are_the_nodes_problem(bed: Bed) -> None:
    def fails(uid: str, container: str) -> LimitsFile | None:
        raise NodeNotReady("the directory can be written by others: chmod it")

    bed.regions = HostRegions(bed.directory.parent.parent, fails)
    with pytest.raises(NodeNotReady):
        bed.problem()
