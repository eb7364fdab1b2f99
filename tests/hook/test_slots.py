"""Whose slot may be given to somebody else, and when one looks."""

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from built_hook import ROOT, built, compiler
from hooked_programs import LIMIT, Node
from region_files import (
    FILE_BYTES,
    FIRST_SLOT,
    OWNER_AT,
    SLOT_BYTES,
    SLOT_COUNT_AT,
    STATUS_AT,
    USED_AT,
    USED_BYTES,
    RegionFile,
)
from tenants import tenants
from waiting import eventually

MIB = 1 << 20
UNLOCKED, READY, TIME_SHIFT, STARTED = 1 << 22, 1 << 23, 24, 1234
NOBODY = (1 << 22) - 1  # no pid, by default
F_OFD_SETLK = 37
HERE = Path("/proc/self/ns/pid").stat().st_ino


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """region_slots.c on a double of process.c."""
    path = tmp_path_factory.mktemp("slots") / "slots.so"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, "-I.", "-shared", "region_slots.c",
         "../tests/hook/process_double.c", "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    return ctypes.CDLL(str(path))


@contextmanager
def locked(path: Path, at: int) -> Iterator[None]:
    """Somebody holds the lock on a byte, by an open file."""
    with path.open("r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        fcntl.fcntl(file.fileno(), F_OFD_SETLK, lock)
        yield


@pytest.mark.parametrize(
    ("pid", "flags", "namespace", "lock", "process", "freed"),
    [
        pytest.param(os.getpid(), READY, HERE, "free", "alive", True, id="lock free"),
        pytest.param(
            os.getpid(), READY, HERE, "free", "exiting", False,
            id="lock free, but its GPU memory may not be",
        ),
        pytest.param(
            os.getpid(), READY, HERE ^ 1, "free", "exiting", True,
            id="lock free, and a stranger has its pid",
        ),
        pytest.param(os.getpid(), READY, HERE, "held", "alive", False, id="lock held"),
        pytest.param(
            NOBODY, READY, HERE, "held", "gone", True, id="lock held by a child of it, no memory"
        ),
        pytest.param(
            os.getpid(), READY, HERE, "held", "gone", True,
            id="the same, and it is a zombie or its pid is another's",
        ),
        pytest.param(
            NOBODY, READY, HERE ^ 1, "held", "gone", False,
            id="lock held in another pid namespace",
        ),
        pytest.param(
            NOBODY, 0, HERE, "held", "gone", False, id="lock held, namespace not known yet"
        ),
        pytest.param(
            os.getpid(), READY | UNLOCKED, HERE, "free", "gone", True, id="no locks, gone"
        ),
        pytest.param(
            os.getpid(), READY | UNLOCKED, HERE, "free", "alive", False, id="no locks, alive"
        ),
        pytest.param(
            os.getpid(), READY | UNLOCKED, HERE ^ 1, "free", "gone", False,
            id="no locks, in another pid namespace",
        ),
        pytest.param(
            os.getpid(), UNLOCKED, HERE, "free", "gone", True, id="no locks, not ready, gone"
        ),
        pytest.param(
            os.getpid(), READY, HERE, "no file", "gone", True, id="no file, gone"
        ),
        pytest.param(
            os.getpid(), READY, HERE, "no file", "exiting", False, id="no file, alive"
        ),
        pytest.param(
            os.getpid(), READY, 0, "no file", "gone", False,
            id="no file, of a pid namespace whose /proc it did not have",
        ),
        pytest.param(
            os.getpid(), READY | UNLOCKED, 0, "free", "gone", False, id="the same, no locks"
        ),
    ],
)  # fmt: skip
def test_only_the_dead_lose_their_slot(
    slots: ctypes.CDLL, tmp_path: Path, pid: int, flags: int, namespace: int, lock: str,
    process: str, freed: bool,
) -> None:  # fmt: skip
    ctypes.c_bool.in_dll(slots, "said_exiting").value = process == "exiting"
    ctypes.c_bool.in_dll(slots, "said_gone").value = process == "gone"
    region = ctypes.create_string_buffer(FILE_BYTES)
    owner = pid | flags | STARTED << TIME_SHIFT
    struct.pack_into("<Q", region, FIRST_SLOT + OWNER_AT, owner)
    struct.pack_into("<iI", region, FIRST_SLOT + STATUS_AT, 1, namespace & 0xFFFFFFFF)
    struct.pack_into("<i", region, SLOT_COUNT_AT, 1)
    path = tmp_path / "region"
    path.touch()
    other = "elsewhere" if lock != "held" else "region"
    path.with_name("elsewhere").touch()
    with path.open("r+b") as file, locked(path.with_name(other), FILE_BYTES):
        found = slots.slots_sweep(region, -1 if lock == "no file" else file.fileno())
    assert (found == 1) is freed
    left = struct.unpack_from("<Q", region, FIRST_SLOT + OWNER_AT)[0]
    status = struct.unpack_from("<i", region, FIRST_SLOT + STATUS_AT)[0]
    assert (left, status) == ((0, 0) if freed else (owner, 1))


@pytest.mark.parametrize(
    ("flags", "namespace", "lock", "freed"),
    [
        pytest.param(READY, HERE, "region", True, id="of this pid namespace, a child has its lock"),
        pytest.param(
            READY, HERE ^ 1, "region", False, id="of another, with the same pid and start time"
        ),
        pytest.param(
            READY, HERE, "elsewhere", True,
            id="a sweeper that found it dead may be about to free it",
        ),
        pytest.param(READY | UNLOCKED, HERE, "elsewhere", True, id="no locks"),
        pytest.param(READY | UNLOCKED, HERE ^ 1, "elsewhere", False, id="no locks, of another"),
        pytest.param(READY | UNLOCKED, 0, "elsewhere", False, id="no locks, of whichever"),
    ],
)  # fmt: skip
def test_what_is_ours_from_before_an_exec_is_freed_and_not_taken_anew(
    slots: ctypes.CDLL, tmp_path: Path, flags: int, namespace: int, lock: str, freed: bool
) -> None:
    ctypes.c_bool.in_dll(slots, "said_gone").value = False
    region = ctypes.create_string_buffer(FILE_BYTES)
    owner = os.getpid() | flags | STARTED << TIME_SHIFT
    struct.pack_into("<Q", region, FIRST_SLOT + OWNER_AT, owner)
    struct.pack_into("<iI", region, FIRST_SLOT + STATUS_AT, 1, namespace & 0xFFFFFFFF)
    struct.pack_into("<i", region, SLOT_COUNT_AT, 1)
    path = tmp_path / "region"
    path.write_bytes(bytes(FILE_BYTES))
    path.with_name("elsewhere").touch()
    slots.slot_take.restype = ctypes.c_void_p
    before = ctypes.c_bool()
    with path.open("r+b") as file, locked(path.with_name(lock), FILE_BYTES):
        taken = slots.slot_take(region, file.fileno(), ctypes.byref(before))
    left = struct.unpack_from("<Q", region, FIRST_SLOT + OWNER_AT)[0]
    assert taken == ctypes.addressof(region) + FIRST_SLOT + SLOT_BYTES
    assert (before.value, left) == (freed, 0 if freed else owner)


def test_nothing_of_an_earlier_process_is_left_in_a_slot_that_is_taken(
    slots: ctypes.CDLL, tmp_path: Path
) -> None:
    """Above all no odd sequence number of HAMi-core's, which its readers would wait for."""
    region = ctypes.create_string_buffer(FILE_BYTES)
    ctypes.memset(ctypes.byref(region, FIRST_SLOT), 0xFF, SLOT_BYTES)
    struct.pack_into("<i", region, FIRST_SLOT + STATUS_AT, 0)
    struct.pack_into("<Q", region, FIRST_SLOT + OWNER_AT, 0)
    path = tmp_path / "region"
    path.write_bytes(bytes(FILE_BYTES))
    slots.slot_take.restype = ctypes.c_void_p
    with path.open("r+b") as file:
        taken = slots.slot_take(region, file.fileno(), ctypes.byref(ctypes.c_bool()))
    assert taken == ctypes.addressof(region) + FIRST_SLOT
    slot = region.raw[FIRST_SLOT : FIRST_SLOT + SLOT_BYTES]
    used, monitor_used = slot[USED_AT : USED_AT + 16 * USED_BYTES], slot[1032:1160]
    utilisation = struct.pack("<32xQ8x", STARTED) * 16  # who counts there from now on
    assert (used, monitor_used) == (bytes(16 * USED_BYTES), bytes(128))
    assert slot[1160:STATUS_AT] == utilisation
    named = struct.unpack_from("<ii", slot), struct.unpack_from("<iIQQ", slot, STATUS_AT)
    assert named == ((os.getpid(), 0), (1, HERE & 0xFFFFFFFF, 0, STARTED))


# --- HAMi-core's, which have no owner word, and those of before an exec ---------------------------

TOTAL_AT = USED_AT + 32


class Holdings(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint64), ("settled", ctypes.c_bool),
                ("largest_bytes", ctypes.c_uint64), ("largest_pid", ctypes.c_int32))  # fmt: skip


