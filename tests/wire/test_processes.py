"""Finding the processes of pods in a /proc, and what is noticed when it changes under the reader."""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_proc import MAPS_DRIVER, MAPS_LIBRARY, MAPS_PLAIN, NAMESPACE, FakeProc

from agent.adapters import processes
from agent.adapters.processes import AGAIN_EVERY, SURE_AFTER, HostProcesses
from agent.domain.enforcement import Granted, Process, Seen
from agent.domain.executables import Linkage
from agent.domain.proc_text import FileId, Place
from tests.unit.test_executables import MUSL, elf

UID, OTHER = "0a1b2c3d-0000-4000-8000-00000000000f", "ffffffff-0000-4000-8000-00000000000f"
MAIN, SIDE = "ab" * 32, "cd" * 32
GRANTED = {UID: Granted(frozenset({"main"}), {})}
KNOWN = {UID: Granted(frozenset({"main"}), {MAIN: "main", SIDE: "side"})}
HELD = MAPS_PLAIN + MAPS_LIBRARY + MAPS_DRIVER


def cgroup(pod_uid: str = UID, container_id: str = MAIN) -> str:
    return f"0::/kubepods/burstable/pod{pod_uid}/{container_id}\n"


def mounts(container: str = "main", pod_uid: str = UID) -> str:
    root = f"/usr/local/vgpu/containers/{pod_uid}_{container}"
    return f"612 598 8:1 {root} /usr/local/vgpu rw - ext4 /dev/sda1 rw\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture
def host(proc: FakeProc) -> HostProcesses:
    return HostProcesses(proc.root, "containers")


def of_main(seen: Seen) -> dict[int, Process]:
    assert set(seen.processes) <= {(UID, "main")}
    return {process.pid: process for process in seen.processes.get((UID, "main"), ())}


def test_what_is_known_of_a_process(proc: FakeProc, host: HostProcesses) -> None:
    proc.add(70, cgroup(), inside=3, start_time=55, maps=HELD, mountinfo=mounts())
    wanted = Process(
        pid=70, pid_inside=3, pid_namespace=NAMESPACE, start_time=55, library=True, uses_gpu=True,
        settled=False,
    )  # fmt: skip
    seen = host.look(GRANTED)
    assert seen.seeing
    assert of_main(seen) == {70: wanted}


LIMITS = "7f60-7f70 r--s 00000000 08:01 45    /etc/vgpu.limits\n"


def test_which_limits_a_process_goes_by_is_noticed_when_cuda_starts(
    proc: FakeProc, host: HostProcesses
) -> None:
    """The driver is mapped before; the attacker's own mapping lies behind the agent's."""
    proc.add(70, cgroup(), maps=HELD, mountinfo=mounts())
    assert of_main(host.look(GRANTED))[70].limits == frozenset()
    for found in (LIMITS, LIMITS + HELD + LIMITS.replace("45", "46")):
        proc.add(70, cgroup(), maps=found + HELD, mountinfo=mounts())
        if found != LIMITS:  # what was read is kept for a while
            for _ in range(AGAIN_EVERY):
                host.look(GRANTED)
        limits = of_main(host.look(GRANTED))[70].limits
        assert limits == {FileId(8, 1, inode) for inode in (45, 46)[: found.count("limits")]}


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_process_goes_on_when_its_first_thread_has_ended(
    proc: FakeProc, host: HostProcesses, seen_before: bool
) -> None:
    device = "/dev/nvidia0"
    proc.add(
        70, cgroup(container_id=""), inside=3, start_time=55, mountinfo=mounts(), opened=[device]
    )
    before = of_main(host.look(GRANTED)) if seen_before else {}
    proc.end_first_thread(70, 75)
    (process,) = of_main(host.look(GRANTED)).values()
    assert (process.pid, process.pid_inside, process.start_time) == (70, 3, 55)
    assert (process.pid_namespace, process.readable) == (NAMESPACE, True)
    assert (process.uses_gpu, process.library, process.linkage) == (True, False, Linkage.OTHER)
    assert set(before) == ({70} if seen_before else set())
    shutil.rmtree(proc.root / "70" / "task" / "75")
    assert of_main(host.look(GRANTED)) == {}


