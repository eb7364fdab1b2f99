"""Which device ids kubelet should take: what a scheduler has decided, or what is near or far."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb

from agent.domain.topology import GpuPair, score
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


# --- without a scheduler that decides: NVIDIA's rules --------------------------------------------

DISTRIBUTED, PACKED, SPREAD = "distributed", "packed", "spread"
MOST_CHOICES = 20_000  # 16 GPUs have at most 12,870 subsets of one size


def greedy(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    everything: Sequence[str],
    *,
    physical: Callable[[str], str],
    policy: str = DISTRIBUTED,
) -> list[str]:
    """Up to `size` ids of shared devices, one by one from the best device left.

    `everything`: all ids of the resource; those that are not available are taken. distributed: from
    the device that has given least; packed: from the one that has given most; spread: as many
    different devices for this container as there are, then the one that has given least.
    """
    chosen = list(dict.fromkeys(must_include))[: max(0, size)]
    mine = Counter(physical(id_) for id_ in chosen)
    free: dict[str, list[str]] = {}
    for id_ in sorted(set(available).difference(chosen), key=_natural, reverse=True):
        free.setdefault(physical(id_), []).append(id_)
    total = Counter(physical(id_) for id_ in everything)

    def rank(device: str) -> tuple[int, int, str]:
        given = total[device] - len(free[device])
        if policy == PACKED:
            return (-given, mine[device], device)
        return (mine[device], given, device) if policy == SPREAD else (given, mine[device], device)

    while len(chosen) < size and free:
        device = min(free, key=rank)
        chosen.append(free[device].pop())
        mine[device] += 1
        if not free[device]:
            del free[device]
    return chosen


def _natural(id_: str) -> tuple[str, int, str]:
    head, _, number = id_.rpartition(":")
    return (head, int(number), id_) if number.isdecimal() and number.isascii() else (id_, 0, id_)


def aligned(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    pairs: Sequence[GpuPair],
) -> list[str]:
    """Up to `size` whole GPUs (ids are uuids) that are best connected with each other.

    Among equally good ones those that leave the rest best connected, for whoever comes next.
    """
    chosen = list(dict.fromkeys(must_include))[: max(0, size)]
    free = sorted(set(available).difference(chosen))
    wanted = min(size - len(chosen), len(free))
    if wanted <= 0:
        return chosen
    scores = {frozenset((pair.first, pair.second)): score(pair) for pair in pairs}

    def within(uuids: Sequence[str]) -> int:
        return sum(scores.get(frozenset(two), 0) for two in combinations(uuids, 2))

    if comb(len(free), wanted) > MOST_CHOICES:
        return _nearest_first(chosen, free, wanted, scores)

    def merit(more: tuple[str, ...]) -> tuple[int, int]:
        rest = [uuid for uuid in free if uuid not in more]
        return within([*chosen, *more]), within(rest)

    best = max(combinations(free, wanted), key=merit)  # of equal ones the first: by uuid
    return [*chosen, *best]


def _nearest_first(
    chosen: list[str], free: list[str], wanted: int, scores: Mapping[frozenset[str], int]
) -> list[str]:
    """Too many GPUs to try all: one by one the one that is nearest to those chosen."""
    chosen, left = list(chosen), list(free)
    for _ in range(wanted):
        nearest = max(left, key=lambda u: sum(scores.get(frozenset((u, c)), 0) for c in chosen))
        chosen.append(nearest)
        left.remove(nearest)
    return chosen
