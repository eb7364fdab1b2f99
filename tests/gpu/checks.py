"""What is checked on a real GPU, in this order: what matters most and costs least comes first."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.gpu import memory_checks, program_checks, share_checks, time_checks
from tests.gpu.page import Result
from tests.gpu.tenants import Bed


@dataclass(frozen=True)
class Suite:
    """Where it is checked, and how long shares of time are watched."""

    bed: Bed
    seconds: float = 2.0
    libraries: Mapping[str, str] = field(default_factory=dict)  # torch, jax, cupy: their releases

    def until(self, until_s: float) -> "Suite":
        """The same, with nothing started or waited for after this (monotonic)."""
        return replace(self, bed=replace(self.bed, until_s=until_s))


@dataclass(frozen=True)
class Check:
    """One of them. `limit_s`: after which it is broken off. `needs`: a library that it is about."""

    about: str
    find: Callable[[Suite], Iterable[Result]]
    limit_s: float
    needs: str = ""


def _of_bed(find: Callable[[Bed], Iterable[Result]], limit_s: float, needs: str = "") -> Check:
    return Check(
        (find.__doc__ or "").splitlines()[0], lambda suite: find(suite.bed), limit_s, needs
    )


def _shares(name: str, needs: str = "") -> Check:
    load = share_checks.LOADS[name]
    return Check(
        f"Shares of GPU time are what was given: {name}.",
        lambda suite: share_checks.shares(suite.bed, name, load, suite.seconds),
        limit_s=90,
        needs=needs,
    )


CHECKS: Mapping[str, Check] = {
    "contexts": _of_bed(memory_checks.contexts, 30),
    "race": _of_bed(memory_checks.race, 90),
    "views": Check(
        "nvidia-smi, PyTorch and cuMemGetInfo say the same of a container that holds something.",
        lambda suite: memory_checks.views(suite.bed, torch="torch" in suite.libraries),
        limit_s=40,
    ),
    "pools": _of_bed(memory_checks.pools, 30),
    "overhead": _of_bed(time_checks.overhead, 60),
    "events": _of_bed(time_checks.events, 60),
    "illegal": _of_bed(program_checks.illegal, 40),
    "step": _of_bed(share_checks.step, 30),
    "share-small": _shares("small kernels"),
    "share-graph": _shares("CUDA graph"),
    "share-memory": _shares("memory-bound"),
    "share-matmul": _shares("matmul", needs="torch"),
    "memory": _of_bed(memory_checks.torch_memory, 60, needs="torch"),
    "training": _of_bed(program_checks.training, 90, needs="torch"),
    "loader": _of_bed(program_checks.loader, 60, needs="torch"),
    "compile": _of_bed(program_checks.compiled, 120, needs="torch"),
    "jax": _of_bed(program_checks.jax, 90, needs="jax"),
    "cupy": _of_bed(program_checks.cupy, 60, needs="cupy"),
    # Last: where the time for all checks is short, these are what is left out.
    "share-streams": _shares("16 streams"),
    "share-one-queue": _shares("16 streams in one queue"),
    "share-contexts": _shares("two contexts"),
    "share-legacy": _shares("legacy stream and blocking ones"),
}
