"""The benchmark's tables, and what it says of peers that cannot be measured."""

import json
from pathlib import Path

import pytest

from tests.bench.plugin_area import Peer, peer_named
from tests.bench.rows import BenchError, Row, as_markdown, as_text, row, write


def cell(column: str, value: float, target: float | None = None, better: str = "lower") -> Row:
    return row("columns", "error", [value], "points", target=target, better=better, column=column)


FOUR = [cell("no hook", 20), cell("no limit", 20), cell("limited", 4, 3),
        cell("limiter off", 20, 3, "higher")]  # fmt: skip


def test_columns_are_a_table_of_their_own() -> None:
    text = as_markdown([row("start", "start", [1.0], "s"), *FOUR])
    assert "| | unit | no hook | no limit | limited | limiter off |" in text
    assert "| error | points | 20 | 20 | 4 (NO) | 20 |" in text, "a miss stays a miss"
    assert "| columns | error: limited | 4 | points | <= 3 | NO | 4 .. 4 |" in text


def test_a_control_that_passes_the_check_is_not_met() -> None:
    assert cell("limiter off", 0.5, 3, "higher").met is False


def test_without_columns_there_is_no_such_table() -> None:
    rows = [row("start", "start", [1.0], "s")]
    assert "column by column" not in as_markdown(rows)
    assert "start" in as_text(rows)


def test_the_json_says_which_machine_it_was(tmp_path: Path) -> None:
    write([row("start", "start", [1.0, 3.0, 2.0], "s", target=1.0)], tmp_path / "bench.json")
    read = json.loads((tmp_path / "bench.json").read_text())
    assert "Linux" in read["machine"]
    assert read["date"]
    (found,) = read["rows"]
    assert (found["value"], found["spread"], found["met"]) == (2.0, [1.0, 3.0], False)
    assert (tmp_path / "bench.md").read_text().startswith("# Benchmark")


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
