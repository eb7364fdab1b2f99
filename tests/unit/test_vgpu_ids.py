"""vGPU ids, and the size of the list that kubelet must be able to read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sick_gpus import with_health

from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.vgpu_ids import (
    MAX_LIST_BYTES,
    Vgpu,
    advertised,
    judge_list,
    list_bytes,
    parse_vgpu_id,
    vgpu_id,
)
from agent.wire import deviceplugin_pb2 as dp

UUID = "GPU-8f1b2c3d-0000-1111-2222-123456789012"
MIG = "MIG-8f1b2c3d-0000-1111-2222-123456789012"


def inventory(count: int, *, numa_node: int | None = None, sick: str = "") -> GpuInventory:
    return GpuInventory.of(
        Gpu(
            uuid=f"GPU-8f1b2c3d-0000-1111-2222-{i:012}",
            index=i,
            name="NVIDIA A40",
            memory_mib=46_068,
            numa_node=numa_node,
            unhealthy_reason=sick,
        )
        for i in range(count)
    )


def encoded(vgpus: tuple[Vgpu, ...]) -> bytes:
    """What protobuf makes of the list: the oracle for our arithmetic."""
    message = dp.ListAndWatchResponse()
    for vgpu in vgpus:
        device = message.devices.add(
            id=vgpu.device_id, health="Healthy" if vgpu.healthy else "Unhealthy"
        )
        if vgpu.numa_node is not None:
            device.topology.nodes.add(id=vgpu.numa_node)
    return message.SerializeToString()


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_id", "parsed"),
    [
        pytest.param(f"{UUID}-0", (UUID, 0), id="HAMi"),
        pytest.param(f"{UUID}-17", (UUID, 17), id="two digits"),
        pytest.param(f"{UUID}::3", (UUID, 3), id="NVIDIA time-slicing"),
        pytest.param(f"{MIG}-2", (MIG, 2), id="MIG device"),
        pytest.param("a-1", ("a", 1), id="short"),
        pytest.param(UUID, None, id="a bare uuid whose last part is a number"),
        pytest.param(f"{UUID}-01", None, id="leading zero"),
        pytest.param(f"{UUID}-", None, id="no slot"),
        pytest.param(f"{UUID}--1", (f"{UUID}-", 1), id="odd uuid"),
        pytest.param("-1", None, id="no uuid"),
        pytest.param("::1", None, id="no uuid, NVIDIA"),
        pytest.param("", None, id="empty"),
        pytest.param(f"{UUID}-1\n", None, id="newline"),
        pytest.param(f"{UUID}-٣", None, id="a digit that is not ASCII"),
        pytest.param(f"{UUID}::1::2", None, id="two separators"),
        pytest.param("x" * 62 + "-1", None, id="64 characters"),
        pytest.param("../../etc-1", ("../../etc", 1), id="a path is just an unknown GPU"),
    ],
)
def test_ids_are_read(device_id: str, parsed: tuple[str, int] | None) -> None:
    assert parse_vgpu_id(device_id) == parsed


@given(st.text(max_size=80))
def test_reading_an_id_is_total(text: str) -> None:
    parsed = parse_vgpu_id(text)
    assert parsed is None or text in {f"{parsed[0]}-{parsed[1]}", f"{parsed[0]}::{parsed[1]}"}


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=56),
    st.integers(0, 999_999),
)
def test_a_name_is_read_back_or_refused(uuid: str, slot: int) -> None:
    if "::" in f"{uuid}-{slot}":
        with pytest.raises(ValueError, match="cannot be a device id"):
            vgpu_id(uuid, slot)
    else:
        assert parse_vgpu_id(vgpu_id(uuid, slot)) == (uuid, slot)


@pytest.mark.parametrize(
    ("uuid", "slot"),
    [
        pytest.param("x" * 62, 0, id="too long"),
        pytest.param("", 0, id="empty"),
        pytest.param("GPU ü", 0, id="not ASCII"),
        pytest.param("GPU-a", -1, id="negative slot"),
        pytest.param("GPU-a", 1_000_000, id="slot of seven digits"),
    ],
)
def test_impossible_names_are_refused(uuid: str, slot: int) -> None:
    with pytest.raises(ValueError, match="cannot be a device id"):
        vgpu_id(uuid, slot)


# --- what is advertised ------------------------------------------------------------------------


def test_a_gpus_health_is_that_of_all_its_vgpus() -> None:
    both = with_health(inventory(2), "GPU-8f1b2c3d-0000-1111-2222-000000000001", "XID 79")

    vgpus = advertised(both, Sharing(split_count=3))

    assert [v.healthy for v in vgpus] == [True] * 3 + [False] * 3
    assert [v.device_id[-2:] for v in vgpus] == ["-0", "-1", "-2"] * 2


@pytest.mark.parametrize(
    ("hints", "expected"),
    [pytest.param(True, 1, id="hints on"), pytest.param(False, None, id="hints off")],
)
def test_numa_hints_are_opt_in(hints: bool, expected: int | None) -> None:
    [vgpu] = advertised(inventory(1, numa_node=1), Sharing(split_count=1, numa_hints=hints))
    assert vgpu.numa_node == expected


def test_filtered_and_unnameable_gpus_are_left_out() -> None:
    odd = Gpu(uuid="GPU with blanks", index=9, name="x", memory_mib=1)
    gpus = GpuInventory.of((*inventory(2).gpus, odd))
    sharing = Sharing(split_count=1, excluded_indices=frozenset({0}))

    assert [v.device_id for v in advertised(gpus, sharing)] == [
        "GPU-8f1b2c3d-0000-1111-2222-000000000001-0"
    ]
    assert "GPU with blanks" in judge_list(gpus, sharing).refusal


def test_a_list_that_would_break_the_stream_is_cut_evenly() -> None:
    node, sharing = inventory(2), Sharing(split_count=65_536)

    vgpus = advertised(node, sharing)

    assert len(vgpus) == 2 * judge_list(node, sharing).largest_split_count
    assert list_bytes(vgpus) <= MAX_LIST_BYTES


# --- the size of the list ----------------------------------------------------------------------


@given(
    st.lists(
        st.builds(
            Vgpu,
            st.text(max_size=200),
            st.booleans(),
            st.none() | st.integers(-1, 300),
        ),
        max_size=20,
    )
)
def test_size_is_protobufs_size_to_the_byte(vgpus: list[Vgpu]) -> None:
    assert list_bytes(vgpus) == len(encoded(tuple(vgpus)))


@given(st.integers(0, 4), st.integers(0, 1234), st.none() | st.integers(0, 9), st.booleans())
def test_verdict_counts_the_message_of_a_sick_node(
    gpus: int, split_count: int, numa_node: int | None, hints: bool
) -> None:
    sick = inventory(gpus, numa_node=numa_node, sick="XID 79")
    sharing = Sharing(split_count=split_count, numa_hints=hints)

    verdict = judge_list(sick, sharing)

    assert verdict.vgpus == gpus * split_count
    assert verdict.encoded_bytes == len(encoded(advertised(sick, sharing)))


@pytest.mark.parametrize(
    ("gpus", "split_count", "refused", "warned"),
    [
        pytest.param(0, 10, False, False, id="no GPU"),
        pytest.param(8, 10, False, False, id="eight GPUs, default"),
        pytest.param(10, 100, False, False, id="exactly 1,000"),
        pytest.param(16, 100, False, True, id="16 x 100 works but is slow"),
        pytest.param(1, 50_000, False, True, id="50,000 of one GPU fit"),
        pytest.param(1, 80_000, True, False, id="80,000 of one GPU do not"),
        pytest.param(8, 143_771, True, False, id="one vGPU per MiB of eight H20"),
    ],
)
def test_long_lists_are_warned_about_and_refused(
    gpus: int, split_count: int, refused: bool, warned: bool
) -> None:
    verdict = judge_list(inventory(gpus), Sharing(split_count=split_count))
    assert (bool(verdict.refusal), bool(verdict.warning)) == (refused, warned)


@pytest.mark.parametrize("gpus", [1, 3, 16])
@pytest.mark.parametrize("hints", [True, False])
def test_refusal_names_the_largest_setting_that_works(gpus: int, hints: bool) -> None:
    node = inventory(gpus, numa_node=1)
    refused = judge_list(node, Sharing(split_count=200_000, numa_hints=hints))
    largest = refused.largest_split_count

    assert f"set the split count to {largest} or less" in refused.refusal
    fits = judge_list(node, Sharing(split_count=largest, numa_hints=hints))
    assert fits.refusal == ""
    assert fits.encoded_bytes <= MAX_LIST_BYTES
    assert judge_list(node, Sharing(split_count=largest + 1, numa_hints=hints)).refusal != ""
