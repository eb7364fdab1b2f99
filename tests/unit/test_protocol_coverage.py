"""Pages whose every line is tested name tests that exist, and leave no line without a word."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COVERAGE, COMPATIBILITY = "docs/protocol-coverage.md", "docs/compatibility.md"
HEADS = ("| rule | test |", "| combination | verified by |", "|---|---|")
REFERENCE = re.compile(r"`(tests/[^`]*?\.py)::([^`\[]+)(?:\[([^`]*)\])?`")
SPAN = re.compile(r"`tests/[^`]*`")
REASON = re.compile(r"not (yet|verified): \S.*")


def rows(page: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row of a page's tables, without their heads."""
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("|") and line not in HEADS:
            yield number, [cell.strip() for cell in line.strip("|").split(" | ")]


pages = pytest.mark.parametrize("page", [COVERAGE, COMPATIBILITY])


@cache
def names_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The tests that a file defines, and every constant in it, as pytest writes it into an id."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    tests = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name.startswith(("test_", "Test"))
    }
    return frozenset(tests), frozenset(str(n.value) for n in nodes if isinstance(n, ast.Constant))


def made_of(case: str, parts: frozenset[str]) -> bool:
    """Whether an id is one of these, or several joined by dashes, as stacked tables make them."""
    return case in parts or any(
        case.startswith(f"{part}-") and made_of(case[len(part) + 1 :], parts)
        for part in parts
        if part
    )


def fault(file: str, test: str, case: str | None) -> str:
    """What is wrong with a reference; empty: nothing."""
    if not (ROOT / file).is_file():
        return f"there is no file {file}"
    tests, parts = names_in(ROOT / file)
    if test not in tests:
        return f"{file} has no test {test}"
    if case is not None and not made_of(case, parts):
        return f"{test} in {file} has no case {case!r}"
    return ""


@pages
def test_every_test_that_is_named_exists(page: str) -> None:
    faults = []
    for number, cells in rows(page):
        for found in REFERENCE.finditer(cells[-1]):
            reason = fault(*found.groups())
            if reason:
                faults.append(f"line {number}: {reason}")
    assert faults == []


@pages
def test_every_rule_has_a_test_or_a_reason(page: str) -> None:
    found = list(rows(page))
    assert found
    for number, cells in found:
        assert len(cells) == 2, f"line {number}: a row is a rule and its tests"
        for entry in cells[1].split("<br>"):
            told = REFERENCE.fullmatch(entry) or REASON.fullmatch(entry)
            assert told, f"line {number}: {entry!r} is neither a test nor says why there is none"


@pages
def test_no_reference_is_overlooked(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    spans = [span for span in SPAN.findall(text) if "::" in span]
    assert len(spans) == len(REFERENCE.findall(text)) > 20


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        pytest.param(("tests/unit/nowhere.py", "test_a", None), "no file", id="file"),
        pytest.param(("tests/unit/test_claims.py", "test_nothing", None), "no test", id="test"),
        pytest.param(("tests/unit/test_claims.py", "test_vectors", "99"), "no case", id="case"),
        pytest.param(("tests/unit/test_claims.py", "test_vectors", "10 empty-x-y-z"), "no case", id="part"),
    ],
)  # fmt: skip
def test_a_wrong_reference_is_noticed(reference: tuple[str, str, str | None], reason: str) -> None:
    assert reason in fault(*reference)


@pytest.mark.parametrize("case", ["2.10", "HAMi 2.10-1.36", "a-b", "a-b-1.36"])
def test_ids_of_stacked_tables_are_understood(case: str) -> None:
    assert made_of(case, frozenset({"2.10", "HAMi 2.10", "1.36", "a-b"}))
