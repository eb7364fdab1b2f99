"""The lock against a second agent: real flock, real processes."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import eventually

from agent import logs
from agent.adapters.instance_lock import TRY_EVERY_S, Instance, InstanceLock, LockUnavailable
from agent.services.gate import Gate, Gated
from agent.services.published import Published
from agent.supervisor import Lifeline, RestartPolicy, Service, Supervisor

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, signal
from pathlib import Path
from agent.adapters.instance_lock import InstanceLock
lock = InstanceLock(Path(sys.argv[1]))
print(lock.acquire(20), flush=True)
signal.pause()
"""


@pytest.fixture(name="written", autouse=True)
def log_to_memory(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


@contextmanager
def another_agent(state_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state_dir)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = InstanceLock(tmp_path), InstanceLock(tmp_path)
    assert first.try_acquire()
    assert first.try_acquire(), "having it already is having it"
    assert not second.try_acquire()
    assert not second.acquire(timeout_s=0.01, every_s=0.001)
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()


def test_the_holder_is_named(tmp_path: Path) -> None:
    with another_agent(tmp_path) as process:
        lock = InstanceLock(tmp_path)
        assert not lock.try_acquire()
        assert lock.holder().startswith(f"pid {process.pid} on ")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="bytes"),
        pytest.param(b"x" * 100_000, id="long"),
        pytest.param(b"-1 host", id="no pid"),
    ],
)
def test_an_unreadable_holder_is_another_process(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "agent.lock").write_bytes(text)
    assert InstanceLock(tmp_path).holder() == "another process"


def test_the_lock_ends_with_its_holder_however_it_ends(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path)
    with another_agent(tmp_path) as process:
        assert not lock.try_acquire()
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        assert lock.acquire(timeout_s=10)
    lock.release()


def test_a_child_that_outlives_us_does_not_keep_the_lock(tmp_path: Path) -> None:
    program = HOLDER.replace(
        "signal.pause()",
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); input()'], "
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()",
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        child = int(process.stdout.readline())
        os.kill(child, signal.SIGSTOP)  # it would end with its parent's pipe
        process.kill()
        process.wait(20)
    try:
        lock = InstanceLock(tmp_path)
        assert lock.acquire(timeout_s=10)
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_file_is_ours_alone(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path / "new" / "state")
    assert lock.try_acquire()
    assert lock.path.stat().st_mode & 0o777 == 0o600
    assert lock.path.parent.stat().st_mode & 0o777 == 0o700
    assert lock.path.read_text().split()[0] == str(os.getpid())
    lock.release()
    assert lock.path.exists(), "deleting it would let two agents hold two files"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agent.lock").symlink_to(tmp_path / "target")
    with pytest.raises(LockUnavailable, match="--state-dir"):
        InstanceLock(tmp_path / "state").try_acquire()
    assert (tmp_path / "target").read_text() == "precious"


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    first, second = InstanceLock(tmp_path), InstanceLock(tmp_path)
    assert first.try_acquire()
    first.path.unlink()
    assert not first.still_there()
    assert second.try_acquire()
    assert not first.try_acquire(), "the other one has the file that counts"
    second.release()
    assert first.try_acquire()
    first.release()


# --- keeping others out, from uninstall -------------------------------------------------------------


def test_keeping_out_leaves_no_trace(tmp_path: Path) -> None:
    absent = InstanceLock(tmp_path / "absent")
    assert absent.try_keep_out(), "where there is no lock nobody holds it"
    assert not absent.held
    assert not absent.path.parent.exists()
    agent, lock = InstanceLock(tmp_path), InstanceLock(tmp_path)
    assert agent.try_acquire()
    agent.release()
    before = lock.path.stat()
    assert lock.try_keep_out()
    assert not agent.try_acquire(), "an agent that starts now waits"
    lock.release()
    after = lock.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert agent.try_acquire()
    agent.release()


def test_nobody_is_kept_out_while_an_agent_acts(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path)
    with another_agent(tmp_path) as process:
        assert not lock.try_keep_out()
        assert not lock.held
        assert lock.holder().startswith(f"pid {process.pid} on ")


def test_a_lock_that_cannot_be_looked_at_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").symlink_to(tmp_path / "target")
    for state_dir in (tmp_path, Path("/dev/null/state")):
        with pytest.raises(LockUnavailable, match="cannot be opened"):
            InstanceLock(state_dir).try_keep_out()
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    "state_dir",
    [
        pytest.param("/proc/no/such", id="nothing can be made there"),
        pytest.param("/dev/null/state", id="no directory"),
    ],
)
def test_where_there_can_be_no_lock(state_dir: str) -> None:
    with pytest.raises(LockUnavailable, match="cannot be opened"):
        InstanceLock(Path(state_dir)).try_acquire()


