"""build.py: what is missing is one sentence, never a traceback."""

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build.py"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, working in an empty directory."""
    spec = importlib.util.spec_from_file_location("build_under_test", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path / ".build")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".build/venv/bin/python")
    return module


def sentence_of(build: ModuleType) -> str:
    with pytest.raises(SystemExit) as ended:
        build.check_prerequisites()
    text = str(ended.value)
    assert text.startswith("build.py: ")
    assert "\n" not in text
    return text


def test_an_old_python_can_read_it() -> None:
    """It must get as far as saying that it needs a newer one."""
    tree = ast.parse(BUILD.read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        if isinstance(node, ast.FunctionDef):  # what is evaluated when the file is read
            for argument in (*node.args.args, node.args.vararg, node.args.kwarg):
                annotation = argument.annotation if argument else None
                assert annotation is None or isinstance(annotation, ast.Name | ast.Constant)
            assert node.returns is None or isinstance(node.returns, ast.Name | ast.Constant)


def test_python_is_too_old(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert "Python 3.11" in sentence_of(build)


def test_no_venv_module(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "python3-venv" in sentence_of(build)


def test_no_room_on_the_disk(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - like the one it stands for
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**12, 10**12, 10**8))
    text = sentence_of(build)
    assert "0.1 GB are free" in text
    assert "1.5 GB" in text


def test_another_system(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in sentence_of(build)


def test_a_step_that_fails_shows_its_end_and_a_sentence(
    build: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".build").mkdir()
    with pytest.raises(SystemExit) as ended:
        build.quietly("a step", [sys.executable, "-c", "print('the cause'); raise SystemExit(3)"])
    assert "a step failed with exit code 3" in str(ended.value)
    assert "the cause" in capfd.readouterr().err


def test_a_tree_that_cannot_be_written(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(build, "BUILD", blocked / ".build")
    with pytest.raises(SystemExit) as ended:
        build.main(["check"])
    assert str(ended.value).startswith("build.py: ")
    assert str(blocked) in str(ended.value)


def test_an_interrupted_environment_is_made_anew(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves a python without pip; the next run must not take that for an environment."""
    made: list[str] = []
    monkeypatch.setattr(build, "VENV", tmp_path / ".build/venv")
    monkeypatch.setattr(build, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(build, "quietly", lambda label, command: made.append(label))
    (tmp_path / "run.lock").write_text("")
    build.VENV.joinpath("bin").mkdir(parents=True)
    build.PYTHON.touch()
    build.environment("run")
    build.environment("run")
    assert made == ["creating .build/venv", "installing requirements/run.lock"]


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["--help", "nothing"])
def test_the_tasks_are_listed(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, BUILD, *arguments], capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    for task in [
        "demo",
        "test",
        "check",
        "format",
        "hook",
        "dist",
        "bench",
        "soak",
        "scale",
        "gpu",
        "clean",
        "cluster-peers",
    ]:
        assert task in told
