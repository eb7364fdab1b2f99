"""How fast do a container's counters grow? Two looks at a node tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agent.domain.accounting import DeviceUse, NodeUse
from agent.domain.node_picture import NodePicture

NS_PER_S = 1e9
Key = tuple[str, str, int]  # pod uid, container, place


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the time between the looks. None: not known."""

    gpu: float | None = None  # on the GPU
    throttled: float | None = None  # waiting for its turn, summed over all threads that wait


Rates = Mapping[Key, Shares]
NOTHING: Rates = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Looks:
    """The newest picture and what two pictures tell of rates."""

    now: NodePicture
    growing: Rates = field(default_factory=lambda: NOTHING)
    error: str = ""  # why there is no newer one

    def then(self, newer: NodePicture) -> "Looks":
        """After another look; rates stay while the agent has not looked again itself."""
        if newer.use.taken_at_s == self.now.use.taken_at_s:
            return replace(self, now=newer, error="")
        return Looks(newer, rates(self.now.use, newer.use))


def rates(before: NodeUse, now: NodeUse) -> Rates:
    """By container and place; empty when no time lies between the two."""
    passed_s = now.taken_at_s - before.taken_at_s
    if not before.taken_at_s or passed_s <= 0:
        return NOTHING
    old = _devices(before)
    return MappingProxyType({
        key: Shares(
            gpu=_share(old[key].totals.gpu_ns, device.totals.gpu_ns, passed_s)
            if _counts(device, "gpu_ns")
            else None,
            throttled=_share(old[key].totals.throttled_ns, device.totals.throttled_ns, passed_s),
        )
        for key, device in _devices(now).items()
        if key in old and _counts(device, "throttled_ns")
    })  # fmt: skip


def _devices(use: NodeUse) -> dict[Key, DeviceUse]:
    return {
        (one.pod_uid, one.container, device.place): device
        for one in use.containers
        for device in one.devices
    }


def _counts(device: DeviceUse, figure: str) -> bool:
    """Whether its library counts this: HAMi-core's no time, ours GPU time with a limit."""
    return device.reported is not None and getattr(device.reported, figure) is not None


def _share(before_ns: int, now_ns: int, passed_s: float) -> float:
    return max(0, now_ns - before_ns) / (passed_s * NS_PER_S)
