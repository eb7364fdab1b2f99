"""The command lines of `install` and `upgrade`, and what `uninstall` takes besides settings."""

import argparse
from collections.abc import Callable
from pathlib import Path

from agent.errors import AgentError
from agent.hostinstall.command import Options, install, upgrade
from agent.hostinstall.removal import Asked
from agent.hostinstall.tree import ROOT

EXIT_OK, EXIT_GAVE_UP, EXIT_INTERRUPTED = 0, 1, 130
INSTALL = """\
What it places, each only where it is missing or differs:
  /opt/vgpu-agent/<version>-<digest>/      the program and its libraries
  /opt/vgpu-agent/current, previous        links to the version in use and the one before
  /usr/local/bin/vgpu-agent                a link to the program in use
  /etc/systemd/system/vgpu-agent.service   the unit; changes belong into `systemctl edit vgpu-agent`
  /etc/vgpu-agent/vgpu-agent.env           settings; once edited it is never overwritten, a newer
                                           form comes beside it as vgpu-agent.env.new
Then the service is enabled and started, or started anew if it ran from something else; where it is
installed and somebody has disabled it, it is left as it is. Run again it does nothing, or the rest
of what was interrupted: every file is put in its place at once. Pods with vGPUs do not notice: what
they use below /usr/local/vgpu is not touched.

The agent needs a kubeconfig, but in the modes slices and nvidia. While the one that the settings
name is missing, the service is enabled and not started; take VGPU_KUBECONFIG out of them where it
needs none.
"""
UPGRADE = """\
As `install`, where another version is installed, be it older or newer. A service that runs is
started anew, and has to stay up, and to serve within a minute if the version before did; if it does
not, that one is put back in use, and the exit code is 1. A service that does not run is left so.
The version before is kept for --rollback, older ones are removed.
"""
EXIT_CODES = """\
exit codes:
  0  done, or there was nothing to do
  1  not done: no root, no space, the new version did not come up; the last line says what to do
  2  the command line is wrong
"""
UNINSTALL_EXIT_CODES = """\
exit codes:
  0  removed, or there was nothing to remove, for instance because this host's Node is gone
  1  something is left: an agent still runs here, the API server refused or did not answer, or
     there is no Node of the name that was given; the last line says what to do
  2  a setting or the command line is wrong; the last line says what to do
"""
UNINSTALL = """\
Removes what the agent has written on this node's Node object, so that it offers schedulers no
vGPUs any more: hami.io/node-nvidia-register, hami.io/node-nvidia-score and, where it answered that,
hami.io/node-handshake; in mode volcano volcano.sh/node-vgpu-register, vgpu-agent/gpu-memory-factor
and volcano.sh/node-vgpu-handshake. The modes slices and nvidia write nothing there, and what the
Node has from another mode before stays. It can be run again at any time, and ends within a minute.

Where `vgpu-agent install` has installed the agent, its service is stopped first, the settings of
/etc/vgpu-agent/vgpu-agent.env apply, and afterwards what `install` has placed is removed. Without
an API server, or with --keep-node, the Node is left alone.

Where it is not installed, stop the agent first (`systemctl stop vgpu-agent`, or delete its
DaemonSet): while one runs here nothing is removed, because it would write the annotations again.
HAMi's device plugin uses the same annotations: uninstall before you start it. Give the settings
that the agent had; those that matter are --mode, --node-name, --kubeconfig, --state-dir,
--register-format and --handshake. The account needs `get` and `patch` on `nodes`, as the agent
does.

Nothing else is touched: neither other annotations (the scheduler's hami.io/mutex.lock among them)
nor files. The library and the containers' directories below --hook-path stay, because pods that
still run use them; --purge removes them once no process does, and the agent's state and settings.
CDI files that the agent has written (--cdi-spec-dir) go when its state remembers no container that
was told of devices by them, or with --purge; those of others stay. MPS daemons that it has started
are ended, and their GPUs opened to everybody (--mps-root).
"""


def main(
    command: str,
    arguments: list[str],
    *,
    parser: type[argparse.ArgumentParser],
    summary: str,
    warn: Callable[[str], None],
) -> int:
    """Run `install` or `upgrade`; give the exit code."""
    manual = INSTALL if command == "install" else UPGRADE
    options = _options(
        parser(
            prog=f"vgpu-agent {command}",
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{manual}",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        ),
        command,
        arguments,
    )
    try:
        (install if command == "install" else upgrade)(options, print)
    except AgentError as error:
        warn(str(error))
        return EXIT_GAVE_UP
    except KeyboardInterrupt:
        warn(f"interrupted; `vgpu-agent {command}` run again does the rest")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _options(parser: argparse.ArgumentParser, command: str, arguments: list[str]) -> Options:
    _add_shared(parser, "print what would be done; change nothing")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="folder of a frozen agent to install, instead of the one that runs",
    )
    parser.add_argument(
        "--no-link", action="store_true", help="do without /usr/local/bin/vgpu-agent"
    )
    if command == "install":
        parser.add_argument(
            "--prefix",
            default="",
            metavar="DIR",
            help="directory of the versions (default: /opt/vgpu-agent, or where it is installed)",
        )
        parser.add_argument(
            "--no-start", action="store_true", help="neither enable nor start the service"
        )
    else:
        parser.add_argument(
            "--rollback", action="store_true", help="go back to the version that was in use before"
        )
    given = parser.parse_args(arguments)
    return Options(
        root=given.root,
        prefix=getattr(given, "prefix", ""),
        source=given.source,
        dry_run=given.dry_run,
        start=not getattr(given, "no_start", False),
        link=not given.no_link,
        rollback=getattr(given, "rollback", False),
    )


def _add_shared(parser: argparse.ArgumentParser, dry_run: str) -> None:
    parser.add_argument("--dry-run", action="store_true", default=False, help=dry_run)
    parser.add_argument(
        "--root",
        type=Path,
        default=ROOT,
        metavar="DIR",
        help="a tree that stands for a host, such as an image that is being made; systemd is not "
        "told anything",
    )


def add_uninstall_flags(parser: argparse.ArgumentParser) -> None:
    """What `uninstall` takes besides settings."""
    _add_shared(parser, "print what would be removed; change nothing")
    parser.add_argument(
        "--keep-node",
        action="store_true",
        default=False,
        help="leave the Node's annotations as they are",
    )
    parser.add_argument(
        "--purge",
        action="store_true",
        default=False,
        help="remove settings and state, too, and what pods use once none does",
    )


def asked_of(flags: dict[str, object]) -> Asked:
    """Take these out of all flags that were given."""
    return Asked(
        root=Path(str(flags.pop("root", ROOT))),
        dry_run=bool(flags.pop("dry_run", False)),
        keep_node=bool(flags.pop("keep_node", False)),
        purge=bool(flags.pop("purge", False)),
    )
