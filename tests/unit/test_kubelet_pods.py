"""Whose grants are and who is gone, by kubelet's books: its API and its checkpoint."""

import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import logs
from agent.domain.identities import identity
from agent.domain.kubelet_books import (
    Entry,
    MalformedCheckpoint,
    decode_checkpoint,
    decode_registered,
)
from agent.services.cache_gc import CacheGc
from tests.unit.fakes import GPU_A
from tests.unit.slices_world import SIZES, World

A0, A1 = f"{GPU_A}-0", f"{GPU_A}-1"


def phases(world: World) -> dict[str, str]:
    return {pod.name: pod.phase for pod in world.pods.now().pods.values()}


def test_a_grant_learns_whose_it_is_and_is_shown_by_that_name() -> None:
    world = World()
    world.run_pod("a", [A0])
    (name,) = world.names()
    world.look()
    assert world.names() == {name: "team/a/main"}
    pod = world.pods.now().pods[name]
    assert (pod.full_name, pod.kubelet_uid) == ("team/a", "uid-a")
    assert [container.name for container in pod.containers] == ["main"]


@pytest.mark.parametrize(
    ("api", "file", "named", "uid"),
    [
        pytest.param(True, True, "team/a/main", "uid-a", id="both books"),
        pytest.param(True, False, "team/a/main", "", id="the API alone"),
        pytest.param(False, True, "/{grant}/main", "uid-a", id="the checkpoint alone"),
        pytest.param(False, False, "/{grant}/c", "", id="none"),
    ],
)
def test_what_is_known_of_an_owner(api: bool, file: bool, named: str, uid: str) -> None:
    world = World()
    world.run_pod("a", [A0])
    world.kubelet.api, world.kubelet.file = api, file
    world.look()
    (name,) = world.names()
    assert world.names()[name] == named.format(grant=name)
    assert world.log.records()[0].owner_uid == uid
    assert world.pods.now().synced == (api or file)


def test_several_containers_of_a_pod_are_told_apart() -> None:
    world = World()
    for container, device_id in (("one", A0), ("two", A1)):
        world.run_pod("a", [device_id], container=container)
    world.look()
    assert sorted(world.names().values()) == ["team/a/one", "team/a/two"]


def test_an_init_container_and_the_next_one_have_the_same_slices() -> None:
    """The API lists the second only; the checkpoint has both answers."""
    world = World()
    world.run_pod("a", [A0], container="init", init=True)
    world.run_pod("a", [A0])
    for _ in range(60):
        world.look()
    assert sorted(world.names().values()) == ["team/a/init", "team/a/main"]
    assert set(phases(world).values()) == {"Running"}
    assert world.books.held().of(GPU_A).memory_mib == 4606, "one after the other, not both"


def files_after(world: World) -> int:
    """How many directories the collector leaves, long after the last of them was made."""
    CacheGc(
        world.caches, world.log, world.pods, after_s=10.0, now_s=lambda: world.clock() + 1000
    ).collect_once()
    return len(world.caches.directories)


def test_an_init_container_that_starts_late_finds_its_files() -> None:
    """The API never lists it, and no process of it runs: its image is pulled for half an hour."""
    world = World()
    world.run_pod("a", [A0], container="init", init=True)
    for _ in range(900):
        world.look()
    assert A0 in world.books.held().slices
    assert files_after(world) == 1
    world.end_pod("a")
    for _ in range(200):
        world.look()
    assert not world.names()
    assert files_after(world) == 0


def test_a_clock_that_is_set_back_takes_no_files_from_an_init_container() -> None:
    """Of such a one kubelet's API never speaks, so it is young by its own time alone."""
    world = World()
    world.run_pod("a", [A0], container="init", init=True)
    for _ in range(10):
        world.look()
    world.watch._now_s = lambda: world.clock() - 3600
    world.look()
    assert set(phases(world).values()) == {"Running"}
    assert files_after(world) == 1
    assert A0 in world.books.held().slices


@pytest.mark.parametrize(
    "named_s", [pytest.param(0.0, id="never named"), pytest.param(30.0, id="named before")]
)
def test_a_pod_that_never_ran_and_is_gone_is_released_and_forgotten(named_s: float) -> None:
    """Kubelet asks once more for a pod that it is taking away, and its checkpoint keeps that."""
    world = World()
    world.run_pod("a", [A0])
    world.run_pod("b", [A1])
    if named_s:
        world.look(after_s=named_s)
        world.run_pod("a", [A0])
    world.end_pod("a")
    for _ in range(20):
        world.look()
    assert A0 not in world.books.held().slices, "40 s"
    for _ in range(40):
        world.look()
    assert sorted(world.names().values()) == ["team/b/main"], "two minutes"
    assert files_after(world) == 1


