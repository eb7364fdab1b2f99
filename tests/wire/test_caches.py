"""Directories of containers on a real file system: made without being led astray."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.adapters.caches import HostCaches
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.new_region import RegionMark, mark_of, new_region
from agent.domain.region import FILE_BYTES
from agent.domain.region import decode as decode_region
from agent.errors import NodeNotReady
from tests.wire.host_directory import ROOT, UID, make_caches, make_host, mode, needs_root


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


@pytest.fixture
def caches(host: Path, tmp_path: Path) -> HostCaches:
    return make_caches(tmp_path)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
def test_create(caches: HostCaches, host: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = caches.create(UID, "main")
    finally:
        os.umask(before)
    assert path == host / "containers" / f"{UID}_main"
    assert mode(path) == 0o777
    assert mode(path.parent) == 0o755


def test_create_finds_again_what_is_there(caches: HostCaches) -> None:
    path = caches.create(UID, "main")
    (path / "1.cache").write_bytes(b"region")
    path.chmod(0o700)  # a crash between making it and opening it up
    assert caches.create(UID, "main") == path
    assert mode(path) == 0o777
    assert (path / "1.cache").exists()


CRASHING = """
import os, sys
from pathlib import Path
from tests.wire.host_directory import UID, make_caches

left, fchmod = int(sys.argv[1]), os.fchmod
def crash(*arguments):
    global left
    left -= 1
    os._exit(86) if left < 0 else fchmod(*arguments)
os.fchmod = crash
caches = make_caches(Path(sys.argv[2]))
caches.create(UID, "main")
caches.prepare()
"""


@pytest.mark.parametrize(
    ("survived", "closed"),
    [
        pytest.param(0, "vgpu/containers", id="the directory of all containers"),
        pytest.param(1, f"vgpu/containers/{UID}_main", id="the container's directory"),
        pytest.param(3, "vgpulock", id="the lock directory"),
    ],
)
def test_what_a_crash_left_closed_is_opened_up(
    caches: HostCaches, tmp_path: Path, survived: int, closed: str
) -> None:
    """The agent dies for good between mkdir and fchmod; what it left must not stay so."""
    command = [sys.executable, "-c", CRASHING, str(survived), str(tmp_path)]
    crashed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert crashed.returncode == 86
    assert mode(tmp_path / closed) == 0o700
    path = caches.create(UID, "main")
    lock_dir = caches.prepare().lock_dir
    assert (mode(path.parent), mode(path), mode(lock_dir)) == (0o755, 0o777, 0o1777)


@pytest.mark.parametrize(
    ("uid", "container"),
    [
        pytest.param("..", "main", id="the parent"),
        pytest.param("", "main", id="no uid"),
        pytest.param(UID, "", id="no container"),
        pytest.param(UID, "../../etc", id="a path"),
        pytest.param(UID, "a/b", id="a slash"),
        pytest.param(f"{UID}/x", "main", id="a slash in the uid"),
        pytest.param(UID, "Main", id="upper case"),
        pytest.param(UID, ".hidden", id="a dot first"),
        pytest.param(UID, "a" * 64, id="too long"),
        pytest.param("a" * 64, "main", id="a uid too long"),
        pytest.param(UID, "main\n", id="a line break"),
    ],
)
def test_names_that_are_none(caches: HostCaches, host: Path, uid: str, container: str) -> None:
    with pytest.raises(NodeNotReady, match="cannot be the name of a directory"):
        caches.create(uid, container)
    with pytest.raises(NodeNotReady, match="is not deleted"):
        caches.discard(f"{uid}_{container}")
    assert not (host / "containers").exists()


def test_create_does_not_follow_a_link_in_its_place(
    caches: HostCaches, host: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (host / "containers").mkdir(mode=0o755)
    (host / "containers" / f"{UID}_main").symlink_to(victim)
    with pytest.raises(NodeNotReady, match="is a link"):
        caches.create(UID, "main")
    assert mode(victim) == 0o700


def test_create_does_not_follow_a_link_above_it(
    caches: HostCaches, host: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (host / "containers").symlink_to(victim)
    with pytest.raises(NodeNotReady, match="is a link"):
        caches.create(UID, "main")
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("part", ["", "containers"])
def test_directories_that_others_can_write_are_refused(
    caches: HostCaches, host: Path, part: str
) -> None:
    caches.create(UID, "first")
    (host / part).chmod(0o777)
    with pytest.raises(NodeNotReady, match=r"can be written by others.*chmod go-w"):
        caches.create(UID, "main")
    assert not (host / "containers" / f"{UID}_main").exists()


@needs_root
@pytest.mark.parametrize("part", ["", "containers"])
def test_directories_of_others_are_refused(caches: HostCaches, host: Path, part: str) -> None:
    caches.create(UID, "first")
    os.chown(host / part, 12345, -1)
    with pytest.raises(NodeNotReady, match="belongs to user 12345"):
        caches.create(UID, "main")


@needs_root
def test_a_directory_that_somebody_else_made_is_refused(caches: HostCaches, host: Path) -> None:
    caches.create(UID, "first")
    squatted = host / "containers" / f"{UID}_main"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, 12345, -1)
    with pytest.raises(NodeNotReady, match="belongs to user 12345"):
        caches.create(UID, "main")
    assert mode(squatted) == 0o700


PREPARING = """
import sys
from pathlib import Path
from tests.wire.host_directory import make_caches

