"""Where the demo puts its node's files."""

import os
from pathlib import Path

import pytest

from agent.demo.place import NoPlaceError, made_place, usable, wanted


def flags_of(path: Path) -> int:
    """As if directories were mounted as they are called."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory")
    return {"noexec": os.ST_NOEXEC, "read-only": os.ST_RDONLY}.get(path.name, 0)


def test_the_first_that_is_usable(tmp_path: Path) -> None:
    for name in ("noexec", "read-only", "good", "other"):
        (tmp_path / name).mkdir()
    places = [tmp_path / name for name in ("missing", "noexec", "read-only", "good", "other")]
    assert usable(places, flags_of) == tmp_path / "good"


def test_what_the_user_set_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert next(wanted()) == tmp_path
    assert made_place("here-").parent == tmp_path


def test_where_nothing_is_usable_each_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "noexec").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(NoPlaceError) as told:
        usable([tmp_path / name for name in ("noexec", "missing", "file")], flags_of)
    for part in (
        f"{tmp_path / 'noexec'} is mounted noexec",
        f"{tmp_path / 'missing'} cannot be used (No such file or directory)",
        f"{tmp_path / 'file'} cannot be written",
        "Set TMPDIR",
    ):
        assert part in str(told.value)
