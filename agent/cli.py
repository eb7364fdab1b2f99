"""The command line: which command, its help, its exit code.

Imports are inside the functions: `version` and `--help` must answer at once, and a command pays
only for what it uses.
"""

import argparse
import contextlib
import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from agent.bundle import restore_environment
from agent.command_line import (
    CONFIG_EXIT_CODES,
    EXIT_GAVE_UP,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PIPE,
    EXIT_USAGE,
    OUTPUT_ERRORS,
    PROGRAM,
    SUMMARIES,
    Parser,
    complain,
    overview,
    parsed,
    settings_parser,
)
from agent.errors import AgentError, ConfigError
from agent.version import VERSION

if TYPE_CHECKING:
    from agent.config import Config
    from agent.hostinstall.removal import Asked
    from agent.settings import Resolution

HOST = Path("/")


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run a command; gives the exit code. `argv` is without the program's name."""
    restore_environment()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _have_output()
        code = _dispatch(arguments, environ)
        sys.stdout.flush()
    except ConfigError as error:
        complain(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:  # of a command that has nothing of its own to say to that
        complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `vgpu-agent config | head`
        _drop_output()
        return EXIT_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_ERRORS:
            raise
        _drop_output()
        complain(
            f"the output cannot be written ({error.strerror}), so what was done cannot be told; "
            "send standard output to a place that takes it and run this again"
        )
        return EXIT_GAVE_UP
    return code


def _have_output() -> None:
    """Have standard files where the shell has closed them, or files of ours would come to be them.

    An output that takes nothing, because nothing told is no success; of the others nobody asks.
    """
    if sys.stdin is None:
        sys.stdin = _stand_in(0, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = _stand_in(1, os.O_RDONLY)
    if sys.stderr is None:
        sys.stderr = _stand_in(2, os.O_WRONLY)


def _stand_in(number: int, flags: int) -> TextIO:
    null = os.open(os.devnull, flags)
    if null != number:
        os.dup2(null, number)
        os.close(null)
    os.set_inheritable(number, True)
    return open(number, "w" if number else "r")


def _drop_output() -> None:
    """The interpreter must not try again at its end to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str], environ: Mapping[str, str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command in ("", "-h", "--help", "help"):
        print(overview(), end="")
        return EXIT_OK if command else EXIT_USAGE
    if handler := _HANDLERS.get(command):
        return handler(rest, environ)
    if command.startswith("-"):  # HAMi's plugin has no sub-command: flags alone mean `run`
        return _run(arguments, environ)
    close = difflib.get_close_matches(command, SUMMARIES, n=1)
    complain(
        f"there is no command {command!r}; "
        + (f"{close[0]!r} is close, " if close else "")
        + f"`{PROGRAM} --help` lists them all"
    )
    return EXIT_USAGE


def _version(arguments: list[str], _environ: Mapping[str, str]) -> int:
    parser = Parser(prog=f"{PROGRAM} version", description=SUMMARIES["version"])
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


def _files(arguments: list[str], _environ: Mapping[str, str]) -> int:
    from agent.shipped import MANUAL, content, shipped, unpack

    parser = Parser(prog=f"{PROGRAM} files", description=MANUAL, allow_abbrev=False)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("name", nargs="?", metavar="NAME", help="print this one instead of the list")
    which.add_argument("--to", type=Path, metavar="DIR", help="write all of them below DIR")
    asked = parser.parse_args(arguments)
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
        complain(str(error))
        return EXIT_GAVE_UP
    return EXIT_OK


def _resolved(flags: Mapping[str, object], environ: Mapping[str, str]) -> "Resolution":
    from agent.settings import resolve

    return resolve(flags, environ)


def _run(arguments: list[str], environ: Mapping[str, str]) -> int:
    from agent.supervisor import end_at_a_signal

    end_at_a_signal()
    flags = parsed(settings_parser("run"), arguments)
    resolution = _resolved(flags, environ)
    from agent import logs

    with logs.unblocked():
        config = _logging(resolution, environ)
        if config.config_srcdir is not None:
            from agent.modes.node_config import chosen_file

            try:
                file = chosen_file(config)
            except AgentError as error:  # a label can be mended: it is worth another start
                logs.get(__name__).error("configuration not chosen", error=error)
                return EXIT_GAVE_UP
            resolution = _resolved({**flags, "config-file": str(file or "")}, environ)
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


def _installing(command: str) -> "Handler":
    def handler(arguments: list[str], _environ: Mapping[str, str]) -> int:
        from agent.hostinstall.arguments import main as install

        summary = SUMMARIES[command]
        return install(command, arguments, parser=Parser, summary=summary, warn=complain)

    return handler


def _demo(arguments: list[str], _environ: Mapping[str, str]) -> int:
    from agent.demo import main as demo

    return demo(arguments)


def _guard_blocks(_arguments: list[str], _environ: Mapping[str, str]) -> int:
    """Started by the agent, not by people."""
    from agent.adapters.block_guardian import main as guard

    return guard()


def _top(arguments: list[str], environ: Mapping[str, str]) -> int:
    from agent.top.command import main as top

    return top(arguments, environ, parser=Parser, warn=complain)


def _doctor(arguments: list[str], environ: Mapping[str, str]) -> int:
    from agent import logs
    from agent.doctor.command import EXIT_CODES, FLAGS, MANUAL, add_flags
    from agent.doctor.command import main as doctor

    parser = settings_parser("doctor", manual=MANUAL, exit_codes=EXIT_CODES)
    add_flags(parser)
    flags = parsed(parser, arguments)
    own = {name: flags.pop(name) for name in FLAGS if name in flags}
    logs.configure(level="error", environ=environ)  # what is wrong is said by the checks
    known = _service_settings(Path(str(own.get("host_root", "/")))) | dict(environ)
    return doctor(own, lambda: _resolved(flags, known).config, environ)


def _service_settings(root: Path) -> dict[str, str]:
    """What the agent of this host is started with, if it was installed here and we may know."""
    from agent.hostinstall.environment_file import parse
    from agent.hostinstall.layout import Layout, settings_of

    layout, found = Layout(), dict[str, str]()
    for path, settings in ((layout.unit, settings_of), (layout.environment, parse)):
        with contextlib.suppress(OSError):
            found |= settings((root / path.relative_to("/")).read_bytes())
    return found


def _doctor_probe(arguments: list[str], _environ: Mapping[str, str]) -> int:
    """Started by doctor, not by people."""
    from agent.doctor.hook_probe import main as probe

    return probe(arguments)


def _limit(arguments: list[str], environ: Mapping[str, str]) -> int:
    from pathlib import Path

    from agent import limit_command
    from agent.adapters.local_client import runtime_dir

    parser = Parser(
        prog=f"{PROGRAM} limit",
        description=limit_command.DESCRIPTION,
        epilog=limit_command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    limit_command.add_arguments(parser)
    default = runtime_dir(environ)
    parser.add_argument(
        "--runtime-dir",
        metavar="PATH",
        type=Path,
        default=default,
        help=f"the agent's --runtime-dir (default {default})",
    )
    given = parser.parse_args(arguments)
    return limit_command.run(given, given.runtime_dir)


def _uninstall(arguments: list[str], environ: Mapping[str, str]) -> int:
    from agent.hostinstall.arguments import (
        UNINSTALL,
        UNINSTALL_EXIT_CODES,
        add_uninstall_flags,
        asked_of,
    )

    parser = settings_parser("uninstall", manual=UNINSTALL, exit_codes=UNINSTALL_EXIT_CODES)

    add_uninstall_flags(parser)
    flags = parsed(parser, arguments)
    asked = asked_of(flags)
    try:
        _uninstall_steps(flags, environ, asked)
    except ConfigError:
        raise
    except AgentError as error:
        complain(str(error))
        return EXIT_GAVE_UP
    except KeyboardInterrupt:
        complain("interrupted; `vgpu-agent uninstall` can be run again")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _uninstall_steps(
    flags: Mapping[str, object], environ: Mapping[str, str], asked: "Asked"
) -> None:
    """Service, Node, files. Raises AgentError when something is left; what follows is not done."""
    from agent.hostinstall.cdi_removal import remove_cdi_files
    from agent.hostinstall.mps_removal import retire_mps_daemons
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
            warn=complain,
            ends=stopped,
        )
    if not asked.of_tree:
        retire_mps_daemons(config, dry_run=asked.dry_run, say=print)
    remove_cdi_files(config, asked.root, purge=asked.purge, dry_run=asked.dry_run, say=print)
    if installed:
        installed.remove(config)
    if not asked.purge and (stays := what_stays(config, asked.root)):
        print(stays)


def _config(arguments: list[str], environ: Mapping[str, str]) -> int:
    parser = settings_parser("config", exit_codes=CONFIG_EXIT_CODES)
    shape = parser.add_argument_group("output").add_mutually_exclusive_group()
    shape.add_argument(
        "--json",
        action="store_true",
        help="as a JSON object, with the build, the hook and the protocols",
    )
    shape.add_argument(
        "--markdown", action="store_true", help="the manual of all settings instead of their values"
    )
    flags = parsed(parser, arguments)
    as_json, as_manual = flags.pop("json", False), flags.pop("markdown", False)
    from agent.settings import manual

    if as_manual:
        print(manual.document(), end="")
        return EXIT_OK
    from agent.settings import resolve

    resolution = resolve(flags, environ, service=_service_settings(HOST))
    print(
        json.dumps(manual.as_json(resolution), indent=2) if as_json else manual.listing(resolution)
    )
    return EXIT_OK


Handler = Callable[[list[str], Mapping[str, str]], int]
_HANDLERS: Mapping[str, Handler] = {
    "run": _run,
    "install": _installing("install"),
    "upgrade": _installing("upgrade"),
    "uninstall": _uninstall,
    "top": _top,
    "limit": _limit,
    "doctor": _doctor,
    "demo": _demo,
    "config": _config,
    "files": _files,
    "version": _version,
    "--version": _version,
    "guard-blocks": _guard_blocks,
    "doctor-probe": _doctor_probe,
}
