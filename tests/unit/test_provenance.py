"""What a table says of the tree, the day and the machine that it comes of."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import provenance


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of one commit: a source, and a page of results."""
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "source").write_text("1")
    (tmp_path / "docs/results/page.md").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        login = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *login, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param("", r"[0-9a-f]{7,}", id="as committed"),
        pytest.param("source", r"[0-9a-f]{7,}, changed since", id="a source was changed"),
        pytest.param("docs/results/page.md", r"[0-9a-f]{7,}", id="results were written"),
        pytest.param("new", r"[0-9a-f]{7,}", id="a file that is not kept"),
    ],
)
def test_the_commit(tree: Path, changed: str, said: str) -> None:
    if changed:
        (tree / changed).write_text("2")
    assert re.fullmatch(said, provenance.commit(tree))


def test_without_git_the_commit_is_unknown(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) == "unknown"


def test_where_there_is_no_git_program_the_commit_is_unknown(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit(tree) == "unknown"


@pytest.mark.parametrize(
    ("told", "model"),
    [
        pytest.param("processor\t: 0\nmodel name\t: A CPU\n", "A CPU", id="x86"),
        pytest.param("processor\t: 0\n", "", id="aarch64 names no model"),
    ],
)
def test_the_machine(tmp_path: Path, told: str, model: str) -> None:
    (tmp_path / "cpuinfo").write_text(told)
    said = provenance.machine(tmp_path / "cpuinfo")
    assert re.fullmatch(r"\d+ x .+, Linux \S+, Python 3\.\d+\.\d+\S*", said)
    assert model in said


def test_a_page_says_all_of_it() -> None:
    about = provenance.described()
    assert [line.split(":")[0] for line in provenance.listed(about)] == [
        "- commit", "- date", "- machine",
    ]  # fmt: skip