# --- the service ---------------------------------------------------------------------------------


@contextmanager
def service(
    state_dir: Path, *others: Service, gate: Gate | None = None
) -> Iterator[tuple[Instance, Published[bool], Supervisor]]:
    may_act = Published(False)
    lock = InstanceLock(state_dir)
    all_left = gate.wait_until_empty if gate else lambda _: False
    instance = Instance(lock, may_act, all_left=all_left, try_every_s=0.02, look_every_s=0.02)
    supervisor = Supervisor([instance, *others], policy=RestartPolicy(first_s=0.01))
    supervisor.start()
    try:
        yield instance, may_act, supervisor
    finally:
        supervisor.stop()
        assert supervisor.join(timeout_s=10) == 0
        lock.release()


def test_the_second_agent_waits_and_says_for_whom(tmp_path: Path, written: io.StringIO) -> None:
    with another_agent(tmp_path) as process, service(tmp_path) as (instance, may_act, supervisor):
        who = eventually(lambda: instance.waiting_for)
        assert who.startswith(f"pid {process.pid} on ")
        eventually(lambda: "another_agent_runs" in written.getvalue())
        assert not may_act.now()
        process.kill()
        assert may_act.wait_until(lambda held: held, timeout_s=10)
        assert instance.waiting_for == ""
        assert supervisor.restarts() == {"instance": 0}
    assert written.getvalue().count("another_agent_runs") == 1
    assert written.getvalue().count("instance_lock_taken") == 1


def test_the_next_agent_does_not_wait_for_long() -> None:
    """Between two agents kubelet has no vGPUs, and refuses whoever comes, for good."""
    assert TRY_EVERY_S <= 0.1


def test_without_a_place_for_the_lock_it_goes_ahead_and_says_so(written: io.StringIO) -> None:
    with service(Path("/proc/no/such")) as (_, may_act, _):
        assert may_act.wait_until(lambda held: held, timeout_s=10)
        eventually(lambda: "instance_lock_unavailable" in written.getvalue())
    assert "--state-dir" in written.getvalue()


class Leaving:
    """A service that takes leave until it is told that it has done so."""

    name = "leaving"

    def __init__(self) -> None:
        self.begun, self.done = threading.Event(), threading.Event()

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pause(10)
        self.begun.set()
        assert self.done.wait(10)


def test_the_next_agent_may_act_once_nobody_does_though_others_have_not_ended(
    tmp_path: Path,
) -> None:
    acts, looks, gate = Leaving(), Leaving(), Gate(Published(True), on_open=lambda: None)
    with service(tmp_path, Gated(acts, gate), looks, gate=gate) as (_, may_act, supervisor):
        assert may_act.wait_until(lambda held: held, timeout_s=10)
        eventually(lambda: not gate.wait_until_empty(0))
        supervisor.stop()
        assert acts.begun.wait(10)
        assert not InstanceLock(tmp_path).try_acquire()
        acts.done.set()
        eventually(InstanceLock(tmp_path).try_acquire)
        assert not may_act.now()
        looks.done.set()


def test_the_lock_outlives_the_service(tmp_path: Path) -> None:
    """The other services are still taking leave when this one has ended."""
    with service(tmp_path) as (_, may_act, supervisor):
        assert may_act.wait_until(lambda held: held, timeout_s=10)
        supervisor.stop()
        supervisor.join(timeout_s=10)
        assert not InstanceLock(tmp_path).try_acquire()


def test_the_agent_steps_back_when_another_has_the_file_that_counts(tmp_path: Path) -> None:
    with service(tmp_path) as (_, may_act, _):
        assert may_act.wait_until(lambda held: held, timeout_s=10)
        usurper = InstanceLock(tmp_path)
        usurper.path.unlink()
        if usurper.try_acquire():  # otherwise the service was quicker: it holds the new file
            assert may_act.wait_until(lambda held: not held, timeout_s=10)
            usurper.release()
        assert may_act.wait_until(lambda held: held, timeout_s=10)


@pytest.mark.parametrize("linked", [pytest.param(True, id="taken"), pytest.param(False, id="not")])
def test_a_directory_that_is_a_link(tmp_path: Path, linked: bool) -> None:
    """An administrator's for the state; nobody's where the agent makes its directory itself."""
    (tmp_path / "there").mkdir()
    (tmp_path / "state").symlink_to("there")
    lock = InstanceLock(tmp_path / "state", linked=linked)
    if linked:
        assert lock.try_acquire()
        assert (tmp_path / "there/agent.lock").exists()
    else:
        with pytest.raises(LockUnavailable):
            lock.try_acquire()
        assert list((tmp_path / "there").iterdir()) == []
    lock.release()
