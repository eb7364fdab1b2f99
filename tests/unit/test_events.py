"""Events are sent again as patiently as the API server asks."""

import threading

import pytest

from agent.errors import ClusterUnavailable
from agent.ports import ClusterEvent
from agent.services.events import TRIES, Events
from agent.supervisor import Lifeline
from tests.unit.fakes import FakeCluster


class Busy(FakeCluster):
    """Answers 429 to every Event."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s
        self.tries = 0

    def post_event(self, _event: ClusterEvent) -> None:
        self.tries += 1
        raise ClusterUnavailable("too many requests", code=429, retry_after_s=self.retry_after_s)


class Patient(Lifeline):
    """Writes down the pauses instead of making them; stops when the last one is over."""

    def __init__(self) -> None:
        self._end = threading.Event()
        super().__init__(self._end)
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        if len(self.pauses) == TRIES:
            self._end.set()
        return True


@pytest.mark.parametrize(
    ("retry_after_s", "least_s"),
    [
        pytest.param(None, 5.0, id="nothing is asked"),
        pytest.param(60.0, 60.0, id="Retry-After: 60"),
    ],
)
def test_a_refused_event_waits(retry_after_s: float | None, least_s: float) -> None:
    cluster, life = Busy(retry_after_s), Patient()
    events = Events(cluster)
    events.post(ClusterEvent(reason="GpuUnhealthy", message="XID 79"))
    events.run(life)
    assert cluster.tries == TRIES
    assert min(life.pauses) >= least_s
