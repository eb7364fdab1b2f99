"""The node lock: whose it is, going by the exact end of the value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.nodelock import NodeLock, decode_lock
from agent.domain.pods import Pod

T = 1760929622.0


@pytest.mark.parametrize(
    ("value", "lock"),
    [
        pytest.param(None, None, id="no lock"),
        pytest.param("", None, id="empty"),
        pytest.param(
            "2025-10-20T03:07:02Z,team,web-1",
            NodeLock("2025-10-20T03:07:02Z,team,web-1", T, "team", "web-1"),
            id="of a pod",
        ),
        pytest.param(
            "2025-10-20T11:07:02+08:00,team,web-1",
            NodeLock("2025-10-20T11:07:02+08:00,team,web-1", T, "team", "web-1"),
            id="with an offset",
        ),
        pytest.param(
            "2025-10-20T03:07:02Z", NodeLock("2025-10-20T03:07:02Z", T), id="legacy, only a time"
        ),
        pytest.param("2025-10-20T03:07:02", NodeLock("2025-10-20T03:07:02"), id="time, no zone"),
        pytest.param("hello", NodeLock("hello"), id="no time"),
        pytest.param("a,b", NodeLock("a,b"), id="two parts"),
        pytest.param("a,b,c,d", NodeLock("a,b,c,d"), id="four parts"),
        pytest.param("a,,c", NodeLock("a,,c"), id="no namespace"),
        pytest.param(
            "x,team,web-1", NodeLock("x,team,web-1", None, "team", "web-1"), id="bad time"
        ),
        pytest.param("9" * 5000, NodeLock("9" * 5000), id="very long"),
    ],
)
def test_reading(value: str | None, lock: NodeLock | None) -> None:
    assert decode_lock(value) == lock


@pytest.mark.parametrize(
    ("value", "named"),
    [
        pytest.param("2025-10-20T03:07:02Z,team,web-1", True, id="this pod"),
        pytest.param("2025-10-20T03:07:02Z,team,web-10", False, id="a longer name"),
        pytest.param("2025-10-20T03:07:02Z,other,web-1", False, id="another namespace"),
        pytest.param("2025-10-20T03:07:02Z,team,my-web-1", False, id="another beginning"),
        pytest.param("2025-10-20T03:07:02Z", False, id="legacy"),
        pytest.param("web-1", False, id="only the name"),
    ],
)
def test_whose_it_is(value: str, *, named: bool) -> None:
    lock = decode_lock(value)
    assert lock is not None
    assert lock.names(Pod(namespace="team", name="web-1", uid="u")) is named


def test_only_a_bare_time_is_legacy() -> None:
    legacy = [
        value
        for value in ("2025-10-20T03:07:02Z", "hello", "2025-10-20T03:07:02Z,team,web-1")
        if (lock := decode_lock(value)) is not None and lock.legacy
    ]
    assert legacy == ["2025-10-20T03:07:02Z"]


@given(st.text())
def test_reading_is_total(value: str) -> None:
    lock = decode_lock(value)
    assert lock is None or lock.value == value
