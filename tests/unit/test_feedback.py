"""The table of priorities: who is blocked, and whose share is kept."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.feedback import Change, Sharer, asked_priority, observe, priority_of

A, B = "GPU-a", "GPU-b"


def sharer(recent: int = 2, priority: int = 1, *devices: str, switch: int = 1) -> Sharer:
    return Sharer(
        recent_kernel=recent,
        priority=priority,
        devices=frozenset(devices or (A,)),
        switch=switch,
    )


# --- each line of the table -----------------------------------------------------------------------

OUTCOMES = [
    # who is looked at, who else there is, its recent kernel and switch afterwards
    pytest.param(sharer(2), [], 1, 0, id="alone and active: counted down, its share not kept"),
    pytest.param(sharer(1), [], 0, 0, id="no launch since the last round: not active"),
    pytest.param(sharer(0), [], 0, 0, id="idle stays idle"),
    pytest.param(sharer(-1), [], 0, 0, id="blocked, nobody above: let go"),
    pytest.param(sharer(-7), [], 0, 0, id="blocked by another number, let go all the same"),
    pytest.param(sharer(2), [sharer(2, 0)], -1, 1, id="somebody above is active: blocked"),
    pytest.param(sharer(0), [sharer(2, 0)], -1, 1, id="idle and somebody above: blocked, too"),
    pytest.param(sharer(-1), [sharer(2, 0)], -1, 1, id="stays blocked"),
    pytest.param(sharer(-7), [sharer(2, 0)], -7, 1, id="blocked by another number: unchanged"),
    pytest.param(sharer(2), [sharer(1, 0)], 1, 0, id="who is above had no launch: not active"),
    pytest.param(sharer(2), [sharer(-1, 0)], 1, 0, id="who is above is blocked: not active"),
    pytest.param(sharer(2), [sharer(2, 2)], 1, 0, id="somebody below is nothing to it"),
    pytest.param(sharer(2), [sharer(2)], 1, 1, id="two equals: both shares are kept"),
    pytest.param(sharer(2), [sharer(1)], 1, 0, id="an equal that is not active"),
    pytest.param(sharer(0), [sharer(2)], 0, 0, id="idle beside one equal: a count of one"),
    pytest.param(sharer(0), [sharer(2), sharer(2)], 0, 1, id="idle beside two equals"),
    pytest.param(sharer(2), [sharer(2, 1, B)], 1, 0, id="an equal on another GPU"),
    pytest.param(sharer(2), [sharer(2, 0, B)], 1, 0, id="somebody above on another GPU"),
    pytest.param(sharer(2, 1, A, B), [sharer(2, 0, B)], -1, 1, id="above, on the second GPU only"),
    pytest.param(
        sharer(2, 1, A, B), [sharer(2, 1, A), sharer(2, 0, B)], -1, 1,
        id="an equal on the first GPU does not hide who is above on the second",
    ),
    pytest.param(sharer(2, 1, A, B), [sharer(2, 1, B)], 1, 1, id="an equal on the second GPU only"),
    pytest.param(sharer(2, 9), [sharer(2, 8)], -1, 1, id="any number of priorities: 8 before 9"),
    pytest.param(sharer(2, 8), [sharer(2, 9)], 1, 0, id="any number of priorities: not 9 before 8"),
    pytest.param(sharer(2, 2**31 - 1), [sharer(2, 2**31 - 2)], -1, 1, id="however large they are"),
    pytest.param(sharer(2), [sharer(2, -1)], 1, 0, id="one below 0 counts for nobody"),
    pytest.param(sharer(2, -1), [sharer(2, 0)], 1, 0, id="one below 0 has nobody above"),
    pytest.param(sharer(2, -1), [sharer(2, -1)], 1, 0, id="nor equals"),
    pytest.param(sharer(2, -1), [sharer(2, -5)], 1, 0, id="nor others below 0"),
    pytest.param(sharer(-1, -1), [], 0, 0, id="and is let go"),
    pytest.param(sharer(5), [], 4, 0, id="more than the library ever writes"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "others", "recent", "switch"), OUTCOMES)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_outcome(one: Sharer, others: list[Sharer], recent: int, switch: int, before: int) -> None:
    looked_at = sharer(one.recent_kernel, one.priority, *one.devices, switch=before)
    change = observe({"one": looked_at} | dict(enumerate(others))).get("one", Change())
    assert change == Change(
        recent_kernel=recent if recent != one.recent_kernel else None,
        switch=switch if switch != before else None,
    )


def test_a_container_without_a_gpu_is_not_judged_by_others() -> None:
    none = Sharer(recent_kernel=0, priority=1, devices=frozenset(), switch=0)
    assert "none" not in observe({"none": none, "other": sharer(2, 0)})


def test_who_has_launched_is_active_for_two_rounds() -> None:
    """The library writes 2 at a launch; the round after next finds it idle and lets others go."""
    high, low = sharer(2, 0), sharer(2)
    rounds = []
    for _ in range(4):
        changes = observe({"high": high, "low": low})
        high, low = applied(high, changes.get("high")), applied(low, changes.get("low"))
        rounds.append((high.recent_kernel, low.recent_kernel))
    assert rounds == [(1, -1), (0, 0), (0, 0), (0, 0)]


def applied(before: Sharer, change: Change | None) -> Sharer:
    change = change or Change()
    return Sharer(
        recent_kernel=before.recent_kernel
        if change.recent_kernel is None
        else change.recent_kernel,
        priority=before.priority,
        devices=before.devices,
        switch=before.switch if change.switch is None else change.switch,
    )


# --- the two passes of HAMi 2.10's monitor, written from its description ---------------------------


def two_passes(sharers: Mapping[int, Sharer]) -> dict[int, tuple[int, int]]:
    """What every container's words are after a round: recent kernel and switch.

    As that monitor keeps its books: a list per device that grows to the largest priority seen.
    """
    counts: dict[str, list[int]] = {}
    recent = {}
    for key, one in sharers.items():
        recent[key] = one.recent_kernel
        if one.recent_kernel > 0:
            recent[key] -= 1
            if recent[key] > 0 and one.priority >= 0:
                for uuid in one.devices:
                    row = counts.setdefault(uuid, [])
                    row += [0] * (one.priority + 1 - len(row))
                    row[one.priority] += 1
    after = {}
    for key, one in sharers.items():
        above = equals = False
        for uuid in one.devices:
            for priority, count in enumerate(counts.get(uuid, [])):
                above = above or (priority < one.priority and count > 0)
                equals = equals or (priority == one.priority and count > 1)
        word = recent[key]
        if above and word >= 0:
            word = -1
        elif not above and word < 0:
            word = 0
        after[key] = (word, 1 if above or equals else 0)
    return after


SHARERS = st.dictionaries(
    st.integers(0, 20),
    st.builds(
        Sharer,
        recent_kernel=st.integers(-2, 3),
        priority=st.integers(-2, 5),
        devices=st.frozensets(st.sampled_from("abcd"), max_size=4),
        switch=st.integers(-1, 2),
    ),
    max_size=12,
)


@given(SHARERS)
def test_same_as_the_monitors_two_passes(sharers: dict[int, Sharer]) -> None:
    changes = observe(sharers)
    after = {key: applied(one, changes.get(key)) for key, one in sharers.items()}
    assert {key: (one.recent_kernel, one.switch) for key, one in after.items()} == two_passes(
        sharers
    )


@given(SHARERS)
def test_only_changes_are_given(sharers: dict[int, Sharer]) -> None:
    for key, change in observe(sharers).items():
        assert change != Change()
        assert change.recent_kernel != sharers[key].recent_kernel
        assert change.switch != sharers[key].switch


@given(SHARERS)
def test_nobody_is_blocked_by_equals_or_those_below(sharers: dict[int, Sharer]) -> None:
    """Of those that share a GPU, who is highest is never blocked, so the GPU is never left idle."""
    highest = min((one.priority for one in sharers.values()), default=0)
    changes = observe(sharers)
    for key, one in sharers.items():
        if one.priority == highest:
            assert applied(one, changes.get(key)).recent_kernel >= 0


@given(st.integers(), st.text(max_size=20) | st.none())
def test_a_container_cannot_raise_itself_above_its_pod(in_region: int, asked: str | None) -> None:
    wanted = asked_priority(asked)
    alone = priority_of(-(2**31), wanted, of_region=False)
    assert priority_of(in_region, wanted, of_region=False) >= alone
    assert priority_of(in_region, wanted, of_region=True) == in_region


@pytest.mark.parametrize(
    ("in_region", "asked", "expected"),
    [
        pytest.param(1, None, 1, id="nothing said anywhere"),
        pytest.param(0, None, 0 + 1, id="the region says 0, the pod nothing"),
        pytest.param(0, "0", 0, id="both say 0"),
        pytest.param(1, "0", 1, id="a process lowers itself"),
        pytest.param(0, "3", 3, id="the pod says 3"),
        pytest.param(-4, "-4", -4, id="below 0"),
        pytest.param(0, " 2 ", 2, id="spaces"),
        pytest.param(0, "+2", 2, id="a sign"),
        pytest.param(0, "", 1, id="empty"),
        pytest.param(0, "high", 1, id="no number"),
        pytest.param(0, "²", 1, id="a digit of another alphabet"),
        pytest.param(0, "9" * 50, 2**31 - 1, id="a very large number"),
        pytest.param(None, "0", 0, id="no process said anything, the pod says 0"),
        pytest.param(None, None, 1, id="nobody said anything"),
        pytest.param(None, "-4", -4, id="below 0, and no process said anything"),
    ],
)
def test_priority(in_region: int | None, asked: str | None, expected: int) -> None:
    assert priority_of(in_region, asked_priority(asked), of_region=False) == expected
