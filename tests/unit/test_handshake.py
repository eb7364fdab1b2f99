"""When the scheduler's handshake is answered, and with what."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.handshake import Answer, answer, needs_answer, report

NOW_S = 1_706_000_000.0
REPORT = "Reported 2024-01-23 08:53:20 +0000 UTC"
NEVER = math.inf


@pytest.mark.parametrize(
    ("value", "since_last_s", "expected"),
    [
        pytest.param(None, NEVER, Answer(), id="absent: the scheduler speaks first"),
        pytest.param("", NEVER, Answer(), id="empty"),
        pytest.param("Reported 2024-01-23 04:30:04 +0000 UTC m=+1", NEVER, Answer(), id="answered"),
        pytest.param(
            "Requesting_2024.01.23 08:53:20", NEVER, Answer(REPORT), id="2.4 asks, with dots"
        ),
        pytest.param(
            "Requesting_2024-01-23 08:53:20", NEVER, Answer(REPORT), id="2.5 asks, with dashes"
        ),
        pytest.param("Requesting_nonsense", NEVER, Answer(REPORT), id="the time does not matter"),
        pytest.param("Requesting", NEVER, Answer(REPORT), id="no time at all"),
        pytest.param("Deleted_2024-01-23 08:53:20", NEVER, Answer(REPORT), id="given up on us"),
        pytest.param("Requesting_x", 1.0, Answer(REPORT, 3.0), id="asked again at once"),
        pytest.param("Requesting_x", 4.0, Answer(REPORT), id="asked again later"),
        pytest.param("Requesting_" + "x" * 2000, NEVER, Answer(), id="too long for a scheduler"),
        pytest.param("something else", NEVER, Answer(), id="unknown"),
    ],
)
def test_answers(value: str | None, since_last_s: float, expected: Answer) -> None:
    assert answer(value, now_s=NOW_S, since_last_s=since_last_s) == expected


@given(st.text() | st.none(), st.floats(0, 1e9), st.floats(0, 1e9))
def test_answering_is_total_and_never_late(
    value: str | None, now_s: float, since_last_s: float
) -> None:
    given_answer = answer(value, now_s=now_s, since_last_s=since_last_s)
    assert 0 <= given_answer.wait_s < 5
    assert not needs_answer(given_answer.text)
    assert bool(given_answer.text) is needs_answer(value)


@given(st.floats(-1e9, 4e9))
def test_our_report_is_no_keyword_of_the_scheduler(now_s: float) -> None:
    assert not needs_answer(report(now_s))
