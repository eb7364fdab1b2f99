"""The command line: which command, its help, its exit code.

Imports are inside the functions: `version` and `--help` must answer at once, and a command pays
only for what it uses.
"""

import argparse
import contextlib
import difflib
import errno
import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agent.bundle import restore_environment
from agent.errors import AgentError, ConfigError
from agent.version import VERSION

if TYPE_CHECKING:
    from agent.config import Config
    from agent.hostinstall.removal import Asked
    from agent.settings import Resolution

PROGRAM = "vgpu-agent"
EXIT_OK, EXIT_GAVE_UP, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141
# What writing to a stdout says that takes nothing; no command writes to another nameless file.
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
SUMMARIES = {
    "run": "share this node's NVIDIA GPUs between pods, until a signal ends it",
    "install": "put this program on this host as a systemd service, or repair or replace it there",
    "upgrade": "replace the installed version by this one, or go back to the one before",
    "uninstall": "take the agent off this host, and back what it has written on its Node",
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
UNINSTALL_EXIT_CODES = """\
exit codes:
  0  removed, or there was nothing to remove, for instance because this host's Node is gone
  1  something is left: an agent still runs here, the API server refused or did not answer, or
     there is no Node of the name that was given; the last line says what to do
  2  a setting or the command line is wrong; the last line says what to do
"""
UNINSTALL = """\
Removes hami.io/node-nvidia-register, hami.io/node-nvidia-score and, where the agent answered it,
hami.io/node-handshake from this node's Node object, so that it offers schedulers no vGPUs any
more. It can be run again at any time, and ends within a minute.

Where `vgpu-agent install` has installed the agent, its service is stopped first, the settings of
/etc/vgpu-agent/vgpu-agent.env apply, and afterwards what `install` has placed is removed. Without
an API server, or with --keep-node, the Node is left alone.

Where it is not installed, stop the agent first (`systemctl stop vgpu-agent`, or delete its
DaemonSet): while one runs here nothing is removed, because it would write the annotations again.
HAMi's device plugin uses the same annotations: uninstall before you start it. Give the settings
that the agent had; those that matter are --node-name, --kubeconfig, --state-dir,
--register-format and --handshake. The account needs `get` and `patch` on `nodes`, as the agent
does.

Nothing else is touched: neither other annotations (the scheduler's hami.io/mutex.lock among them)
nor files. The library and the containers' directories below --hook-path stay, because pods that
still run use them; --purge removes them once no process does, and the agent's state and settings.
"""
FILES = """\
Lists the files that come with this program: the DaemonSet's manifests, the systemd unit, what there
is for Prometheus and Grafana, licences. Writing leaves those alone that are there and the same, and
refuses if one differs.
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


class _Parser(argparse.ArgumentParser):
    """Ends with what is wrong in one sentence, and with exit code 2."""

    def print_help(self, file: Any = None) -> None:
        """As the original, which hides that it could not be written."""
        print(self.format_help(), end="", file=file or sys.stdout, flush=True)

    def error(self, message: str) -> NoReturn:
        _complain(f"{message}; `{self.prog} --help` lists what there is")
        raise SystemExit(EXIT_USAGE)


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run a command; gives the exit code. `argv` is without the program's name."""
    restore_environment()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments, environ)
        if sys.stdout is not None:  # it is when the shell has closed it
            sys.stdout.flush()
    except ConfigError as error:
        _complain(str(error))
        return EXIT_USAGE
    except BrokenPipeError:  # `vgpu-agent config | head`
        _drop_output()
        return EXIT_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_ERRORS:
            raise
        _drop_output()
        _complain(
            f"the output cannot be written ({error.strerror}), so what was done cannot be told; "
            "send standard output to a place that takes it and run this again"
        )
        return EXIT_GAVE_UP
    return code