make_caches(Path(sys.argv[1])).prepare()
"""


@needs_root
@pytest.mark.parametrize("closed", [0o1777, 0o700, 0o000])
@pytest.mark.parametrize(
    ("without", "owner"),
    [pytest.param([], 0, id="on a host"), pytest.param(["-chown"], 12345, id="in a pod")],
)
def test_a_lock_directory_that_a_container_took_is_open_to_all_again(
    caches: HostCaches, tmp_path: Path, without: list[str], owner: int, closed: int
) -> None:
    """Root of any may: each has it mounted. An agent without CHOWN leaves the owner."""
    lock = caches.prepare().lock_dir
    lock.chmod(closed)
    os.chown(lock, 12345, 12345)

    less = ["setpriv", f"--bounding-set={without[0]}"] if without else []
    command = [*less, sys.executable, "-c", PREPARING, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)

    assert mode(lock) == 0o1777
    assert lock.stat().st_uid == owner


def test_create_without_the_host_directory(tmp_path: Path) -> None:
    caches = HostCaches(tmp_path / "none", lock_dir=tmp_path / "lock")
    with pytest.raises(NodeNotReady, match="it is missing"):
        caches.create(UID, "main")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    if not ROOT:
        pytest.skip("mounting needs root")
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=30,mode=755", "t", str(mounted)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    (mounted / "libvgpu.so").write_bytes(b"hook")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    caches = HostCaches(small_disk, lock_dir=tmp_path / "lock")
    caches.create(UID, "first")
    with contextlib.suppress(OSError):
        for place in range(1000):
            (small_disk / f"fill-{place}").touch()
    with pytest.raises(NodeNotReady, match="disk is full: free some space"):
        caches.create(UID, "main")
    with pytest.raises(NodeNotReady, match="disk is full: free some space"):
        caches.prepare()
    assert {path.name for path in (small_disk / "containers").iterdir()} == {f"{UID}_first"}
    assert not list(small_disk.glob(".*"))


def test_a_read_only_disk(small_disk: Path, tmp_path: Path) -> None:
    caches = HostCaches(small_disk, lock_dir=tmp_path / "lock")
    caches.create(UID, "first")
    caches.prepare()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(NodeNotReady, match="read-only: repair or remount"):
        caches.create(UID, "main")
    with pytest.raises(NodeNotReady, match="read-only"):
        caches.discard(f"{UID}_first")
    caches.prepare()  # nothing is to be written: containers that are there can restart


# --- limits ---------------------------------------------------------------------------------------


def test_limits_are_written_once(caches: HostCaches, host: Path) -> None:
    path = caches.write_limits(UID, "main", b"limits")
    before = path.stat()
    assert path == host / "limits" / f"{UID}_main"
    assert (path.read_bytes(), mode(path), mode(path.parent)) == (b"limits", 0o644, 0o755)
    assert caches.write_limits(UID, "main", b"limits") == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_limits_replace_the_file_a_container_has_mounted(caches: HostCaches) -> None:
    with caches.write_limits(UID, "main", b"first").open("rb") as mounted:
        assert caches.write_limits(UID, "main", b"second").read_bytes() == b"second"
        assert mounted.read() == b"first"


@pytest.mark.parametrize("kind", ["link to a file", "link to a directory", "FIFO"])
def test_what_lies_in_the_way_of_limits_is_replaced_not_followed(
    caches: HostCaches, host: Path, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    if kind == "link to a directory":
        victim.mkdir()
    else:
        victim.write_text("precious")
    path = caches.write_limits(UID, "other", b"x").with_name(f"{UID}_main")
    os.mkfifo(path) if kind == "FIFO" else path.symlink_to(victim)
    if kind == "FIFO":
        assert caches.write_limits(UID, "main", b"limits").read_bytes() == b"limits"
        return
    with pytest.raises(NodeNotReady, match="it is a link"):
        caches.write_limits(UID, "main", b"limits")
    assert victim.is_dir() or victim.read_text() == "precious"


def test_limits_go_with_the_directory_and_are_found_without_it(caches: HostCaches) -> None:
    caches.create(UID, "main")
    path = caches.write_limits(UID, "main", b"limits")
    caches.write_limits(UID, "lonely", b"limits")  # another program deleted its directory
    assert {entry.name for entry in caches.listed()} == {f"{UID}_main", f"{UID}_lonely"}
    caches.discard(f"{UID}_main")
    caches.discard(f"{UID}_lonely")
    assert (caches.listed(), path.exists()) == ((), False)


def test_what_never_was_is_neither_listed_nor_made(caches: HostCaches, host: Path) -> None:
    """An installation without limits, on a disk that is full: its directories go all the same."""
    (host / "containers").mkdir(mode=0o755)
    (host / "containers" / f"{UID}_main").mkdir()
    assert [entry.name for entry in caches.listed()] == [f"{UID}_main"]
    caches.discard(f"{UID}_main")
    assert caches.listed() == ()
    assert {path.name for path in host.iterdir()} == {"libvgpu.so", "containers"}


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_directory_goes_whatever_is_wrong_with_the_limits(
    caches: HostCaches, host: Path, tmp_path: Path, kind: str
) -> None:
    path = caches.create(UID, "main")
    if kind == "link":
        (host / "limits").symlink_to(tmp_path)
    else:
        (host / "limits").touch()
    assert [entry.name for entry in caches.listed()] == [path.name]
    with pytest.raises(NodeNotReady, match=r"limits.*a link or a file"):
        caches.discard(path.name)
    assert not path.exists()


# --- usage regions --------------------------------------------------------------------------------

LIMITS = LimitsFile(devices=(DeviceLimit(uuid="GPU-00000000-0000-4000-8000-00000000000a"),))
PIECES = new_region(LIMITS, region_id=77, now_s=1)
CACHE = "1.cache"


def test_a_region_is_whole_and_has_its_blocks(caches: HostCaches) -> None:
    path = caches.create(UID, "main") / CACHE
    before = os.umask(0o077)
    try:
        inode = caches.make_region(UID, "main", CACHE, PIECES)
    finally:
        os.umask(before)
    info = path.stat()
    assert (info.st_ino, info.st_size, mode(path)) == (inode, FILE_BYTES, 0o666)
    assert info.st_blocks * 512 >= FILE_BYTES
    assert len(decode_region(path.read_bytes()).devices) == 1
    assert [entry.name for entry in path.parent.iterdir()] == [CACHE]
    seen = caches.seen_region(UID, "main", CACHE)
    assert seen is not None
    assert mark_of(seen) == RegionMark(inode, 77)


def test_who_uses_a_region_that_is_replaced_keeps_the_old_one(caches: HostCaches) -> None:
    path = caches.create(UID, "main") / CACHE
    path.write_bytes(b"spoiled")
    with path.open("rb") as used:
        inode = caches.make_region(UID, "main", CACHE, PIECES)
        assert used.read() == b"spoiled"
    assert path.stat().st_ino == inode
    assert path.stat().st_size == FILE_BYTES


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(Path.mkdir, id="directory"),
        pytest.param(os.mkfifo, id="FIFO"),
        pytest.param(a_link, id="link"),
        pytest.param(Path.touch, id="empty file"),
    ],
)
def test_whatever_a_container_puts_there_is_looked_at_without_harm(
    caches: HostCaches, put: Callable[[Path], None]
) -> None:
    put(caches.create(UID, "main") / CACHE)
    seen = caches.seen_region(UID, "main", CACHE)
    assert seen is not None
    assert (seen.head, mark_of(seen)) == (b"", RegionMark())


def test_a_region_that_never_was_is_none(caches: HostCaches) -> None:
    caches.create(UID, "main")
    assert caches.seen_region(UID, "main", CACHE) is None
    assert caches.read_limits(UID, "main") == b""
    caches.write_limits(UID, "main", b"limits")
    assert caches.read_limits(UID, "main") == b"limits"


def test_no_region_that_a_full_disk_could_cut_off(small_disk: Path, tmp_path: Path) -> None:
    """There is room for the file, and none for its blocks."""
    caches = HostCaches(small_disk, lock_dir=tmp_path / "lock")
    path = caches.create(UID, "main")
    with pytest.raises(NodeNotReady, match=r"usage region.*disk is full: free some space"):
        caches.make_region(UID, "main", CACHE, PIECES)
    assert list(path.iterdir()) == []
