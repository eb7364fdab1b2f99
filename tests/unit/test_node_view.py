"""What the agent knows of its node between two messages of the watches."""

from dataclasses import replace

import pytest

from agent.domain.pods import Pod
from agent.errors import ClusterGone
from agent.ports import Listed
from agent.services.node_view import NodeView, merged
from agent.services.published import PodTable, Published
from tests.unit.fakes import NODE, FakeCluster, pod


def at(made: Pod, version: int) -> Pod:
    return replace(made, resource_version=str(version))


P, Q = pod("p", ";"), pod("q", ";")


@pytest.mark.parametrize(
    ("known", "listed", "expected"),
    [
        pytest.param([], [at(P, 1)], [at(P, 1)], id="a new one"),
        pytest.param([at(Q, 1)], [at(P, 2), at(Q, 1)], [at(Q, 1), at(P, 2)], id="known ones first"),
        pytest.param([at(P, 1)], [at(P, 5)], [at(P, 5)], id="the list is younger"),
        pytest.param([at(P, 12)], [at(P, 5)], [at(P, 12)], id="the watch is younger"),
        pytest.param([at(P, 9)], [], [], id="gone before the list was made"),
        pytest.param([at(P, 11)], [], [at(P, 11)], id="made after the list was"),
        pytest.param([replace(P, resource_version="x")], [], [replace(P, resource_version="x")],
                     id="versions that cannot be compared"),
    ],
)  # fmt: skip
def test_a_list_and_what_is_known(known: list[Pod], listed: list[Pod], expected: list[Pod]) -> None:
    table = PodTable({known_pod.uid: known_pod for known_pod in known}, synced=True)
    assert list(merged(table, Listed(tuple(listed), "10"))) == expected


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def view(cluster: FakeCluster) -> NodeView:
    return NodeView(
        cluster, node_name=NODE, pods=Published(PodTable(synced=True)), own_node=Published(None)
    )


def test_our_own_write_is_known_at_once(view: NodeView, cluster: FakeCluster) -> None:
    mine = cluster.put(P)
    view.saw_pod(mine)
    view.patch_pod(mine, {"hami.io/bind-phase": "success"}, expected={}, deadline_s=None)
    view.saw_pod(mine)  # the watch is still at the state before
    known = view.pod(mine.uid)
    assert known is not None
    assert known.annotations["hami.io/bind-phase"] == "success"


def test_a_pod_that_is_gone_leaves_the_table(view: NodeView, cluster: FakeCluster) -> None:
    view.saw_pod(P)
    with pytest.raises(ClusterGone):
        view.patch_pod(P, {}, expected={}, deadline_s=None)
    assert view.pod(P.uid) is None


def test_a_write_does_not_bring_back_a_pod_whose_deletion_was_seen(
    view: NodeView, cluster: FakeCluster
) -> None:
    mine = cluster.put(P)
    view.patch_pod(mine, {}, expected={}, deadline_s=None)
    assert view.pod(mine.uid) is None


def test_an_older_state_of_the_node_does_not_replace_a_younger(
    view: NodeView, cluster: FakeCluster
) -> None:
    before = cluster.node
    cluster.lock("2025-10-20T03:07:02Z,team,p")
    view.read_node(deadline_s=None)
    view.saw_node(before)
    lock = view.lock()
    assert lock is not None
    assert lock.name == "p"
    view.remove_lock(lock.value, deadline_s=None)
    assert view.lock() is None
