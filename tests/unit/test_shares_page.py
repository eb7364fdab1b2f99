"""What `build.py shares` says of the cases that it ran."""

import pytest
from share_bed import Tenant

from tests.bench.share_case import Case
from tests.bench.share_matrix import families
from tests.bench.shares import Found, as_page

ABOUT = {"commit": "1234abc", "date": "2026-01-31", "machine": "2 x processors, Linux 6"}


def found(group: str, points: float, limits: str = "30/70", ideal: float = 0.0) -> Found:
    tenants = tuple(Tenant(int(limit), ("ms=1",)) for limit in limits.split("/"))
    return Found(Case(group, limits, tenants, {"kernel": 1}, ideal=ideal), points)


@pytest.mark.parametrize(
    ("one", "missed"),
    [
        pytest.param(found("alone, 2 us", 2.0, "30"), False, id="alone, all that is allowed"),
        pytest.param(found("alone, 2 us", -2.1, "30"), True, id="alone, too little"),
        pytest.param(found("beside others", 2.9), False, id="beside others"),
        pytest.param(found("beside others", 3.1), True, id="beside others, too much"),
        pytest.param(
            found("alone, 2 us to 200 ms", 8.7, "30", ideal=8.0), False, id="an ideal one is off"
        ),
        pytest.param(
            found("alone, 2 us to 200 ms", 9.1, "30", ideal=8.0), True, id="further than that"
        ),
    ],
)
def test_a_case_is_missed_by_what_is_allowed(one: Found, missed: bool) -> None:
    assert one.missed is missed


def test_the_page_tells_each_miss_and_counts_all() -> None:
    few = [found("mixed: a | b", 5.1), found("mixed: a | b", -0.4, "50/50")]
    page = as_page(
        {"alone": [found("alone, 2 us", 0.3, "30")], "mixes": few}, ABOUT, "build.py shares"
    )
    assert "`build.py shares` on 2 x processors, Linux 6, commit 1234abc, 2026-01-31, with" in page
    assert "**3 cases, 1 missed.**" in page
    assert "| alone | 1 | 0.3 | 0.0 | 0 |" in page
    assert "| mixes | 2 | 5.1 | 0.4 | 1 |" in page
    assert r"| mixed: a \| b | 30/70 | +5.1 | 3.0 |" in page, "a bar would end the cell"
    assert "Nothing." not in page


def test_where_nothing_is_missed_the_page_says_so() -> None:
    page = as_page({"alone": [found("alone, 2 us", 0.3, "30")]}, ABOUT, "build.py shares")
    assert "## What was missed\n\nNothing.\n" in page


def test_each_case_has_a_name_of_its_own() -> None:
    names = [
        (case.group, case.name, case.tenants) for cases in families(1).values() for case in cases
    ]
    assert len(set(names)) == len(names)
