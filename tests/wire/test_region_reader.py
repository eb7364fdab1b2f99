"""Reading the usage regions of containers, which do to their files whatever they can."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_regions import GPU, LAYOUTS, MIB, OURS, V0, V1_2, Layout, MadeSlot, made
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

from agent.adapters import region_reader
from agent.adapters.region_reader import HostRegionReader
from agent.domain.region import MalformedRegion, Region, Rejected, decode
from agent.domain.region_reading import RegionName, RegionReading
from agent.errors import NodeNotReady

UID, NAME = "0a1b2c3d-0000-4000-8000-00000000000f", "x.cache"
SLOT = MadeSlot(pid=7, host_pid=77, context=3 * MIB, module=2 * MIB, data=300 * MIB, busy=40)


class Bed:
    """A host's directory with one container's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parent = root / "containers"
        self.directory = self.parent / f"{UID}_main"
        self.parent.mkdir(mode=0o755)
        self.directory.mkdir()
        self.file = self.directory / NAME
        self.good = bytes(made(OURS, [SLOT]))
        self.reader = HostRegionReader(root)

    def read(self, name: str = NAME) -> RegionReading:
        (reading,) = self.reader.read([RegionName(UID, "main", name)])
        return reading


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    tmp_path.chmod(0o755)
    return Bed(tmp_path)


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in LAYOUTS])
@pytest.mark.parametrize("asked", [pytest.param(NAME, id="named"), pytest.param("", id="found")])
def test_every_layout_says_the_same(bed: Bed, name: str, asked: str) -> None:
    layout = LAYOUTS[name]
    gone = MadeSlot(pid=8, data=5, status=0)
    raw = made(layout, [gone, SLOT], recent=-1, priority=0, last_kernel_s=1_700_000_000, peak=9)
    bed.file.write_bytes(raw)
    reading = bed.read(asked)
    region = reading.region
    assert (reading.rejected, reading.problem) == (None, "")
    assert region is not None
    assert region == decode(bytes(raw))
    assert (region.has_tail, region.slot_count) == (layout is OURS, 2)
    assert (region.utilisation_switch, region.recent_kernel, region.priority) == (1, -1, 0)
    assert region.last_kernel_time_s == (0 if layout is V0 else 1_700_000_000)
    (device,), (process,) = region.devices, region.processes
    assert (device.uuid, device.limit_bytes, device.core_percent) == (GPU, 1000 * MIB, 30)
    assert (process.pid, process.host_pid, process.sm_percent) == (7, 77, (40,))
    (usage,) = process.used
    assert (usage.context_bytes, usage.module_bytes) == (3 * MIB, 2 * MIB)
    assert (usage.data_bytes, usage.total_bytes) == (300 * MIB, 305 * MIB)
    assert (device.counters.peak_bytes if device.counters else None) == (
        9 if layout is OURS else None
    )


def test_our_slots_say_whose_they_are(bed: Bed) -> None:
    bed.file.write_bytes(made(OURS, [MadeSlot(pid=7, namespace=4026532000, start_time=99)]))
    region = bed.read().region
    assert region is not None
    assert [(p.pid_namespace, p.start_time) for p in region.processes] == [(4026532000, 99)]


