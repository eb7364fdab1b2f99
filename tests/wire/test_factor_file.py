"""The memory factor on disk."""

from pathlib import Path

import pytest

from agent.adapters.factor_file import NAME, FactorFile
from agent.errors import NodeNotReady


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert FactorFile(folder).load() == 0
    FactorFile(folder).save(9)
    FactorFile(folder).save(12)
    assert FactorFile(folder).load() == 12
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "content", [b"", b"nine", b"-3", b"99999999", b"65537", b"\xff", "²".encode()]
)
def test_what_is_no_factor_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert FactorFile(tmp_path).load() == 0


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert FactorFile(tmp_path).load() == 0
    with pytest.raises(NodeNotReady):
        FactorFile(tmp_path).save(3)
