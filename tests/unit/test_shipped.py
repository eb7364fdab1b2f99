"""`vgpu-agent files`: what comes along is listed, printed and written, and nothing of others is lost."""

from pathlib import Path

import pytest

from agent.cli import main
from agent.shipped import FOLDERS, shipped

ROOT = Path(__file__).parents[2]
RULES = "packaging/daemonset/base/rbac.yaml"


def test_every_file_of_the_folders_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files"], {}) == 0
    listed = capsys.readouterr().out.split()
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert set(listed) == there
    assert len(listed) == len(there)
    assert {RULES, "packaging/systemd/vgpu-agent.service"} <= there


def test_one_is_printed_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["files", RULES], {}) == 0
    assert capfdbinary.readouterr().out == (ROOT / RULES).read_bytes()


@pytest.mark.parametrize("name", ["rbac.yaml", "../etc/passwd", "agent.py", ""])
def test_what_does_not_come_along_is_not_printed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["files", name], {}) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"vgpu-agent: there is no file {name!r}; `vgpu-agent files` lists them\n"


def test_all_are_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "place"
    assert main(["files", "--to", str(target)], {}) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [target / name for name in shipped()]
    for name, path in shipped().items():
        assert (target / name).read_bytes() == path.read_bytes()
    (target / RULES).unlink()
    assert main(["files", "--to", str(target)], {}) == 0
    assert capsys.readouterr().out == f"{target / RULES}\n"


def test_what_was_edited_stays_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RULES).parent.mkdir(parents=True)
    (tmp_path / RULES).write_text("mine\n")
    assert main(["files", "--to", str(tmp_path)], {}) == 1
    assert f"{tmp_path / RULES} is there and differs" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / RULES]
    assert (tmp_path / RULES).read_text() == "mine\n"


def test_a_place_that_takes_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["files", "--to", str(tmp_path / "file")], {}) == 1
    said = capsys.readouterr().err
    assert said.startswith("vgpu-agent: ")
    assert said.count("\n") == 1
    assert "cannot be used" in said
