"""What a container asks for of each vGPU, and whether a claim is more than that.

Whoever writes a pod writes its annotations, too, and so could decide on its vGPUs itself: more than
a quota let its limits be. HAMi's scheduler makes each claim of the container's own limits (requests
where there are none), so no claim can be more. It does not decide what a container leaves open:
then the whole GPU is what the scheduler gives by default. Source: HAMi 2.10,
pkg/device/nvidia/device.go, GenerateResourceRequests and Fit.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountNames:
    """By which resources containers ask for parts of a vGPU; an empty name: not looked at."""

    memory: str = "nvidia.com/gpumem"
    memory_percent: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    memory_unit_mib: int = 1  # HAMi's memoryFactor


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container asks for of each vGPU; 0: it says nothing."""

    memory_mib: int = 0
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
        memory_mib=amount(names.memory) * max(1, names.memory_unit_mib),
        memory_percent=min(amount(names.memory_percent), WHOLE_PERCENT),
        core_percent=min(amount(names.cores), WHOLE_PERCENT),
    )
    return NOTHING if found == NOTHING else found  # one object for all that say nothing


def more_than_asked(claim: Claim, asked: Asked, offered_mib: int) -> str:
    """What of a claim is more than its container asks for, in words; empty: nothing is.

    `offered_mib`: what the claim's GPU offers, of which a percentage is taken; 0: nobody knows.
    """
    if asked.memory_mib or (asked.memory_percent and offered_mib):
        # An amount goes first in every release; or 1 MiB beside 100 % would be no limit.
        most = asked.memory_mib or offered_mib * asked.memory_percent // WHOLE_PERCENT
        if not 0 < claim.memory_mib <= most:
            return f"{claim.memory_mib or 'all'} MiB, where the container asks for {most}"
    if 0 < asked.core_percent < WHOLE_PERCENT and not 0 < claim.core_percent <= asked.core_percent:
        return (
            f"{claim.core_percent or 'all'} % of the cores, where the container asks for "
            f"{asked.core_percent}"
        )
    return ""


def times_as_large(claim: Claim, asked: Asked) -> int:
    """In units so many times as large, the memory of the claim is what is asked for; 0: in none."""
    if not asked.memory_mib:
        return 0
    times, rest = divmod(claim.memory_mib, asked.memory_mib)
    return times if times > 1 and not rest else 0
