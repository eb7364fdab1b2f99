"""Which GPU instance a container gets, as HAMi 2.10's scheduler decides it, and how it says so.

The smallest profile with as much memory as is asked for, at the first free placement; profiles of
one or three slices from the high end. NOT imitated: scoring between nodes and GPUs beyond "the one
with most instances first", and the modes in which a pod may forbid MIG.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agent.sim.scheduler_placement import GpuRequest, NoFit
from agent.sim.scheduler_wire import PlacedClaim, SeenGpu, SeenProfile

MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
FROM_THE_END = ("1g.", "3g.")
Instance = tuple[str, int, int]  # GPU uuid, start, size


def place_instances(
    gpus: Sequence[SeenGpu], taken: Iterable[Instance], requests: Sequence[GpuRequest]
) -> list[list[PlacedClaim]]:
    """Decide for each container of one pod, in order. All or nothing: raises NoFit.

    One that is `alone` leaves its place to those after it.
    """
    used = list(taken)
    return [_place(gpus, list(used) if request.alone else used, request) for request in requests]


def _place(gpus: Sequence[SeenGpu], used: list[Instance], request: GpuRequest) -> list[PlacedClaim]:
    claims: list[PlacedClaim] = []
    for gpu in sorted(gpus, key=lambda gpu: -sum(one[0] == gpu.uuid for one in used)):
        if len(claims) == request.gpus:
            break
        found = _instance(gpu, used, request) if gpu.healthy and gpu.mode == "mig" else None
        if found is not None:
            profile, start, size = found
            used.append((gpu.uuid, start, size))
            claims.append(
                PlacedClaim(
                    gpu.uuid, profile.memory_mib, profile.core_percent, (profile.name, start, size)
                )
            )
    if len(claims) < request.gpus:
        raise NoFit(f"{len(claims)} of {request.gpus} MIG instances fit")
    return claims


def _instance(
    gpu: SeenGpu, used: Sequence[Instance], request: GpuRequest
) -> tuple[SeenProfile, int, int] | None:
    wanted_mib = request.memory_mib or gpu.memory_mib * request.memory_percent // 100
    fitting = [one for one in gpu.mig_profiles if one.memory_mib >= wanted_mib]
    for profile in sorted(fitting, key=lambda one: (one.memory_mib, one.core_percent)):
        backwards = profile.name.startswith(FROM_THE_END)
        for start, size in sorted(profile.placements, reverse=backwards):
            if not any(
                other[0] == gpu.uuid and start < other[1] + other[2] and other[1] < start + size
                for other in used
            ):
                return profile, start, size
    return None


def encode_instances(slots: Sequence[Sequence[PlacedClaim]]) -> str:
    """The annotation that says so; empty: no claim is an instance."""
    entries = []
    for container, claims in enumerate(slots):
        for device, claim in enumerate(claims):
            if claim.instance is not None:
                profile, start, size = claim.instance
                entries.append(
                    f'{{"containerIndex":{container},"deviceIndex":{device},'
                    f'"gpuUUID":"{claim.uuid}","profile":"{profile}",'
                    f'"placement":{{"start":{start},"size":{size}}}}}'
                )
    return f"[{','.join(entries)}]" if entries else ""


def decode_instances(text: str) -> list[dict[str, Any]]:
    """Read it back as the scheduler does. Raises ValueError for what it rejects."""
    entries: list[dict[str, Any]] = json.loads(text) if text else []
    seen = set()
    for one in entries:
        place = one["containerIndex"], one["deviceIndex"]
        names = [key in one for key in ("migUUID", "gpuInstanceID", "computeInstanceID")]
        if min(place) < 0 or not one["gpuUUID"] or not one["profile"] or place in seen:
            raise ValueError(f"incomplete or twice: {one}")
        if not one["placement"]["size"] or any(names) != all(names):
            raise ValueError(f"partial: {one}")
        seen.add(place)
    return entries
