"""What is there to show of a node, in which order? Figures and sentences; no widths, no colours."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent.domain.accounting import ContainerUse, DeviceUse, GpuUse, Tier
from agent.domain.enforcement import State
from agent.domain.node_picture import (
    NodePicture,
    never_launched,
    of_container,
    of_gpu,
    of_node,
    unlimited,
)
from agent.top.rates import NOTHING, Rates, Shares

PERMILLE = 1000
PERCENT = 100
_UNKNOWN_SHARES = Shares()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A container on one GPU. None: not known, or none."""

    name: str  # namespace/pod/container
    used_bytes: int | None
    limit_bytes: int | None
    gpu_share: float | None
    core_limit: float | None  # share of the GPU
    core_lent: float  # on top of it, now
    throttled_share: float | None
    idle_s: float | None  # since its last kernel
    never_launched: bool
    priority: int
    tier: Tier
    unlimited: bool  # no library was to keep any
    holds: bool  # its limits do hold
    problems: tuple[str, ...]  # of the container: told once, on the first of its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU with the containers on it."""

    title: str
    used_bytes: int | None
    total_bytes: int | None
    busy: float | None
    temperature_celsius: int | None
    power_watts: float | None
    problems: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All of it."""

    node: str
    agent_version: str
    age_s: float | None  # None: the agent has not looked yet
    problems: tuple[str, ...]
    cards: tuple[Card, ...]
    containers: int


def _descending(value: float | None) -> float:
    return 1.0 if value is None else -value


# Key -> how it is called, and the order it makes; what is equal is ordered by name.
ORDERS: Mapping[str, tuple[str, Callable[[Row], float | int]]] = MappingProxyType({
    "m": ("memory", lambda row: _descending(row.used_bytes)),
    "g": ("GPU", lambda row: _descending(row.gpu_share)),
    "t": ("throttled", lambda row: _descending(row.throttled_share)),
    "p": ("priority", lambda row: row.priority),
    "n": ("name", lambda _: 0),
})  # fmt: skip
FIRST_ORDER = "m"


def view(picture: NodePicture, growing: Rates = NOTHING, order: str = FIRST_ORDER) -> View:
    """What to show of a picture; `order` is a key of `ORDERS`."""
    use = picture.use
    cards = [_card(picture, gpu, growing, order) for gpu in use.gpus]
    known = {gpu.uuid for gpu in use.gpus}
    lost = {device.uuid for one in use.containers for device in one.devices} - known
    cards += [_gone(picture, uuid, growing, order) for uuid in sorted(lost)]
    return View(
        node=picture.node,
        agent_version=picture.agent_version,
        age_s=picture.age_s if use.taken_at_s else None,
        problems=of_node(picture),
        cards=tuple(cards),
        containers=len(use.containers),
    )


def _card(picture: NodePicture, gpu: GpuUse, growing: Rates, order: str) -> Card:
    busy = gpu.utilisation_percent
    return Card(
        title=f"GPU {gpu.index}  {gpu.name}{'  MIG' if gpu.mig_enabled else ''}",
        used_bytes=gpu.memory_used_bytes,
        total_bytes=gpu.memory_total_bytes,
        busy=None if busy is None else busy / PERCENT,
        temperature_celsius=gpu.temperature_celsius,
        power_watts=gpu.power_watts,
        problems=of_gpu(picture, gpu),
        rows=_rows(picture, gpu.uuid, growing, order),
    )


def _gone(picture: NodePicture, uuid: str, growing: Rates, order: str) -> Card:
    return Card(
        title=uuid,
        used_bytes=None,
        total_bytes=None,
        busy=None,
        temperature_celsius=None,
        power_watts=None,
        problems=(),
        rows=_rows(picture, uuid, growing, order),
    )


def _rows(picture: NodePicture, uuid: str, growing: Rates, order: str) -> tuple[Row, ...]:
    rows = [_row(picture, one, device, growing) for one, device in _on(picture, uuid)]
    by = ORDERS[order][1]
    return tuple(sorted(rows, key=lambda row: (by(row), row.name)))


def _on(picture: NodePicture, uuid: str) -> Iterable[tuple[ContainerUse, DeviceUse]]:
    for one in picture.use.containers:
        for device in one.devices:
            if device.uuid == uuid:
                yield one, device


def _row(picture: NodePicture, one: ContainerUse, device: DeviceUse, growing: Rates) -> Row:
    shares = growing.get((one.pod_uid, one.container, device.place), _UNKNOWN_SHARES)
    reported = device.reported
    gpu_share = shares.gpu
    for percent in (reported.sm_percent if reported else None, device.driver_sm_percent):
        if gpu_share is None and percent is not None:
            gpu_share = percent / PERCENT
    return Row(
        name=f"{one.namespace}/{one.pod}/{one.container}",
        used_bytes=device.driver_bytes if reported is None else reported.used_bytes,
        limit_bytes=device.memory_limit_bytes or None,
        gpu_share=gpu_share,
        core_limit=device.core_permille / PERMILLE if device.core_permille else None,
        core_lent=device.lent_permille / PERMILLE,
        throttled_share=shares.throttled,
        idle_s=max(0.0, picture.answered_at_s - one.last_kernel_s) if one.last_kernel_s else None,
        never_launched=never_launched(one),
        priority=one.priority,
        tier=one.tier,
        unlimited=unlimited(one),
        holds=one.state is None or one.state.state not in (State.NOT_ENFORCEABLE, State.OFF),
        problems=of_container(picture, one) if device is one.devices[0] else (),
    )
