"""Blocks of HAMi-core's library end with the agent, however that ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hami_regions import GPU_A, HamiRegion, hami_region, hami_tenant
from waiting import eventually

from agent.adapters.block_guard import ProcessGuard
from agent.ports import Held

AGENT = Path(__file__).resolve().parents[1] / "feedback_agent.py"
UID = "0a1b2c3d-0000-4000-8000-00000000000"


@pytest.fixture
def guard() -> Iterator[ProcessGuard]:
    made = ProcessGuard()
    yield made
    made.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def opened(stack: ExitStack, region: HamiRegion) -> Held:
    file = stack.enter_context(region.path.open("r+b"))
    info = os.fstat(file.fileno())
    return Held(file.fileno(), region.layout["recent_kernel"], (info.st_dev, info.st_ino))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("word", [pytest.param(-1, id="waits"), pytest.param(1, id="asks")])
@pytest.mark.parametrize("version", [0, 1])
def test_what_is_held_is_let_go_at_the_end(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack, version: int, word: int
) -> None:
    region = hami_region(tmp_path / "r", GPU_A, version=version)
    assert eventually(lambda: guard.hold({("a", "b"): opened(stack, region)}))
    region.put("recent_kernel", word)
    before = region.path.read_bytes()
    pid = guard.pid
    assert pid is not None
    guard.close()
    assert eventually(lambda: region.recent_kernel == 0)
    assert eventually(lambda: not running(pid))
    region.put("recent_kernel", word)
    assert region.path.read_bytes() == before  # and nothing else was written


@pytest.mark.parametrize("word", [0, 2, 2**31 - 1])
def test_who_is_not_blocked_is_left_alone(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack, word: int
) -> None:
    region, other = (hami_region(tmp_path / name, GPU_A) for name in "ab")
    held = {("a", "b"): opened(stack, region), ("b", "b"): opened(stack, other)}
    assert eventually(lambda: guard.hold(held))
    region.put("recent_kernel", word)
    other.put("recent_kernel", -1)
    guard.close()
    assert eventually(lambda: other.recent_kernel == 0)
    assert region.recent_kernel == word


def test_who_is_not_held_any_more_is_left_alone(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack
) -> None:
    first, second = (hami_region(tmp_path / name, GPU_A) for name in "ab")
    assert eventually(lambda: guard.hold({("a", "b"): opened(stack, first)}))
    pid = guard.pid
    assert eventually(lambda: guard.hold({("b", "b"): opened(stack, second)}))
    assert guard.pid == pid
    first.put("recent_kernel", -1)
    second.put("recent_kernel", -1)
    guard.close()
    assert eventually(lambda: second.recent_kernel == 0)
    assert first.recent_kernel == -1


def test_nobody_runs_while_nobody_is_held(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack
) -> None:
    assert guard.hold({})
    assert guard.pid is None
    assert eventually(lambda: guard.hold({("a", "b"): opened(stack, hami_region(tmp_path / "r"))}))
    pid = guard.pid
    assert pid is not None
    assert guard.hold({})
    assert guard.pid is None
    assert eventually(lambda: not running(pid))


def test_signals_that_end_the_agent_do_not_end_it(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack
) -> None:
    """Systemd sends SIGTERM to both."""
    region = hami_region(tmp_path / "r", GPU_A)
    held = {("a", "b"): opened(stack, region)}
    assert eventually(lambda: guard.hold(held))
    assert guard.pid is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guard.pid, number)
    region.put("recent_kernel", -1)
    guard.close()
    assert eventually(lambda: region.recent_kernel == 0)


def test_one_that_was_killed_is_started_again(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack
) -> None:
    held = {("a", "b"): opened(stack, hami_region(tmp_path / "r", GPU_A))}
    assert eventually(lambda: guard.hold(held))
    first = guard.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: guard.hold(held) and guard.pid != first)


@pytest.mark.parametrize(
    "command",
    [pytest.param(("/nonexistent",), id="missing"), pytest.param(("/bin/false",), id="fails")],
)
def test_one_that_does_not_start_is_no_guard(
    tmp_path: Path, stack: ExitStack, command: tuple[str, ...]
) -> None:
    guard = ProcessGuard(command)
    held = {("a", "b"): opened(stack, hami_region(tmp_path / "r", GPU_A))}
    assert not guard.hold(held)
    assert not guard.hold(held)
    guard.close()


def test_it_has_none_of_the_agents_files(
    tmp_path: Path, guard: ProcessGuard, stack: ExitStack
) -> None:
    """The agent's lock, above all: nobody could take it while this process lives."""
    lock = stack.enter_context((tmp_path / "lock").open("w"))
    os.set_inheritable(lock.fileno(), True)
    region = hami_region(tmp_path / "r", GPU_A)
    assert eventually(lambda: guard.hold({("a", "b"): opened(stack, region)}))
    links = [str(fd.readlink()) for fd in Path(f"/proc/{guard.pid}/fd").iterdir()]
    assert str(region.path) in links
    assert str(tmp_path / "lock") not in links


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


