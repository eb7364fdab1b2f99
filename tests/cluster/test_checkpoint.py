"""Kubelet's checkpoint, in each shape it has had; whatever else is in the file is one error."""

import base64
import json
from typing import Any

import pytest
from cluster.checkpoint import CheckpointUnreadable, given_to, read_assignments
from cluster.node_under_test import ContainerView
from hypothesis import given
from hypothesis import strategies as st

from agent.wire import deviceplugin_pb2 as dp

POD = "bf52b2cd-b611-4e79-86b1-280b283185c3"
ANSWER = dp.ContainerAllocateResponse(
    envs={"THINGS": "d1"},
    mounts=[dp.Mount(container_path="/thing", host_path="/dev/null", read_only=True)],
    devices=[
        dp.DeviceSpec(container_path="/dev/thing", host_path="/dev/null", permissions="rw"),
    ],
    annotations={"example.com/things": "1"},
)


def entry(**changes: Any) -> dict[str, Any]:
    answer = changes.pop("answer", ANSWER)
    return {
        "PodUID": POD,
        "ContainerName": "main",
        "ResourceName": "example.com/thing",
        "DeviceIDs": {"-1": ["d1"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    } | changes


def checkpoint(*entries: Any, **more: Any) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {"example.com/thing": ["d1"]}}
    return json.dumps({"Data": data, "Checksum": 3660592824} | more).encode()


@pytest.mark.parametrize(
    ("device_ids", "more", "expected"),
    [
        pytest.param(["d2", "d1"], {}, ("d1", "d2"), id="a list, up to 1.19"),
        pytest.param({"-1": ["d2", "d1"]}, {}, ("d1", "d2"), id="without NUMA, from 1.20"),
        pytest.param({"1": ["d1"], "0": ["d2"]}, {}, ("d1", "d2"), id="by NUMA node"),
        pytest.param({"0": None}, {}, (), id="an empty slice"),
        pytest.param(None, {}, (), id="no map"),
        pytest.param({"0": ["d1"]}, {"BootID": "4e1a"}, ("d1",), id="with the newest's boot"),
    ],
)
def test_each_shape_is_read(device_ids: Any, more: Any, expected: tuple[str, ...]) -> None:
    (found,) = read_assignments(checkpoint(entry(DeviceIDs=device_ids), **more))
    assert (found.pod_uid, found.container, found.resource) == (POD, "main", "example.com/thing")
    assert found.device_ids == expected
    assert found.given == ContainerView(
        env=(("THINGS", "d1"),),
        mounts=(("/thing", "/dev/null", True),),
        devices=(("/dev/thing", "/dev/null", "rw"),),
        annotations={"example.com/things": "1"},
    )


def test_an_entry_that_others_have_seen_is_read() -> None:
    """The answer of NVIDIA's plugin to a pod on a Jetson, as a kubelet has written it."""
    found = entry(AllocResp="Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh")
    (assignment,) = read_assignments(checkpoint(found))
    assert assignment.given.env == (("NVIDIA_VISIBLE_DEVICES", "tegra"),)


@pytest.mark.parametrize("none", [[], None], ids=["a list", "null"])
def test_a_kubelet_that_has_given_nothing(none: Any) -> None:
    assert read_assignments(json.dumps({"Data": {"PodDeviceEntries": none}}).encode()) == ()


def test_what_a_container_has_is_put_together_from_all_resources() -> None:
    second = dp.ContainerAllocateResponse(envs={"THINGS": "other", "MORE": "1"})
    books = read_assignments(
        checkpoint(
            entry(),
            entry(ResourceName="example.com/second", answer=second),
            entry(ContainerName="beside", answer=second),
        )
    )
    given = given_to(books, POD, "main")
    assert dict(given.env) == {"THINGS": "d1", "MORE": "1"}
    assert given.mounts == (("/thing", "/dev/null", True),)
    assert given_to(books, POD, "none") == ContainerView(env=())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(checkpoint(entry())[:-40], id="cut off"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="not a text"),
        pytest.param(b"[" * 100_000, id="very deep"),
        pytest.param(b"1" * 100_000, id="very long number"),
        pytest.param(b"{}", id="no data"),
        pytest.param(checkpoint("entry"), id="an entry is a text"),
        pytest.param(checkpoint({"PodUID": POD}), id="an entry has no fields"),
        pytest.param(checkpoint(entry(PodUID=1)), id="a name is a number"),
        pytest.param(checkpoint(entry(DeviceIDs="d1")), id="ids are a text"),
        pytest.param(checkpoint(entry(DeviceIDs={"0": [1]})), id="an id is a number"),
        pytest.param(checkpoint(entry(AllocResp="!")), id="not base64"),
        pytest.param(checkpoint(entry(AllocResp="/////w==")), id="not a message"),
    ],
)
def test_anything_else_is_one_error(content: bytes) -> None:
    with pytest.raises(CheckpointUnreadable):
        read_assignments(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
changed_entries = st.fixed_dictionaries({}, optional=dict.fromkeys(entry(), json_values)).map(
    lambda changes: entry() | changes
)


@given(
    st.binary() | st.lists(changed_entries | json_values, max_size=3).map(lambda e: checkpoint(*e))
)
def test_it_is_total(content: bytes) -> None:
    try:
        found = read_assignments(content)
    except CheckpointUnreadable:
        return
    assert all(isinstance(given_to(found, a.pod_uid, a.container), ContainerView) for a in found)
