"""The matrix names scenarios that exist, and counts what they come to."""

import ast
import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.breaking import ROOT
from tests.faults.matrix import COUNTED, INVARIANTS, ROWS, WHOLE, Row
from tests.faults.run import described, main, page, read, recorded, tally

REPORT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="test_one[x]"><properties>
<property name="kill at" value="file-renamed api-write-begun file-renamed"/>
<property name="hold at" value="file-filled"/></properties></testcase>
<testcase classname="tests.faults.test_a" name="test_one[y]"><properties>
<property name="kill at" value="file-renamed"/></properties><failure/></testcase>
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


def calls(function: ast.FunctionDef) -> set[str]:
    """The names of what it calls, or gives to another to call."""
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}


def functions(*paths: str) -> dict[str, set[str]]:
    trees = [ast.parse((ROOT / path).read_text()) for path in paths]
    found = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return {function.name: calls(function) for function in found}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.group}: {row.fault}")
def test_what_a_row_says_is_checked_is_checked(row: Row) -> None:
    """By each of its scenarios, itself or by what it calls of the story."""
    promised = {
        WHOLE: "serves",
        INVARIANTS: "violations",
        ", release": "unreleased",
        COUNTED: "counters",
    }
    wanted = {call for words, call in promised.items() if words in row.checker}
    for test in row.tests:
        path, _, name = test.partition("::")
        story = "tests/soak/process.py" if "soak" in path else "tests/faults/story.py"
        known = functions("tests/e2e/whole.py", story, path)
        reached, new = set[str](), {name}
        while new:
            reached |= new
            new = {call for one in new for call in known.get(one, ())} - reached
        assert wanted <= reached, f"{test} does not call {wanted - reached}"


def test_what_is_reported_is_counted() -> None:
    run = read(ET.fromstring(REPORT))  # noqa: S314 - ours
    assert run["tests/faults/test_a.py::test_one"].cases == Counter(passed=1, failed=1)
    assert run["tests/faults/test_a.py::test_two"].cases == Counter(skipped=1)
    made = tally(ROWS, [{}])
    assert [one.failed for one in made] == [len(row.tests) for row in ROWS], "silence is a failure"
    assert "| failed |" in page(ROWS, made, {"runs": 1})


def test_the_page_says_which_row_killed_where() -> None:
    row = Row(group="a", fault="b", tests=("tests/faults/test_a.py::test_one",), checker="")
    other = Row(group="c", fault="d", tests=("tests/faults/test_a.py::test_two",), checker="")
    run = read(ET.fromstring(REPORT))  # noqa: S314 - ours
    lines = page([row, other], tally([row, other], [run, run]), {"runs": 2}).splitlines()
    assert "| `file-renamed` | 6 | a: b (6) |  |" in lines
    assert "| `file-filled` | 0 |  | a: b (2) |" in lines
    assert "| `tree-deleted` | 0 |  |  |" in lines
    (never,) = [line for line in lines if line.startswith("Met by no row: ")]
    assert "`tree-deleted`" in never
    assert "`file-renamed`" not in never
    assert "`file-filled`" not in never


RECORD = {
    "group": "agent", "fault": "two agents on a node", "tests": ["tests/e2e/test_a.py::test_one"],
    "checker": f"found; {INVARIANTS}", "open": "old words", "passed": 3, "failed": 1, "skipped": 2,
    "failures": ["tests/e2e/test_a.py::test_one"], "killed_at": {"file-renamed": 7},
    "held_at": {"file-filled": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("recorded_words", "words_of_today", "shown"),
    [
        pytest.param("a; b, c", "a; b, c", "a; b, c", id="the same"),
        pytest.param("a; b, c", "a; b", "a; b", id="less is claimed today"),
        pytest.param("a; b", "a; b, c", "a; b", id="more is checked today"),
        pytest.param("a; b", "c", "a; b", id="another thing is checked today"),
    ],
)
def test_an_old_run_is_said_to_have_checked_what_it_did(
    recorded_words: str, words_of_today: str, shown: str
) -> None:
    now = Row(
        group="agent", fault="two agents on a node", tests=(), checker=words_of_today, open="x"
    )
    (row,), (one,) = recorded([{**RECORD, "checker": recorded_words}], [now])
    assert row.checker == shown
    assert row.open == "x"
    assert row.tests == ("tests/e2e/test_a.py::test_one",)
    assert (one.passed, one.failed, one.skipped) == (3, 1, 2)


def test_the_page_is_rendered_again_with_the_figures_of_its_run(tmp_path: Path) -> None:
    gone = {**RECORD, "fault": "that no row has any more"}
    record = tmp_path / "faults.json"
    record.write_text(json.dumps({"runs": 4, "commit": "1234abc", "rows": [RECORD, gone]}))
    assert main(["--again", "--page", str(tmp_path / "faults.md")]) == 1, "a case had failed"
    text = (tmp_path / "faults.md").read_text()
    assert "- commit: 1234abc" in text
    assert "| agent | two agents on a node | 4 | 1 | 2 |" in text
    assert "| agent | that no row has any more | 4 | 1 | 2 |" in text
    assert "| `file-renamed` | 14 |" in text
    assert text.count("| agent |") == 2, "rows that were not run are not there"
    first = record.read_text()
    main(["--again", "--page", str(tmp_path / "faults.md")])
    assert record.read_text() == first
    assert (tmp_path / "faults.md").read_text() == text


def test_every_story_that_kills_reports_where() -> None:
    """The fixture that reports looks for trails where the orders of the stories leave them."""
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        tree = ast.parse(path.read_text())
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            at = {"breaking_node": 1, "Breaking": 0}.get(ast.unparse(call.func))
            if at is not None:
                assert ast.unparse(call.args[at]) == "tmp_path", path


def test_the_page_names_its_command_so_that_a_part_is_told_from_the_whole() -> None:
    text = page([], [], described(1, ["--only", "stale reads"]))
    assert "- command: `python3 build.py faults --only 'stale reads'`" in text.splitlines()
