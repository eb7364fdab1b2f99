"""`vgpu-agent doctor`: which checks are done, how it is told, and with which code it ends."""

import io
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli import _service_settings, main
from agent.config import Config
from agent.doctor import command
from agent.doctor.checks import CHECKS
from agent.doctor.finding import (
    Check,
    Finding,
    Result,
    Verdict,
    done,
    failed,
    ok,
    selected,
    warning,
    worst,
)
from agent.doctor.host import Host, Space
from agent.doctor.report import lines_of, summary

ROOT = Path(__file__).parents[2]
OURS = "/usr/local/vgpu/libvgpu.so\n"
FEW = ("--only", "host-preload,security-modules")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(config=Config(node_name="gpu-1"), environ={}, root=tmp_path)


def check(name: str, look: Any, *needs: str) -> Check:
    return Check(name=name, question="?", look=look, needs=needs)


def look(tmp_path: Path, *words: str) -> int:
    (tmp_path / "etc").mkdir(exist_ok=True)
    return main(["doctor", "--host-root", str(tmp_path), *words], {"NODE_NAME": "gpu-1"})


# --- the table -----------------------------------------------------------------------------------


def test_the_table_is_in_order() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names)) >= 25
    for position, one in enumerate(CHECKS):
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", one.name)
        assert one.question.endswith("?")
        assert one.look.__doc__ or one.name.startswith("rights-")
        assert set(one.needs) <= set(names[:position]), one.name


def test_the_document_has_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert [(name, question, needs) for name, question, needs in rows] == [
        (one.name, one.question, ", ".join(f"`{name}`" for name in one.needs)) for one in CHECKS
    ]


# --- doing them ----------------------------------------------------------------------------------


def test_what_needs_a_failed_check_is_skipped_and_names_the_first_cause(host: Host) -> None:
    table = (
        check("a", lambda _: failed("broken", "mend a")),
        check("b", lambda _: ok("fine"), "a"),
        check("c", lambda _: ok("fine"), "b"),
        check("d", lambda _: warning("so so", "mend d")),
        check("e", lambda _: ok("fine"), "d"),
    )
    found = {result.check.name: result.finding for result in done(table, host)}
    assert [found[name].verdict.value for name in "abcde"] == [
        *("failed", "skipped", "skipped", "warning", "ok")
    ]
    assert found["c"].evidence == "needs `a`, which is failed"


@pytest.mark.parametrize(
    ("raised", "verdict", "says"),
    [
        pytest.param(
            PermissionError(13, "no", "/x"), Verdict.SKIPPED, "/x is closed", id="not root"
        ),
        pytest.param(ValueError("odd"), Verdict.WARNING, "ValueError: odd", id="our own mistake"),
    ],
)
def test_a_check_that_raises_ends_no_other(
    host: Host, raised: Exception, verdict: Verdict, says: str
) -> None:
    def look(_: Host) -> Finding:
        raise raised

    table = (check("a", look), check("b", lambda _: ok("fine")))
    first, second = (result.finding for result in done(table, host))
    assert (first.verdict, second.verdict) == (verdict, Verdict.OK)
    assert says in first.evidence
    assert first.fix


def test_a_check_that_hangs_is_left_behind(host: Host) -> None:
    forever = threading.Event()

    def look(_: Host) -> Finding:
        forever.wait()
        return ok("at last")

    table = (check("a", look), check("b", lambda _: ok("fine")))
    first, second = (result.finding for result in done(table, host, within_s=0.05))
    forever.set()
    assert (first.verdict, first.evidence) == (Verdict.FAILED, "did not answer within 0.05 s")
    assert second.verdict is Verdict.OK


def test_a_time_that_was_asked_for_is_that_of_every_check(host: Host) -> None:
    """Also of the one that has more of its own."""
    forever = threading.Event()
    hook_limits = next(one for one in CHECKS if one.name == "hook-limits")

    def look(_: Host) -> Finding:
        forever.wait()
        return ok("at last")

    [result] = done((replace(hook_limits, look=look, needs=()),), host, within_s=0.05)
    forever.set()
    assert result.finding.evidence == "did not answer within 0.05 s"


