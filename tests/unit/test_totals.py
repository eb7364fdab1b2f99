"""Counters made of steps: what is believed, and that they never go back."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.domain.accounting import Totals
from agent.domain.totals import (
    EMPTY,
    MAX_ENTRIES,
    MAX_NAME_CHARS,
    MOST,
    NAMES,
    PER_SECOND,
    Entry,
    MalformedTotals,
    advance,
    decode,
    driven,
    encode,
    kept,
    passed_over,
)

S = 1_000_000_000
GRANTED = 1000.0


def shown(*looks: tuple[float, float], processes: int = 1, name: str = "gpu_ns") -> list[float]:
    """Totals after each look: seconds since the grant, and what the container counts, in s."""
    entry: Entry | None = None
    said = []
    for after_s, raw_s in looks:
        raw = Totals(**{name: int(raw_s * S)})
        entry = advance(
            entry, raw, granted_at_s=GRANTED, now_s=GRANTED + after_s, processes=processes
        )
        said.append(round(getattr(entry.totals, name) / S, 2))
    return said


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        pytest.param([(10, 2), (15, 5), (20, 5)], [2, 5, 5], id="as it counts"),
        pytest.param([(3600, 1000)], [1000], id="what it had used before we came"),
        pytest.param([(10, 3600)], [10.5], id="more than it can have had"),
        pytest.param([(10, 10), (15, 1e9)], [10, 15.75], id="a forged leap"),
        pytest.param([(10, 10), (15, 1e9), (20, 1e9)], [10, 15.75, 21], id="it gains 60 s by it"),
        pytest.param(
            [(10, 10), (15, 1e9), (100, 1e9), (500, 1e9)], [10, 15.75, 78.75, 78.75],
            id="and never more than that",
        ),
        pytest.param([(10, 0), (3600, 0), (3610, 1e6)], [0, 0, 73.5], id="an hour of rest is no credit"),
        pytest.param([(10, 2), (15, 22), (20, 22), (30, 22)], [2, 15.75, 21, 22], id="charged ahead"),
        pytest.param([(10, 8), (15, 3), (20, 5)], [8, 11, 13], id="made anew"),
        pytest.param([(10, 8), (15, 0), (20, 0)], [8, 8, 8], id="set to 0"),
        pytest.param([(10, 8), (5, 9), (11, 10)], [8, 9, 10], id="the clock was set back"),
        pytest.param([(10, 0), (70, 60)], [0, 60], id="counted late"),
    ],
)  # fmt: skip
def test_gpu_time(looks: list[tuple[float, float]], said: list[float]) -> None:
    assert shown(*looks) == said


def test_every_process_can_wait_but_a_gpu_has_its_time_once() -> None:
    looks = [(10.0, 0.0), (20.0, 1000.0)]
    assert shown(*looks, processes=4, name="throttled_ns") == [0, 84]
    assert shown(*looks, processes=4) == [0, 21]
    assert shown(*looks, processes=0, name="throttled_ns") == [0, 21]


COUNT = st.integers(0, (1 << 64) - 1) | st.integers(0, 10 * S)
RAW = st.builds(Totals, **dict.fromkeys(NAMES, COUNT))  # type: ignore[arg-type]
LOOKS = st.lists(st.tuples(st.floats(-100, 1000), RAW, st.integers(0, 1024)), max_size=20)


@given(LOOKS)
def test_whatever_a_tenant_writes_totals_only_grow_and_only_as_time_allows(
    looks: list[tuple[float, Totals, int]],
) -> None:
    now_s, latest_s, entry = GRANTED, GRANTED, None
    passed_s = 0.0
    for step_s, raw, processes in looks:
        before = entry.totals if entry else Totals()
        now_s += step_s
        passed_s += max(0.0, now_s - latest_s)
        latest_s = now_s
        entry = advance(entry, raw, granted_at_s=GRANTED, now_s=now_s, processes=processes)
        for name in NAMES:
            assert getattr(before, name) <= getattr(entry.totals, name) <= MOST
        assert entry.totals.gpu_ns <= passed_s * PER_SECOND["gpu_ns"] + 1
        assert entry.totals.throttled_ns <= 1024 * (passed_s * PER_SECOND["throttled_ns"] + 1)


TURNS = st.tuples(st.floats(-100, 1000), COUNT, st.integers(0, 100), st.sampled_from("kdn"))


@given(st.lists(TURNS, max_size=20))
def test_the_driver_and_a_tenant_together_tell_of_no_more_than_the_time(
    turns: list[tuple[float, int, int, str]],
) -> None:
    """A share is kept, or not and the driver is asked, or there is no region: in any order."""
    now_s, passed_s, entry = GRANTED, 0.0, None
    for step_s, gpu_ns, percent, what in turns:
        before, since_s = entry, entry.at_s if entry else None
        now_s += step_s
        passed_s += max(0.0, step_s)
        if what != "n":
            if before is not None and what == "d":
                entry = passed_over(before, gpu_ns)
            raw = Totals(gpu_ns=gpu_ns)
            entry = advance(entry, raw, granted_at_s=GRANTED, now_s=now_s, processes=1)
        if what != "k":
            entry = driven(entry, percent, now_s, since_s=since_s)
        assert entry is not None
        told_ns = entry.totals.gpu_ns
        assert (before.totals.gpu_ns if before else 0) <= told_ns
        assert told_ns <= passed_s * PER_SECOND["gpu_ns"] + 1000


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), max_size=30))
def test_an_honest_container_is_believed(steps: list[tuple[int, float]]) -> None:
    """GPU time that is never more than the time that passed arrives, and at once."""
    entry, now_s, used_ns = None, GRANTED, 0
    for step_s, share in steps:
        now_s += step_s
        used_ns += int(step_s * share * S)
        entry = advance(
            entry, Totals(gpu_ns=used_ns), granted_at_s=GRANTED, now_s=now_s, processes=1
        )
        assert entry.totals.gpu_ns == used_ns


def test_only_the_living_are_kept() -> None:
    ledger = {("a", "main", "G"): Entry(), ("a", "side", "G"): Entry(), ("b", "main", "G"): Entry()}
    assert set(kept(ledger, [("a", "side"), ("c", "main")])) == {("a", "side", "G")}


# --- as bytes -------------------------------------------------------------------------------------

ENTRIES = st.builds(
    Entry, totals=st.builds(Totals, **dict.fromkeys(NAMES, st.integers(0, MOST))),  # type: ignore[arg-type]
    counted=st.builds(Totals, **dict.fromkeys(NAMES, st.integers(0, MOST))),  # type: ignore[arg-type]
    at_s=st.floats(allow_nan=False, allow_infinity=False),
    spare=st.builds(Totals, **dict.fromkeys(NAMES, st.integers(0, MOST))),  # type: ignore[arg-type]
)  # fmt: skip
LEDGERS = st.dictionaries(st.tuples(*[st.text(max_size=9)] * 3), ENTRIES, max_size=5)


@given(LEDGERS)
def test_what_is_saved_is_read_back(ledger: dict[tuple[str, str, str], Entry]) -> None:
    assert decode(encode(ledger)) == ledger


def test_a_wait_that_is_counted_at_its_end_is_believed_after_a_restart() -> None:
    entry = None
    for now_s in range(int(GRANTED), int(GRANTED) + 51):
        entry = advance(entry, Totals(), granted_at_s=GRANTED, now_s=float(now_s), processes=1)
    assert entry is not None
    read = decode(encode({("u", "c", "g"): entry}))["u", "c", "g"]
    after = advance(
        read, Totals(throttled_ns=40 * S), granted_at_s=GRANTED, now_s=GRANTED + 51, processes=1
    )
    assert after.totals.throttled_ns == 40 * S


def test_what_an_older_agent_saved_is_read() -> None:
    (entry,) = decode(line(totals=[1, 2, 3, 4, 5]).encode()).values()
    assert entry == Entry(totals=Totals(**dict(zip(NAMES, range(1, 6), strict=True))), at_s=1.0)


def test_a_name_too_long_to_be_read_back_takes_no_other_entry_with_it() -> None:
    """A pod's annotation can name any GPU, and with each process on it the name is longer."""
    longest = ("uid", "main", "G" * MAX_NAME_CHARS)
    ledger = {longest: Entry(), ("uid", "main", longest[2] + "#1"): Entry()}
    assert set(decode(encode(ledger))) == {longest}


