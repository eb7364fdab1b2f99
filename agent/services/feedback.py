"""Loop: make containers wait for those of higher priority, and lend what is idle of GPUs' time.

Every 5 s the table of HAMi's monitor says who waits and whose share is kept (domain/feedback).
A container with HAMi-core's library is told in its usage region, as that monitor does it. One with
our library is told in its limits file, which no container can write: its blocks are leases of 1 s
that are renewed while they hold, and the switch of its share is lending (services/lending).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent import logs
from agent.bell import Bell
from agent.domain.feedback import BLOCKED, Change, observe
from agent.domain.lending import MOST_PERMILLE, Lease
from agent.errors import AgentError
from agent.ports import BlockGuard, ContainerKey, Leases, RegionSwitches
from agent.services.lending import LOOK_NS, Lender, Sharing
from agent.services.roster import Member, Roster
from agent.supervisor import Lifeline

log = logs.get(__name__)

S = 1_000_000_000
LEASE_NS = S  # the hook believes in no longer one
RENEW_NS = 2 * S // 5
WORKING_S = 60.0  # a turn takes milliseconds; tenants' files are on a local disk


@dataclass(frozen=True, slots=True)
class Levers:
    """What containers are steered by."""

    switches: RegionSwitches
    leases: Leases
    guard: BlockGuard


@dataclass(frozen=True, slots=True)
class _Standing:
    """What a container is told by its limits file until the next round, by lines of it."""

    blocked: bool
    lent: tuple[int, ...]  # permille, where no lender does it

    def leases(self, until_ns: int) -> dict[int, Lease]:
        return {
            line: Lease(lent, until_ns if lent else 0, until_ns if self.blocked else 0)
            for line, lent in enumerate(self.lent)
        }


class Feedback:
    """The loop around the table and the lending."""

    name = "feedback"

    def __init__(
        self,
        roster: Roster,
        levers: Levers,
        *,
        priorities: bool = True,
        lender: Lender | None = None,
        paused: Callable[[], bool] = lambda: False,
        every_s: float = 5.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Without `priorities` nobody waits, and HAMi-core's library is left alone.

        Without `lender`, who has our library gets more than its share as with HAMi-core's: all of
        the GPU, while no other one of its priority computes there. `paused`: the node's GPUs are
        being divided anew, so everybody is left alone.
        """
        self._roster = roster
        self._switches = levers.switches
        self._leases = levers.leases
        self._guard = levers.guard
        self._priorities = priorities
        self._lender = lender
        self._paused = paused
        self._every_ns = round(every_s * S)
        self._clock_ns = clock_ns
        self._standing: dict[ContainerKey, _Standing] = {}
        self._waiting: set[ContainerKey] = set()  # in their usage regions
        self._due_ns = [0, 0, 0]  # the next round, renewal, look
        self._stale = False  # shares are not as they were when the lender was told
        self._told_ns = 0  # when that was
        self._bell = Bell()

    def wake(self) -> None:
        """Say that containers or their limits have changed. Thread-safe."""
        self._stale = True
        self._bell.ring()

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._bell.ring)
        life.pulse(WORKING_S)
        try:
            while not life.stopping:
                wait_s = self.turn() / S
                life.pulse(wait_s + WORKING_S)
                self._bell.wait(wait_s)
        finally:
            self.release()
            self._switches.close()

    def turn(self) -> int:
        """Do what is due; give after how many ns something will be."""
        now_ns = self._clock_ns()
        if now_ns >= self._due_ns[0]:
            self._stale = False
            self.round_once()
            now_ns = self._told_ns = self._clock_ns()
            self._due_ns = [now_ns + self._every_ns, now_ns + RENEW_NS, now_ns]
        elif self._stale and now_ns >= self._told_ns + LOOK_NS:
            self._stale = False
            self._look_around()
            now_ns = self._told_ns = self._due_ns[2] = self._clock_ns()
        if self._standing and now_ns >= self._due_ns[1]:
            self._renew()
            self._due_ns[1] = now_ns + RENEW_NS
        if self._lender is not None and now_ns >= self._due_ns[2]:
            wait_ns = self._lender.look(now_ns)
            self._due_ns[2] = self._due_ns[0] if wait_ns is None else now_ns + wait_ns
        due_ns = self._due_ns[0]
        if self._lender is not None:
            due_ns = min(due_ns, self._due_ns[2])
        if self._standing:
            due_ns = min(due_ns, self._due_ns[1])
        if self._stale:
            due_ns = min(due_ns, self._told_ns + LOOK_NS)
        return max(due_ns - self._clock_ns(), 0)

    def round_once(self) -> None:
        """One round of the table."""
        if self._paused():
            log.failing("feedback paused", error="the GPUs are being divided into MIG devices")
            self.release()
            return
        log.recovered("feedback paused")
        try:
            members = self._roster.members()
        except AgentError as error:
            log.failing("usage regions not found", error=error)
            self.release()
            return
        log.recovered("usage regions not found")
        self._standing = {key: s for key, s in self._standing.items() if key in members}
        changes: Mapping[ContainerKey, Change] = {}
        if self._priorities:
            changes = observe(
                {key: m.sharer(blocked=self._is_blocked(key)) for key, m in members.items()}
            )
            self._tell_hooks(members, changes)
            self._tell_regions(members, changes)
        if self._lender is not None:
            self._lender.know([self._sharing(key, m, changes) for key, m in members.items()])

    def _look_around(self) -> None:
        """Between two rounds, tell the lender who has what: nobody is counted down or blocked."""
        if self._lender is None or self._paused():
            return
        try:
            members = self._roster.members()
        except AgentError:
            return  # the next round says so
        self._lender.know([self._sharing(key, m, {}) for key, m in members.items()])

    def release(self) -> None:
        """Let everybody go on, and take back what is lent."""
        for key, standing in self._standing.items():
            self._lease(key, _Standing(blocked=False, lent=(0,) * len(standing.lent)))
        for key in self._waiting:
            self._switches.put(key, recent_kernel=0)
        self._standing, self._waiting = {}, set()
        self._guard.hold({})
        if self._lender is not None:
            self._lender.take_back()
            self._lender.know(())

    def _is_blocked(self, key: ContainerKey) -> bool:
        return key in self._standing and self._standing[key].blocked

    # --- what they are told ---------------------------------------------------------------------

    def _tell_hooks(
        self, members: Mapping[ContainerKey, Member], changes: Mapping[ContainerKey, Change]
    ) -> None:
        """Block by lease. The region's word is counted down: it says 2 again at the next launch."""
        for key, member in members.items():
            if member.limits is None:
                continue
            recent = changes.get(key, Change()).recent_kernel
            blocked = self._is_blocked(key) if recent is None else recent < 0
            if blocked != self._is_blocked(key):
                event = "container blocked" if blocked else "container resumed"
                log.info(event, container=key[1], pod_uid=key[0])
            standing = _Standing(blocked, self._suspended(member, _switch(key, member, changes)))
            if key in self._standing and self._standing[key] != standing:
                self._lease(key, standing)
            self._standing[key] = standing
            self._switches.put(
                key,
                recent_kernel=None if recent is None or recent < 0 else recent,
                switch=None if member.words.switch == 1 else 1,  # 0 would suspend it for ever
            )
        self._standing = {k: s for k, s in self._standing.items() if s.blocked or any(s.lent)}
        self._renew()

    def _suspended(self, member: Member, switch: int) -> tuple[int, ...]:
        """What is lent, line by line, where a switch is all there is."""
        suspended = switch == 0 and self._lender is None and not member.strict
        return tuple(
            max(MOST_PERMILLE - own, 0) if suspended else 0 for own in member.line_permille
        )

    def _tell_regions(
        self, members: Mapping[ContainerKey, Member], changes: Mapping[ContainerKey, Change]
    ) -> None:
        """Write what changes; nobody is made to wait without somebody who could end it."""
        waiting = set()
        for key, member in members.items():
            if member.limits is not None:
                continue
            change = changes.get(key, Change())
            recent = change.recent_kernel
            if (member.words.recent_kernel if recent is None else recent) < 0:
                waiting.add(key)
                recent = None
            self._switches.put(key, recent_kernel=recent, switch=change.switch)
        held = {key: held for key in waiting if (held := self._switches.held(key)) is not None}
        guarded = self._guard.hold(held)
        for key in waiting:
            before = members[key].words.recent_kernel
            if before >= 0 or not guarded:
                word = BLOCKED if guarded else max(before - 1, 0)
                self._switches.put(key, recent_kernel=word)
        self._waiting = waiting if guarded else set()

    def _renew(self) -> None:
        for key, standing in self._standing.items():
            self._lease(key, standing)

    def _lease(self, key: ContainerKey, standing: _Standing) -> None:
        try:
            self._leases.lease(*key, standing.leases(self._clock_ns() + LEASE_NS))
        except AgentError as error:  # a block ends by itself
            log.failing("container not told", error=error)
        else:
            log.recovered("container not told")

    def _sharing(
        self, key: ContainerKey, member: Member, changes: Mapping[ContainerKey, Change]
    ) -> Sharing:
        return member.sharing(
            key,
            switch=_switch(key, member, changes),
            blocked=self._is_blocked(key) or key in self._waiting,
        )


def _switch(key: ContainerKey, member: Member, changes: Mapping[ContainerKey, Change]) -> int:
    """The table's word on whether its share is kept."""
    switch = changes.get(key, Change()).switch
    return member.words.switch if switch is None else switch
