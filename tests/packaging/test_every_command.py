"""Every command of README.md and of the pages in docs/ is typed by a test, or it is said why not."""

import re
from collections import Counter
from pathlib import Path

import pytest
from typed_commands import PAGES, ROOT, STRICT, TABLE, Row, commands_for, name_of, row_of, typed

COMMANDS = [(page, line) for page in PAGES for line in typed(page)]


@pytest.mark.parametrize(
    ("page", "line"), [pytest.param(*one, id=f"{name_of(one[0])}: {one[1]}") for one in COMMANDS]
)
def test_a_test_types_it_or_it_is_said_why_none_does(page: Path, line: str) -> None:
    row = row_of(page, line)
    assert row is not None, "add it to the table in tests/typed_commands.py, and type it in a test"
    assert bool(row.test) != bool(row.because)
    assert not row.because or len(row.because) > 20


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.page}: {row.line}")
def test_every_row_is_of_some_command_and_its_test_is_there(row: Row) -> None:
    assert [line for page, line in COMMANDS if row_of(page, line) is row]
    if not row.test:
        return
    file, _, function = row.test.partition("::")
    text = (ROOT / file).read_text()
    body = re.search(rf"^def {function}\(.*?(?=^(?:def|@|# -)|\Z)", text, re.MULTILINE | re.DOTALL)
    assert body, f"{file} has no {function}"
    # The test reads its commands off the page: what it types is what the page says.
    assert re.search(r"\b(lines|commands|commands_for|of_one_page|examples|verified)\(", body[0])


def test_commands_are_found() -> None:
    found = Counter(name_of(page) for page, _ in COMMANDS)
    assert {name_of(page) for page in STRICT} <= set(found)
    assert found["README.md"] >= 9
    assert found["install/systemd.md"] >= 16
    assert {"live-limits.md", "local-api.md", "doctor.md"} <= set(found)
    curls = [line for _, line in COMMANDS if line.startswith("curl") and "limits" in line]
    assert all("-d '{" in line for line in curls), "a continued line is put together"
    assert not [line for _, line in COMMANDS if line.startswith("sudo")]


def test_a_test_is_given_its_commands_by_page() -> None:
    given = commands_for("tests/e2e/test_typed_commands.py::test_doctor")
    assert given == {"README.md": ["vgpu-agent doctor"], "doctor.md": ["vgpu-agent doctor"]}
