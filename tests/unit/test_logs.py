"""Log lines: their shapes, priorities, and repeated failures."""

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import logs


@dataclass
class Tape:
    """Where a test's log lines go, and its clock."""

    stream: io.StringIO = field(default_factory=io.StringIO)
    now_s: float = 1_700_000_000.25

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture(name="tape")
def fresh_sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tape]:
    tape = Tape()
    sink = logs._Sink()
    sink.clock = lambda: tape.now_s
    monkeypatch.setattr(logs, "_SINK", sink)
    logs.configure(form="logfmt", level="debug", environ={}, stream=tape.stream)
    return tape


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("plain-1/2", "plain-1/2", id="bare"),
        pytest.param("two words", '"two words"', id="spaces are quoted"),
        pytest.param("", '""', id="empty is quoted"),
        pytest.param('a"b', '"a\\"b"', id="quotes are escaped"),
        pytest.param("a\nb", '"a\\nb"', id="a line stays one line"),
        pytest.param("a=b", '"a=b"', id="an equals sign is quoted"),
        pytest.param(True, "true", id="true"),
        pytest.param(0.30000000000000004, "0.3", id="short floats"),
        pytest.param(None, "None", id="none"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert logs.logfmt("info", "happened", {"key": value}) == f"info  happened key={text}"


def test_long_values_are_cut() -> None:
    line = logs.logfmt("info", "happened", {"key": "x" * 10_000})
    assert len(line) < logs.MAX_VALUE_CHARS + 100
    assert line.endswith("...")


@given(value=st.text() | st.integers() | st.floats() | st.lists(st.text()))
def test_any_value_stays_on_one_line(value: object) -> None:
    line = logs.logfmt("info", "happened", {"key": value})
    assert "\n" not in line
    assert "\r" not in line


def test_json_lines(tape: Tape) -> None:
    logs.configure(form="json", stream=tape.stream, environ={})
    logs.get("agent.services.health").error("gpu lost", trace="Trace\nback", gpu="GPU-a", odd={1})
    (line,) = tape.lines
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "error",
        "event": "gpu lost",
        "in": "health",
        "gpu": "GPU-a",
        "odd": "{1}",
        "trace": "Trace\nback",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        pytest.param("debug", 7, id="debug"),
        pytest.param("info", 6, id="info"),
        pytest.param("warning", 4, id="warning"),
        pytest.param("error", 3, id="error"),
    ],
)
def test_journal_priorities(tape: Tape, level: str, priority: int) -> None:
    logs.configure(form="journal", level="debug", stream=tape.stream, environ={})
    getattr(logs.get("agent.x"), level)("happened")
    assert tape.lines[0].startswith(f"<{priority}>")


def test_every_line_of_a_traceback_has_its_priority(tape: Tape) -> None:
    logs.configure(form="journal", stream=tape.stream, environ={})
    logs.get("agent.x").error("crashed", trace="one\ntwo\n")
    assert [line[:3] for line in tape.lines] == ["<3>", "<3>", "<3>"]


@pytest.mark.parametrize(
    ("variable", "form"),
    [
        pytest.param("{dev}:{ino}", "journal", id="under systemd"),
        pytest.param("8:1", "logfmt", id="the variable is inherited, the stream is another"),
        pytest.param("", "logfmt", id="elsewhere"),
    ],
)
def test_auto(tmp_path: Path, variable: str, form: str) -> None:
    with (tmp_path / "log").open("w+") as stream:
        found = os.fstat(stream.fileno())
        value = variable.format(dev=found.st_dev, ino=found.st_ino)
        logs.configure(form="auto", environ={"JOURNAL_STREAM": value}, stream=stream)
        try:
            logs.get("agent.x").info("happened")
        finally:
            logs.configure(form="logfmt")
        stream.seek(0)
        assert stream.read().startswith("<6>") == (form == "journal")


def test_level(tape: Tape) -> None:
    logs.configure(form="logfmt", level="warning", environ={}, stream=tape.stream)
    log = logs.get("agent.x")
    log.debug("a")
    log.info("b")
    log.warning("c")
    assert len(tape.lines) == 1


Step = Callable[[logs.Logger], None]


def fail(error: str = "refused", about: str = "") -> Step:
    return lambda log: log.failing("not reached", error=error, about=about)


