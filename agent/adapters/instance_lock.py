"""One agent per node: a lock file that the kernel releases when its owner ends, however it ends.

Two agents would register the same resource in turn and drop each other's kubelet stream for ever.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from agent import logs
from agent.adapters.safe_files import check_single, opened_directory
from agent.boundaries import passed
from agent.errors import AgentError
from agent.services.published import Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

TRY_EVERY_S = 0.1  # between two agents kubelet refuses whoever asks for a vGPU, and for good
LOOK_EVERY_S = 10.0
LEAVING_S = 3.0  # of what the agent has to end in
STATE_DIR_MODE, LOCK_FILE_MODE = 0o700, 0o600


class LockUnavailable(AgentError):
    """There can be no lock here: read-only or full disk, no such device, a link in its place."""


class InstanceLock:
    """`<state_dir>/agent.lock`, held through flock(2) by the open file."""

    def __init__(self, state_dir: Path, *, linked: bool = True) -> None:
        """`linked`: the directory may be a link, which is then its administrator's doing."""
        self.path = state_dir / "agent.lock"
        self._linked = linked
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether we took it; see `still_there` for whether it still keeps others out."""
        return self._descriptor is not None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; True if we have it now, or had it already.

        Raises LockUnavailable.
        """
        if self.held and self.still_there():
            return True
        self.release()
        try:
            self.path.parent.mkdir(mode=STATE_DIR_MODE, parents=True, exist_ok=True)
            descriptor = self._open(os.O_CREAT)
        except OSError as error:
            raise LockUnavailable(
                f"{self.path} cannot be opened: {error.strerror}; make its directory writable for "
                "the agent or choose another one with --state-dir"
            ) from error
        if not self._take(descriptor):
            return False
        self._sign(descriptor)
        return True

    def try_keep_out(self) -> bool:
        """Keep agents from acting until `release`, without a trace on the disk; False: one acts.

        Where there is no lock file no agent holds one, and there is none to keep out. Raises
        LockUnavailable.
        """
        try:
            descriptor = self._open()
        except FileNotFoundError:
            return True
        except OSError as error:
            raise LockUnavailable(f"{self.path} cannot be opened: {error.strerror}") from error
        return self._take(descriptor)

    def acquire(self, timeout_s: float, every_s: float = 0.1) -> bool:
        """Take the lock, waiting for it at most `timeout_s`. Raises LockUnavailable."""
        deadline_s = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(every_s)
        return True

    def release(self) -> None:
        """Let others have it. The file stays: deleting it would let two agents hold two files."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # at once, even if a child still holds the file open
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def still_there(self) -> bool:
        """Whether the file we locked is the one others would try to lock."""
        if self._descriptor is None:
            return False
        try:
            ours, theirs = os.fstat(self._descriptor), os.lstat(self.path)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)

    def holder(self) -> str:
        """Who has it, as they wrote it: "pid 123 on host-a"; "another process" when unreadable."""
        try:
            descriptor = os.open(
                self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return "another process"
        with os.fdopen(descriptor, "rb") as file:
            words = file.read(300).decode("ascii", "replace").split()
        if len(words) != 2 or not words[0].isdigit():  # noqa: PLR2004 - pid and host
            return "another process"
        return f"pid {words[0]} on {words[1]}"

    def _open(self, create: int = 0) -> int:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | create
        parent = os.path.realpath(self.path.parent) if self._linked else self.path.parent
        with opened_directory(parent) as directory:
            descriptor = os.open(self.path.name, flags, LOCK_FILE_MODE, dir_fd=directory)
            try:
                check_single(
                    descriptor, self.path.name, dir_fd=directory
                )  # we write our name there
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    def _take(self, descriptor: int) -> bool:
        """Lock the open file, or close it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EWOULDBLOCK:
                return False
            raise LockUnavailable(f"{self.path} cannot be locked: {error.strerror}") from error
        self._descriptor = descriptor
        if not self.still_there():  # somebody replaced the file between our open and our flock
            self.release()
            return False
        return True

    def _sign(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock holds without our name in it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
            passed("instance-signed")


class Instance:
    """Service: publishes True while this agent may act, and keeps the lock that says so.

    When there can be no lock (read-only state directory) it says so and goes ahead: to refuse would
    take the node's GPUs away for a disk that the agent can do without.

    At the stop the lock is kept until nobody acts any more, as `all_left` tells; until the process
    ends, where it does not. Whoever only looks may be long in ending, as in a call of the driver,
    and meanwhile kubelet would refuse every pod that comes.
    """

    name = "instance"

    def __init__(
        self,
        lock: InstanceLock,
        may_act: Published[bool],
        *,
        all_left: Callable[[float], bool] = lambda _: False,
        try_every_s: float = TRY_EVERY_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`all_left` waits at most so many seconds for all who act to end; whether they have."""
        self._lock = lock
        self._all_left = all_left
        self._may_act = may_act
        self._try_every_s = try_every_s
        self._look_every_s = look_every_s
        self.waiting_for = ""  # who holds the lock, while that is not us

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pause(self._look_every_s if self.step_once() else self._try_every_s)
        if self._lock.held and self._all_left(LEAVING_S):
            self._may_act.publish(False)
            self._lock.release()

    def step_once(self) -> bool:
        """Try or look once; whether this agent may act."""
        try:
            held = self._lock.try_acquire()
        except LockUnavailable as error:
            log.failing("instance lock unavailable", error=error, going_ahead=True)
            held = True
        if held:
            self.waiting_for = ""
            if self._may_act.publish(True):
                log.recovered("another agent runs")
                log.info("instance lock taken", path=self._lock.path, locked=self._lock.held)
        else:
            self.waiting_for = self._lock.holder()
            self._may_act.publish(False)
            log.failing(
                "another agent runs",
                error=f"{self.waiting_for} holds {self._lock.path}; stop it, or wait until it ends",
            )
        return held
