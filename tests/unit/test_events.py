"""Events are sent again as patiently as the API server asks, and only those that it may take."""

import itertools
import threading
from collections.abc import Callable

import pytest

from agent import logs
from agent.errors import (
    ClusterConflict,
    ClusterDenied,
    ClusterError,
    ClusterGone,
    ClusterUnavailable,
)
from agent.ports import ClusterEvent
from agent.services.events import QUEUE_LENGTH, TRIES, Events
from agent.supervisor import Lifeline
from tests.unit.fakes import FakeCluster, pod

ILL = ClusterEvent(reason="GpuUnhealthy", message="XID 79")
BUSY = ClusterUnavailable("too many requests", code=429)
ENDING = ClusterDenied("the namespace is being terminated", code=403)


def of_pod(name: str) -> ClusterEvent:
    return ClusterEvent(reason="VgpuLimitsNotEnforced", message=name, pod=pod(name, ""))


class Picky(FakeCluster):
    """Answers each Event as the test says; None: it takes it."""

    def __init__(self, answer: Callable[[ClusterEvent], ClusterError | None]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[str] = []

    def post_event(self, event: ClusterEvent) -> None:
        self.asked.append(event.message)
        if error := self.answer(event):
            raise error
        super().post_event(event)


def send_all(events: Events, pause: Callable[[float], object] = lambda _seconds: None) -> None:
    while events.step_once(pause, wait_s=0.0):
        pass


@pytest.mark.parametrize(
    ("retry_after_s", "least_s"),
    [
        pytest.param(None, 5.0, id="nothing is asked"),
        pytest.param(60.0, 60.0, id="Retry-After: 60"),
    ],
)
def test_a_busy_api_server_is_asked_again_later(
    retry_after_s: float | None, least_s: float
) -> None:
    error = ClusterUnavailable("too many requests", code=429, retry_after_s=retry_after_s)
    cluster, pauses = Picky(lambda _: error), list[float]()
    events = Events(cluster)
    events.post(ILL)
    send_all(events, pauses.append)
    assert cluster.asked == [ILL.message] * TRIES
    assert len(pauses) == TRIES
    assert min(pauses) >= least_s


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        pytest.param(BUSY, TRIES, id="too many requests"),
        pytest.param(ClusterUnavailable("no answer"), TRIES, id="no answer"),
        pytest.param(ClusterConflict("the name is taken", code=409), TRIES, id="409: another name"),
        pytest.param(ClusterDenied("expired", code=401), TRIES, id="401: another token"),
        pytest.param(ENDING, 1, id="403"),
        pytest.param(ClusterGone("no such namespace", code=404), 1, id="404"),
        pytest.param(ClusterError("invalid", code=422), 1, id="422"),
    ],
)
def test_only_what_may_be_taken_later_is_sent_again(error: ClusterError, tries: int) -> None:
    cluster, pauses = Picky(lambda _: error), list[float]()
    events = Events(cluster)
    events.post(ILL)
    send_all(events, pauses.append)
    assert len(cluster.asked) == tries
    assert len(pauses) == (tries if tries > 1 else 0), "nobody waits for what will not pass"


def test_pods_of_a_deleted_namespace_hold_nothing_up() -> None:
    cluster = Picky(lambda event: ENDING if event.pod else None)
    events = Events(cluster)
    for number in range(30):
        events.post(of_pod(f"p{number}"))
    pauses: list[float] = []
    events.post(ILL)
    send_all(events, pauses.append)
    assert cluster.asked == [ILL.message, *(f"p{number}" for number in range(30))]
    assert cluster.events == [ILL]
    assert pauses == []


def test_the_node_goes_first_also_while_another_one_waits_to_be_sent_again() -> None:
    answers = itertools.chain([BUSY], itertools.repeat(None))
    cluster = Picky(lambda _: next(answers))
    events = Events(cluster)
    events.post(of_pod("p0"))
    events.post(of_pod("p1"))
    send_all(events, lambda _: events.post(ILL))
    assert cluster.asked == ["p0", ILL.message, "p0", "p1"]


def test_a_flood_of_pods_leaves_room_for_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="logfmt", environ={})  # a command that was tested before may be silent
    cluster = Picky(lambda _: None)
    events = Events(cluster)
    for number in range(QUEUE_LENGTH + 1):
        events.post(of_pod(f"p{number}"))
    events.post(ILL)
    assert "event_dropped" in capsys.readouterr().err
    send_all(events)
    assert cluster.asked[0] == ILL.message
    assert len(cluster.asked) == QUEUE_LENGTH + 1
    said = capsys.readouterr().err
    assert "recovered" in said
    assert "event dropped" in said, "the next one of its kind was sent"


def test_a_stop_ends_the_wait_for_an_event() -> None:
    end = threading.Event()
    life = Lifeline(end)
    events = Events(Picky(lambda _: None))
    loop = threading.Thread(target=events.run, args=(life,), daemon=True)
    loop.start()
    end.set()
    life.interrupt()
    loop.join(timeout=20.0)
    assert not loop.is_alive()
