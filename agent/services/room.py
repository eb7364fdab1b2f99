"""Sees to it that no GPU's memory is promised twice: the scheduler's books may be wrong or old."""

from collections.abc import Callable, Mapping, Sequence

from agent import logs
from agent.domain.decided import served_by_others
from agent.domain.dialect import HAMI, Dialect
from agent.domain.gpu import Gpu, Sharing
from agent.domain.grants import Claim, GrantRecord
from agent.domain.limit_lines import limits_in
from agent.domain.oversubscription import (
    allowed_mib,
    at_once,
    holds,
    in_order,
    offered_mib,
    promised_mib,
    too_much,
)
from agent.domain.pods import Pod
from agent.errors import AgentError, ClusterError, NodeNotReady
from agent.ports import ChangedLimits, GrantLog
from agent.services.node_view import NodeView

log = logs.get(__name__)


class Room:
    """Reads the grants and the pods. Called by one thread at a time."""

    def __init__(
        self,
        grants: GrantLog,
        view: NodeView,
        sharing: Sharing,
        *,
        limits: ChangedLimits | None = None,
        beside: Callable[[], Mapping[str, Pod]] = dict,
        dialect: Dialect | None = HAMI,
    ) -> None:
        """`beside`: pods with grants that the API server's list does not have by the same uid.

        `limits` knows what became of limits since they were granted. By `dialect` annotations say
        what another plugin has granted; None: their amounts cannot be relied on.
        """
        self._limits = limits
        self._dialect = dialect
        self._beside = beside
        self._grants = grants
        self._view = view
        self._sharing = sharing

    def check(
        self, asking: tuple[str, str], claims: Sequence[Claim], gpus: Sequence[Gpu],
        *, deadline_s: float,
    ) -> None:  # fmt: skip
        """Raise NodeNotReady when a container (pod uid, name) is promised what others have.

        May ask the API server, until `deadline_s`: all Allocates of the node wait meanwhile.
        """
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        beside = self._beside()
        pods = {**self._view.pods.now().pods, **beside}
        if not self._objection(asking, claims, by_uuid, pods):
            return
        try:  # a pod may be gone of whose end the watch has not told yet
            fresh = {pod.uid: pod for pod in self._view.read_pods(deadline_s=deadline_s)}
            fresh |= beside
        except ClusterError as error:
            raise NodeNotReady(
                f"{self._objection(asking, claims, by_uuid, pods)}. That is what was known, and "
                "the API server does not answer; delete the pod, so that it is created anew"
            ) from error
        if objection := self._objection(asking, claims, by_uuid, fresh):
            raise NodeNotReady(f"{objection}; then delete the pod, so that it is scheduled again")

    def _objection(
        self,
        asking: tuple[str, str],
        claims: Sequence[Claim],
        gpus: Mapping[str, Gpu],
        pods: Mapping[str, Pod],
    ) -> str:
        records = self._grants.records()
        held: dict[str, list[tuple[GrantRecord, Mapping[str, int]]]] = {}
        for record in records:
            if (pod := pods.get(record.pod_uid)) is not None and holds(record, pod, asking):
                held.setdefault(record.pod_uid, []).append((record, self._raised(record)))
        ours = {uid for record in records for uid in (record.pod_uid, record.owner_uid)}
        ours.add(asking[0])
        theirs = [
            served_by_others(pod, self._view.node_name, self._dialect)
            for uid, pod in pods.items()
            if uid not in ours and self._dialect is not None
        ]
        for uuid, gpu in gpus.items():
            offered = offered_mib(gpu, self._sharing)
            wanted = promised_mib(claims, uuid, offered)
            others = sum(
                at_once((kind, promised_mib(has, uuid, offered)) for kind, has in served)
                for served in theirs
            )
            for uid, grants in held.items():
                amounts = [(one, allowed_mib(one, uuid, offered, raised)) for one, raised in grants]
                others += at_once(in_order(pods[uid], amounts))
            if objection := too_much(gpu, wanted, others, self._sharing):
                return objection
        return ""

    def _raised(self, record: GrantRecord) -> Mapping[str, int]:
        """The container's limits in bytes as they are now, if somebody has changed them."""
        if self._limits is None:
            return {}
        try:
            if (record.pod_uid, record.container) not in self._limits.changed():
                return {}
            file = self._limits.read(record.pod_uid, record.container)
        except AgentError as error:
            log.failing("limits not read", about=record.pod_uid, error=error)
            return {}
        now = limits_in(file) if file else {}
        return {uuid.lower(): limit.memory_limit_bytes for uuid, limit in now.items()}
