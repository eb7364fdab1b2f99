"""Whose idle share of a GPU's time is lent to whom.

A container with a share of 30 % that waits gets, on top, what others leave idle, and loses it when
they come back. Nothing but the containers' own counters says who waits and who is idle, and a
container may write into those what it likes. So they only ever decide about what is spare: who
claims to be idle lends out its own share, who claims to wait gets a part of what nobody uses, and
nobody's own share is touched by what another one says. Times are CLOCK_MONOTONIC.

Looked at many times a second, so what is made at every look is made of named tuples.
"""

from collections.abc import Sequence
from typing import NamedTuple

WHOLE_PERMILLE = 1000
MOST_PERMILLE = 999  # with what is lent: at 1000 the hook would stop counting what is used

MS = 1_000_000
IDLE_AFTER_NS = 10 * MS  # without a launch that had to be paid for
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
    waits: int


class Record(NamedTuple):
    """What is remembered of a container on one GPU from look to look."""

    activity: Activity
    paid_until_ns: int  # when its own share has paid for what it launched
    active: bool = True
    active_at_ns: int = 0  # when it last was
    began_at_ns: int = 0  # to be
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
    earlier = before.activity
    if not before.active and activity == earlier:
        return before
    refilled_ns = activity.refilled_at_ns
    waits = activity.waits != earlier.waits or (
        activity.budget_ns <= 0 and refilled_ns != earlier.refilled_at_ns
    )
    # A launch is charged for when it is made, and may run for as long as its share takes to pay it.
    # The last one was made when time was last given.
    charged_ns = activity.charged_ns - earlier.charged_ns
    lasts_ns = min(charged_ns * WHOLE_PERMILLE // own_permille, LONGEST_LAUNCH_NS)
    paid_until_ns = max(before.paid_until_ns, min(refilled_ns, now_ns) + lasts_ns)
    active = waits or now_ns < paid_until_ns or now_ns - refilled_ns < IDLE_AFTER_NS
    began = active and now_ns - before.active_at_ns >= SETTLING_NS
    usage_at_ns, usage_charged_ns, usages = _usages(before, activity.charged_ns, now_ns)
    return Record(
        activity,
        paid_until_ns,
        active,
        now_ns if active else before.active_at_ns,
        now_ns if began else before.began_at_ns,
        now_ns if waits else before.waited_at_ns,
        usage_at_ns,
        usage_charged_ns,
        usages,
    )


def _usages(before: Record, charged_ns: int, now_ns: int) -> tuple[int, int, tuple[int, ...]]:
    """When they were added to, what was charged by then, and what they are."""
    since_ns = now_ns - before.usage_at_ns
    if since_ns < USAGE_EVERY_NS:
        return before.usage_at_ns, before.usage_charged_ns, before.usages
    used_ns = max(charged_ns - before.usage_charged_ns, 0)
    usage = min(used_ns * WHOLE_PERMILLE // since_ns, WHOLE_PERMILLE)
    return now_ns, charged_ns, (*before.usages, usage)[-USAGES:]


def demand_permille(record: Record, own_permille: int, now_ns: int) -> int:
    """What the container could use of the GPU's time now, as far as it can be told."""
    if not record.active:
        return 0
    if record.waited_at_ns is not None and now_ns - record.waited_at_ns < WAITED_NS:
        return WHOLE_PERMILLE
    if now_ns - record.began_at_ns < SETTLING_NS or len(record.usages) < USAGES:
        return own_permille
    return min(max(record.usages) * 5 // 4 + MARGIN_PERMILLE, WHOLE_PERMILLE)


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
