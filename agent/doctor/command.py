"""`vgpu-agent doctor`: its arguments, its rounds, its exit code."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent.config import Config
from agent.doctor.checks import CHECKS
from agent.doctor.finding import (
    WITHIN_S,
    Check,
    Result,
    Verdict,
    attempt,
    done,
    selected,
    worst,
)
from agent.doctor.host import Host
from agent.doctor.modes import in_mode
from agent.doctor.report import as_json, lines_of, summary
from agent.errors import ConfigError
from agent.settings.kinds import parse_duration
from agent.version import VERSION

EXIT_OF = {Verdict.OK: 0, Verdict.WARNING: 1, Verdict.FAILED: 2}
LOOK_AGAIN_S, CLOSE_WITHIN_S = 2.0, 1.0
LEAST_TIMEOUT_S = 0.01  # in less no check can answer, and each would be told as something broken
PLAIN_COLUMNS = 100  # where nobody says how many there are
MANUAL = """\
Looks at this node and changes nothing. Each check says what it saw and, where something is wrong,
the command that mends it; a check that depends on one that failed is skipped, so that one broken
thing is named once. Give it the agent's settings; the agent need not run, nor a cluster be there.
Run it as root: what it may not look at it skips.

In a pod: --host-root where the host's / is mounted, or checks of the host's files are skipped.
As an init container: --only NAMES --warnings-ok --wait 5m."""
EXIT_CODES = """\
exit codes:
  0  nothing is wrong; with --warnings-ok also: there are only warnings
  1  there are warnings
  2  something is broken, or a setting or the command line is wrong; the last line says what to do
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Beside the agent's settings."""
    group = parser.add_argument_group("what is looked at, and how it is told")
    group.add_argument("--json", action="store_true", help="as a JSON object")
    group.add_argument("--list", action="store_true", help="list the checks, and do none")
    group.add_argument(
        "--only",
        action="append",
        metavar="NAMES",
        help="only these checks, separated by commas, and what they need",
    )
    group.add_argument("--skip", action="append", metavar="NAMES", help="not these checks")
    group.add_argument(
        "--wait", metavar="TIME", help="look again until nothing is failed, at most so long"
    )
    group.add_argument(
        "--timeout",
        metavar="TIME",
        help=(
            f"by when each check must have answered, or is failed (default {WITHIN_S:g}s; of "
            "hook-limits 20s)"
        ),
    )
    group.add_argument(
        "--warnings-ok", action="store_true", help="exit with 0 when there are only warnings"
    )
    group.add_argument(
        "--host-root", metavar="PATH", type=Path, help="where the host's / is (default /)"
    )


FLAGS = ("json", "list", "only", "skip", "wait", "timeout", "warnings_ok", "host_root")


def main(
    given: Mapping[str, object],
    config: Callable[[], Config],
    environ: Mapping[str, str] = os.environ,
    *,
    host: Callable[[Config], Host] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Do what the flags of `add_flags` in `given` ask for; gives the exit code.

    `config`: the agent's settings, asked for when they are needed. Raises ConfigError.
    """
    if given.get("list"):
        width = max(len(check.name) for check in CHECKS)
        for check in CHECKS:
            print(f"{check.name:<{width}}  {check.question}")
        return 0
    checks = selected(CHECKS, _names(given, "only"), _names(given, "skip"))
    wait_s = _seconds(given, "wait", 0.0)
    within_s = None
    if given.get("timeout") is not None:
        within_s = _seconds(given, "timeout", WITHIN_S, least_s=LEAST_TIMEOUT_S)
    root = Path(str(given.get("host_root") or "/"))
    if not root.is_dir():  # or all that is not found there would be told of the host
        raise ConfigError(f"--host-root is {str(root)!r}, and there is no such directory; name one")
    settings = config()
    made = host or (lambda found: Host(config=found, environ=environ, root=root))
    checks = in_mode(checks, settings.mode)
    as_lines = not given.get("json")
    deadline_s = time.monotonic() + wait_s
    while True:
        last = time.monotonic() + LOOK_AGAIN_S > deadline_s
        show = as_lines and wait_s == 0
        results = _round(checks, made(settings), environ, within_s=within_s, show=show)
        if last or worst(results) is not Verdict.FAILED:
            break
        pause(LOOK_AGAIN_S)
    if as_lines:
        if wait_s:
            _show(results, checks, environ)
        print(summary(results))
    else:
        print(json.dumps(as_json(results, node=settings.node_name, version=VERSION), indent=2))
    verdict = worst(results)
    return 0 if verdict is Verdict.WARNING and given.get("warnings_ok") else EXIT_OF[verdict]


def _round(
    checks: Sequence[Check],
    host: Host,
    environ: Mapping[str, str],
    *,
    within_s: float | None,
    show: bool,
) -> list[Result]:
    """Do all; each is shown when it is done."""
    results = []
    for result in done(checks, host, within_s=within_s):
        results.append(result)
        if show:
            _show([result], checks, environ)
    attempt("close", host.nvml.close, CLOSE_WITHIN_S)
    return results


def _show(results: Sequence[Result], checks: Sequence[Check], environ: Mapping[str, str]) -> None:
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((PLAIN_COLUMNS, 24)).columns if terminal else PLAIN_COLUMNS
    coloured = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    width = max((len(check.name) for check in checks), default=0)
    for result in results:
        for line in lines_of(result, name_chars=width, columns=columns, coloured=coloured):
            print(line, flush=True)


def _names(given: Mapping[str, object], flag: str) -> tuple[str, ...]:
    """Names of checks. Raises ConfigError for one that there is not."""
    texts = given.get(flag) or ()
    assert isinstance(texts, list | tuple)  # noqa: S101 - argparse says so
    names = tuple(name for text in texts for name in str(text).replace(",", " ").split())
    known = {check.name for check in CHECKS}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--{flag} names {name!r}, and there is no such check; `vgpu-agent doctor --list` "
                "lists them"
            )
    return names


def _seconds(
    given: Mapping[str, object], flag: str, default_s: float, *, least_s: float = 0.0
) -> float:
    """A time that was asked for. Raises ConfigError."""
    text = given.get(flag)
    try:
        seconds = default_s if text is None else parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--{flag} is {text!r}, but {error}") from error
    if seconds < least_s:
        raise ConfigError(
            f"--{flag} is {text!r}, but it must be at least {least_s:g} s; give it more time"
        )
    return seconds
