"""Directories of containers on a real file system: found and deleted, whatever is in them."""

import os
import subprocess
from pathlib import Path

import pytest

from agent.adapters import safe_files
from agent.adapters.caches import HostCaches
from agent.adapters.safe_files import opened_directory, remove_tree
from agent.errors import NodeNotReady
from tests.wire.host_directory import ROOT, UID, make_caches, make_host


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


@pytest.fixture
def caches(host: Path, tmp_path: Path) -> HostCaches:
    return make_caches(tmp_path)


def test_discard(caches: HostCaches) -> None:
    path = caches.create(UID, "main")
    (path / "1.cache").write_bytes(b"region")
    (path / "a" / "b" / "c").mkdir(parents=True)
    (path / "a" / "b" / "file").touch()
    os.mkfifo(path / "a" / "fifo")
    caches.discard(f"{UID}_main")
    assert not path.exists()
    caches.discard(f"{UID}_main")  # once more does no harm


def test_discard_does_not_follow_links(caches: HostCaches, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    path = caches.create(UID, "main")
    (path / "to-directory").symlink_to(victim)
    (path / "to-file").symlink_to(victim / "precious")
    (path / "deep").mkdir()
    (path / "deep" / "up").symlink_to("../../../../victim")
    caches.discard(f"{UID}_main")
    assert not path.exists()
    assert (victim / "precious").exists()


def test_discard_of_a_link_deletes_the_link(caches: HostCaches, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    path = caches.create(UID, "main")
    path.rmdir()
    path.symlink_to(victim)
    caches.discard(f"{UID}_main")
    assert not path.is_symlink()
    assert (victim / "precious").exists()


def test_a_tree_deeper_than_any_path(caches: HostCaches) -> None:
    path = caches.create(UID, "main")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d" * 100, dir_fd=fd)
        deeper = os.open("d" * 100, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    caches.discard(f"{UID}_main")
    assert not path.exists()


def test_a_pass_is_bounded_and_the_next_goes_on(caches: HostCaches) -> None:
    path = caches.create(UID, "main")
    for place in range(50):
        (path / f"d{place}").mkdir()
        (path / f"d{place}" / "f").touch()
    with opened_directory(path.parent) as parent:
        assert not remove_tree(path.name, dir_fd=parent, entries=30)
        assert path.exists()
        passes = 1
        while not remove_tree(path.name, dir_fd=parent, entries=30):
            passes += 1
        assert passes >= 3
    assert not path.exists()


@pytest.mark.parametrize("where", ["", "inside"])
def test_mount_points_are_left_alone(caches: HostCaches, tmp_path: Path, where: str) -> None:
    if not ROOT:
        pytest.skip("mounting needs root")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    path = caches.create(UID, "main")
    (path / "own").touch()
    (path / where).mkdir(exist_ok=True)
    bound = subprocess.run(
        ["mount", "--bind", str(precious), str(path / where)], capture_output=True, check=False
    )
    if bound.returncode:
        pytest.skip("this machine does not let us bind mount")
    try:
        with pytest.raises(NodeNotReady, match="delete what was made for a container"):
            caches.discard(f"{UID}_main")
        assert (precious / "file").exists()
    finally:
        subprocess.run(["umount", "-l", str(path / where)], check=True)
    caches.discard(f"{UID}_main")
    assert not path.exists()
    assert (precious / "file").exists()


def test_mounts_are_told_apart_without_proc(
    caches: HostCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = caches.create(UID, "main")
    (path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(safe_files, "Path", lambda _path: Path("/nonexistent"))
    caches.discard(f"{UID}_main")
    assert not path.exists()


def test_listed(caches: HostCaches, host: Path, tmp_path: Path) -> None:
    assert caches.listed() == ()
    first, second = caches.create(UID, "main"), caches.create(UID, "other")
    (host / "containers" / "notes.txt").touch()
    (host / "containers" / "no-underscore").mkdir()
    (host / "containers" / f"{UID}_file").touch()
    (host / "containers" / f"{UID}_link").symlink_to(tmp_path)
    os.utime(first, (1, 1))  # a tenant may set these, so they do not count
    listed = {directory.name: directory.changed_at_s for directory in caches.listed()}
    assert listed == {path.name: path.stat().st_ctime for path in (first, second)}


def test_a_directory_that_is_too_full_for_one_pass_is_not_called_deleted(
    caches: HostCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = caches.create(UID, "main")
    for number in range(100):
        (path / str(number)).touch()
    once = safe_files.remove_tree
    monkeypatch.setattr(
        "agent.adapters.caches.remove_tree",
        lambda name, *, dir_fd: once(name, dir_fd=dir_fd, entries=30),
    )
    with pytest.raises(NodeNotReady, match="the next pass goes on"):
        caches.discard(path.name)
    assert len(list(path.iterdir())) < 100
    while path.exists():
        try:
            caches.discard(path.name)
        except NodeNotReady:
            continue
