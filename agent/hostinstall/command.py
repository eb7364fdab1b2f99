"""`vgpu-agent install` and `upgrade`: from what was asked for to steps that are taken and told."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.bundle import frozen_folder, host_environment
from agent.hostinstall.alone import alone
from agent.hostinstall.execute import Executor
from agent.hostinstall.folder import check_frozen, digest_of
from agent.hostinstall.layout import (
    DATA,
    PROGRAM,
    UNIT,
    InstallError,
    Layout,
    checked_prefix,
    is_folder_name,
    settings_of,
)
from agent.hostinstall.look import (
    ENVIRONMENT_FORM,
    folder_of,
    found,
    installed_prefix,
    look,
)
from agent.hostinstall.plan import (
    Release,
    Wish,
    current_name,
    plan_install,
    previous_name,
    untried_name,
)
from agent.hostinstall.snapshot import ServiceState, Snapshot
from agent.hostinstall.steps import Plan
from agent.hostinstall.systemd import NotUpError, Systemd, host_systemd
from agent.hostinstall.tree import ROOT, check_place, directory_within
from agent.version import VERSION

VERSION_S = 60
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for on the command line."""

    root: Path = ROOT
    prefix: str = ""  # empty: where it is, or the usual place
    source: Path | None = None  # --from
    dry_run: bool = False
    start: bool = True
    link: bool = True
    rollback: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """Where to install, and whom to tell."""

    layout: Layout
    root: Path
    systemd: Systemd | None
    say: Say

    def look(self, wanted: str = "") -> Snapshot:
        """What is there. Raises InstallError."""
        try:
            return look(self.layout, self.root, self.systemd, wanted=wanted)
        except OSError as error:
            raise InstallError(
                f"{error.filename} cannot be read: {error.strerror}; run it as root"
            ) from error

    def execute(self, plan: Plan) -> None:
        """Take the steps, a line for each. Raises InstallError."""
        executor = Executor(self.root, self.systemd, self.layout.prefix, done=self._said)
        executor.run(plan)

    def _said(self, step: object) -> None:
        self.say(f"done: {step}")


def host_of(options: Options, say: Say, environ: Mapping[str, str] = os.environ) -> Host:
    """The host, or the tree that stands for one. Raises InstallError."""
    root = options.root.absolute()
    if not root.is_dir():
        raise InstallError(f"--root {root} is no directory; make it first")
    if root == ROOT and os.geteuid() != 0 and not options.dry_run:
        raise InstallError("this changes the host, which takes root: run it with sudo")
    there = installed_prefix(root)
    layout = Layout(checked_prefix(options.prefix) if options.prefix else there)
    prefix = directory_within(layout.prefix, root)
    systemd = host_systemd(lambda pid: folder_of(pid, prefix), environ) if root == ROOT else None
    return Host(layout, root, systemd, say)


def release_of(folder: Path, version: str) -> Release:
    """The version in a frozen folder. Raises InstallError."""
    check_frozen(folder)
    try:
        digest = digest_of(folder)
        unit, form = (found(folder / DATA / name).content for name in (UNIT, ENVIRONMENT_FORM))
    except OSError as error:
        raise InstallError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not unit or not form:
        raise InstallError(f"{folder / DATA} has no {UNIT} or no {ENVIRONMENT_FORM}; unpack anew")
    name = f"{version}-{digest}"
    if not is_folder_name(name):
        raise InstallError(f"{folder} says that its version is {version!a}, which no version is")
    return Release(name=name, unit=unit, form=form, source=folder, digest=digest)


