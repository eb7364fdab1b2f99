"""Virtual time for loops that block: each runs in a thread of its own, one at a time.

Whoever waits (a pause, an event, the next line of a watch) hands over to the one who is due next;
time passes only while all wait. Requests are sent over real sockets meanwhile: they take none.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from functools import partial

from agent.supervisor import Lifeline

STACK_BYTES = 256 * 1024


class World:
    """The clock and what is due. Only `at` may be called while another thread has its turn."""

    def __init__(self, seed: int = 1) -> None:
        self.now_s = 0.0
        self.rng = random.Random(seed)  # noqa: S311 - can be repeated
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.turn = threading.Lock()  # held by whoever runs; the main thread waits for it here
        self.turn.acquire()
        self.running: Task | None = None

    def clock(self) -> float:
        return self.now_s

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Have something done, by the main thread."""
        with self._lock:
            heapq.heappush(self._due, (max(when_s, self.now_s), next(self._numbers), action))

    def run_until(self, end_s: float) -> None:
        """Let time pass."""
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > end_s:
                    break
                self.now_s, _, action = heapq.heappop(self._due)
            action()
        self.now_s = end_s

    def pause(self, seconds: float) -> None:
        """For the thread whose turn it is: `time.sleep`."""
        if seconds > 0 and self.running is not None:
            self.running.wait(seconds)


class Task:
    """A thread that runs when it is its turn. `failure` is what it ended with, if it should not."""

    def __init__(self, world: World, run: Callable[[], None], name: str) -> None:
        self._world = world
        self._go = threading.Lock()
        self._go.acquire()
        self._waits = 0
        self._waiting = False
        self.ended = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._whole, args=(run,), name=name, daemon=True)

    def start(self) -> None:
        """Main thread: have the first turn now."""
        self._thread.start()
        self._turn()

    def _whole(self, run: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - told by whoever looks
            self.failure = error
        self.ended = True
        self._world.turn.release()

    def _turn(self) -> None:
        world = self._world
        before, world.running = world.running, self
        self._go.release()
        world.turn.acquire()
        world.running = before

    def wait(self, seconds: float | None = None) -> None:
        """This thread: let others run until `wake`, or until the time is over."""
        self._waits += 1
        self._waiting = True
        if seconds is not None:
            self._world.at(self._world.now_s + seconds, partial(self._resume, self._waits))
        self._world.turn.release()
        self._go.acquire()

    def wake(self) -> None:
        """Anybody: end the wait, if there is one."""
        if self._waiting:
            self._world.at(self._world.now_s, partial(self._resume, self._waits))

    def _resume(self, wait: int) -> None:
        if self._waiting and wait == self._waits:
            self._waiting = False
            self._turn()


class VirtualEvent(threading.Event):
    """For one thread that waits and others that set."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._waiter: Task | None = None

    def set(self) -> None:
        super().set()
        if self._waiter is not None:
            self._waiter.wake()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._waiter = self._world.running
            if self._waiter is not None:
                self._waiter.wait(timeout)
            self._waiter = None
        return self.is_set()


class Stream:
    """The far end of a watch, as far as its reader has to know it."""

    sent = 0  # lines
    ended = False  # whatever comes, no further line does
    reader: Task | None = None


class VirtualLife(Lifeline):
    """A service's lifeline in virtual time. Its pulse before each read is where a watch waits."""

    def __init__(self, world: World, stop: threading.Event) -> None:
        super().__init__(stop, world.clock)
        self._world = world
        self.stream: Stream | None = None
        self.lines_read = 0

    def pause(self, seconds: float) -> bool:
        self.pulse(seconds)
        if not self.stopping:
            self._world.pause(seconds)
        return not self.stopping

    def pulse(self, within_s: float) -> None:
        super().pulse(within_s)
        stream, task = self.stream, self._world.running
        if stream is None or task is None:
            return
        while stream.sent <= self.lines_read and not stream.ended and not self.stopping:
            stream.reader = task
            task.wait()
        stream.reader = None
