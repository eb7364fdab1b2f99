"""The usage region at the first use of CUDA: what each state of the file does."""

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from built_hook import built
from c_programs import library
from hooked_programs import LIMIT, Node
from region_files import (
    FILE_BYTES,
    FIRST_SLOT,
    REFUSAL_BYTES,
    REFUSALS_AT,
    REGION_BYTES,
    TAIL_AT,
    USED_AT,
    RegionFile,
)
from tenants import tenants

MADE, REFUSED = 0, 304  # CUDA_SUCCESS, CUDA_ERROR_OPERATING_SYSTEM
START = "say(init=cuda.cuInit(0))"


def hami_file(major: int = 1, size: int = REGION_BYTES + 1) -> bytes:
    """An unused region as HAMi-core leaves it."""
    return struct.pack("<iII", 19920718, major, 2).ljust(size, b"\0")


def full_file_of_zeros(path: Path) -> None:
    """Its maker was killed before it wrote anything."""
    path.touch()
    os.truncate(path, FILE_BYTES)


def a_socket(path: Path) -> None:
    where = os.open(path.parent, os.O_PATH)  # a socket's own path has to be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{where}/{path.name}")
    os.close(where)


def linked(path: Path) -> None:
    path.with_name("precious").write_text("keep me")
    path.symlink_to(path.with_name("precious"))


@pytest.mark.parametrize(
    ("make", "result", "complaint"),
    [
        pytest.param(lambda _: None, MADE, "", id="absent"),
        pytest.param(Path.touch, MADE, "", id="empty"),
        pytest.param(full_file_of_zeros, MADE, "", id="never written"),
        pytest.param(lambda p: p.write_bytes(hami_file()), MADE, "", id="HAMi-core's"),
        pytest.param(
            lambda p: p.write_bytes(hami_file(major=2)), REFUSED,
            "it is a usage region of another layout", id="another major version",
        ),
        *(
            pytest.param(
                lambda p, size=size: p.write_bytes(hami_file(size=size)), REFUSED,
                "it is a usage region of another layout", id=f"fields moved, {size} bytes",
            )
            for size in (2008984, 2008985)
        ),
        pytest.param(
            lambda p: p.write_bytes(hami_file(size=1197897)), REFUSED,
            "it is too short for a usage region", id="HAMi-core's version 0",
        ),
        pytest.param(
            lambda p: p.write_bytes(hami_file(size=4096)), REFUSED,
            "it is too short for a usage region", id="truncated",
        ),
        pytest.param(
            lambda p: p.write_bytes(b"something else, as long as one".ljust(FILE_BYTES, b".")),
            REFUSED, "it is not a usage region", id="foreign",
        ),
        pytest.param(os.mkfifo, REFUSED, "it is not a regular file", id="fifo"),
        pytest.param(Path.mkdir, REFUSED, "Is a directory", id="directory"),
        pytest.param(a_socket, REFUSED, "No such device or address", id="socket"),
        pytest.param(linked, REFUSED, "Too many levels of symbolic links", id="link"),
    ],
)  # fmt: skip
def test_a_file_is_made_or_taken_over_or_cuda_does_not_start(
    node: Node, make: Callable[[Path], None], result: int, complaint: str
) -> None:
    make(node.cache)
    was = node.cache.read_bytes() if node.cache.is_file() else None
    said = node.run(START, **{LIMIT: "1g", "LIBCUDA_LOG_LEVEL": "1"})
    assert (said["init"], said["rc"]) == (result, 0)
    assert complaint in said["stderr"]
    assert bool(complaint) == (str(node.cache) in said["stderr"])
    if result == MADE:
        assert node.cache.stat().st_size == FILE_BYTES
        assert node.cache.stat().st_mode & 0o777 == 0o666
    elif was is not None:
        assert node.cache.read_bytes() == was


