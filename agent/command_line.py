"""The words of the command line: commands, flags, help, and how mistakes in them are told."""

import argparse
import contextlib
import difflib
import errno
import sys
import textwrap
from typing import Any, NoReturn

PROGRAM = "vgpu-agent"
EXIT_OK, EXIT_GAVE_UP, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141
# What writing to a stdout says that takes nothing; no command writes to another nameless file.
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
SUMMARIES = {
    "run": "share this node's NVIDIA GPUs between pods, until a signal ends it",
    "install": "put this program on this host as a systemd service, or repair or replace it there",
    "upgrade": "replace the installed version by this one, or go back to the one before",
    "uninstall": "take the agent off this host, and back what it has written on its Node",
    "top": "show who uses this node's GPUs, how much, and what is wrong",
    "limit": "change what a running container may use of its GPUs",
    "doctor": "check this node, and say what is wrong and which command mends it",
    "demo": "show all of it on an embedded, simulated node; needs no GPU and no cluster",
    "config": "print every setting as it holds and where it came from",
    "files": "list or write the files that come along: manifests, unit, dashboards, licences",
    "version": "print the version",
}
EXIT_CODES = """\
exit codes:
  0  stopped by SIGTERM, SIGINT or SIGHUP, or done; for SIGHUP to start it anew, systemd needs
     Restart=always
  1  gave up, start it again: a loop kept crashing or did not end in time, or the
     driver needs a new process; the log says which. Of uninstall: something is left
  2  a setting or the command line is wrong; the last line says what to do
"""
CONFIG_EXIT_CODES = """\
exit codes:
  0  printed
  2  a setting or the command line is wrong; the last line says what to do
"""
EXAMPLES = """\
examples:
  vgpu-agent run --config-file /device-config.yaml      as HAMi's device plugin was started
  vgpu-agent run --device-split-count 4 --register-format csv9
  VGPU_METRICS_BIND_ADDRESS=127.0.0.1:9394 vgpu-agent run
  vgpu-agent config --config-file /device-config.yaml   what would hold, and why
  vgpu-agent files --to DIR                             the manifests, to apply with kubectl
  vgpu-agent install --dry-run                          what would be done to this host
  vgpu-agent uninstall --dry-run                        what would be removed
"""
EXAMPLES_OF = {
    "run": """\
examples:
  vgpu-agent run --config-file /device-config.yaml      as HAMi's device plugin was started
  vgpu-agent run --device-split-count 4 --register-format csv9
  VGPU_METRICS_BIND_ADDRESS=127.0.0.1:9394 vgpu-agent run
""",
    "config": """\
examples:
  vgpu-agent config --config-file /device-config.yaml   what would hold, and why
  vgpu-agent config --mode slices --json                the same for a program
""",
    "doctor": """\
examples:
  sudo vgpu-agent doctor                                everything
  vgpu-agent doctor --list                              the checks, without doing them
  sudo vgpu-agent doctor --only hook-limits             one check, and what it needs
""",
    "uninstall": """\
examples:
  vgpu-agent uninstall --dry-run                        what would be removed
  vgpu-agent uninstall --keep-node                      without a word to the API server
""",
}


class Parser(argparse.ArgumentParser):
    """Ends with what is wrong in one sentence, and with exit code 2."""

    def print_help(self, file: Any = None) -> None:
        """As the original, which hides that it could not be written."""
        print(self.format_help(), end="", file=file or sys.stdout, flush=True)

    def error(self, message: str) -> NoReturn:
        complain(f"{message}; `{self.prog} --help` lists what there is")
        raise SystemExit(EXIT_USAGE)


def complain(sentence: str) -> None:
    """Say on stderr what is wrong; where nobody takes it, say nothing."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{PROGRAM}: {sentence}\n")


def overview() -> str:
    """The help of the program."""
    width = max(map(len, SUMMARIES)) + 2
    commands = "\n".join(f"  {name:<{width}}{text}" for name, text in SUMMARIES.items())
    return (
        f"usage: {PROGRAM} COMMAND [options]\n\n"
        "One program that turns a GPU node into a shared-GPU node.\n\n"
        f"commands:\n{commands}\n\n"
        f"`{PROGRAM} COMMAND --help` is the manual of a command. Flags without a command mean "
        f"`run`.\n\n{EXIT_CODES}\n{EXAMPLES}"
    )


def settings_parser(
    command: str, *, manual: str = "", exit_codes: str = EXIT_CODES
) -> argparse.ArgumentParser:
    """The parser of a command that takes all settings; made from the table."""
    from agent.settings.manual import PRECEDENCE, flag_help, flags_of
    from agent.settings.setting import GROUPS
    from agent.settings.table import SETTINGS

    parser = Parser(
        prog=f"{PROGRAM} {command}",
        usage=f"{PROGRAM} {command} [options]",
        description=f"{SUMMARIES[command][0].upper()}{SUMMARIES[command][1:]}.\n\n{manual}".strip(),
        epilog=f"{textwrap.fill(PRECEDENCE, 78)}\n\n{exit_codes}\n{EXAMPLES_OF[command]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for group in GROUPS:
        section = parser.add_argument_group(group)
        for setting in SETTINGS:
            if setting.group == group:
                bare: dict[str, Any] = {"nargs": "?", "const": setting.kind.bare}
                section.add_argument(
                    *flags_of(setting),
                    dest=setting.name,
                    metavar=setting.kind.metavar,
                    help=flag_help(setting).replace("%", "%%"),
                    action="append" if setting.kind.repeatable else "store",
                    **(bare if setting.kind.bare else {}),
                )
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, object]:
    """The flags that were given, in this program's spelling or in Go's, by their setting's name."""
    namespace, unknown = parser.parse_known_args(_without_gos_spelling(parser, arguments))
    if unknown:
        name = unknown[0].partition("=")[0]
        known = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - argparse has no other list
        close = difflib.get_close_matches(name, known, n=1)
        parser.error(
            f"there is no option {name!r}" + (f", but there is {close[0]}" if close else "")
        )
    return vars(namespace)


def _without_gos_spelling(parser: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Flags as Go programs take them, `-config-file=x` and `--v=4`, as argparse takes them.

    A HAMi installation whose manifest writes them so must not need editing.
    """
    known = {flag for action in parser._actions for flag in action.option_strings}  # noqa: SLF001 - argparse has no other list
    spelled = []
    for argument in arguments:
        name = argument.partition("=")[0]
        other = argument[1:] if name.startswith("--") else "-" + argument
        is_flag = name.startswith("-") and name not in known
        spelled.append(other if is_flag and other.partition("=")[0] in known else argument)
    return spelled
