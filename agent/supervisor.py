"""One supervisor for every loop of the agent: restart, backoff, pulse, clean stop.

A `Service` is a name and `run(life)`. Its loop goes on until `life.stopping`, or while `life.pause`
says so. Whatever it does next, work or rest, it promises a sign of life in time (`life.pulse`;
a pause is such a promise, too), and a service whose pulse is late counts as stuck. A service that
raises *or returns* while the agent is not stopping has crashed: it is restarted with exponential
backoff and jitter, and when it crashes too often in a row the whole agent gives up, so that systemd
or kubelet takes over.
"""

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from agent import logs

log = logs.get(__name__)

TICK_S = 2.0  # of the main thread; a signal is taken at once
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXIT_STOPPED, EXIT_GAVE_UP, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How a crashed service is brought back."""

    first_s: float = 0.5
    longest_s: float = 30.0
    budget: int = 8  # crashes in a row that are forgiven
    forgiven_after_s: float = 600.0  # a run this long starts the count anew

    def delay_s(self, crashes: int, jitter: float) -> float:
        """Pause before restart number `crashes` (1, 2, ...); `jitter` in [0, 1) spreads a fleet."""
        ceiling = min(self.longest_s, self.first_s * 2.0 ** (crashes - 1))
        return ceiling * (0.5 + 0.5 * jitter)


class Lifeline:
    """What a running service holds: when to stop, and the pulse by which it shows it lives."""

    def __init__(self, stop: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop = stop
        self._clock = clock
        self._due_at_s = clock()
        self._on_stop: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def stopping(self) -> bool:
        """Whether the agent is on its way out."""
        return self._stop.is_set()

    def pause(self, seconds: float) -> bool:
        """Sleep, at most until the agent stops; tell whether it goes on."""
        self.pulse(seconds)
        return not self._stop.wait(seconds)

    def pulse(self, within_s: float) -> None:
        """Promise the next sign of life `within_s`; late means stuck."""
        self._due_at_s = self._clock() + within_s

    def overdue_s(self) -> float:
        """By how much the promised sign of life is late; negative while it is not."""
        return self._clock() - self._due_at_s

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the agent stops, to end a blocking call from outside.

        It runs on another thread, at once if the agent is already stopping. It must not block.
        """
        with self._lock:
            self._on_stop.append(callback)
        if self._stop.is_set():
            self.interrupt()

    def interrupt(self) -> None:
        """Run the `on_stop` callbacks, each once."""
        with self._lock:
            callbacks, self._on_stop = self._on_stop, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - one bad callback must not keep the others waiting
                log.error("stop callback failed", trace=traceback.format_exc())


class Service(Protocol):
    """A loop of the agent."""

    @property
    def name(self) -> str:
        """Short and constant: it is a label in logs and metrics."""

    def run(self, life: Lifeline) -> None:
        """Work until `life.stopping`; returning earlier counts as a crash."""


@dataclass(slots=True)
class _Ward:
    """One service under supervision."""

    service: Service
    life: Lifeline
    thread: threading.Thread | None = None
    restarts: int = 0
    backing_off: bool = False
    crashes_in_a_row: int = field(default=0)