def test_zombies_are_not_looked_at_each_time(
    proc: FakeProc, host: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose first process waits for no child has thousands of them."""
    stat = proc.add(70, cgroup(), state="Z") / "stat"
    (stat.parent / "task" / "70").mkdir(parents=True)
    shutil.copy(stat, stat.parent / "task" / "70")
    looks: list[int | str] = []
    held = processes.entry_of
    monkeypatch.setattr(processes, "entry_of", lambda at, pid: looks.append(pid) or held(at, pid))
    for _ in range(AGAIN_EVERY):
        assert of_main(host.look(GRANTED)) == {}
    assert SURE_AFTER <= looks.count(70) <= SURE_AFTER + 1
    proc.add(70, cgroup(), mountinfo=mounts())
    assert set().union(*(of_main(host.look(GRANTED)) for _ in range(AGAIN_EVERY))) == {70}


def test_a_process_whose_threads_come_and_go_is_looked_at_each_time(
    proc: FakeProc, host: HostProcesses
) -> None:
    """That none was found once says nothing of one that was seen to live."""
    proc.add(70, cgroup(), mountinfo=mounts())
    host.look(GRANTED)
    proc.end_first_thread(70, 75)
    thread = proc.root / "70" / "task" / "75"
    for _ in range(SURE_AFTER):
        thread.rename(proc.root / "nowhere")
        assert of_main(host.look(GRANTED)) == {}
        (proc.root / "nowhere").rename(thread)
        assert set(of_main(host.look(GRANTED))) == {70}


def test_the_runtimes_id_says_which_container(proc: FakeProc, host: HostProcesses) -> None:
    proc.add(70, cgroup())
    proc.add(71, cgroup(container_id=SIDE), mountinfo=mounts())
    assert set(of_main(host.look(KNOWN))) == {70}


def test_without_ids_the_mounts_say_it(proc: FakeProc, host: HostProcesses) -> None:
    proc.add(70, cgroup(), mountinfo=mounts())
    proc.add(71, cgroup(container_id=SIDE), mountinfo="1 2 8:1 / / rw - ext4 /dev/sda1 rw\n")
    proc.add(72, cgroup(container_id=SIDE), mountinfo=mounts(pod_uid=OTHER))
    seen = host.look(GRANTED)
    assert set(of_main(seen)) == {70}
    assert seen.places == {(UID, "main"): frozenset({Place(UID, MAIN)})}


def test_a_process_without_its_mounts_is_told_by_its_neighbour(
    proc: FakeProc, host: HostProcesses
) -> None:
    proc.add(70, cgroup(), mountinfo=mounts())
    host.look(GRANTED)
    proc.add(71, cgroup())
    assert set(of_main(host.look(GRANTED))) == {70, 71}


NVIDIA, SLICES = "nvidia-00000000000000aa", "slices-00000000000000aa"
SECOND = "nvidia-00000000000000bb"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        pytest.param([NVIDIA], {(NVIDIA, "main")}, id="mode nvidia: the pod's one grant"),
        pytest.param([NVIDIA, SECOND], set(), id="two: nobody knows which"),
        pytest.param([SLICES], set(), id="slices: who has not its mounts is not its"),
    ],
)
def test_a_grant_that_mounts_nothing_has_what_its_pod_runs(
    proc: FakeProc, host: HostProcesses, names: list[str], found: set[tuple[str, str]]
) -> None:
    proc.add(70, cgroup(), mountinfo="1 2 8:1 / / rw - ext4 /dev/sda1 rw\n")
    proc.add(71, cgroup(pod_uid=OTHER), mountinfo="1 2 8:1 / / rw - ext4 /dev/sda1 rw\n")
    seen = host.look({name: Granted(frozenset({"main"}), {}, owner_uid=UID) for name in names})
    assert set(seen.processes) == found
    assert [one.pid for some in seen.processes.values() for one in some] == [70] * len(found)


def test_others_are_left_out(proc: FakeProc, host: HostProcesses) -> None:
    proc.add(70, cgroup(OTHER), mountinfo=mounts())
    proc.add(71, cgroup(), mountinfo=mounts(), state="Z")
    proc.add(72, "0::/user.slice\n", mountinfo=mounts())
    (proc.add(73, cgroup(), mountinfo=mounts()) / "maps").unlink()  # it ends as we look
    (proc.root / "sys").mkdir()
    (proc.root / "²").mkdir()
    assert of_main(host.look(GRANTED)) == {}


@pytest.mark.parametrize(
    ("opened", "maps", "uses_gpu"),
    [
        pytest.param(("/dev/null",), MAPS_PLAIN, False, id="neither"),
        pytest.param(("/dev/null", "/dev/nvidia0"), MAPS_PLAIN, True, id="a device open"),
        pytest.param((), MAPS_DRIVER, True, id="the driver mapped"),
    ],
)
def test_who_uses_a_gpu(
    proc: FakeProc, host: HostProcesses, opened: tuple[str, ...], maps: str, uses_gpu: bool
) -> None:
    proc.add(70, cgroup(), opened=opened, maps=maps)
    assert of_main(host.look(KNOWN))[70].uses_gpu is uses_gpu


def test_what_comes_later_is_seen_later(proc: FakeProc, host: HostProcesses) -> None:
    proc.add(70, cgroup(), maps=MAPS_PLAIN + MAPS_LIBRARY)
    first = of_main(host.look(KNOWN))[70]
    assert (first.library, first.uses_gpu, first.settled) == (True, False, False)
    proc.opens(70, "/dev/nvidiactl")
    second = of_main(host.look(KNOWN))[70]
    assert (second.library, second.uses_gpu, second.settled) == (True, True, True)


def test_who_lets_go_of_the_gpu_is_no_finding_any_more(proc: FakeProc, host: HostProcesses) -> None:
    where = proc.add(70, cgroup(), opened=("/dev/nvidia0",))
    assert of_main(host.look(KNOWN))[70].uses_gpu
    (where / "fd" / "0").unlink()
    assert not of_main(host.look(KNOWN))[70].uses_gpu


def test_a_map_too_long_to_be_read_says_nothing(
    proc: FakeProc, host: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAPS_BYTES", 10 * len(MAPS_PLAIN))
    monkeypatch.setattr(processes, "PIECE_BYTES", len(MAPS_PLAIN))
    proc.add(70, cgroup(), maps=MAPS_PLAIN * 20 + MAPS_LIBRARY)
    proc.add(71, cgroup(), maps=MAPS_LIBRARY + MAPS_PLAIN * 20)
    proc.add(72, cgroup(), maps=MAPS_PLAIN * 9)
    found = of_main(host.look(KNOWN))
    assert {pid: one.readable for pid, one in found.items()} == {70: False, 71: True, 72: True}


@pytest.mark.parametrize(
    "maps",
    [
        pytest.param(MAPS_LIBRARY + MAPS_PLAIN * 20 + MAPS_DRIVER, id="the library first"),
        pytest.param(MAPS_DRIVER + MAPS_PLAIN * 20 + MAPS_LIBRARY, id="the driver first"),
    ],
)
def test_library_and_driver_are_found_however_far_apart_they_are(
    proc: FakeProc, host: HostProcesses, monkeypatch: pytest.MonkeyPatch, maps: str
) -> None:
    monkeypatch.setattr(processes, "PIECE_BYTES", len(MAPS_PLAIN))
    proc.add(70, cgroup(), maps=maps)
    found = of_main(host.look(KNOWN))[70]
    assert (found.library, found.uses_gpu) == (True, True)


@pytest.mark.parametrize(
    ("content", "linkage"),
    [
        pytest.param(elf(MUSL), Linkage.MUSL, id="musl"),
        pytest.param(elf(None), Linkage.STATIC, id="static"),
        pytest.param(b"\x7fELF", Linkage.OTHER, id="garbage"),
        pytest.param(None, Linkage.OTHER, id="no file"),
    ],
)
def test_whoever_uses_a_gpu_without_the_library_is_asked_for_its_libc(
    proc: FakeProc, host: HostProcesses, tmp_path: Path, content: bytes | None, linkage: Linkage
) -> None:
    program = tmp_path / "program"
    if content is not None:
        program.write_bytes(content)
    proc.add(70, cgroup(), opened=("/dev/nvidia0",), exe=program)
    proc.add(71, cgroup(), exe=program)
    proc.add(72, cgroup(), exe=program, maps=HELD)
    found = of_main(host.look(KNOWN))
    assert (found[70].linkage, found[71].linkage, found[72].linkage) == (linkage, None, None)


def test_a_pipe_as_program_holds_nobody_up(
    proc: FakeProc, host: HostProcesses, tmp_path: Path
) -> None:
    """The kernel lets none be one, but a made-up /proc does."""
    os.mkfifo(tmp_path / "pipe")
    proc.add(70, cgroup(), opened=("/dev/nvidia0",), exe=tmp_path / "pipe")
    assert of_main(host.look(KNOWN))[70].linkage is Linkage.OTHER


@pytest.mark.parametrize(
    "again",
    [
        pytest.param({"stack_at": 10}, id="it executed another program"),
        pytest.param({"start_time": 6}, id="another process has its pid"),
    ],
)
def test_another_program_is_judged_anew(
    proc: FakeProc, host: HostProcesses, again: dict[str, int]
) -> None:
    proc.add(70, cgroup(), maps=HELD)
    host.look(KNOWN)
    proc.add(70, cgroup(), maps=MAPS_DRIVER, inside=2, start_time=again.get("start_time", 5),
             stack_at=again.get("stack_at", 9))  # fmt: skip
    found = of_main(host.look(KNOWN))[70]
    assert (found.library, found.settled, found.pid_inside) == (False, False, 2)


def test_what_is_certain_is_not_read_again_but_now_and_then(
    proc: FakeProc, host: HostProcesses
) -> None:
    pid = 5 * AGAIN_EVERY  # whose turn is in round AGAIN_EVERY
    where = proc.add(pid, cgroup(), maps=HELD + LIMITS)
    host.look(KNOWN)
    (where / "maps").write_text(MAPS_DRIVER)
    library = [of_main(host.look(KNOWN))[pid].library for _ in range(AGAIN_EVERY)]
    assert library == [True] * (AGAIN_EVERY - 2) + [False] * 2


def test_the_maps_of_who_uses_no_gpu_are_read_when_it_opens_one_or_now_and_then(
    proc: FakeProc, host: HostProcesses
) -> None:
    """They take milliseconds, and most processes of a container use none."""
    pid = 5 * AGAIN_EVERY  # whose turn is in round AGAIN_EVERY
    where = proc.add(pid, cgroup(), maps=MAPS_LIBRARY)
    host.look(KNOWN)
    (where / "maps").rename(where / "unread")  # who reads them takes the process for ended
    for _ in range(AGAIN_EVERY - 2):
        found = of_main(host.look(KNOWN))[pid]
        assert (found.library, found.uses_gpu, found.settled) == (True, False, True)
    assert of_main(host.look(KNOWN)) == {}
    (where / "unread").rename(where / "maps")
    host.look(KNOWN)
    (where / "maps").write_text(HELD + LIMITS)
    proc.opens(pid, "/dev/nvidiactl")
    found = of_main(host.look(KNOWN))[pid]
    assert (found.library, found.uses_gpu, len(found.limits)) == (True, True, 1)


def test_a_thread_with_descriptors_of_its_own_is_known_by_what_it_maps(
    proc: FakeProc, host: HostProcesses
) -> None:
    pid = 5 * AGAIN_EVERY
    where = proc.add(pid, cgroup())
    assert not of_main(host.look(KNOWN))[pid].uses_gpu
    (where / "maps").write_text(MAPS_DRIVER)
    fields = (where / "stat").read_text().split(" ")
    fields[22] = "4096000"
    (where / "stat").write_text(" ".join(fields))
    assert of_main(host.look(KNOWN))[pid].uses_gpu


def test_who_has_more_descriptors_than_are_looked_at_is_known_by_its_maps(
    proc: FakeProc, host: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_DESCRIPTORS", 2)
    where = proc.add(5 * AGAIN_EVERY, cgroup(), opened=["/dev/null"] * 3)
    assert not of_main(host.look(KNOWN))[5 * AGAIN_EVERY].uses_gpu
    (where / "maps").write_text(MAPS_DRIVER)
    assert of_main(host.look(KNOWN))[5 * AGAIN_EVERY].uses_gpu


def test_a_process_that_is_moved_into_its_cgroup_after_we_saw_it(
    proc: FakeProc, host: HostProcesses
) -> None:
    """As a runtime does with a container's first process."""
    pid = 5 * AGAIN_EVERY  # whose turn to be looked at again is later
    where = proc.add(pid, "0::/system.slice/containerd.service\n")
    assert of_main(host.look(KNOWN)) == {}
    (where / "cgroup").write_text(cgroup())
    assert set(of_main(host.look(KNOWN))) == {pid}


def test_even_who_was_others_for_long_is_found_in_the_end(
    proc: FakeProc, host: HostProcesses
) -> None:
    where = proc.add(70, "0::/system.slice/x.service\n")
    for _ in range(SURE_AFTER):
        host.look(KNOWN)
    (where / "cgroup").write_text(cgroup())
    assert any(of_main(host.look(KNOWN)) for _ in range(AGAIN_EVERY))


def test_nothing_is_kept_of_processes_that_ended(proc: FakeProc, host: HostProcesses) -> None:
    for pid in range(100, 140):
        proc.add(pid, cgroup() if pid % 2 else "0::/\n", mountinfo=mounts())
    host.look(GRANTED)
    for pid in range(100, 140):
        proc.remove(pid)
    host.look(GRANTED)
    assert (host._known, host._by_mount, set(host._others) - {1}) == ({}, {}, set())
    host.forget()
    assert host._others == {}


# --- may we see at all? ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "other", "namespace", "seeing"),
    [
        pytest.param("0::/\n", "0::/\n", NAMESPACE, False, id="nobody of a pod"),
        pytest.param("0::/\n", cgroup(OTHER), NAMESPACE, True, id="another pod's process"),
        pytest.param(cgroup(OTHER), cgroup(OTHER), NAMESPACE, False, id="our own pod's alone"),
        pytest.param("0::/\n", cgroup(), NAMESPACE, True, id="a process that is looked for"),
        pytest.param("0::/\n", "0::/\n", 0xEFFFFFFC, True, id="the first pid namespace"),
    ],
)
def test_whether_pods_can_be_seen(
    proc: FakeProc, own: str, other: str, namespace: int, seeing: bool
) -> None:
    proc.add(1, own, namespace=namespace)
    proc.add(70, other)
    assert HostProcesses(proc.root, "containers").look(GRANTED).seeing is seeing


