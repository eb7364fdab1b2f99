"""The lines of a limits file as bytes, and the record of what was changed: total and bounded."""

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.limit_lines import (
    LONGEST_LEASE_NS,
    changes_only_lines,
    fixed_part,
    limits_in,
    line_at,
    sequences,
    whole,
    with_limits,
    without_stale_leases,
)
from agent.domain.limit_record import (
    LimitRecord,
    MalformedRecord,
    SetLimit,
    decode_record,
    encode_record,
)
from agent.domain.limits_file import (
    CorePolicy,
    DeviceLimit,
    LimitsFile,
    MalformedLimits,
    decode,
    encode,
)

A, B = (f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "ab")
FILE = LimitsFile(
    devices=(
        DeviceLimit(uuid=A, memory_limit_bytes=1 << 30, core_permille=300),
        DeviceLimit(uuid=B, oversubscribe=True),
    ),
    cache_path="/x",
    region_inode=1,
    region_id=2,
)
LEASED = replace(
    FILE,
    alive_at_ns=9,
    devices=(
        replace(FILE.devices[0], lent_permille=50, lent_until_ns=70, blocked_until_ns=80),
        FILE.devices[1],
    ),
)


def half_written(content: bytes, *places: int) -> bytes:
    raw = bytearray(content)
    for place in places:
        raw[line_at(place)] |= 1
    return bytes(raw)


def test_what_nobody_finished_keeps_its_limits_and_loses_its_leases() -> None:
    torn = half_written(encode(LEASED), 0)
    with pytest.raises(MalformedLimits, match="half written"):
        decode(torn)
    mended = whole(torn)
    assert decode(mended) == replace(LEASED, devices=FILE.devices)
    assert sequences(mended)[:2] == (2, 0)
    assert whole(encode(LEASED)) == encode(LEASED)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param(LEASED, True, id="leases and heartbeat"),
        pytest.param(
            with_limits(FILE, {A: SetLimit(uuid=A, memory_limit_bytes=5, core_permille=6)}),
            True,
            id="limits",
        ),
        pytest.param(replace(FILE, cache_path="/y"), False, id="another region's path"),
        pytest.param(replace(FILE, region_inode=7), False, id="another region"),
        pytest.param(replace(FILE, core_policy=CorePolicy.DISABLE), False, id="policy"),
        pytest.param(replace(FILE, devices=FILE.devices[:1]), False, id="fewer devices"),
        pytest.param(replace(FILE, devices=FILE.devices[::-1]), False, id="another order"),
        pytest.param(
            replace(FILE, devices=(replace(FILE.devices[0], oversubscribe=True), FILE.devices[1])),
            False,
            id="oversubscription",
        ),
    ],
)
def test_whether_it_is_the_file_of_the_same_container(other: LimitsFile, same: bool) -> None:
    assert (fixed_part(encode(other)) == fixed_part(encode(FILE))) is same
    assert changes_only_lines(FILE, other) is same
    assert fixed_part(half_written(encode(FILE), 1)) == fixed_part(encode(FILE))


@given(st.binary(max_size=64), st.integers(0, 4200))
def test_any_bytes_are_taken(piece: bytes, length: int) -> None:
    content = (piece * 80)[:length]
    assert len(whole(content)) == len(content)
    assert fixed_part(fixed_part(content)) == fixed_part(content)
    if len(content) >= 4096:
        assert all(sequence % 2 == 0 for sequence in sequences(whole(content)))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16))
def test_a_mended_sequence_is_even_and_another_one(numbers: list[int]) -> None:
    raw = bytearray(encode(FILE))
    for place, number in enumerate(numbers):
        struct.pack_into("<I", raw, line_at(place), number)
    for before, after in zip(numbers, sequences(whole(bytes(raw))), strict=True):
        assert after % 2 == 0
        assert (after == before) is (before % 2 == 0)


def test_leases_of_another_boot_are_those_that_nobody_gives() -> None:
    late = LEASED.devices[0].blocked_until_ns
    assert without_stale_leases(LEASED, now_ns=late - LONGEST_LEASE_NS) == LEASED
    found = without_stale_leases(LEASED, now_ns=late - LONGEST_LEASE_NS - 1)
    assert found.devices[0].blocked_until_ns == 0
    assert found.devices[0].lent_permille == 50


