"""Whether SIGINT can be tried here: in the background of a shell it is ignored, and so by children."""

import signal

import pytest


def skip_if_ignored(number: int) -> None:
    """Skip the test when it is to send a SIGINT that nobody would hear."""
    if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored here, as in the background of a shell, and so by all below")
