"""The words that a monitor steers libraries by, in files that tenants do what they like to."""

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hami_regions import GPU_A, GPU_B, V1_FILE_BYTES, hami_region
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.adapters.region_switches import HostRegionSwitches
from agent.domain.lending import Activity
from agent.domain.region import FILE_BYTES, MAGIC, MOVED_BYTES, TAIL_OFFSET, V1
from agent.domain.switch_words import DEVICE_BYTES, activity_at, layout_of, words_of
from agent.errors import NodeNotReady

KEY = ("0a1b2c3d-0000-4000-8000-00000000000f", "main")
NAME = "x.cache"


class Bed:
    """A host's directory with one container's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in (root, root / "containers"):
            directory.mkdir(mode=0o755)
        self.home = root / "containers" / "_".join(KEY)
        self.home.mkdir(mode=0o777)
        self.region = self.home / NAME
        self.switches = HostRegionSwitches(root)

    def activity(self, places: int) -> tuple[Activity, ...]:
        """What its counters say."""
        (content,) = self.switches.counters([(KEY, places)])
        found = (activity_at(content, place) for place in range(places))
        return tuple(activity for activity in found if activity is not None)

    def make_ours(self) -> None:
        """A region with our library's part."""
        hami_region(self.region, GPU_A, GPU_B, sm_percent=30)
        with self.region.open("r+b") as file:
            file.truncate(FILE_BYTES)
            file.seek(TAIL_OFFSET)
            file.write(struct.pack("<II", 0x75706776, 2))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path / "vgpu")
    yield made
    made.switches.close()


@pytest.mark.parametrize("version", [0, 1])
def test_what_hami_core_writes_is_read(bed: Bed, version: int) -> None:
    made = hami_region(bed.region, GPU_A, GPU_B, version=version, priority=3, sm_percent=40)
    made.put("slot_count", 5)
    (words,) = bed.switches.refresh().values()
    assert (words.recent_kernel, words.switch, words.priority) == (2, 1, 3)
    assert words.slot_count == 5
    assert words.devices[:3] == (GPU_A.lower(), GPU_B.lower(), "")
    assert words.core_permille[:2] == (400, 400)
    assert bed.activity(1) == ()


@pytest.mark.parametrize("version", [0, 1])
def test_two_words_are_written_and_nothing_else(bed: Bed, version: int) -> None:
    region = hami_region(bed.region, GPU_A, version=version)
    bed.switches.refresh()
    before = bed.region.read_bytes()
    assert bed.switches.put(KEY, recent_kernel=-1, switch=0)
    after = bytearray(bed.region.read_bytes())
    assert (region.recent_kernel, region.switch) == (-1, 0)
    assert bed.switches.recent_kernel(KEY) == -1
    at = region.layout["utilisation_switch"]
    after[at : at + 8] = before[at : at + 8]
    assert bytes(after) == before
    assert bed.region.stat().st_size == len(before)


def test_counters_of_our_library(bed: Bed) -> None:
    bed.make_ours()
    with bed.region.open("r+b") as file:
        file.seek(TAIL_OFFSET + 64 + 256 + 64)  # of the second device
        file.write(struct.pack("<qQQQQQQ", -5, 6, 7, 8, 9, 10, 11))
    bed.switches.refresh()
    assert bed.activity(2) == (Activity(0, 0, 0, 0, 0), Activity(-5, 6, 7, 9, 10, 11))
    assert len(bed.activity(1)) == 1


def test_a_region_that_is_exchanged_is_opened_anew(bed: Bed) -> None:
    hami_region(bed.region, GPU_A, priority=1)
    bed.switches.refresh()
    held = bed.switches.held(KEY)
    hami_region(bed.home / "y", GPU_A, priority=2).path.replace(bed.region)
    assert bed.switches.refresh()[KEY].priority == 2
    assert bed.switches.held(KEY) != held  # by identity, whatever the descriptor's number is


def test_counters_are_of_the_region_that_is_there_now(bed: Bed) -> None:
    """The same list is asked for many times a second, while regions come and go."""
    wanted = [(KEY, 1)]
    assert bed.switches.counters(wanted) == [b""]
    for _ in range(2):
        bed.make_ours()
        bed.switches.refresh()
        assert [len(content) for content in bed.switches.counters(wanted)] == [DEVICE_BYTES]
        bed.region.unlink()
        bed.switches.refresh()
        spare = os.open(bed.root, os.O_RDONLY)  # where the number of a closed one may lead
        assert bed.switches.counters(wanted) == [b""]
        os.close(spare)
    hami_region(bed.region, GPU_A)
    bed.switches.refresh()
    assert bed.switches.counters(wanted) == [b""]  # it has none of our library's


