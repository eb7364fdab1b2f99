"""A step of the demo that hangs is a failed check, whatever it hangs in."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from agent.demo import deadline
from agent.demo.story import checked


def waits_for_a_lock() -> str:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return "never"


def waits_for_a_program() -> str:
    return subprocess.run(["sleep", "600"], check=False, capture_output=True, text=True).stdout


def swallows_the_first() -> str:
    try:
        time.sleep(600)
    except deadline.HungError:
        time.sleep(600)
    return "never"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", [waits_for_a_lock, waits_for_a_program, swallows_the_first])
def test_a_step_that_hangs_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], step: Callable[[], str]
) -> None:
    monkeypatch.setattr(deadline, "STEP_S", 0.3)
    monkeypatch.setattr(deadline, "AGAIN_S", 0.3)
    before, left_s = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]

    check, hung = checked("a step", step, time.monotonic())

    assert (check.passed, hung) == (False, True)
    assert check.detail.startswith("HungError: not done in 0.3 s")
    assert signal.getsignal(signal.SIGALRM) is before
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= left_s, "the test is bounded as before"
    assert step.__name__ in capfd.readouterr().err, "where it hung is told"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(AssertionError("so"), "AssertionError: so", id="a check"),
        pytest.param(TimeoutError("so"), "TimeoutError: so", id="a wait of its own"),
        pytest.param(
            subprocess.TimeoutExpired("top", 60),
            "TimeoutExpired: Command 'top' timed out after 60 seconds",
            id="a command that hangs",
        ),
    ],
)
def test_a_step_that_fails_has_not_hung(error: Exception, said: str) -> None:
    def step() -> str:
        raise error

    check, hung = checked("a step", step, time.monotonic())
    assert (check.passed, check.detail, hung) == (False, said, False)


def test_a_step_that_is_done_is_told() -> None:
    check, hung = checked("a step", lambda: "all well", time.monotonic())
    assert (check.passed, check.detail, hung) == (True, "all well", False)