def test_only_what_is_in_use_is_read(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process: some KB of the 2 MB, in few calls."""
    pieces: list[int] = []

    def read(fd: int, size: int, at: int) -> bytes:
        content = os.pread(fd, size, at)
        pieces.append(len(content))
        return content

    bed.file.write_bytes(made(OURS, [SLOT]))
    monkeypatch.setattr(region_reader, "os", _Os(read))
    assert bed.read().region is not None
    assert len(pieces) <= 5
    assert sum(pieces) < 8192


def test_many_slots_are_read_in_pieces(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def read(fd: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return os.pread(fd, size, at)

    bed.file.write_bytes(made(OURS, [MadeSlot(pid=index + 1, data=1) for index in range(1024)]))
    monkeypatch.setattr(region_reader, "os", _Os(read))
    region = bed.read().region
    assert region is not None
    assert [process.pid for process in region.processes] == list(range(1, 1025))
    assert max(sizes) < 1 << 16


class _Os:
    """The module, with one function replaced."""

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        self.pread = read

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


# --- what is no region ----------------------------------------------------------------------------


def with_version(major: int) -> bytearray:
    raw = made(V1_2)
    struct.pack_into("<I", raw, 4, major)
    return raw


@pytest.mark.parametrize(
    ("exchange", "reason", "problem"),
    [
        pytest.param(as_fifo, Rejected.NOT_A_FILE, "no regular file", id="pipe"),
        pytest.param(as_link, Rejected.NOT_A_FILE, "no regular file", id="link"),
        pytest.param(as_socket, Rejected.NOT_A_FILE, "no regular file", id="socket"),
        pytest.param(lambda bed: bed.file.mkdir(), Rejected.NOT_A_FILE, "no regular", id="directory"),
        pytest.param(as_hard_link, Rejected.HARD_LINK, "more than one name", id="hard link"),
        pytest.param(as_sparse, Rejected.FOREIGN, "4294967296 bytes", id="4 GiB of holes"),
        pytest.param(as_written(b"x"), Rejected.SHORT, "1 bytes", id="one byte"),
        pytest.param(as_written(made(V0)[:-2]), Rejected.SHORT, "the shortest", id="short of 0"),
        pytest.param(as_written(made(V0)[:804680]), Rejected.SHORT, "the shortest", id="before 0"),
        pytest.param(as_written(b"\xff" * OURS.size), Rejected.FOREIGN, "magic -1", id="all ones"),
        pytest.param(as_written(b"\xff" * V0.size), Rejected.FOREIGN, "magic -1", id="ones, layout 0"),
        pytest.param(as_written(with_version(2)), Rejected.FOREIGN, "version 2.2", id="version 2"),
        pytest.param(as_written(with_version(0)), Rejected.FOREIGN, "version 0.2", id="version 0.2"),
        pytest.param(
            as_written(made(V1_2) + bytes(32)), Rejected.FOREIGN, "2008985 bytes", id="moved fields"
        ),
        pytest.param(
            as_written(made(OURS) + bytes(1)), Rejected.FOREIGN, "2039809 bytes", id="longer than ours"
        ),
    ],
)  # fmt: skip
def test_what_is_no_region_is_named(
    bed: Bed, exchange: Callable[[Bed], None], reason: Rejected, problem: str
) -> None:
    exchange(bed)
    for name in (NAME, ""):
        reading = bed.read(name)
        assert (reading.rejected, reading.region) == (reason, None)
        assert problem in reading.problem


def test_what_is_not_made_yet_is_no_problem(bed: Bed) -> None:
    assert bed.read() == bed.read("") == RegionReading()
    for size in (0, V0.size, OURS.size):
        bed.file.write_bytes(bytes(size))
        assert bed.read() == RegionReading(), size
    bed.file.unlink()
    bed.directory.rmdir()
    assert bed.read() == bed.read("") == RegionReading()
    bed.parent.rmdir()
    assert bed.read() == RegionReading()
    assert bed.reader.directories() == ()


def open_files() -> set[Path]:
    return {path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_nothing_is_held_of_a_container(bed: Bed) -> None:
    """Its directory, and the disk's blocks, go when it is deleted."""
    bed.file.write_bytes(made(OURS, [SLOT]))
    before = open_files()
    assert bed.read().region is not None
    as_seen = Path("/proc/self/maps").read_text()
    assert open_files() == before
    assert str(bed.root) not in as_seen


def test_which_of_several_files_counts_is_not_guessed(bed: Bed) -> None:
    for name in ("libvgpu.so", "notes.txt"):  # what HAMi <= 2.9 stumbles over
        (bed.directory / name).write_bytes(b"")
    bed.file.write_bytes(made(OURS))
    assert bed.read("").region is not None
    (bed.directory / "another.cache").write_bytes(made(OURS))
    assert bed.read("").rejected is Rejected.SEVERAL
    assert bed.read(NAME).region is not None


def test_a_directory_full_of_files_is_not_searched(bed: Bed) -> None:
    for number in range(100):
        (bed.directory / f"{number}.txt").write_bytes(b"")
    bed.file.write_bytes(made(OURS))
    assert bed.read("").rejected is Rejected.SEVERAL
    assert bed.read(NAME).region is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_not_even_opened(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.mknod(bed.file, 0o666 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    opened: list[str] = []
    real = os.open

    def note(path: object, flags: int, *rest: object, **more: int) -> int:
        if not flags & os.O_PATH:
            opened.append(str(path))
        return real(path, flags, *rest, **more)  # type: ignore[arg-type,misc,call-overload,no-any-return]

    monkeypatch.setattr(os, "open", note)
    assert bed.read().rejected is Rejected.NOT_A_FILE
    monkeypatch.undo()
    assert not any("/proc/self/fd" in path or NAME in path for path in opened)


def test_a_lease_on_the_file_does_not_make_us_wait(bed: Bed) -> None:
    bed.file.write_bytes(made(OURS))
    with bed.file.open("r+b") as held:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("this file system has no leases")
        fcntl.fcntl(held, fcntl.F_SETSIG, 23)  # a harmless one, not SIGIO
        reading = bed.read()
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    assert reading.rejected is Rejected.UNREADABLE


def test_directories_that_others_can_exchange_are_the_nodes_problem(bed: Bed) -> None:
    bed.parent.chmod(0o777)
    with pytest.raises(NodeNotReady, match="can be written by others"):
        bed.read()
    with pytest.raises(NodeNotReady, match="can be written by others"):
        bed.reader.directories()


def test_a_linked_directory_is_not_followed(bed: Bed) -> None:
    bed.directory.rename(bed.root / "elsewhere")
    (bed.root / "elsewhere" / NAME).write_bytes(made(OURS))
    bed.directory.symlink_to(bed.root / "elsewhere")
    assert bed.read().rejected is Rejected.UNREADABLE


def test_one_bad_container_leaves_the_others_alone(bed: Bed) -> None:
    as_fifo(bed)
    other = bed.parent / f"{UID}_other"
    other.mkdir()
    (other / NAME).write_bytes(made(OURS, [SLOT]))
    names = [RegionName(UID, "main", NAME), RegionName("../..", "x"), RegionName(UID, "other", "")]
    bad, absurd, good = bed.reader.read(names)
    assert (bad.rejected, absurd.rejected) == (Rejected.NOT_A_FILE, Rejected.UNREADABLE)
    assert good.region is not None
    (bed.parent / "no container's").mkdir()
    assert set(bed.reader.directories()) == {(UID, "main"), (UID, "other")}


# --- while it is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", [pytest.param(at, id=f"before read {at}") for at in range(5)])
def test_a_file_that_is_cut_meanwhile_is_changed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    bed.file.write_bytes(made(OURS, [SLOT], refusals=1))
    reads = iter(range(100))

    def read(fd: int, size: int, offset: int) -> bytes:
        if next(reads) == at:
            os.truncate(bed.file, 100)
        return os.pread(fd, size, offset)

    monkeypatch.setattr(region_reader, "os", _Os(read))
    assert bed.read().rejected is Rejected.CHANGED


def test_a_file_that_is_exchanged_meanwhile_is_changed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.file.write_bytes(made(OURS, [SLOT]))

    def read(fd: int, size: int, offset: int) -> bytes:
        content = os.pread(fd, size, offset)
        bed.file.unlink(missing_ok=True)
        return content

    monkeypatch.setattr(region_reader, "os", _Os(read))
    assert bed.read().rejected is Rejected.CHANGED


@pytest.fixture
def ended(bed: Bed) -> Iterator[Callable[[], None]]:
    """A tenant that puts one thing after the other in the file's place; its end."""
    with exchanging(bed, as_written(made(V0))) as end:
        yield end


def test_a_tenant_that_exchanges_the_file_all_the_time(bed: Bed, ended: Callable[[], None]) -> None:
    """No crash, no hang; every answer is one of those above, and what is read is never half."""
    outcomes: set[object] = set()

    def seen() -> bool:
        for _ in range(300):
            for name in (NAME, ""):
                reading = bed.read(name)
                outcomes.add(reading.rejected or (reading.region and reading.region.has_tail))
                for process in reading.region.processes if reading.region else ():
                    assert process.used[0].total_bytes == 305 * MIB
        return len(outcomes) > 2

    eventually(seen, within_s=60)
    ended()


# --- any bytes ------------------------------------------------------------------------------------

PLACES = {
    name: (
        0, 4, layout.count, layout.uuids, layout.limits, layout.slots, layout.slots + 4,
        layout.slots + 8, layout.slots + layout.status, layout.slots + layout.utilisation,
        layout.trailer, layout.trailer + 4, layout.trailer + 8, layout.trailer + 12,
        *((2031616, 2031620, 2031632, 2031680, 2031760, 2035776) if layout.tail else ()),
    )
    for name, layout in LAYOUTS.items()
}  # fmt: skip
WORDS = st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 47, 1 << 63, (1 << 64) - 1])
EDITS = st.lists(st.tuples(st.integers(0, 19), WORDS | st.integers(0, (1 << 64) - 1)), max_size=8)


def edited(layout: Layout, places: tuple[int, ...], edits: list[tuple[int, int]]) -> bytes:
    raw = made(layout, [SLOT, MadeSlot(pid=9, data=1)], refusals=1)
    for which, word in edits:
        at = places[which % len(places)]
        raw[at : at + 8] = struct.pack("<Q", word)[: len(raw) - at]
    return bytes(raw)


def judged(content: bytes) -> Region | None:
    """What `decode` makes of the same bytes; and that it is bounded."""
    try:
        region = decode(content)
    except MalformedRegion:
        return None
    assert len(region.devices) <= 16
    assert len(region.processes) <= region.slot_count <= 1024
    assert len(region.refusals) <= 32
    for process in region.processes:
        assert len(process.used) == len(process.sm_percent) == len(region.devices)
        assert all(0 <= percent <= 100 for percent in process.sm_percent)
    assert all(device.uuid.isprintable() for device in region.devices)
    assert all(refusal.function.isprintable() for refusal in region.refusals)
    return region


# Found by reading the readers of others, and by earlier runs of the test below.
FINDS = {
    "device count as large as it goes": ("1.2", [(2, (1 << 64) - 1)]),
    "negative slot count": ("1.2", [(10, 0xFFFFFFFF)]),
    "slot count as large as it goes": ("ours", [(10, 0x7FFFFFFF)]),
    "slot count as large as it goes, layout 0": ("0", [(10, 0x7FFFFFFF)]),
    "no devices": ("ours", [(2, 0)]),
    "uuid of ones": ("1.1", [(3, (1 << 64) - 1)]),
    "uuid that clears the terminal": ("ours", [(3, 0x4A325B1B)]),
    "negative status": ("1.2", [(8, 0xFFFFFFFF)]),
    "negative pids": ("0", [(5, (1 << 64) - 1)]),
    "used more than there is": ("1.2", [(7, (1 << 64) - 1)]),
    "busier than the clock": ("1.1", [(9, (1 << 64) - 1)]),
    "tail of another version": ("ours", [(15, 3)]),
    "refusals without a ring": ("ours", [(16, (1 << 64) - 1)]),
    "refusal that is being written": ("ours", [(19, (1 << 63) | 1)]),
    "ledger full of changes": ("ours", [(17, (1 << 64) - 1)]),
    "version of the future over our part": ("ours", [(1, 9)]),
}


@pytest.mark.parametrize(("name", "edits"), [pytest.param(*row, id=i) for i, row in FINDS.items()])
def test_past_finds(bed: Bed, name: str, edits: list[tuple[int, int]]) -> None:
    content = edited(LAYOUTS[name], PLACES[name], edits)
    bed.file.write_bytes(content)
    assert bed.read().region == judged(content)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(name=st.sampled_from(list(LAYOUTS)), edits=EDITS, cut=st.none() | st.integers(0, OURS.size))
def test_any_region_is_read_as_its_bytes_are(
    bed: Bed, name: str, edits: list[tuple[int, int]], cut: int | None
) -> None:
    content = edited(LAYOUTS[name], PLACES[name], edits)[:cut]
    bed.file.write_bytes(content)
    reading = bed.read()
    assert reading.region == judged(content)
    assert reading.region is None or not reading.problem
    assert (reading.rejected is None) == (not reading.problem)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.binary(max_size=4096), st.sampled_from([0, V0.size, V1_2.size, OURS.size, OURS.size + 9]))
def test_any_bytes_are_an_answer(bed: Bed, content: bytes, size: int) -> None:
    whole = content + bytes(max(0, size - len(content)))
    bed.file.write_bytes(whole)
    assert bed.read().region == judged(whole)
