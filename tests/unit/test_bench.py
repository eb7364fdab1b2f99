"""The benchmark's tables, and what it says of peers that cannot be measured."""

import ast
import json
from pathlib import Path

import pytest

from tests.bench.install_area import INSTALLING
from tests.bench.plugin_area import Peer, peer_named
from tests.bench.rows import (
    BENCHMARK,
    BenchError,
    Row,
    as_markdown,
    as_text,
    failed_controls,
    row,
    write,
)
from tests.bench.run import AREAS, RECORD, to_write


def cell(column: str, value: float, target: float | None = None, better: str = "lower") -> Row:
    return row("columns", "error", [value], "points", target=target, better=better, column=column)


ABOUT = {"commit": "1234abc", "date": "2026-01-31", "machine": "2 x processors, Linux 6"}
FOUR = [cell("no hook", 20), cell("no limit", 20), cell("limited", 4, 3),
        cell("limiter off", 20, 3, "higher")]  # fmt: skip


def test_columns_are_a_table_of_their_own() -> None:
    text = as_markdown([row("start", "start", [1.0], "s"), *FOUR], ABOUT)
    assert "on 2 x processors, Linux 6, commit 1234abc, 2026-01-31, with" in text
    assert "| | unit | no hook | no limit | limited | limiter off |" in text
    assert "| error | points | 20 | 20 | 4 (NO) | 20 |" in text, "a miss stays a miss"
    assert "| columns | error: limited | 4 | points | <= 3 | NO | 4 .. 4 |" in text


def test_a_control_that_passes_the_check_is_not_met() -> None:
    assert cell("limiter off", 0.5, 3, "higher").met is False


@pytest.mark.parametrize(
    ("value", "failed"),
    [pytest.param(0.5, 1, id="within what is allowed"), pytest.param(20, 0, id="as it must be")],
)
def test_a_control_that_passes_the_check_is_told(value: float, failed: int) -> None:
    rows = [
        row("start", "start", [9.0], "s", target=1.0),  # a miss is no failed control
        row("share", "off", [value], "points", target=3, better="higher", control=True),
    ]
    assert len(failed_controls(rows)) == failed


def test_a_plain_run_is_put_on_record_each_area_on_its_page() -> None:
    rows = [row("start", "start", [1.0], "s"), row("install", "systemd", [8.0], "s")]
    found = list(to_write(rows, target=None, only=None, compared=False))
    assert [(one.target.name, [r.area for r in one.rows]) for one in found] == [
        ("bench.json", ["start"]),
        ("install.json", ["install"]),
    ]
    assert [one.page for one in found] == [BENCHMARK, INSTALLING]
    assert {one.target.parent for one in found} == {RECORD}


@pytest.mark.parametrize(
    ("only", "compared"),
    [pytest.param(["idle"], False, id="a part"), pytest.param(None, True, id="with a peer")],
)
def test_what_is_no_whole_run_of_ours_is_not_put_on_record(
    only: list[str] | None, compared: bool
) -> None:
    assert not list(to_write([], target=None, only=only, compared=compared))


def test_what_is_named_is_written_there(tmp_path: Path) -> None:
    (found,) = to_write([], target=tmp_path / "x.json", only=["install"], compared=False)
    assert (found.target, found.page) == (tmp_path / "x.json", INSTALLING)


def test_the_page_names_the_command_with_and_without_words() -> None:
    rows = [row("start", "start", [1.0], "s")]
    assert "Measured by `python3 build.py bench` on" in as_markdown(rows, ABOUT, "")
    assert "Measured by `python3 build.py bench --only start` on" in as_markdown(
        rows, ABOUT, "--only start"
    )


def test_without_columns_there_is_no_such_table() -> None:
    rows = [row("start", "start", [1.0], "s")]
    assert "column by column" not in as_markdown(rows, ABOUT)
    assert "start" in as_text(rows)


def test_the_json_says_which_machine_it_was(tmp_path: Path) -> None:
    write([row("start", "start", [1.0, 3.0, 2.0], "s", target=1.0)], tmp_path / "bench.json", ABOUT)
    read = json.loads((tmp_path / "bench.json").read_text())
    assert "Linux" in read["machine"]
    assert read["date"]
    (found,) = read["rows"]
    assert (found["value"], found["spread"], found["met"]) == (2.0, [1.0, 3.0], False)
    assert (tmp_path / "bench.md").read_text().startswith("# Benchmark")


def test_a_page_says_what_it_is_of() -> None:
    text = as_markdown([row("install", "host", [8.0], "s", target=300.0)], ABOUT, page=INSTALLING)
    assert text.startswith("# How long installing takes")
    assert "2026-01-31, each way three times" in text
    assert "not measured" in text
    assert "stand-in kubelet" in text
    assert "| install | host | 8 | s | <= 300 | yes | 8 .. 8 |" in text


def test_a_peer_is_named_by_flags_or_by_the_environment(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    told = {"VGPU_BENCH_PEER_PLUGIN": str(program), "VGPU_BENCH_PEER_PLUGIN_WORDS": "--a {node}"}
    assert peer_named(None, None, told) == Peer(program, "--a {node}")
    assert peer_named(program, "--b", told) == Peer(program, "--b")
    assert peer_named(None, None, {}) is None


@pytest.mark.parametrize("mode", [None, 0o644, "folder"], ids=["missing", "plain file", "folder"])
def test_what_cannot_be_run_is_no_peer(mode: int | str | None, tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    if mode == "folder":
        program.mkdir()
    elif isinstance(mode, int):
        program.write_text("")
        program.chmod(mode)
    with pytest.raises(BenchError, match="no program that can be run"):
        Peer(program)


def test_the_help_of_the_task_names_every_area() -> None:
    tree = ast.parse((Path(__file__).resolve().parents[2] / "build.py").read_text())
    tasks = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    words = (ast.get_docstring(tasks["bench"]) or "").partition("Areas: ")[2].partition(".")[0]
    assert words.replace("\n", " ").split(", ") == list(AREAS)
