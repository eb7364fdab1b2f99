"""The supervisor: restart, giving up, pulse, clean stop; signals in a process of its own."""

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from agent import logs
from agent.supervisor import TICK_S, Lifeline, RestartPolicy, Supervisor
from tests.interrupt import skip_if_ignored

ROOT = Path(__file__).parents[2]
QUICK = RestartPolicy(first_s=0.001, longest_s=0.002, budget=3)


@dataclass
class Clock:
    """Time that only the test moves."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Loop:
    """A service whose turns are given by the test; it then waits for the end."""

    turns: list[Callable[[Lifeline], None]] = field(default_factory=list)
    name: str = "loop"
    runs: int = 0

    def run(self, life: Lifeline) -> None:
        self.runs += 1
        if self.runs <= len(self.turns):
            self.turns[self.runs - 1](life)
            return
        while life.pause(1.0):
            pass


def crash(_: Lifeline) -> None:
    raise RuntimeError("broken")


def leave(_: Lifeline) -> None:
    return


@pytest.fixture(name="written", autouse=True)
def log_to_memory(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


@pytest.fixture(name="supervise")
def supervisors() -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def supervise(*services: Loop, policy: RestartPolicy = QUICK, **more: object) -> Supervisor:
        supervisor = Supervisor(list(services), policy=policy, **more)  # type: ignore[arg-type]
        made.append(supervisor)
        supervisor.start()
        return supervisor

    yield supervise
    for supervisor in made:
        supervisor.stop()
        supervisor.join(timeout_s=10)


# --- backoff -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crashes", "jitter", "delay_s"),
    [
        pytest.param(1, 0.0, 0.25, id="first, shortest"),
        pytest.param(1, 1.0, 0.5, id="first, longest"),
        pytest.param(3, 1.0, 2.0, id="doubling"),
        pytest.param(8, 1.0, 30.0, id="capped"),
        pytest.param(1000, 0.0, 15.0, id="no overflow"),
    ],
)
def test_delay(crashes: int, jitter: float, delay_s: float) -> None:
    assert RestartPolicy().delay_s(crashes, jitter) == delay_s


@given(crashes=st.integers(1, 900), jitter=st.floats(0, 1, exclude_max=True))
def test_delays_stay_in_bounds(crashes: int, jitter: float) -> None:
    policy = RestartPolicy()
    delay_s = policy.delay_s(crashes, jitter)
    assert policy.first_s / 2 <= delay_s <= policy.longest_s
    assert delay_s <= policy.delay_s(crashes + 1, jitter)


# --- the lifeline --------------------------------------------------------------------------------


def test_a_pulse_is_a_promise() -> None:
    clock = Clock()
    life = Lifeline(threading.Event(), clock)
    life.pulse(5.0)
    clock.now_s = 4.0
    assert life.overdue_s() == -1.0
    clock.now_s = 7.0
    assert life.overdue_s() == 2.0


def test_pause_ends_at_once_when_the_agent_stops() -> None:
    stop = threading.Event()
    life = Lifeline(stop)
    assert life.pause(0.0)
    ended: list[bool] = []
    sleeper = threading.Thread(target=lambda: ended.append(life.pause(600)))
    sleeper.start()
    stop.set()
    sleeper.join(10)
    assert ended == [False]


def test_stop_callbacks_run_once_each_and_alone() -> None:
    stop = threading.Event()
    life = Lifeline(stop)
    called: list[str] = []
    life.on_stop(lambda: called.append("first"))
    life.on_stop(lambda: called.remove("never there"))
    life.on_stop(lambda: called.append("third"))
    stop.set()
    life.interrupt()
    life.interrupt()
    assert called == ["first", "third"]
    life.on_stop(lambda: called.append("late"))
    assert called[-1] == "late"


# --- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn",
    [pytest.param(crash, id="an exception"), pytest.param(leave, id="an early return")],
)
def test_a_crashed_service_is_started_again(
    supervise: Callable[..., Supervisor], written: io.StringIO, turn: Callable[[Lifeline], None]
) -> None:
    loop = Loop([turn, turn])
    supervisor = supervise(loop)
    eventually(lambda: loop.runs == 3)
    assert supervisor.restarts() == {"loop": 2}
    assert supervisor.pause(0)
    assert written.getvalue().count("service_crashed") == 2


def test_a_crash_leaves_the_others_alone(supervise: Callable[..., Supervisor]) -> None:
    broken, fine = Loop([crash] * 3, name="broken"), Loop(name="fine")
    supervisor = supervise(broken, fine)
    eventually(lambda: broken.runs == 4)
    assert (fine.runs, supervisor.restarts()) == (1, {"broken": 3, "fine": 0})


def test_too_many_crashes_in_a_row_end_the_agent(
    supervise: Callable[..., Supervisor], written: io.StringIO
) -> None:
    broken, fine = Loop([crash] * 100, name="broken"), Loop(name="fine")
    supervisor = supervise(broken, fine)
    eventually(lambda: not supervisor.pause(0))
    assert supervisor.join(timeout_s=10) == 1
    assert supervisor.gave_up == "broken"
    assert broken.runs == QUICK.budget + 1
    assert "agent_gave_up" in written.getvalue()


def test_a_long_run_is_forgiven(supervise: Callable[..., Supervisor]) -> None:
    clock = Clock()

    def crash_late(life: Lifeline) -> None:
        clock.now_s += QUICK.forgiven_after_s
        crash(life)

    loop = Loop([crash, crash, crash_late] * 4)
    supervisor = supervise(loop, clock=clock)
    eventually(lambda: loop.runs == 13)
    assert supervisor.pause(0)


def test_a_crash_while_stopping_is_no_crash(
    supervise: Callable[..., Supervisor], written: io.StringIO
) -> None:
    def crash_at_the_end(life: Lifeline) -> None:
        life.pause(600)
        crash(life)

    loop = Loop([crash_at_the_end])
    supervisor = supervise(loop)
    eventually(lambda: loop.runs)
    supervisor.stop()
    assert supervisor.join(timeout_s=10) == 0
    assert "service_crashed" not in written.getvalue()


# --- stuck, and stopping -------------------------------------------------------------------------


def test_a_late_pulse_is_stuck(supervise: Callable[..., Supervisor]) -> None:
    clock = Clock()
    release = threading.Event()

    def hang(life: Lifeline) -> None:
        life.pulse(5.0)
        release.wait(30)

    hanging, fine = Loop([hang], name="hanging"), Loop(name="fine")
    supervisor = supervise(hanging, fine, clock=clock)
    eventually(lambda: hanging.runs and fine.runs)
    assert supervisor.stuck(grace_s=60) == []
    eventually(lambda: supervisor._wards[0].life.overdue_s() == -5.0)
    clock.now_s = 65.5
    supervisor._wards[1].life.pulse(1.0)
    assert supervisor.stuck(grace_s=60) == ["hanging"]
    release.set()


def test_a_service_that_waits_for_its_restart_is_not_stuck(
    supervise: Callable[..., Supervisor],
) -> None:
    clock = Clock()
    loop = Loop([crash])
    supervisor = supervise(loop, policy=RestartPolicy(first_s=600, longest_s=600), clock=clock)
    eventually(lambda: supervisor._wards[0].backing_off)
    clock.now_s = 10_000.0
    assert supervisor.stuck() == []


def test_a_service_that_does_not_end_is_named(
    supervise: Callable[..., Supervisor], written: io.StringIO
) -> None:
    release = threading.Event()
    loop = Loop([lambda _: release.wait(30) and None], name="deaf")  # type: ignore[list-item, return-value]
    supervisor = supervise(loop)
    eventually(lambda: loop.runs)
    supervisor.stop()
    assert supervisor.join(timeout_s=0.05) == 1
    assert "services=deaf" in written.getvalue()
    release.set()


def test_stop_interrupts_a_blocking_call(supervise: Callable[..., Supervisor]) -> None:
    interrupted = threading.Event()

    def block(life: Lifeline) -> None:
        life.on_stop(interrupted.set)
        interrupted.wait(30)

    loop = Loop([block])
    supervisor = supervise(loop)
    eventually(lambda: loop.runs)
    supervisor.stop()
    assert supervisor.join(timeout_s=10) == 0


# --- serve: real signals -------------------------------------------------------------------------

PROGRAM = """
import sys, threading
from agent.supervisor import Lifeline, RestartPolicy, Supervisor, serve