def test_the_newest_are_saved_of_too_many() -> None:
    ledger = {(str(n), "main", "G"): Entry(at_s=float(n)) for n in range(MAX_ENTRIES + 2)}
    read = decode(encode(ledger))
    assert len(read) == MAX_ENTRIES
    assert ("1", "main", "G") not in read
    assert ("2", "main", "G") in read


def test_of_too_many_processes_are_left_out_first() -> None:
    old = {("u", "main", "G"): Entry(at_s=0.0)}
    new = {("u", "main", f"G#{pid}"): Entry(at_s=1.0) for pid in range(MAX_ENTRIES)}
    assert decode(encode({**new, **old})).keys() >= old.keys()


def line(**changes: object) -> str:
    values = {"uid": "u", "container": "c", "gpu": "g", "at_s": 1.0, "totals": [0] * 5,
              "counted": [0] * 5, **changes}  # fmt: skip
    return json.dumps({"version": 1, "entries": [list(values.values())]})


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("\0" * 4096, id="zeros, after a power cut"),
        pytest.param("[]", id="a list"),
        pytest.param('{"version": 2, "entries": []}', id="another version"),
        pytest.param('{"version": 1}', id="no entries"),
        pytest.param('{"version": 1, "entries": {}}', id="entries that are no list"),
        pytest.param(line()[:-4], id="cut short"),
        pytest.param(line(uid=7), id="a number for a name"),
        pytest.param(line(uid="u" * 300), id="a long name"),
        pytest.param(line(at_s="now"), id="a word for a time"),
        pytest.param(line(at_s=float("nan")), id="no time at all"),
        pytest.param(line(at_s=float("inf")), id="the end of time"),
        pytest.param(line(totals=[0] * 4), id="a counter too few"),
        pytest.param(line(totals=[-1, 0, 0, 0, 0]), id="a negative counter"),
        pytest.param(line(totals=[1.5, 0, 0, 0, 0]), id="a part of a launch"),
        pytest.param(line(counted=[True, 0, 0, 0, 0]), id="true"),
        pytest.param(line(counted=[1 << 63, 0, 0, 0, 0]), id="more than fits"),
        pytest.param(line(spare=1), id="a number for what was possible"),
        pytest.param(line(spare=[0] * 4), id="one of that too few"),
        pytest.param(line(spare=[0] * 5, extra=[0] * 5), id="a field too many"),
        pytest.param("[" * 100_000, id="deeper than the stack"),
        pytest.param('{"version": 1, "entries": [[' + "9" * 5000 + "]]}", id="a huge number"),
    ],
)
def test_other_bytes_are_none(content: str) -> None:
    with pytest.raises(MalformedTotals):
        decode(content.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner),
)


@given(
    st.binary() | JSON.map(lambda value: json.dumps({"version": 1, "entries": [value]}).encode())
)
@example(b"\xff\xfe")
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        ledger = decode(content)
    except MalformedTotals:
        return
    for entry in ledger.values():
        assert all(0 <= getattr(entry.totals, name) <= MOST for name in NAMES)


def test_nothing_is_known_at_first() -> None:
    assert decode(encode(EMPTY)) == {}
