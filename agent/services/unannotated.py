"""Pods about which the scheduler has said nothing get slices, where that is wanted.

They were not placed by the scheduler that annotates, so it does not know of them; what it has
promised to others on a GPU is not touched.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from agent.domain.claims import decode_claims
from agent.domain.dialect import DECIDED
from agent.domain.grants import Grant, GrantRecord
from agent.domain.identities import is_identity
from agent.domain.slices import Amount, Offer
from agent.errors import MalformedAnnotation, NoPendingPod
from agent.services.published import Pods, PodTable
from agent.services.slice_allocator import SliceAllocator


class _Allocator(Protocol):
    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant: ...


class OrSlice:
    """Grants what the scheduler decided; a slice by the ids where it decided nothing."""

    def __init__(self, decided: _Allocator, slices: SliceAllocator, offer: Offer) -> None:
        self._decided = decided
        self._slices = slices
        self._offer = offer

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        """Raises AllocateRefused, ClusterError: whoever cannot be asked has not decided nothing."""
        try:
            return self._decided.allocate(device_ids, deadline_s=deadline_s)
        except NoPendingPod:
            return self._slices.allocate(self._offer, device_ids, deadline_s=deadline_s)


def promised(table: PodTable) -> dict[str, Amount]:
    """What the scheduler has decided for pods that are there, by GPU, whether granted or not."""
    sums: dict[str, Amount] = {}
    for pod in table.pods.values():
        if pod.finished or DECIDED not in pod.annotations:
            continue
        try:
            slots = decode_claims(pod.annotations[DECIDED])
        except MalformedAnnotation:
            continue  # nobody can be granted that
        for claim in (claim for slot in slots for claim in slot):
            amount = Amount(claim.memory_mib, claim.core_percent)
            sums[claim.uuid] = sums.get(claim.uuid, Amount()) + amount
    return sums


def counted_by_itself(pods: Pods) -> Callable[[GrantRecord], bool]:
    """Which grants count beside what is promised: those of which the scheduler knows nothing."""

    def counts(record: GrantRecord) -> bool:
        if is_identity(record.pod_uid):
            return True
        pod = pods.now().pods.get(record.pod_uid)
        return pod is not None and not pod.finished and DECIDED not in pod.annotations

    return counts


def merge(into: Pods, cluster: Pods, own: Pods) -> None:
    """From now on have one table with the pods of both: the API server's and kubelet's."""

    def merged(_: PodTable) -> PodTable:
        theirs, ours = cluster.now(), own.now()
        return PodTable(
            {**theirs.pods, **ours.pods}, synced=theirs.synced and (ours.synced or not ours.pods)
        )

    def update() -> None:
        into.update(merged)

    cluster.listen(update)
    own.listen(update)
    update()
