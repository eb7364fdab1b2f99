"""Kubernetes Events, sent from a queue: a reporter never waits for the API server."""

import itertools
import queue
from collections.abc import Callable
from dataclasses import dataclass, field

from agent import logs
from agent.errors import ClusterConflict, ClusterError, ClusterUnavailable
from agent.ports import Cluster, ClusterEvent
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

QUEUE_LENGTH = 256  # Events of pods that wait; as many of the node find room beside them
TRIES = 5
IDLE_S = 30.0
UNAUTHORIZED = 401
STOP, NODE, POD = range(3)  # what goes first


@dataclass(frozen=True, slots=True, order=True)
class _Posted:
    """An Event that waits, in the order in which they are sent."""

    rank: int
    number: int
    event: ClusterEvent | None = field(default=None, compare=False)
    retries: Retries = field(default_factory=Retries, compare=False)


def may_pass(error: ClusterError) -> bool:
    """Whether the same Event may be taken later.

    A collision of generated names and a token that is being replaced pass as well. Nothing else
    does: rights that are missing, and a namespace that is deleted.
    """
    return isinstance(error, ClusterUnavailable | ClusterConflict) or error.code == UNAUTHORIZED


class Events:
    """Loop: send what was posted, the node's Events first, then the oldest.

    Given up are those that the API server refuses, and others after a few tries.
    """

    name = "events"

    def __init__(self, cluster: Cluster, *, retry_s: float = 5.0) -> None:
        self._cluster = cluster
        self._retry_s = retry_s
        self._numbers = itertools.count()
        self._queue: queue.PriorityQueue[_Posted] = queue.PriorityQueue()

    def post(self, event: ClusterEvent) -> None:
        """Queue an Event; when there are too many it is only logged."""
        rank, room = (NODE, 2 * QUEUE_LENGTH) if event.pod is None else (POD, QUEUE_LENGTH)
        if self._queue.qsize() < room:
            self._queue.put(_Posted(rank, next(self._numbers), event))
        else:
            self._drop(event, f"{room} others wait for the API server already")

    def run(self, life: Lifeline) -> None:
        life.on_stop(lambda: self._queue.put(_Posted(STOP, next(self._numbers))))
        while not life.stopping:
            life.pulse(IDLE_S)
            self.step_once(life.pause)

    def step_once(self, pause: Callable[[float], object], *, wait_s: float = IDLE_S) -> bool:
        """Send the next one, and pause when it may be taken later. False: none came."""
        try:
            posted = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return False
        if posted.event is not None:
            self._send(posted, posted.event, pause)
        return True

    def _send(self, posted: _Posted, event: ClusterEvent, pause: Callable[[float], object]) -> None:
        try:
            self._cluster.post_event(event)
        except ClusterError as error:
            pause_s = max(self._retry_s, posted.retries.failed_s(error))
            if not may_pass(error) or posted.retries.in_a_row >= TRIES:
                self._drop(event, error)
            else:
                log.failing("event not sent", about=event.reason, error=error)
                self._queue.put(posted)  # for its old place, behind what is more urgent now
            if may_pass(error):
                pause(pause_s)
        else:
            for failure in ("event not sent", "event dropped"):
                log.recovered(failure, about=event.reason)

    def _drop(self, event: ClusterEvent, why: object) -> None:
        log.failing("event dropped", about=event.reason, error=why)
