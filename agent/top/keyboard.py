"""Which key was pressed, while a program waits for something else? Of the controlling terminal."""

import codecs
import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator

READ_BYTES = 64
# What a terminal sends for one key: a control sequence of ECMA-48, a function key, a character.
ONE_KEY = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down"}


class Keyboard:
    """Keys as they are pressed; made by `keyboard`."""

    def __init__(self, terminal: int, resized: int) -> None:
        self._terminal = terminal
        self._resized = resized
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: list[str] = []  # pressed, and not asked for yet

    def pressed(self, within_s: float) -> str:
        """The next key, or "" when there was none; also when the terminal's size changed."""
        if self._waiting:
            return self._next()
        ready, _, _ = select.select([self._terminal, self._resized], [], [], within_s)
        if self._resized in ready:
            os.read(self._resized, READ_BYTES)
        if self._terminal not in ready:
            return ""
        try:
            typed = os.read(self._terminal, READ_BYTES)
        except OSError:
            typed = b""
        if not typed:
            return "q"  # the terminal is gone
        self._waiting = ONE_KEY.findall(self._decoder.decode(typed))
        return self._next() if self._waiting else ""  # half a character

    def _next(self) -> str:
        key = self._waiting.pop(0)
        return ARROWS.get(key, key)


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
