"""The matrix names scenarios that exist, and counts what they come to."""

import ast
import xml.etree.ElementTree as ET
from collections import Counter

from tests.faults.breaking import ROOT
from tests.faults.matrix import ROWS
from tests.faults.run import page, read, tally

REPORT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="test_one[x]"/>
<testcase classname="tests.faults.test_a" name="test_one[y]"><failure/></testcase>
<testcase classname="tests.faults.test_a" name="test_two"><skipped/></testcase>
</testsuite></testsuites>"""


def test_every_scenario_exists() -> None:
    missing = []
    for test in {test for row in ROWS for test in row.tests}:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        if name not in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}:
            missing.append(test)
    assert missing == []


def test_every_scenario_of_this_folder_has_a_row() -> None:
    named = {test for row in ROWS for test in row.tests}
    about_ourselves = ("boundaries", "invariants", "matrix")
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        if path.stem.removeprefix("test_") in about_ourselves:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                where = f"tests/faults/{path.name}::{node.name}"
                assert where in named or node.name == "test_the_clock_is_really_shifted", where


def test_what_is_reported_is_counted() -> None:
    run = read(ET.fromstring(REPORT))  # noqa: S314 - ours
    assert run["tests/faults/test_a.py::test_one"] == Counter(passed=1, failed=1)
    assert run["tests/faults/test_a.py::test_two"] == Counter(skipped=1)
    made = tally(ROWS, [{}])
    assert [one.failed for one in made] == [len(row.tests) for row in ROWS], "silence is a failure"
    assert "| failed |" in page(ROWS, made, {"runs": 1})
