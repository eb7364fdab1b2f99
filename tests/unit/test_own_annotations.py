"""Which annotations of the Node are ours, and when they count as taken back."""

import pytest

from agent.domain import volcano
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


JSON = '[{"id":"GPU-a","count":10,"devmem":1000,"devcore":100,"type":"NVIDIA A40","mode":"hami-core","health":true}]'
SICK = JSON.replace(',"health":true', "")
CSV = "GPU-a,10,1000,100,NVIDIA-NVIDIA A40,0,true,0,hami-core:"
ASKED = "Requesting_2026-12-01 04:03:53"


class Hours:
    """A clock that only the pauses move, and somebody who reads the Node after so many of them."""

    def __init__(self, cluster: FakeCluster, reads_after: int) -> None:
        self.now_s, self._cluster, self._left = 0.0, cluster, reads_after

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self._left -= 1
        if self._left == 0:
            self._cluster._put_node({HANDSHAKE: ASKED})


@pytest.mark.parametrize(
    ("there", "answers", "reads_after", "read", "told"),
    [
        pytest.param({REGISTER: JSON, HANDSHAKE: ASKED}, False, 16, True, SICK, id="read"),
        pytest.param({REGISTER: JSON, HANDSHAKE: ASKED}, False, 99, False, SICK, id="nobody reads"),
        pytest.param({REGISTER: SICK}, False, 3, True, SICK, id="told before, and not yet read"),
        pytest.param({REGISTER: CSV, HANDSHAKE: ASKED}, False, 3, True, CSV.replace("true", "false"), id="csv"),
        pytest.param({REGISTER: JSON}, False, 99, True, JSON, id="no scheduler has read it"),
        pytest.param({REGISTER: JSON, HANDSHAKE: "Deleted_x"}, False, 99, True, JSON, id="forgotten"),
        pytest.param({REGISTER: CSV, HANDSHAKE: ASKED}, True, 99, True, CSV, id="one that we answer"),
        pytest.param({REGISTER: "[]", HANDSHAKE: ASKED}, False, 99, True, "[]", id="no GPU"),
        pytest.param({REGISTER: "{", HANDSHAKE: ASKED}, False, 99, True, "{", id="unreadable"),
        pytest.param({HANDSHAKE: ASKED}, False, 99, True, None, id="nothing of ours"),
    ],
)  # fmt: skip
def test_the_scheduler_reads_first_that_no_gpu_is_left(
    there: dict[str, str], answers: bool, reads_after: int, read: bool, told: str | None
) -> None:
    cluster = FakeCluster()
    cluster.patch_node({**OTHERS, **there})
    hours = Hours(cluster, reads_after)
    annotations = OwnAnnotations(
        cluster, handshake=answers, clock=lambda: hours.now_s, pause=hours.pause
    )
    assert annotations.retire() is read
    assert cluster.node.annotations.get(REGISTER) == told
    assert OTHERS.items() <= cluster.node.annotations.items()


def test_volcanos_scheduler_forgets_by_itself() -> None:
    cluster, keys = FakeCluster(), volcano.dialect(lambda: 1)
    there = {keys.register: "GPU-a,10,1000,NVIDIA-A40,true,hami-core:", keys.handshake: ASKED}
    cluster.patch_node(there)
    assert OwnAnnotations(cluster, handshake=False, dialect=keys).retire()
    assert cluster.node.annotations == there


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