class Loop:
    name = "loop"
    def run(self, life):
        while life.pause(0.05):
            pass

class Deaf:
    name = "deaf"
    def run(self, life):
        life.pulse(3600)
        threading.Event().wait()

class Broken:
    name = "broken"
    def run(self, life):
        raise RuntimeError("broken")

def say(text):
    print(text.replace("\\n", " "), flush=True)

loops = {"loop": Loop, "deaf": Deaf, "broken": Broken}
supervisor = Supervisor([Loop()] + [loops[name]() for name in sys.argv[1:]],
                        policy=RestartPolicy(first_s=0.01, longest_s=0.01))
raise SystemExit(serve(supervisor, notify=say, tick=lambda: "sharing 2 GPUs", stop_within_s=0.5))
"""


@pytest.mark.parametrize(
    ("loops", "sent", "code"),
    [
        pytest.param([], signal.SIGTERM, 0, id="SIGTERM"),
        pytest.param([], signal.SIGINT, 0, id="SIGINT"),
        pytest.param(["deaf"], signal.SIGTERM, 1, id="a loop does not end"),
        pytest.param(["broken"], None, 1, id="a loop keeps crashing"),
    ],
)
def test_serve(loops: list[str], sent: signal.Signals | None, code: int) -> None:
    skip_if_ignored(sent or 0)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *loops],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip()]
        if sent is not None:
            said += [process.stdout.readline().strip() for _ in range(2)]
            process.send_signal(sent)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == code
    said += rest.splitlines()
    assert said[0] == "READY=1"
    assert said[-1] == "STOPPING=1"
    if sent is not None:
        assert said[1:3] == ["WATCHDOG=1", "STATUS=sharing 2 GPUs"]
        assert f"signal={sent.name}" in errors


def test_it_goes_on_after_it_was_stopped_for_longer_than_a_tick() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "READY=1"
        process.send_signal(signal.SIGSTOP)
        time.sleep(TICK_S + 0.5)
        process.send_signal(signal.SIGCONT)
        said = [process.stdout.readline().strip() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert said == ["WATCHDOG=1", "STATUS=sharing 2 GPUs", "WATCHDOG=1"]
    assert "signal=SIGTERM" in errors
    assert process.returncode == 0


def test_a_stuck_loop_gets_no_watchdog_vouching() -> None:
    program = PROGRAM.replace("life.pulse(3600)", "life.pulse(-100)")
    program = program.replace("flush=True", "flush=True, file=sys.stderr")  # one order of events
    with subprocess.Popen(
        [sys.executable, "-c", program, "deaf"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while "services_stuck" not in lines[-1]:
            assert process.poll() is None
            lines.append(process.stderr.readline())
        time.sleep(4.5)  # two more ticks, in which it could vouch
        process.send_signal(signal.SIGTERM)
        said = "".join(lines) + process.stderr.read()  # one reader: nothing is read past
    assert "STOPPING=1" in said
    assert "WATCHDOG=1" not in said