def is_free_in_time(world: World, device_id: str) -> bool:
    """Whether a slice can be had a minute from now, and not one more is known of it after seven."""
    for _ in range(30):
        world.look()
    free = device_id not in world.books.held().slices
    for _ in range(180):
        world.look()
    return free and all(device_id not in one.device_ids for one in world.log.records())


@pytest.mark.parametrize(
    ("init", "container"),
    [
        pytest.param(True, "init", id="an init container"),
        pytest.param(False, "main", id="never listed"),
    ],
)
def test_a_kubelet_that_keeps_whom_it_admitted_last(init: bool, container: str) -> None:
    """1.22 to 1.31 do, in each checkpoint that they write; only their list of pods is true."""
    world = World()
    world.kubelet.keeps_last, world.kubelet.others = True, {"old"}
    world.look(after_s=100)
    world.look(after_s=100)
    world.run_pod("a", [A0], container=container, init=init)
    if init:
        for _ in range(300):
            world.look()
        assert A0 in world.books.held().slices, "its pod is there, ten minutes"
        world.kubelet.others.add("later")
    world.end_pod("a")
    assert is_free_in_time(world, A0)
    assert world.kubelet.in_use(world.offers[0].resource) == {A0}, "kubelet still says so"


def test_pods_with_devices_of_their_own_are_not_whose_grant_is_not_named() -> None:
    world = World()
    world.kubelet.keeps_last = True
    world.run_pod("b", [A1])
    world.run_pod("a", [A0], container="init", init=True)
    world.look()
    world.end_pod("a")
    assert is_free_in_time(world, A0)
    assert sorted(world.names().values()) == ["team/b/main"]


def test_while_a_pod_that_came_with_it_is_there_a_grant_is_kept() -> None:
    """It may be that one's."""
    world = World()
    world.kubelet.keeps_last = True
    world.kubelet.others = {"beside"}
    world.run_pod("a", [A0], container="init", init=True)
    world.look()
    world.end_pod("a")
    assert not is_free_in_time(world, A0)
    world.kubelet.others = {"later"}
    assert is_free_in_time(world, A0)


def test_a_kubelet_that_lists_nobody_for_a_while_takes_nothing_from_an_init_container() -> None:
    """It has just started; and then it lists some before others."""
    world = World()
    world.kubelet.others = {"old"}
    world.run_pod("a", [A0], container="init", init=True)
    world.look()
    world.kubelet.unheard_of = {"uid-a"}
    for _ in range(10):
        world.look()
    world.kubelet.unheard_of = set()
    for _ in range(100):
        world.look()
    assert A0 in world.books.held().slices
    assert set(phases(world).values()) == {"Running"}


def test_an_init_container_has_its_slices_back_when_kubelet_knows_its_pod_again() -> None:
    """Its API server was away when it started."""
    world = World()
    world.kubelet.others = {"static"}
    world.look(after_s=100)
    world.look(after_s=100)
    world.run_pod("a", [A0], container="init", init=True)
    world.look()
    world.kubelet.unheard_of = {"uid-a"}
    for _ in range(60):
        world.look()
    assert A0 not in world.books.held().slices
    world.kubelet.unheard_of = set()
    for _ in range(300):
        world.look()
    assert A0 in world.books.held().slices
    assert set(phases(world).values()) == {"Running"}


def test_kubelet_is_not_told_its_list_again_for_nothing() -> None:
    world = World()
    world.run_pod("a", [A0])
    for _ in range(100):
        world.look()
    assert world.kubelet.lists_heard == 0, "the API has named it"
    world.run_pod("b", [A1], container="init", init=True)
    for _ in range(100):
        world.look()
    assert world.kubelet.lists_heard == 7, "each 30 s, after the first 20 s, in 200 s"


def test_a_checkpoint_that_kubelet_does_not_write_is_believed() -> None:
    """No stream of lists is open: nobody knows whether the pod is gone."""
    world = World()
    world.kubelet.hear_list = lambda: None  # type: ignore[method-assign]
    world.restart()
    world.run_pod("a", [A0])
    world.end_pod("a")
    for _ in range(400):
        world.look()
    assert len(world.names()) == 1
    world.run_pod("b", [A1])
    for _ in range(200):
        world.look()
    assert sorted(world.names().values()) == ["team/b/main"]


