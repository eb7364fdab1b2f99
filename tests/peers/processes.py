"""How is one real peer started, watched and ended?"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waiting import eventually


class Process:
    """One peer as a child process, with its output in a file; ended by its id, never by name.

    It dies with the test process, however that ends: PR_SET_PDEATHSIG, through setpriv, survives
    the exec of an ordinary program.
    """

    def __init__(
        self, argv: Sequence[str], *, log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        setpriv = shutil.which("setpriv")
        self._argv = [*([setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []), *argv]
        self._environ = dict(environ) if environ is not None else None
        self._name = Path(argv[0]).name
        self._child: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; only while it has been started."""
        assert self._child is not None
        return self._child.pid

    @property
    def exit_code(self) -> int:
        """How it ended; only after it has, negative for a signal."""
        assert self._child is not None
        assert self._child.returncode is not None
        return self._child.returncode

    def start(self) -> None:
        """Start it (again); its output is appended to the log."""
        assert not self.running
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                env=self._environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop it in order
            )

    def wait_until(self, ready: Callable[[], object], *, within_s: float, what: str) -> None:
        """Wait for `ready`, failing at once, with the end of the log, when the process ends."""

        def probe() -> bool:
            if not self.running:
                raise AssertionError(f"{self._name} ended before {what}:\n{self.tail()}")
            return bool(ready())

        try:
            eventually(probe, within_s=within_s, every_s=0.05, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\nend of {self.log}:\n{self.tail()}") from None

    def stop(self, *, within_s: float = 10.0) -> None:
        """End it with SIGTERM, and with SIGKILL when it does not obey."""
        if self._child is None:
            return
        if self.running:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(within_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def tail(self, lines: int = 25) -> str:
        """The last lines of its output."""
        if not self.log.exists():
            return ""
        text = self.log.read_text(errors="replace").splitlines()
        return os.linesep.join(line[:500] for line in text[-lines:])


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
