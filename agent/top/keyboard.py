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
ENDS = (signal.SIGTERM, signal.SIGHUP)
ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down"}


class Ended(Exception):
    """One of ENDS came: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Keyboard:
    """Keys as they are pressed; made by `keyboard`."""

    def __init__(self, terminal: int, signals: int) -> None:
        self._terminal = terminal
        self._signals = signals  # their numbers, a byte each, as they come
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: list[str] = []  # pressed, and not asked for yet

    def pressed(self, within_s: float) -> str:
        """The next key, or "" when there was none; also when the terminal's size changed.

        Raises Ended when the program was told to end.
        """
        if self._waiting:
            return self._next()
        ready, _, _ = select.select([self._terminal, self._signals], [], [], within_s)
        if self._signals in ready:
            for number in os.read(self._signals, READ_BYTES):
                if number in ENDS:
                    raise Ended(number)
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
    signals, told = os.pipe()
    os.set_blocking(told, False)
    waking = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    # They end nothing by themselves: whoever asks for a key is told when all is drawn.
    noted = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, _note) for number in (signal.SIGWINCH, *noted)}
    try:
        tty.setcbreak(terminal)
        yield Keyboard(terminal, signals)
    finally:
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waking)
        os.close(signals)
        os.close(told)


def _note(_number: int, _frame: object) -> None:
    """Its number is in the pipe."""
