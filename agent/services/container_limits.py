"""What a container may use and where it counts: its limits file, and the usage region that names.

The agent makes the region and says in the limits file, which the container cannot write, which file
it is. So a container that deletes or exchanges its region does not start with a second budget. What
processes may be using is kept, however often kubelet asks, and so are limits that were changed.
"""

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Claim
from agent.domain.identities import held_as
from agent.domain.limit_lines import whole
from agent.domain.limits_file import (
    CorePolicy,
    LimitsFile,
    MalformedLimits,
    decode,
    encode,
    limits_of,
)
from agent.domain.new_region import RegionMark, kept_region, new_region
from agent.ports import Caches, ChangedLimits

CACHE_NAMES = uuid.UUID("5a1d6f0e-4c0f-4f43-9f0e-6c1f4b7a9b52")


def cache_name(pod_uid: str, container: str) -> str:
    """The usage region's file name: the same whenever this container is asked for."""
    named = f"{pod_uid}/{held_as(pod_uid, container)}"
    return f"{uuid.uuid5(CACHE_NAMES, named)}.cache"


def _new_id() -> int:
    return secrets.randbits(64) or 1


class ContainerLimits:
    """Writes limits files and makes usage regions. As thread-safe as its caches are."""

    def __init__(
        self,
        caches: Caches,
        policy: GrantPolicy,
        *,
        changed: ChangedLimits | None = None,
        now_s: Callable[[], float] = time.time,
        new_id: Callable[[], int] = _new_id,
    ) -> None:
        self._caches = caches
        self._policy = policy
        self._changed = changed
        self._now_s = now_s
        self._new_id = new_id

    def write(self, pod_uid: str, container: str, claims: Sequence[Claim]) -> Path | None:
        """Give the limits file; None when the container's environment must do.

        The container's directory has to be there. Raises NodeNotReady.
        """
        name = cache_name(pod_uid, container)
        limits = limits_of(
            claims,
            cache_path=f"{self._policy.hook_dir}/{name}",
            oversubscribe=self._policy.oversubscribed,
            # Not DEFAULT: any process of the container can write the switch that it goes by. Who is
            # alone on a GPU is lent the rest of it instead (services/lending.py).
            core_policy=(
                CorePolicy.DISABLE if self._policy.disable_core_limit else CorePolicy.FORCE
            ),
        )
        if limits is None:
            return None
        mark = self._region(pod_uid, container, name, limits)
        marked = replace(limits, region_inode=mark.inode, region_id=mark.id)
        path = self._caches.write_limits(pod_uid, container, encode(marked))
        if self._changed is not None:
            self._changed.settle(pod_uid, container)
        return path

    def _region(self, pod_uid: str, container: str, name: str, limits: LimitsFile) -> RegionMark:
        seen = self._caches.seen_region(pod_uid, container, name)
        kept = kept_region(seen, self._mark_before(pod_uid, container))
        if kept is not None:
            return kept
        region_id = self._new_id()
        pieces = new_region(limits, region_id=region_id, now_s=int(self._now_s()))
        inode = self._caches.make_region(pod_uid, container, name, pieces)
        return RegionMark(inode, region_id)

    def _mark_before(self, pod_uid: str, container: str) -> RegionMark:
        try:
            before = decode(whole(self._caches.read_limits(pod_uid, container)))
        except MalformedLimits:
            return RegionMark()
        return RegionMark(before.region_inode, before.region_id)