def take(slots: ctypes.CDLL, region: ctypes.Array[ctypes.c_char], path: Path) -> int:
    """The number of the slot that this process is given."""
    path.write_bytes(bytes(FILE_BYTES))
    slots.slot_take.restype = ctypes.c_void_p
    with path.open("r+b") as file:
        taken = slots.slot_take(region, file.fileno(), ctypes.byref(ctypes.c_bool()))
    return int(taken - ctypes.addressof(region) - FIRST_SLOT) // SLOT_BYTES


def test_a_slot_of_hami_cores_is_not_taken_and_counts(slots: ctypes.CDLL, tmp_path: Path) -> None:
    region = ctypes.create_string_buffer(FILE_BYTES)
    struct.pack_into("<i", region, FIRST_SLOT, 77)
    struct.pack_into("<Q", region, FIRST_SLOT + TOTAL_AT, 5 * MIB)
    struct.pack_into("<i", region, FIRST_SLOT + STATUS_AT, 1)
    struct.pack_into("<i", region, SLOT_COUNT_AT, 1)
    assert take(slots, region, tmp_path / "region") == 1
    slots.slots_hold.restype = Holdings
    held = slots.slots_hold(region, 0)
    assert (held.bytes, held.largest_bytes, held.largest_pid) == (5 * MIB, 5 * MIB, 77)
    assert struct.unpack_from("<i", region, FIRST_SLOT + STATUS_AT)[0] == 1