class Supervisor:
    """Runs each service in a thread of its own until `stop()`."""

    def __init__(
        self,
        services: list[Service],
        *,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._stop = threading.Event()
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._jitter = jitter
        self._wards = [_Ward(service, Lifeline(self._stop, clock)) for service in services]
        self.gave_up = ""

    def start(self) -> None:
        """Start every service."""
        for ward in self._wards:
            thread = threading.Thread(
                target=self._keep_alive, args=(ward,), name=ward.service.name, daemon=True
            )
            ward.thread = thread
            thread.start()

    def _keep_alive(self, ward: _Ward) -> None:
        while not self._stop.is_set():
            started_s = self._clock()
            ward.life.pulse(0.0)
            try:
                ward.service.run(ward.life)
                trace, error = "", "it returned although the agent is not stopping"
            except Exception as caught:  # noqa: BLE001 - whatever it is, the loop must live again
                trace, error = traceback.format_exc(), f"{type(caught).__name__}: {caught}"
            if self._stop.is_set():
                return
            self._count_crash(ward, ran_s=self._clock() - started_s, error=error, trace=trace)
            if ward.crashes_in_a_row > self._policy.budget:
                self._give_up(ward, error)
                return
            delay_s = self._policy.delay_s(ward.crashes_in_a_row, self._jitter())
            ward.backing_off = True
            self._stop.wait(delay_s)
            ward.backing_off = False

    def _count_crash(self, ward: _Ward, *, ran_s: float, error: str, trace: str) -> None:
        if ran_s >= self._policy.forgiven_after_s:
            ward.crashes_in_a_row = 0
        ward.crashes_in_a_row += 1
        ward.restarts += 1
        log.error(
            "service crashed",
            service=ward.service.name,
            crashes_in_a_row=ward.crashes_in_a_row,
            error=error,
            trace=trace,
        )

    def _give_up(self, ward: _Ward, error: str) -> None:
        self.gave_up = ward.service.name
        log.error("agent gave up", service=ward.service.name, error=error)
        self.stop()

    def pause(self, seconds: float) -> bool:
        """Sleep, at most until the agent stops; tell whether it goes on."""
        return not self._stop.wait(seconds)

    def stop(self) -> None:
        """Ask every service to end."""
        self._stop.set()
        for ward in self._wards:
            ward.life.interrupt()

    def stuck(self, grace_s: float = 60.0) -> list[str]:
        """Names of the services whose promised sign of life is more than `grace_s` late."""
        return [
            ward.service.name
            for ward in self._wards
            if not ward.backing_off and ward.life.overdue_s() > grace_s
        ]

    def restarts(self) -> dict[str, int]:
        """How often each service was restarted since the agent started."""
        return {ward.service.name: ward.restarts for ward in self._wards}

    def join(self, timeout_s: float = 4.0) -> int:
        """Wait for the services to end; give the exit code of the agent."""
        deadline_s = self._clock() + timeout_s
        hanging = []
        for ward in self._wards:
            if ward.thread is None:
                continue
            ward.thread.join(max(0.0, deadline_s - self._clock()))
            if ward.thread.is_alive():
                hanging.append(ward.service.name)
        if hanging:
            log.error("services did not stop", services=",".join(hanging), waited_s=timeout_s)
        return EXIT_GAVE_UP if hanging or self.gave_up else EXIT_STOPPED


def end_at_a_signal() -> None:
    """In a container, until `serve`: the kernel keeps from process 1 what it has no handler for.

    Elsewhere a signal ends us at once, as it should: nothing was begun that has to be ended.
    """
    if os.getpid() != 1:
        return

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(EXIT_STOPPED)

    for number in (signal.SIGTERM, signal.SIGHUP):  # of SIGINT Python takes care
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def serve(
    supervisor: Supervisor,
    *,
    notify: Callable[[str], None],
    tick: Callable[[], str] = lambda: "",
    stop_within_s: float = 4.0,
) -> int:
    """Main thread: start everything, wait for a signal, and meanwhile vouch for the loops.

    `tick` is called every TICK_S and may return a status line for the init system. Signals are
    waited for, not handled: a handler that sets an Event can deadlock with a thread in `wait`. A
    thread does, without a deadline: whoever is stopped (SIGSTOP, a cgroup's freezer) until after
    one has Python's `sigtimedwait` return what no signal wrote. One that was ignored when we were
    started (nohup) stays ignored. SIGHUP ends the agent like SIGTERM, with exit code 0: settings
    are read at the start, and whoever supervises us starts us again if it does so after every end
    (a DaemonSet; systemd with Restart=always).
    """
    signals = {number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before any thread: they inherit the mask
    received: list[int] = []

    def stop_at_a_signal() -> None:
        received.append(signal.sigwait(signals))
        supervisor.stop()

    threading.Thread(target=stop_at_a_signal, name="signals", daemon=True).start()
    supervisor.start()
    notify("READY=1")  # not "registered": a kubelet that starts after us must not fail our start
    status = ""
    while supervisor.pause(TICK_S):
        if stuck := supervisor.stuck():
            log.failing("services stuck", error=",".join(stuck))
            continue
        log.recovered("services stuck")
        notify("WATCHDOG=1")
        if (now := tick()) != status:
            status = now
            notify(f"STATUS={status}")
    for number in received:
        log.info("signal received", signal=signal.Signals(number).name)
    notify("STOPPING=1")
    return supervisor.join(timeout_s=stop_within_s)
