"""What of the node's GPUs is handed out as slices, by the grants and by kubelet's own books."""

from collections.abc import Callable, Collection, Mapping

from agent import logs
from agent.domain.grants import GrantRecord
from agent.domain.identities import held_as
from agent.domain.limit_lines import limits_in
from agent.domain.limits_file import MIB
from agent.domain.slices import WHOLE_PERCENT, Amount, Held, held_by
from agent.errors import AgentError
from agent.ports import ChangedLimits, GrantLog
from agent.services.published import Published

log = logs.get(__name__)

PERMILLE_PER_PERCENT = 10
NO_LIMIT_MIB = 1 << 40


class SliceBooks:
    """Reads the journal each time; what kubelet says is told to it. Thread-safe.

    `changed` counts changes: whoever tells kubelet what fits looks again then.
    """

    def __init__(
        self,
        grants: GrantLog,
        limits: ChangedLimits | None = None,
        *,
        counts: Callable[[GrantRecord], bool] = lambda _: True,
        promised: Callable[[], Mapping[str, Amount]] = dict,
        worth: Callable[[], Mapping[str, tuple[str, Amount]]] = dict,
    ) -> None:
        """`limits` knows what became of limits since they were granted.

        `counts` says which grants hold something, and `promised` what somebody else has given away
        of each GPU beside them. `worth` says of which GPU each id is, and how much: for ids that
        kubelet has given away and the journal knows nothing of, because it was lost.
        """
        self._worth = worth
        self._given: frozenset[str] = frozenset()
        self._grants = grants
        self._limits = limits
        self._counts = counts
        self._promised = promised
        self._released: frozenset[str] = frozenset()
        self.changed: Published[int] = Published(0)

    def records(self) -> list[GrantRecord]:
        """Grants that hold something: kubelet has not taken their ids back."""
        return [
            one
            for one in self._grants.records()
            if one.pod_uid not in self._released and self._counts(one)
        ]

    def held(self) -> Held:
        """What is handed out now."""
        changed = self._changed()

        def raised(record: GrantRecord) -> Mapping[str, Amount]:
            key = (record.pod_uid, held_as(record.pod_uid, record.container))
            return self._now(record) if key in changed else {}

        held = held_by(self.records(), raised).beside(self._promised())
        unknown = self._given - held.slices.keys()
        if not unknown:
            return held
        worth = self._worth()
        return held.with_slices({i: worth[i] for i in unknown if i in worth})

    def _changed(self) -> frozenset[tuple[str, str]]:
        """Whose limits were changed; as they were granted, while that cannot be read."""
        try:
            return frozenset(self._limits.changed()) if self._limits else frozenset()
        except AgentError as error:
            log.failing("changed limits not listed", error=error)
            return frozenset()

    def _now(self, record: GrantRecord) -> dict[str, Amount]:
        """Its limits as they are, by GPU in small letters."""
        try:
            file = self._limits.read(record.pod_uid, record.container) if self._limits else None
        except AgentError as error:
            log.failing("limits not read", about=record.pod_uid, error=error)
            return {}
        return {
            uuid.lower(): Amount(
                -(-limit.memory_limit_bytes // MIB) or NO_LIMIT_MIB,
                -(-limit.core_permille // PERMILLE_PER_PERCENT) or WHOLE_PERCENT,
            )
            for uuid, limit in (limits_in(file) if file else {}).items()
        }

    def overlapping(self, ids: Collection[str]) -> list[GrantRecord]:
        """Grants that hold one of these ids."""
        wanted = set(ids)
        return [one for one in self.records() if wanted.intersection(one.device_ids)]

    def touch(self) -> None:
        """A grant was made, or limits were changed: whoever tells what fits looks again."""
        self.changed.update(lambda count: count + 1)

    def given(self, ids: frozenset[str]) -> None:
        """Kubelet has given away exactly these."""
        if ids != self._given:
            self._given = ids
            self.touch()

    def release(self, identities: frozenset[str]) -> None:
        """Kubelet lists these grants no more: what they held can be had again."""
        if identities != self._released:
            self._released = identities
            self.touch()
