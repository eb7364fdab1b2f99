"""Other limits for a container that runs: made to hold, remembered, and told.

A change ends in the container's record and file (`ChangedLimits`), in a log line, a count and an
Event of its pod. The last request holds, whoever made it.
"""

import json
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent import logs
from agent.domain.grants import GrantRecord
from agent.domain.limit_change import (
    DeviceChange,
    LimitRefused,
    Subject,
    asked_limits,
    check_limits,
    mib,
    overcommitted_bytes,
)
from agent.domain.limit_record import LimitRecord, SetLimit
from agent.domain.limit_requests import MalformedRequest, SocketRequest, parse_body
from agent.errors import AgentError, NodeNotReady
from agent.ports import ChangedLimits, ClusterEvent
from agent.services.granted_containers import (
    AmbiguousName,
    GrantedContainers,
    NoSuchContainer,
    full_name,
)

log = logs.get(__name__)

SOCKET, BY_ANNOTATION = "socket", "annotation"
CHANGED, UNCHANGED, REFUSED, FAILED = "changed", "unchanged", "refused", "failed"
CHANGED_EVENT = "VgpuLimitsChanged"
OK, CONFLICT, FAILED_STATUS, UNAVAILABLE = 200, 409, 500, 503
WAIT_S = 2.0
MAX_WAITING = 64
_STATUS: tuple[tuple[type[AgentError], int], ...] = (
    (MalformedRequest, 400),
    (AmbiguousName, CONFLICT),
    (NoSuchContainer, 404),
    (LimitRefused, CONFLICT),
)


@dataclass(slots=True)
class _Asked:
    """A request that waits for the loop."""

    body: bytes
    by: str  # who, as far as that is known
    begun: threading.Lock = field(default_factory=threading.Lock)  # taken once, never given back
    done: threading.Event = field(default_factory=threading.Event)
    answer: tuple[int, bytes] = (FAILED_STATUS, b'{"error": "the agent failed: look at its log"}')