def test_no_proc_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        HostProcesses(tmp_path / "nowhere", "containers").look(GRANTED)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="vgpu-proc-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_that_may_not_be_looked_into(open_directory: Path) -> None:
    proc = FakeProc(open_directory)
    (proc.add(70, cgroup(), maps=HELD) / "maps").chmod(0)
    (proc.add(71, cgroup(), maps=HELD) / "cgroup").chmod(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            seen = HostProcesses(proc.root, "containers").look(KNOWN)
            os.write(writing, pickle.dumps(of_main(seen)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = pickle.loads(answer.read())  # noqa: S301 - our own child's
    os.waitpid(child, 0)
    assert set(found) == {70}
    assert (found[70].readable, found[70].library) == (False, False)


def shown(proc: Path, pid: int) -> Path:
    """Have a made-up /proc show a real process, as one of the container; gives its own directory."""
    real, where = Path(f"/proc/{pid}"), proc / str(pid)
    where.mkdir()
    for name in ("stat", "status", "maps", "fd", "exe", "ns", "mountinfo"):
        (where / name).symlink_to(real / name)
    (where / "cgroup").write_text(cgroup())
    return real


def test_this_process_in_the_real_proc(tmp_path: Path) -> None:
    """Against a /proc whose cgroup file alone is made up."""
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        real = shown(tmp_path, program.pid)
        (process,) = of_main(HostProcesses(tmp_path, "containers").look(KNOWN)).values()
        stat = (real / "stat").read_text().rpartition(")")[2].split()
        namespace = (real / "ns" / "pid").readlink().name.strip("pid:[]")
        assert (process.pid, process.pid_inside) == (program.pid, program.pid)
        assert (process.start_time, process.pid_namespace) == (int(stat[19]), int(namespace))
        assert (process.library, process.uses_gpu, process.readable) == (False, False, True)
    finally:
        program.communicate(b"\n", timeout=60)
