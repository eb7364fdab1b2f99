"""How well two GPUs talk to each other, as a number the scheduler can compare.

The score of an ordered pair is the points of the nearest thing they share on the PCIe tree plus
100 per NVLink between them. Source: HAMi 2.6 and later, annotation `hami.io/node-nvidia-score`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

POINTS = {
    "system": 10,  # different CPUs
    "node": 20,  # same CPU
    "hostbridge": 30,
    "multiple": 40,  # several PCIe switches between them
    "single": 50,  # one PCIe switch
    "internal": 60,  # the same board
}
NVLINK_POINTS = 100
MOST_NVLINKS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPair:
    """What the driver says about two GPUs. Links of one GPU to a switch count for every pair."""

    first: str  # uuid
    second: str
    level: str  # a key of POINTS; "" when the driver does not know
    links: int = 0  # NVLinks that `first` has to `second`
    links_back: int = 0  # NVLinks that `second` has to `first`

    @property
    def asymmetric(self) -> bool:
        """Whether the two ends disagree: a broken link, worth a warning to the operator."""
        return self.links != self.links_back


def score(pair: GpuPair) -> int:
    """Points of a pair, the same in both directions; 0 when its ends disagree on NVLinks."""
    if pair.asymmetric:
        return 0
    return POINTS.get(pair.level, 0) + NVLINK_POINTS * min(max(0, pair.links), MOST_NVLINKS)


def pair_scores(
    uuids: Iterable[str], pairs: Iterable[GpuPair]
) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """For each GPU, in the order given, the score of every other GPU that has one, by uuid."""
    ordered = tuple(uuids)
    scores: dict[str, dict[str, int]] = {uuid: {} for uuid in ordered}
    for pair in pairs:
        if pair.first in scores and pair.second in scores and pair.first != pair.second:
            scores[pair.first][pair.second] = scores[pair.second][pair.first] = score(pair)
    place = {uuid: index for index, uuid in enumerate(ordered)}
    return tuple(
        (uuid, dict(sorted(scores[uuid].items(), key=lambda item: place[item[0]])))
        for uuid in ordered
    )


def asymmetric_pairs(pairs: Iterable[GpuPair]) -> tuple[GpuPair, ...]:
    """The pairs whose ends disagree on their NVLinks."""
    return tuple(pair for pair in pairs if pair.asymmetric)
