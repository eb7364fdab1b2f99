"""What of the node's GPUs is handed out as slices, by the grants and by kubelet's own books."""

from collections.abc import Collection

from agent.domain.grants import GrantRecord
from agent.domain.slices import Held, held_by
from agent.ports import GrantLog
from agent.services.published import Published


class SliceBooks:
    """Reads the journal each time; what kubelet says is told to it. Thread-safe.

    `changed` counts changes: whoever tells kubelet what fits looks again then.
    """

    def __init__(self, grants: GrantLog) -> None:
        self._grants = grants
        self._released: frozenset[str] = frozenset()
        self.changed: Published[int] = Published(0)

    def records(self) -> list[GrantRecord]:
        """Grants that hold something: kubelet has not taken their ids back."""
        return [one for one in self._grants.records() if one.pod_uid not in self._released]

    def held(self) -> Held:
        """What is handed out now."""
        return held_by(self.records())

    def overlapping(self, ids: Collection[str]) -> list[GrantRecord]:
        """Grants that hold one of these ids."""
        wanted = set(ids)
        return [one for one in self.records() if wanted.intersection(one.device_ids)]

    def granted(self, record: GrantRecord) -> None:
        """A grant was made."""
        del record
        self._touch()

    def release(self, identities: frozenset[str]) -> None:
        """Kubelet lists these grants no more: what they held can be had again."""
        if identities != self._released:
            self._released = identities
            self._touch()

    def _touch(self) -> None:
        self.changed.update(lambda count: count + 1)
