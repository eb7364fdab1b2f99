"""The launcher of the single file: what it becomes, what it unpacks, and what is left of that."""

import gzip
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling.single_file import TRAILER
from launcher_bed import BOOT_ID, IN_NAMESPACE, Bed, needs_root, refuse_locks

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
    process.communicate(timeout=60)

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


def test_an_older_folder_stays_while_it_is_run_and_goes_after(bed: Bed) -> None:
    old, new, newest = bed.made("old", "old"), bed.made("new", "new"), bed.made("newest", "newest")
    running = bed.start(old)
    [of_old] = bed.unpacked()
    bed.run(new)
    assert of_old in bed.unpacked()
    assert (of_old / "deep" / "er" / "text").read_text() == "old"

    running.communicate("\n", timeout=60)
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
    running.communicate("\n", timeout=60)


def test_it_adds_one_open_file_and_nothing_else_to_the_program(bed: Bed) -> None:
    """The one is the folder, whose lock it keeps."""
    program = bed.made()
    for _ in ("unpacked", "found"):
        running = bed.start(program)
        open_files = Path(f"/proc/{running.pid}/fd")
        numbers = {int(number.name) for number in open_files.iterdir()} - {10, 255}  # of shells
        [lock] = numbers - {0, 1, 2}
        assert open_files.joinpath(str(lock)).readlink() == bed.unpacked()[0]
        running.communicate("\n", timeout=60)
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
            lambda data: data[:-1000] + b"more" + data[-1000:], "its end is missing", id="more of it",
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


def test_a_mode_in_the_payload_gives_nobody_anything(bed: Bed) -> None:
    program = bed.made()
    data = program.read_bytes()
    magic, front, size, *rest = TRAILER.unpack(data[-TRAILER.size :])
    payload = gzip.decompress(data[front : front + size])
    at = payload.index(b"vgpu-agent\0") + 100
    assert payload[at : at + 7] == b"0000755"
    packed = gzip.compress(payload[:at] + b"0006755" + payload[at + 7 :])
    program.write_bytes(data[:front] + packed + TRAILER.pack(magic, front, len(packed), *rest))

    assert bed.run(program).returncode == 0
    [folder] = bed.unpacked()
    assert (folder / "vgpu-agent").stat().st_mode & 0o7777 == 0o755


def test_what_the_kernel_takes_a_part_of_is_written_whole_or_not_at_all(bed: Bed) -> None:
    """The limit lies within the last piece of the largest file."""
    program = bed.made(padding=300_000)
    limited = f"trap '' XFSZ; ulimit -f {299_520 // 512}; exec {program}"
    ended = bed.run("sh", "-c", limited)
    assert ended.returncode == 2
    assert "File too large" in ended.stderr
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
