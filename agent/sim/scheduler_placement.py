"""Where a pod's vGPUs go: the simplest policy that respects every limit.

Fills the fullest GPU that still fits, by index among equals. NOT imitated: spread, topology, NUMA
and mutex policies, scoring weights, use-gputype and use-gpuuuid filters, cordons. MIG instances
are placed in `scheduler_mig`.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agent.sim.scheduler_wire import PlacedClaim, SeenGpu

WHOLE_GPU_PERCENT = 100


class NoFit(Exception):
    """The pod does not fit on the node; the text says what is missing, as a pod event would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """What one container asks for. `memory_mib` 0 means `memory_percent` of the card."""

    gpus: int = 0
    memory_mib: int = 0
    memory_percent: int = 100
    core_percent: int = 0
    alone: bool = False  # it has ended when the containers after it start


@dataclass(slots=True)
class _Used:
    slots: int = 0
    memory_mib: int = 0
    core_percent: int = 0


def request_of(container: dict[str, Any], resource: str = "nvidia.com/gpu") -> GpuRequest:
    """Read a container's limits, or else requests, as HAMi's webhook and scheduler do."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or resources.get("requests") or {}
    domain = resource.partition("/")[0]

    def number(name: str, default: int = 0) -> int:
        text = str(limits.get(name, default))  # the API server rewrites 24000 as 24k
        return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)

    return GpuRequest(
        gpus=number(resource),
        memory_mib=number(f"{domain}/gpumem"),
        memory_percent=number(f"{domain}/gpumem-percentage", WHOLE_GPU_PERCENT),
        core_percent=number(f"{domain}/gpucores"),
    )


def place(
    gpus: Sequence[SeenGpu], taken: Sequence[PlacedClaim], requests: Sequence[GpuRequest]
) -> list[list[PlacedClaim]]:
    """Decide for each container of one pod, in order. All or nothing: raises NoFit.

    Args:
        gpus: the node's GPUs, from its register annotation.
        taken: the claims of all pods that are on the node already.
        requests: one per container; those without GPUs get an empty list. One that is `alone`
            leaves its room to those after it.
    """
    used = {gpu.uuid: _Used() for gpu in gpus}
    for claim in taken:
        if claim.uuid in used:
            _book(used[claim.uuid], claim)
    return [
        _place_container(gpus, deepcopy(used) if request.alone else used, request)
        for request in requests
    ]


def _book(used: _Used, claim: PlacedClaim) -> None:
    used.slots += claim.slots
    used.memory_mib += claim.memory_mib
    used.core_percent += claim.core_percent


def _place_container(
    gpus: Sequence[SeenGpu], used: dict[str, _Used], request: GpuRequest
) -> list[PlacedClaim]:
    claims: list[PlacedClaim] = []
    reasons: dict[str, int] = {}
    for gpu in sorted(gpus, key=lambda gpu: (-used[gpu.uuid].memory_mib, gpu.index)):
        if len(claims) == request.gpus:
            break
        memory_mib = request.memory_mib or gpu.memory_mib * request.memory_percent // 100
        claim = PlacedClaim(gpu.uuid, memory_mib, request.core_percent)
        if objection := _objection(gpu, used[gpu.uuid], claim):
            reasons[objection] = reasons.get(objection, 0) + 1
        else:
            claims.append(claim)
    if len(claims) < request.gpus:
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        raise NoFit(f"{len(claims)} of {request.gpus} GPUs fit; {found or 'there are no others'}")
    for claim in claims:
        _book(used[claim.uuid], claim)
    return claims


def _objection(gpu: SeenGpu, used: _Used, claim: PlacedClaim) -> str:
    if not gpu.healthy:
        return "unhealthy"
    if used.slots >= gpu.count:
        return "with no slot left"
    if used.memory_mib + claim.memory_mib > gpu.memory_mib:
        return "with insufficient memory"
    if used.core_percent + claim.core_percent > gpu.core_percent:
        return "with insufficient cores"
    if used.slots and claim.core_percent == WHOLE_GPU_PERCENT:
        return "not free for exclusive use"
    return ""
