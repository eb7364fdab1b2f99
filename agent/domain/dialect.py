"""How one scheduler and its device plugin talk: the keys, the codec and the rules that differ.

HAMi's scheduler and Volcano's deviceshare plugin have one scheme: the scheduler writes onto the pod
which GPUs its containers get, the node's agent consumes that, container by container, and ends the
bind. What sets them apart is in a `Dialect`; whatever decides, reads and writes goes by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.domain.claims import (
    TO_ALLOCATE,
    Slots,
    decode_claims,
    encode_claims,
    erased,
    holds_devices,
    pending,
)
from agent.domain.grants import Claim
from agent.domain.handshake import HANDSHAKE, SPACING_S
from agent.domain.pods import Container, Pod
from agent.domain.register import REGISTER, SCORE

VGPU_NODE = "hami.io/vgpu-node"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
DECIDED = "hami.io/vgpu-devices-allocated"  # what TO_ALLOCATE was before anything was consumed
LOCK = "hami.io/mutex.lock"
ALLOCATING, SUCCESS, FAILED = "allocating", "success", "failed"
OTHER_VENDORS = ("hami.io/", "-devices-to-allocate")


@dataclass(frozen=True, slots=True)
class Codec:
    """How the decision is written, and what of it is ours. All but `decode` are total."""

    decode: Callable[[str], Slots]  # raises MalformedAnnotation
    encode: Callable[[Slots], str]
    pending: Callable[[Slots], Mapping[int, tuple[Claim, ...]]]  # open slots, by place
    erased: Callable[[Slots, int], Slots]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What is the scheduler's own. Times are unix seconds as decimal digits."""

    scheduler: str  # for sentences
    to_allocate: str  # pod: the decision, consumed as containers are served
    decided: str  # pod: the same, never changed
    node: str  # pod: for which node it was decided
    bind_phase: str  # pod
    bind_time: str  # pod: when it was bound
    order: str  # pod: the time by which pods that wait are served
    lock: str  # node
    register: str  # node: its GPUs
    handshake: str  # node
    handshake_begins: bool = False  # it is ours to begin
    handshake_spacing_s: float = SPACING_S  # between two answers to a question
    further: tuple[str, ...] = ()  # node: what else is ours
    remembers: bool = False  # it goes on with what it read last when `register` is gone
    codec: Codec
    ended: Mapping[str, str] = field(default_factory=dict)  # written beside the last phase
    lists: Callable[[Pod], tuple[Container, ...]] | None = None  # see `listed`
    others_pending: Callable[[Pod], bool]  # somebody else still has to serve this pod

    def listed(self, pod: Pod) -> tuple[Container, ...] | None:
        """The containers that have a slot each, in the order of the slots; None: releases differ.

        With such a list nobody needs to guess which slot is whose.
        """
        return self.lists(pod) if self.lists is not None else None

    def ending(self, phase: str) -> dict[str, str]:
        """The annotations of a pod with which its bind ends."""
        return {self.bind_phase: phase, **self.ended}


def other_vendors_pending(pod: Pod) -> bool:
    """Whether the device plugin of another vendor still has to serve this pod."""
    prefix, suffix = OTHER_VENDORS
    return any(
        key.startswith(prefix)
        and key.endswith(suffix)
        and key != TO_ALLOCATE
        and holds_devices(text)
        for key, text in pod.annotations.items()
    )


HAMI = Dialect(
    scheduler="HAMi's scheduler",
    to_allocate=TO_ALLOCATE,
    decided=DECIDED,
    node=VGPU_NODE,
    bind_phase=BIND_PHASE,
    bind_time=BIND_TIME,
    order=BIND_TIME,
    lock=LOCK,
    register=REGISTER,
    handshake=HANDSHAKE,
    further=(SCORE,),
    remembers=True,
    codec=Codec(decode_claims, encode_claims, pending, erased),
    others_pending=other_vendors_pending,
)
