"""Sees to it that no GPU's memory is promised twice: the scheduler's books may be wrong or old."""

from collections.abc import Callable, Mapping, Sequence

from agent import logs
from agent.domain.gpu import Gpu, Sharing
from agent.domain.grants import Claim
from agent.domain.oversubscription import holds, offered_mib, promised_mib, too_much
from agent.domain.pods import Pod
from agent.errors import ClusterError, NodeNotReady
from agent.ports import GrantLog
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
        beside: Callable[[], Mapping[str, Pod]] = dict,
    ) -> None:
        """`beside`: pods with grants that the API server's list does not have by the same uid."""
        self._beside = beside
        self._grants = grants
        self._view = view
        self._sharing = sharing

    def check(
        self, asking: tuple[str, str], claims: Sequence[Claim], gpus: Sequence[Gpu],
        *, deadline_s: float | None = None,
    ) -> None:  # fmt: skip
        """Raise NodeNotReady when a container (pod uid, name) is promised what others have."""
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        beside = self._beside()
        pods = {**self._view.pods.now().pods, **beside}
        if not self._objection(asking, claims, by_uuid, pods):
            return
        try:  # a pod may be gone of whose end the watch has not told yet
            fresh = {pod.uid: pod for pod in self._view.read_pods(deadline_s=deadline_s)}
            fresh |= beside
        except ClusterError as error:
            log.failing("sum of limits not checked", error=error)
            return
        if objection := self._objection(asking, claims, by_uuid, fresh):
            raise NodeNotReady(f"{objection}; then delete the pod, so that it is scheduled again")

    def _objection(
        self,
        asking: tuple[str, str],
        claims: Sequence[Claim],
        gpus: Mapping[str, Gpu],
        pods: Mapping[str, Pod],
    ) -> str:
        held = [
            record
            for record in self._grants.records()
            if (pod := pods.get(record.pod_uid)) is not None and holds(record, pod, asking)
        ]
        for uuid, gpu in gpus.items():
            offered = offered_mib(gpu, self._sharing)
            wanted = promised_mib(claims, uuid, offered)
            others = sum(promised_mib(record.claims, uuid, offered) for record in held)
            if objection := too_much(gpu, wanted, others, self._sharing):
                return objection
        return ""
