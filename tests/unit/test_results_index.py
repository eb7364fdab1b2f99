"""The index of the results names the command by which each page says that it was made."""

import re
import subprocess
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
COMMIT = re.compile(r"\bcommit:? ([0-9a-f]{7,40})\b")
COMMAND = re.compile(r"`(python3 build\.py [^`]+)`")


@pytest.mark.parametrize("name", ["bench", "install", "scale", "fuzz"])
def test_the_command_of_a_page(name: str) -> None:
    rows = (RESULTS / "index.md").read_text().splitlines()
    (row,) = [line for line in rows if line.startswith("| ") and f"[{name}]({name}.md)" in line]
    said, made = COMMAND.search(row), COMMAND.search((RESULTS / f"{name}.md").read_text())
    assert said is not None
    assert made is not None
    assert said[1] == made[1]


def test_commits_that_are_not_in_the_history_are_said_to_be_so() -> None:
    named = {found for page in RESULTS.glob("*.md") for found in COMMIT.findall(page.read_text())}
    assert named
    git = ["git", "-C", str(RESULTS), "cat-file", "-e"]
    known = {
        one
        for one in named
        if not subprocess.run([*git, one], capture_output=True, check=False).returncode
    }
    assert known == named or "not in this history" in (RESULTS / "index.md").read_text()
