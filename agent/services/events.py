"""Kubernetes Events, sent from a queue: a reporter never waits for the API server."""

import queue

from agent import logs
from agent.errors import ClusterError
from agent.ports import Cluster, ClusterEvent
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

QUEUE_LENGTH = 256
TRIES = 5
IDLE_S = 30.0


class Events:
    """Loop: send what was posted, oldest first; give up on one after a few tries."""

    name = "events"

    def __init__(self, cluster: Cluster, *, retry_s: float = 5.0) -> None:
        self._cluster = cluster
        self._retry_s = retry_s
        self._queue: queue.Queue[ClusterEvent | None] = queue.Queue(QUEUE_LENGTH)

    def post(self, event: ClusterEvent) -> None:
        """Queue an Event; when the queue is full it is only logged."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            log.failing("event dropped", about=event.reason, error="the event queue is full")

    def run(self, life: Lifeline) -> None:
        life.on_stop(lambda: self._queue.put(None) if self._queue.empty() else None)
        while not life.stopping:
            life.pulse(IDLE_S)
            try:
                event = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            if event is not None:
                self._send(event, life)

    def _send(self, event: ClusterEvent, life: Lifeline) -> None:
        retries = Retries()
        for _ in range(TRIES):
            try:
                self._cluster.post_event(event)
            except ClusterError as error:
                log.failing("event not sent", about=event.reason, error=error)
                if not life.pause(max(self._retry_s, retries.failed_s(error))):
                    return
            else:
                log.recovered("event not sent", about=event.reason)
                return
