"""Which device ids kubelet should take, so that its books agree with the scheduler's decision."""

from collections import Counter
from collections.abc import Sequence

from agent.domain.vgpu_ids import parse_vgpu_id


def gpu_of(device_id: str) -> str:
    """The GPU uuid in a vGPU id; empty for an id that is none of ours."""
    parsed = parse_vgpu_id(device_id)
    return parsed[0] if parsed else ""


def preferred_ids(
    available: Sequence[str], must_include: Sequence[str], size: int, wanted_gpus: Sequence[str]
) -> list[str]:
    """Up to `size` distinct ids, those of `must_include` first, as kubelet demands.

    `wanted_gpus`: the GPU uuid of each claim of the container, in order; what they leave open is
    spread over the GPUs, the one that has given least and has most left first. Total: fewer ids
    than asked for when there are no more.
    """
    chosen = list(dict.fromkeys(must_include))[: max(0, size)]
    taken = Counter(gpu_of(id_) for id_ in chosen)
    free: dict[str, list[str]] = {}
    for id_ in sorted(set(available).difference(chosen), reverse=True):
        free.setdefault(gpu_of(id_), []).append(id_)
    open_claims = Counter(wanted_gpus)
    open_claims.subtract(taken)

    def take(uuid: str) -> None:
        chosen.append(free[uuid].pop())
        taken[uuid] += 1
        if not free[uuid]:
            del free[uuid]

    for uuid in wanted_gpus:
        if len(chosen) < size and uuid in free and open_claims[uuid] > 0:
            open_claims[uuid] -= 1
            take(uuid)
    while len(chosen) < size and free:
        take(min(free, key=lambda uuid: (taken[uuid], -len(free[uuid]), uuid)))
    return chosen
