"""Lend what containers leave idle of a GPU's time to those that wait, and take it back at once.

Called by the feedback loop many times a second while there are containers with shares, so each
look is two system calls per container, and hardly more than one while none of them computes. What
is lent is written into the agent's own limits files, as a lease: if the agent dies, it ends with
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent import logs
from agent.domain.lending import (
    WHOLE_PERMILLE,
    Lease,
    Record,
    Tenant,
    demand_permille,
    lent_permille,
    looked,
)
from agent.domain.switch_words import activity_at
from agent.errors import AgentError
from agent.ports import ContainerKey, Leases, RegionSwitches

log = logs.get(__name__)

MS = 1_000_000
LOOK_NS = 70 * MS  # and 10 to be idle, 10 until a borrower sees it: within 100
LATE_NS = 40 * MS  # that a look may be without a lease's ending
LEASE_NS = 8 * LOOK_NS + LATE_NS  # renewed at every eighth look
SOON_NS = 16 * MS  # to see whether who has the GPU taken away from it is only at a short burst
QUIET_LOOK_NS = 85 * MS  # while nobody with a share computes: who begins is no idle lender


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOfGpu:
    """What a container has of one GPU."""

    uuid: str
    permille: int  # of its time; 1000: no limit
    line: int  # in its limits file
    place: int | None  # in its usage region; None: not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A container as lending sees it between two rounds of feedback."""

    key: ContainerKey
    shares: tuple[ShareOfGpu, ...]
    counts: bool  # our library counts for it, and goes by its limits file
    borrows: bool  # it may get more than its share
    blocked: bool

    @property
    def limited(self) -> bool:
        """Whether its own counters say what it does, and how much it may."""
        return self.counts and any(s.permille < WHOLE_PERMILLE for s in self.shares)


@dataclass(slots=True)
class _Watched:
    """A container's share of one GPU, and what was seen of it. Made anew at each round."""

    key: ContainerKey
    content: int  # which of those that are read at a look
    share: ShareOfGpu
    borrows: bool
    record: Record | None

    def demand_permille(self, seen: Sequence[bytes], now_ns: int) -> int | None:
        """What it wants, after a look at its counters; None: they cannot be read."""
        share = self.share
        if share.place is None:
            return 0  # its processes have not come to this GPU
        activity = activity_at(seen[self.content], share.place)
        if activity is None:
            return None
        self.record = record = looked(self.record, activity, share.permille, now_ns)
        return demand_permille(record, share.permille, now_ns)

    def tenant(self, demand: int | None) -> Tenant:
        own = self.share.permille
        if demand is None:
            return Tenant(own, own, borrows=False)
        return Tenant(own, demand, self.borrows)


@dataclass(slots=True)
class _Gpu:
    """Those who share one GPU, and what was decided when they were last seen to want this."""

    watched: list[_Watched]
    others: tuple[tuple[ContainerKey, int], ...]  # nothing is lent to them; what each has
    demands: list[int | None]
    active: list[int]  # what those of the others have that compute
    wanted: bool = False  # by anybody with a share
    lent: tuple[int, ...] = ()  # to those watched; empty: nothing to anybody

    def look(self, seen: Sequence[bytes], active: list[int], now_ns: int) -> bool:
        """See what those here want; tell whether something else is lent to them than before."""
        demands = [one.demand_permille(seen, now_ns) for one in self.watched]
        if demands == self.demands and active == self.active:
            return False
        self.demands, self.active, self.wanted = demands, active, any(demands)
        pairs = zip(self.watched, demands, strict=True)
        tenants = [one.tenant(demand) for one, demand in pairs]
        lent: tuple[int, ...] = ()
        if any(tenant.own < tenant.demand and tenant.borrows for tenant in tenants):
            others = [Tenant(own, own, borrows=False) for own in active]
            lent = lent_permille(tenants + others)[: len(tenants)]
        self.lent, before = lent, self.lent
        return lent != before

    def is_unclear(self, now_ns: int) -> bool:
        """Whether somebody may want back right now what is lent of its share."""
        for one, demand in zip(self.watched, self.demands, strict=True):
            if one.record is None or one.record.contended_since_ns != now_ns:
                continue
            if demand is not None and 0 < demand < one.share.permille and any(self.lent):
                return True
        return False


class _Loan(NamedTuple):
    """What is lent to a container."""

    permille: Mapping[int, int]  # by line
    until_ns: int = 0


_NOTHING = _Loan({})


