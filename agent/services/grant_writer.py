"""Makes a decided grant true on the host: directory, limits, and a line in the journal.

Who decides is a mode's own matter. In this order, each step can be taken back: the journal comes
last, so whoever finds a grant there finds its files.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agent import logs
from agent.domain.feedback import asked_priority, asked_strict
from agent.domain.gpu import Gpu
from agent.domain.grant_plan import (
    GrantPolicy,
    HostPaths,
    asks_for_no_limits,
    plan_grant,
    refuse_negative,
)
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.pods import Container, Pod
from agent.errors import AgentError, NodeNotReady
from agent.ports import Caches, ChangedLimits, ClusterEvent, GrantLog, HookFiles
from agent.services.container_limits import ContainerLimits, cache_name
from agent.services.room import Room

log = logs.get(__name__)

Undo = list[Callable[[], None]]
LIMITS_HOLD = "DisableControlNotHonoured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Whose grant it is, and until when it is waited for (of the monotonic clock)."""

    pod_uid: str
    namespace: str
    pod_name: str
    container: Container
    deadline_s: float
    pod: Pod | None = None  # as it was when it was decided; None: not known


@contextmanager
def host_advice() -> Iterator[None]:
    """The host's errors say what is to be done on the node; the pod's owner has to act as well."""
    try:
        yield
    except NodeNotReady as error:
        raise NodeNotReady(f"{error}; then delete the pod, so that it is created anew") from error


class GrantWriter:
    """Writes grants. Called by one thread at a time: whoever decides holds a lock anyway."""

    def __init__(
        self,
        caches: Caches,
        grant_log: GrantLog,
        policy: GrantPolicy,
        *,
        changed: ChangedLimits | None = None,
        room: Room | None = None,
        post: Callable[[ClusterEvent], None] = lambda _event: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`changed` knows what became of limits since they were granted.

        `room` objects to more than a GPU has; None: who decides sees to that itself. `post` takes
        Events for pods, and must not wait.
        """
        self._post = post
        self._room = room
        self._caches = caches
        self._grant_log = grant_log
        self._policy = policy
        self._now_s = now_s
        self._limits = ContainerLimits(caches, policy, changed=changed, now_s=now_s)

    def write(
        self,
        holder: Holder,
        *,
        claims: tuple[Claim, ...],
        gpus: Sequence[Gpu],
        device_ids: tuple[str, ...],
        before: GrantRecord | None,
        undo: Undo,
    ) -> GrantRecord:
        """Make the container's files and write the grant down; on disk when this returns.

        `gpus` holds the GPU of each claim. `before` is the holder's grant as it was written but
        perhaps not answered: its answer stays the same. How to take back what was done is appended
        to `undo`, also when this raises.

        Raises MalformedAnnotation, NodeNotReady, in words for the pod's owner.
        """
        refuse_negative(claims)
        uid, name = holder.pod_uid, holder.container.name
        if self._room is not None and before is None:
            self._room.check((uid, name), claims, gpus, deadline_s=holder.deadline_s)
        with host_advice():
            files = self._caches.prepare()
            directory = self._caches.create(uid, name)
            undo.append(lambda: self._discard(directory.name))
            limits = self._limits.write(uid, name, claims)
        record = before
        if record is None:
            record = GrantRecord(
                pod_uid=uid,
                namespace=holder.namespace,
                pod_name=holder.pod_name,
                container=name,
                device_ids=device_ids,
                claims=claims,
                grant=self._plan(holder, claims, gpus, files, directory, limits),
                granted_at_s=self._now_s(),
                priority=asked_priority(holder.container.task_priority),
                strict=asked_strict(holder.container.core_policy),
            )
        if record is not before or record.device_ids != device_ids:
            record = replace(record, device_ids=device_ids)
            with host_advice():
                self._grant_log.record(record)
        undo.append(lambda: self._grant_log.drop(record))
        if before is None:
            self._tell_that_limits_hold(holder)
        return record

    def _tell_that_limits_hold(self, holder: Holder) -> None:
        """Say so to whom asked for none: elsewhere the same pod has none."""
        container = holder.container
        if self._policy.allow_disable_control or not asks_for_no_limits(container, self._policy):
            return
        about = f"{holder.namespace}/{holder.pod_name}/{container.name}"
        log.warning("disable control not honoured", container=about)
        if holder.pod is not None:
            message = (
                f"container {container.name} sets CUDA_DISABLE_CONTROL, which this node does not "
                "honour: its GPU limits hold as any other's. Take the variable out of the pod; "
                "where it is needed, the node's administrator can set --allow-disable-control of "
                "vgpu-agent, and the pod has to be created anew"
            )
            self._post(ClusterEvent(reason=LIMITS_HOLD, message=message, pod=holder.pod))

    def _plan(
        self,
        holder: Holder,
        claims: Sequence[Claim],
        gpus: Sequence[Gpu],
        files: HookFiles,
        directory: Path,
        limits: Path | None,
    ) -> Grant:
        return plan_grant(
            holder.container,
            claims,
            gpus,
            paths=HostPaths(
                library=str(files.library),
                preload=str(files.preload),
                cache_dir=str(directory),
                lock_dir=str(files.lock_dir),
                limits=str(limits or ""),
                license=str(files.license or ""),
                validator=str(files.validator or ""),
                device_nodes=tuple(files.device_nodes),
            ),
            cache_name=cache_name(holder.pod_uid, holder.container.name),
            policy=self._policy,
        )

    def renew(self, record: GrantRecord, *, deadline_s: float) -> None:
        """See to it that what an answer given before refers to is there. Raises NodeNotReady."""
        del deadline_s  # nothing here waits
        self._caches.prepare()
        self._caches.create(record.pod_uid, record.container)
        self._limits.write(record.pod_uid, record.container, record.claims)

    def answered(self, record: GrantRecord) -> None:
        """Kubelet gets the answer: from now on the grant is given away."""
        self._grant_log.answered(record)

    def _discard(self, directory: str) -> None:
        try:
            self._caches.discard(directory)
        except AgentError as error:  # it is deleted later, when its pod is gone
            log.failing("cache directory not deleted", about=directory, error=error)
