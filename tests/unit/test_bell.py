"""The bell that a loop of many wakes a second sleeps by."""

import gc
import os
import threading
import time

from agent.bell import Bell

LONG_S = 30.0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_nobody_rings() -> None:
    began_s = time.monotonic()
    assert not Bell().wait(0.02)
    assert time.monotonic() - began_s >= 0.02


def test_a_ring_before_the_wait_ends_it_at_once_and_only_it() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(LONG_S)
    assert not bell.wait(0.0)


def test_a_ring_of_another_thread_ends_the_wait() -> None:
    bell = Bell()
    timer = threading.Timer(0.05, bell.ring)
    timer.start()
    assert bell.wait(LONG_S)
    timer.join()


def test_what_is_due_already_is_not_waited_for() -> None:
    assert not Bell().wait(-1.0)


def test_a_bell_that_is_gone_leaves_no_descriptor() -> None:
    gc.collect()
    before = descriptors()
    bells = [Bell() for _ in range(20)]
    assert descriptors() == before + 20
    del bells
    gc.collect()
    assert descriptors() == before
