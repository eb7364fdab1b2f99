"""What may be deleted of pods that are gone."""

import pytest

from agent.domain.grants import Grant, GrantRecord
from agent.domain.retention import ASIDE_S, expired_directories, expired_journals, expired_records

NOW = 10_000.0


@pytest.mark.parametrize(
    ("name", "changed_at_s", "goes"),
    [
        pytest.param("gone_main", NOW - 300, True, id="gone and old enough"),
        pytest.param("gone_main", NOW - 299, False, id="gone, but young"),
        pytest.param("here_main", NOW - 9000, False, id="its pod is here"),
        pytest.param("here-2_main", NOW - 9000, True, id="a longer uid is another pod"),
        pytest.param("gone_a_b", NOW - 9000, True, id="the uid ends at the first underscore"),
        pytest.param("gone_main", NOW + 200, False, id="the clock was set back a little"),
        pytest.param("gone_main", NOW + 300, True, id="the clock was set back a lot"),
    ],
)
def test_directories(name: str, changed_at_s: float, *, goes: bool) -> None:
    found = expired_directories([(name, changed_at_s)], {"here"}, now_s=NOW, after_s=300)
    assert found == ([name] if goes else [])


def record(uid: str, granted_at_s: float) -> GrantRecord:
    return GrantRecord(
        pod_uid=uid,
        namespace="team",
        pod_name=uid,
        container="main",
        device_ids=(),
        claims=(),
        grant=Grant(),
        granted_at_s=granted_at_s,
    )


def test_records_of_a_pod_go_together_when_the_youngest_is_old() -> None:
    records = [
        record("here", NOW - 9000),
        record("gone", NOW - 9000),
        record("young", NOW - 9000),
        record("young", NOW - 10),
    ]
    assert expired_records(records, {"here"}, now_s=NOW, after_s=300) == {"gone"}


@pytest.mark.parametrize(
    ("uid", "moved_at_s", "goes"),
    [
        pytest.param("gone", NOW - ASIDE_S, True, id="gone and old enough"),
        pytest.param("gone", NOW - ASIDE_S + 1, False, id="gone, but young"),
        pytest.param("here", NOW - 2 * ASIDE_S, False, id="its pod is here"),
        pytest.param("gone", NOW + ASIDE_S, True, id="the clock was set back a lot"),
    ],
)
def test_journals_that_were_put_aside(uid: str, moved_at_s: float, *, goes: bool) -> None:
    assert expired_journals([(uid, moved_at_s)], {"here"}, now_s=NOW) == ([uid] if goes else [])
