"""Host pids in usage regions, whose owners do to the files whatever they can."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from swapped_regions import (
    as_fifo,
    as_hard_link,
    as_link,
    as_socket,
    as_sparse,
    as_written,
    exchanging,
)
from waiting import eventually

from agent.adapters import regions
from agent.adapters.region_files import NoRegionError, open_region
from agent.adapters.regions import HostRegions
from agent.domain.enforcement import RegionLook
from agent.domain.region import FILE_BYTES, MAGIC, MOVED_BYTES, V1_BYTES
from agent.domain.region_slots import (
    HOST_PID_AT,
    SLOT_BYTES,
    SLOT_COUNT_AT,
    SLOTS_AT,
    HostPid,
    Slot,
    header_problem,
    slot_at,
    slots_in_use,
    slots_of,
)
from agent.errors import NodeNotReady

UID, NAME = "0a1b2c3d-0000-4000-8000-00000000000f", "x.cache"
FIRST = Slot(index=0, pid=7, host_pid=0, pid_namespace=4026532000, start_time=99)
THIRD = Slot(index=2, pid=8, host_pid=77, pid_namespace=4026532000, start_time=100)


def put(content: bytearray, slot: Slot, status: int = 1) -> None:
    at = SLOTS_AT + slot.index * SLOT_BYTES
    struct.pack_into("<ii", content, at, slot.pid, slot.host_pid)
    struct.pack_into("<iI8xQ", content, at + 1928, status, slot.pid_namespace, slot.start_time)


def region(size: int = FILE_BYTES) -> bytearray:
    content = bytearray(size)
    struct.pack_into("<iII", content, 0, MAGIC, 1, 2)
    struct.pack_into("<i", content, SLOT_COUNT_AT, 3)
    put(content, FIRST)
    put(content, THIRD)
    return content


class Bed:
    """A host's directory with one container's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parent = root / "containers"
        self.directory = self.parent / f"{UID}_main"
        self.parent.mkdir(mode=0o755)
        self.directory.mkdir()
        self.file = self.directory / NAME
        self.good = bytes(region())
        self.file.write_bytes(self.good)
        self.regions = HostRegions(root)

    def look(self) -> RegionLook:
        return self.regions.look(UID, "main", NAME)

    def tell(self, *told: HostPid) -> int:
        return self.regions.tell(UID, "main", NAME, told)

    def host_pid(self, index: int = 0) -> int:
        with self.file.open("rb") as file:
            file.seek(SLOTS_AT + index * SLOT_BYTES + HOST_PID_AT)
            return int(struct.unpack("<i", file.read(4))[0])


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    tmp_path.chmod(0o755)
    return Bed(tmp_path)


def test_slots_are_read_and_a_pid_is_written(bed: Bed) -> None:
    before = bed.file.read_bytes()
    assert bed.look() == RegionLook(slots=(FIRST, THIRD))
    assert bed.tell(HostPid(FIRST, 4242), HostPid(THIRD, 4243)) == 2
    assert (bed.host_pid(0), bed.host_pid(2)) == (4242, 4243)
    after = bed.file.read_bytes()
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    assert set(changed) <= {
        SLOTS_AT + index * SLOT_BYTES + HOST_PID_AT + byte for index in (0, 2) for byte in range(4)
    }


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(Slot(index=0, pid=9, host_pid=55, pid_namespace=4026532000, start_time=99), id="pid"),
        pytest.param(Slot(index=0, pid=7, host_pid=55, pid_namespace=4026532001, start_time=99), id="namespace"),
        pytest.param(Slot(index=0, pid=7, host_pid=55, pid_namespace=4026532000, start_time=98), id="start"),
    ],
)  # fmt: skip
def test_a_slot_that_is_anothers_by_now_is_not_written(bed: Bed, now: Slot) -> None:
    content = region()
    put(content, now)
    bed.file.write_bytes(content)
    assert bed.tell(HostPid(FIRST, 4242)) == 0
    assert bed.host_pid() == 55


def test_a_slot_that_was_freed_is_not_written(bed: Bed) -> None:
    content = region()
    put(content, FIRST, status=0)
    bed.file.write_bytes(content)
    assert bed.tell(HostPid(FIRST, 4242)) == 0
    assert bed.host_pid() == 0


def test_a_slot_without_a_pid_is_nobodys(bed: Bed) -> None:
    content = region()
    put(content, replace(FIRST, pid=0))
    put(content, replace(THIRD, pid=-8))
    bed.file.write_bytes(content)
    assert bed.look() == RegionLook()


