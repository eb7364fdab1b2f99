"""Loop: follow the annotation `vgpu-agent/limits` of pods, as soon as the watch brings it.

It also does what is asked for on the control socket (`LimitChanges.post`).

Whoever may edit the pod writes it, that is the tenant. So it goes by a rule of the node's, up to a
ceiling: what was granted, or what the operator has set in its place. What was dealt with is in the
container's record, so that neither a resync nor a restart of the agent does it again.

An entry for nobody is most likely a misspelt one. So, as long as the annotation has one, containers
that it does not name keep what they have: only one that names them no more gives up their limits.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from agent import logs
from agent.domain.grants import GrantRecord
from agent.domain.limit_change import AnnotationRule, LimitRefused, asked_limits, check_limits
from agent.domain.limit_record import LimitRecord
from agent.domain.limit_requests import (
    ANNOTATION,
    AnnotationEntry,
    MalformedRequest,
    Strangers,
    annotation_digest,
    annotation_entry,
    strangers,
)
from agent.domain.pods import Pod
from agent.errors import AgentError, NodeNotReady
from agent.ports import ChangedLimits
from agent.services.granted_containers import SHOWN, GrantedContainers, full_name, key
from agent.services.limit_changes import BY_ANNOTATION, REFUSED, LimitChanges, ceiling_of
from agent.services.published import Pods
from agent.supervisor import Lifeline

log = logs.get(__name__)

REFUSED_EVENT = "VgpuLimitsRefused"
LOOKING_S, IDLE_S, RETRY_S = 60.0, 30.0, 1.0
FORGET_EVERY_S = 300.0
# A tenant may edit its annotation as often as it likes; each edit costs us a synced file.
EDITS, EDITS_WITHIN_S = 5, 10.0

Key = tuple[str, str]  # pod uid, container


class LimitAnnotations:
    """The loop. Idle while nothing changes about the node's pods."""

    name = "limit-annotations"

    def __init__(
        self,
        changes: LimitChanges,
        containers: GrantedContainers,
        limits: ChangedLimits,
        pods: Pods,
        *,
        rule: AnnotationRule = AnnotationRule.LOWER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changes = changes
        self._containers = containers
        self._limits = limits
        self._pods = pods
        self._rule = rule
        self._clock = clock
        self._handled: dict[Key, str] = {}  # what was dealt with, as far as this process knows
        self._edits: dict[Key, deque[float]] = {}
        self._forgot_s = clock() - FORGET_EVERY_S

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._pods.poke)
        self._changes.on_post(self._pods.poke)
        while not life.stopping:
            version, _ = self._pods.read()
            life.pulse(LOOKING_S)
            self._changes.serve_waiting()
            pause_s = RETRY_S if self.look_once() else IDLE_S
            life.pulse(pause_s + LOOKING_S)
            if not life.stopping:
                self._pods.wait_for_change(version, pause_s)

    def look_once(self) -> bool:
        """Follow every annotation that says something new; tell whether to look again soon."""
        if not self._pods.now().synced:
            return False
        records = self._containers.live()
        pods = list({record.pod_uid: record for record in records}.values())
        known = {key(record) for record in records} | {_whole_pod(record) for record in pods}
        self._handled = {at: digest for at, digest in self._handled.items() if at in known}
        self._edits = {at: times for at, times in self._edits.items() if at in known}
        self._forget()
        unfinished = [record for record in records if not self._follow(record)]
        unfinished += [record for record in pods if not self._follow_names(record)]
        return bool(unfinished)

    def _follow(self, record: GrantRecord) -> bool:
        """Deal with one container's annotation; False: it has to be looked at again."""
        pod = self._containers.pod(record)
        text = _text(pod)
        digest = annotation_digest(text, record.container)
        if not digest and self._strangers(pod).names:
            return True
        return self._once(key(record), digest, record, lambda: self._deal_with(record, text))

    def _follow_names(self, record: GrantRecord) -> bool:
        """Tell of names that are nobody's; `record` is any of the pod's. False: look again."""
        found = self._strangers(self._containers.pod(record))
        return self._once(
            _whole_pod(record), found.digest, record, lambda: self._tell_of(record, found)
        )

    def _strangers(self, pod: Pod | None) -> Strangers:
        if pod is None or ANNOTATION not in pod.annotations or not pod.containers:
            return Strangers()
        return strangers(_text(pod), self._containers.named(pod))

    def _once(self, at: Key, digest: str, record: GrantRecord, deal: Callable[[], None]) -> bool:
        """Deal with what says something new; False: it has to be looked at again."""
        if self._handled.get(at) == digest:
            return True
        if not self._within_budget(at):
            return False
        try:
            with self._changes.one_at_a_time:
                deal()
        except (NodeNotReady, LimitRefused) as error:
            log.failing("annotation not followed", about=full_name(record), error=error)
            return False
        log.recovered("annotation not followed", about=full_name(record))
        self._handled[at] = digest
        return True

    def _within_budget(self, at: Key) -> bool:
        now_s = self._clock()
        times = self._edits.setdefault(at, deque(maxlen=EDITS))
        if len(times) == EDITS and times[0] > now_s - EDITS_WITHIN_S:
            return False
        times.append(now_s)
        return True

    def _deal_with(self, record: GrantRecord, text: str) -> None:
        """Raises NodeNotReady."""
        entry = annotation_entry(text, record.container)
        before = self._limits.record(record.pod_uid, record.container)
        if entry is None:
            if before.annotation:
                self._without_annotation(record, before)
            return
        # What one rule refused another may allow, so it is remembered together with the rule.
        refused = f"{self._rule}:{entry.digest}"
        if before.annotation in (entry.digest, refused):
            return
        try:
            self._obey(record, before, entry)
        except (LimitRefused, MalformedRequest) as error:
            noted = replace(before, annotation=refused)
            self._limits.set_limits(record.pod_uid, record.container, noted)
            self._refuse(record, error)

    def _obey(self, record: GrantRecord, before: LimitRecord, entry: AnnotationEntry) -> None:
        if self._rule is AnnotationRule.OFF:
            raise LimitRefused(
                "this node takes no limits from annotations (its setting limits-annotation is "
                "off): have an administrator set them with `vgpu-agent limit`"
            )
        if entry.problem:
            raise MalformedRequest(entry.problem)
        subject = self._containers.subject(record)
        ceiling = ceiling_of(before, subject)
        new = asked_limits(entry.limits, ceiling, subject)
        bounded = self._rule is AnnotationRule.LOWER
        check_limits(new, subject, ceiling=ceiling if bounded else None)
        after = replace(
            before, limits=tuple(new.values()), annotation=entry.digest, source=BY_ANNOTATION
        )
        self._changes.apply(record, subject, after, BY_ANNOTATION)

    def _without_annotation(self, record: GrantRecord, before: LimitRecord) -> None:
        """It was taken away, and with it what it did; what the operator has set since stays."""
        subject = self._containers.subject(record)
        limits = tuple(ceiling_of(before, subject).values())
        after = replace(before, limits=limits, annotation="", source="")
        self._changes.apply(record, subject, after, BY_ANNOTATION)

    def _tell_of(self, record: GrantRecord, found: Strangers) -> None:
        """Raises NodeNotReady."""
        before = self._limits.record(record.pod_uid, record.container)
        if before.strangers == found.digest:
            return
        noted = replace(before, strangers=found.digest)
        self._limits.set_limits(record.pod_uid, record.container, noted)
        if not found.names:
            return
        pod = self._containers.pod(record)
        known = sorted(self._containers.named(pod)) if pod else []
        message = (
            f"the annotation {ANNOTATION} names {found.shown}: no container of this pod with vGPUs "
            f"(it has: {', '.join(known[:SHOWN])}); until that is put right, containers that the "
            "annotation does not name keep the limits that they have"
        )
        self._say_refused(record, message, error=message)

    def _refuse(self, record: GrantRecord, error: AgentError) -> None:
        message = (
            f"container {record.container}: its limits stay, because the annotation {ANNOTATION} "
            f"cannot be followed: {error}"
        )
        self._say_refused(record, message, error=error)

    def _say_refused(self, record: GrantRecord, message: str, *, error: AgentError | str) -> None:
        self._changes.count(BY_ANNOTATION, REFUSED)
        name = full_name(record)
        log.warning("limits refused", source=BY_ANNOTATION, container=name, error=error)
        self._changes.tell(record, REFUSED_EVENT, message, warning=True)

    def _forget(self) -> None:
        """Drop what is remembered of containers that are gone and that nobody may ask for."""
        now_s = self._clock()
        if now_s < self._forgot_s + FORGET_EVERY_S:
            return
        self._forgot_s = now_s
        try:
            for pod_uid, container in self._limits.changed():
                if not self._containers.may_come_back(pod_uid, container):
                    self._limits.forget(pod_uid, container)
        except NodeNotReady as error:
            log.failing("changed limits not forgotten", error=error)
        else:
            log.recovered("changed limits not forgotten")


def _text(pod: Pod | None) -> str:
    return pod.annotations.get(ANNOTATION, "{}") if pod else "{}"


def _whole_pod(record: GrantRecord) -> Key:
    """What is not about one container of a pod."""
    return record.pod_uid, ""
