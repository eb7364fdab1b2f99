"""Reading usage regions: the layouts that exist, and any other bytes."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.domain.region import (
    MAGIC,
    MAX_DEVICES,
    MAX_PROCESSES,
    MAX_REFUSALS,
    TAIL,
    TAIL_BYTES,
    TAIL_MAGIC,
    TAIL_OFFSET,
    TAIL_VERSION,
    V0,
    V0_BYTES,
    V1,
    V1_BYTES,
    MalformedRegion,
    ProcessCounters,
    Region,
    Usage,
    decode,
)  # fmt: skip

GPU = "GPU-a1000000-0000-4000-8000-0000000000b2"


def region_v1(tail: bool = False, minor: int = 2) -> bytearray:
    """A region of one device and one process, 300 MiB of 1000."""
    raw = bytearray(TAIL_OFFSET + TAIL_BYTES if tail else V1_BYTES + 1)
    struct.pack_into("<iII", raw, 0, MAGIC, 1, minor)
    fill(raw, V1)
    struct.pack_into("<Q", raw, V1["last_kernel_time_s"], 1_700_000_000)
    if tail:
        struct.pack_into("<II", raw, TAIL_OFFSET, TAIL_MAGIC, TAIL_VERSION)
    return raw


def region_v0() -> bytearray:
    raw = bytearray(V0_BYTES + 1)
    struct.pack_into("<i", raw, 0, MAGIC)
    fill(raw, V0)
    return raw


def fill(raw: bytearray, at: dict[str, int] | object) -> None:
    layout = dict(at)  # type: ignore[call-overload]
    struct.pack_into("<Q", raw, layout["device_count"], 1)
    raw[layout["uuids"] : layout["uuids"] + len(GPU)] = GPU.encode()
    struct.pack_into("<Q", raw, layout["limit_bytes"], 1000 << 20)
    struct.pack_into("<Q", raw, layout["sm_percent"], 30)
    struct.pack_into("<iiii", raw, layout["slot_count"], 2, 1, -1, 0)
    second = layout["slots"] + layout["slot"]  # the first is a hole
    struct.pack_into("<ii", raw, second, 77, 4242)
    struct.pack_into("<5Q", raw, second + layout["slot.used"], 1, 2, 3, 0, 300 << 20)
    struct.pack_into("<i", raw, second + layout["slot.status"], 2)


@pytest.mark.parametrize(
    ("raw", "version", "time_s"),
    [
        pytest.param(region_v0(), (0, 0), 0, id="layout 0"),
        pytest.param(region_v1(minor=1), (1, 1), 1_700_000_000, id="1.1"),
        pytest.param(region_v1(), (1, 2), 1_700_000_000, id="1.2"),
        pytest.param(region_v1(tail=True), (1, 2), 1_700_000_000, id="1.2 with our part"),
    ],
)
def test_every_layout_says_the_same(raw: bytearray, version: tuple[int, int], time_s: int) -> None:
    region = decode(bytes(raw))
    assert (region.major, region.minor, region.last_kernel_time_s) == (*version, time_s)
    (device,) = region.devices
    assert (device.uuid, device.limit_bytes, device.core_percent) == (GPU, 1000 << 20, 30)
    (process,) = region.processes
    assert (process.pid, process.host_pid, process.status) == (77, 4242, 2)
    usage = Usage(context_bytes=1, module_bytes=2, data_bytes=3, total_bytes=300 << 20)
    assert process.used == (usage,)
    assert region.used_bytes(0) == 300 << 20
    assert (region.utilisation_switch, region.recent_kernel, region.priority) == (1, -1, 0)
    assert (device.counters is not None) == (len(raw) > TAIL_OFFSET)


def test_what_our_library_adds() -> None:
    raw = region_v1(tail=True)
    device = TAIL_OFFSET + TAIL["devices"]
    struct.pack_into("<7Q", raw, device, 0xABCD << 48 | 5, 6, 7, 8, 9, 10, 11)
    struct.pack_into("<qQ4Q", raw, device + TAIL["device.budget_ns"], -12, 13, 14, 15, 16, 17)
    struct.pack_into("<Q", raw, TAIL_OFFSET + TAIL["refusal_count"], 34)
    struct.pack_into("<Q", raw, TAIL_OFFSET + TAIL["asked_at_ns"], 35)
    ring = TAIL_OFFSET + TAIL["refusals"]
    for index, number in ((0, 33), (1, 34), (2, 0), (3, 1 << 63), (4, 1 << 63 | 35), (31, 32)):
        at = ring + index * TAIL["refusal"]
        struct.pack_into("<QQiiQQQQi4x32s", raw, at, number, 1, 2, 0, 3, 4, 5, 6, 7, b"cuMemAlloc")
    region = decode(bytes(raw))
    counters = region.devices[0].counters
    assert counters is not None
    assert (counters.used_bytes, counters.peak_bytes, counters.corrections) == (5, 6, 11)
    assert (counters.budget_ns, counters.charged_ns, counters.waits) == (-12, 14, 17)
    assert [refusal.number for refusal in region.refusals] == [32, 33, 34]
    newest = region.refusals[-1]
    assert (region.refusal_count, newest.function, newest.largest_pid) == (34, "cuMemAlloc", 7)
    assert region.asked_at_ns == 35


COUNTED = (ProcessCounters(peak_bytes=1, refusals=4, charged_ns=2, throttled_ns=3),)


@pytest.mark.parametrize(
    ("start_time", "since", "expected"),
    [
        pytest.param(99, 99, COUNTED, id="of this process"),
        pytest.param(99, 98, (), id="of another that had the slot before"),
        pytest.param(99, 0, (), id="of a library that does not count by process"),
        pytest.param(0, 0, (), id="HAMi-core's"),
    ],
)
def test_what_a_process_counted(
    start_time: int, since: int, expected: tuple[ProcessCounters, ...]
) -> None:
    raw = region_v1(tail=True)
    slot = V1["slots"] + V1["slot"]
    struct.pack_into("<Q", raw, slot + V1["slot.start_time"], start_time)
    struct.pack_into("<3Q", raw, slot + V1["slot.used"] + V1["usage.peak_bytes"], 1, 2, 3)
    refusals = slot + V1["slot.utilisation"] + V1["utilisation.refusals"]
    struct.pack_into("<2Q", raw, refusals, 4, since)
    assert [process.counters for process in decode(bytes(raw)).processes] == [expected]


@pytest.mark.parametrize(
    ("at", "value", "devices", "processes"),
    [
        pytest.param(V1["device_count"], b"\xff" * 8, MAX_DEVICES, 1, id="too many devices"),
        pytest.param(V1["slot_count"], b"\xff\xff\xff\x7f", 1, 1, id="too many processes"),
        pytest.param(V1["slot_count"], b"\xff" * 4, 1, 0, id="fewer than none"),
        pytest.param(V1["uuids"], b"\xff" * 96, 1, 1, id="a uuid that is no text"),
        pytest.param(TAIL_OFFSET, b"\0" * 8, 1, 1, id="a tail that is not ours"),
    ],
)
def test_what_a_tenant_may_write(at: int, value: bytes, devices: int, processes: int) -> None:
    raw = region_v1(tail=True)
    raw[at : at + len(value)] = value
    region = decode(bytes(raw))
    assert (len(region.devices), len(region.processes)) == (devices, processes)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(b"", "0 bytes", id="empty"),
        pytest.param(bytes(V0_BYTES - 1), "the shortest layout", id="too short"),
        pytest.param(bytes(V1_BYTES), "not made yet", id="not made yet"),
        pytest.param(struct.pack("<iII", MAGIC, 2, 0) + bytes(V1_BYTES), "version 2.0", id="of the future"),
    ],
)  # fmt: skip
def test_what_is_no_region_is_said(raw: bytes, why: str) -> None:
    with pytest.raises(MalformedRegion, match=why):
        decode(raw)


edits = st.lists(
    st.tuples(st.integers(0, TAIL_OFFSET + TAIL_BYTES - 1), st.binary(min_size=1, max_size=64)),
    max_size=12,
)
headers = st.sampled_from(
    [V1["device_count"], V1["slot_count"], V1["slots"], TAIL_OFFSET, TAIL_OFFSET + TAIL["refusals"]]
)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([V0_BYTES, V1_BYTES, TAIL_OFFSET + TAIL_BYTES]),
    scattered=edits,
    aimed=st.lists(st.tuples(headers, st.binary(min_size=1, max_size=64)), max_size=6),
)
def test_any_bytes_are_a_bounded_region_or_are_refused(
    size: int, scattered: list[tuple[int, bytes]], aimed: list[tuple[int, bytes]]
) -> None:
    raw = region_v1(tail=True)
    for at, change in scattered + aimed:
        raw[at : at + len(change)] = change
    try:
        region = decode(bytes(raw[:size]))
    except MalformedRegion:
        return
    assert isinstance(region, Region)
    assert len(region.devices) <= MAX_DEVICES
    assert len(region.processes) <= MAX_PROCESSES
    assert len(region.refusals) <= MAX_REFUSALS


@given(st.binary(max_size=200))
def test_short_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedRegion):
        decode(raw)