def test_a_directory_that_goes_is_let_go(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    bed.switches.refresh()
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    bed.region.unlink()
    bed.home.rmdir()
    assert bed.switches.refresh() == {}
    assert len(os.listdir("/proc/self/fd")) == open_before - 1  # noqa: PTH208
    assert bed.switches.recent_kernel(KEY) is None
    assert not bed.switches.put(KEY, recent_kernel=-1)
    assert bed.switches.held(KEY) is None


def test_a_node_without_any_container(tmp_path: Path) -> None:
    assert HostRegionSwitches(tmp_path / "missing").refresh() == {}


def test_directories_that_others_can_write_are_refused(bed: Bed) -> None:
    (bed.root / "containers").chmod(0o777)
    with pytest.raises(NodeNotReady, match="can be written by others"):
        bed.switches.refresh()


# --- what tenants put in its place ----------------------------------------------------------------


def fifo(bed: Bed) -> None:
    os.mkfifo(bed.region)


def link(bed: Bed) -> None:
    hami_region(bed.root / "elsewhere", GPU_A)
    bed.region.symlink_to(bed.root / "elsewhere")


def hard_link(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    (bed.home / "second").hardlink_to(bed.region)


def directory(bed: Bed) -> None:
    bed.region.mkdir()


def empty(bed: Bed) -> None:
    bed.region.touch()


def short(bed: Bed) -> None:
    bed.region.write_bytes(struct.pack("<iII", MAGIC, 1, 2) + bytes(100))


def all_ones(bed: Bed) -> None:
    bed.region.write_bytes(b"\xff" * V1_FILE_BYTES)


def too_long(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    os.truncate(bed.region, FILE_BYTES + 1)


def fields_elsewhere(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    os.truncate(bed.region, MOVED_BYTES[0])


def other_version(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    with bed.region.open("r+b") as file:
        file.write(struct.pack("<iI", MAGIC, 2))


def not_made_yet(bed: Bed) -> None:
    bed.region.write_bytes(bytes(V1_FILE_BYTES))


def two_of_them(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    hami_region(bed.home / "z.cache", GPU_A)


def many_files(bed: Bed) -> None:
    hami_region(bed.region, GPU_A)
    for number in range(10):
        (bed.home / f"{number}").touch()


def home_is_a_link(bed: Bed) -> None:
    elsewhere = bed.root / "elsewhere"
    elsewhere.mkdir()
    hami_region(elsewhere / NAME, GPU_A)
    bed.home.rmdir()
    bed.home.symlink_to(elsewhere)


STRANGE = [fifo, link, hard_link, directory, empty, short, all_ones, too_long, fields_elsewhere,
           other_version, not_made_yet, two_of_them, many_files, home_is_a_link]  # fmt: skip


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
def test_what_is_no_region_is_neither_read_nor_written(
    bed: Bed, make: Callable[[Bed], None]
) -> None:
    make(bed)
    before = contents(bed.root)
    assert bed.switches.refresh() == {}
    assert bed.switches.directories() == {KEY}
    assert not bed.switches.put(KEY, recent_kernel=-1, switch=0)
    assert contents(bed.root) == before


@pytest.mark.parametrize(
    "make", [make for make in STRANGE if make not in (two_of_them, many_files, link)],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_nor_is_one_that_becomes_it_after_it_was_opened(
    bed: Bed, make: Callable[[Bed], None]
) -> None:
    """What is open stays what it was, or is let go; what took its place is not touched."""
    hami_region(bed.region, GPU_A)
    bed.switches.refresh()
    bed.region.unlink()
    make(bed)
    before = contents(bed.root)
    assert not bed.switches.put(KEY, recent_kernel=-1, switch=0)
    assert bed.switches.refresh() == {}
    assert contents(bed.root) == before


@pytest.mark.parametrize("size", [0, 11, 1856, V1["recent_kernel"]])
def test_one_that_is_cut_while_it_is_open_is_not_made_longer(bed: Bed, size: int) -> None:
    hami_region(bed.region, GPU_A)
    bed.switches.refresh()
    os.truncate(bed.region, size)
    assert not bed.switches.put(KEY, recent_kernel=-1)
    assert bed.activity(1) == ()
    assert bed.region.stat().st_size == size
    assert bed.switches.refresh() == {}


def test_a_device_is_not_even_opened(bed: Bed) -> None:
    if os.geteuid():
        pytest.skip("makes a device node: run it as root")
    try:
        os.mknod(bed.region, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    assert bed.switches.refresh() == {}


HEADERS = st.binary(max_size=2048) | st.builds(
    lambda major, rest: struct.pack("<iI", MAGIC, major) + rest,
    st.integers(0, 2),
    st.binary(max_size=2048),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(HEADERS, st.integers(0, FILE_BYTES + 10), st.binary(max_size=16))
def test_any_bytes_are_borne(bed: Bed, header: bytes, size: int, trailer: bytes) -> None:
    layout = layout_of(size, header)
    if layout is not None:
        words = words_of(layout, header, trailer)
        assert words is None or len(words.devices) == len(words.core_permille) == 16
    with bed.region.open("wb") as file:
        file.write(header)
        file.truncate(size)
    for words in bed.switches.refresh().values():
        assert all(0 < permille <= 1000 for permille in words.core_permille)
