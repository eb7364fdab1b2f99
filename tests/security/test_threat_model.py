"""The threat model's page: each claim has a proof that exists, and its table is what is executed."""

import ast
import re
from pathlib import Path

import pytest

from tests.security.attacks import ATTACKS
from tests.security.test_inside_a_container import DETECTED_WITHIN_S, TRIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
NO_TEST = re.compile(r"\bno test \|$")


def missing(name: str) -> bool:
    """Whether there is no such file, or no such test in it."""
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return True
    tree = ast.parse((ROOT / path).read_text())
    return bool(test) and test not in {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def unproven(row: str) -> bool:
    """Whether a claim names no test; that there is none may be said of `neither` alone."""
    outcome = row.split("|")[2].strip()
    return not NAMED.search(row) and not (outcome == "neither" and NO_TEST.search(row))


def test_every_proof_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 30
    assert [name for name in named if missing(name)] == []


def test_every_claim_has_a_class_and_a_proof() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    claims = [row for row in rows if re.search(r"\| (prevented|detected|neither)", row)]
    assert len(claims) > 25
    executed = {attack.name for attack in ATTACKS}
    others = [row for row in claims if row.split("|")[1].strip() not in executed]
    assert [row for row in others if unproven(row)] == []


@pytest.mark.parametrize(
    ("outcome", "proof", "found"),
    [
        pytest.param("prevented", "the driver's matter; no test", True, id="prevented by no test"),
        pytest.param("detected", "nobody looks; no test", True, id="detected by no test"),
        pytest.param(
            "neither", "the driver's matter; no test", False, id="neither, and it says so"
        ),
        pytest.param("neither", "the driver's matter", True, id="neither, and nothing is said"),
        pytest.param("prevented", "tests/a.py::test_b", False, id="prevented by a test"),
    ],
)
def test_what_has_no_proof_is_found(outcome: str, proof: str, found: bool) -> None:
    assert unproven(f"| an attack | {outcome} | {proof} |") is found


def test_that_there_is_no_test_is_said_in_place_of_one() -> None:
    rows = [line for line in PAGE.splitlines() if NO_TEST.search(line)]
    assert len(rows) > 3
    assert [row for row in rows if NAMED.search(row)] == []


def test_the_attacks_of_the_page_are_those_that_are_executed() -> None:
    section = PAGE.partition("## Attacks on a limit from inside")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert rows == ["attack", *(attack.name for attack in ATTACKS)]
    for attack in ATTACKS:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {attack.name} |")]
        said = row.split("|")[2].strip()
        assert said.startswith(attack.outcome.value), row
        assert not attack.detected_as or f"`{attack.detected_as}`" in row, row


def test_the_page_says_how_long_and_how_often_it_is_tried() -> None:
    assert f"for which {DETECTED_WITHIN_S:.0f} s are allowed" in PAGE
    assert f"has up to {TRIES} tries" in PAGE
