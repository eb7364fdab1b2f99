"""How the demo looks: a table that is redrawn on a terminal, and printed once a step elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

READ_S = 0.8
LIVE_LINES = 20  # the tables and a few lines above them
GREEN, RED, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU, as the scheduler sees it and as the driver counts it."""

    index: int
    name: str
    healthy: bool
    vgpus_in_use: int
    vgpus: int
    memory_mib: int
    used_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A container: what it may use, what it uses, how often it was told no."""

    pod: str
    container: str
    gpu_index: int
    limit_mib: int
    used_mib: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something the demo proved, or failed to prove."""

    name: str
    passed: bool
    detail: str
    at_s: float


@dataclass(frozen=True, slots=True)
class View:
    """Everything there is to see at one moment."""

    gpus: tuple[GpuRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()


def bar(part: int, whole: int, width: int = 16) -> str:
    """A bar of `width` cells, filled by part/whole."""
    filled = round(width * min(1.0, part / whole)) if whole > 0 else 0
    return "#" * filled + "." * (width - filled)


def table(view: View) -> list[str]:
    """The two tables, without colour; every line at most 80 columns."""
    lines = ["GPU  model                  health     vGPUs   memory used"]
    for gpu in view.gpus:
        lines.append(
            f"{gpu.index:>3}  {gpu.name[:21]:<21}  {'healthy' if gpu.healthy else 'UNHEALTHY':<9}"
            f"  {gpu.vgpus_in_use:>2}/{gpu.vgpus:<3}"
            f"  {bar(gpu.used_mib, gpu.memory_mib, 14)} {gpu.used_mib:>6}/{gpu.memory_mib} MiB"
        )
    lines += ["", "pod                  container  GPU  limit MiB  used MiB  refused"]
    for tenant in view.tenants:
        lines.append(
            f"{tenant.pod[:19]:<19}  {tenant.container[:9]:<9}  {tenant.gpu_index:>3}"
            f"  {tenant.limit_mib:>9}  {tenant.used_mib:>8}  {tenant.refused:>7}"
            f"  {bar(tenant.used_mib, tenant.limit_mib, 10)}"
        )
    return lines


class Screen:
    """Shows views and checks; silent when the demo's answer is meant for a machine."""

    def __init__(self, *, silent: bool = False, out: TextIO = sys.stdout) -> None:
        self._silent = silent
        self._out = out
        self._live = out.isatty() and shutil.get_terminal_size().lines >= LIVE_LINES
        self._drawn = 0
        self._below_blank = False

    def say(self, text: str = "") -> None:
        """Print a line above the table."""
        if self._silent:
            return
        self._erase()
        print(text, file=self._out, flush=True)
        self._below_blank = not text

    def exhibit(self, command: str, printed: str) -> None:
        """Show what a command prints, above the tables."""
        if not self._below_blank or self._live:
            self.say("")
        self.say(f"$ {command}")
        for line in printed.rstrip().splitlines():
            self.say(line)
        self.say("")

    def check(self, check: Check) -> None:
        """Print a proved (or failed) line."""
        mark = "ok  " if check.passed else "FAIL"
        if self._out.isatty():
            mark = (GREEN if check.passed else RED) + mark + PLAIN
        self.say(f"{check.at_s:5.1f} s  {mark}  {check.name}: {check.detail}")

    def show(self, view: View, *, settled: bool = False) -> None:
        """Draw the tables: in place on a terminal; elsewhere only when a step has settled."""
        if self._silent or not (self._live or settled):
            return
        self._erase()
        lines = ["", *table(view), ""]
        for line in lines:
            unwell = "UNHEALTHY" in line and self._live
            print(f"{RED}{line}{PLAIN}" if unwell else line, file=self._out)
        self._out.flush()
        self._below_blank = True
        self._drawn = len(lines) if self._live else 0

    def leave_standing(self) -> None:
        """What is drawn stays; what comes goes below it."""
        self._drawn = 0

    def linger(self) -> None:
        """Let a person at a terminal read; scripts and pipes do not wait."""
        if self._live and not self._silent:
            time.sleep(READ_S)

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", file=self._out)
            self._drawn = 0


def summary(checks: Sequence[Check]) -> list[str]:
    """What was proved, for the end."""
    failed = [check.name for check in checks if not check.passed]
    if failed:
        return [f"{len(failed)} of {len(checks)} checks FAILED: " + "; ".join(failed)]
    return [f"{len(checks)} of {len(checks)} checks passed."]