@pytest.mark.parametrize(
    ("namespace", "mib"), [(HERE, 5), (HERE ^ 1, 0)], ids=["ours", "another's"]
)
def test_what_a_process_held_before_an_exec_is_of_its_pid_namespace(
    slots: ctypes.CDLL, tmp_path: Path, namespace: int, mib: int
) -> None:
    region = ctypes.create_string_buffer(FILE_BYTES)
    assert take(slots, region, tmp_path / "region") == 0
    second = FIRST_SLOT + SLOT_BYTES
    owner = struct.unpack_from("<Q", region, FIRST_SLOT + OWNER_AT)[0]
    struct.pack_into("<Q", region, second + OWNER_AT, owner)
    struct.pack_into("<iI", region, second + STATUS_AT, 1, namespace & 0xFFFFFFFF)
    struct.pack_into("<Q", region, second + TOTAL_AT, 5 * MIB)
    struct.pack_into("<i", region, SLOT_COUNT_AT, 2)
    slots.slots_before_bytes.restype = ctypes.c_uint64
    assert slots.slots_before_bytes(region, 0) == mib * MIB


# --- when one looks -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coarse_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC",
         "coarse_clock.c", "-o", str(path)],
        cwd=ROOT / "tests" / "hook", check=True, capture_output=True,
    )  # fmt: skip
    return path


