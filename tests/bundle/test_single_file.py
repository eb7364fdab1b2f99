"""The launcher of the single file, with a small folder behind it: where it unpacks, and what is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling.single_file import TRAILER, single_file
from waiting import eventually

NOBODY = 65534
SCRIPT = '#!/bin/sh\nexec "${0%/*}/program" "$0" "$VGPU_AGENT_EXECUTABLE" "$@"\n'
PROGRAM = """#!/bin/sh
[ "$3" = wait ] && { echo started; read -r _; }
[ "$3" = exit ] && exit "$4"
echo "$@"
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")


class Bed:
    """A directory for a single file and for what it unpacks."""

    def __init__(self, root: Path, launcher: Path) -> None:
        self.root, self.launcher = root, launcher
        self.place = root / "place"
        self.environment = {"VGPU_AGENT_RUNTIME_DIR": str(self.place), "PATH": os.environ["PATH"]}

    def made(self, name: str = "one", text: str = "first", padding: int = 300_000) -> Path:
        """A single file; other text, other content."""
        folder = self.root / f"{name}.d"
        (folder / "deep" / "er").mkdir(parents=True)
        for script, content in (("vgpu-agent", SCRIPT), ("program", PROGRAM)):
            (folder / script).write_text(content)
            (folder / script).chmod(0o755)
        (folder / "deep" / "er" / "text").write_text(text)
        (folder / "padding").write_bytes(os.urandom(padding))
        return single_file(self.launcher, folder, "1.2.3", self.root / name)

    def run(self, *command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False,
            **{"env": self.environment, **options},
        )  # type: ignore[call-overload]  # fmt: skip

    def start(self, program: Path) -> subprocess.Popen[str]:
        """Start it and wait until it runs; it ends when its stdin does."""
        process = subprocess.Popen(
            [program, "wait"], env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    def unpacked(self) -> list[Path]:
        return sorted(self.place.iterdir()) if self.place.exists() else []


@pytest.fixture
def bed(tmp_path: Path, launcher: Path) -> Bed:
    return Bed(tmp_path, launcher)


def test_it_becomes_the_program_with_its_arguments(bed: Bed) -> None:
    program = bed.made()

    first = bed.run(program, "a", "b c", "")
    again = bed.run(program, "a", "b c", "")

    [folder] = bed.unpacked()
    assert first.stdout == again.stdout == f"{folder}/vgpu-agent {program} a b c \n"
    assert folder.name.startswith("vgpu-agent-1.2.3-")
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


def test_a_folder_that_lost_a_file_is_made_anew(bed: Bed) -> None:
    program = bed.made()
    bed.run(program)
    [folder] = bed.unpacked()
    (folder / "deep" / "er" / "text").unlink()  # a cleaner of old files came by

    assert bed.run(program).returncode == 0

    assert bed.unpacked() == [folder]
    assert (folder / "deep" / "er" / "text").read_text() == "first"


def test_many_that_start_at_once_share_one_folder(bed: Bed) -> None:
    program = bed.made(padding=5_000_000)
    started = [
        subprocess.Popen([program, "x"], env=bed.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]

    assert {process.communicate(timeout=60)[0] for process in started} == {
        f"{bed.unpacked()[0]}/vgpu-agent {program} x\n"
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


def test_killed_while_it_unpacks_it_leaves_nothing_that_counts(bed: Bed) -> None:
    program = bed.made(padding=40_000_000)
    process = subprocess.Popen([program], env=bed.environment)
    eventually(lambda: any(p.name.startswith(".making-") for p in bed.unpacked()))
    process.kill()
    process.wait(10)
    [half] = bed.unpacked()
    assert half.name.startswith(".making-"), "it was faster than the test: make it larger"

    assert bed.run(program).returncode == 0
    assert half in bed.unpacked(), "who made it may not have locked it yet"
    later = bed.made("later", "later")
    os.utime(half, (0, 0))
    assert bed.run(later).returncode == 0
    assert half not in bed.unpacked()


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
            lambda data: data[: -TRAILER.size] + b"VGPUONE1" + b"\xff" * (TRAILER.size - 8),
            "its end is missing", id="a trailer of ones",
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


def test_a_name_in_the_payload_cannot_lead_out_of_the_folder(bed: Bed) -> None:
    outside = bed.root / "outside"
    program = bed.made()
    data = program.read_bytes()
    front, size = TRAILER.unpack(data[-TRAILER.size :])[1:3]
    import gzip

    payload = gzip.decompress(data[front : front + size])
    for name in (f"{outside}", "../../outside"):
        at = payload.index(b"padding\0")
        evil = payload[:at] + name.encode().ljust(100, b"\0")[:100] + payload[at + 100 :]
        packed = gzip.compress(evil)
        magic, _, _, files, called = TRAILER.unpack(data[-TRAILER.size :])
        trailer = TRAILER.pack(magic, front, len(packed), files, called)
        program.write_bytes(data[:front] + packed + trailer)

        assert "the file is damaged" in bed.run(program).stderr
        assert not outside.exists()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda place: place.write_text(""), "Not a directory", id="a file"),
        pytest.param(
            lambda place: (place.mkdir(), place.chmod(0o777)), "others may write into it",
            id="a directory that others may write",
        ),
        pytest.param(
            lambda place: place.symlink_to(place.parent), "Not a directory", id="a link",
        ),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_trusted_is_refused(
    bed: Bed, make: Callable[[Path], object], told: str
) -> None:
    program = bed.made()
    make(bed.place)

    ended = bed.run(program)

    assert ended.returncode == 2
    assert f"{bed.place}: {told}" in ended.stderr
    assert "Set VGPU_AGENT_RUNTIME_DIR" in ended.stderr


@needs_root
def test_a_place_of_another_user_is_refused(bed: Bed) -> None:
    program = bed.made()
    bed.place.mkdir()
    os.chown(bed.place, NOBODY, NOBODY)

    assert "others may write into it" in bed.run(program).stderr


# --- hosts on which hardly anything may be written ---

IN_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")


@needs_root
@pytest.mark.parametrize(
    ("prepare", "where"),
    [
        pytest.param("mount -t tmpfs -o noexec none /tmp", "/var/lib/", id="/tmp is noexec"),
        pytest.param(
            "mount -t tmpfs none /var/lib; mount -o remount,ro /var/lib", "/run/",
            id="/var/lib is read-only",
        ),
        pytest.param(
            "for d in /var/lib /run; do mount -t tmpfs -o noexec none $d; done", "/var/tmp/",
            id="/var/lib and /run are noexec",
        ),
        pytest.param(
            "for d in /var/lib /run /var/tmp /dev/shm /tmp; do mount -t tmpfs none $d;"
            " mount -o remount,ro $d; done", "/mnt/",
            id="nothing may be written at all",
        ),
    ],
)  # fmt: skip
def test_it_finds_a_place(bed: Bed, prepare: str, where: str, tmp_path: Path) -> None:
    bed.made()
    keep = f"mkdir -p /mnt; mount --bind {tmp_path} /srv; cd /srv"

    ended = bed.run(
        *IN_NAMESPACE, f"{keep}; {prepare}; env -i /srv/one seen", env={"PATH": os.environ["PATH"]}
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(where)
    assert ended.stdout.endswith("/vgpu-agent /srv/one seen\n")
    assert ended.stderr == ""


@needs_root
def test_its_own_file_system_ends_with_it(bed: Bed, tmp_path: Path) -> None:
    bed.made()
    nothing = "for d in /var/lib /run /var/tmp /dev/shm /tmp; do mount -t tmpfs -o ro none $d; done"

    ended = bed.run(
        *IN_NAMESPACE,
        f"mount --bind {tmp_path} /srv; {nothing}; env -i /srv/one seen",
        env={"PATH": os.environ["PATH"]},
    )

    assert ended.stdout.startswith("/mnt/vgpu-agent-"), ended.stderr
    assert not Path(ended.stdout.split()[0]).exists()


@needs_root
def test_who_may_not_mount_is_told_what_was_tried(bed: Bed, tmp_path: Path) -> None:
    bed.made()
    tmp_path.chmod(0o755)
    nothing = "for d in /var/lib /run /var/tmp /dev/shm /tmp; do mount -t tmpfs -o ro none $d; done"
    as_nobody = f"$(command -v setpriv) --reuid={NOBODY} --regid={NOBODY} --clear-groups"

    ended = bed.run(
        *IN_NAMESPACE,
        f"mount --bind {tmp_path} /srv; {nothing}; env -i {as_nobody} /srv/one",
        env={"PATH": os.environ["PATH"]},
    )

    assert ended.returncode == 2
    for place in ("/var/tmp/vgpu-agent-65534: ", "/dev/shm/vgpu-agent-65534: "):
        assert place in ended.stderr
    assert "Set VGPU_AGENT_RUNTIME_DIR" in ended.stderr


@needs_root
def test_it_is_init_of_a_container(bed: Bed, tmp_path: Path) -> None:
    """PID 1 of a namespace with a root of nothing but the file, a shell for the script, and /proc."""
    program = bed.made()
    ended = bed.run(
        "unshare", "--mount", "--pid", "--fork", "--mount-proc", program, "seen"
    )  # the script behind the launcher needs a shell, so the root stays

    assert ended.stdout.endswith(" seen\n"), ended.stderr


def test_the_trailer_has_the_size_that_the_launcher_reads() -> None:
    assert TRAILER.size == 8 + 3 * 8 + 64
    assert sys.byteorder == "little"
