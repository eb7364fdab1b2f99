"""`vgpu-agent top`: its arguments, and how it comes to its pictures."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.adapters.local_client import (
    NOT_FOUND,
    READ_SOCKET,
    RUNTIME_DIR_VARIABLE,
    AgentUnreachable,
    ask,
    runtime_dir,
)
from agent.domain.node_picture import NodePicture
from agent.domain.use_reading import decode
from agent.errors import AgentError
from agent.top.rates import Looks

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 0, 1, 130
EXIT_SIGNAL = 128  # and its number, as shells say it
USE = "/v1/use"
SHORTEST_S, LONGEST_S, USUAL_S = 0.5, 3600.0, 2.0
SECOND_LOOK_WITHIN_S, LOOK_AGAIN_S = 6.0, 0.25  # the agent itself looks every few seconds
PLAIN_COLUMNS = 120  # where nobody says how many there are
EPILOG = """\
Asks the agent that runs on this node through its read-only socket; root may, and the group that
the agent's --socket-group names. Keys: q quits; m, g, t, p and n sort by memory, GPU share,
throttled share, priority and name; arrows scroll. Without a terminal it is as with --once.
Figures of memory and of GPU time are the container's library's own; what the driver counts of the
same is compared with them, and where the two do not agree, that is said.

exit codes:
  0  done
  1  the agent does not answer; the last line says what to do
  2  the command line is wrong
  128 and a signal's number: it was ended by this one
"""


def main(
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    parser: type[argparse.ArgumentParser] = argparse.ArgumentParser,
    warn: Callable[[str], None] = lambda sentence: print(sentence, file=sys.stderr),
) -> int:
    """Run the command; gives the exit code."""
    asked = _parser(parser, environ).parse_args(arguments)
    path = asked.socket or asked.runtime_dir / READ_SOCKET
    try:
        if asked.json:
            print(json.dumps(_document(path), indent=2))
        else:
            _show(lambda: decode(_document(path)), environ, once=asked.once, every_s=asked.interval)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except AgentError as error:
        warn(str(error))
        return EXIT_UNREACHABLE
    return EXIT_OK


def _parser(
    parser: type[argparse.ArgumentParser], environ: Mapping[str, str]
) -> argparse.ArgumentParser:
    made = parser(
        prog="vgpu-agent top",
        usage="vgpu-agent top [options]",
        description="Show who uses this node's GPUs, how much, and what is wrong; live.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--once", action="store_true", help="show it once, as text, and end")
    made.add_argument(
        "--json", action="store_true", help="print the agent's figures as JSON (docs/local-api.md)"
    )
    made.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=USUAL_S,
        help=f"time between two looks, {SHORTEST_S:g} to {LONGEST_S:g} s (default {USUAL_S:g})",
    )
    default = runtime_dir(environ)
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--runtime-dir",
        metavar="PATH",
        type=Path,
        default=default,
        help=f"the agent's --runtime-dir (default {default}, by {RUNTIME_DIR_VARIABLE})".replace(
            "%", "%%"
        ),
    )
    where.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        help=f"the agent's socket, if it is not {READ_SOCKET} there",
    )
    return made


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"it must be a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}, not {text!r}"
        )
    return seconds


def _document(path: Path) -> Any:
    """What the agent says. Raises AgentUnreachable."""
    answer = ask(path, "GET", USE)
    if answer.status == NOT_FOUND:
        raise AgentUnreachable(
            f"the agent at {path} knows nothing of {USE}: it is older than this program; use the "
            "program that it is an instance of"
        )
    if not answer.ok:
        raise AgentUnreachable(
            f"the agent at {path} cannot say what its GPUs do now (HTTP {answer.status}); look at "
            "its log"
        )
    return answer.body


def _show(
    look: Callable[[], NodePicture], environ: Mapping[str, str], *, once: bool, every_s: float
) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in environ:
        console.width = PLAIN_COLUMNS
    if once or not _has_keys(console):
        _print(console, _two_looks(look))
        return
    from agent.top.keyboard import Ended, keyboard
    from agent.top.screen import watch

    try:
        with keyboard(sys.stdin.fileno()) as keys:
            watch(console, keys, look, every_s=every_s, clock=time.monotonic)
    except Ended as ended:
        raise SystemExit(EXIT_SIGNAL + ended.number) from ended


def _has_keys(console: "Console") -> bool:
    """Whether there is a terminal on both sides, and one that can be drawn on."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return console.is_terminal and not console.is_dumb_terminal


def _two_looks(look: Callable[[], NodePicture]) -> Looks:
    """As soon as the agent has looked a second time, if it does so soon: it takes two for rates.

    One that has just started has not looked at all, and does not know of its containers yet.
    """
    looks = Looks(look())
    until_s = time.monotonic() + SECOND_LOOK_WITHIN_S
    while _incomplete(looks) and time.monotonic() < until_s:
        time.sleep(LOOK_AGAIN_S)
        looks = looks.then(look())
    return looks


def _incomplete(looks: Looks) -> bool:
    """Whether another look may tell more."""
    use = looks.now.use
    return not use.taken_at_s or (bool(use.containers) and not looks.growing)


def _print(console: "Console", looks: Looks) -> None:
    from agent.top.drawing import lines

    for line in lines(console, looks):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
