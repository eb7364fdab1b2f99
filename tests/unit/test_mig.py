"""MIG by the rules: annotations that anybody may write, slots of geometries, what is offered."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.gpu import AllowedProfiles, Gpu, GpuInventory, MigPlacement, Sharing
from agent.domain.grants import Grant, Mount
from agent.domain.mig import (
    Geometries,
    Slot,
    arranged,
    decode_allowlist,
    decode_geometries,
    decode_slot,
    geometries_as_mapping,
    gpu_uuid_of,
    mig_uuids,
    profile_of_slot,
)
from agent.domain.mig_allocations import (
    INT32_MAX,
    MAX_CHARS,
    MigAllocation,
    MigIdentity,
    decode_allocations,
    encode_allocations,
)
from agent.domain.mig_books import MigHolding, decode_book, encode_book
from agent.domain.register import decode_register, encode_register, registered_gpus, says_the_same
from agent.domain.vgpu_ids import advertised
from agent.errors import MalformedAnnotation
from agent.sim.scheduler_wire import PROFILES
from agent.sim.scheduler_wire import decode_register as scheduler_reads
from tests.unit.fakes import GPU_A
from tests.unit.mig_world import A100, LARGE, MEDIA, MEDIUM, SMALL, WHOLE

# --- the annotation ------------------------------------------------------------------------------

ENTRY = {
    "containerIndex": 0,
    "deviceIndex": 0,
    "gpuUUID": "GPU-a",
    "profile": "1g.10gb",
    "placement": {"start": 6, "size": 1},
}
MADE = {"migUUID": "MIG-a", "gpuInstanceID": 13, "computeInstanceID": 0}


def entry(**changes: object) -> str:
    merged = {**ENTRY, **changes}
    return json.dumps([{key: value for key, value in merged.items() if value != "absent"}])


def test_what_the_scheduler_writes_is_read() -> None:
    (one,) = decode_allocations(json.dumps([ENTRY]))
    assert one == MigAllocation(
        container_index=0, device_index=0, gpu_uuid="GPU-a", profile="1g.10gb",
        placement=MigPlacement(6, 1),
    )  # fmt: skip


def test_what_became_of_it_is_written_as_hami_writes_it() -> None:
    (one,) = decode_allocations(json.dumps([ENTRY]))
    made = replace(one, identity=MigIdentity("MIG-a", 13, 0))
    assert encode_allocations([made]) == json.dumps([ENTRY | MADE], separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="absent"),
        pytest.param("[]", id="empty"),
        pytest.param("null", id="null"),
    ],
)
def test_no_allocation(text: str) -> None:
    assert decode_allocations(text) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[{]", "not JSON", id="no JSON"),
        pytest.param("{}", "not a list", id="an object"),
        pytest.param("[null]", "not an object", id="a null entry"),
        pytest.param(entry(containerIndex=-1), "containerindex", id="a negative container"),
        pytest.param(entry(deviceIndex=-1), "deviceindex", id="a negative device"),
        pytest.param(entry(containerIndex=True), "containerindex", id="true"),
        pytest.param(entry(containerIndex=1.0), "containerindex", id="a fraction"),
        pytest.param(entry(containerIndex=INT32_MAX + 1), "containerindex", id="too large"),
        pytest.param(entry(gpuUUID=""), "lacks gpuUUID", id="no GPU"),
        pytest.param(entry(profile="absent"), "lacks gpuUUID, profile", id="no profile"),
        pytest.param(entry(profile=7), "profile of entry 0", id="profile a number"),
        pytest.param(entry(placement="absent"), "placement", id="no placement"),
        pytest.param(entry(placement=[6, 1]), "placement", id="placement a list"),
        pytest.param(entry(placement={"start": 6, "size": 0}), "placement", id="size 0"),
        pytest.param(entry(placement={"start": -1, "size": 1}), "start", id="before the start"),
        pytest.param(entry(migUUID="MIG-a"), "a part of", id="uuid alone"),
        pytest.param(entry(gpuInstanceID=0), "a part of", id="GPU instance alone"),
        pytest.param(entry(**MADE | {"migUUID": ""}), "a part of", id="all but the uuid"),
        pytest.param(json.dumps([ENTRY, ENTRY]), "two entries", id="twice the same"),
        pytest.param(" " * (MAX_CHARS + 1), "characters", id="too long"),
        pytest.param("[" * 100_000, "not JSON", id="too deep"),
        pytest.param("[NaN]", "not JSON", id="NaN"),
    ],
)
def test_what_is_no_allocation(text: str, words: str) -> None:
    with pytest.raises(MalformedAnnotation, match=words):
        decode_allocations(text)


ALLOCATIONS = st.builds(
    MigAllocation,
    container_index=st.integers(0, 3),
    device_index=st.integers(0, 3),
    gpu_uuid=st.text(min_size=1, max_size=8),
    profile=st.text(min_size=1, max_size=8),
    placement=st.builds(MigPlacement, st.integers(0, INT32_MAX), st.integers(1, INT32_MAX)),
    identity=st.none()
    | st.builds(MigIdentity, st.text(min_size=1, max_size=8), st.integers(0, 9), st.integers(0, 9)),
)


@given(st.lists(ALLOCATIONS, unique_by=lambda one: (one.container_index, one.device_index)))
def test_the_annotation_survives_writing_and_reading(allocations: list[MigAllocation]) -> None:
    assert decode_allocations(encode_allocations(allocations)) == tuple(allocations)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from([*ENTRY, *MADE, "start", "size", "SIZE"]), inner
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON.map(json.dumps) | st.text())
def test_reading_is_total(text: str) -> None:
    try:
        found = decode_allocations(text)
    except MalformedAnnotation:
        return
    assert all(one.gpu_uuid and one.profile and one.placement.size for one in found)


# --- the book ------------------------------------------------------------------------------------

HOLDINGS = st.builds(
    MigHolding,
    pod_uid=st.text(max_size=8), container=st.text(max_size=8), device_index=st.integers(0, 9),
    gpu_uuid=st.text(max_size=8), profile=st.text(max_size=8), profile_id=st.integers(0, 99),
    placement=st.builds(MigPlacement, st.integers(0, 7), st.integers(1, 8)),
    identity=st.none() | st.builds(MigIdentity, st.text(), st.integers(0, 9), st.integers(0, 9)),
)  # fmt: skip


@given(st.lists(HOLDINGS).map(tuple))
def test_the_book_survives_writing_and_reading(book: tuple[MigHolding, ...]) -> None:
    assert decode_book(encode_book(book)) == book


@given(st.binary() | JSON.map(lambda value: json.dumps({"holdings": value}).encode()))
def test_reading_a_book_is_total(content: bytes) -> None:
    try:
        decode_book(content)
    except ValueError:
        return


# --- slots of geometries ---------------------------------------------------------------------------

KNOWN = (
    Geometries(("H100",), ((("1g.10gb", 7),),)),
    Geometries(
        ("A100-SXM4-40GB",),
        (
            (("1g.5gb", 7),),
            (("2g.10gb", 3), ("1g.5gb", 1)),
            (("3g.20gb", 2),),
            (("7g.40gb", 1),),
            (("3g.20gb", 3),),
            (("9g.90gb", 1),),
        ),
        ("group1", "group2", "", "", "", ""),
    ),
)


@pytest.mark.parametrize(
    ("uuid", "slot"),
    [
        pytest.param("GPU-a[1-0]", Slot("GPU-a", "1", 0), id="HAMi"),
        pytest.param("GPU-a[group2-3]", Slot("GPU-a", "group2", 3), id="Volcano"),
        pytest.param("GPU-a", None, id="a plain uuid"),
        pytest.param("GPU-a[1]", None, id="no slot"),
        pytest.param("GPU-a[1-x]", None, id="no number"),
        pytest.param("GPU-a[1-0]x", None, id="something behind"),
        pytest.param("", None, id="empty"),
    ],
)
def test_a_slot_in_brackets(uuid: str, slot: Slot | None) -> None:
    assert decode_slot(uuid) == slot
    assert gpu_uuid_of(uuid) == (slot.gpu_uuid if slot else uuid)


@pytest.mark.parametrize(
    ("geometry", "slot", "profile", "start"),
    [
        pytest.param("0", 0, SMALL, 0, id="the first of seven"),
        pytest.param("0", 6, SMALL, 6, id="the last of seven"),
        pytest.param("1", 1, MEDIUM, 2, id="the second of three"),
        pytest.param("1", 3, SMALL, 6, id="the small one beside three"),
        pytest.param("group2", 3, SMALL, 6, id="by the group's name"),
        pytest.param("2", 1, LARGE, 4, id="the second half"),
        pytest.param("3", 0, WHOLE, 0, id="all of it"),
    ],
)
def test_a_slot_is_always_the_same_place(
    geometry: str, slot: int, profile: object, start: int
) -> None:
    found = profile_of_slot(Slot(GPU_A, geometry, slot), A100, KNOWN)
    assert not isinstance(found, str), found
    assert (found[0], found[1].start) == (profile, start)


@pytest.mark.parametrize(
    ("gpu", "geometry", "slot", "words"),
    [
        pytest.param(
            replace(A100, name="NVIDIA A30"), "0", 0, "no entry for the model", id="model"
        ),
        pytest.param(A100, "9", 0, "no geometry 9", id="geometry"),
        pytest.param(A100, "0", 7, "none with number 7", id="slot"),
        pytest.param(A100, "4", 0, "does not fit", id="too much"),
        pytest.param(A100, "5", 0, "offers no profile 9g.90gb", id="profile"),
    ],
)
def test_a_slot_that_means_nothing(gpu: Gpu, geometry: str, slot: int, words: str) -> None:
    found = profile_of_slot(Slot(GPU_A, geometry, slot), gpu, KNOWN)
    assert isinstance(found, str)
    assert words in found


@given(st.lists(st.sampled_from([SMALL, MEDIUM, LARGE, WHOLE]), max_size=8))
def test_arranged_instances_never_overlap(profiles: list[object]) -> None:
    places = arranged(profiles)  # type: ignore[arg-type]
    if places is None:
        return
    for index, place in enumerate(places):
        assert place in profiles[index].placements  # type: ignore[attr-defined]
        assert not any(place.overlaps(other) for other in places[index + 1 :])


def test_settings_survive_showing_and_reading() -> None:
    assert decode_geometries([geometries_as_mapping(one) for one in KNOWN[1:]]) != ""
    (again,) = decode_geometries(json.loads(json.dumps([geometries_as_mapping(KNOWN[1])])))
    assert again == KNOWN[1]
    wanted = [{"models": ["A100"], "profiles": ["1g.5gb"]}]
    assert decode_allowlist(wanted) == (AllowedProfiles(("A100",), ("1g.5gb",)),)


# --- what is offered -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowlist", "names"),
    [
        pytest.param((), ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"], id="all but media engines"),
        pytest.param((AllowedProfiles(("A100",), ("1g.5gb+me",)),), ["1g.5gb+me"], id="named"),
        pytest.param((AllowedProfiles(("H100",), ("1g.5gb",)),), [], id="of another model"),
        pytest.param(
            (AllowedProfiles(("A100",), ("2g.10gb",)), AllowedProfiles(("A100",), ("1g.5gb",))),
            ["2g.10gb"],
            id="the first entry counts",
        ),
    ],
)
def test_which_profiles_may_be_used(
    allowlist: tuple[AllowedProfiles, ...], names: list[str]
) -> None:
    sharing = Sharing(mode="mig", mig_allowlist=allowlist)
    assert [one.name for one in sharing.mig_profiles(A100)] == names
    assert sharing.offers(A100) is bool(names)


def test_the_scheduler_reads_profiles_and_placements() -> None:
    sharing = Sharing(mode="mig", memory_scaling=2, core_scaling=2)
    offered = registered_gpus([A100], sharing, "json")
    (seen,) = scheduler_reads(encode_register(offered, "json"), PROFILES["2.10"])
    assert (seen.mode, seen.count, seen.memory_mib, seen.core_percent) == ("mig", 7, 40960, 100)
    assert [(one.name, one.memory_mib, one.core_percent) for one in seen.mig_profiles] == [
        ("1g.5gb", 4864, 15), ("2g.10gb", 9856, 29), ("3g.20gb", 19968, 43),
        ("7g.40gb", 40192, 100),
    ]  # fmt: skip
    assert seen.mig_profiles[2].placements == ((0, 4), (4, 4))
    assert decode_register(encode_register(offered, "json"), "json") == offered
    assert says_the_same(encode_register(offered, "json"), offered, "json")


def test_kubelet_is_offered_as_many_as_there_can_be() -> None:
    sharing = Sharing(mode="mig", split_count=10)
    only_large = replace(sharing, mig_allowlist=(AllowedProfiles(("A100",), ("3g.20gb",)),))
    inventory = GpuInventory.of([A100])
    assert len(advertised(inventory, sharing)) == 7
    assert len(advertised(inventory, only_large)) == 2
    assert advertised(GpuInventory.of([replace(A100, mig_profiles=(MEDIA,))]), sharing) == ()


@pytest.mark.parametrize(
    "grant",
    [
        pytest.param(Grant(envs={"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}), id="envvar"),
        pytest.param(
            Grant(mounts=(Mount("/var/run/nvidia-container-devices/MIG-a", "/dev/null"),
                          Mount("/var/run/nvidia-container-devices/MIG-b", "/dev/null"))),
            id="volume-mounts",
        ),
        pytest.param(
            Grant(cdi_devices=("k8s.device-plugin.nvidia.com/gpu=MIG-a", "x=MIG-b")), id="CDI"
        ),
    ],
)  # fmt: skip
def test_a_grant_tells_its_mig_devices(grant: Grant) -> None:
    assert mig_uuids(grant) == ("MIG-a", "MIG-b")