def _drop_output() -> None:
    """The interpreter must not try again at its end to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str], environ: Mapping[str, str]) -> int:
    command = arguments[0] if arguments else ""
    if command in ("", "-h", "--help", "help"):
        print(overview(), end="")
        return EXIT_OK if command else EXIT_USAGE
    without_settings = {"version": _version, "--version": _version, "files": _files}
    if command in without_settings:
        return without_settings[command](arguments[1:])
    if command == "demo":
        from agent.demo import main as demo

        return demo(arguments[1:])
    if command.startswith("-"):  # HAMi's plugin has no sub-command: flags alone mean `run`
        command, rest = "run", arguments
    else:
        rest = arguments[1:]
    if command in ("install", "upgrade"):
        from agent.hostinstall.arguments import main as install

        return install(command, rest, parser=_Parser, summary=SUMMARIES[command], warn=_complain)
    with_settings = {"run": _run, "config": _config, "uninstall": _uninstall}
    if command in with_settings:
        return with_settings[command](rest, environ)
    close = difflib.get_close_matches(command, SUMMARIES, n=1)
    _complain(
        f"there is no command {command!r}; "
        + (f"{close[0]!r} is close, " if close else "")
        + f"`{PROGRAM} --help` lists them all"
    )
    return EXIT_USAGE


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


def _version(arguments: list[str]) -> int:
    parser = _Parser(prog=f"{PROGRAM} version", description=SUMMARIES["version"])
    parser.add_argument(
        "--json",
        action="store_true",
        help="as a JSON object, with the build, the hook and the protocols",
    )
    if parser.parse_args(arguments).json:
        from agent.build_info import build_info

        print(json.dumps(build_info()))
    else:
        print(f"{PROGRAM} {VERSION}")
    return EXIT_OK


def _files(arguments: list[str]) -> int:
    parser = _Parser(prog=f"{PROGRAM} files", description=FILES, allow_abbrev=False)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("name", nargs="?", metavar="NAME", help="print this one instead of the list")
    which.add_argument("--to", type=Path, metavar="DIR", help="write all of them below DIR")
    asked = parser.parse_args(arguments)
    from agent.shipped import content, shipped, unpack

    try:
        if asked.to is not None:
            for path in unpack(asked.to):
                print(path)
        elif asked.name is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(content(asked.name))
        else:
            for name in shipped():
                print(name)
    except AgentError as error:
        _complain(str(error))
        return EXIT_GAVE_UP
    return EXIT_OK


def settings_parser(
    command: str, *, manual: str = "", exit_codes: str = EXIT_CODES
) -> argparse.ArgumentParser:
    """The parser of a command that takes all settings; made from the table."""
    from agent.settings.manual import PRECEDENCE, flag_help, flags_of
    from agent.settings.setting import GROUPS
    from agent.settings.table import SETTINGS

    parser = _Parser(
        prog=f"{PROGRAM} {command}",
        usage=f"{PROGRAM} {command} [options]",
        description=f"{SUMMARIES[command][0].upper()}{SUMMARIES[command][1:]}.\n\n{manual}".strip(),
        epilog=f"{textwrap.fill(PRECEDENCE, 78)}\n\n{exit_codes}\n{EXAMPLES}",
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


def _parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, object]:
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


def _resolved(flags: Mapping[str, object], environ: Mapping[str, str]) -> "Resolution":
    from agent.settings import resolve

    return resolve(flags, environ)


def _run(arguments: list[str], environ: Mapping[str, str]) -> int:
    resolution = _resolved(_parsed(settings_parser("run"), arguments), environ)
    from agent import logs

    with logs.unblocked():
        config = _logging(resolution, environ)
        from agent.app import run

        return run(config)


def _logging(resolution: "Resolution", environ: Mapping[str, str]) -> "Config":
    """Set the log up as the settings say, note there what is odd about them, and give them."""
    from agent import logs

    config = resolution.config
    logs.configure(form=config.log_format, level=config.log_level, environ=environ)
    log = logs.get(__name__)
    for note in resolution.notes:
        (log.warning if note.warning else log.info)("setting noted", note=note.text)
    return config


def _uninstall(arguments: list[str], environ: Mapping[str, str]) -> int:
    parser = settings_parser("uninstall", manual=UNINSTALL, exit_codes=UNINSTALL_EXIT_CODES)
    from agent.hostinstall.arguments import add_uninstall_flags, asked_of

    add_uninstall_flags(parser)
    flags = _parsed(parser, arguments)
    asked = asked_of(flags)
    try:
        _uninstall_steps(flags, environ, asked)
    except ConfigError:
        raise
    except AgentError as error:
        _complain(str(error))
        return EXIT_GAVE_UP
    except KeyboardInterrupt:
        _complain("interrupted; `vgpu-agent uninstall` can be run again")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _uninstall_steps(
    flags: Mapping[str, object], environ: Mapping[str, str], asked: "Asked"
) -> None:
    """Service, Node, files. Raises AgentError when something is left; what follows is not done."""
    from agent.hostinstall.removal import no_api_server, removal
    from agent.settings.resolve import own_name
    from agent.uninstall import uninstall, what_stays

    installed = removal(asked, print)
    stopped = installed.stop() if installed else False
    if installed:
        environ = {**installed.environment(), **environ}
    config = _logging(_resolved(flags, environ), environ)
    without = no_api_server(config, environ) if installed else ""
    if asked.of_tree or asked.keep_node:
        print(f"the Node is left as it is, because of --{'root' if asked.of_tree else 'keep-node'}")
    elif without:
        print(f"the Node is left as it is, because {without}")
    else:
        uninstall(
            config,
            own_name=own_name(),
            dry_run=asked.dry_run,
            say=print,
            warn=_complain,
            ends=stopped,
        )
    if installed:
        installed.remove(config)
    if not asked.purge:
        print(what_stays(config))


def _config(arguments: list[str], environ: Mapping[str, str]) -> int:
    parser = settings_parser("config")
    shape = parser.add_argument_group("output").add_mutually_exclusive_group()
    shape.add_argument(
        "--json",
        action="store_true",
        help="as a JSON object, with the build, the hook and the protocols",
    )
    shape.add_argument(
        "--markdown", action="store_true", help="the manual of all settings instead of their values"
    )
    flags = _parsed(parser, arguments)
    as_json, as_manual = flags.pop("json", False), flags.pop("markdown", False)
    from agent.settings import manual

    if as_manual:
        print(manual.document(), end="")
        return EXIT_OK
    resolution = _resolved(flags, environ)
    print(
        json.dumps(manual.as_json(resolution), indent=2) if as_json else manual.listing(resolution)
    )
    return EXIT_OK
