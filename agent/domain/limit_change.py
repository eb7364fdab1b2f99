"""Whether a container's limits may become what is asked for, and what they are then.

Three figures bound a device's limits: what the scheduler granted, what the operator set in its
place (the ceiling of whoever edits the pod), and what the GPU has for all containers together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.domain.limit_record import SetLimit
from agent.domain.limit_requests import ANNOTATION, LimitRequest
from agent.domain.limits_file import MIB
from agent.errors import AgentError

Limits = Mapping[str, SetLimit]  # by uuid


class AnnotationRule(StrEnum):
    """What a pod's annotation may do: its author is the tenant."""

    OFF = "off"  # nothing
    LOWER = "lower"  # lower limits, and raise them again up to the grant
    ANY = "any"  # whatever the operator may, except for force


class LimitRefused(AgentError):
    """A request that is understood and not granted: why, and what can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU and what its other containers are allowed."""

    uuid: str
    index: int | None  # as the driver counts; None: it does not list this GPU
    memory_bytes: int  # to be handed out, with memory scaling; 0: not known
    others_bytes: int = 0  # their limits together; one without a limit counts as the whole card

    @property
    def name(self) -> str:
        """For people."""
        return self.uuid if self.index is None else f"{self.index} ({self.uuid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A container as it is before the change."""

    now: Limits
    granted: Limits  # by the scheduler
    cards: Sequence[Card]  # its own, in the order of its file


def asked_limits(
    requests: Sequence[LimitRequest], start: Limits, subject: Subject
) -> dict[str, SetLimit]:
    """What the limits are, by uuid, if these requests change `start`, one after the other.

    Raises LimitRefused for a GPU that is not the container's.
    """
    limits = dict(start)
    for request in requests:
        for uuid in _chosen(request, subject.cards):
            limits[uuid] = _changed(request, limits[uuid], subject.granted[uuid])
    return limits


def check_limits(
    new: Limits, subject: Subject, *, ceiling: Limits | None = None, force: bool = False
) -> None:
    """Raise LimitRefused unless the container may have these limits.

    `ceiling` is what whoever asks may not go beyond, None if he may; with `force` the GPU may
    promise more than it has.
    """
    for card in subject.cards:
        if ceiling is not None:
            _check_ceiling(new[card.uuid], card, ceiling[card.uuid])
        if not force:
            _check_card(new[card.uuid], card, subject)


def _chosen(request: LimitRequest, cards: Sequence[Card]) -> list[str]:
    if not request.gpu:
        return [card.uuid for card in cards]
    for card in cards:
        number = "" if card.index is None else str(card.index)
        if request.gpu.lower() == card.uuid.lower() or request.gpu == number:
            return [card.uuid]
    raise LimitRefused(
        f"the container has no share of GPU {request.gpu!a}; it has: "
        + ", ".join(card.name for card in cards)
    )


def _changed(request: LimitRequest, now: SetLimit, granted: SetLimit) -> SetLimit:
    if request.reset:
        return granted
    return replace(
        now,
        memory_limit_bytes=(
            now.memory_limit_bytes if request.memory_bytes is None else request.memory_bytes
        ),
        core_permille=now.core_permille if request.core_permille is None else request.core_permille,
    )


def beyond(value: int, limit: int) -> bool:
    """Whether a limit is higher than another one; 0 is none."""
    return limit != 0 and (value == 0 or value > limit)


def _check_ceiling(new: SetLimit, card: Card, most: SetLimit) -> None:
    again = (
        f"ask for that at most, or have an administrator set it with `vgpu-agent limit` (the "
        f"node's setting limits-annotation says what the annotation {ANNOTATION} may do)"
    )
    if beyond(new.memory_limit_bytes, most.memory_limit_bytes):
        raise LimitRefused(
            f"{mib(new.memory_limit_bytes)} on GPU {card.name} is more than the "
            f"{mib(most.memory_limit_bytes)} that the container may have there: {again}"
        )
    if beyond(new.core_permille, most.core_permille):
        raise LimitRefused(
            f"{percent(new.core_permille)} of GPU {card.name} is more than the "
            f"{percent(most.core_permille)} that the container may have: {again}"
        )


def _check_card(new: SetLimit, card: Card, subject: Subject) -> None:
    """What the scheduler promised is always given back, and lowering harms nobody."""
    raised = beyond(new.memory_limit_bytes, subject.now[card.uuid].memory_limit_bytes)
    over_grant = beyond(new.memory_limit_bytes, subject.granted[card.uuid].memory_limit_bytes)
    if not (raised and over_grant):
        return
    over_bytes = overcommitted_bytes(new, card)
    if over_bytes > 0:
        most = max(  # what it has and what it was granted are never refused, so neither is 0
            card.memory_bytes - card.others_bytes,
            subject.now[card.uuid].memory_limit_bytes,
            subject.granted[card.uuid].memory_limit_bytes,
        )
        raise LimitRefused(
            f"GPU {card.name} has {mib(card.memory_bytes)} to hand out, of which other containers "
            f"may use {card.others_bytes // MIB} MiB, so {mib(new.memory_limit_bytes)} are "
            f"{mib(over_bytes)} too many: ask for at most {mib(most)}, lower another container "
            "first, or use --force, with which containers may run out of memory below their limits"
        )


def overcommitted_bytes(limit: SetLimit, card: Card) -> int:
    """By how much more is allowed on a GPU than it has; 0: it has it, or nobody knows."""
    if not card.memory_bytes:
        return 0
    return max(
        0, card.others_bytes + (limit.memory_limit_bytes or card.memory_bytes) - card.memory_bytes
    )


def mib(memory_bytes: int) -> str:
    """For people; 0 is no limit."""
    return f"{memory_bytes // MIB} MiB" if memory_bytes else "no memory limit"


def percent(core_permille: int) -> str:
    """For people; 0 is no limit."""
    return f"{core_permille / 10:g} %" if core_permille else "no core limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """What became of one device's limits."""

    card: Card
    before: SetLimit
    after: SetLimit
    used_bytes: int | None = None  # by its processes' own count; None: not known

    @property
    def over_bytes(self) -> int:
        """By how much the container is above its limit: nothing more is given until it is not."""
        limit = self.after.memory_limit_bytes
        return max(0, (self.used_bytes or 0) - limit) if limit else 0

    @property
    def words(self) -> str:
        """For a log line or an Event; only what changed."""
        parts = []
        if self.before.memory_limit_bytes != self.after.memory_limit_bytes:
            parts.append(
                f"memory {mib(self.before.memory_limit_bytes)} -> "
                f"{mib(self.after.memory_limit_bytes)}"
            )
        if self.before.core_permille != self.after.core_permille:
            parts.append(
                f"cores {percent(self.before.core_permille)} -> {percent(self.after.core_permille)}"
            )
        if self.over_bytes:
            parts.append(f"over by {mib(self.over_bytes)}: new allocations are refused")
        return f"GPU {self.card.name}: {', '.join(parts) or 'as it was'}"
