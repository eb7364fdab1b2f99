"""The program of a kubeconfig's exec plugin, in bounded time.

The official client waits for it without end: one that asks a service which does not answer kept the
agent from starting, with nothing in the log, and later every request waited for it. This module
stands in the place of `subprocess` for the client's one module that starts such programs.

Where a person is at the terminal the program may ask them something: that takes as long as they do,
and ^C ends it.
"""

import contextlib
import os
import signal
import subprocess
from typing import Any

PIPE = subprocess.PIPE
ANSWERS_WITHIN_S = 10.0  # as a request; such programs ask one service, or a file
REAPED_WITHIN_S = 1.0


class Popen(subprocess.Popen[str]):
    """A program with a process group of its own, which is ended as a whole."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._asks_a_person = options.get("stdin") is not None
        if not self._asks_a_person:
            options |= {"start_new_session": True, "stdin": subprocess.DEVNULL}
        super().__init__(*arguments, **options)

    def communicate(
        self,
        input: str | None = None,  # noqa: A002 - the name that subprocess has given it
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """What it writes until it ends. Raises TimeoutError: it was ended."""
        if self._asks_a_person:
            return super().communicate(input, timeout)
        try:
            return super().communicate(input, timeout or ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            self._end()
            raise TimeoutError(
                f"exec: {error.cmd[0]} did not answer within {error.timeout:g} s, and was ended"
            ) from error

    def _end(self) -> None:
        """With what it has started, which would keep its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(REAPED_WITHIN_S)
