"""Whether a signal can be tried here: what is ignored is ignored by children, too.

SIGINT is in the background of a shell, SIGHUP below nohup.
"""

import signal

import pytest


def skip_if_ignored(number: int) -> None:
    """Skip the test when it is to send a signal that nobody would hear; 0: it sends none."""
    if number and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{signal.Signals(number).name} is ignored here, and so by all below")
