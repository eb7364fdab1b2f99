"""The journal of grants on a real file system: what it says survives, whatever happens to it."""

import contextlib
import json
import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.adapters.grant_log import FileGrantLog
from agent.domain.grant_lines import decode_file, encode_record
from agent.domain.grants import Claim, DeviceNode, Grant, GrantRecord, Mount
from agent.errors import NodeNotReady

UID = "11111111-2222-3333-4444-555555555555"


def record(container: str = "main", uid: str = UID, granted_at_s: float = 5.0) -> GrantRecord:
    return GrantRecord(
        pod_uid=uid,
        namespace="team",
        pod_name="p",
        container=container,
        device_ids=("GPU-a-0", "GPU-a-1"),
        claims=(Claim("GPU-a", "NVIDIA", 3000, 30),),
        grant=Grant(
            envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
            mounts=(Mount("/c", "/h", read_only=False),),
            device_nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"),),
            annotations={"a": "b"},
            cdi_devices=("x/y=z",),
        ),
        granted_at_s=granted_at_s,
    )


def file(tmp_path: Path, uid: str = UID) -> Path:
    return tmp_path / "grants" / f"{uid}.jsonl"


def test_it_remembers(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    first, second = record("i"), record("m")
    grants.record(first)
    grants.answered(first)
    grants.record(second)
    expected = (replace(first, answered=True), second)
    assert grants.records() == expected
    assert FileGrantLog(tmp_path).records() == expected
    assert (tmp_path / "grants").stat().st_mode & 0o777 == 0o700
    assert file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_new_grant_of_a_container_takes_the_place_of_the_old(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record("m"))
    grants.answered(record("m"))
    grants.record(record("n"))
    again = replace(record("m"), device_ids=("GPU-a-7",))
    grants.record(again)
    assert grants.records() == (record("n"), again)
    assert FileGrantLog(tmp_path).records() == (record("n"), again)


def test_it_forgets(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record("m"))
    grants.record(record("n"))
    grants.record(record("m", uid="other"))
    grants.drop(record("m"))
    assert [(r.pod_uid, r.container) for r in grants.records()] == [(UID, "n"), ("other", "m")]
    assert FileGrantLog(tmp_path).records() == grants.records()
    grants.drop(record("n"))
    assert not file(tmp_path).exists()
    grants.forget(frozenset({"other", "unknown", "../../etc/passwd"}))
    assert grants.records() == FileGrantLog(tmp_path).records() == ()
    assert list((tmp_path / "grants").iterdir()) == []


def test_the_oldest_pod_first(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    for uid, moment in (("b", 1.0), ("a", 2.0), ("c", 0.5)):
        grants.record(record(uid=uid, granted_at_s=moment))
    assert [r.pod_uid for r in FileGrantLog(tmp_path).records()] == ["c", "b", "a"]


LONG = replace(record("n"), device_ids=("x" * 200_000,))


@pytest.mark.parametrize("cut", [1, 10, 100, 1 << 16, 200_000])
def test_a_line_cut_short_is_ignored_and_not_continued(tmp_path: Path, cut: int) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record("m"))
    with file(tmp_path).open("a") as torn:
        torn.write(encode_record(LONG)[:cut])
    again = FileGrantLog(tmp_path)
    assert again.records() == (record("m"),)
    again.record(record("o"))
    assert FileGrantLog(tmp_path).records() == (record("m"), record("o"))


def test_a_file_of_a_torn_line_alone(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    file(tmp_path).write_text(encode_record(LONG)[:100_000])
    assert FileGrantLog(tmp_path).records() == ()
    grants.record(record("m"))
    assert FileGrantLog(tmp_path).records() == (record("m"),)


def test_a_torn_line_that_cannot_be_removed_costs_nobody_a_grant(tmp_path: Path) -> None:
    """A second name, as `cp -al` gives to each file of a backup: it is never written to."""
    grants = FileGrantLog(tmp_path)
    grants.record(record())
    grants.record(record(uid="other"))
    with file(tmp_path).open("a") as torn:
        torn.write('{"answered": "ma')
    os.link(file(tmp_path), tmp_path / "backup")
    again = FileGrantLog(tmp_path)
    assert {one.pod_uid for one in again.records()} == {UID, "other"}
    before = file(tmp_path).read_bytes()
    with pytest.raises(NodeNotReady, match="single name"):
        again.record(record("n"))
    assert file(tmp_path).read_bytes() == before
    again.record(record("n", uid="other"))
    assert len(FileGrantLog(tmp_path).records()) == 3


def test_who_only_reads_changes_nothing(tmp_path: Path) -> None:
    """The agent that acts may be in the middle of this line while another one waits beside it."""
    FileGrantLog(tmp_path).record(record())
    with file(tmp_path).open("a") as torn:
        torn.write('{"answered": "ma')
    before = file(tmp_path).read_bytes()
    assert FileGrantLog(tmp_path).records() == (record(),)
    assert file(tmp_path).read_bytes() == before


def test_whoever_is_alone_sweeps(tmp_path: Path) -> None:
    """Torn lines, and files of nothing else; one that cannot be changed keeps nobody else's."""
    grants = FileGrantLog(tmp_path)
    for uid in ("a", "b", "c"):
        grants.record(record(uid=uid))
    whole = file(tmp_path, "c").read_bytes()
    os.link(file(tmp_path, "a"), tmp_path / "backup")
    for uid in ("a", "b", "c", "d"):
        with file(tmp_path, uid).open("a") as torn:
            torn.write('{"answered": "ma')
    file(tmp_path, "e").touch()
    grants.sweep()
    assert journals(tmp_path) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert file(tmp_path, "a").read_bytes() != file(tmp_path, "b").read_bytes()
    assert file(tmp_path, "c").read_bytes() == whole
    assert FileGrantLog(tmp_path).records() == grants.records()


# --- what cannot be read for a while -------------------------------------------------------------


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A socket stands in its place, so that opening it fails, as on a disk with errors."""
    away = path.parent.parent / "away"
    path.rename(away)
    os.mknod(path, stat.S_IFSOCK | 0o600)
    yield
    assert stat.S_ISSOCK(path.lstat().st_mode), "it was left where it is"
    path.unlink()
    away.rename(path)


def journals(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "grants").iterdir())


def test_what_cannot_be_read_is_left_and_read_again(tmp_path: Path) -> None:
    before = FileGrantLog(tmp_path)
    for uid, moment in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        before.record(record(uid=uid, granted_at_s=moment))
    with unreadable(file(tmp_path, "b")):
        grants = FileGrantLog(tmp_path)
        grants.tidy({"a", "b", "c"}, now_s=time.time())
        assert [one.pod_uid for one in grants.records()] == ["a", "c"]
        assert journals(tmp_path) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    grants.record(record("n", uid="b", granted_at_s=4.0))
    grants.answered(record(uid="c", granted_at_s=3.0))
    grants.tidy({"a", "b", "c"}, now_s=time.time())
    expected = [("a", "main"), ("b", "main"), ("b", "n"), ("c", "main")]
    assert [(one.pod_uid, one.container) for one in grants.records()] == expected
    assert [one.answered for one in grants.records()] == [False, False, False, True]
    assert grants.records() == FileGrantLog(tmp_path).records()


def test_what_cannot_be_read_any_more_counts_as_it_was_known(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record())
    with unreadable(file(tmp_path)):
        FileGrantLog(tmp_path).record(record(uid="other"))  # another agent's
        grants.reload()
        assert {one.pod_uid for one in grants.records()} == {UID, "other"}


def test_a_grant_that_is_dropped_takes_no_unread_one_along(tmp_path: Path) -> None:
    FileGrantLog(tmp_path).record(record("m"))
    with unreadable(file(tmp_path)):
        grants = FileGrantLog(tmp_path)
    grants.record(record("n"))
    grants.drop(record("n"))
    grants.tidy({UID}, now_s=time.time())
    assert grants.records() == FileGrantLog(tmp_path).records() == (record("m"),)


def test_a_directory_that_could_not_be_read_is_read_later(tmp_path: Path) -> None:
    FileGrantLog(tmp_path).record(record())
    (tmp_path / "grants").rename(tmp_path / "away")
    (tmp_path / "grants").write_text("a file")
    grants = FileGrantLog(tmp_path)
    grants.tidy({UID}, now_s=time.time())
    assert grants.records() == ()
    (tmp_path / "grants").unlink()
    (tmp_path / "away").rename(tmp_path / "grants")
    grants.tidy({UID}, now_s=time.time())
    assert grants.records() == (record(),)


DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("live", "later_s", "left"),
    [
        pytest.param(set(), DAY_S + 60, [], id="gone for a day"),
        pytest.param(set(), DAY_S - 60, ["x.jsonl.corrupt"], id="put aside today"),
        pytest.param({"x"}, DAY_S + 60, ["x.jsonl.corrupt"], id="its pod is on the node"),
        pytest.param({"xy"}, DAY_S + 60, [], id="another pod is on the node"),
    ],
)
def test_what_was_put_aside_goes(
    tmp_path: Path, live: set[str], later_s: float, left: list[str]
) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record(uid="healthy"))
    file(tmp_path, "x").write_text("nonsense\n")
    grants.reload()
    (tmp_path / "grants" / "notes.txt").write_text("somebody's")
    (tmp_path / "grants" / "folder.jsonl.corrupt").mkdir()
    grants.tidy(live, now_s=time.time() + later_s)
    stay = ["folder.jsonl.corrupt", "healthy.jsonl", "notes.txt"]
    assert journals(tmp_path) == sorted([*stay, *left])
    assert grants.records() == (record(uid="healthy"),)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"not json\n", id="no JSON"),
        pytest.param(b"\xff\xfe\n", id="no UTF-8"),
        pytest.param(b"[1]\n", id="a list"),
        pytest.param(b"null\n", id="null"),
        pytest.param(b'{"granted": {}}\n', id="fields missing"),
        pytest.param(b'{"answered": "nobody"}\n', id="answered before it was granted"),
        pytest.param(b'{"answered": ["m"]}\n', id="a name that is none"),
        pytest.param(b"[" * 100_000 + b"\n", id="very deep"),
        pytest.param(b"x" * (5 << 20), id="very long"),
        pytest.param((encode_record(record(uid="other")) + "\n").encode(), id="another pod's"),
        pytest.param(
            encode_record(record()).replace("3000", '"3000"').encode() + b"\n", id="a wrong type"
        ),
        pytest.param(
            encode_record(record()).replace("5.0", "NaN").encode() + b"\n", id="no moment"
        ),
    ],
)
def test_a_damaged_file_is_put_aside(tmp_path: Path, content: bytes) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(record(uid="healthy"))
    file(tmp_path).write_bytes(content)
    again = FileGrantLog(tmp_path)
    assert again.records() == (record(uid="healthy"),)
    assert not file(tmp_path).exists()
    assert file(tmp_path).with_suffix(".jsonl.corrupt").read_bytes() == content
    again.record(record())
    assert record() in FileGrantLog(tmp_path).records()
    again.forget(frozenset({UID}))
    assert [path.name for path in (tmp_path / "grants").iterdir()] == ["healthy.jsonl"]


def test_odd_files_are_not_read(tmp_path: Path) -> None:
    FileGrantLog(tmp_path).record(record(uid="healthy"))
    os.mkfifo(file(tmp_path, "fifo"))
    file(tmp_path, "link").symlink_to(file(tmp_path, "healthy"))
    file(tmp_path, "directory").mkdir()
    (tmp_path / "grants" / "notes.txt").write_text("hello")
    assert FileGrantLog(tmp_path).records() == (record(uid="healthy"),)
    assert not os.path.lexists(file(tmp_path, "link")), "a link is no error that passes"


def test_a_uid_that_is_no_name(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    with pytest.raises(NodeNotReady, match="cannot be the name of a file"):
        grants.record(record(uid="../x"))
    assert grants.records() == ()


def test_no_directory_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    grants = FileGrantLog(tmp_path / "state")
    assert grants.records() == ()
    with pytest.raises(NodeNotReady, match="write the agent's journal"):
        grants.record(record())
    grants.answered(record())
    grants.drop(record())
    grants.forget(frozenset({UID}))


def test_a_disk_that_takes_half_a_line_keeps_none(tmp_path: Path) -> None:
    """A child process may write only so much to a file: the line does not fit."""
    grants = FileGrantLog(tmp_path)
    grants.record(record("m"))
    size_bytes = file(tmp_path).stat().st_size
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from agent.adapters.grant_log import FileGrantLog\n"
        "from agent.errors import NodeNotReady\n"
        "from tests.wire.test_grant_log import record\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size_bytes + 100}, {size_bytes + 100}))\n"
        "grants = FileGrantLog(Path(sys.argv[1]))\n"
        "try:\n"
        "    grants.record(record('n'))\n"
        "except NodeNotReady as error:\n"
        "    print(error)\n"
        "assert [r.container for r in grants.records()] == ['m']\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert "write the agent's journal" in done.stdout
    assert file(tmp_path).stat().st_size == size_bytes
    assert FileGrantLog(tmp_path).records() == (record("m"),)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != size_bytes


TEXT = st.text(max_size=20)
RECORDS = st.builds(
    GrantRecord,
    pod_uid=TEXT,
    namespace=TEXT,
    pod_name=TEXT,
    container=TEXT,
    device_ids=st.lists(TEXT, max_size=3).map(tuple),
    claims=st.lists(st.builds(Claim, TEXT, TEXT, st.integers(), st.integers()), max_size=3).map(
        tuple
    ),
    grant=st.builds(
        Grant,
        envs=st.dictionaries(TEXT, TEXT, max_size=3),
        mounts=st.lists(st.builds(Mount, TEXT, TEXT, st.booleans()), max_size=3).map(tuple),
        device_nodes=st.lists(st.builds(DeviceNode, TEXT, TEXT, TEXT), max_size=2).map(tuple),
        annotations=st.dictionaries(TEXT, TEXT, max_size=2),
        cdi_devices=st.lists(TEXT, max_size=2).map(tuple),
    ),
    granted_at_s=st.floats(allow_nan=False, allow_infinity=False),
    priority=st.none() | st.integers(),
    strict=st.booleans(),
)


@given(RECORDS)
def test_records_survive_the_file(given_record: GrantRecord) -> None:
    line = encode_record(given_record)
    assert "\n" not in line
    assert decode_file(line + "\n") == {given_record.container: given_record}


@pytest.mark.parametrize("noted_since", [{"priority": 0}, {"strict": True}])
def test_a_line_of_an_agent_that_did_not_note_it_is_read(noted_since: dict[str, Any]) -> None:
    line = json.loads(encode_record(replace(record(), **noted_since)))
    for name in noted_since:
        del line["granted"][name]
    assert decode_file(json.dumps(line) + "\n") == {"main": record()}


def test_a_line_of_an_agent_that_notes_more_is_read() -> None:
    """As after a downgrade."""
    line = json.loads(encode_record(record()))
    line["granted"]["noted_by_a_newer_one"] = {"any": ["thing"]}
    assert decode_file(json.dumps(line) + "\n") == {"main": record()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.text()
    | JSON.map(json.dumps)
    | st.dictionaries(st.sampled_from(["granted", "answered", "dropped"]), JSON).map(json.dumps)
)
def test_any_file_is_read_or_refused(text: str) -> None:
    try:
        records = decode_file(text + "\n")
    except ValueError:
        return
    assert all(isinstance(value, GrantRecord) for value in records.values())