def version_in(folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The version of a frozen folder, which also shows that it runs here. Raises InstallError."""
    check_frozen(folder)
    try:
        done = subprocess.run(  # noqa: S603 - what root is about to install
            [folder / PROGRAM, "version", "--json"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_S,
            check=True,
            env=host_environment(environ),
        )
        return str(json.loads(done.stdout)["version"])
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip()[-300:]
        raise InstallError(f"{folder / PROGRAM} does not run here: {said}") from error
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{folder / PROGRAM} does not tell its version: {error}") from error


def _source(options: Options) -> tuple[Path, str]:
    own = frozen_folder()
    if options.source is not None:
        folder = options.source.absolute()
        return folder, VERSION if folder.resolve() == own else version_in(folder)
    if own is None:
        raise InstallError(
            "this runs from source, and there is nothing to install in it; run `python3 build.py "
            "dist` and then the program that it makes in dist/, or name a frozen folder with "
            "--from DIR"
        )
    return own, VERSION


def install(options: Options, say: Say) -> None:
    """Have this version on the host, in use and running. Raises InstallError."""
    folder, version = _source(options)
    host = host_of(options, say)
    release = release_of(folder, version)
    wish = Wish(start=options.start, link=options.link)
    with alone(host.root, dry_run=options.dry_run):
        _have(host, release, wish, dry_run=options.dry_run)


def upgrade(options: Options, say: Say) -> None:
    """The same where an older or newer version is installed; or back. Raises InstallError."""
    host = host_of(options, say)
    with alone(host.root, dry_run=options.dry_run):
        snapshot = host.look()
        if not current_name(snapshot, host.layout):
            raise InstallError(
                f"nothing is installed in {host.layout.prefix} that could be upgraded; use "
                "`vgpu-agent install`"
            )
        if options.rollback:
            release = _release_before(snapshot, host.layout)
        else:
            release = release_of(*_source(options))
        wish = Wish(start=False, link=options.link)
        _have(host, release, wish, dry_run=options.dry_run)


def _release_before(snapshot: Snapshot, layout: Layout) -> Release:
    name = previous_name(snapshot, layout)
    if not name:
        raise InstallError(
            f"{layout.previous} names no version to go back to; install the one that you want "
            "from its own release"
        )
    return _there(snapshot, name)


def _there(snapshot: Snapshot, name: str) -> Release:
    folder = snapshot.folders[name]
    if not folder.unit or not folder.form:
        raise InstallError(f"the folder of {name} is damaged; install it from its own release")
    return Release(name=name, unit=folder.unit, form=folder.form)


def _have(host: Host, release: Release, wish: Wish, *, dry_run: bool) -> None:
    """Plan, tell or execute, and go back when the new version does not come up."""
    check_place(host.layout.prefix, host.root)
    before = host.look(wanted=release.name)
    old = _to_go_back_to(before, host.layout, release)
    plan = plan_install(before, host.layout, release, wish)
    say = host.say
    if dry_run:
        for step in plan:
            say(f"would {step}")
    else:
        try:
            host.execute(plan)
        except NotUpError as error:
            if old in ("", release.name):
                raise
            wish = replace(wish, start=False, back=previous_name(before, host.layout))
            _go_back(host, old, wish, error)
    for note in plan.notes:
        say(note)
    if not plan.steps:
        say(f"nothing to do: {release.name} is installed in {host.layout.prefix}")
    elif not dry_run:
        say(f"{release.name} is installed in {host.layout.prefix}{_was(old, release.name)}")
    if host.systemd is None and plan.steps:
        say(_by_hand(host, release))
    if not dry_run:
        _say_what_is_missing(host)


def _to_go_back_to(before: Snapshot, layout: Layout, release: Release) -> str:
    """The version that takes over when this one does not come up; empty: none."""
    if release.name == untried_name(before, layout):  # an upgrade to it was interrupted
        return previous_name(before, layout)
    return current_name(before, layout)


def _say_what_is_missing(host: Host) -> None:
    now = host.systemd.state() if host.systemd else ServiceState()
    if now.active == "active" and not now.serving:
        why = now.status or "it does not say why"
        host.say(f"the agent runs and does not serve pods yet: {why}; `systemctl status {UNIT}`")


def _was(old: str, new: str) -> str:
    return f"; before it was {old}" if old not in ("", new) else ""


def _by_hand(host: Host, release: Release) -> str:
    """How to start it without systemd: with the settings that the unit has, too."""
    if host.root != ROOT:
        return f"systemd was not told, because {host.root} is not this host's root"
    layout = host.layout
    units = "".join(
        f"{name}={shlex.quote(value)}; " for name, value in settings_of(release.unit).items()
    )
    return (
        "there is no systemd on this host; to start the agent by hand: "
        f"set -a; {units}. {layout.environment}; set +a; exec {layout.program} run"
    )


def _go_back(host: Host, old: str, wish: Wish, error: NotUpError) -> None:
    """Have the old version in use again, and say why."""
    snapshot = host.look()
    try:
        host.execute(plan_install(snapshot, host.layout, _there(snapshot, old), wish))
    except InstallError as second:
        raise InstallError(
            f"the new version did not come up: {error}. Going back to {old} failed, too: {second}"
        ) from error
    raise InstallError(
        f"the new version did not come up, and {old} is in use again: {error}"
    ) from error