@pytest.mark.parametrize(
    ("own_s", "asked_s", "child_s"),
    [
        pytest.param(0.0, None, 9.0, id="as all"),
        pytest.param(20.0, None, 18.0, id="its own"),
        pytest.param(20.0, 60.0, 54.0, id="longer, as asked for"),
        pytest.param(20.0, 5.0, 4.5, id="shorter, as asked for"),
    ],
)
def test_a_child_has_a_little_less_time_than_its_check(
    host: Host, own_s: float, asked_s: float | None, child_s: float
) -> None:
    given: list[float] = []

    def look(there: Host) -> Finding:
        given.append(there.child_within_s)
        return ok("fine")

    list(done((replace(check("a", look), within_s=own_s),), host, within_s=asked_s))
    assert given == [pytest.approx(child_s)]


def test_the_child_of_a_check_that_takes_too_long_is_ended(host: Host) -> None:
    ended = threading.Event()

    def look(there: Host) -> Finding:
        try:
            there.run_child(["/bin/sleep", "600"], {})
        finally:
            ended.set()
        return ok("at last")

    [result] = done((check("a", look),), host, within_s=0.3)
    assert ended.wait(10), "it was waited for, and so killed"
    assert (result.finding.verdict, result.finding.evidence) == (
        Verdict.FAILED,
        "did not answer within 0.3 s",
    )


def test_the_time_on_the_command_line_reaches_the_checks(host: Host) -> None:
    words = {"only": ["host-preload"], "timeout": "40s"}
    assert command.main(words, lambda: host.config, {}, host=lambda _: host) == 0
    assert host.child_within_s == pytest.approx(36.0)


def test_only_brings_what_it_needs_and_skip_takes_away() -> None:
    table = (
        check("a", ok),
        check("b", ok, "a"),
        check("c", ok, "b"),
        check("d", ok),
    )
    assert [one.name for one in selected(table, ["c"], [])] == ["a", "b", "c"]
    assert [one.name for one in selected(table, [], ["b"])] == ["a", "c", "d"]
    assert [one.name for one in selected(table, ["c"], ["a"])] == ["b", "c"]


def test_the_worst_counts() -> None:
    one = check("a", ok)
    findings = [ok("x"), warning("y", "z"), failed("y", "z")]
    assert [worst([Result(one, f) for f in findings[:n]]).value for n in range(4)] == [
        *("ok", "ok", "warning", "failed")
    ]


# --- the command ---------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert look(tmp_path, *FEW) == 0
    assert capsys.readouterr().out.endswith("2 ok, 0 warning, 0 failed, 0 skipped\n")
    (tmp_path / "proc").mkdir()
    assert look(tmp_path, "--only", "host-proc") == 1
    assert look(tmp_path, "--only", "host-proc", "--warnings-ok") == 0
    (tmp_path / "etc/ld.so.preload").write_text(OURS)
    assert look(tmp_path, *FEW) == 2
    assert look(tmp_path, *FEW, "--warnings-ok") == 2
    assert "-> sed -i" in capsys.readouterr().out


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.preload").write_text(OURS)
    assert look(tmp_path, *FEW, "--json") == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["node"], said["verdict"]) == ("gpu-1", "failed")
    assert said["counts"] == {"ok": 1, "warning": 0, "failed": 1, "skipped": 0}
    assert [one["name"] for one in said["checks"]] == ["security-modules", "host-preload"]
    assert set(said["checks"][0]) == {*("name", "question", "verdict", "evidence", "fix", "needs")}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--only", "gpu"], "'gpu'", id="no such check"),
        pytest.param(["--wait", "soon"], "--wait is 'soon'", id="no time"),
        pytest.param(["--wait", "-1"], "--wait is '-1', but it must be at least 0 s", id="before"),
        pytest.param(
            ["--timeout", "0"], "--timeout is '0', but it must be at least", id="no time to answer"
        ),
        pytest.param(
            ["--host-root", "/no/host"], "'/no/host', and there is no such", id="no such host"
        ),
        pytest.param(["--jsn"], "there is --json", id="no such flag"),
    ],
)
def test_mistakes_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    try:
        code = look(tmp_path, *words)
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert says in capsys.readouterr().err


