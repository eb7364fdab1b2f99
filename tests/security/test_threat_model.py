"""The threat model's page: each claim has a proof that exists, and its table is what is executed."""

import ast
import re
from pathlib import Path

from tests.security.attacks import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")


def missing(name: str) -> bool:
    """Whether there is no such file, or no such test in it."""
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return True
    tree = ast.parse((ROOT / path).read_text())
    return bool(test) and test not in {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


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
    assert [row for row in others if not NAMED.search(row)] == []


def test_the_attacks_of_the_page_are_those_that_are_executed() -> None:
    for attack in ATTACKS:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {attack.name} |")]
        said = row.split("|")[2].strip()
        assert said.startswith(attack.outcome.value), row
        assert not attack.detected_as or f"`{attack.detected_as}`" in row, row
