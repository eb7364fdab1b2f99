"""Talk to the host's systemd through systemctl, as a person would."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.bundle import host_environment
from agent.hostinstall.layout import UNIT, InstallError
from agent.hostinstall.snapshot import ServiceState

RUNNING = Path("/run/systemd/system")  # source: sd_booted(3)
COMMAND_S = 150  # more than the unit's own limits
SETTLE_S, LOOK_EVERY_S = 4.0, 0.25
SERVES_S = 60.0  # a driver that wakes up many GPUs takes its time
ASKED = (
    *("LoadState", "ActiveState", "Result", "MainPID", "NRestarts", "NeedDaemonReload"),
    "StatusText",
)


class NotUpError(InstallError):
    """The agent did not come up, or not for long."""


class Systemd(Protocol):
    """What an installation needs of systemd."""

    def state(self) -> ServiceState:
        """The unit now. Raises InstallError."""

    def command(self, *arguments: str) -> None:
        """Have something done. Raises InstallError."""

    def start(self, *, serves: bool = False) -> None:
        """Start the unit anew; return when it stays up, and serves. Raises NotUpError."""


def state_of(shown: str, version_of: Callable[[int], str]) -> ServiceState:
    """What `systemctl show` printed; `version_of`: from which folder a pid's program runs."""
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    pid = values.get("MainPID", "0")
    main_pid = int(pid) if pid.isascii() and pid.isdigit() else 0
    restarts = values.get("NRestarts", "0")
    return ServiceState(
        active=values.get("ActiveState", "inactive"),
        result=values.get("Result", ""),
        main_pid=main_pid,
        restarts=int(restarts) if restarts.isascii() and restarts.isdigit() else 0,
        needs_reload=values.get("NeedDaemonReload") == "yes",
        version=version_of(main_pid) if main_pid else "",
        status=values.get("StatusText", ""),
    )


@dataclass(frozen=True, slots=True)
class HostSystemd:
    """Implements `Systemd`."""

    version_of: Callable[[int], str]
    environ: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def state(self) -> ServiceState:
        """See `Systemd.state`."""
        shown = self._run("show", UNIT, *(f"--property={name}" for name in ASKED))
        return state_of(shown, self.version_of)

    def command(self, *arguments: str) -> None:
        """See `Systemd.command`."""
        self._run(*arguments)

    def start(self, *, serves: bool = False) -> None:
        """See `Systemd.start`."""
        try:
            self._run("restart", UNIT)
        except InstallError as error:
            raise NotUpError(f"{error}{self._last_words()}") from error
        before = self.state()
        settled_s = self.clock() + SETTLE_S
        while True:
            now = self.state()
            if now.active != "active" or now.main_pid != before.main_pid:
                raise NotUpError(
                    f"the agent came up and ended again ({now.active}, {now.result})"
                    f"{self._last_words()}"
                )
            late_s = self.clock() - settled_s
            if late_s > 0 and (now.serving or not serves):
                return
            if late_s > SERVES_S:
                raise NotUpError(
                    "it is up and does not serve, as the one before did: "
                    f"{now.status or 'it does not say why'}"
                )
            self.sleep(LOOK_EVERY_S)

    def _last_words(self) -> str:
        """What the agent said last (not systemd of it), and where the rest is."""
        hint = f"; `journalctl -u {UNIT}` tells the rest"
        try:
            own = f"_SYSTEMD_UNIT={UNIT}"
            words = self._output("journalctl", own, "-n", "1", "-o", "cat", "-q").strip()
        except InstallError:
            return hint
        return f"; the last that it said is: {words[-500:]}{hint}" if words else hint

    def _run(self, *arguments: str) -> str:
        return self._output("systemctl", "--no-pager", *arguments)

    def _output(self, *command: str) -> str:
        shown = " ".join(part for part in command if part != "--no-pager")
        try:
            done = subprocess.run(  # noqa: S603 - the host's own, by root
                command,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=COMMAND_S,
                check=False,
                env=host_environment(self.environ) | {"LC_ALL": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"`{shown}` did not answer within {COMMAND_S} s") from error
        except OSError as error:
            raise InstallError(f"`{shown}` cannot be run: {error.strerror}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise InstallError(f"`{shown}` failed: {said[0] if said else done.returncode}")
        return done.stdout


def host_systemd(
    version_of: Callable[[int], str], environ: Mapping[str, str] = os.environ
) -> Systemd | None:
    """Systemd, where it is the host's init."""
    return HostSystemd(version_of, environ) if RUNNING.is_dir() else None
