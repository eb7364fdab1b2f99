"""GetPreferredAllocation where nobody else decides: which slices a container should get."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agent.domain.gpu import Sharing
from agent.domain.grants import GrantRecord
from agent.domain.slice_choice import preferred_slices
from agent.domain.slices import Offer, slices_of, whole
from agent.services.published import Inventory
from agent.services.slice_books import SliceBooks


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePolicy:
    """How slices are chosen; words of `agent.domain.slice_choice`."""

    placement: str = "spread"
    gpus: str = "one"


class SlicePreference:
    """Chooses device ids for kubelet. Thread-safe."""

    def __init__(
        self,
        inventory: Inventory,
        sharing: Sharing,
        books: SliceBooks,
        policy: SlicePolicy,
        *,
        running: Callable[[GrantRecord], bool] = lambda _: False,
    ) -> None:
        """`running`: whether processes of a grant's container are known to live right now."""
        self._running = running
        self._inventory = inventory
        self._sharing = sharing
        self._books = books
        self._policy = policy

    def preferred(
        self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """`size` ids, all of `must_include` among them; fewer if there are no more.

        Kubelet without its checkpoint has those of running containers for free: they would be
        refused, so they come last.
        """
        lost = self._in_use(set(available).difference(must_include))
        if len(left := [one for one in available if one not in lost]) >= size:
            available = left
        inventory, held = self._inventory.now(), self._books.held()
        load = {}
        for gpu in self._sharing.offered(inventory):
            has, used = whole(gpu, self._sharing), held.of(gpu.uuid)
            load[gpu.uuid] = max(
                used.memory_mib / max(1, has.memory_mib),
                used.core_percent / max(1, has.core_percent),
            )
        slices = slices_of(offer, inventory, self._sharing)
        return preferred_slices(
            available,
            must_include,
            size,
            gpu_of={one.device_id: one.gpu.uuid for one in slices},
            load=load,
            placement=self._policy.placement,
            gpus=self._policy.gpus,
        )

    def _in_use(self, ids: Collection[str]) -> set[str]:
        """Of these ids, those of containers whose processes run."""
        records = self._books.overlapping(ids)
        return {one for record in records if self._running(record) for one in record.device_ids}