def test_a_file_that_is_cut_as_we_write_is_not_made_longer(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(fd: int, content: bytes, at: int) -> int:
        count = os.pwrite(fd, content, at)
        if struct.unpack("<i", content)[0] == 4242:
            os.truncate(bed.file, 100)
        return count

    monkeypatch.setattr(regions, "os", _Os(write))
    assert bed.tell(HostPid(FIRST, 4242)) == 0
    assert bed.file.stat().st_size == 100


def test_a_slot_that_changes_hands_as_we_write_does_not_keep_the_pid(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def write(fd: int, content: bytes, at: int) -> int:
        count = os.pwrite(fd, content, at)
        if not written:  # between our write and our look at it
            put(
                changed := region(), Slot(index=0, pid=9, host_pid=0, pid_namespace=1, start_time=1)
            )
            os.pwrite(fd, changed[SLOTS_AT : SLOTS_AT + 4], SLOTS_AT)
        written.append(content)
        return count

    monkeypatch.setattr(regions, "os", _Os(write))
    assert bed.tell(HostPid(FIRST, 4242)) == 0
    assert [struct.unpack("<i", content)[0] for content in written] == [4242, 0]
    assert bed.host_pid() == 0


class _Os:
    """The module, with one function replaced."""

    def __init__(self, write: Callable[[int, bytes, int], int]) -> None:
        self.pwrite = write

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


@pytest.mark.parametrize(
    ("exchange", "problem"),
    [
        pytest.param(as_fifo, "it is no regular file", id="pipe"),
        pytest.param(as_link, "it is no regular file", id="link"),
        pytest.param(as_hard_link, "it is a file of more than one name", id="hard link"),
        pytest.param(as_socket, "it is no regular file", id="socket"),
        pytest.param(lambda bed: bed.file.mkdir(), "it is no regular file", id="directory"),
        pytest.param(as_sparse, "it has 4294967296 bytes", id="4 GiB of holes"),
        pytest.param(as_written(b""), "it has 0 bytes", id="empty"),
        pytest.param(as_written(region()[: V1_BYTES - 1]), "bytes, but a usage", id="short"),
        pytest.param(as_written(region(MOVED_BYTES[0])), "whose fields lie elsewhere", id="moved"),
        pytest.param(
            as_written(region(MOVED_BYTES[1])), "whose fields lie elsewhere", id="moved, 1 more"
        ),
        pytest.param(as_written(b"\xff" * FILE_BYTES), "it is no usage region", id="all ones"),
        pytest.param(
            as_written(struct.pack("<iII", MAGIC, 2, 0), bytes(FILE_BYTES - 12)),
            "of version 2.0",
            id="another version",
        ),
    ],
)
def test_what_is_no_region_is_named_and_left_alone(
    bed: Bed, exchange: Callable[[Bed], None], problem: str
) -> None:
    bed.file.unlink()
    exchange(bed)
    looked = bed.look()
    assert problem in looked.problem
    assert looked.slots == ()
    assert bed.tell(HostPid(FIRST, 4242)) == 0
    for left in (bed.file, bed.root / "secret"):
        if left.is_file() and left.stat().st_size >= SLOTS_AT + SLOT_BYTES:
            with left.open("rb") as file:
                file.seek(SLOTS_AT + HOST_PID_AT)
                assert file.read(4) in (b"\0\0\0\0", b"\xff\xff\xff\xff")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_not_even_opened(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open one can already do something: a watchdog starts to run."""
    bed.file.unlink()
    try:
        os.mknod(bed.file, 0o666 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    opened: list[object] = []
    real = os.open

    def note(path: object, flags: int, *rest: object, **more: int) -> int:
        if not flags & os.O_PATH:
            opened.append(path)
        return real(path, flags, *rest, **more)  # type: ignore[arg-type,misc,call-overload,no-any-return]

    monkeypatch.setattr(os, "open", note)
    assert bed.look() == RegionLook("it is no regular file")
    monkeypatch.undo()
    assert bed.file.name not in map(str, opened)
    assert not any("/proc/self/fd" in str(path) for path in opened)


def test_a_lease_on_the_file_does_not_make_us_wait(bed: Bed) -> None:
    """Whoever opens a leased file waits up to 45 s for its holder, unless it says it will not."""
    with bed.file.open("r+b") as held:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("this file system has no leases")
        # SIGIO would end this process; it is told another, harmless signal instead
        fcntl.fcntl(held, fcntl.F_SETSIG, 23)
        answer = bed.look()
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    assert "cannot be read" in answer.problem


def test_no_file_yet_is_no_problem(bed: Bed) -> None:
    bed.file.unlink()
    assert bed.look() == RegionLook()
    assert bed.tell(HostPid(FIRST, 1)) == 0
    bed.file.write_bytes(bytes(FILE_BYTES))  # made, with nothing in it
    assert bed.look() == RegionLook()
    bed.file.unlink()
    bed.directory.rmdir()
    assert bed.look() == RegionLook()


def test_a_directory_that_others_can_exchange_is_the_nodes_problem(bed: Bed) -> None:
    bed.parent.chmod(0o777)
    with pytest.raises(NodeNotReady, match="can be written by others"):
        bed.look()
    with pytest.raises(NodeNotReady, match="can be written by others"):
        bed.tell(HostPid(FIRST, 1))


def test_a_linked_directory_is_not_followed(bed: Bed) -> None:
    bed.directory.rename(bed.root / "elsewhere")
    bed.directory.symlink_to(bed.root / "elsewhere")
    assert "cannot be read" in bed.look().problem


@pytest.fixture
def ended(bed: Bed) -> Iterator[Callable[[], None]]:
    """A tenant that puts one thing after the other in the file's place; its end."""
    with exchanging(bed) as end:
        yield end


def test_a_tenant_that_exchanges_the_file_all_the_time(bed: Bed, ended: Callable[[], None]) -> None:
    """No crash, no hang, no write anywhere else; each answer is one of those above."""
    outcomes = set()

    def seen() -> int:
        for _ in range(400):
            looked = bed.look()
            outcomes.add(looked.problem.partition(" bytes")[0][:12] or len(looked.slots))
            bed.tell(HostPid(FIRST, 4242))
        return len(outcomes)

    eventually(lambda: seen() > 1)
    ended()
    secret = bed.root / "secret"
    if secret.exists() and secret.stat().st_nlink == 1:
        assert struct.unpack_from("<i", secret.read_bytes(), SLOTS_AT + HOST_PID_AT)[0] == 0


# --- the bytes themselves -------------------------------------------------------------------------


@given(st.binary(max_size=64), st.binary(max_size=8), st.binary(max_size=2 * SLOT_BYTES))
def test_any_bytes_are_read(header: bytes, count: bytes, content: bytes) -> None:
    assert isinstance(header_problem(header), str)
    assert 0 <= slots_in_use(count) <= 1024
    assert len(slots_of(content)) <= len(content) // SLOT_BYTES
    slot_at(content, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, FILE_BYTES - 8), st.integers(0, (1 << 64) - 1)), max_size=20),
    st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_any_region_is_read_and_written_within_its_slots(
    bed: Bed, scribbles: list[tuple[int, int]], count: int
) -> None:
    content = region()
    struct.pack_into("<i", content, SLOT_COUNT_AT, count)
    for at, value in scribbles:
        struct.pack_into("<Q", content, at, value)
    bed.file.write_bytes(content)
    looked = bed.look()
    told = bed.tell(*(HostPid(slot, 4242) for slot in looked.slots))
    assert told == len(looked.slots) <= 1024
    after = bed.file.read_bytes()
    assert len(after) == FILE_BYTES
    for slot in looked.slots:
        struct.pack_into("<i", content, SLOTS_AT + slot.index * SLOT_BYTES + HOST_PID_AT, 4242)
    assert after == bytes(content)


def replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(region())
    other.rename(file)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda file: file.unlink(), id="gone"),
        pytest.param(lambda file: file.with_name("second").hardlink_to(file), id="two names"),
        pytest.param(replaced, id="another file"),
    ],
)
def test_what_is_exchanged_while_it_is_looked_at_is_not_opened(
    tmp_path: Path, meanwhile: Callable[[Path], object]
) -> None:
    """Another's file that is linked here for a moment has one name when it is looked at."""
    file = tmp_path / NAME
    file.write_bytes(region())

    def size_problem(_: int) -> str:
        meanwhile(file)
        return ""

    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises((NoRegionError, FileNotFoundError)):
            open_region(NAME, directory, os.O_RDWR, size_problem)
    finally:
        os.close(directory)
