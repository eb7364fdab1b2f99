"""Whose idle share of a GPU's time is lent to whom.

A container with a share of 30 % that waits gets, on top, what others leave idle, and loses it when
they come back. Nothing but the containers' own counters says who waits and who is idle, and a
container may write into those what it likes. So they only ever decide about what is spare: who
claims to be idle lends out its own share, who claims to wait gets a part of what nobody uses, and
nobody's own share is touched by what another one says. Times are CLOCK_MONOTONIC.

Looked at many times a second, each time after others had the processor and its caches. So what is
made at every look is made of named tuples, and by `tuple.__new__`, which calls no Python.
"""

from collections.abc import Sequence
from typing import NamedTuple

WHOLE_PERMILLE = 1000
MOST_PERMILLE = 999  # with what is lent: at 1000 the hook would stop counting what is used

MS = 1_000_000
IDLE_AFTER_NS = 10 * MS  # without a launch that had to be paid for
WAITING_NS = 15 * MS  # who waits for its share asks for it every 10 ms
CONTENDED_NS = 5 * MS  # others that had the GPU so lately have it now; a turn of its own is shorter
QUEUED_NS = 30 * MS  # after the last launch, and four times what that took of its share: no work
PRESSING_NS = 15 * MS  # of contention, and of launching all the while: no short burst
LONGEST_LAUNCH_NS = 10_000 * MS  # that is waited for
WAITED_NS = 1000 * MS  # who waited so lately wants all it can get
SETTLING_NS = 1000 * MS  # who began so lately, after not computing for as long, may use its share
USAGE_EVERY_NS = 250 * MS
USAGES = 4  # looked back on
MARGIN_PERMILLE = 30


class Activity(NamedTuple):
    """What a container's own counters say of one GPU (docs/usage-region.md). Any numbers."""

    budget_ns: int
    refilled_at_ns: int
    charged_ns: int
    launches: int
    waits: int
    contended_at_ns: int = 0  # when it last had work for the GPU that others had


class Record(NamedTuple):
    """What is remembered of a container on one GPU from look to look."""

    activity: Activity
    paid_until_ns: int  # when its own share has paid for what it launched
    active: bool = True
    active_at_ns: int = 0  # when it last was
    began_at_ns: int = 0  # to be, or to press for the GPU
    contended_since_ns: int | None = None  # the first look of those in a row that saw it so
    waited_at_ns: int | None = None  # when it was last seen to wait
    usage_at_ns: int = 0  # when `usages` was added to, and what was charged by then
    usage_charged_ns: int = 0
    usages: tuple[int, ...] = ()  # in permille, the newest last


