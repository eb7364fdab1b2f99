"""The hook's files on a real file system, and the processes that have them mapped."""

import mmap
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from agent.adapters import hook_files
from agent.adapters.hook_files import (
    FIRST_PID_NAMESPACE,
    MAX_SCANS,
    PIECE_BYTES,
    HostHookFiles,
    install_hook,
    offer_plain_name,
)
from agent.domain.hook_files import HookFile
from agent.errors import NodeNotReady
from tests.disk_calls import disk_calls
from tests.fake_proc import FakeProc
from tests.leaderless import leaderless

FIRST = int(FIRST_PID_NAMESPACE.strip("pid:[]"))
OTHER_POD = "0::/kubepods.slice/pod11111111-2222-3333-4444-555555555555/abc\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "vgpu"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """It shows all of the host's processes; which are its first and, really, ourselves."""
    made = FakeProc(tmp_path / "proc_directory")
    made.add(1, namespace=FIRST)
    (made.root / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    return made


@pytest.fixture
def hooks(host: Path, proc: FakeProc) -> HostHookFiles:
    return HostHookFiles(host, proc.root)


def install(host: Path, content: bytes, version: str = "1.0") -> Path:
    source = host.with_name("built.so")
    source.write_bytes(content)
    return install_hook(source, host, version)


def test_only_files_of_ours_are_listed(hooks: HostHookFiles, host: Path) -> None:
    ours = install(host, b"one")
    for name in ("libvgpu.so", "libvgpu.so.v2.10", "ld.so.preload", f".{ours.name}.9.x"):
        (host / name).write_bytes(b"x")
    (host / f".{ours.name}.9.0a1b2c3d").write_bytes(b"half")
    (host / "libvgpu.so.2.0-0123456789abcdef").mkdir()
    (host / "libvgpu.so.3.0-0123456789abcdef").symlink_to(ours)
    listing = hooks.listed()
    assert [file.name for file in listing.files] == [ours.name]
    assert [file.name for file in listing.unfinished] == [f".{ours.name}.9.0a1b2c3d"]
    assert listing.linked == {ours.name}


def test_a_file_is_deleted_as_it_was_seen_or_not_at_all(hooks: HostHookFiles, host: Path) -> None:
    path = install(host, b"one")
    (seen,) = hooks.listed().files
    before = seen.wanted_at_s
    while path.stat().st_ctime == before:  # the clock of a file system has ticks
        install(host, b"one")  # some agent wants it
    hooks.delete(seen)
    assert path.exists()
    hooks.delete(hooks.listed().files[0])
    assert not path.exists()
    hooks.delete(seen)  # gone already


def test_nothing_else_can_be_deleted(hooks: HostHookFiles, host: Path) -> None:
    install(host, b"one")
    (host / "libvgpu.so").write_bytes(b"x")
    with pytest.raises(NodeNotReady, match="no file of the hook"):
        hooks.delete(HookFile("libvgpu.so", 0, 0, 0.0))


def test_a_directory_of_somebody_else(hooks: HostHookFiles, host: Path) -> None:
    install(host, b"one")
    host.chmod(0o777)
    with pytest.raises(NodeNotReady, match="can be written by others"):
        hooks.listed()


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_nothing_is_put_where_others_can_exchange_it(host: Path, mode: int) -> None:
    host.mkdir()
    host.chmod(mode)
    with pytest.raises(NodeNotReady, match="can be written by others"):
        install(host, b"one")
    assert list(host.iterdir()) == []


def test_it_is_on_disk_before_it_has_its_name_and_the_name_after(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_calls(monkeypatch, lambda: install(host, b"one")) == [
        "file",
        "rename",
        "directory",
    ]


# --- who has it mapped -----------------------------------------------------------------------------


@pytest.fixture
def mapped(host: Path) -> Iterator[Path]:
    path = install(host, b"one")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        yield path


def test_what_a_real_process_has_mapped(hooks: HostHookFiles, host: Path, mapped: Path) -> None:
    install(host, b"two")
    files = hooks.listed().files
    assert len(files) == 2
    assert hooks.mapped(files) == frozenset({mapped.name})


def test_what_a_process_has_mapped_whose_first_thread_has_ended(
    hooks: HostHookFiles, host: Path, proc: FakeProc
) -> None:
    path = install(host, b"one")
    with leaderless(path) as process:
        (proc.root / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        assert hooks.mapped(hooks.listed().files) == frozenset({path.name})
    assert hooks.mapped(hooks.listed().files) == frozenset()


def test_unlinked_and_made_anew_it_is_another_file(
    hooks: HostHookFiles, host: Path, mapped: Path
) -> None:
    before = mapped.stat().st_ino
    mapped.unlink()
    assert install(host, b"one").stat().st_ino != before
    assert hooks.mapped(hooks.listed().files) == frozenset()


def test_a_process_that_may_not_be_looked_at_may_have_any(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path
) -> None:
    (proc.add(9) / "maps").unlink()
    (proc.root / "9" / "maps").mkdir()  # reading it is an error, for root too
    assert hooks.mapped(hooks.listed().files) is None


def test_a_map_that_cannot_be_opened_may_have_any(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path
) -> None:
    """As for an agent without SYS_PTRACE: that is no process that has ended."""
    (proc.add(9) / "maps").unlink()
    (proc.root / "9" / "maps").symlink_to("maps")
    assert hooks.mapped(hooks.listed().files) is None


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_line_that_two_reads_share_is_read(
    hooks: HostHookFiles, proc: FakeProc, host: Path, cut: int
) -> None:
    path = install(host, b"one")
    filler = ("7f00-7f10 rw-p 00000000 00:00 0 \n" * (PIECE_BYTES // 20))[: PIECE_BYTES - cut - 1]
    proc.add(9, maps=f"{filler}\n{map_line(path)}\n")
    assert hooks.mapped(hooks.listed().files) == frozenset({path.name})


def test_a_last_line_without_an_end_is_read(
    hooks: HostHookFiles, proc: FakeProc, host: Path
) -> None:
    path = install(host, b"one")
    proc.add(9, maps=map_line(path))
    assert hooks.mapped(hooks.listed().files) == frozenset({path.name})


def map_line(path: Path) -> str:
    return f"7f00-7f10 r-xp 00000000 08:01 {path.stat().st_ino} /usr/local/vgpu/libvgpu.so"


def test_maps_longer_together_than_is_read_may_have_any(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = len(Path("/proc/self/maps").read_bytes())  # long after many tests
    monkeypatch.setattr(hook_files, "ALL_MAPS_BYTES", 2 * ours + 50_000)
    assert hooks.mapped(hooks.listed().files) == frozenset({mapped.name})
    for pid in range(10, 20):
        proc.add(pid, maps="7f00-7f10 rw-p 00000000 00:00 0 \n" * (300 + ours // 100))
    assert hooks.mapped(hooks.listed().files) is None


class Forking:
    """A process that has a file mapped, and ends before it is read, leaving a child that does so, too."""

    def __init__(self, proc: FakeProc, maps: str, children: int) -> None:
        self._proc = proc
        self._maps = maps
        self._left = children
        self._pid = 100
        self._read = hook_files._mapped_by
        proc.add(self._pid, maps=maps)

    def __call__(self, entry: str, files: Collection[HookFile]) -> tuple[frozenset[str], int]:
        if entry.endswith(f"/{self._pid}") and self._left:
            self._left -= 1
            self._proc.remove(self._pid)
            self._pid += 1
            self._proc.add(self._pid, maps=self._maps)
        return self._read(entry, files)


@pytest.mark.parametrize("children", [1, 2, MAX_SCANS - 1])
def test_a_process_that_forks_and_ends_is_found_in_its_child(
    hooks: HostHookFiles,
    proc: FakeProc,
    host: Path,
    monkeypatch: pytest.MonkeyPatch,
    children: int,
) -> None:
    path = install(host, b"one")
    monkeypatch.setattr(hook_files, "_mapped_by", Forking(proc, map_line(path), children))
    assert hooks.mapped(hooks.listed().files) == frozenset({path.name})


def test_one_look_without_anybody_new_is_not_enough(
    hooks: HostHookFiles, proc: FakeProc, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of processes may be read while one ends, before its child is in it."""
    path = install(host, b"one")
    looks = iter([{"1"}, {"1"}, {"1", "101"}])
    proc.add(101, maps=map_line(path))
    monkeypatch.setattr(HostHookFiles, "_pids", lambda _: next(looks, {"1", "101"}))
    assert hooks.mapped(hooks.listed().files) == frozenset({path.name})


def test_where_there_is_always_somebody_new_nothing_is_said(
    hooks: HostHookFiles, proc: FakeProc, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(host, b"one")
    monkeypatch.setattr(hook_files, "_mapped_by", Forking(proc, map_line(path), 1_000_000))
    assert hooks.mapped(hooks.listed().files) is None


def test_a_process_that_has_ended_has_none(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path
) -> None:
    (proc.root / "9").symlink_to("nowhere")
    assert hooks.mapped(hooks.listed().files) == frozenset({mapped.name})


def test_a_map_longer_than_is_read_may_have_any(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path
) -> None:
    with (proc.add(9) / "maps").open("wb") as file:
        os.truncate(file.fileno(), (1 << 24) + 1)
    assert hooks.mapped(hooks.listed().files) is None


def test_where_the_hosts_processes_cannot_be_seen_nothing_is_said(
    hooks: HostHookFiles, proc: FakeProc, mapped: Path
) -> None:
    proc.add(1)  # of some container
    assert hooks.mapped(hooks.listed().files) is None
    proc.add(9, OTHER_POD)
    assert hooks.mapped(hooks.listed().files) == frozenset({mapped.name})
    shutil.rmtree(proc.root)
    assert hooks.mapped(hooks.listed().files) is None


# --- HAMi's name -----------------------------------------------------------------------------------


def test_hamis_name_is_a_copy_and_follows(host: Path) -> None:
    """A file of its own: HAMi's installer writes into what it finds there."""
    plain = host / "libvgpu.so"
    first = install(host, b"one")
    offer_plain_name(first, replace=False)
    assert plain.read_bytes() == b"one"
    assert plain.stat().st_ino != first.stat().st_ino
    with plain.open("rb") as held:  # a container has it mounted
        inode = plain.stat().st_ino
        offer_plain_name(first, replace=False)
        assert plain.stat().st_ino == inode
        offer_plain_name(install(host, b"two"), replace=False)
        assert plain.read_bytes() == b"two"
        assert held.read() == b"one"
    plain.write_bytes(b"HAMi")
    assert first.read_bytes() == b"one"
    offer_plain_name(first, replace=False)
    assert plain.read_bytes() == b"HAMi"


@pytest.mark.parametrize(
    ("replace", "left"),
    [pytest.param(False, b"HAMi", id="missing"), pytest.param(True, b"one", id="replace")],
)
def test_what_is_not_ours_is_replaced_when_that_is_wanted(
    host: Path, replace: bool, left: bytes
) -> None:
    host.mkdir(mode=0o755)
    plain = host / "libvgpu.so"
    plain.write_bytes(b"HAMi")
    with plain.open("rb") as held:  # a container of HAMi's has it mapped
        offer_plain_name(install(host, b"one"), replace=replace)
        assert plain.read_bytes() == left
        assert held.read() == b"HAMi"


def test_a_link_of_somebodys_stays_and_its_target_too(host: Path, tmp_path: Path) -> None:
    host.mkdir(mode=0o755)
    (tmp_path / "elsewhere.so").write_bytes(b"theirs")
    (host / "libvgpu.so").symlink_to(tmp_path / "elsewhere.so")
    offer_plain_name(install(host, b"one"), replace=False)
    assert (host / "libvgpu.so").is_symlink()
    offer_plain_name(install(host, b"one"), replace=True)
    assert (host / "libvgpu.so").read_bytes() == b"one"
    assert (tmp_path / "elsewhere.so").read_bytes() == b"theirs"


def test_half_a_copy_is_none(host: Path) -> None:
    first = install(host, b"one")
    (host / "libvgpu.so").touch()
    offer_plain_name(first, replace=False)
    assert (host / "libvgpu.so").read_bytes() == b"one"


def test_what_has_hamis_name_already_is_not_copied_upon_itself(host: Path) -> None:
    """The agent has no library of its own here, and gives out what it finds."""
    host.mkdir(mode=0o755)
    (host / "libvgpu.so").write_bytes(b"HAMi")
    offer_plain_name(host / "libvgpu.so", replace=True)
    assert (host / "libvgpu.so").read_bytes() == b"HAMi"
