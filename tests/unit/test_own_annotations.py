"""Which annotations of the Node are ours, and when they count as taken back."""

import pytest

from agent.domain.dialect import LOCK
from agent.domain.handshake import HANDSHAKE
from agent.domain.register import REGISTER, SCORE
from agent.errors import ClusterUnavailable
from agent.services.own_annotations import OwnAnnotations, StillWritten, own_keys
from tests.unit.fakes import FakeCluster

OTHERS = {LOCK: "l", "hami.io/node-dcu-register": "x", "team/note": "keep"}


def ours(cluster: FakeCluster, *, handshake: bool = False) -> OwnAnnotations:
    return OwnAnnotations(cluster, handshake=handshake, pause=lambda _s: None)


@pytest.mark.parametrize(
    ("there", "handshake", "found"),
    [
        pytest.param({}, True, (), id="none"),
        pytest.param({REGISTER: "[]"}, False, (REGISTER,), id="register"),
        pytest.param({REGISTER: ""}, False, (REGISTER,), id="an empty one"),
        pytest.param({SCORE: "[]"}, False, (SCORE,), id="score of an earlier run"),
        pytest.param({HANDSHAKE: "Requesting_x"}, False, (), id="a question to others"),
        pytest.param({HANDSHAKE: "Requesting_x"}, True, (HANDSHAKE,), id="a question to us"),
        pytest.param({HANDSHAKE: "Deleted_x"}, False, (), id="given up by the scheduler"),
        pytest.param({HANDSHAKE: "Reported x"}, False, (HANDSHAKE,), id="an answer of earlier settings"),
        pytest.param(
            {HANDSHAKE: "Reported x", REGISTER: "[]", SCORE: "[]"},
            True,
            (REGISTER, SCORE, HANDSHAKE),
            id="all",
        ),
    ],
)  # fmt: skip
def test_what_is_ours(there: dict[str, str], handshake: bool, found: tuple[str, ...]) -> None:
    cluster = FakeCluster()
    cluster.patch_node({**OTHERS, **there})
    assert ours(cluster, handshake=handshake).found() == found


def test_removing_leaves_the_rest() -> None:
    cluster = FakeCluster()
    cluster.patch_node({**OTHERS, REGISTER: "[]", SCORE: "[]", HANDSHAKE: "Requesting_x"})
    ours(cluster).remove(own_keys(handshake=False))
    assert cluster.node.annotations == {**OTHERS, HANDSHAKE: "Requesting_x"}


def test_what_comes_back_is_reported() -> None:
    cluster = FakeCluster()
    cluster.patch_node({REGISTER: "[]"})
    annotations = OwnAnnotations(
        cluster, handshake=False, pause=lambda _s: cluster._put_node({REGISTER: "[]"}) and None
    )
    with pytest.raises(StillWritten, match="--state-dir"):
        annotations.remove([REGISTER])


def test_a_look_that_fails_does_not_undo_the_removal() -> None:
    cluster = FakeCluster()
    cluster.patch_node({REGISTER: "[]"})
    cluster.faults.once("get node", "error")
    ours(cluster).remove([REGISTER])
    assert REGISTER not in cluster.node.annotations


def test_a_refused_removal_is_told() -> None:
    cluster = FakeCluster()
    cluster.patch_node({REGISTER: "[]"})
    cluster.faults.once("patch node", "error")
    with pytest.raises(ClusterUnavailable):
        ours(cluster).remove([REGISTER])
