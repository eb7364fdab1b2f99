"""What `build.py shares` says of the cases that it ran."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from share_bed import Tenant

from tests.bench.share_case import Case
from tests.bench.share_legend import WORDS, kernels_in, words_in
from tests.bench.share_matrix import families
from tests.bench.shares import PAGE, Found, as_page

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


# --- what names mean -------------------------------------------------------------------------------


def test_the_page_explains_the_names_that_it_has() -> None:
    cases = [found("mixed: l2,sync=4 | s5 beside l2", 0.0), found("alone, by=ex", 0.0)]
    kernels = {"s5": 5, "l2": 2500, "unused": 1}
    named = [replace(one, case=replace(one.case, kernels=kernels)) for one in cases]
    page = as_page({"mixes": named}, ABOUT, "build.py shares")
    assert "- mixes: `s5` 5 us, `l2` 2.5 ms\n" in page, "each once, in the order of its table"
    assert "- `sync=`: " in page
    assert "- `by=`: " in page
    assert "`burst=`" not in page, "no case here has it"


def test_each_word_and_letter_of_a_case_is_explained() -> None:
    for name, cases in families(1).items():
        words = {word for case in cases for word in words_in(case.group)}
        assert words <= set(WORDS), name
        for case in cases:
            for letters in re.findall(r"kernel=([a-z+]+)", case.group):
                assert set(letters.split("+")) <= set(kernels_in(cases)), case.group


def test_a_word_that_no_case_has_is_an_error() -> None:
    ran = subprocess.run(
        [sys.executable, "tests/bench/shares.py", "nosuchthing"],
        cwd=PAGE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "no case has 'nosuchthing' in its name" in ran.stderr
    assert "missed" not in ran.stdout
