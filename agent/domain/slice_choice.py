"""Which slices kubelet should take for a container: of which GPUs, and of how many.

Kubelet takes the answer as a hint, and tops up what is missing as it likes.
"""

from collections.abc import Mapping, Sequence

PLACEMENTS = ("spread", "pack")
GPUS = ("one", "distinct", "any")


def preferred_slices(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    gpu_of: Mapping[str, str],
    load: Mapping[str, float],
    placement: str,
    gpus: str,
) -> list[str]:
    """Up to `size` distinct ids, those of `must_include` first.

    `gpu_of`: the GPU of each id of ours; `load`: what part of each GPU is handed out. `placement`:
    whether the GPU with most (pack) or least (spread) handed out comes first. `gpus`: whether one
    container's slices should be of one GPU, of distinct ones, or of any. Total: what cannot be had
    so is chosen as near to it as there is.
    """
    chosen = list(dict.fromkeys(must_include))[: max(0, size)]
    free: dict[str, list[str]] = {}
    for device_id in sorted(set(available).difference(chosen), key=_by_slot, reverse=True):
        free.setdefault(gpu_of.get(device_id, ""), []).append(device_id)
    taken = dict.fromkeys(free, 0)
    for device_id in chosen:
        uuid = gpu_of.get(device_id, "")
        taken[uuid] = taken.get(uuid, 0) + 1
    missing = size - len(chosen)

    def rank(uuid: str) -> tuple[float, str]:
        return (-load.get(uuid, 0.0) if placement == "pack" else load.get(uuid, 0.0)), uuid

    def key(uuid: str) -> tuple[object, ...]:
        enough, before = len(free[uuid]) >= missing, taken[uuid]
        if gpus == "one":  # where the others are; else where all fit; else on as few as possible
            return (not before, not enough, 0 if enough else -len(free[uuid]), *rank(uuid))
        if gpus == "distinct":
            return (before, *rank(uuid))
        return (0 if placement == "pack" else before, *rank(uuid))

    while missing > 0 and free:
        uuid = min(free, key=key)
        chosen.append(free[uuid].pop())
        taken[uuid] += 1
        missing -= 1
        if not free[uuid]:
            del free[uuid]
    return chosen


def _by_slot(device_id: str) -> tuple[str, int, str]:
    """Ids of one GPU and size by number, so that the first ones are taken first."""
    prefix, _, slot = device_id.rpartition("-")
    return prefix, int(slot) if slot.isdecimal() and len(slot) < 10 else 0, device_id  # noqa: PLR2004
