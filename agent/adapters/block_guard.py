"""The agent's side of the process that ends blocks when the agent cannot (block_guardian.py)."""

import array
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent import logs
from agent.adapters import block_guardian
from agent.adapters.block_guardian import MOST_HELD, OFFSET, UNDERSTOOD
from agent.bundle import frozen_folder, host_environment
from agent.ports import ContainerKey, Held

log = logs.get(__name__)

COMMAND = "guard-blocks"  # of the agent's program
ANSWER_S = 1.0
FIRST_PID = 1
ENDS_WITH_US = (
    "the agent is the first process of a pid namespace, so what would end the blocks of containers "
    "with HAMi-core's library ends with it: they do not wait for those of a higher priority; if "
    "they should, run the agent with hostPID: true"
)


def guardian_command() -> tuple[str, ...]:
    """How the process is started: the frozen program itself, or the module's file."""
    if frozen_folder() is not None:
        return (sys.executable, COMMAND)
    return (sys.executable, "-I", "-S", str(Path(block_guardian.__file__)))


class ProcessGuard:
    """Implements `ports.BlockGuard`: a child process that runs while anybody is held.

    Used by one thread.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or guardian_command())
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._asked = self._answered = 0
        self._held: dict[ContainerKey, Held] = {}

    @property
    def pid(self) -> int | None:
        """Of the process; None: nobody is held."""
        return self._process.pid if self._process else None

    def hold(self, held: Mapping[ContainerKey, Held]) -> bool:
        """See `ports.BlockGuard.hold`."""
        if not held:
            self.close()
            return True
        if len(held) > MOST_HELD:
            log.failing("block not guarded", error=f"more than {MOST_HELD} containers wait")
            return False
        if os.getpid() == FIRST_PID:  # with it the kernel ends everybody in its namespace
            log.failing("block not guarded", error=ENDS_WITH_US)
            return False
        try:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # somebody ended it
            if self._process is None:
                self._start()
            elif dict(held) == self._held and self._asked == self._answered:
                return True
            self._tell(held)
        except OSError as error:
            log.failing("block not guarded", error=error)
            self.close()
            return False
        log.recovered("block not guarded")
        return self._asked == self._answered

    def close(self) -> None:
        """Let it end, by itself: it ends the blocks that are left. Takes up to a second."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_S)
        self._socket = self._process = None
        self._asked = self._answered = 0
        self._held = {}

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=host_environment(os.environ),
                    start_new_session=True,  # what ends the agent's group does not end it
                )
            except OSError:
                ours.close()
                raise
        ours.settimeout(ANSWER_S)
        self._socket = ours

    def _tell(self, held: Mapping[ContainerKey, Held]) -> None:
        """Say whom to hold; answers come in order, and may come late while it starts."""
        if self._socket is None:
            raise ConnectionResetError("the guarding process was not started")
        if dict(held) != self._held:
            fds = array.array("i", [one.fd for one in held.values()])
            offsets = b"".join(OFFSET.pack(one.at) for one in held.values())
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            self._socket.sendmsg([UNDERSTOOD + offsets], ancillary)
            self._held = dict(held)
            self._asked += 1
        with contextlib.suppress(TimeoutError):
            while self._answered < self._asked:
                if self._socket.recv(len(UNDERSTOOD)) != UNDERSTOOD:
                    raise ConnectionResetError("the guarding process has ended")
                self._answered += 1
