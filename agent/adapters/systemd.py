"""sd_notify: tell the init system that we are ready, alive, or stopping. Without systemd: nothing.

Source: systemd, sd_notify(3) and sd_watchdog_enabled(3).
"""

import os
import socket
from collections.abc import Mapping

MAX_MESSAGE_BYTES = 4096


class Notifier:
    """Callable with the lines to send, e.g. `notify("READY=1")`. Never raises, never waits."""

    def __init__(self, environ: Mapping[str, str] = os.environ, *, pid: int | None = None) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_s = _watchdog_s(environ, pid or os.getpid())

    @property
    def enabled(self) -> bool:
        """Whether there is anybody to tell."""
        return self._address.startswith(("/", "\0"))

    def __call__(self, lines: str) -> None:
        """Send `NAME=value` lines in one datagram; nobody there is no error."""
        if not self.enabled:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                message = lines.encode(errors="replace")[:MAX_MESSAGE_BYTES]
                sock.sendto(message, socket.MSG_DONTWAIT, self._address)
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Within how many seconds `WATCHDOG=1` must follow the one before; None: no watchdog is set.

    Send it at half of that.
    """
    wanted, usec = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if wanted and wanted != str(pid):
        return None
    if not (usec.isascii() and usec.isdigit() and len(usec) <= 18) or int(usec) == 0:  # noqa: PLR2004
        return None
    return int(usec) / 1e6
