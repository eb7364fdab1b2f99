"""The Allocate use case: one container gets exactly what the scheduler decided for it.

Order of the effects: host files, cache directory, journal, erasing the slot, bind phase, node lock.
The journal comes before the first write to the API server, so that the same question after a
crash gets the same answer; the lock goes last, because it directs the next Allocate.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from agent import logs
from agent.domain.choice import Refusal
from agent.domain.dialect import FAILED, HAMI, SUCCESS, Dialect
from agent.domain.gpu import Gpu
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.matching import Turn
from agent.domain.pods import Pod
from agent.errors import (
    BudgetExceeded,
    ClusterConflict,
    ClusterError,
    ClusterGone,
    ClusterUnavailable,
    CountMismatch,
    MalformedAnnotation,
    NodeNotReady,
    NoPendingPod,
    UnknownDevice,
)
from agent.services.bind_finisher import BindFinisher
from agent.services.grant_writer import Holder, Undo
from agent.services.node_view import NodeView
from agent.services.supply import Supply
from agent.services.turns import Turns, refused_by_cluster, short_reason

log = logs.get(__name__)

DECISIONS = 3  # how often a pod may change under our hands
EXIT_S = 0.2  # kept back for the exit door

GRANTED, REPEATED = "granted", "repeated"
OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (NoPendingPod, "no_pending_pod"),
    (MalformedAnnotation, "malformed_annotation"),
    (CountMismatch, "count_mismatch"),
    (UnknownDevice, "unknown_device"),
    (BudgetExceeded, "budget_exceeded"),
    (NodeNotReady, "node_not_ready"),
    (ClusterError, "cluster_unavailable"),
)


class _DecideAgainError(Exception):
    """The pod is no longer what the decision was based on."""


class _PodGoneError(NoPendingPod):
    """It is not even there. Kubelet knows that before the API server does: it asks for another."""


def _gone(pod: Pod) -> _PodGoneError:
    return _PodGoneError(
        f"pod {pod.full_name} was deleted while its vGPUs were being granted; create it again"
    )


def outcome_of(error: Exception) -> str:
    """The label under which a failed Allocate is counted."""
    return next((label for kind, label in OUTCOMES if isinstance(error, kind)), "internal")


class Writer(Protocol):
    """Makes a decided grant true on the host: `GrantWriter`, or in mode mig `MigGrants`."""

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
        """See `GrantWriter.write`."""

    def renew(self, record: GrantRecord, *, deadline_s: float) -> None:
        """See to it that what an answer given before refers to is there. Raises NodeNotReady."""

    def answered(self, record: GrantRecord) -> None:
        """Kubelet gets the answer."""


Further = Callable[[Turn, GrantRecord], Mapping[str, str]]


def nothing_further(_turn: Turn, _record: GrantRecord) -> Mapping[str, str]:
    """Nothing is written onto the pod beside what the scheduler waits for."""
    return {}


class Allocator:
    """Grants vGPUs to containers, one at a time. Thread-safe."""

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        view: NodeView,
        turns: Turns,
        finisher: BindFinisher,
        writer: Writer,
        supply: Supply,
        *,
        further: Further = nothing_further,
        on_outcome: Callable[[str, float], None] = lambda _outcome, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
        dialect: Dialect = HAMI,
    ) -> None:
        self._dialect = dialect
        self._view = view
        self._turns = turns
        self._finisher = finisher
        self._writer = writer
        self._supply = supply
        self._further = further  # annotations that go with the claim that is consumed
        self._on_outcome = on_outcome
        self._clock = clock
        self._one_at_a_time = threading.Lock()  # choosing a pod is read-modify-write

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        """Grant what the scheduler set aside for the container that kubelet asks for.

        `device_ids` as kubelet gives them, in any order; only their number and identity count, the
        scheduler has chosen the GPU. Ends around `deadline_s` at the latest.

        Raises AllocateRefused or ClusterError, in words for the pod's owner.
        """
        started_s = self._clock()
        try:
            turn, grant = self._in_turn(tuple(sorted(device_ids)), deadline_s)
        except Exception as error:
            self._count(outcome_of(error), started_s, error)
            raise
        self._count(REPEATED if turn.remaining is None else GRANTED, started_s, turn)
        return grant

    def _count(self, outcome: str, started_s: float, about: Turn | Exception) -> None:
        took_s = self._clock() - started_s
        self._on_outcome(outcome, took_s)
        took_ms = round(took_s * 1000, 1)
        if isinstance(about, Turn):
            log.info(
                "allocated",
                outcome=outcome,
                pod=about.pod.full_name,
                container=about.container.name,
                gpus=",".join(claim.uuid for claim in about.claims),
                memory_mib=sum(claim.memory_mib for claim in about.claims),
                took_ms=took_ms,
            )
        else:
            log.warning("allocate refused", outcome=outcome, error=about, took_ms=took_ms)

    def _in_turn(self, device_ids: tuple[str, ...], deadline_s: float) -> tuple[Turn, Grant]:
        if not self._one_at_a_time.acquire(timeout=max(0.0, deadline_s - self._clock())):
            raise BudgetExceeded(
                "another container's vGPUs are still being granted on this node, and the time for "
                "this one is used up: the disk or the API server is slow; delete the pod, so that "
                "it is created anew"
            )
        try:
            gone: _PodGoneError | None = None
            for decision in range(1, DECISIONS + 1):
                turn = self._found(device_ids, gone, deadline_s)
                try:
                    if isinstance(turn, Refusal):
                        with self._bind_attempt(turn, deadline_s):
                            raise turn.error
                    return turn, self._serve(turn, device_ids, deadline_s)
                except _PodGoneError as error:
                    if decision == DECISIONS:
                        raise
                    gone = error
                except _DecideAgainError as error:
                    if decision == DECISIONS:
                        self._finisher.finish(turn.pod, FAILED, deadline_s=deadline_s)
                        raise ClusterUnavailable(
                            f"pod {turn.pod.full_name} changed {DECISIONS} times while its vGPUs "
                            "were being granted; delete it, so that it is scheduled again"
                        ) from error
        finally:
            self._one_at_a_time.release()
        raise AssertionError("unreachable: the last decision returns or raises")

    def _found(
        self, device_ids: tuple[str, ...], gone: _PodGoneError | None, deadline_s: float
    ) -> Turn | Refusal:
        """Whose turn it is; `gone`: the one of whom that was said before."""
        try:
            return self._turns.find(len(device_ids), device_ids, deadline_s=deadline_s)
        except NoPendingPod as error:
            raise gone or error from error

    # --- the exit door

    @contextmanager
    def _bind_attempt(self, turn: Turn | Refusal, deadline_s: float) -> Iterator[Undo]:
        """Any failure inside takes back what was made, ends the bind as failed, frees the node.

        How to take back something is appended to the list that this gives. Only errors count: a
        dying process leaves the journal, and the next one goes on from there.
        """
        undo: Undo = []
        try:
            yield undo
        except Exception as error:
            if not isinstance(error, _DecideAgainError):
                self._finisher.finish(turn.pod, FAILED, deadline_s=deadline_s)
            for step in undo:  # the journal last: whoever dies before still knows of the grant
                step()
            raise

    # --- one grant

    def _serve(self, turn: Turn, device_ids: tuple[str, ...], deadline_s: float) -> Grant:
        record = turn.record
        if record is not None and record.answered:
            return self._serve_again(turn, record, device_ids, deadline_s)
        with self._bind_attempt(turn, deadline_s) as undo:
            self._supply.check_ids(device_ids)
            record = self._prepare(turn, device_ids, deadline_s, undo)
            self._check_budget(deadline_s)
            phase_written = self._consume(turn, record, deadline_s)
        self._end_bind(turn, deadline_s, phase_written=phase_written)
        self._writer.answered(record)
        self._turns.served(turn, device_ids)
        return record.grant

    def _serve_again(
        self, turn: Turn, record: GrantRecord, device_ids: tuple[str, ...], deadline_s: float
    ) -> Grant:
        """Give an answer that was given before; its bind is over, or the finisher ends it."""
        self._writer.renew(record, deadline_s=deadline_s)
        self._turns.served(turn, device_ids)
        return record.grant

    def _prepare(
        self, turn: Turn, device_ids: tuple[str, ...], deadline_s: float, undo: Undo
    ) -> GrantRecord:
        """Make the container's directory and write the grant down; on disk when this returns."""
        return self._writer.write(
            Holder(
                pod_uid=turn.pod.uid,
                namespace=turn.pod.namespace,
                pod_name=turn.pod.name,
                container=turn.container,
                pod=turn.pod,
                deadline_s=deadline_s - EXIT_S,
            ),
            claims=turn.claims,
            gpus=[self._supply.gpu(claim, turn.container) for claim in turn.claims],
            device_ids=device_ids,
            before=turn.record,
            undo=undo,
        )

    def _consume(self, turn: Turn, record: GrantRecord, deadline_s: float) -> bool:
        """Erase the slot, and with the last one write the phase; tell whether that was written.

        Raises NoPendingPod and ClusterError in words for the pod's owner.
        """
        if turn.remaining is None:
            return turn.pod.annotations.get(self._dialect.bind_phase) == SUCCESS
        changes = {self._dialect.to_allocate: turn.remaining}
        if turn.last and not self._dialect.others_pending(turn.pod.with_annotations(changes)):
            changes |= self._dialect.ending(SUCCESS)
        further = self._further(turn, record)
        try:
            both = {**changes, **further}
            return self._erase(turn, both, further.keys(), deadline_s - EXIT_S)
        except ClusterError as error:
            log.warning("slot not erased", pod=turn.pod.full_name, error=error)
            raise refused_by_cluster(
                error,
                f"the API server did not confirm that pod {turn.pod.full_name} has taken its vGPUs "
                f"({short_reason(error)}), and without that they could be given away twice; delete "
                "the pod, so that it is created anew; if that happens again, look at the API "
                "server and at the agent's log on the node",
            ) from error

    def _erase(
        self, turn: Turn, changes: Mapping[str, str], also: Iterable[str], deadline_s: float
    ) -> bool:
        """Erase the slot; tell whether the phase is written. `also`: keys that were read, too.

        Raises _DecideAgainError, NoPendingPod, ClusterError.
        """
        key, phase = self._dialect.to_allocate, self._dialect.bind_phase
        before = {one: turn.pod.annotations[one] for one in (key, *also)}
        try:
            pod = self._view.patch_pod(turn.pod, changes, expected=before, deadline_s=deadline_s)
            phase_written = phase in changes
        except ClusterGone as error:
            raise _gone(turn.pod) from error
        except ClusterConflict as error:
            found = self._turns.reread(turn.pod.uid, deadline_s=deadline_s)
            if found is None:  # another one has its name by now, or is just about to
                raise _gone(turn.pod) from error
            if found.annotations.get(key) != turn.remaining:
                raise _DecideAgainError from error
            pod, phase_written = found, found.annotations.get(phase) == SUCCESS  # ours, after all
        if pod.deleting:  # the next one may be asking already, which would keep this one's share
            raise NoPendingPod(str(_gone(turn.pod)))
        return phase_written

    def _end_bind(self, turn: Turn, deadline_s: float, *, phase_written: bool) -> None:
        """After the pod's last container: the phase, if it is not written yet, then the lock."""
        if not turn.last:
            return
        pod = self._view.pod(turn.pod.uid) or turn.pod
        if phase_written or not self._dialect.others_pending(pod):
            self._finisher.finish(pod, SUCCESS, phase_written=phase_written, deadline_s=deadline_s)
        else:
            self._finisher.finish_after_vendors(pod)

    # --- what can be wrong

    def _check_budget(self, deadline_s: float) -> None:
        if self._clock() > deadline_s - EXIT_S:
            raise BudgetExceeded(
                "the time for granting vGPUs is used up before the API server was asked: the "
                "node's disk is slow; delete the pod, so that it is created anew"
            )