def looked(before: Record | None, activity: Activity, own_permille: int, now_ns: int) -> Record:
    """What is known of a container after another look at its counters."""
    if before is None:
        return Record(
            activity=activity,
            paid_until_ns=now_ns,
            active_at_ns=now_ns,
            began_at_ns=now_ns,
            usage_at_ns=now_ns,
            usage_charged_ns=activity.charged_ns,
        )
    (
        earlier,
        paid_until_ns,
        was_active,
        active_at_ns,
        began_at_ns,
        contended_since_ns,
        waited_at_ns,
        usage_at_ns,
        usage_charged_ns,
        usages,
    ) = before
    if not was_active and activity == earlier:
        return before
    budget_ns, refilled_ns, charged_ns, launches, waits, contended_ns = activity
    _, earlier_refilled_ns, earlier_charged_ns, earlier_launches, earlier_waits, _ = earlier
    waiting = budget_ns <= 0 and refilled_ns != earlier_refilled_ns
    waited = waiting or waits != earlier_waits
    waiting = waiting and now_ns - refilled_ns < WAITING_NS
    # A launch is charged for when it is made, and may run for as long as its share takes to pay it.
    # The last one was made when time was last given; those before it were paid for since the look
    # before, but for what is owed yet.
    lasts_ns = (charged_ns - earlier_charged_ns) * WHOLE_PERMILLE // own_permille
    last_ns = lasts_ns // max(launches - earlier_launches, 1)
    owed_ns = max(-budget_ns, 0) * WHOLE_PERMILLE // own_permille
    paid_until_ns = max(
        min(max(paid_until_ns, active_at_ns) + lasts_ns, now_ns + LONGEST_LAUNCH_NS),
        min(refilled_ns, now_ns) + min(last_ns + owed_ns, lasts_ns, LONGEST_LAUNCH_NS),
    )
    # What its share has paid for still runs where others have the GPU, and it may never come to
    # wait for its share: then it does not launch before they let it.
    works_ns = QUEUED_NS + 4 * max(paid_until_ns - refilled_ns, 0)
    if now_ns - refilled_ns > works_ns or not abs(now_ns - contended_ns) < CONTENDED_NS:
        contended_since_ns = None
    elif contended_since_ns is None:
        contended_since_ns = now_ns
    contended = contended_since_ns is not None
    # Not by a time of a boot before this one: the region outlives that, and says it until a launch.
    launched = -IDLE_AFTER_NS < now_ns - refilled_ns < IDLE_AFTER_NS
    active = waiting or contended or now_ns < paid_until_ns or launched
    if active:
        if now_ns - active_at_ns >= SETTLING_NS or _presses(
            contended_since_ns, refilled_ns, contended_ns, now_ns
        ):
            began_at_ns = now_ns
        active_at_ns = now_ns
    since_ns = now_ns - usage_at_ns
    if since_ns >= USAGE_EVERY_NS:
        used_ns = max(charged_ns - usage_charged_ns, 0)
        usage = min(used_ns * WHOLE_PERMILLE // since_ns, WHOLE_PERMILLE)
        usage_at_ns, usage_charged_ns, usages = now_ns, charged_ns, (*usages, usage)[-USAGES:]
    return tuple.__new__(
        Record,
        (
            activity,
            paid_until_ns,
            active,
            active_at_ns,
            began_at_ns,
            contended_since_ns,
            now_ns if waited else waited_at_ns,
            usage_at_ns,
            usage_charged_ns,
            usages,
        ),
    )


def _presses(since_ns: int | None, refilled_ns: int, contended_ns: int, now_ns: int) -> bool:
    """Whether others have had the GPU for all of a while in which it had work and made more."""
    if since_ns is None or now_ns - since_ns < PRESSING_NS:
        return False
    return refilled_ns >= since_ns or contended_ns - refilled_ns > 2 * IDLE_AFTER_NS


def demand_permille(record: Record, own_permille: int, now_ns: int) -> int:
    """What the container could use of the GPU's time now, as far as it can be told."""
    if not record.active:
        return 0
    if record.waited_at_ns is not None and now_ns - record.waited_at_ns < WAITED_NS:
        return WHOLE_PERMILLE
    if len(record.usages) < USAGES:
        return own_permille
    usual = min(max(record.usages) * 5 // 4 + MARGIN_PERMILLE, WHOLE_PERMILLE)
    if now_ns - record.began_at_ns < SETTLING_NS:
        return max(usual, own_permille)
    return usual


class Tenant(NamedTuple):
    """A container on one GPU, in permille of its time."""

    own: int  # its share; 1000: it has no limit
    demand: int
    borrows: bool = True


def lent_permille(tenants: Sequence[Tenant]) -> tuple[int, ...]:
    """What is lent to each tenant of one GPU, on top of its own share.

    What nobody's own share is needed for goes to those who want more than theirs, in proportion to
    their own shares, and to nobody more than it wants. Own shares of those who compute and all that
    is lent are together never more than the GPU.
    """
    spare = WHOLE_PERMILLE - sum(min(tenant.own, tenant.demand) for tenant in tenants)
    lent = [0] * len(tenants)
    wanting = {
        i: min(tenant.demand, MOST_PERMILLE) - tenant.own
        for i, tenant in enumerate(tenants)
        if tenant.borrows and 0 < tenant.own < min(tenant.demand, MOST_PERMILLE)
    }
    while spare > 0 and wanting:
        owned = sum(tenants[i].own for i in wanting)
        content = [i for i, want in wanting.items() if want * owned <= spare * tenants[i].own]
        if not content:
            for i in wanting:
                lent[i] = spare * tenants[i].own // owned
            break
        for i in content:
            lent[i] = wanting.pop(i)
        spare -= sum(lent[i] for i in content)
    return tuple(lent)


def capped_permille(own_permille: int, lent_permille: int) -> int:
    """What may be lent beside this share, which may be larger than when that was decided."""
    if not 0 < own_permille < WHOLE_PERMILLE:
        return lent_permille  # it has no limit
    return min(lent_permille, MOST_PERMILLE - own_permille)


class Lease(NamedTuple):
    """What is lent to a container on one GPU, and until when; and until when it is blocked there.

    Times are CLOCK_MONOTONIC; 0: not at all.
    """

    lent_permille: int = 0
    lent_until_ns: int = 0
    blocked_until_ns: int = 0