def test_the_dead_are_looked_for_every_tenth_of_a_second_and_not_more_often(
    node: Node, coarse_clock: Path
) -> None:
    """Who only asks how much is left hears of a death within that, without being refused."""
    code = (
        "import sys, time\n"
        "start()\n"
        f"clock = ctypes.c_longlong.in_dll(ctypes.CDLL({str(coarse_clock)!r}), 'shown_ns')\n"
        "began = time.monotonic_ns() + 10**9\n"
        "def used_at(ms): clock.value = began + ms * 10**6; return used_mib()\n"
        "before = used_at(0)\n"
        "print('looked', flush=True); sys.stdin.readline()\n"
        "say(before=before, soon=used_at(99), then=used_at(101))"
    )
    env = {LIMIT: "1000m", "LD_PRELOAD": f"{coarse_clock}:{built() / 'libvgpu.so'}"}
    with tenants(node, 1, **{LIMIT: "1000m"}) as (victim,):
        assert victim.ask("alloc 900")["ok"]
        watcher = node.start(code, env=env)
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "looked\n"
    out, _ = watcher.communicate("\n", timeout=60)
    assert out.strip() == '{"before": 900, "soon": 900, "then": 0}'


# --- what a slot shows ----------------------------------------------------------------------------


def test_what_was_refused_by_the_ledger_is_not_left_in_the_slot(node: Node) -> None:
    """A ledger that somebody wrote full refuses, until it is put right by what the slots say."""
    node.run("start()")
    with node.cache.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", (1 << 48) - 1), 2031616 + 64)
    code = (
        "import os\nstart(); given = alloc(10)[0]; print(given, os.getpid(), flush=True); input()"
    )
    program = node.start(code)
    assert program.stdout is not None
    given, pid = map(int, program.stdout.readline().split())
    region = RegionFile(node.cache)
    program.communicate("\n", timeout=60)
    assert (given, region.ledger(), region.shown()[pid]) == (0, 10 * MIB, 10 * MIB)


def test_a_size_that_no_gpu_has_is_not_counted_for_a_moment(node: Node) -> None:
    """Where nothing is limited, too: what monitors show as the peak stays what was held."""
    said = node.run("start(); say(given=alloc(10)[0], absurd=alloc(1 << 25)[0])")
    assert (said["given"], said["absurd"]) == (0, 2)
    assert RegionFile(node.cache).counter("peak") == 10 * MIB


def test_who_lives_and_was_marked_free_shows_itself_again(node: Node) -> None:
    """By a sweeper that was stopped for long, perhaps; monitors skip such a slot."""
    with tenants(node, 1, **{LIMIT: "100m"}) as (only,):
        assert only.ask("alloc 10")["ok"]
        with node.cache.open("r+b") as file:
            os.pwrite(file.fileno(), bytes(4), FIRST_SLOT + STATUS_AT)
        assert RegionFile(node.cache).shown() == {}
        shown = {only.process.pid: 10 * MIB}
        eventually(lambda: only.ask("info") and RegionFile(node.cache).shown() == shown)


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(0, id="taken away"),
        pytest.param(1 | READY | STARTED << TIME_SHIFT, id="given to another"),
    ],
)
def test_whose_slot_is_not_its_own_any_more_gets_nothing_and_gives_back_nothing(
    node: Node, owner: int
) -> None:
    """What it holds does not count there; what is counted there is not what it held."""
    code = (
        "import os\n"
        "start(); first, address = alloc(10)\n"
        f"fd = os.open({str(node.cache)!r}, os.O_RDWR)\n"
        f"os.pwrite(fd, {struct.pack('<Q', owner)!r}, {FIRST_SLOT + OWNER_AT})\n"
        f"def used(): return os.pread(fd, {USED_BYTES}, {FIRST_SLOT + USED_AT})\n"
        "before = used()\n"
        "say(first=first, second=alloc(10)[0], freed=free(address), third=alloc(10)[0],\n"
        "    same=used() == before)"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert said["rc"] == 0, said["stderr"]
    assert [said[name] for name in ("first", "second", "freed", "third")] == [0, 2, 0, 2]
    assert said["same"]
