"""What pages show of the program's output is what it prints. What `top` prints: tests/e2e/test_demo.py."""

import json
import textwrap
from pathlib import Path

import pytest

from agent import limit_command
from agent.config import Config
from agent.doctor.checks import CHECKS
from agent.doctor.command import PLAIN_COLUMNS
from agent.doctor.finding import Result
from agent.doctor.host import Host
from agent.doctor.report import lines_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def block(page: str, beginning: str) -> str:
    """The fenced or indented sample that begins so."""
    text = (DOCS / page).read_text()
    return text[text.index(beginning) :].split("\n```", 1)[0].split("\n\n", 1)[0]


def test_what_a_changed_limit_is_answered_with(capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows what the socket answers: the two samples of the page are of one change."""
    answer = json.loads(
        block("live-limits.md", '{"pod": "team/train-0", "container": "main", "warn')
    )
    limit_command._show(answer)
    assert capsys.readouterr().out.rstrip() == block("live-limits.md", "team/train-0/main\n")


def test_what_doctor_finds(tmp_path: Path) -> None:
    (mounts := tmp_path / "proc" / "self" / "mountinfo").parent.mkdir(parents=True)
    mounts.write_text("1 0 8:2 / /usr/local rw,noexec - xfs /dev/b rw\n")
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)
    (check,) = [one for one in CHECKS if one.name == "hook-mount"]
    widest = max(len(one.name) for one in CHECKS)
    lines = lines_of(
        Result(check, check.look(host)), name_chars=widest, columns=PLAIN_COLUMNS, coloured=False
    )
    shown = textwrap.dedent(block("doctor.md", "    failed   hook-mount"))
    assert lines == shown.splitlines()
