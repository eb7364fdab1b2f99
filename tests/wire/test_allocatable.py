"""Kubelet's list of all devices is read piece by piece, as if it were read as a whole."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from agent.adapters.allocatable import MAX_IDS, PIECE_BYTES, ids_in
from agent.wire import podresources_pb2 as pr


def answer(*devices: tuple[str, list[str]], cpus: int = 0) -> bytes:
    return pr.AllocatableResourcesResponse(
        devices=[
            pr.ContainerDevices(
                resource_name=resource,
                device_ids=ids,
                topology=pr.TopologyInfo(nodes=[pr.NUMANode(id=1)]),
            )
            for resource, ids in devices
        ],
        cpu_ids=range(cpus),
    ).SerializeToString()


def test_a_device_in_each_message_over_many_pieces() -> None:
    ids = [f"GPU-aaaaaaaa-0000-0000-0000-000000000000-{number}" for number in range(2000)]
    message = answer(*(("a/b", [one]) for one in ids), ("c/d", ["x", "y"]), cpus=300)
    assert len(message) > 3 * PIECE_BYTES
    assert ids_in(message) == {"a/b": tuple(sorted(ids)), "c/d": ("x", "y")}


def test_of_very_many_ids_some_are_enough() -> None:
    found = ids_in(answer(("a/b", [str(number) for number in range(2 * MAX_IDS)])))
    assert len(found["a/b"]) == MAX_IDS


def test_nothing_is_nothing() -> None:
    assert ids_in(b"") == {}


@given(st.lists(st.tuples(st.sampled_from(["a/b", "c/d"]), st.lists(st.text("xyz", min_size=1)))))
def test_any_list_is_read_as_the_real_decoder_reads_it(
    devices: list[tuple[str, list[str]]],
) -> None:
    wanted: dict[str, set[str]] = {}
    for resource, ids in devices:
        wanted.setdefault(resource, set()).update(ids)
    assert ids_in(answer(*devices)) == {name: tuple(sorted(ids)) for name, ids in wanted.items()}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(answer(("a/b", ["x"]))[:-1], id="cut short"),
        pytest.param(b"\x0a", id="no length"),
        pytest.param(b"\x0b", id="a kind that is none"),
        pytest.param(b"\xff" * 20, id="a number without end"),
    ],
)
def test_what_is_none_is_an_error(message: bytes) -> None:
    with pytest.raises(DecodeError):
        ids_in(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        ids_in(message)
    except DecodeError:
        return
