"""What the agent writes for the hook: every value comes back, and no other bytes are believed."""

import contextlib
import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.grants import Claim
from agent.domain.limits_file import (
    FILE_BYTES,
    CorePolicy,
    DeviceLimit,
    LimitsFile,
    MalformedLimits,
    decode,
    encode,
    limits_of,
)

A = "GPU-00000000-0000-4000-8000-00000000000a"
B = "GPU-00000000-0000-4000-8000-00000000000b"
MIG = "MIG-00000000-0000-4000-8000-00000000000c"
PATH = "/usr/local/vgpu/x.cache"
GIB = 1 << 30

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
devices = st.builds(
    DeviceLimit,
    uuid=st.builds(lambda kind, value: f"{kind}-{value}", st.sampled_from(["GPU", "MIG"]), st.uuids()),
    memory_limit_bytes=u64,
    core_permille=u32,
    oversubscribe=st.booleans(),
    lent_permille=u32,
    lent_until_ns=u64,
    blocked_until_ns=u64,
)  # fmt: skip
files = st.builds(
    LimitsFile,
    devices=st.lists(devices, min_size=1, max_size=16).map(tuple),
    core_policy=st.sampled_from(CorePolicy),
    cache_path=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=255),
    alive_at_ns=u64,
    region_inode=u64,
    region_id=u64,
)


@given(files)
def test_every_value_comes_back(limits: LimitsFile) -> None:
    content = encode(limits)
    assert (len(content), decode(content)) == (FILE_BYTES, limits)


@given(st.binary(max_size=FILE_BYTES + 64))
def test_no_bytes_raise_anything_but_malformed(content: bytes) -> None:
    header = encode(LimitsFile(devices=(DeviceLimit(uuid=A),)))[:32]
    for candidate in (content, (header + content).ljust(FILE_BYTES, b"\xff")):
        with contextlib.suppress(MalformedLimits):
            assert decode(candidate).devices


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda file: file[:-1], "4095 bytes", id="a byte short"),
        pytest.param(lambda file: b"\0" + file[1:], "magic", id="another magic"),
        pytest.param(lambda file: file[:4] + b"\2" + file[5:], "version 2", id="another version"),
        pytest.param(lambda file: file[:8] + b"\0" + file[9:], "0 devices", id="no device"),
        pytest.param(lambda file: file[:8] + b"\x11" + file[9:], "17 devices", id="too many"),
        pytest.param(lambda file: file[:12] + b"\3" + file[13:], "core policy 3", id="policy"),
        pytest.param(lambda file: file[:64] + b"\1" + file[65:], "half written", id="odd line"),
        pytest.param(lambda file: file[:1088] + b"\xff" + file[1089:], "UTF-8", id="path"),
    ],
)
def test_what_is_wrong_is_said(change: object, says: str) -> None:
    good = encode(LimitsFile(devices=(DeviceLimit(uuid=A),), cache_path=PATH))
    assert callable(change)
    with pytest.raises(MalformedLimits, match=says):
        decode(change(good))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        pytest.param(LimitsFile(devices=()), "0 devices", id="no device"),
        pytest.param(LimitsFile(devices=(DeviceLimit(uuid=A),) * 17), "17 devices", id="too many"),
        pytest.param(LimitsFile(devices=(DeviceLimit(uuid="GPU-1"),)), "GPU-1", id="no uuid"),
        pytest.param(
            LimitsFile(devices=(DeviceLimit(uuid=A, memory_limit_bytes=-1),)), "fit", id="negative"
        ),
        pytest.param(
            LimitsFile(devices=(DeviceLimit(uuid=A),), cache_path="/" + "x" * 255),
            "255 bytes",
            id="long path",
        ),
    ],
)
def test_what_the_layout_cannot_say_is_refused(limits: LimitsFile, says: str) -> None:
    with pytest.raises(MalformedLimits, match=says):
        encode(limits)


def claim(uuid: str, memory_mib: int, core_percent: int) -> Claim:
    return Claim(uuid=uuid, vendor="NVIDIA", memory_mib=memory_mib, core_percent=core_percent)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param([claim(A, 1024, 30)], [(A, GIB, 300)], id="one GPU"),
        pytest.param(
            [claim(B, 1024, 30), claim(A, 2048, 100)], [(B, GIB, 300), (A, 2 * GIB, 1000)], id="two"
        ),
        pytest.param([claim(A, 1024, 30)] * 2, [(A, 2 * GIB, 600)], id="twice the same adds up"),
        pytest.param([claim(A, 1024, 60)] * 2, [(A, 2 * GIB, 1000)], id="at most the whole GPU"),
        pytest.param(
            [claim(A, 1024, 0), claim(A, 0, 30)], [(A, 0, 0)], id="no limit wins over a limit"
        ),
        pytest.param([claim(MIG, 512, 0)], [(MIG, GIB // 2, 0)], id="a MIG device"),
        pytest.param([claim(A, 2**60, 0)], [(A, 2**64 - 1, 0)], id="more than fits"),
    ],
)
def test_claims_become_lines(claims: list[Claim], expected: list[tuple[str, int, int]]) -> None:
    limits = limits_of(claims, cache_path=PATH)
    assert limits is not None
    assert decode(encode(limits)) == limits
    assert [(d.uuid, d.memory_limit_bytes, d.core_permille) for d in limits.devices] == expected


@pytest.mark.parametrize(
    ("claims", "path"),
    [
        pytest.param([claim("GPU-1", 1, 1)], PATH, id="an id that is no uuid"),
        pytest.param([claim(A[4:], 1, 1)], PATH, id="no kind"),
        pytest.param([claim("GPU-" + "0" * 32, 1, 1)], PATH, id="a uuid written otherwise"),
        pytest.param(
            [claim(f"GPU-00000000-0000-4000-8000-0000000000{i:02x}", 1, 1) for i in range(17)],
            PATH,
            id="17 GPUs",
        ),
        pytest.param([claim(A, 1, 1)], "/" + "x" * 255, id="a long path"),
    ],
)
def test_what_the_file_cannot_say_is_left_to_the_environment(
    claims: list[Claim], path: str
) -> None:
    assert limits_of(claims, cache_path=path) is None


def test_the_offsets_are_those_of_the_c_side() -> None:
    """hook/limits_layout.h pins the same numbers by static asserts."""
    content = encode(
        LimitsFile(
            devices=(DeviceLimit(uuid=A), DeviceLimit(uuid=B, memory_limit_bytes=7,
                                                      blocked_until_ns=9)),
            cache_path=PATH,
            alive_at_ns=5,
            region_inode=6,
            region_id=8,
        )
    )  # fmt: skip
    second = 64 + 64
    assert struct.unpack_from("<QQQ", content, 16) == (5, 6, 8)
    assert struct.unpack_from("<Q", content, second + 24) == (7,)
    assert struct.unpack_from("<Q", content, second + 48) == (9,)
    assert ctypes.string_at(content[1088:]) == PATH.encode()