class Lender:
    """What is lent now, and to whom. Used by one thread."""

    def __init__(self, switches: RegionSwitches, leases: Leases) -> None:
        self._switches = switches
        self._leases = leases
        self._gpus: list[_Gpu] = []
        self._wanted: list[tuple[ContainerKey, int]] = []  # to be read, and how many places of it
        self._seen: list[bytes] = []  # of those, at the last look
        self._quiet = False  # nobody computed at that look, so nothing was lent
        self._known_anew = False  # since that look
        self._lent: dict[ContainerKey, _Loan] = {}

    def know(self, sharers: Sequence[Sharing]) -> None:
        """Who shares which GPUs until this is called again."""
        records = {(w.key, w.share.uuid): w.record for gpu in self._gpus for w in gpu.watched}
        limited = [s for s in sharers if s.limited and not s.blocked]
        others = [s for s in sharers if not s.limited and not s.blocked]
        watched: dict[str, list[_Watched]] = {}
        for place, sharing in enumerate(limited):
            for share in sharing.shares:
                record = records.get((sharing.key, share.uuid))
                one = _Watched(sharing.key, place, share, sharing.borrows, record)
                watched.setdefault(share.uuid, []).append(one)
        self._gpus = [
            _Gpu(here, _others_on(uuid, others), [], []) for uuid, here in watched.items()
        ]
        self._wanted = [(s.key, _places(s.shares)) for s in limited]
        self._quiet, self._known_anew = False, True
        for key in self._lent.keys() - {sharing.key for sharing in limited}:
            del self._lent[key]  # gone, or blocked, which took it away

    def look(self, now_ns: int) -> int | None:
        """Lend, renew and take back as it is right now; give when to look again, in ns.

        None: there is nobody to lend to.
        """
        if not self._wanted:
            return None
        seen = self._switches.counters(self._wanted)
        if self._quiet and seen == self._seen:
            return QUIET_LOOK_NS
        self._seen = seen
        changed, self._known_anew = self._known_anew, False
        wait_ns = QUIET_LOOK_NS
        for gpu in self._gpus:
            active = self._active(gpu.others) if gpu.others else gpu.active
            changed = gpu.look(seen, active, now_ns) or changed
            if gpu.wanted:
                wait_ns = min(wait_ns, SOON_NS if gpu.is_unclear(now_ns) else LOOK_NS)
        if changed:
            self._lend_all(now_ns)
        else:
            for key, (permille, until_ns) in self._lent.items():
                if until_ns < now_ns + LOOK_NS + LATE_NS:
                    self._lend(key, permille, now_ns)
        self._quiet = wait_ns == QUIET_LOOK_NS
        return wait_ns

    def take_back(self) -> None:
        """End everything that is lent."""
        self._known_anew = True
        for key in tuple(self._lent):
            self._lend(key, {}, 0)

    # --- below

    def _active(self, others: Sequence[tuple[ContainerKey, int]]) -> list[int]:
        """What those have that compute: that is known by their last launch only."""
        return [own for key, own in others if (self._switches.recent_kernel(key) or 0) > 0]

    def _lend_all(self, now_ns: int) -> None:
        lent: dict[ContainerKey, dict[int, int]] = {}
        for gpu in self._gpus:
            for one, permille in zip(gpu.watched, gpu.lent, strict=False):
                if permille > 0:
                    lent.setdefault(one.key, {})[one.share.line] = permille
        for key in self._lent.keys() | lent.keys():
            self._lend(key, lent.get(key, {}), now_ns)

    def _lend(self, key: ContainerKey, permille: Mapping[int, int], now_ns: int) -> None:
        """Write what is lent where it is something else, or would end before the next look."""
        before = self._lent.get(key, _NOTHING)
        if permille == before.permille and before.until_ns >= now_ns + LOOK_NS + LATE_NS:
            return
        until_ns = now_ns + LEASE_NS
        leases = {line: Lease(lent, until_ns) for line, lent in permille.items()}
        leases.update((line, Lease()) for line in before.permille.keys() - permille.keys())
        try:
            self._leases.lease(*key, leases)
        except AgentError as error:  # what was lent ends by itself
            log.failing("share not lent", error=error)
            until_ns = 0  # the next look tries again
        else:
            log.recovered("share not lent")
        if permille:
            self._lent[key] = _Loan(permille, until_ns)
        else:
            del self._lent[key]


def _others_on(uuid: str, others: Sequence[Sharing]) -> tuple[tuple[ContainerKey, int], ...]:
    """Those of them that have this GPU, and what of it."""
    return tuple(
        (sharing.key, share.permille)
        for sharing in others
        for share in sharing.shares
        if share.uuid == uuid
    )


def _places(shares: Sequence[ShareOfGpu]) -> int:
    """How many places of a region are to be read for these."""
    return max((share.place + 1 for share in shares if share.place is not None), default=0)
