"""Pods about which the scheduler has said nothing get slices, where that is wanted.

They were not placed by the scheduler that annotates, so it does not know of them; what it has
promised to others on a GPU is not touched.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from agent.domain.decided import asked_vgpus, claimed
from agent.domain.dialect import DECIDED, HAMI
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.slices import Amount, Offer
from agent.errors import NoPendingPod
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


def promised(table: PodTable, records: Iterable[GrantRecord]) -> dict[str, Amount]:
    """What pods that are there have by the scheduler's decision, granted or not yet, by GPU.

    `records`: all grants. Who was granted all it asks for has that, whatever its annotation
    says since.
    """
    granted: dict[str, Counter[Claim]] = {}
    sliced = set()  # who has slices was served without a decision
    for record in records:
        granted.setdefault(record.pod_uid, Counter()).update(record.claims)
        sliced.add(record.owner_uid)
    sums: dict[str, Amount] = {}
    for uid, pod in table.pods.items():
        if pod.finished:
            continue
        has = granted.get(uid, Counter())
        if uid not in sliced and has.total() < asked_vgpus(pod):  # else nothing is left to grant
            has |= Counter(claimed(pod, DECIDED, HAMI))
        for claim in has.elements():
            amount = Amount(claim.memory_mib, claim.core_percent)
            sums[claim.uuid] = sums.get(claim.uuid, Amount()) + amount
    return sums


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
