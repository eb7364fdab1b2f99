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
LOOK_NS = 60 * MS
LATE_NS = 40 * MS  # that a look may be without a lease's ending
LEASE_NS = 2 * LOOK_NS + LATE_NS  # renewed at every second look: its container reads it each time
QUIET_LOOK_NS = 75 * MS  # while nobody with a share computes: a borrower sees it 25 ms later


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

    share: ShareOfGpu
    borrows: bool
    record: Record | None

    def tenant(self, content: bytes, now_ns: int) -> Tenant:
        """What it has and wants, after a look at its counters."""
        own, place = self.share.permille, self.share.place
        if place is None:
            return Tenant(own, 0, False)  # its processes have not come to this GPU
        activity = activity_at(content, place)
        if activity is None:  # of one that cannot be read nothing is lent, nor to it
            return Tenant(own, own, False)
        self.record = record = looked(self.record, activity, own, now_ns)
        return Tenant(own, demand_permille(record, own, now_ns), self.borrows)


_On = dict[str, list[tuple[ContainerKey, int, Tenant]]]  # who, which line, has and wants; by GPU


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
        self._watched: dict[ContainerKey, list[_Watched]] = {}
        self._wanted: list[tuple[ContainerKey, int]] = []  # of them, and how many places to read
        self._seen: list[bytes] = []  # of those, at the last look
        self._quiet = False  # nobody computed at that look, so nothing was lent
        self._others: tuple[Sharing, ...] = ()
        self._lent: dict[ContainerKey, _Loan] = {}

    def know(self, sharers: Sequence[Sharing]) -> None:
        """Who shares which GPUs until this is called again."""
        records = {
            (key, one.share.uuid): one.record
            for key, watched in self._watched.items()
            for one in watched
        }
        limited = [s for s in sharers if s.limited and not s.blocked]
        self._watched = {
            s.key: [
                _Watched(share, s.borrows, records.get((s.key, share.uuid))) for share in s.shares
            ]
            for s in limited
        }
        self._wanted = [(s.key, _places(s.shares)) for s in limited]
        self._quiet = False
        self._others = tuple(s for s in sharers if not s.limited and not s.blocked)
        for key in self._lent.keys() - self._watched.keys():
            del self._lent[key]  # gone, or blocked, which took it away

    def look(self, now_ns: int) -> int | None:
        """Lend, renew and take back as it is right now; give when to look again, in ns.

        None: there is nobody to lend to.
        """
        if not self._watched:
            return None
        seen = self._switches.counters(self._wanted)
        if self._quiet and seen == self._seen:
            return QUIET_LOOK_NS
        self._seen = seen
        lent: dict[ContainerKey, dict[int, int]] = {}
        for uuid, here in self._looked(now_ns).items():
            everybody = [tenant for _, _, tenant in here]
            if not any(tenant.own < tenant.demand and tenant.borrows for tenant in everybody):
                continue
            permilles = lent_permille(everybody + self._others_on(uuid))
            for (key, line, _), permille in zip(here, permilles, strict=False):
                if permille > 0:
                    lent.setdefault(key, {})[line] = permille
        for key in self._lent.keys() | lent.keys():
            self._lend(key, lent.get(key, {}), now_ns)
        self._quiet = not any(
            one.record and one.record.active
            for watched in self._watched.values()
            for one in watched
        )
        return QUIET_LOOK_NS if self._quiet else LOOK_NS

    def take_back(self) -> None:
        """End everything that is lent."""
        for key in tuple(self._lent):
            self._lend(key, {}, 0)

    # --- below

    def _looked(self, now_ns: int) -> _On:
        found: _On = {}
        for (key, watched), content in zip(self._watched.items(), self._seen, strict=True):
            for one in watched:
                row = (key, one.share.line, one.tenant(content, now_ns))
                found.setdefault(one.share.uuid, []).append(row)
        return found

    def _others_on(self, uuid: str) -> list[Tenant]:
        """Those that nothing is lent to: what they do is known by their last launch only."""
        tenants = []
        for sharing in self._others:
            own = next((s.permille for s in sharing.shares if s.uuid == uuid), None)
            if own is not None and (self._switches.recent_kernel(sharing.key) or 0) > 0:
                tenants.append(Tenant(own, own, borrows=False))
        return tenants

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


def _places(shares: Sequence[ShareOfGpu]) -> int:
    """How many places of a region are to be read for these."""
    return max((share.place + 1 for share in shares if share.place is not None), default=0)