class LimitChanges:
    """What the control socket's POST /v1/limits does, and whoever else changes limits.

    Thread-safe: a change is read-modify-write, so there is one at a time.
    """

    def __init__(
        self,
        limits: ChangedLimits,
        containers: GrantedContainers,
        *,
        event: Callable[[ClusterEvent], None] = lambda _: None,
        count: Callable[[str, str], None] = lambda _source, _outcome: None,
        none_here: str = "",
    ) -> None:
        """`count` gets the source of each request ("socket", "annotation") and its outcome.

        `none_here`: why no container of this node has limits, in words; empty: they may.
        """
        self._limits = limits
        self._containers = containers
        self._event = event
        self._none_here = none_here
        self._waiting: queue.Queue[_Asked] = queue.Queue(MAX_WAITING)
        self._wake: Callable[[], None] = lambda: None
        self.count = count
        self.one_at_a_time = threading.Lock()

    def post(self, body: bytes, asked_by: str = "") -> tuple[int, bytes]:
        """Have done what the body of POST /v1/limits asks; give the HTTP status and a JSON body.

        `asked_by`: whoever sent it, in words for the log and the Event; empty: it is not known.

        Whoever answers on the sockets also answers whether the agent is alive, so it must not wait
        for a disk: the work is the loop's, and the answer comes `WAIT_S` later at the latest.
        """
        if self._none_here:  # and no loop that would answer
            self.count(SOCKET, REFUSED)
            log.warning("limits refused", source=SOCKET, asked_by=asked_by, error=self._none_here)
            return _problem(CONFLICT, self._none_here)
        asked = _Asked(body, asked_by)
        try:
            self._waiting.put_nowait(asked)
        except queue.Full:
            return _problem(UNAVAILABLE, "too many requests wait to be done: look at the log")
        self._wake()
        if asked.done.wait(WAIT_S):
            return asked.answer
        if asked.begun.acquire(blocking=False):  # nobody will: it must not be done in an hour
            return _problem(
                UNAVAILABLE,
                "nothing was changed: the agent has just started, waits for another one on this "
                "node to end, or has much to do; /readyz tells, ask again when it is ready",
            )
        return _problem(
            UNAVAILABLE,
            "it is still being done, because the node's disk is slow: look at the log, or ask "
            "again, which does no harm",
        )

    def on_post(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is something for `serve_waiting` to do."""
        self._wake = wake

    def serve_waiting(self) -> None:
        """Do what is asked for on the socket; the loop calls it."""
        while True:
            try:
                asked = self._waiting.get_nowait()
            except queue.Empty:
                return
            if not asked.begun.acquire(blocking=False):
                continue
            try:
                asked.answer = self.answer(asked.body, asked.by)
            finally:
                asked.done.set()

    def answer(self, body: bytes, asked_by: str = "") -> tuple[int, bytes]:
        """Do what the body asks, now; give the HTTP status and a JSON body."""
        try:
            request = parse_body(body)
            record = self._containers.addressed(request.target)
            with self.one_at_a_time:
                changes = self._by_socket(request, record, asked_by)
        except AgentError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), UNAVAILABLE)
            self.count(SOCKET, FAILED if status == UNAVAILABLE else REFUSED)
            log.warning("limits refused", source=SOCKET, asked_by=asked_by, error=error)
            if isinstance(error, NoSuchContainer):
                return _problem(status, str(error), candidates=error.candidates)
            return _problem(status, str(error))
        return OK, json.dumps(_answer(record, changes)).encode()

    def _by_socket(
        self, request: SocketRequest, record: GrantRecord, asked_by: str
    ) -> list[DeviceChange]:
        subject = self._containers.subject(record)
        before = self._limits.record(record.pod_uid, record.container)
        new = asked_limits([request.limits], subject.now, subject)
        check_limits(new, subject, force=request.force)
        ceiling = asked_limits([request.limits], ceiling_of(before, subject), subject)
        after = replace(
            before,
            limits=tuple(new.values()),
            ceiling=() if ceiling == subject.granted else tuple(ceiling.values()),
            source=SOCKET,
        )
        return self.apply(record, subject, after, SOCKET, asked_by)

    def apply(
        self,
        record: GrantRecord,
        subject: Subject,
        after: LimitRecord,
        source: str,
        asked_by: str = "",
    ) -> list[DeviceChange]:
        """Let the record `after` hold and say so. The caller holds `one_at_a_time`.

        Raises NodeNotReady.
        """
        file = self._limits.set_limits(record.pod_uid, record.container, after)
        if file is None:
            raise NodeNotReady(
                f"the limits file of {full_name(record)} is gone: the container is ending"
            )
        changes = self._containers.changes(record, subject, file)
        differing = [change for change in changes if change.before != change.after]
        self.count(source, CHANGED if differing else UNCHANGED)
        if differing:
            words = "; ".join(change.words for change in differing)
            log.info(
                "limits changed",
                source=source,
                **({"asked_by": asked_by} if source == SOCKET else {}),
                container=full_name(record),
                change=words,
            )
            by = "the pod's annotation" if source == BY_ANNOTATION else "an administrator"
            by += f" ({asked_by})" if asked_by else ""
            over = any(change.over_bytes for change in differing)
            self.tell(
                record, CHANGED_EVENT, f"container {record.container}, by {by}: {words}", over
            )
        return changes

    def tell(self, record: GrantRecord, reason: str, message: str, warning: bool) -> None:
        """Post an Event about the container's pod."""
        pod = self._containers.pod(record)
        if pod is not None:
            self._event(ClusterEvent(reason=reason, message=message, warning=warning, pod=pod))


def ceiling_of(record: LimitRecord, subject: Subject) -> dict[str, SetLimit]:
    """What the operator has set, else what was granted, by uuid."""
    operator = {limit.uuid: limit for limit in record.ceiling}
    return {uuid: operator.get(uuid, granted) for uuid, granted in subject.granted.items()}


def _problem(status: int, error: str, **more: Any) -> tuple[int, bytes]:
    return status, json.dumps({"error": error, **more}).encode()


def _answer(record: GrantRecord, changes: Sequence[DeviceChange]) -> dict[str, Any]:
    return {
        "pod": f"{record.namespace}/{record.pod_name}",
        "container": record.container,
        "gpus": [_gpu_answer(change) for change in changes],
        "warnings": [
            f"GPU {change.card.name}: its containers may use {mib(over)} more than it has"
            for change in changes
            if (over := overcommitted_bytes(change.after, change.card))
        ],
    }


def _gpu_answer(change: DeviceChange) -> dict[str, Any]:
    return {
        "uuid": change.card.uuid,
        "index": change.card.index,
        "memory_limit_bytes": change.after.memory_limit_bytes,
        "core_permille": change.after.core_permille,
        "before": {
            "memory_limit_bytes": change.before.memory_limit_bytes,
            "core_permille": change.before.core_permille,
        },
        "used_bytes": change.used_bytes,
        "over_bytes": change.over_bytes,
    }
