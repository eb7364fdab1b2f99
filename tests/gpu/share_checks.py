"""Checks of shares of GPU time: achieved work against uncapped work; and how fast a new limit holds."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

from agent.domain.limits_file import CorePolicy
from tests.gpu.granted import Granted
from tests.gpu.page import Result, control_result, share_result, step_results
from tests.gpu.tenants import ONE_QUEUE, Bed, Tenant, TenantError

ALONE = (10, 25, 50, 75, 90)
TOGETHER = ((10, 90), (30, 70), (50, 50), (25, 25, 25, 25))
CONTROLS = ((25,), (30, 70))  # what a GPU that nobody limits does not do by itself
ALONE_POINTS, PAIR_POINTS = 2.0, 3.0
SKIP_S = 1.0  # what has just begun, or been changed, settles
STEPS = ((0.0, 30), (1.5, 70), (3.0, 20))  # from when on which share holds
STEPS_S = 4.5
CONTAINERS = count()
FEW_ALONE, FEW_TOGETHER = (30, 80), ((30, 70),)  # of what is about measuring, and not about shares


@dataclass(frozen=True)
class Load:
    """A program that works, what it finds in its environment, and the shares that it is given."""

    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    alone: Sequence[int] = ALONE
    together: Sequence[Sequence[int]] = TOGETHER

    @classmethod
    def of_few(cls, kind: str, env: Mapping[str, str] | None = None) -> "Load":
        """Work of this kind, at fewer shares."""
        return cls(("load_work.py", kind), env or {}, FEW_ALONE, FEW_TOGETHER)


LOADS: Mapping[str, Load] = {
    "matmul": Load(("torch_work.py", "matmul")),
    "small kernels": Load(("load_work.py", "small")),
    "CUDA graph": Load(("load_work.py", "graph")),
    "memory-bound": Load(("load_work.py", "memory")),
    "16 streams": Load.of_few("streams"),
    "16 streams in one queue": Load.of_few("streams", ONE_QUEUE),
    "two contexts": Load.of_few("contexts"),
    "legacy stream and blocking ones": Load.of_few("legacy"),
}


@dataclass(frozen=True)
class Loads:
    """Containers with one load, each for as long as this object is entered."""

    check: str
    words: Sequence[str]
    rounds: int
    seconds: float
    whole: float  # pieces a second without the hook

    @classmethod
    def measured(cls, bed: Bed, check: str, words: Sequence[str], seconds: float) -> "Loads":
        """See what the GPU does of it with nobody else and without the hook. Raises TenantError."""
        with bed.start(words, hooked=False) as tenant:
            rounds = int(tenant.hear()["rounds"])
            whole = float(tenant.ask("rate", seconds, SKIP_S)["rate"])
        if whole <= 0:
            raise TenantError(f"{check}: without a limit nothing was finished")
        return cls(check, words, rounds, seconds, whole)

    def start(
        self, stack: ExitStack, bed: Bed, policy: CorePolicy, number: int
    ) -> list[tuple[Granted, Tenant]]:
        """So many containers, ready to work."""
        granted = [
            Granted.make(bed, f"c{next(CONTAINERS)}", core_percent=50, policy=policy)
            for _ in range(number)
        ]
        tenants = [stack.enter_context(one.start([*self.words, self.rounds])) for one in granted]
        for tenant in tenants:
            tenant.hear()
        return list(zip(granted, tenants, strict=True))

    def shares(
        self, running: Sequence[tuple[Granted, Tenant]], percents: Sequence[int]
    ) -> list[Result]:
        """One result for each of them; the first of those that run work, with these limits."""
        working = running[: len(percents)]
        for (granted, _), percent in zip(working, percents, strict=True):
            granted.change(percent)
        for _, tenant in working:
            tenant.go("rate", self.seconds, SKIP_S)
        rates = [float(tenant.hear()["rate"]) for _, tenant in working]
        alone = len(percents) == 1
        name = "alone" if alone else f"of {'/'.join(map(str, percents))}"
        return [
            share_result(
                self.check, f"{percent} % {name}", wanted_percent=percent,
                got_percent=rate / self.whole * 100,
                within_points=ALONE_POINTS if alone else PAIR_POINTS,
            )
            for percent, rate in zip(percents, rates, strict=True)
        ]  # fmt: skip


def shares(bed: Bed, name: str, load: Load, seconds: float) -> Iterator[Result]:
    """Every share alone and in company, then the same limits with nobody who keeps them."""
    check = f"share of GPU time, {name}"
    bed = replace(bed, environ={**bed.environ, **load.env})
    loads = Loads.measured(bed, check, load.words, seconds)
    yield Result(check=check, name="uncapped", value=f"{loads.whole:.1f} pieces a second",
                 wanted="for the record")  # fmt: skip
    with ExitStack() as stack:
        running = loads.start(stack, bed, CorePolicy.FORCE, max(map(len, load.together)))
        for percents in (*((percent,) for percent in load.alone), *load.together):
            yield from loads.shares(running, percents)
    with ExitStack() as stack:
        running = loads.start(stack, bed, CorePolicy.DISABLE, max(map(len, CONTROLS)))
        disabled = [one for percents in CONTROLS for one in loads.shares(running, percents)]
        yield control_result(check, disabled)


def step(bed: Bed) -> Iterator[Result]:
    """How soon a limit that is changed while the container works holds."""
    check = "live limit"
    words = LOADS["small kernels"].words
    loads = Loads.measured(bed, check, words, 1.0)
    granted = Granted.make(bed, f"c{next(CONTAINERS)}", core_percent=STEPS[0][1])
    with granted.start([*words, loads.rounds]) as tenant:
        tenant.hear()
        tenant.go("when", STEPS_S)
        began_s = time.monotonic()
        changed = [(began_s, float(STEPS[0][1]))]
        for at_s, percent in STEPS[1:]:
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            granted.change(percent)
            changed.append((time.monotonic(), float(percent)))
        done_s = [float(at) for at in tenant.hear()["done_s"]]
    yield from step_results(check, changed, done_s, whole=loads.whole)
