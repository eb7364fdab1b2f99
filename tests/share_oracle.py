"""The best that a limiter can do which neither interrupts kernels nor knows their lengths beforehand.

It charges every instant of GPU time exactly and at once, and starts the next kernel at the moment at
which the account is even. A kernel of length L then still takes the account down by L less its share
of the time that passes meanwhile, and a window that begins before and ends after is off by that:
with half of a GPU, 200 ms in a window of 2 s are 5 points. What the hook does is judged by what this
does with the same kernels.

The GPU is shared evenly at every instant by all who have a kernel on it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

STEP_S = 0.1
WORD = (1 << 64) - 1


def drawn_s(low_us: float, high_us: float, seed: int) -> Iterator[float]:
    """The lengths that the simulated driver draws for a process, in order (VGPU_SIM_SEED)."""
    low, high = math.log(low_us * 1000), math.log(high_us * 1000)
    for number in count(1):
        mixed = (seed * 0xD1342543DE82EF95 + number * 0x9E3779B97F4A7C15) & WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & WORD
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & WORD
        part = ((mixed ^ mixed >> 31) >> 11) * 2.0**-53
        yield math.floor(math.exp(low + part * (high - low))) / 1e9


@dataclass
class _Tenant:
    share: float
    lengths: Iterator[float]
    left_s: float = 0.0  # of the kernel that is on the GPU
    worked_s: float = 0.0
    noted_s: list[float] = field(default_factory=list)  # at the end of each step


def ideal_error(
    percents: Sequence[float], low_us: float, high_us: float, lasting_s: float,
    window_s: float, skip_s: float, first_seed: int = 1,
) -> float:  # fmt: skip
    """Points that the tenant and window are off that are furthest off, as `worst_error` counts."""
    tenants = [
        _Tenant(percent / 100, drawn_s(low_us, high_us, seed))
        for seed, percent in enumerate(percents, first_seed)
    ]
    now_s, end_s = 0.0, STEP_S
    while end_s <= lasting_s:
        running = _running(tenants, now_s)
        next_s = _next_event(tenants, running, now_s, end_s)
        for tenant in running:
            done_s = (next_s - now_s) / len(running)
            tenant.left_s -= done_s
            tenant.worked_s += done_s
        now_s = next_s
        if now_s >= end_s:
            for tenant in tenants:
                tenant.noted_s.append(tenant.worked_s)
            end_s += STEP_S
    return max(_error(tenant, window_s, skip_s) for tenant in tenants)


def _running(tenants: Sequence[_Tenant], now_s: float) -> list[_Tenant]:
    """Who has a kernel on the GPU; whose account is even starts the next."""
    for tenant in tenants:
        if tenant.left_s <= 1e-12 and tenant.share * now_s >= tenant.worked_s - 1e-12:
            tenant.left_s = next(tenant.lengths)
    return [tenant for tenant in tenants if tenant.left_s > 1e-12]


def _next_event(
    tenants: Sequence[_Tenant], running: Sequence[_Tenant], now_s: float, end_s: float
) -> float:
    """When the next kernel ends, the next account is even, or the step is over."""
    ends = [now_s + tenant.left_s * len(running) for tenant in running]
    even = [tenant.worked_s / tenant.share for tenant in tenants if tenant not in running]
    return min([end_s, *ends, *even])


def _error(tenant: _Tenant, window_s: float, skip_s: float) -> float:
    steps, first = round(window_s / STEP_S), round(skip_s / STEP_S)
    windows = zip(tenant.noted_s[first - 1 :], tenant.noted_s[first - 1 + steps :], strict=False)
    return max(abs((after - before) / window_s - tenant.share) * 100 for before, after in windows)
