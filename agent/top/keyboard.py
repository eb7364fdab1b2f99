"""Which key was pressed, while a program waits for something else? Of the controlling terminal."""

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Iterator

READ_BYTES = 64
ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down"}


class Keyboard:
    """Keys as they are pressed; made by `keyboard`."""

    def __init__(self, terminal: int, resized: int) -> None:
        self._terminal = terminal
        self._resized = resized

    def pressed(self, within_s: float) -> str:
        """The next key, or "" when there was none; also when the terminal's size changed."""
        ready, _, _ = select.select([self._terminal, self._resized], [], [], within_s)
        if self._resized in ready:
            os.read(self._resized, READ_BYTES)
        if self._terminal not in ready:
            return ""
        try:
            typed = os.read(self._terminal, READ_BYTES).decode("utf-8", "replace")
        except OSError:
            typed = ""
        return ARROWS.get(typed, typed[0]) if typed else "q"  # the terminal is gone


@contextlib.contextmanager
def keyboard(terminal: int) -> Iterator[Keyboard]:
    """Take keys singly and unseen from a terminal's descriptor, and leave it as it was."""
    before = termios.tcgetattr(terminal)
    resized, told = os.pipe()
    os.set_blocking(told, False)
    waking = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGWINCH, lambda *_: None)
    try:
        tty.setcbreak(terminal)
        yield Keyboard(terminal, resized)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
        signal.set_wakeup_fd(waking)
        os.close(resized)
        os.close(told)
