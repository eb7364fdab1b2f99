"""Where the launcher of the single file unpacks: which directories it trusts, finds, and leaves alone."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from launcher_bed import IN_NAMESPACE, NOBODY, Bed, needs_root

FOREIGN = (
    "vgpu-agent-notes",
    "vgpu-agent-1.2.3",
    "vgpu-agent-1.2.3-linux-x86_64",
    "vgpu-agent-1.2.3-0123456789abcdef",
    "vgpu-agent-1.2.3-0123456789abcdef-0123456789abcdeF",
    "vgpu-agent--0123456789abcdef-0123456789abcdef",
    "xvgpu-agent-1.2.3-0123456789abcdef-0123456789abcdef",
    "vgpu-agent-1.2.3-0123456789abcdef-0123456789abcdef-",
    ".making-notes",
    ".making-0123456789abcdef0",
)


@pytest.mark.parametrize("where", ["given", "place"])
def test_directories_of_others_stay_whatever_they_are_called(bed: Bed, where: str) -> None:
    """In a directory that a user gave even those that are called as ours are."""
    ours = "vgpu-agent-1.2.3-0123456789abcdef-0123456789abcdef"
    directory: Path = getattr(bed, where)
    expected = {*FOREIGN, *((ours, "vgpu-agent-runtime") if where == "given" else ())}
    for name in (*FOREIGN, ours):
        (directory / name / "sub").mkdir(parents=True)
        (directory / name / "sub" / "thesis").write_text("precious")
    bed.place.mkdir(exist_ok=True)

    for program in (bed.made(), bed.made("other", "other")):
        assert bed.run(program).returncode == 0

    left = {p.name for p in directory.iterdir()}
    assert {
        name for name in left if not name.startswith("vgpu-agent-1.2.3-") or name in expected
    } == expected
    for name in expected - {"vgpu-agent-runtime"}:
        assert [p.name for p in (directory / name).iterdir()] == ["sub"]
        assert (directory / name / "sub" / "thesis").read_text() == "precious"


@needs_root
def test_a_folder_of_another_user_stays(bed: Bed) -> None:
    theirs = bed.place / "vgpu-agent-1.2.3-0123456789abcdef-0123456789abcdef"
    theirs.mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    assert bed.run(bed.made()).returncode == 0
    assert theirs.exists()


@needs_root
def test_nobody_else_can_come_to_what_it_locks(bed: Bed) -> None:
    program = bed.made()
    bed.root.chmod(0o755)
    bed.given.mkdir()
    bed.given.chmod(0o755)
    bed.place.mkdir()
    bed.place.chmod(0o755)  # as it was made by someone else
    bed.run(program)
    [folder] = bed.unpacked()
    for path, code in ((bed.given, 0), (bed.place, 1), (folder, 1), (folder / "padding", 1)):
        seen = Path("/srv") / path.relative_to(bed.root)  # nothing above it keeps anybody out
        lock = f"{AS_NOBODY} flock {seen} true || exit 1"
        tried = bed.run(*IN_NAMESPACE, f"mount --bind {bed.root} /srv; cd /; {lock}")
        assert tried.returncode == code, path
    assert {p.stat().st_mode & 0o7777 for p in folder.rglob("*") if p.is_dir()} == {0o755}
    modes = {p.name: p.stat().st_mode & 0o7777 for p in folder.rglob("*") if p.is_file()}
    assert modes == {"vgpu-agent": 0o755, "program": 0o755, "text": 0o644, "padding": 0o644}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda bed: bed.given.write_text(""), "Not a directory", id="a file"),
        pytest.param(
            lambda bed: (bed.given.mkdir(), bed.given.chmod(0o777)), "others may write into it",
            id="a directory that others may write",
        ),
        pytest.param(
            lambda bed: (bed.given.mkdir(), bed.given.chmod(0o770)), "others may write into it",
            id="a directory that the group may write",
        ),
        pytest.param(
            lambda bed: bed.given.symlink_to(bed.root), "Not a directory", id="a link",
        ),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_trusted_is_refused(
    bed: Bed, make: Callable[[Bed], object], told: str
) -> None:
    program = bed.made()
    make(bed)

    ended = bed.run(program)

    assert ended.returncode == 2
    assert f"{bed.given}: {told}" in ended.stderr
    assert "Set VGPU_AGENT_RUNTIME_DIR" in ended.stderr


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda place: place.chmod(0o770), "others may write into it", id="the group"),
        pytest.param(lambda place: place.chmod(0o707), "others may write into it", id="all"),
        pytest.param(
            lambda place: (place.rmdir(), place.symlink_to(place.parent)), "Not a directory",
            id="a link",
        ),
    ],
)  # fmt: skip
def test_what_is_called_as_ours_and_cannot_be_trusted_is_refused(
    bed: Bed, make: Callable[[Path], object], told: str
) -> None:
    program = bed.made()
    bed.place.mkdir(parents=True)
    make(bed.place)

    ended = bed.run(program)

    assert ended.returncode == 2
    assert f"{bed.place}: {told}" in ended.stderr


def test_a_directory_in_which_nobody_can_take_what_is_ours_may_be_given(bed: Bed) -> None:
    """As /tmp is."""
    program = bed.made()
    bed.given.mkdir()
    bed.given.chmod(0o1777)
    assert bed.run(program).returncode == 0


@needs_root
@pytest.mark.parametrize("which", ["given", "place"])
def test_a_place_of_another_user_is_refused(bed: Bed, which: str) -> None:
    program = bed.made()
    bed.place.mkdir(parents=True)
    os.chown(getattr(bed, which), NOBODY, NOBODY)

    told = bed.run(program).stderr
    assert f"{getattr(bed, which)}: others may write into it" in told


# --- hosts on which hardly anything may be written ---

PARTS = ("/var/lib", "/var/tmp", "/opt", "/run", "/dev/shm", "/tmp")


class Host:
    """Directories of a host, none of them this machine's: each test says what is mounted there.

    On a `disk` is what is in the directory of the same name on a file system of our own, which is
    a disk for what the launcher sees of it.
    """

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        bed.root.chmod(0o755)
        bed.made()
        self.disk = bed.root / "disk"
        for part in PARTS:
            (self.disk / part[1:]).mkdir(parents=True)

    def run(
        self, script: str, *, home: str = "", user: str = "", **mounted: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a line that has $program; `mounted` is by the last part of the path: disk is the default."""
        lines = ["mount --bind $bed /srv"]
        for part in PARTS:
            how = mounted.get(part.split("/")[-1], "disk")
            flags, _, kind = how.rpartition(" ")
            if kind == "disk":
                lines.append(f"mount --bind /srv/disk{part} {part}")
            else:
                lines.append(
                    f"mount -t tmpfs -o mode={1777 if part in STICKY else 755} none {part}"
                )
            if flags:
                lines.append(f"mount -o remount,bind,{flags} {part}")
        env = f"env -i PATH=$PATH {home and f'HOME={home}'} {user}"
        return self.bed.run(
            *IN_NAMESPACE,
            f'bed={self.bed.root}; {"; ".join(lines)}; cd /; program="{env} /srv/one"; {script}',
            env={"PATH": os.environ["PATH"]},
        )


