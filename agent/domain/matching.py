"""Which container of a pod an Allocate is for, going by the slots of the scheduler's annotation.

Kubelet asks for the containers of a pod in order, init (and sidecar) containers first, and says
only how many vGPUs it wants. Schedulers differ in how they number the slots, so a slot's place is
believed only where it fits what the containers ask for. HAMi pops the first open slot, whatever it
is (pkg/util/util.go, GetNextDeviceRequest).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.domain.claims import Slot
from agent.domain.dialect import HAMI, Dialect
from agent.domain.grants import Claim, GrantRecord
from agent.domain.pods import Container, Pod
from agent.errors import CountMismatch, MalformedAnnotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The container that is served next, and what the pod's annotation says afterwards."""

    pod: Pod
    container: Container
    claims: tuple[Claim, ...]
    remaining: str | None  # None: its slot is erased already
    last: bool  # no vGPU of ours is left in the pod after this one
    record: GrantRecord | None = None  # it was granted before, perhaps without an answer


@dataclass(frozen=True, slots=True)
class _Pair:
    place: int
    claims: Slot
    container: Container


def wanting(pod: Pod, served: Collection[str]) -> list[Container]:
    """The containers that ask for vGPUs and have none yet, in kubelet's order."""
    return [c for c in pod.containers if c.vgpus and c.name not in served]


def _by_place(
    order: Sequence[Container], slots: int, open_slots: Mapping[int, Slot], served: Collection[str]
) -> list[_Pair] | None:
    """Slot i for container i, if every slot that holds something lands on one that wants it."""
    if slots < len(order) or not order or max(open_slots) >= len(order):
        return None
    pairs = [_Pair(place, claims, order[place]) for place, claims in open_slots.items()]
    fits = all(p.container.vgpus == len(p.claims) and p.container.name not in served for p in pairs)
    return pairs if fits else None


def owners(
    pod: Pod, slots: int, open_slots: Mapping[int, Slot]
) -> list[tuple[Container, Slot]] | None:
    """Whose the slots are, if each stands at the place of a container that wants as many."""
    pairs = _by_place(pod.containers, slots, open_slots, ())
    return None if pairs is None else [(pair.container, pair.claims) for pair in pairs]


def _by_count(
    containers: Sequence[Container], open_slots: Mapping[int, Slot]
) -> list[_Pair] | None:
    """In order, from the end: each slot for the last container before that wants as many."""
    left = list(containers)
    pairs: list[_Pair] = []
    for place, claims in reversed([*open_slots.items()]):
        while left and left[-1].vgpus != len(claims):
            left.pop()
        if not left:
            return None
        pairs.append(_Pair(place, claims, left.pop()))
    return pairs[::-1]


def _from_the_end(containers: Sequence[Container], open_slots: Mapping[int, Slot]) -> list[_Pair]:
    pairs = zip(reversed([*open_slots.items()]), reversed(containers), strict=False)
    return [_Pair(place, claims, container) for (place, claims), container in pairs][::-1]


def _by_list(
    listed: Sequence[Container] | None, slots: int, open_slots: Mapping[int, Slot]
) -> list[_Pair] | None:
    """Slot i for the i-th container that the scheduler lists, if there are as many of both.

    A slot whose container does not ask kubelet for vGPUs is nobody's.
    """
    if listed is None or len(listed) != slots:
        return None
    pairs = [_Pair(place, claims, listed[place]) for place, claims in open_slots.items()]
    return [pair for pair in pairs if pair.container.vgpus]


def _paired(
    pod: Pod, slots: int, open_slots: Mapping[int, Slot], served: Collection[str]
) -> list[_Pair]:
    """Which open slot is whose.

    Schedulers since HAMi 2.9 list init and app containers, before that app containers only, some
    leave out the empty slots (2.10.0), others add padding (up to 2.6): places are believed when
    they fit the counts in the pod's spec, otherwise the open slots belong to its last containers.
    """
    apps = [c for c in pod.containers if c.kind == "app"]
    unserved = wanting(pod, served)
    return (
        _by_place(pod.containers, slots, open_slots, served)
        or _by_place(apps, slots, open_slots, served)
        or _by_count(unserved, open_slots)
        or _from_the_end(unserved, open_slots)
    )


