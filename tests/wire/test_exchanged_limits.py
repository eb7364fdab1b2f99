"""Limits files that another one took the place of: known to every later agent, until the pod is gone."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.adapters import caches as caches_module
from agent.adapters.caches import HostCaches
from agent.domain.limits_file import encode
from agent.domain.proc_text import FileId
from agent.errors import NodeNotReady
from tests.wire.limits_bed import GRANTED, NAME, UID, Bed, set_to


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def known_by(path: Path) -> FileId:
    info = path.stat()
    return FileId(os.major(info.st_dev), os.minor(info.st_dev), info.st_ino)


def test_which_files_a_container_may_have_mounted(bed: Bed) -> None:
    limits = bed.limits()
    first = known_by(bed.path)
    assert limits.files_of(UID, NAME) == {first}
    bed.path.rename(bed.path.with_name("before"))
    assert limits.files_of(UID, NAME) == set()
    bed.write(encode(GRANTED))
    assert limits.files_of(UID, NAME) == {known_by(bed.path)} != {first}
    bed.path.parent.rename(bed.host / "elsewhere")
    assert limits.files_of(UID, NAME) == set()
    bed.path.parent.write_text("")
    with pytest.raises(NodeNotReady, match="look at the container's limits"):
        limits.files_of(UID, NAME)


def test_files_that_were_exchanged_are_known_to_the_next_agent(bed: Bed) -> None:
    """Its own, and none of a container whose name begins or ends like it."""
    caches = HostCaches(bed.host, lock_dir=bed.host / "lock")
    files = {known_by(bed.path)}
    for region_id in (1, 2, 3):
        caches.write_limits(UID, NAME, encode(replace(GRANTED, region_id=region_id)))
        files.add(known_by(bed.path))
    for other in (f"{NAME}.7", f"x{NAME}"):
        for region_id in (1, 2):
            caches.write_limits(UID, other, encode(replace(GRANTED, region_id=region_id)))
    assert len(files) == 4
    assert bed.limits().files_of(UID, NAME) == files
    assert sorted(d.name for d in caches.listed()) == sorted(
        f"{UID}_{name}" for name in (NAME, f"{NAME}.7", f"x{NAME}")
    )
    caches.discard(f"{UID}_{NAME}")
    assert bed.limits().files_of(UID, NAME) == set()
    assert len(bed.limits().files_of(UID, f"{NAME}.7")) == 2


def test_what_no_file_took_the_place_of_is_not_kept(bed: Bed) -> None:
    """A full disk: the container's file is as before, and can be changed."""
    caches = HostCaches(bed.host, lock_dir=bed.host / "lock")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches_module, "write_whole", full)
        with pytest.raises(NodeNotReady, match="the disk is full"):
            caches.write_limits(UID, NAME, encode(replace(GRANTED, region_id=9)))
    assert list(bed.host.glob("exchanged/*")) == []
    assert bed.limits().set_limits(UID, NAME, set_to(512)) is not None


def test_where_no_file_has_a_second_name_it_is_exchanged_all_the_same(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refused)
    wanted = replace(GRANTED, region_id=9)
    HostCaches(bed.host, lock_dir=bed.host / "lock").write_limits(UID, NAME, encode(wanted))
    assert bed.limits().read(UID, NAME) == wanted
    assert list(bed.host.glob("exchanged/*")) == []


def test_what_a_killed_agent_only_began_to_exchange_is_undone(bed: Bed) -> None:
    elsewhere = bed.host / "exchanged"
    elsewhere.mkdir(mode=0o755)
    info = bed.path.stat()
    begun = elsewhere / f"{bed.path.name}.{info.st_ino}"
    begun.hardlink_to(bed.path)
    gone = elsewhere / f"{UID}_gone.1234"
    gone.write_text("")
    limits = bed.limits()
    assert limits.read(UID, NAME) is None  # it has two names
    limits.mend()
    assert list(elsewhere.iterdir()) == [gone]
    assert limits.read(UID, NAME) == GRANTED