def test_a_deleted_pod_is_released_soon_and_forgotten_later() -> None:
    world = World()
    world.run_pod("a", [A0])
    world.run_pod("b", [A1])
    world.look(after_s=30.0)
    world.end_pod("a")
    world.look()
    assert phases(world) == {"a": "Running", "b": "Running"}, "kubelet may not list it for a moment"
    for _ in range(3):
        world.look()
    assert phases(world) == {"a": "Succeeded", "b": "Running"}
    assert A0 not in world.books.held().slices
    for _ in range(40):
        world.look()
    assert phases(world) == {"b": "Running"}
    assert list(world.names().values()) == ["team/b/main"]


def test_the_files_of_a_deleted_pod_go_when_it_is_forgotten() -> None:
    world = World()
    world.run_pod("a", [A0])
    world.run_pod("b", [A1])
    world.look()
    gc = CacheGc(
        world.caches, world.log, world.pods, after_s=10.0, now_s=lambda: world.clock() + 1000
    )
    world.end_pod("a")
    for _ in range(20):
        world.look()
    assert gc.collect_once() == 0
    for _ in range(30):
        world.look()
    assert gc.collect_once() == 1
    (left,) = world.names()
    assert list(world.caches.directories) == [f"{left}_c"]


def _its_processes_run(world: World) -> None:
    world.start_processes("a")


def _just_granted(world: World) -> None:
    """And its owner not known yet."""
    world.log.by_container = {
        key: replace(record, granted_at_s=world.clock(), pod_name=record.pod_uid)
        for key, record in world.log.by_container.items()
    }
    world.kubelet.file = False


def _no_book_can_be_read(world: World) -> None:
    world.kubelet.api = world.kubelet.file = False


def _listed_by_the_file_alone(world: World) -> None:
    world.kubelet.api = False


@pytest.mark.parametrize(
    "why",
    [
        _its_processes_run,
        _just_granted,
        _no_book_can_be_read,
        _listed_by_the_file_alone,
    ],
)
def test_nobody_is_taken_for_gone_too_early(why: Callable[[World], None]) -> None:
    world = World(SIZES)
    world.run_pod("a", [f"{GPU_A}-large-0"], world.offer("large"))
    world.look(after_s=100.0)
    world.kubelet.knows_pods = False
    why(world)
    for _ in range(8):
        world.look()
    assert set(phases(world).values()) == {"Running"}
    assert f"{GPU_A}-small-2" not in world.healthy(world.offer("small"))


def test_a_kubelet_that_lists_nobody_is_believed_late() -> None:
    """It may have started without its API server."""
    world = World()
    world.run_pod("a", [A0])
    world.look(after_s=100.0)
    world.kubelet.knows_pods = False
    for _ in range(100):
        world.look()
    assert world.names(), "200 s"
    world.kubelet.knows_pods = True
    world.look()
    assert phases(world) == {"a": "Running"}


def test_a_restarted_agent_finds_its_books_again() -> None:
    world = World(SIZES)
    world.run_pod("a", [f"{GPU_A}-large-0"], world.offer("large"))
    world.look()
    before = world.names()
    world.restart()
    assert world.healthy(world.offer("small"))[:2] == [f"{GPU_A}-small-0", f"{GPU_A}-small-1"]
    assert f"{GPU_A}-small-2" not in world.healthy(world.offer("small"))
    world.look()
    assert world.names() == before
    assert phases(world) == {"a": "Running"}


def test_pods_of_another_mode_stay_while_kubelet_lists_them() -> None:
    world = World()
    world.run_pod("a", [A0])
    world.look(after_s=100.0)
    (record,) = world.log.records()
    world.log.by_container.clear()
    world.log.record(replace(record, pod_uid="uid-a", namespace="team", pod_name="a", owner_uid=""))
    for _ in range(60):
        world.look()
    assert phases(world)["a"] == "Running"
    world.kubelet.give(
        replace(world.kubelet.given[0], pod_uid="uid-b", pod="b", ids=frozenset({A1}))
    )
    world.end_pod("a")
    for _ in range(60):
        world.look()
    assert not world.log.records()


@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "ended at once"])
def test_who_has_the_slices_of_one_that_ended_does_not_give_it_its_name(seen: bool) -> None:
    """The checkpoint was read in the moment before kubelet wrote the next pod into it."""
    world = World()
    first = world.run_pod("a", [A0])
    if seen:
        world.look(after_s=30.0)
    before = world.kubelet.checkpoint
    world.end_pod("a")
    second = world.run_pod("b", [A0])
    after, world.kubelet.checkpoint = world.kubelet.checkpoint, before
    world.look()
    named = world.names()
    (of_first,) = (record.pod_uid for record in world.log.records() if record.grant == first.grant)
    (of_second,) = (
        record.pod_uid for record in world.log.records() if record.grant == second.grant
    )
    assert "/b/" not in named[of_first]
    assert named[of_second] == "team/b/main"
    owners = {record.pod_uid: record.owner_uid for record in world.log.records()}
    assert owners[of_second] == "", "the book that has it was not read yet"
    world.kubelet.checkpoint = after
    world.look()
    owners = {record.pod_uid: record.owner_uid for record in world.log.records()}
    assert (world.names()[of_second], owners[of_second]) == ("team/b/main", "uid-b")
    assert not world.posted