def test_the_list_needs_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--list"], {}) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        one.name for one in CHECKS
    ]


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"], {})
    out = capsys.readouterr().out
    assert "exit codes:\n  0  nothing is wrong" in out
    assert "--warnings-ok" in out


def test_waiting_ends_when_it_is_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    preload = tmp_path / "etc/ld.so.preload"
    preload.write_text(OURS)
    pauses: list[float] = []

    def mended(seconds: float) -> None:
        pauses.append(seconds)
        preload.unlink()

    code = command.main(
        {"only": ["host-preload"], "wait": "1h", "host_root": tmp_path},
        lambda: Config(node_name="gpu-1"),
        {},
        pause=mended,
    )
    assert code == 0
    assert pauses == [command.LOOK_AGAIN_S]
    assert "failed" not in capsys.readouterr().out.splitlines()[0]


def test_the_services_own_settings_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "etc/vgpu-agent").mkdir(parents=True)
    (tmp_path / "etc/vgpu-agent/vgpu-agent.env").write_text("NODE_NAME=from-file\n")
    words = ["doctor", "--host-root", str(tmp_path), *FEW, "--json"]
    assert main(words, {}) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "from-file"
    assert main(words, {"NODE_NAME": "given"}) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "given"


# --- how it looks --------------------------------------------------------------------------------


def test_lines_are_aligned_and_commands_are_whole() -> None:
    result = Result(check("hook-mount", ok), failed("word " * 40, "mend " * 40 + "it"))
    lines = lines_of(result, name_chars=12, columns=60, coloured=False)
    assert lines[0].startswith("failed   hook-mount    word")
    assert all(line.startswith(" " * 23) for line in lines[1:])
    assert lines[-1].strip() == "-> " + "mend " * 40 + "it"
    assert all(len(line) <= 63 for line in lines[:-1])


def test_what_a_file_says_cannot_steer_the_terminal() -> None:
    result = Result(check("a", ok), failed("\x1b[2J\x07evil\nmore", "rm \x1b]0;x"))
    assert all(
        line.isprintable() for line in lines_of(result, name_chars=1, columns=80, coloured=False)
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        pytest.param({}, True, id="a terminal"),
        pytest.param({"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, id="a dumb one"),
    ],
)
def test_colours_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environ: dict[str, str], coloured: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    command.main(
        {"only": ["host-preload"], "host_root": tmp_path},
        lambda: Config(node_name="gpu-1"),
        environ,
    )
    assert ("\x1b[" in terminal.getvalue()) is coloured


def test_the_summary_counts_all_verdicts() -> None:
    assert summary([Result(check("a", ok), ok("x"))]) == "1 ok, 0 warning, 0 failed, 0 skipped"


def test_a_full_disk_of_which_nobody_counts_inodes(host: Host) -> None:
    host.space_of = lambda _: Space(free_bytes=2 << 30, free_inodes=-1)
    (space,) = (one for one in CHECKS if one.name == "disk-space")
    assert space.look(host).verdict is Verdict.OK


def test_the_settings_of_the_installed_service_count_the_file_before_the_unit(
    tmp_path: Path,
) -> None:
    unit = tmp_path / "etc/systemd/system/vgpu-agent.service"
    environment = tmp_path / "etc/vgpu-agent/vgpu-agent.env"
    assert _service_settings(tmp_path) == {}
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nEnvironment=VGPU_VGPULOCK_DIR=/a\nEnvironment=VGPU_STATE_DIR=/b\n")
    assert _service_settings(tmp_path) == {"VGPU_VGPULOCK_DIR": "/a", "VGPU_STATE_DIR": "/b"}
    environment.parent.mkdir(parents=True)
    environment.write_text("VGPU_STATE_DIR=/c\n")
    assert _service_settings(tmp_path) == {"VGPU_VGPULOCK_DIR": "/a", "VGPU_STATE_DIR": "/c"}