def test_a_signal_while_it_is_made_does_not_stop_cuda(node: Node) -> None:
    """Of some file systems the call ends at any; the program may have a profiler's timer."""
    interrupted = library("interrupt.c", "-ldl", name="libinterrupt.so")
    preload = f"{interrupted}:{built() / 'libvgpu.so'}"
    code = f"{START[:-1]}, calls=ctypes.c_int.in_dll(ctypes.CDLL({str(interrupted)!r}), 'calls').value)"
    said = node.run(code, **{LIMIT: "1g", "LD_PRELOAD": preload})
    assert (said["init"], said["stderr"]) == (0, "")
    assert said["calls"] > 1, "the case must meet what it is about"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"something else".ljust(FILE_BYTES, b"."), id="foreign"),
        pytest.param(hami_file(size=2008984), id="HAMi-core's with fields elsewhere"),
    ],
)
def test_what_is_not_a_region_stays_as_it_is(node: Node, content: bytes) -> None:
    node.cache.write_bytes(content)
    linked(node.cache.with_name("other.cache"))
    for cache in (node.cache, node.cache.with_name("other.cache")):
        node.run(START, **{LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache)})
    assert node.cache.read_bytes() == content
    assert node.cache.with_name("precious").read_text() == "keep me"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/no/such/directory/region.cache", id="no directory"),
        pytest.param("/sys/region.cache", id="not writable"),
        pytest.param("/dev/null", id="a device"),
        pytest.param("/" + "x" * 4096, id="a path too long to keep"),
    ],
)
def test_a_place_that_no_file_can_be_made_in_stops_cuda(node: Node, path: str) -> None:
    env = {LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": path, "LIBCUDA_LOG_LEVEL": "1"}
    said = node.run("say(init=cuda.cuInit(0), alloc=alloc(1)[0])", **env)
    assert said["init"] in {1, REFUSED}
    assert said["alloc"] != 0
    assert said["rc"] == 0
    assert said["stderr"]


@contextmanager
def disk(tmp_path: Path, kind: str, *options: str) -> Iterator[Path]:
    """A file system of its own."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", kind, *options, kind, where], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_stops_cuda_and_not_the_program(node: Node, tmp_path: Path) -> None:
    with disk(tmp_path, "tmpfs", "-o", "size=1m") as where:
        env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(where / "r"), "LIBCUDA_LOG_LEVEL": "1"}
        said = node.run(START, **{LIMIT: "1g", **env})
    assert (said["init"], said["rc"]) == (REFUSED, 0)
    assert said["stderr"].endswith("No space left on device; free some on the node\n")


def test_a_disk_that_is_full_later_ends_nobody(node: Node, tmp_path: Path) -> None:
    """Writing into a page without a block would be a SIGBUS, for the 40th as for the first."""
    with disk(tmp_path, "tmpfs", "-o", "size=3m") as where:
        env = {LIMIT: "1000m", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(where / "r.cache")}
        assert node.run(START, **env)["init"] == MADE
        with contextlib.suppress(OSError), (where / "rest").open("wb", buffering=0) as rest:
            while rest.write(bytes(4096)):
                pass
        with tenants(node, 40, **env) as some:
            assert all(tenant.ask("alloc 20")["ok"] for tenant in some)
            assert some[0].ask("alloc 500")["result"] == 2


def test_a_file_system_that_cannot_set_blocks_aside_will_do(node: Node, tmp_path: Path) -> None:
    with disk(tmp_path, "ramfs") as where:
        cache = where / "r.cache"
        env = {LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache)}
        assert node.run("say(init=start(), given=alloc(1000)[0])", **env)["given"] == 0
        assert cache.stat().st_size == FILE_BYTES
        assert node.run("say(init=start(), given=alloc(1000)[0])", **env)["given"] == 0


def test_a_process_that_may_not_write_large_files_lives(node: Node) -> None:
    """Growing a file beyond that limit would end it by SIGXFSZ."""
    program = [sys.executable, "-c", "from cuda_calls import *\nimport signal\n"
               "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n" + START]  # fmt: skip
    env = node.environment(PYTHONDONTWRITEBYTECODE="1", **{LIMIT: "1g"})  # it would be cut off
    done = subprocess.run(
        program, env=env, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, '{"init": 304}')
    assert done.stderr.endswith("File too large; raise its limit (ulimit -f)\n")


PROTECTED = Path("/proc/sys/fs/protected_regular")


@pytest.mark.skipif(
    os.geteuid() != 0 or not PROTECTED.exists() or PROTECTED.read_text().strip() == "0",
    reason="only root gives files away, and this kernel may not mind who has made them",
)
def test_another_user_of_the_container_may_have_made_it(node: Node, tmp_path: Path) -> None:
    """In a directory like /tmp, where the default is, the kernel is asked not to make it again."""
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    cache = common / "region.cache"
    settings = {LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache)}
    assert node.run(START, **settings)["init"] == MADE
    os.chown(cache, 65534, 65534)
    again = node.run(START, **settings)
    assert (again["init"], again["stderr"]) == (MADE, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("result", [MADE, REFUSED], ids=["and opens it then", "and dies there"])
def test_another_users_file_may_be_closed_for_as_long_as_he_makes_it(
    node: Node, result: int
) -> None:
    """By his umask. Where he died it is refused, some seconds later."""
    asks = "from cuda_calls import *\nprint('asks', flush=True)\n" + START
    drop_bound, dac_override = 24, 1  # of prctl and capabilities: root then minds permissions
    code = (
        f"import os, sys\nlibc.prctl({drop_bound}, {dac_override}, 0, 0, 0)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {asks!r}])"
    )
    node.cache.touch(0o600)
    os.chown(node.cache, 65534, 65534)
    with node.start(code, env={LIMIT: "1g", "LIBCUDA_LOG_LEVEL": "1"}) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "asks\n"
        time.sleep(0.3)
        if result == MADE:
            node.cache.chmod(0o666)
        out, complaint = program.communicate(timeout=60)
    assert out == f'{{"init": {result}}}\n'
    assert ("Permission denied" in complaint) == (result == REFUSED)


def test_who_keeps_the_file_locked_stops_nobody(node: Node) -> None:
    """The lock is only needed to make the file and to add a device to it."""
    assert node.run("start(); say(given=alloc(1)[0])", **{LIMIT: "1g"})["given"] == 0
    with node.cache.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = node.run(
            "say(init=start(), given=alloc(1000)[0], more=alloc(100)[0])", **{LIMIT: "1g"}
        )
    assert (said["init"], said["given"], said["more"]) == (0, 0, 2)


def test_who_keeps_it_locked_before_it_was_made_stops_cuda_and_not_the_program(node: Node) -> None:
    """As a process that was stopped while it made the file: others wait 5 s for it."""
    code = (
        "import resource\n"
        "init = cuda.cuInit(0)\n"
        "say(init=init, waits=resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)"
    )
    with node.cache.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = node.run(code, **{LIMIT: "1g", "LIBCUDA_LOG_LEVEL": "1"})
    assert (said["init"], said["rc"]) == (REFUSED, 0)
    assert "another process keeps it locked" in said["stderr"]
    assert 50 < said["waits"] < 5000  # it looks again and again, but not all the time
    assert node.run(START, **{LIMIT: "1g"})["init"] == MADE


def test_many_first_processes_make_one_file(node: Node) -> None:
    with tenants(node, 64, **{LIMIT: "1g"}) as some:
        assert RegionFile(node.cache).owned() == 64
        assert set(RegionFile(node.cache).shown()) == {tenant.pid for tenant in some}


def test_a_process_more_than_there_are_places_for_is_refused(node: Node) -> None:
    """Places of the dead are given out again."""
    code = (
        "import os, time\n"
        "r, w = os.pipe()\n"
        "children = []\n"
        "for _ in range(1024):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        result = cuda.cuInit(0)\n"
        "        os.write(w, b'y' if result == 0 else b'n')\n"
        "        time.sleep(100)\n"
        "    children.append(child)\n"
        "answers = b''\n"
        "while len(answers) < 1024: answers += os.read(r, 1024)\n"
        "full = cuda.cuInit(0)\n"
        "os.kill(children[500], 9); os.waitpid(children.pop(500), 0)\n"
        "after = cuda.cuInit(0)\n"
        "[os.kill(c, 9) for c in children]\n"
        "say(started=answers.count(b'y'), full=full, after=after)"
    )
    said = node.run(code, **{LIMIT: "1g", "LIBCUDA_LOG_LEVEL": "1"})
    assert (said["started"], said["full"], said["after"]) == (1024, REFUSED, 0)
    assert "all its places are taken" in said["stderr"]


def test_a_refusal_is_on_record_with_who_holds_most(node: Node) -> None:
    with tenants(node, 2, **{LIMIT: "1000m"}) as (first, second):
        assert first.ask("alloc 700")["ok"]
        assert second.ask("alloc 200")["ok"]
        used = RegionFile(node.cache).ledger()
        assert second.ask("alloc 300")["result"] == 2
        assert second.ask("managed 400")["result"] == 2
        region = RegionFile(node.cache)
        records = region.refusals()
        assert [record.asked >> 20 for record in records] == [300, 400]
        assert [record.function for record in records] == ["cuMemAlloc_v2", "cuMemAllocManaged"]
        assert {(r.pid, r.place, r.used, r.limit >> 20) for r in records} == {
            (second.pid, 0, used, 1000)
        }
        assert {r.largest_pid for r in records} == {first.pid}
        assert {r.largest_bytes >> 20 for r in records} <= {700, *range(700, 1000)}
        assert region.counter("refusals") == 2
        assert region.counter("refused_bytes") == 700 << 20
        assert region.counter("peak") == used
        assert region.counter("underflows") == 0


def test_a_refusal_of_a_pool_says_what_was_asked_not_the_step_that_was_missing(node: Node) -> None:
    code = "from memory_calls import *\nstart()\n_, kept = alloc(30)\nsay(asked=[draw(5)[0], draw(6)[0]])"
    said = node.run(code, **{LIMIT: "40m"})
    region = RegionFile(node.cache)
    assert said["asked"] == [2, 2]
    assert [record.asked >> 20 for record in region.refusals()] == [5, 6]
    assert region.counter("refused_bytes") == 11 << 20


def test_what_is_hopeless_never_shows_as_held(node: Node) -> None:
    """Readers of the region, and who corrects the ledger by it, would take it for memory."""
    code = (
        "start()\nsay(pid=0)\nimport sys; sys.stdout.flush()\n"
        "for _ in range(20_000): alloc(5000)\n"
        "say(done=1)"
    )
    total_at = FIRST_SLOT + USED_AT + 32
    process = node.start(code, env={LIMIT: "1g"})
    try:
        assert process.stdout is not None
        process.stdout.readline()
        seen = set()
        with (
            node.cache.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
        ):
            while process.poll() is None:
                seen |= {raw[total_at : total_at + 8] for _ in range(1000)}
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert seen == {bytes(8)}


def test_only_the_newest_refusals_are_kept(node: Node) -> None:
    with tenants(node, 1, **{LIMIT: "100m"}) as (only,):
        only.tell("\n".join(f"alloc {200 + i}" for i in range(40)))
        assert {only.hear()["result"] for _ in range(40)} == {2}
        records = RegionFile(node.cache).refusals()
        assert [record.number for record in records] == list(range(9, 41))
        assert [record.asked >> 20 for record in records] == list(range(208, 240))


def test_a_program_that_closed_its_standard_error_does_not_write_into_the_region(
    node: Node,
) -> None:
    """The region is opened anew for each look at the dead, and gets the lowest number that is free."""
    code = (
        "import os, threading\n"
        "start()\n_, kept = alloc(90)\nos.close(2)\n"
        "ended = threading.Event()\nanswers = set()\n"
        "def complain():\n"
        "    while not ended.is_set():\n"
        "        try: os.write(2, b'W: a line for nobody')\n"
        "        except OSError as error: answers.add(error.errno)\n"
        "other = threading.Thread(target=complain)\nother.start()\n"
        "for _ in range(2000): alloc(90)\n"
        "ended.set()\nother.join()\n"
        "say(answers=sorted(answers), open=os.path.exists('/proc/self/fd/2'))"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert (said["answers"], said["open"]) == ([errno.EBADF], False)
    assert node.cache.read_bytes()[:4] == hami_file()[:4]
    assert node.run("say(init=cuda.cuInit(0))", **{LIMIT: "100m"})["init"] == 0


def test_signals_of_the_program_stay_its_own(node: Node) -> None:
    """A monitor's SIGUSR1 and SIGUSR2 end a program that does not expect them, as ever."""
    with tenants(node, 1, **{LIMIT: "100m"}) as (only,):
        only.end(signal.SIGUSR2)
        assert only.process.returncode == -signal.SIGUSR2


WRITING = 1 << 63


@pytest.mark.parametrize(
    ("before", "number", "written"),
    [
        pytest.param(6 | WRITING, 6, False, id="somebody writes it"),
        pytest.param(6 | WRITING, 6 + 3 * 32, False, id="somebody took long"),
        pytest.param(6 | WRITING, 6 + 4 * 32, True, id="its writer died"),
        pytest.param(6, 6 + 32, True, id="it is whole"),
    ],
)
def test_a_record_that_another_process_writes_is_left_to_it(
    node: Node, before: int, number: int, written: bool
) -> None:
    with tenants(node, 1, **{LIMIT: "100m"}) as (only,):
        with node.cache.open("r+b") as file:
            at = REFUSALS_AT + REFUSAL_BYTES * 5
            os.pwrite(file.fileno(), struct.pack("<QQ", before, 4711), at)
            os.pwrite(file.fileno(), struct.pack("<Q", number - 1), TAIL_AT + 16)
        assert only.ask("alloc 200")["result"] == 2
        (record,) = RegionFile(node.cache).refusals()
        assert RegionFile(node.cache).counter("refusals") == 1
    if written:
        assert (record.number, record.asked >> 20) == (number, 200)
        assert record.time_ns > 4711
    else:
        assert (record.number, record.time_ns, record.asked) == (before, 4711, 0)


def test_an_error_from_before_is_not_taken_for_the_reason(node: Node) -> None:
    """Errno stays as it is until something else fails."""
    node.cache.write_bytes(b"too short")
    code = (
        "import pynvml; pynvml.nvmlInit()\n"  # the limits have been looked for, which fails
        "pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))\n"
        "libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)\n"
        "error = libc.__errno_location()\n"
        "error[0] = 24; init = cuda.cuInit(0)\n"
        "say(init=init)"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert said["init"] == REFUSED
    assert said["stderr"].rstrip().endswith("delete what is no usage region")