STICKY = ("/var/tmp", "/dev/shm", "/tmp")
NOTHING = dict.fromkeys(("lib", "opt", "run", "shm"), "ro disk") | {"tmp": "ro disk"}
AS_NOBODY = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"


@pytest.fixture
def host(bed: Bed) -> Host:
    return Host(bed)


@needs_root
@pytest.mark.parametrize(
    ("mounted", "where"),
    [
        pytest.param({}, "/var/lib/vgpu-agent/runtime/", id="nothing is odd"),
        pytest.param({"lib": "ro disk"}, "/var/tmp/vgpu-agent-0/", id="/var/lib is read-only"),
        pytest.param({"lib": "noexec disk"}, "/var/tmp/vgpu-agent-0/", id="/var/lib is noexec"),
        pytest.param({"lib": "memory"}, "/var/tmp/vgpu-agent-0/", id="/var/lib is in memory"),
        pytest.param(
            {"lib": "ro disk", "tmp": "noexec disk"}, "/opt/vgpu-agent-runtime/",
            id="of all disks only /opt",
        ),
        pytest.param(
            {"lib": "ro disk", "tmp": "memory", "opt": "ro disk", "run": "memory", "shm": "memory"},
            "/var/tmp/vgpu-agent-0/", id="no disk",
        ),
        pytest.param(
            {"lib": "ro disk", "tmp": "ro disk", "opt": "ro disk", "run": "memory", "shm": "memory"},
            "/run/vgpu-agent-runtime/", id="/run alone",
        ),
        pytest.param(NOTHING | {"shm": "memory"}, "/dev/shm/vgpu-agent-0/", id="/dev/shm alone"),
        pytest.param(NOTHING, "/mnt/", id="nothing may be written at all"),
    ],
)  # fmt: skip
def test_it_finds_a_place(host: Host, mounted: dict[str, str], where: str) -> None:
    ended = host.run("$program seen", **mounted)

    assert ended.stdout.startswith(f"{where}vgpu-agent-1.2.3-"), ended.stderr
    assert ended.stdout.endswith("/vgpu-agent seen\n")
    assert ended.stderr == ""


