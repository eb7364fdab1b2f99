"""Waiting for something that other threads or processes bring about."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    probe: Callable[[], T], *, within_s: float = 60.0, every_s: float = 0.02, what: str = ""
) -> T:
    """Return the first truthy answer of `probe`; fail when none came `within_s`.

    The deadline only bounds a failing test: a passing one returns at once.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {within_s} s: {what or probe}")
        time.sleep(every_s)
