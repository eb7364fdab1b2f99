"""Other limits for a container that runs: made to hold, remembered, and told.

A change ends in the container's record and file (`ChangedLimits`), in a log line, a count and an
Event of its pod. The last request holds, whoever made it.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
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
FAILED_ANSWER = FAILED_STATUS, b'{"error": "the agent failed: look at its log"}'
WAIT_S = 5.0  # the command waits for 10 s; each change may wait 1 s for what is used
MAX_WAITING = 32  # fewer than there may be connections: more than these are told so
_STATUS: tuple[tuple[type[AgentError], int], ...] = (
    (MalformedRequest, 400),
    (AmbiguousName, CONFLICT),
    (NoSuchContainer, 404),
    (LimitRefused, CONFLICT),
)


class Asked:
    """A request for the loop, and its answer as soon as there is one. Thread-safe; nobody waits."""

    def __init__(self, body: bytes, by: str, done: Callable[[], None]) -> None:
        """`by`: who asks, as far as that is known; `done` is called when there is an answer."""
        self.body = body
        self.by = by
        self.within_s = WAIT_S
        self._done = done
        self._answer: tuple[int, bytes] | None = None
        self._begun = threading.Lock()  # taken once, never given back

    def begin(self) -> bool:
        """Whether it is to be done: by the caller, and nobody else."""
        return self._begun.acquire(blocking=False)

    def finish(self, answer: tuple[int, bytes]) -> None:
        """HTTP status and JSON body."""
        self._answer = answer
        self._done()

    def given(self) -> tuple[int, bytes] | None:
        """The answer; None: there is none yet."""
        return self._answer

    def give_up(self) -> tuple[int, bytes]:
        """Wait no longer; gives the answer that is left. What nobody has begun is not done."""
        if self._answer is None and self.begin():  # or it might be done in an hour
            self._answer = _problem(
                UNAVAILABLE,
                "nothing was changed: the agent has just started, ends, waits for another one on "
                "this node to end, or has much to do; /readyz tells, ask again when it is ready",
            )
        return self._answer or _problem(
            UNAVAILABLE,
            "it is still being done, because the node's disk is slow: look at the log, or ask "
            "again, which does no harm",
        )

    @property
    def waits(self) -> bool:
        """Whether nobody has begun it, and somebody waits for it."""
        return not self._begun.locked()


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
        self._waiting: deque[Asked] = deque()
        self._queueing = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self.count = count
        self.one_at_a_time = threading.Lock()

    def post(self, body: bytes, asked_by: str, done: Callable[[], None]) -> Asked:
        """Have done what the body of POST /v1/limits asks.

        `asked_by`: whoever sent it, in words for the log and the Event; empty: it is not known.
        `done` is called when there is an answer, by any thread.

        Whoever answers on the sockets also answers whether the agent is alive, so it must not wait
        for a disk or the driver: the work is the loop's.
        """
        asked = Asked(body, asked_by, done)
        if self._none_here:  # and no loop that would answer
            self.count(SOCKET, REFUSED)
            log.warning("limits refused", source=SOCKET, asked_by=asked_by, error=self._none_here)
            asked.finish(_problem(CONFLICT, self._none_here))
            return asked
        with self._queueing:
            self._waiting = deque(other for other in self._waiting if other.waits)
            full = len(self._waiting) >= MAX_WAITING
            if not full:
                self._waiting.append(asked)
        if full:
            problem = "too many requests wait to be done: look at the log"
            asked.finish(_problem(UNAVAILABLE, problem))
        else:
            self._wake()
        return asked

    def on_post(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is something for `serve_waiting` to do."""
        self._wake = wake

    def serve_waiting(self) -> None:
        """Do what is asked for on the socket; the loop calls it."""
        for _ in range(MAX_WAITING):  # not those that come meanwhile: there is more to do than this
            asked = self._next()
            if asked is None:
                return
            if not asked.begin():
                continue
            answer = FAILED_ANSWER
            try:
                answer = self.answer(asked.body, asked.by)
            finally:
                asked.finish(answer)

    def _next(self) -> Asked | None:
        with self._queueing:
            return self._waiting.popleft() if self._waiting else None

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
