"""Processes that cannot be read, or not in full: what a tenant brings about costs nobody else."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_proc import FakeProc

from agent.adapters import processes
from agent.adapters.processes import HostProcesses
from tests.wire.test_processes import GRANTED, HELD, KNOWN, SIDE, cgroup, mounts, of_main, shown


def broken(path: Path, number: int) -> None:
    """Have the kernel itself answer with this error when the file is read."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    match number:
        case errno.ELOOP:
            path.symlink_to(path)
        case errno.ENAMETOOLONG:
            path.symlink_to("x" * 300)
        case errno.ENOTDIR:
            path.symlink_to("/dev/null/x")
        case errno.ENXIO:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))


@pytest.mark.parametrize("number", [errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENXIO],
                         ids=errno.errorcode.get)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "counted"),
    [
        pytest.param("cgroup", False, id="whose it is"),
        pytest.param("mountinfo", False, id="which container's"),
        pytest.param("stat", False, id="since when it runs"),
        pytest.param("status", True, id="its pid inside"),
        pytest.param("maps", True, id="what it has mapped"),
        pytest.param("fd", True, id="what it has open"),
    ],
)
def test_a_process_that_cannot_be_read_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, number: int, name: str, *, counted: bool
) -> None:
    """Nor does it pass for one that has ended, where it is known whose it is."""
    proc = FakeProc(tmp_path_factory.mktemp("p"))  # short: a socket lies in it
    broken(proc.add(70, cgroup(), mountinfo=mounts()) / name, number)
    proc.add(71, cgroup(container_id=SIDE), mountinfo=mounts())
    found = of_main(HostProcesses(proc.root, "containers").look(GRANTED))
    assert {pid: one.readable for pid, one in found.items()} == (
        {70: False, 71: True} if counted else {71: True}
    )


@pytest.mark.parametrize(
    "number",
    [errno.ENOENT, errno.EACCES, errno.ENAMETOOLONG, errno.ENOMEM, errno.EIO, errno.ESTALE],
    ids=errno.errorcode.get,
)
def test_a_descriptor_that_cannot_be_told_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    proc, told = FakeProc(tmp_path), os.readlink

    def readlink(name: str, *, dir_fd: int | None = None) -> str:
        path = told(name, dir_fd=dir_fd)
        if path == "/untold":
            raise OSError(number, os.strerror(number), name)
        return path

    proc.add(70, cgroup(), opened=("/untold", "/dev/nvidia0", "/untold"))
    proc.add(71, cgroup(), opened=("/untold",))
    monkeypatch.setattr(os, "readlink", readlink)
    found = of_main(HostProcesses(tmp_path, "containers").look(KNOWN))
    assert {pid: (one.uses_gpu, one.readable) for pid, one in found.items()} == {
        70: (True, True),
        71: (False, True),
    }


def test_without_descriptors_nobody_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, host = FakeProc(tmp_path), HostProcesses(tmp_path, "containers")
    proc.add(70, cgroup())

    def none_left(_proc: Path, _pid: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    host.look(KNOWN)
    monkeypatch.setattr(processes, "entry_of", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        host.look(KNOWN)


BELOW_PATH_MAX = """
import os
for _ in range(25):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
file = open("f", "w")
os.unlink("f")  # the kernel names it by where it was
for _ in range(25):
    os.chdir("..")
    os.rmdir("d" * 200)
print("open", flush=True)
input()
"""


def test_a_file_below_a_path_longer_than_the_kernel_tells(tmp_path: Path) -> None:
    """Linux: readlink of /proc/PID/fd/N fails with ENAMETOOLONG, for whoever may open files."""
    program = subprocess.Popen(
        [sys.executable, "-c", BELOW_PATH_MAX], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        proc = FakeProc(tmp_path / "proc")
        shown(proc.root, program.pid)
        proc.add(1 << 23, cgroup(), maps=HELD)
        found = of_main(HostProcesses(proc.root, "containers").look(KNOWN))
        assert set(found) == {program.pid, 1 << 23}
        assert (found[program.pid].uses_gpu, found[program.pid].readable) == (False, True)
    finally:
        program.communicate("\n", timeout=60)
