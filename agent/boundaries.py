"""Named points between one effect on the world and the next, where a test ends or holds us.

A crash between two writes is what a successor has to cope with, so each write says that it was
made: `passed("file-renamed")`. In the program as it is shipped nothing comes of it: no setting,
variable or file leads here, and nothing in this package calls `observe`. The program that tests
start instead does (tests/faults/breaking_agent.py).
"""

from collections.abc import Callable

Observer = Callable[[str], None]


def _nobody(_name: str) -> None:
    """Whom it concerns in production."""


_observer: Observer = _nobody


def passed(name: str) -> None:
    """Say that this effect has just happened. The name is a literal, so that all can be listed."""
    _observer(name)


def observe(observer: Observer) -> None:
    """Have `observer` called at every point, on the thread that passes it. For tests only."""
    global _observer  # noqa: PLW0603 - one per process, set before anything else starts
    _observer = observer