def recover(about: str = "") -> Step:
    return lambda log: log.recovered("not reached", about=about)


@pytest.mark.parametrize(
    ("steps", "written"),
    [
        pytest.param([fail()], ["refused"], id="once"),
        pytest.param([fail(), fail(), fail()], ["refused"], id="the same again"),
        pytest.param([fail("a"), fail("b")], ["a", "b"], id="another reason is news"),
        pytest.param([fail("a"), fail("b")] * 9, ["a", "b"], id="two reasons in turn"),
        pytest.param([fail(about="x"), fail(about="y")], ["refused"] * 2, id="about something else"),
        pytest.param([fail(), recover(), fail()], ["refused", "", "refused"], id="after recovery"),
        pytest.param([fail(about="x"), recover("y"), fail(about="x")], ["refused"], id="something else recovered"),
        pytest.param([recover()], [], id="nothing had failed"),
        pytest.param([fail(), recover(), recover()], ["refused", ""], id="recovered once"),
    ],
)  # fmt: skip
def test_repeated_failures(tape: Tape, steps: list[Step], written: list[str]) -> None:
    log = logs.get("agent.x")
    for step in steps:
        step(log)
    reasons = [re.search(r"error=(\w+)", line) for line in tape.lines]
    assert [found[1] if found else "" for found in reasons] == written


def test_reasons_that_are_never_the_same_do_not_fill_the_log(tape: Tape) -> None:
    log = logs.get("agent.x")
    for port in range(100):
        fail(f"refused at port {port}")(log)
    assert len(tape.lines) == logs.MAX_REASONS


@pytest.mark.parametrize(
    "reasons", [pytest.param("a", id="one reason"), pytest.param("ab", id="two in turn")]
)
def test_a_lasting_failure_is_told_hourly_with_a_count(tape: Tape, reasons: str) -> None:
    log = logs.get("agent.x")
    for minute in range(130):
        for reason in reasons:
            fail(reason)(log)
        tape.now_s += 60.0
        assert len(tape.lines) == len(reasons) + (minute >= 60) + (minute >= 120)
    *news, first_hour, second_hour = tape.lines
    assert all("repeated" not in line for line in news)
    assert f"repeated={59 * len(reasons)}" in first_hour
    assert f"repeated={60 * len(reasons) - 1}" in second_hour


@pytest.mark.parametrize("about", ["", "pod-1"])
def test_the_end_of_a_failure_is_told(tape: Tape, about: str) -> None:
    log = logs.get("agent.services.events")
    for error in ("a", "b", "a"):
        fail(error, about)(log)
        tape.now_s += 20.5
    recover(about)(log)
    assert tape.lines[-1].split(maxsplit=1)[1] == (
        'info  recovered in=events failure="not reached" '
        + (f"about={about} " if about else "")
        + "failures=3 lasted_s=61.5"
    )


def test_what_comes_and_goes_all_the_time_is_told_hourly(tape: Tape) -> None:
    log = logs.get("agent.x")
    for _ in range(1000):  # in the first hour
        fail("cut off")(log)
        recover()(log)
        tape.now_s += 3.0
    assert len(tape.lines) == 2 * logs.MAX_ENDS + 1
    tape.now_s += logs.REPEAT_EVERY_S
    fail("cut off")(log)
    assert f"repeated={1000 - logs.MAX_ENDS - 1}" in tape.lines[-1]
    recover()(log)
    assert f"failures={1001 - logs.MAX_ENDS}" in tape.lines[-1]
    fail("cut off")(log)
    assert "failures" not in tape.lines[-1], "from here on each is told again"


def test_the_memory_of_failures_is_bounded(tape: Tape) -> None:
    log = logs.get("agent.x")
    for number in range(3 * logs.MAX_FAILING):
        fail(about=f"pod-{number}")(log)
    assert len(logs._SINK._failing) == logs.MAX_FAILING
    recover(about=f"pod-{number}")(log)
    assert "recovered" in tape.lines[-1]
    for number in range(3 * logs.MAX_FAILING):
        fail(about=f"pod-{number}")(log)
        recover(about=f"pod-{number}")(log)
    assert len(logs._SINK._ends) == logs.MAX_FAILING


def test_a_closed_stream_harms_nobody(tape: Tape) -> None:
    tape.stream.close()
    logs.get("agent.x").info("happened")
