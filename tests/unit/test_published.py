"""A published value: read whole, waited for, and told to listeners."""

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from agent.domain.pods import Node, Pod
from agent.services.node_view import NodeView
from agent.services.published import PodTable, Published, newest, newest_node
from tests.unit.fakes import FakeCluster


def pod(uid: str, version: str = "1", phase: str = "Pending") -> Pod:
    return Pod(namespace="ns", name=f"pod-{uid}", uid=uid, phase=phase, resource_version=version)


def test_only_another_value_is_a_change() -> None:
    box = Published(1)
    version, value = box.read()
    assert (value, box.publish(1)) == (1, False)
    assert not box.wait_for_change(version, timeout_s=0)
    assert box.publish(2)
    assert box.wait_for_change(version, timeout_s=0)
    assert box.now() == 2


def test_updates_of_many_threads_are_not_lost() -> None:
    box = Published(0)
    threads = [
        threading.Thread(target=lambda: [box.update(lambda n: n + 1) for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert box.now() == 1600


def test_a_waiter_is_woken() -> None:
    box = Published(0)
    seen: list[bool] = []
    waiter = threading.Thread(target=lambda: seen.append(box.wait_until(lambda n: n == 2, 30)))
    waiter.start()
    box.publish(1)
    box.publish(2)
    waiter.join(10)
    assert seen == [True]


def test_waiting_ends_without_a_change() -> None:
    box = Published(0)
    assert not box.wait_until(lambda n: n == 1, timeout_s=0.01)
    assert not box.wait_for_change(box.read()[0], timeout_s=0.01)


def test_a_poke_wakes_although_nothing_changed() -> None:
    box = Published(0)
    version, _ = box.read()
    seen: list[bool] = []
    waiter = threading.Thread(target=lambda: seen.append(box.wait_for_change(version, 30)))
    waiter.start()
    box.poke()
    eventually(lambda: seen == [True])
    waiter.join(10)
    assert box.now() == 0


def test_listeners_are_told_until_they_leave() -> None:
    box = Published(0)
    heard: list[int] = []
    leave = box.listen(lambda: heard.append(box.now()))
    box.publish(1)
    box.publish(1)
    leave()
    leave()
    box.publish(2)
    assert heard == [1]


def test_an_update_that_fails_changes_nothing() -> None:
    box = Published(1)
    with pytest.raises(ZeroDivisionError):
        box.update(lambda n: n // 0)
    assert box.now() == 1
    assert box.publish(2), "the lock was given back"


# --- the pods of the node ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        pytest.param("1", "2", "new", id="newer"),
        pytest.param("10", "9", "old", id="older, compared as numbers"),
        pytest.param("3", "3", "new", id="the same"),
        pytest.param("x", "1", "new", id="not comparable"),
        pytest.param("1", "x", "new", id="nor the other way round"),
        pytest.param("", "", "new", id="no versions"),
    ],
)
def test_the_newest_state_is_kept(old: str, new: str, kept: str) -> None:
    states = {"old": pod("a", old, "Pending"), "new": pod("a", new, "Running")}
    assert newest(states["old"], states["new"]) is states[kept]


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        pytest.param(None, ("a", "1"), "new", id="the first"),
        pytest.param(("a", "9"), ("a", "10"), "new", id="newer, compared as numbers"),
        pytest.param(("a", "10"), ("a", "9"), "old", id="older"),
        pytest.param(("a", "900"), ("b", "15"), "new", id="made anew, in a restored cluster"),
        pytest.param(("a", "x"), ("a", "1"), "new", id="not comparable"),
        pytest.param(("a", "1"), ("a", "x"), "new", id="nor the other way round"),
    ],
)
def test_the_newest_node_is_kept_by_whoever_saw_it(
    old: tuple[str, str] | None, new: tuple[str, str], kept: str
) -> None:
    """The watch and what our writes are answered go by one rule."""
    before = Node(name="n", uid=old[0], resource_version=old[1]) if old else None
    seen = Node(name="n", uid=new[0], resource_version=new[1])
    expected = {"old": before, "new": seen}[kept]
    assert newest_node(before, seen) is expected
    view = NodeView(
        FakeCluster(), node_name="n", pods=Published(PodTable()), own_node=Published(before)
    )
    view.saw_node(seen)
    assert view.own_node.now() is expected


def test_a_change_keeps_the_place_and_a_late_one_is_ignored() -> None:
    table = PodTable().applied(pod("a", "5")).applied(pod("b", "6"))
    table = table.applied(pod("a", "7", "Running")).applied(pod("a", "6", "Pending"))
    assert [p.phase for p in table.pods.values()] == ["Running", "Pending"]


def test_deletion() -> None:
    table = PodTable().applied(pod("a")).without("a").without("never there")
    assert table.pods == {}


def test_tables_are_values() -> None:
    one, other = PodTable().applied(pod("a")), PodTable().applied(pod("a"))
    assert one == other
    assert one != PodTable(other.pods, synced=True)
    box = Published(one)
    assert not box.publish(other)


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.sampled_from(["applied", "deleted"])),
    max_size=30,
)


@given(changes=CHANGES)
def test_no_change_touches_an_older_table(changes: list[tuple[str, int, str]]) -> None:
    tables = [PodTable()]
    copies = [dict(tables[0].pods)]
    for uid, version, kind in changes:
        last = tables[-1]
        tables.append(
            last.without(uid) if kind == "deleted" else last.applied(pod(uid, str(version)))
        )
        copies.append(dict(tables[-1].pods))
    assert [table.pods for table in tables] == copies


@given(versions=st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_the_highest_version_wins_in_any_order(versions: list[int]) -> None:
    table = PodTable()
    for version in versions:
        table = table.applied(replace(pod("a"), resource_version=str(version)))
    assert table.pods["a"].resource_version == str(max(versions))
