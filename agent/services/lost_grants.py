"""Grants that the journal has lost while their containers go on: made anew from what is left.

Kubelet's checkpoint has the device ids and our very answer, and the container's limits file has its
limits: that is all that a record of a grant by its ids says.
"""

import time
from collections.abc import Callable, Mapping

from agent.domain.gpu import GpuInventory
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.identities import HOLDER
from agent.domain.kubelet_books import Entry
from agent.domain.limit_lines import limits_in
from agent.domain.limits_file import MIB, LimitsFile
from agent.domain.slices import VENDOR, Amount

PERMILLE_PER_PERCENT = 10


class LostGrants:
    """Makes records anew. Used by one thread."""

    def __init__(
        self,
        limits: Callable[[str, str], LimitsFile | None],
        *,
        decode: Callable[[bytes], Grant | None],
        gpus: Callable[[], GpuInventory],
        worth: Callable[[], Mapping[str, tuple[str, Amount]]],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`limits`: as `LiveLimits.read`. `decode` reads an answer of ours.

        `worth`: of which GPU each id is, and how much.
        """
        self._limits = limits
        self._decode = decode
        self._gpus = gpus
        self._worth = worth
        self._now_s = now_s

    def adopt(self, entry: Entry) -> GrantRecord | None:
        """The record; None where its answer or its limits are not known. Raises NodeNotReady."""
        grant, claims = self._decode(entry.answer), self._claims(entry)
        if grant is None or not claims:
            return None
        return GrantRecord(
            pod_uid=entry.grant,
            namespace="",
            pod_name=entry.grant,
            container=HOLDER,
            device_ids=tuple(sorted(entry.device_ids)),
            claims=claims,
            grant=grant,
            granted_at_s=self._now_s(),
            answered=True,
            owner_uid=entry.pod_uid,
        )

    def _claims(self, entry: Entry) -> tuple[Claim, ...]:
        """By its limits file; without one, by what its ids are."""
        file = self._limits(entry.grant, HOLDER)
        if file is not None:
            there = {gpu.uuid.lower(): gpu.uuid for gpu in self._gpus().gpus}
            return tuple(
                Claim(
                    there.get(uuid.lower(), uuid),
                    VENDOR,
                    -(-limit.memory_limit_bytes // MIB),
                    -(-limit.core_permille // PERMILLE_PER_PERCENT),
                )
                for uuid, limit in limits_in(file).items()
            )
        worth, sums = self._worth(), dict[str, Amount]()
        for uuid, part in (worth[one] for one in entry.device_ids if one in worth):
            sums[uuid] = sums.get(uuid, Amount()) + part
        return tuple(
            Claim(uuid, VENDOR, part.memory_mib, part.core_percent) for uuid, part in sums.items()
        )
