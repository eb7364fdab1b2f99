"""One case of a share of GPU time: what its tenants launch, and how far off they are in the worst window."""

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from built_hook import built
from share_bed import ALONE_POINTS, BESIDE_POINTS, Container, Kernels, Microseconds, Tenant, run

SKIP_S = 2.0


@dataclass(frozen=True)
class Case:
    """Tenants, what they launch, and how it is judged."""

    group: str
    name: str
    tenants: tuple[Tenant, ...]
    kernels: Kernels
    window_s: float = 1.0
    ideal: float = 0.0  # points that an ideal limiter is off with the same kernels
    event_ns: int = 0  # that an event holds up its stream
    waits: bool = False  # a tenant that waits for its launches may not want its share


def lasting(phase: str, window_s: float) -> tuple[str, ...]:
    """A phase that is as long as three windows and what is skipped take."""
    return (f"ms={round((SKIP_S + 3 * window_s + 0.5) * 1000)},{phase}".rstrip(","),)


def length(us: Microseconds) -> str:
    """How a length is called in names of cases."""
    if isinstance(us, tuple) and len(us) == 3:
        return f"{length(us[0])}, one in {us[2]} of {length(us[1])}"
    if isinstance(us, tuple):
        return f"{length(us[0])} to {length(us[1])}"
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us} us"


def target_points(case: Case) -> float:
    """Points that a case may be off, one container alone or several."""
    return ALONE_POINTS if case.group.startswith("alone") else BESIDE_POINTS


def _ran(case: Case, first_seed: int, without_limit: int = -1) -> list[Container]:
    """What the GPU did for each tenant, of which one may have no limit."""
    tenants = [
        replace(tenant, policy="disable") if number == without_limit else tenant
        for number, tenant in enumerate(case.tenants)
    ]
    with tempfile.TemporaryDirectory(prefix="vgpu-share-") as directory:
        containers = run(
            Path(directory), tenants, case.kernels, first_seed=first_seed, event_ns=case.event_ns
        )
    if any(result for container in containers for result in container.results):
        raise RuntimeError(f"{case.group}, {case.name}: a launch failed")
    return containers


def _beyond(case: Case, container: Container) -> tuple[float, float]:
    """Points below and above its share, in the windows in which it had least and most."""
    windows = container.percents(case.window_s, SKIP_S)
    return min(0, min(windows) - container.percent), max(0, max(windows) - container.percent)


def worst_error(case: Case, first_seed: int = 1) -> float:
    """Points, of the tenant and window that are furthest off; less what it lacks without a limit too."""
    errors: list[float] = []
    for number, container in enumerate(_ran(case, first_seed)):
        below, above = _beyond(case, container)
        if case.waits and -below > target_points(case):
            below -= _beyond(case, _ran(case, first_seed, without_limit=number)[number])[0]
        errors += (min(0, below), above)
    return max(errors, key=abs)


def judged(cases: Sequence[Case], first_seed: int = 1) -> list[float]:
    """The worst error of each, several cases at a time: they do not feel each other."""
    built()  # once, before several want it
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(lambda case: worst_error(case, first_seed), cases))
