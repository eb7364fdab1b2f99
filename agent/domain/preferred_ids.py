"""Which device ids kubelet should take, so that its books agree with the scheduler's decision."""

from collections import Counter
from collections.abc import Callable, Sequence


def _spread(
    left: Sequence[str], count: int, taken: Counter[str], gpu_of: Callable[[str], str]
) -> list[str]:
    """`count` ids of `left`: of the GPU that has given least so far, then has most to give."""
    left = sorted(left)
    free = Counter(gpu_of(id_) for id_ in left)
    chosen: list[str] = []
    while len(chosen) < count and left:
        best = min(left, key=lambda id_: (taken[gpu_of(id_)], -free[gpu_of(id_)], id_))
        left.remove(best)
        chosen.append(best)
        taken[gpu_of(best)] += 1
        free[gpu_of(best)] -= 1
    return chosen


def preferred_ids(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    wanted_gpus: Sequence[str],
    gpu_of: Callable[[str], str],
) -> list[str]:
    """Up to `size` distinct ids, all of `must_include` first.

    `wanted_gpus`: the GPU uuid of each claim of the container, in order; what they leave open is
    spread over the GPUs. `gpu_of` gives the GPU uuid of an id ("" for a foreign one). Total: fewer
    ids than asked for when there are no more.
    """
    chosen = list(dict.fromkeys(must_include))[: max(0, size)]
    open_claims = Counter(wanted_gpus)
    open_claims.subtract(Counter(gpu_of(id_) for id_ in chosen))
    rest = sorted(set(available) - set(chosen))
    for uuid in dict.fromkeys(wanted_gpus):
        fitting = [id_ for id_ in rest if gpu_of(id_) == uuid]
        room = max(0, min(open_claims[uuid], size - len(chosen)))
        chosen += fitting[:room]
    left = [id_ for id_ in rest if id_ not in set(chosen)]
    taken = Counter(gpu_of(id_) for id_ in chosen)
    return chosen + _spread(left, size - len(chosen), taken, gpu_of)