def test_a_container_that_asks_for_two_sizes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="logfmt", environ={})  # a command that was tested before may be silent
    world = World(SIZES)
    world.run_pod("a", [f"{GPU_A}-large-0"], world.offer("large"))
    world.run_pod("a", [f"{GPU_A}-small-0"], world.offer("small"))
    world.look()
    world.look()
    assert capsys.readouterr().err.count("several_grants_of_one_container") == 1
    (event,) = world.posted
    assert (event.reason, event.pod and event.pod.full_name) == ("SeveralSizes", "team/a")
    assert event.message.startswith("container main: ")


# --- the checkpoint ------------------------------------------------------------------------------

NAME = identity("slices", 0xFEED)
ANSWER = base64.b64encode(
    b"\x0a\x10junk\x12\x40/usr/local/vgpu/containers/" + NAME.encode() + b"_c\x18\x01"
).decode()
ENTRY = {
    "PodUID": "uid-a",
    "ContainerName": "main",
    "ResourceName": "nvidia.com/gpu",
    "AllocResp": ANSWER,
}
READ = Entry(
    pod_uid="uid-a",
    container="main",
    resource="nvidia.com/gpu",
    device_ids=frozenset({A0, A1}),
    grant=NAME,
)


def checkpoint(*entries: object) -> str:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries)}, "Checksum": 1})


@pytest.mark.parametrize(
    ("entry", "read"),
    [
        pytest.param(ENTRY | {"DeviceIDs": [A0, A1]}, (READ,), id="a list, before 1.20"),
        pytest.param(ENTRY | {"DeviceIDs": {"-1": [A0, A1]}}, (READ,), id="no NUMA node"),
        pytest.param(ENTRY | {"DeviceIDs": {"0": [A0], "1": [A1]}}, (READ,), id="NUMA nodes"),
        pytest.param(
            ENTRY | {"DeviceIDs": [A0, A1], "AllocResp": "bm9uZQ=="},
            (replace(READ, grant=""),),
            id="somebody else's answer",
        ),
        pytest.param(
            ENTRY | {"DeviceIDs": [A0, A1], "AllocResp": "%%%"},
            (replace(READ, grant=""),),
            id="no base64",
        ),
        pytest.param(ENTRY | {"DeviceIDs": []}, (), id="no ids"),
        pytest.param(ENTRY | {"DeviceIDs": "x"}, (), id="ids that are none"),
        pytest.param(ENTRY | {"DeviceIDs": [7, None, A0, A1]}, (READ,), id="numbers among the ids"),
        pytest.param({"PodUID": "x"}, (), id="half an entry"),
        pytest.param(None, (), id="no entry"),
    ],
)
def test_entries_of_a_checkpoint(entry: object, read: tuple[Entry, ...]) -> None:
    assert decode_checkpoint(checkpoint(entry)) == read


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"Data": 7}', '{"Data": {}}', "[" * 100_000, '{"Data":{"PodDeviceEntries":{}}}']
)  # fmt: skip
def test_what_is_no_checkpoint_is_told(text: str) -> None:
    with pytest.raises(MalformedCheckpoint):
        decode_checkpoint(text)


def test_a_checkpoint_without_pods() -> None:
    assert decode_checkpoint('{"Data": {"PodDeviceEntries": null}}') == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from([*ENTRY, "DeviceIDs"]), _JSON) | _JSON))
def test_whatever_is_in_a_checkpoint_can_be_read(entries: list[object]) -> None:
    for entry in decode_checkpoint(checkpoint(*entries)):
        assert entry.pod_uid
        assert entry.device_ids


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param({"a/b": ["1", "2"]}, {"a/b": ("1", "2")}, id="ids"),
        pytest.param({"a/b": ["1", 7, None], "c/d": "x"}, {"a/b": ("1",)}, id="what is none"),
        pytest.param({}, {}, id="nothing"),
        pytest.param(None, {}, id="null"),
    ],
)
def test_registered_devices_of_a_checkpoint(written: object, read: object) -> None:
    assert decode_registered(json.dumps({"Data": {"RegisteredDevices": written}})) == read


@given(st.text(max_size=200))
def test_any_text_is_registered_devices_or_none(text: str) -> None:
    with contextlib.suppress(MalformedCheckpoint):
        decode_registered(text)
