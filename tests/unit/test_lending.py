"""Whose idle share is lent to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.lending import (
    MOST_PERMILLE,
    MS,
    SETTLING_NS,
    USAGE_EVERY_NS,
    USAGES,
    WAITED_NS,
    Activity,
    Record,
    Tenant,
    capped_permille,
    demand_permille,
    lent_permille,
    looked,
)

TENANTS = st.lists(
    st.builds(
        Tenant, st.integers(1, 1000), st.integers(0, 1000), st.booleans()
    ),
    max_size=10,
)  # fmt: skip
SECOND = 1000 * MS


@pytest.mark.parametrize(
    ("tenants", "lent"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param([Tenant(300, 1000)], [699], id="alone: all but what keeps it counted"),
        pytest.param([Tenant(300, 1000, borrows=False)], [0], id="alone, strict"),
        pytest.param([Tenant(300, 300)], [0], id="alone, content"),
        pytest.param([Tenant(300, 0)], [0], id="alone, idle"),
        pytest.param([Tenant(300, 1000), Tenant(700, 0)], [699, 0], id="beside an idle one"),
        pytest.param([Tenant(300, 1000), Tenant(700, 700)], [0, 0], id="beside a busy one"),
        pytest.param([Tenant(300, 1000), Tenant(700, 200)], [500, 0], id="beside one half busy"),
        pytest.param([Tenant(300, 1000), Tenant(700, 1000)], [0, 0], id="two want all"),
        pytest.param([Tenant(200, 1000), Tenant(300, 1000)], [200, 300], id="by own shares"),
        pytest.param([Tenant(200, 250), Tenant(300, 1000)], [50, 450], id="one wants little"),
        pytest.param([Tenant(300, 1000), Tenant(1000, 1000)], [0, 0], id="beside no limit"),
        pytest.param([Tenant(300, 1000), Tenant(1000, 0)], [699, 0], id="no limit, but idle"),
        pytest.param([Tenant(900, 1000), Tenant(900, 1000)], [0, 0], id="more granted than is"),
        pytest.param([Tenant(1, 1000), Tenant(1, 1000)], [499, 499], id="tiny shares"),
    ],
)
def test_lent(tenants: list[Tenant], lent: list[int]) -> None:
    assert list(lent_permille(tenants)) == lent


@pytest.mark.parametrize(
    ("own", "lent", "may"),
    [
        pytest.param(300, 700, 699, id="not all of the GPU"),
        pytest.param(300, 100, 100, id="less than is free"),
        pytest.param(0, 700, 700, id="no limit"),
        pytest.param(1000, 700, 700, id="nor here"),
    ],
)
def test_what_is_lent_is_no_more_than_leaves_a_limit(own: int, lent: int, may: int) -> None:
    assert capped_permille(own, lent) == may


@given(TENANTS)
def test_no_more_than_is_idle_is_lent(tenants: list[Tenant]) -> None:
    """However they lie about what they want: own shares that are in use are never touched."""
    lent = lent_permille(tenants)
    assert all(permille >= 0 for permille in lent)
    if any(lent):
        in_use = sum(min(one.own, one.demand) for one in tenants)
        assert in_use + sum(lent) <= 1000


@given(TENANTS)
def test_nobody_gets_more_than_it_wants_or_may_have(tenants: list[Tenant]) -> None:
    for one, permille in zip(tenants, lent_permille(tenants), strict=True):
        assert permille == 0 or one.borrows
        assert permille == 0 or one.own + permille <= min(one.demand, MOST_PERMILLE)


@given(TENANTS)
def test_nothing_is_left_that_somebody_wants(tenants: list[Tenant]) -> None:
    lent = lent_permille(tenants)
    left = 1000 - sum(min(one.own, one.demand) for one in tenants) - sum(lent)
    wanting = [
        one
        for one, permille in zip(tenants, lent, strict=True)
        if one.borrows and one.own + permille < min(one.demand, MOST_PERMILLE)
    ]
    assert left <= len(tenants) or not wanting  # what rounding leaves


@given(TENANTS)
def test_those_that_want_more_still_have_got_in_proportion(tenants: list[Tenant]) -> None:
    lent = lent_permille(tenants)
    unsated = [
        (one.own, permille)
        for one, permille in zip(tenants, lent, strict=True)
        if one.borrows and one.own + permille < min(one.demand, MOST_PERMILLE)
    ]
    for own, permille in unsated:
        for other_own, other_permille in unsated:
            assert (permille + 1) * other_own > other_permille * own - own  # but for rounding


# --- what they are seen to do ---------------------------------------------------------------------


def activity(
    refilled_ms: float = 0,
    charged_ms: float = 0,
    budget_ms: float = 5,
    waits: int = 0,
    launches: int = 0,
    contended_ms: float = 0,
) -> Activity:
    times = (round(ms * MS) for ms in (budget_ms, refilled_ms, charged_ms))
    return Activity(*times, launches, waits, round(contended_ms * MS))


def after(*looks: tuple[float, Activity], own: int = 300) -> tuple[Record, int]:
    """What is known after looks at these times (ms), and the time of the last."""
    record, now_ns = None, 0
    for at_ms, seen in looks:
        now_ns = round(at_ms * MS)
        record = looked(record, seen, own, now_ns)
    assert record is not None
    return record, now_ns


def demand(*looks: tuple[float, Activity], own: int = 300) -> int:
    record, now_ns = after(*looks, own=own)
    return demand_permille(record, own, now_ns)


def test_at_first_sight_nobody_lends() -> None:
    assert demand((1000, activity())) == 300


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(activity(refilled_ms=1000), 0, id="no launch since"),
        pytest.param(activity(refilled_ms=1035), 300, id="a launch 5 ms ago"),
        pytest.param(activity(refilled_ms=1030), 0, id="a launch 10 ms ago"),
        pytest.param(activity(refilled_ms=1041), 300, id="a launch since we looked"),
        pytest.param(activity(refilled_ms=1e6), 0, id="its last launch was before another boot"),
        pytest.param(activity(refilled_ms=1001, charged_ms=1), 0, id="1 ms was paid for by 1004"),
        pytest.param(activity(refilled_ms=1029, charged_ms=4), 300, id="4 ms will be by 1042"),
        pytest.param(activity(refilled_ms=1001, charged_ms=200), 300, id="a long kernel runs"),
        pytest.param(
            activity(refilled_ms=1029, charged_ms=12, launches=4),
            0,
            id="the last of four is paid for",
        ),
        pytest.param(
            activity(refilled_ms=1029, charged_ms=12, launches=3),
            300,
            id="the last of three will be by 1042",
        ),
        pytest.param(activity(1015, contended_ms=1036), 300, id="others have the GPU it waits for"),
        pytest.param(activity(1005, contended_ms=1036), 0, id="and its last launch must be over"),
        pytest.param(activity(1015, contended_ms=1035), 0, id="others had it 5 ms ago"),
        pytest.param(activity(1015, contended_ms=1041), 300, id="others have it since we looked"),
        pytest.param(activity(1000, contended_ms=1e6), 0, id="others will have it"),
        pytest.param(activity(refilled_ms=1039, waits=1), 1000, id="one waited"),
        pytest.param(activity(refilled_ms=1039, budget_ms=0), 1000, id="one waits now"),
        pytest.param(activity(refilled_ms=1039, budget_ms=-70), 1000, id="one waits, in debt"),
        pytest.param(
            activity(refilled_ms=1026, budget_ms=-70), 1000, id="in debt, asked 14 ms ago"
        ),
        pytest.param(activity(refilled_ms=1025, budget_ms=-70), 0, id="in debt, asked 15 ms ago"),
        pytest.param(activity(refilled_ms=1000, budget_ms=-70), 0, id="in debt, asks for nothing"),
    ],
)
def test_second_look(seen: Activity, expected: int) -> None:
    assert demand((1000, activity(refilled_ms=1000)), (1040, seen)) == expected


def test_a_long_kernel_is_no_idleness_until_its_share_has_paid_for_it() -> None:
    began = (1000, activity(refilled_ms=900)), (1040, activity(refilled_ms=1035, charged_ms=60))
    running = activity(refilled_ms=1035, charged_ms=60)
    assert demand(*began, (1200, running)) == 300
    assert demand(*began, (1241, running)) == 0


def test_who_has_settled_keeps_what_it_uses_and_some_more() -> None:
    looks = [(at, activity(refilled_ms=at, charged_ms=at * 0.1)) for at in range(0, 2001, 40)]
    assert demand(*looks) == 100 * 5 // 4 + 30
    began = SETTLING_NS // MS - 40
    assert demand(*[look for look in looks if look[0] <= began]) == 300


@pytest.mark.parametrize(
    ("later_ms", "seen", "expected"),
    [
        pytest.param(16, activity(2055, 206, contended_ms=2055), 300, id="and launches more"),
        pytest.param(16, activity(2039, 206, contended_ms=2055), 155, id="a burst of launches"),
        pytest.param(25, activity(2039, 206, contended_ms=2064), 300, id="with a burst that lasts"),
        pytest.param(16, activity(2055, 206, contended_ms=2050), 155, id="no longer"),
        pytest.param(14, activity(2053, 206, contended_ms=2053), 155, id="not for long enough"),
    ],
)
def test_who_presses_for_the_gpu_has_all_of_its_share(
    later_ms: int, seen: Activity, expected: int
) -> None:
    """Others have the GPU while it has work, at two looks in a row; it never waits for its share."""
    looks = [(at, activity(refilled_ms=at, charged_ms=at * 0.1)) for at in range(0, 2001, 40)]
    first = (2040, activity(2039, 204, contended_ms=2039))
    assert demand(*looks, first) == 155
    assert demand(*looks, first, (2040 + later_ms, seen)) == expected


def test_who_presses_for_the_gpu_may_want_more_than_its_share() -> None:
    """Two that are lent something, and limited by the GPU alone, are judged by what they use."""
    looks = [
        (at, activity(refilled_ms=at, charged_ms=at * 0.3, contended_ms=at))
        for at in range(0, 2001, 40)
    ]
    assert demand(*looks) == 300 * 5 // 4 + 30


def test_who_computes_now_and_then_has_settled_all_the_same() -> None:
    """6 ms of every 60, and none of the looks in between finds it computing."""
    looks = [
        (at, activity(refilled_ms=at - at % 60, charged_ms=at // 60 * 6))
        for at in range(0, 3001, 40)
    ]
    seen = {demand(*looks[:n]) for n in range(60, len(looks))}
    assert seen <= {0, *range(100, 200)}
    assert seen > {0}


def test_who_was_idle_for_long_gets_its_share_back_at_once() -> None:
    looks = [(at, activity(refilled_ms=at, charged_ms=at * 0.1)) for at in range(0, 2001, 40)]
    idle = [(at, activity(refilled_ms=2000, charged_ms=200)) for at in range(2040, 4001, 40)]
    assert demand(*looks, *idle) == 0
    assert demand(*looks, *idle, (4040, activity(refilled_ms=4039, charged_ms=201))) == 300


def test_who_waited_wants_all_for_a_second() -> None:
    first = (0, activity()), (40, activity(refilled_ms=39, waits=1))
    end_ms = 40 + WAITED_NS // MS
    assert demand(*first, (end_ms - 1, activity(refilled_ms=end_ms - 2, waits=1))) == 1000
    assert demand(*first, (end_ms, activity(refilled_ms=end_ms - 1, waits=1))) == 300


U64 = st.integers(0, 2**64 - 1)
ACTIVITIES = st.builds(Activity, st.integers(-(2**63), 2**63 - 1), U64, U64, U64, U64, U64)


@given(st.lists(ACTIVITIES, min_size=1, max_size=12), st.integers(1, 999))
def test_any_counters_are_borne(seen: list[Activity], own: int) -> None:
    record = None
    for number, one in enumerate(seen):
        now_ns = SECOND + number * 40 * MS
        record = looked(record, one, own, now_ns)
        assert 0 <= demand_permille(record, own, now_ns) <= 1000
        assert record.paid_until_ns <= now_ns + 10 * SECOND
        assert len(record.usages) <= USAGES


@given(st.lists(ACTIVITIES, min_size=2, max_size=6), st.lists(ACTIVITIES, min_size=2, max_size=6))
def test_a_lie_takes_nobodys_own_share(lies: list[Activity], truth: list[Activity]) -> None:
    """What others are lent depends on what one says, what is theirs does not."""
    now_ns = SECOND
    own = {"liar": 300, "other": 700}
    records: dict[str, Record | None] = {"liar": None, "other": None}
    for lie, word in zip(lies, truth, strict=False):
        now_ns += USAGE_EVERY_NS
        records["liar"] = looked(records["liar"], lie, 300, now_ns)
        records["other"] = looked(records["other"], word, 700, now_ns)
    tenants = [
        Tenant(own[name], demand_permille(record, own[name], now_ns))
        for name, record in records.items()
        if record is not None
    ]
    lent = lent_permille(tenants)
    assert lent[0] <= 1000 - 300 - min(700, tenants[1].demand)


@pytest.mark.parametrize("waits", [0, 3])
@pytest.mark.parametrize("last_ms", [1, 20, 49, 59, 69])
def test_whoever_stops_is_seen_idle_at_the_first_look_at_which_it_can_be(
    last_ms: int, waits: int
) -> None:
    """Looks are 70 ms apart; it launches 1 ms at a time, and its share has paid for almost all of it."""
    record, charged_ns, launches = None, 0, 0
    for turn in range(20):
        now_ns = 1000 * SECOND + turn * 70 * MS
        busy = Activity(1, now_ns - MS, charged_ns, launches, waits * turn)
        record = looked(record, busy, 700, now_ns)
        assert record.active
        charged_ns, launches = charged_ns + 49 * MS, launches + 49
    charged_ns += (last_ms - 70) * 49 * MS // 70
    ended = Activity(
        1, now_ns + last_ms * MS, charged_ns, launches - 49 + last_ms * 7 // 10, waits * 20
    )
    seen = [
        later_ms
        for later_ms in (70, 140, 210)
        if not (record := looked(record, ended, 700, now_ns + later_ms * MS)).active
    ]
    assert seen[0] - last_ms <= 10 + 70
