"""What the agent writes into a usage region, and when it writes one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain import region as reader
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.new_region import (
    HEAD,
    TAIL_HEAD_BYTES,
    RegionMark,
    SeenRegion,
    kept_region,
    mark_of,
    new_region,
)
from tests.unit.test_limits_file import files

GPU = "GPU-00000000-0000-4000-8000-00000000000A"
ID = 0xFEDCBA9876543210


def whole(limits: LimitsFile, region_id: int = ID) -> bytes:
    content = bytearray(reader.FILE_BYTES)
    for piece in new_region(limits, region_id=region_id, now_s=1_700_000_000):
        content[piece.offset : piece.offset + len(piece.content)] = piece.content
    return bytes(content)


def seen(content: bytes, inode: int = 5) -> SeenRegion:
    """As the host's caches look at a file."""
    at = reader.TAIL_OFFSET
    return SeenRegion(
        inode=inode, head=content[: HEAD.size], tail=content[at : at + TAIL_HEAD_BYTES]
    )


GOOD = whole(LimitsFile(devices=(DeviceLimit(uuid=GPU, memory_limit_bytes=3 << 30,
                                             core_permille=305),)))  # fmt: skip


def test_a_reader_finds_it_empty_and_in_order_and_nobody_active() -> None:
    region = reader.decode(GOOD)
    (device,) = region.devices
    assert (device.uuid, device.limit_bytes, device.core_percent) == (
        GPU[:4] + GPU[4:].lower(),
        3 << 30,
        31,
    )
    assert device.counters is not None
    assert (device.counters.used_bytes, device.counters.peak_bytes) == (0, 0)
    assert (region.major, region.minor, region.processes, region.refusals) == (1, 2, (), ())
    assert (region.utilisation_switch, region.recent_kernel, region.priority) == (1, 0, 1)
    assert region.last_kernel_time_s == 1_700_000_000


@given(limits=files, region_id=st.integers(1, 2**64 - 1))
def test_every_containers_region_is_read_back(limits: LimitsFile, region_id: int) -> None:
    content = whole(limits, region_id)
    region = reader.decode(content)
    assert [device.uuid for device in region.devices] == [d.uuid for d in limits.devices]
    assert [d.limit_bytes for d in region.devices] == [d.memory_limit_bytes for d in limits.devices]
    assert all(1 <= device.core_percent <= 100 for device in region.devices)
    assert mark_of(seen(content)) == RegionMark(5, region_id)


def changed(at: int, value: int) -> bytes:
    content = bytearray(GOOD)
    struct.pack_into("<I", content, at, value)
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(GOOD[: reader.V1_BYTES + 1], id="as long as HAMi-core's"),
        pytest.param(GOOD[: reader.TAIL_OFFSET + TAIL_HEAD_BYTES - 1], id="cut short"),
        pytest.param(bytes(reader.FILE_BYTES), id="zeros"),
        pytest.param(changed(0, 7), id="no magic"),
        pytest.param(changed(4, 2), id="another major version"),
        pytest.param(changed(reader.TAIL_OFFSET, 7), id="no magic of ours"),
        pytest.param(changed(reader.TAIL_OFFSET + 4, 3), id="another version of ours"),
    ],
)
def test_what_no_hook_of_this_version_can_count_in_has_no_mark(content: bytes) -> None:
    assert mark_of(seen(content)) == RegionMark()


OURS, NONE = RegionMark(5, ID), RegionMark()


@pytest.mark.parametrize(
    ("there", "before", "kept"),
    [
        pytest.param(None, NONE, None, id="nothing yet: made"),
        pytest.param(None, OURS, None, id="deleted: made anew"),
        pytest.param(seen(GOOD), OURS, OURS, id="ours: kept"),
        pytest.param(seen(GOOD), NONE, OURS, id="ours, but not in the limits yet: kept"),
        pytest.param(seen(GOOD, inode=6), OURS, None, id="a copy of it: made anew"),
        pytest.param(seen(whole(LimitsFile(devices=()), 7)), OURS, None, id="another id: made anew"),
        pytest.param(seen(bytes(reader.FILE_BYTES)), OURS, None, id="zeros: made anew"),
        pytest.param(seen(b""), OURS, None, id="emptied: made anew"),
        pytest.param(seen(whole(LimitsFile(devices=()), 0)), NONE, RegionMark(5, 0), id="a hook's: kept"),
        pytest.param(SeenRegion(inode=9), NONE, NONE, id="no region, perhaps of a hook: left to it"),
    ],
)  # fmt: skip
def test_what_may_be_in_use_is_kept(
    there: SeenRegion | None, before: RegionMark, kept: RegionMark | None
) -> None:
    assert kept_region(there, before) == kept
