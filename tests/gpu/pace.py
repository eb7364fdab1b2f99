"""How fast fixed pieces of work get done, one after the other, with a queue that is never empty.

Used by the programs that are run as tenants; standard library only.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

QUEUED = 4  # pieces that are not waited for, so that the GPU has always something to do
AT_LEAST = 3  # pieces that a rate is made of, however long they take


class Pieces:
    """Work that is queued, a piece at a time; the oldest is waited for."""

    def __init__(
        self, enqueue: Callable[[], None], mark: Callable[[Any], Any], wait: Callable[[Any], None]
    ) -> None:
        """`mark` puts an event behind what is queued (it may take an old one); `wait` waits for it."""
        self._enqueue, self._mark, self._wait = enqueue, mark, wait
        self._queue: deque[Any] = deque()

    def add(self, old: Any = None) -> None:
        """Queue one."""
        self._enqueue()
        self._queue.append(self._mark(old))

    def next_done(self) -> float:
        """Wait for the oldest, put a new one in its place; when it was done (monotonic)."""
        event = self._queue.popleft()
        self._wait(event)
        done_s = time.monotonic()
        self.add(event)
        return done_s

    def drain(self) -> None:
        """Wait for all."""
        while self._queue:
            self._wait(self._queue.popleft())

    def done_during(self, seconds: float, skip_s: float = 0.0) -> list[float]:
        """When each piece was done; it goes on for some pieces after `skip_s` in any case."""
        for _ in range(QUEUED):
            self.add()
        began_s, enough = time.monotonic(), 0
        done = []
        while (now_s := self.next_done()) < began_s + seconds or enough < AT_LEAST:
            done.append(now_s)
            enough += now_s >= done[0] + skip_s
        self.drain()
        return done


def rate(done_s: list[float], skip_s: float) -> float:
    """Pieces a second, without what was done in the first `skip_s`; 0 if too few were.

    Time counts from the last that is left out, so that a pause between that and the next one does.
    """
    left_out = sum(at < done_s[0] + skip_s for at in done_s)
    counted = done_s[max(0, left_out - 1) :]
    return (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else 0.0


def serve(pieces: Pieces, say: Callable[..., None], **facts: Any) -> None:
    """Do what each line on stdin asks for: `rate SECONDS SKIP`, or `when SECONDS`; until its end."""
    say(ready=True, **facts)
    for line in sys.stdin:
        kind, *numbers = line.split()
        if kind == "rate":
            seconds, skip_s = map(float, numbers)
            say(rate=rate(pieces.done_during(seconds + skip_s, skip_s), skip_s))
        elif kind == "when":
            say(done_s=pieces.done_during(float(numbers[0])))
        else:  # what the other side says to everybody
            return
