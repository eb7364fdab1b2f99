"""The launcher of the single file: what it becomes, what it unpacks, and what is left of that."""

import fcntl
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundling.single_file import TRAILER
from launcher_bed import BOOT_ID, IN_NAMESPACE, Bed, needs_root, refuse_locks
from waiting import eventually

NOBODY = 65534


def test_it_becomes_the_program_with_its_arguments(bed: Bed) -> None:
    program = bed.made()

    first = bed.run(program, "a", "b c", "")
    again = bed.run(program, "a", "b c", "")

    [folder] = bed.unpacked()
    assert first.stdout == again.stdout == f"{folder}/vgpu-agent a b c \n"
    boot = BOOT_ID.read_text().replace("-", "")[:16]
    assert re.fullmatch(rf"vgpu-agent-1\.2\.3-[0-9a-f]{{16}}-{boot}", folder.name)
    assert (folder / "deep" / "er" / "text").read_text() == "first"
    assert first.stderr == again.stderr == ""


def test_it_is_one_process_and_passes_on_how_it_ended(bed: Bed) -> None:
    program = bed.made()
    process = bed.start(program)
    assert Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[1].endswith(b"/program")
    assert not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)

    assert process.returncode == -signal.SIGTERM
    assert bed.run(program, "exit", "42").returncode == 42


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "deep/er/text").unlink(), id="a file is gone"),
        pytest.param(lambda folder: (folder / "vgpu-agent").write_text(""), id="a file is empty"),
        pytest.param(lambda folder: os.truncate(folder / "padding", 299_999), id="a byte is gone"),
        pytest.param(lambda folder: (folder / "more").write_text(""), id="a file too many"),
    ],
)
def test_a_folder_that_is_not_whole_is_made_anew(
    bed: Bed, damage: Callable[[Path], object]
) -> None:
    program = bed.made()
    bed.run(program)
    [folder] = bed.unpacked()
    damage(folder)

    assert bed.run(program, "x").stdout == f"{folder}/vgpu-agent x\n"

    assert bed.unpacked() == [folder]
    assert (folder / "deep" / "er" / "text").read_text() == "first"
    assert not (folder / "more").exists()


def test_what_is_not_whole_stays_under_its_name_with_those_who_run_it(bed: Bed) -> None:
    """They come back to it by its path, so no other folder may get its name, which nobody keeps."""
    program, other = bed.made(), bed.made("other", "other")
    running = bed.start(program)
    [folder] = bed.unpacked()
    inode = folder.stat().st_ino
    (folder / "padding").unlink()

    second = bed.start(program)
    assert bed.run(other).returncode == 0
    assert len(bed.unpacked()) == 3
    second.communicate("\n", timeout=10)
    assert bed.run(other).returncode == 0
    assert len(bed.unpacked()) == 2
    assert folder.stat().st_ino == inode
    assert (folder / "deep" / "er" / "text").read_text() == "first"

    running.communicate("\n", timeout=10)
    assert bed.run(program).returncode == 0
    assert folder in bed.unpacked()
    assert (folder / "padding").exists()


def test_what_is_not_whole_and_in_use_never_stops_a_start(bed: Bed) -> None:
    program = bed.made()
    running = []
    for _ in range(3):
        running.append(bed.start(program))
        for folder in bed.unpacked():
            (folder / "padding").unlink(missing_ok=True)
    assert len(bed.unpacked()) == 3
    for process in running:
        process.communicate("\n", timeout=10)
    assert bed.run(program).returncode == 0
    assert len(bed.unpacked()) == 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="stops a start half-way with strace")
def test_who_is_as_fast_as_another_takes_nothing_from_it(bed: Bed) -> None:
    """Both have unpacked; one is held where it is about to give the folder its name."""
    program, other, calls = bed.made(), bed.made("other", "other"), bed.root / "calls"
    held = ["strace", "-o", calls, "-e", "trace=renameat", "-e", "inject=renameat:delay_enter=2s"]
    second = subprocess.Popen([*held, program], env=bed.environment, stdout=subprocess.DEVNULL)
    eventually(lambda: calls.exists() and "renameat" in calls.read_text())
    running = bed.start(program)
    [folder] = (path for path in bed.unpacked() if not path.name.startswith("."))
    inode = folder.stat().st_ino

    assert second.wait(30) == 0
    assert bed.run(other).returncode == 0

    assert folder.stat().st_ino == inode
    assert (folder / "deep" / "er" / "text").read_text() == "first"
    running.communicate("\n", timeout=10)