def next_turn(
    pod: Pod,
    vgpus: int,
    *,
    served: Collection[str] = frozenset(),
    in_order: bool = True,
    dialect: Dialect = HAMI,
) -> Turn | None:
    """The container of this pod that asks for `vgpus` now; None when it cannot be this pod.

    `served`: names of its containers that have their grant. `in_order`: only the first open slot
    counts, as kubelet asks in order; otherwise the first one of this size.

    Raises MalformedAnnotation; CountMismatch when a container asks for so many vGPUs, but the
    scheduler has set no such slot aside (only with `in_order` False).
    """
    text = pod.annotations.get(dialect.to_allocate)
    asking = [c for c in wanting(pod, served) if c.vgpus == vgpus]
    if text is None or not asking:
        return None
    slots = dialect.codec.decode(text)
    open_slots = dialect.codec.pending(slots)
    if not open_slots:
        return None
    listed = dialect.listed(pod)
    pairs, to_serve = _by_list(listed, len(slots), open_slots), len(open_slots)
    if listed is not None and (early := wanting(pod, served)[0]).kind != "app":
        return _ahead(pod, vgpus, early, pairs or (), text, in_order=in_order)
    if pairs is None:
        pairs = _paired(pod, len(slots), open_slots, served)
    else:
        to_serve = len(pairs)
    chosen = next((p for p in pairs[: 1 if in_order else None] if len(p.claims) == vgpus), None)
    if chosen is not None:
        return Turn(
            pod=pod,
            container=chosen.container,
            claims=chosen.claims,
            remaining=dialect.codec.encode(dialect.codec.erased(slots, chosen.place)),
            last=to_serve == 1,
        )
    if in_order:
        return None
    counts = ", ".join(str(len(claims)) for claims in open_slots.values())
    raise CountMismatch(
        f"container {asking[0].name} of pod {pod.full_name} asks for {vgpus} vGPU(s), but the "
        f"scheduler has set aside {counts} for the pod's containers that are still to start; the "
        "pod was changed after it was scheduled: delete it, so that it is scheduled again"
    )


def _ahead(
    pod: Pod, vgpus: int, early: Container, pairs: Sequence[_Pair], text: str, *, in_order: bool
) -> Turn | None:
    """The turn of an init container, for which this scheduler decides nothing.

    It has ended when the first app container starts, which kubelet gives the same devices: so it
    gets what was decided for the first one that asks for as many, and consumes nothing.
    Raises CountMismatch, as `next_turn`.
    """
    shared = next((p for p in pairs if len(p.claims) == early.vgpus), None)
    if early.vgpus == vgpus and early.kind == "init" and shared is not None:
        return Turn(pod=pod, container=early, claims=shared.claims, remaining=text, last=False)
    if in_order or early.vgpus != vgpus:
        return None
    raise CountMismatch(
        f"init container {early.name} of pod {pod.full_name} asks for {vgpus} vGPU(s), but the "
        "scheduler decides nothing for init containers: they can only use what a later container "
        "of the pod that asks for as many gets, and not beside it; ask for GPUs in app containers "
        "alone"
    )


def undecided(
    pod: Pod, vgpus: int, *, served: Collection[str] = frozenset(), dialect: Dialect = HAMI
) -> MalformedAnnotation | None:
    """What to tell a pod that asks for `vgpus` now while its annotation names no vGPU at all.

    None when no container without a grant asks for as many, or the annotation names some.
    """
    asking = [c for c in wanting(pod, served) if c.vgpus == vgpus]
    if not asking or open_slots_left(pod, dialect):
        return None
    state = "names no vGPU" if dialect.to_allocate in pod.annotations else "is missing"
    return MalformedAnnotation(
        f"container {asking[0].name} of pod {pod.full_name} asks for {vgpus} vGPU(s), but the "
        f"annotation {dialect.to_allocate}, in which the scheduler says on which GPU, {state}: "
        "something else removed or emptied it after the scheduler had decided; check that only "
        f"{dialect.scheduler} writes it, then delete the pod so that it is scheduled again"
    )


def open_slots_left(pod: Pod, dialect: Dialect = HAMI) -> bool:
    """Whether the scheduler's annotation still holds vGPUs of ours; an unreadable one does not."""
    try:
        slots = dialect.codec.decode(pod.annotations.get(dialect.to_allocate, ""))
    except MalformedAnnotation:
        return False
    return bool(dialect.codec.pending(slots))
