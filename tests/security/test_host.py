"""What somebody on the host can try against the agent itself: links among what goes, hostile names."""

from pathlib import Path

import pytest

from agent.adapters.caches import HostCaches
from agent.adapters.limit_records import LimitRecords
from agent.adapters.safe_files import remove_unfinished
from agent.domain.limit_record import LimitRecord
from agent.errors import AgentError
from tests.security.paths import CONTAINER, UID
from tests.security.racing import Bait

LONGEST_SENTENCE = 1000


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "vgpu"
    root.mkdir(mode=0o755)
    (root / "libvgpu.so").write_bytes(b"hook")
    return root


@pytest.fixture
def bait(tmp_path: Path) -> Bait:
    return Bait(tmp_path)


def caches(host: Path) -> HostCaches:
    return HostCaches(host, lock_dir=host / "vgpulock")


def test_links_among_what_is_taken_away_are_not_followed(tmp_path: Path, bait: Bait) -> None:
    folder = tmp_path / "limits"
    folder.mkdir()
    (folder / ".a_main.1.0123abcd").symlink_to(bait.file)
    (folder / ".b_main.1.0123abcd").hardlink_to(tmp_path / "bait/secret")
    (folder / "kept").symlink_to(bait.directory)
    remove_unfinished(folder)
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert bait.file.read_text() == "untouched"
    (tmp_path / "linked").symlink_to(folder)
    (folder / ".c_main.1.0123abcd").touch()
    remove_unfinished(tmp_path / "linked")
    assert (folder / ".c_main.1.0123abcd").exists()


HOSTILE = {
    "a path above": "../../etc", "an absolute path": "/etc/passwd", "a dot": ".", "nothing": "",
    "control characters": "a\x1b[2J\nb", "a NUL": "a\x00b", "a mebibyte": "a" * (1 << 20),
    "unicode": "p\u202eo\u0301d\U0001f4a3", "a surrogate": "a\udcff", "a slash": "a/b",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("field", ["pod uid", "container"])
def test_a_hostile_name_is_a_clear_error(host: Path, tmp_path: Path, name: str, field: str) -> None:
    uid, container = (name, CONTAINER) if field == "pod uid" else (UID, name)
    ours, records = caches(host), LimitRecords(tmp_path / "state")
    before = sorted(tmp_path.rglob("*"))
    for action in (
        lambda: ours.create(uid, container),
        lambda: ours.write_limits(uid, container, b""),
        lambda: ours.seen_region(uid, container, "x.cache"),
        lambda: records.write(uid, container, LimitRecord()),
        lambda: ours.discard(f"{uid}_{container}"),
    ):
        with pytest.raises(AgentError) as caught:
            action()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < LONGEST_SENTENCE
    assert sorted(tmp_path.rglob("*")) == before