# --- the whole of it ------------------------------------------------------------------------------


def an_agent(
    root: Path, stack: ExitStack, *before: str, log: Path | None = None
) -> "subprocess.Popen[str]":
    """It, started by what is said `before`."""
    words = [*before, sys.executable, AGENT, root]
    said = stack.enter_context(log.open("w")) if log else None
    agent = stack.enter_context(
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True)
    )
    stack.callback(agent.kill)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    return agent


def a_container(root: Path, number: int, **more: int) -> HamiRegion:
    home = root / "containers" / f"{UID}{number}_main"
    home.mkdir()
    return hami_region(home / "x.cache", GPU_A, **more)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "vgpu"
    for directory in (made, made / "containers", made / "state"):
        directory.mkdir(mode=0o755)
    return made


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_tenant_with_hami_cores_library_waits_and_resumes(
    root: Path, stack: ExitStack, end: signal.Signals, version: int
) -> None:
    high = a_container(root, 0, version=version, priority=0)
    low = a_container(root, 1, version=version, priority=1)
    first = stack.enter_context(hami_tenant(high, sleep_s=0.05))
    stack.callback(first.kill)
    second = stack.enter_context(hami_tenant(low, sleep_s=0.05))
    stack.callback(second.kill)
    assert second.stdout is not None
    agent = an_agent(root, stack)
    assert eventually(lambda: low.recent_kernel == -1)
    assert high.recent_kernel >= 0
    assert (high.switch, low.switch) == (0, 1)
    agent.send_signal(end)
    agent.wait(10)
    assert eventually(lambda: low.recent_kernel == 2)  # it launches again
    assert second.poll() is None


IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace: run it as root")


@needs_root
def test_nobody_is_blocked_where_the_guard_would_end_with_the_agent(
    root: Path, stack: ExitStack, tmp_path: Path
) -> None:
    """As in a pod without hostPID: the kernel ends a namespace with its first process."""
    high, low = a_container(root, 0, priority=0), a_container(root, 1, priority=1)
    stack.callback(stack.enter_context(hami_tenant(high, sleep_s=0.05)).kill)
    agent = an_agent(root, stack, *IN_A_NAMESPACE, log=tmp_path / "log")
    assert eventually(lambda: low.recent_kernel <= 0)  # counted down, or blocked
    assert low.recent_kernel == 0
    agent.kill()
    agent.wait(10)
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "hostPID: true" in line]
    assert len(said) == 1


@needs_root
def test_the_guard_outlives_an_agent_that_is_not_the_first_of_its_namespace(
    root: Path, stack: ExitStack
) -> None:
    high, low = a_container(root, 0, priority=0), a_container(root, 1, priority=1)
    stack.callback(stack.enter_context(hami_tenant(high, sleep_s=0.05)).kill)
    first = ("sh", "-c", '"$@" & sleep 60', "sh")
    space = an_agent(root, stack, *IN_A_NAMESPACE, *first)
    assert eventually(lambda: low.recent_kernel == -1)
    (shell,) = children(space.pid)
    agent = next(pid for pid in children(shell) if str(AGENT) in command_of(pid))
    os.kill(agent, signal.SIGKILL)
    assert eventually(lambda: low.recent_kernel == 0)


def test_what_an_earlier_agent_left_blocked_is_lifted(root: Path, stack: ExitStack) -> None:
    region = a_container(root, 0, priority=1)
    region.put("recent_kernel", -1)
    an_agent(root, stack)
    assert region.recent_kernel == 0


def test_the_last_one_that_is_blocked_ends_the_guard(root: Path, stack: ExitStack) -> None:
    high, low = a_container(root, 0, priority=0), a_container(root, 1, priority=1)
    agent = an_agent(root, stack)

    def started() -> bool:
        high.put("recent_kernel", 2)
        return low.recent_kernel == -1

    assert eventually(started)
    assert eventually(lambda: high.recent_kernel == 0)
    assert eventually(lambda: low.recent_kernel == 0)
    assert eventually(lambda: not any(running(pid) for pid in children(agent.pid)))
