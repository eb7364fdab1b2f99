"""Nothing that the demo does lasts for ever: what hangs is interrupted, and says where it was.

The stand-in kubelet waits for the agent as long as the real one, which is without end; so a step
is bounded as a whole, whatever it waits for.
"""

import contextlib
import faulthandler
import signal
import sys
from collections.abc import Iterator

STEP_S = 90.0  # its own waits, which say more, end long before
END_S = 60.0  # to end everything that was started
AGAIN_S = 5.0  # for what swallows exceptions, such as callbacks


class HungError(Exception):
    """It did not end in its time."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise HungError inside what takes longer; where each thread was goes to stderr.

    For the main thread only.
    """

    def ring(_number: int, _frame: object) -> None:
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        raise HungError(f"not done in {seconds:g} s; where it hangs is above the agent's log")

    handler = signal.signal(signal.SIGALRM, ring)
    before = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)  # whoever bounds us goes on doing so
        signal.signal(signal.SIGALRM, handler)