# --- the record -----------------------------------------------------------------------------------

LIMITS = st.lists(
    st.builds(
        SetLimit,
        uuid=st.text(max_size=50),
        memory_limit_bytes=st.integers(0, 2**64 - 1),
        core_permille=st.integers(0, 1000),
    ),
    max_size=16,
).map(tuple)


@given(
    st.builds(
        LimitRecord,
        limits=LIMITS,
        ceiling=LIMITS,
        annotation=st.text(max_size=80),
        source=st.text(max_size=10),
        largest=st.lists(
            st.tuples(st.text(max_size=50), st.integers(0, 2**64 - 1)), max_size=16
        ).map(tuple),
        strangers=st.text(max_size=80),
    )
)
def test_a_record_is_read_back_as_it_was(record: LimitRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"limits": [{}]}, id="empty limit"),
        pytest.param({"limits": [{"uuid": A, "memory_limit_bytes": -1, "core_permille": 0}]}, id="negative"),
        pytest.param({"limits": [{"uuid": A, "memory_limit_bytes": 1.0, "core_permille": 0}]}, id="float"),
        pytest.param({"limits": [{"uuid": A, "memory_limit_bytes": True, "core_permille": 0}]}, id="true"),
        pytest.param({"limits": [{"uuid": A, "memory_limit_bytes": 0, "core_permille": 1001}]}, id="share"),
        pytest.param({"limits": [{"uuid": A, "memory_limit_bytes": 2**64, "core_permille": 0}]}, id="large"),
        pytest.param({"ceiling": {}}, id="object"),
        pytest.param({"annotation": None}, id="no text"),
        pytest.param({"source": "x" * 5000}, id="long text"),
        pytest.param({"largest": {}}, id="largest: object"),
        pytest.param({"largest": [[A, -1]]}, id="largest: negative"),
        pytest.param({"largest": [[A]]}, id="largest: no pair"),
        pytest.param({"largest": [[A, 1]] * 17}, id="largest: too many"),
        pytest.param({"strangers": None}, id="strangers: no text"),
    ],
)  # fmt: skip
def test_a_record_that_is_none(change: dict[str, Any]) -> None:
    value = {**json.loads(encode_record(LimitRecord(limits=()))), **change}
    with pytest.raises(MalformedRecord):
        decode_record(json.dumps(value).encode())


@given(st.binary(max_size=100))
def test_any_bytes_are_a_record_or_none(content: bytes) -> None:
    try:
        assert isinstance(decode_record(content), LimitRecord)
    except MalformedRecord as error:
        assert str(error)  # noqa: PT017 - bytes that are a record do not raise


def test_a_record_of_an_earlier_release_says_nothing_of_what_came_later() -> None:
    value = json.loads(encode_record(LimitRecord(source="socket")))
    del value["largest"]
    del value["strangers"]
    assert decode_record(json.dumps(value).encode()) == LimitRecord(source="socket")


def test_a_record_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    value = json.loads(encode_record(LimitRecord(source="socket", annotation="a")))
    content = json.dumps({**value, "later": [1]}).encode()
    assert decode_record(content) == LimitRecord(source="socket", annotation="a")


def test_the_largest_limit_is_the_largest_that_ever_held_and_none_is_larger() -> None:
    def limit(memory: int) -> SetLimit:
        return SetLimit(uuid=A, memory_limit_bytes=memory, core_permille=0)

    record = LimitRecord().having_held([limit(5)]).having_held([limit(9)]).having_held([limit(7)])
    assert record.largest == ((A, 9),)
    assert record.having_held([limit(0)]).having_held([limit(20)]).largest == ((A, 0),)


def test_limits_by_uuid() -> None:
    assert limits_in(FILE)[A] == SetLimit(uuid=A, memory_limit_bytes=1 << 30, core_permille=300)
    assert with_limits(FILE, limits_in(FILE)) == FILE
    assert with_limits(FILE, {}) == FILE
