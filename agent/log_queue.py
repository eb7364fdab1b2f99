"""How lines leave the process without anybody waiting for whoever reads them.

A pipe whose reader has stopped, or a terminal after Ctrl-S, blocks write(2) for as long as it
pleases. O_NONBLOCK would be no way out: it belongs to the open file description, which other
processes share. So one thread does all the writing, and everybody else leaves lines for it.
"""

import os
import select
import signal
import threading
from collections.abc import Callable

MAX_LINES, MAX_BYTES = 1000, 256 * 1024  # as many again may be in the writer's hands


class LineQueue:
    """Lines on their way to a descriptor. Thread-safe; `put` never waits for the reader.

    What comes while the queue is full is lost, and so is what the descriptor does not take (a full
    disk, a reader that is gone). How much is told at the place where it would have been.

    The thread is not the supervisor's: it has to outlive the services and must not keep the
    process from ending. It sleeps until there is a line.

    Args:
        fd: is duplicated; close yours whenever you like.
        lost: makes the line that tells how many were lost.
    """

    def __init__(self, fd: int, lost: Callable[[int], str]) -> None:
        self._fd = os.dup(fd)
        self._lost_line = lost
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._overflow = 0  # lines that found no room
        self._untold = 0  # lines lost for whatever reason; the thread's own
        self._writing = self._closed = False
        self._torn = False  # the last line was written in part only
        # Signals are for the main thread, which blocks them to wait for them: one that this thread
        # could take would end the process on the spot. Threads inherit the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def put(self, line: str) -> None:
        """Leave a line, without its line feed, to be written."""
        encoded = _encoded(line)
        with self._changed:
            if len(self._lines) >= MAX_LINES or self._bytes >= MAX_BYTES:
                self._overflow += 1
                return
            self._lines.append(encoded)
            self._bytes += len(encoded)
            self._changed.notify_all()

    def close(self, *, within_s: float) -> bool:
        """Take no more lines; wait until all are written, so long at most; tell whether they are.

        What is left then goes out as long as the process lives.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not (self._lines or self._overflow or self._writing), within_s
            )

    # --- the thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            lines, overflow = batch
            for line in lines:
                if not (self._told() and self._write(line)):
                    self._untold += 1
            self._untold += overflow  # they came after the lines of this batch
            self._told()
            with self._changed:
                self._writing = False
                self._changed.notify_all()
        os.close(self._fd)

    def _next(self) -> tuple[list[bytes], int] | None:
        """Wait, and take all lines with the number that found no room; None: no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            lines, self._lines, self._bytes = self._lines, [], 0
            overflow, self._overflow = self._overflow, 0
            self._writing = bool(lines or overflow)
        return (lines, overflow) if self._writing else None

    def _told(self) -> bool:
        """Tell what was lost before the next line; False when not even that can be written."""
        if self._untold and not self._write(_encoded(self._lost_line(self._untold))):
            return False
        self._untold = 0
        return True

    def _write(self, line: bytes) -> bool:
        """Write a line, however long that takes; False when the descriptor does not take it."""
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # somebody else has made the open file non-blocking
                writable = select.poll()
                writable.register(self._fd, select.POLLOUT)
                writable.poll()
            except OSError:
                return False
            else:
                self._torn = bool(rest)
        return True


def _encoded(line: str) -> bytes:
    return line.encode(errors="backslashreplace") + b"\n"
