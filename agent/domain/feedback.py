"""Who has to wait for whom, and whose share of time is not to be kept: HAMi's table of priorities.

One round over all containers of the node, as HAMi 2.10's monitor makes it every 5 s (feedback.go,
Observe): first everybody's recent kernels are counted down and who computes is counted, by GPU and
priority; then each container is judged by what is counted on all of its GPUs. Any number of
priorities; 0 is the highest, and containers below 0 count for nobody.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.domain.pods import Container

BLOCKED = -1
DEFAULT_PRIORITY = 1
UUID_CHARS = 40  # of a device's name that a monitor goes by

_Key = TypeVar("_Key", bound=Hashable)
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A container as the table sees it."""

    recent_kernel: int  # 2: launched since the last round or the one before it; < 0: blocked
    priority: int
    devices: frozenset[str]  # uuids
    switch: int  # 1: its share of time is to be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a round changes of a container. None: it stays."""

    recent_kernel: int | None = None
    switch: int | None = None


def observe(sharers: Mapping[_Key, Sharer]) -> dict[_Key, Change]:
    """One round of the table; gives only those of whom something changes."""
    counted = {key: _counted_down(sharer) for key, sharer in sharers.items()}
    active = Counter(
        (uuid, sharer.priority)
        for sharer in counted.values()
        if sharer.recent_kernel > 0 and sharer.priority >= 0
        for uuid in sharer.devices
    )
    above = _highest(active)
    changes = {}
    for key, sharer in counted.items():
        before = sharers[key]
        change = _difference(before, _judged(sharer, active, above))
        if change != Change():
            changes[key] = change
    return changes


def _counted_down(sharer: Sharer) -> Sharer:
    return replace(sharer, recent_kernel=sharer.recent_kernel - (sharer.recent_kernel > 0))


def _highest(active: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """The highest priority (the smallest number) that computes on each device."""
    highest: dict[str, int] = {}
    for uuid, priority in active:
        highest[uuid] = min(priority, highest.get(uuid, priority))
    return highest


def _judged(
    sharer: Sharer, active: Mapping[tuple[str, int], int], highest: Mapping[str, int]
) -> Sharer:
    blocked = any(highest.get(uuid, sharer.priority) < sharer.priority for uuid in sharer.devices)
    among_equals = any(active.get((uuid, sharer.priority), 0) > 1 for uuid in sharer.devices)
    recent = sharer.recent_kernel
    return replace(
        sharer,
        recent_kernel=(recent if recent < 0 else BLOCKED) if blocked else max(recent, 0),
        switch=int(blocked or among_equals),
    )


def _difference(before: Sharer, after: Sharer) -> Change:
    return Change(
        recent_kernel=after.recent_kernel if after.recent_kernel != before.recent_kernel else None,
        switch=after.switch if after.switch != before.switch else None,
    )


def priority_of(in_region: int | None, asked: int, *, of_region: bool) -> int:
    """A container's priority.

    `in_region` is what its library wrote down (None: no process of it did yet, or it has no region
    that can be read), where any of its processes may write 0 and have everybody else wait; `asked`
    is what the pod asks for, which its author and whoever admits pods decide. With `of_region` the
    first is believed, as by HAMi's monitor. Else it may be lower than what the pod says, not
    higher.
    """
    if in_region is None:
        return asked
    return in_region if of_region else max(in_region, asked)


def asked_of(spec: Container | None, at_grant: int | None) -> int:
    """What a container's pod asks for.

    Without its specification, as while a new agent cannot reach the API server: `at_grant`, what it
    asked for when it was granted (None: not known).
    """
    if spec is not None:
        return asked_priority(spec.task_priority)
    return DEFAULT_PRIORITY if at_grant is None else at_grant


def asked_strict(core_policy: str | None) -> bool:
    """Whether a pod asks, by GPU_CORE_UTILIZATION_POLICY, never to have more than its share."""
    return (core_policy or "").lower() == "force"


def asked_priority(text: str | None) -> int:
    """What a pod asks for by its CUDA_TASK_PRIORITY. Total."""
    stripped = (text or "").strip()
    digits = stripped.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        return DEFAULT_PRIORITY
    value = min(int(digits[:10]), _INT_MAX)
    return -value if stripped.startswith("-") else value