def test_many_that_start_at_once_share_one_folder(bed: Bed) -> None:
    program = bed.made(padding=5_000_000)
    started = [
        subprocess.Popen([program, "x"], env=bed.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]

    assert {process.communicate(timeout=60)[0] for process in started} == {
        f"{bed.unpacked()[0]}/vgpu-agent x\n"
    }
    assert {process.returncode for process in started} == {0}
    assert len(bed.unpacked()) == 1


def test_an_older_folder_stays_while_it_is_run_and_goes_after(bed: Bed) -> None:
    old, new, newest = bed.made("old", "old"), bed.made("new", "new"), bed.made("newest", "newest")
    running = bed.start(old)
    [of_old] = bed.unpacked()
    bed.run(new)
    assert of_old in bed.unpacked()
    assert (of_old / "deep" / "er" / "text").read_text() == "old"

    running.communicate("\n", timeout=10)
    bed.run(newest)

    [left] = bed.unpacked()
    assert (left / "deep" / "er" / "text").read_text() == "newest"


def test_who_finds_the_folder_shares_its_lock_as_well(bed: Bed) -> None:
    old, new = bed.made("old", "old"), bed.made("new", "new")
    bed.run(old)
    [of_old] = bed.unpacked()
    running = bed.start(old)
    bed.run(new)

    assert of_old in bed.unpacked()
    running.communicate("\n", timeout=10)


def test_it_adds_one_open_file_and_nothing_else_to_the_program(bed: Bed) -> None:
    """The one is the folder, whose lock it keeps."""
    program = bed.made()
    for _ in ("unpacked", "found"):
        running = bed.start(program)
        open_files = Path(f"/proc/{running.pid}/fd")
        numbers = {int(number.name) for number in open_files.iterdir()} - {10, 255}  # of shells
        [lock] = numbers - {0, 1, 2}
        assert open_files.joinpath(str(lock)).readlink() == bed.unpacked()[0]
        running.communicate("\n", timeout=10)
    seen = bed.run(program, "eval", "env").stdout.splitlines()
    shells = ("_=", "PWD=", "OLDPWD=", "SHLVL=")
    assert {line for line in seen if not line.startswith(shells)} == {
        f"{name}={value}" for name, value in bed.environment.items()
    }


def test_where_nothing_can_be_locked_it_says_so_and_leaves_nothing(bed: Bed) -> None:
    """As on some network file systems."""
    ended = bed.run(bed.made(), preexec_fn=refuse_locks)
    assert ended.returncode == 2
    assert f"{bed.place}: a folder in it cannot be locked" in ended.stderr
    assert bed.unpacked() == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_closed_stays_closed(bed: Bed, closed: str) -> None:
    """And none of our files comes to have its number: what is printed must not go there."""
    program = bed.made()
    told = bed.root / "told"
    for _ in ("unpacked", "found"):
        bed.run("sh", "-c", f"{program} eval '(ls /proc/$$/fd >{told})' {closed}")
        opened = {int(number) for number in told.read_text().split()}
        shut = {"<&-": 0, ">&-": 1, "2>&-": 2}
        assert opened & {0, 1, 2} == {0, 1, 2} - {shut[one] for one in closed.split()}


def test_killed_while_it_unpacks_the_next_start_removes_what_it_left(bed: Bed) -> None:
    program = bed.made()
    for _ in range(3):
        killed = "ulimit -c 0; ulimit -f 100; exec " + str(program)  # the kernel does, half-way
        assert bed.run("sh", "-c", killed).returncode == -signal.SIGXFSZ
        [half] = bed.unpacked()
        assert half.name.startswith(".making-")

    assert bed.run(program).returncode == 0
    [folder] = bed.unpacked()
    left = bed.place / ".making-0123456789abcdef"
    left.mkdir()
    assert bed.run(program).returncode == 0
    assert bed.unpacked() == [folder], "a start that has nothing to unpack removes it, too"


def test_what_another_unpacks_is_not_touched(bed: Bed) -> None:
    """Wherever the other runs: its number may be the same as ours in another container."""
    program = bed.made()
    bed.place.mkdir(parents=True)
    making = bed.place / ".making-0123456789abcdef"
    making.mkdir()
    (making / "half").write_text("")
    with locked(making, fcntl.LOCK_SH):
        assert bed.run(program).returncode == 0
        assert (making / "half").exists()
    assert bed.run(program).returncode == 0
    assert not making.exists()


@needs_root
def test_first_starts_as_process_1_of_several_containers_share_one_folder(bed: Bed) -> None:
    program = bed.made(padding=20_000_000)
    own = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", str(program), "x")
    started = [
        subprocess.Popen(own, env=bed.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    told = {process.communicate(timeout=60)[0] for process in started}
    assert told == {f"{bed.unpacked()[0]}/vgpu-agent x\n"}
    assert len(bed.unpacked()) == 1


@contextmanager
def locked(folder: Path, how: int) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


@needs_root
@pytest.mark.parametrize(
    ("next_boot", "same"),
    [
        pytest.param(str(BOOT_ID), True, id="the same boot"),
        pytest.param("/dev/null", False, id="a kernel that does not tell"),
        pytest.param("01234567-89ab-cdef-0123-456789abcdef\n", False, id="the next boot"),
    ],
)
def test_what_a_power_cut_may_have_spoiled_is_not_run(bed: Bed, next_boot: str, same: bool) -> None:
    """Nothing was flushed to the disk: sizes may be right and contents not."""
    program = bed.made()
    bed.run(program)
    [first] = bed.unpacked()
    (first / "deep" / "er" / "text").write_text("\0\0\0\0\0")
    if not next_boot.startswith("/"):
        (bed.root / "boot_id").write_text(next_boot)
        next_boot = str(bed.root / "boot_id")

    mount = f"mount --bind {next_boot} {BOOT_ID}; exec {program}"
    assert bed.run(*IN_NAMESPACE, mount).returncode == 0

    [folder] = bed.unpacked()
    assert (folder == first) is same
    assert ((folder / "deep" / "er" / "text").read_text() == "first") is not same


def test_the_sum_is_looked_at_even_when_the_last_file_was_whole(bed: Bed) -> None:
    """Where the archive ends with what is unpacked in one go, its last zeros and the sum remain."""
    once, padding = 1 << 17, 300_032
    program = bed.made("first", padding=padding)
    _, front, size, *_ = TRAILER.unpack(program.read_bytes()[-TRAILER.size :])
    archive = gzip.decompress(program.read_bytes()[front : front + size])
    end = (len(archive.rstrip(b"\0")) + 511) // 512 * 512 + 512
    data = bytearray(bed.made(padding=padding + -end % once).read_bytes())
    data[-TRAILER.size - 8] ^= 1
    (program := bed.root / "damaged").write_bytes(data)
    program.chmod(0o755)

    assert "the file is damaged" in bed.run(program).stderr


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda data: data[:-1], "its end is missing", id="a byte short"),
        pytest.param(lambda data: data[: len(data) // 2], "its end is missing", id="half of it"),
        pytest.param(
            lambda data: data[: -TRAILER.size] + b"\0" * TRAILER.size, "its end is missing",
            id="an empty trailer",
        ),
        pytest.param(
            lambda data: data[: -TRAILER.size] + b"VGPUONE2" + b"\xff" * (TRAILER.size - 8),
            "its end is missing", id="a trailer of ones",
        ),
        pytest.param(
            lambda data: (
                data[: -TRAILER.size - 8] + bytes([data[-TRAILER.size - 8] ^ 1])
                + data[-TRAILER.size - 7 :]
            ), "the file is damaged", id="the sum at its end",
        ),
        pytest.param(
            lambda data: (
                data[: -TRAILER.size - 50_000] + b"\0" * 50_000 + data[-TRAILER.size :]
            ), "the file is damaged", id="zeros in the payload",
        ),
        pytest.param(
            lambda data: (
                data[: -TRAILER.size - 5_000] + bytes([data[-TRAILER.size - 5_000] ^ 1])
                + data[-TRAILER.size - 4_999 :]
            ), "the file is damaged", id="one bit of the payload",
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_says_so_and_leaves_nothing(
    bed: Bed, damage: Callable[[bytes], bytes], told: str
) -> None:
    program = bed.made()
    program.write_bytes(damage(program.read_bytes()))

    ended = bed.run(program)

    assert ended.returncode == 2
    assert told in ended.stderr
    assert bed.unpacked() == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("{outside}", "the file is damaged", id="from the root"),
        pytest.param("../../outside", "the file is damaged", id="upwards"),
        pytest.param("program", "File exists", id="one that there is"),
    ],
)
def test_a_name_in_the_payload_cannot_lead_to_anything_but_a_new_file(
    bed: Bed, name: str, told: str
) -> None:
    outside = bed.root / "outside"
    program = bed.made()
    data = program.read_bytes()
    magic, front, size, *rest = TRAILER.unpack(data[-TRAILER.size :])
    payload = gzip.decompress(data[front : front + size])
    at = payload.index(b"vgpu-agent\0")
    evil = name.format(outside=outside).encode().ljust(100, b"\0")[:100]
    packed = gzip.compress(payload[:at] + evil + payload[at + 100 :])
    program.write_bytes(data[:front] + packed + TRAILER.pack(magic, front, len(packed), *rest))

    assert told in bed.run(program).stderr
    assert not outside.exists()
    assert bed.unpacked() == []


@needs_root
def test_it_is_init_of_a_container(bed: Bed, tmp_path: Path) -> None:
    """PID 1 of a namespace with a root of nothing but the file, a shell for the script, and /proc."""
    program = bed.made()
    ended = bed.run(
        "unshare", "--mount", "--pid", "--fork", "--mount-proc", program, "seen"
    )  # the script behind the launcher needs a shell, so the root stays

    assert ended.stdout.endswith(" seen\n"), ended.stderr


def test_the_trailer_has_the_size_that_the_launcher_reads() -> None:
    assert TRAILER.size == 8 + 4 * 8 + 64
    assert sys.byteorder == "little"
