"""What a container asks for of each vGPU, and whether a claim is more than that.

Whoever writes a pod writes its annotations, too, and so could decide on its vGPUs itself: more than
a quota let its limits be. The schedulers make each claim of the container's own limits (requests
where there are none), so no claim can be more. What a container leaves open is the whole GPU by
default. Source: HAMi 2.10, pkg/device/nvidia/device.go, GenerateResourceRequests and Fit; Volcano,
pkg/scheduler/api/devices/nvidia/vgpu/utils.go, resourcereqs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.domain.grants import Claim

WHOLE_PERCENT = 100
_QUANTITY = re.compile(
    r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(k|M|G|Ki|Mi|Gi|[eE][0-9]{1,2})?", re.ASCII
)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
MOST = 10**9  # of anything that is counted; more is nonsense


@dataclass(frozen=True, slots=True)
class AmountNames:
    """By which resources containers ask for parts of a vGPU; an empty name: not looked at."""

    memory: str = "nvidia.com/gpumem"
    memory_percent: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"


VOLCANO = AmountNames(
    "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container asks for of each vGPU; 0: it says nothing."""

    memory_units: int = 0
    memory_percent: int = 0  # of what the GPU offers
    core_percent: int = 0


NOTHING = Asked()


def whole(value: Any) -> int:
    """A whole number of an extended resource: `2`, `"2"`, `"1k"` as the API server rewrites 1000.

    Anything else is 0, and so is what would be above `MOST`. Total.
    """
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value if 0 <= value <= MOST else 0
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return 0
    digits, fraction, unit = found[1], found[2] or "", found[3] or ""
    times = _UNITS[unit] if unit in _UNITS else 10 ** int(unit[1:])
    number, rest = divmod(int(digits + fraction) * times, 10 ** len(fraction))
    return 0 if rest or number > MOST else number


def asked_of(limits: Mapping[str, Any], requests: Mapping[str, Any], names: AmountNames) -> Asked:
    """What a container's limits say, each one by its requests where it is missing there. Total."""

    def amount(name: str) -> int:
        return whole(limits.get(name, requests.get(name, 0))) if name else 0

    found = Asked(
        memory_units=amount(names.memory),
        memory_percent=min(amount(names.memory_percent), WHOLE_PERCENT),
        core_percent=min(amount(names.cores), WHOLE_PERCENT),
    )
    return NOTHING if found == NOTHING else found  # one object for all that say nothing


def more_than_asked(claim: Claim, asked: Asked, *, unit_mib: int, offered_mib: int) -> str:
    """What of a claim is more than its container asks for, in words; empty: nothing is.

    `unit_mib`: what one of `memory_units` is. `offered_mib`: what the claim's GPU offers, of which
    a percentage is taken; 0: nobody knows.
    """
    if asked.memory_units or (asked.memory_percent and offered_mib):
        # An amount goes first in every release; or 1 MiB beside 100 % would be no limit.
        by_percent = offered_mib * asked.memory_percent // WHOLE_PERCENT
        most = asked.memory_units * unit_mib or by_percent
        if not 0 < claim.memory_mib <= most:
            return f"{claim.memory_mib or 'all'} MiB, where the container asks for {most}"
    if 0 < asked.core_percent < WHOLE_PERCENT and not 0 < claim.core_percent <= asked.core_percent:
        return (
            f"{claim.core_percent or 'all'} % of the cores, where the container asks for "
            f"{asked.core_percent}"
        )
    return ""


def other_unit_mib(claim: Claim, asked: Asked, *, unit_mib: int) -> int:
    """In larger units, of so many MiB, the memory of the claim is what is asked for; 0: in none."""
    if not asked.memory_units:
        return 0
    other_mib, rest = divmod(claim.memory_mib, asked.memory_units)
    return other_mib if other_mib > unit_mib and not rest else 0