@needs_root
def test_what_is_not_used_is_not_written_to(host: Host) -> None:
    ended = host.run(
        "$program >/dev/null; find /run /dev/shm /tmp -name '*vgpu*'; mount -o remount,bind,noexec /var/lib; $program >/dev/null; ls /var/lib/vgpu-agent",
        lib="disk",
    )
    assert "runtime" in ended.stdout
    empty = host.run(
        "rm -r /var/lib/*; mount -o remount,bind,noexec /var/lib; $program; ls -A /var/lib",
        lib="disk",
    )
    assert empty.stdout.splitlines()[1:] == [], empty.stdout
    assert empty.returncode == 0, empty.stderr


@needs_root
def test_root_does_not_use_a_home_directory(host: Host) -> None:
    """It may be that of the user who called sudo."""
    ended = host.run("$program", home="/srv/home")
    assert ended.stdout.startswith("/var/lib/vgpu-agent/runtime/")
    ended = host.run("$program", home="/srv/home", **NOTHING)
    assert ended.stdout.startswith("/mnt/vgpu-agent-")
    assert not (host.bed.root / "home").exists()


@needs_root
def test_a_user_has_a_cache(host: Host) -> None:
    (home := host.bed.root / "home").mkdir()
    os.chown(home, NOBODY, NOBODY)
    ended = host.run("$program", home="/srv/home", user=AS_NOBODY)
    assert ended.stdout.startswith("/srv/home/.cache/vgpu-agent/vgpu-agent-1.2.3-"), ended.stderr
    assert (home / ".cache" / "vgpu-agent").stat().st_mode & 0o7777 == 0o700


@needs_root
def test_its_own_file_system_is_seen_by_nobody_and_ends_with_it(host: Host) -> None:
    """Even where mounts are passed on, as systemd has it."""
    ended = host.run(
        "mount --make-rprivate /; mount --make-rshared /;"
        " $program eval 'grep \" /mnt \" /proc/self/mounts'; grep -c ' /mnt ' /proc/self/mounts || :",
        **NOTHING,
    )
    inside, outside = ended.stdout.splitlines()
    assert inside.startswith("vgpu-agent /mnt tmpfs rw,nosuid,nodev,"), ended.stderr
    assert outside == "0"


@needs_root
def test_who_may_not_mount_is_told_what_was_tried(host: Host) -> None:
    ended = host.run("$program", user=AS_NOBODY, **NOTHING)

    assert ended.returncode == 2
    for place in ("/var/tmp/vgpu-agent-65534: ", "/dev/shm/vgpu-agent-65534: "):
        assert f"{place}mounted read-only" in ended.stderr
    assert "Set VGPU_AGENT_RUNTIME_DIR" in ended.stderr
