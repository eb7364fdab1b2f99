"""Which steps lead from what is there to what is wanted? Pure.

The order makes every interruption harmless: what is new is put beside what is old, then the one
link is swapped, then the service is started anew, and only then is what nobody needs removed. Each
step appears only where it changes something, so a plan made again after an interruption is the
rest, and one made after success is empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent.hostinstall.layout import UNIT, InstallError, Layout, prefix_of
from agent.hostinstall.snapshot import Found, Kind, ServiceState, Snapshot
from agent.hostinstall.steps import (
    CopyFolder,
    MakeDirectory,
    Plan,
    PointLink,
    Remove,
    RemoveFolder,
    RemoveIfEmpty,
    StartAgent,
    Step,
    Systemctl,
    WriteFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The version that is to be in use: its folder's name and what of it concerns the host."""

    name: str
    unit: bytes  # as shipped
    form: bytes  # of the environment file
    source: Path | None = None  # None: its folder is there already
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What else is wanted.

    `start`: enabled and running, unless somebody has disabled what is installed; else as it was.
    `back`: the folder to go back to later; None: the one that was in use.
    """

    start: bool = True
    link: bool = True
    back: str | None = None


def current_name(snapshot: Snapshot, layout: Layout) -> str:
    """The folder in use; empty: none."""
    return _leads_to(snapshot, layout.current)


def previous_name(snapshot: Snapshot, layout: Layout) -> str:
    """The folder to go back to; empty: none."""
    name = _leads_to(snapshot, layout.previous)
    return "" if name == current_name(snapshot, layout) else name


def untried_name(snapshot: Snapshot, layout: Layout) -> str:
    """The folder in use, if an installation was interrupted before it had come up; else empty."""
    name = _leads_to(snapshot, layout.trying)
    return name if name == current_name(snapshot, layout) else ""


def _leads_to(snapshot: Snapshot, link: Path) -> str:
    target = snapshot.at(link).target
    return target if target in snapshot.folders else ""


def installed(snapshot: Snapshot, layout: Layout) -> bool:
    """Whether something of an installation is there."""
    unit = snapshot.at(layout.unit)
    ours = unit.kind is Kind.FILE and prefix_of(unit.content) is not None
    linked = snapshot.at(layout.current).kind is Kind.LINK
    return ours or linked or bool(snapshot.folders or snapshot.leftovers)


def plan_install(snapshot: Snapshot, layout: Layout, release: Release, wish: Wish) -> Plan:
    """Have this version in use. Raises InstallError where somebody else's files are in the way."""
    _check_unit(snapshot.at(layout.unit), layout)
    unit = layout.unit_text(release.unit)
    unit_changes = snapshot.at(layout.unit) != Found(kind=Kind.FILE, content=unit)
    notes: list[str] = []
    if wish.start and _is_disabled(snapshot, layout):
        wish = replace(wish, start=False)
        notes.append(f"it is disabled and is left so; `systemctl enable --now {UNIT}` changes that")
    enables = wish.start and snapshot.at(layout.wanted) != _link_to(str(layout.unit))
    service = list(
        _service(
            snapshot,
            wanted=wish.start or _wanted_up(snapshot, layout),
            runs=_runs(snapshot, layout, release),
            reload=unit_changes or enables,
            notes=notes,
        )
    )
    restarts = any(isinstance(step, StartAgent) for step in service)
    steps: list[Step] = [
        *(_removal(snapshot, path) for path in snapshot.leftovers),
        *_directories(snapshot, layout, wish),
        *_folder(snapshot, layout, release),
        *_environment(snapshot, layout, release, notes),
    ]
    back = _back(snapshot, layout, release, wish)
    if back:
        steps += _pointed(snapshot, layout.previous, back, "to go back to")
    elif snapshot.at(layout.previous).kind is not Kind.ABSENT:
        steps.append(Remove(layout.previous, "leads nowhere"))
    tries = (
        restarts and wish.back is None and current_name(snapshot, layout) not in ("", release.name)
    )
    if tries:
        steps += _pointed(snapshot, layout.trying, release.name, "until it has come up")
    steps += _pointed(snapshot, layout.current, release.name, "the version in use")
    if wish.start:  # before the unit, by which is told that it was installed
        steps += _pointed(snapshot, layout.wanted, str(layout.unit), "started at boot")
    if unit_changes:
        steps.append(WriteFile(layout.unit, unit, "the unit"))
    if wish.link:
        steps += _link(snapshot, layout, notes)
    steps += service
    if tries or snapshot.at(layout.trying).kind is Kind.LINK:
        steps.append(Remove(layout.trying))
    steps += _outdated(snapshot, layout, {release.name, back}, notes, restarts=restarts)
    return Plan(tuple(steps), tuple(notes))


def _is_disabled(snapshot: Snapshot, layout: Layout) -> bool:
    """Whether it is installed, and not started at boot because somebody wants it so."""
    there = snapshot.at(layout.unit).kind is Kind.FILE and bool(current_name(snapshot, layout))
    return there and snapshot.at(layout.wanted).kind is Kind.ABSENT


def _wanted_up(snapshot: Snapshot, layout: Layout) -> bool:
    """Whether somebody wants it to run; who was interrupted in starting it anew did."""
    service = snapshot.service or ServiceState()
    return service.wanted_up or bool(untried_name(snapshot, layout))


def _runs(snapshot: Snapshot, layout: Layout, release: Release) -> bool:
    """Whether the service runs it, and was seen to stay up."""
    service = snapshot.service or ServiceState()
    untried = untried_name(snapshot, layout) == release.name
    return service.active == "active" and service.version == release.name and not untried


def _back(snapshot: Snapshot, layout: Layout, release: Release, wish: Wish) -> str:
    """The folder that is kept to go back to; empty: none."""
    old = current_name(snapshot, layout)
    if wish.back is not None:
        back = wish.back if wish.back in snapshot.folders else ""
    else:
        back = previous_name(snapshot, layout) if old in ("", release.name) else old
    return "" if back == release.name else back


def _check_unit(unit: Found, layout: Layout) -> None:
    if unit.kind is Kind.LINK and unit.target == "/dev/null":
        raise InstallError(
            f"{UNIT} is masked, so somebody wants it not to run; `systemctl unmask {UNIT}` first"
        )
    prefix = prefix_of(unit.content)
    if unit.kind is not Kind.ABSENT and prefix is None:
        raise InstallError(
            f"{layout.unit} is not one that `vgpu-agent install` has written; move it away, and "
            "put what you need of it where `systemctl edit vgpu-agent` opens an editor"
        )
    if prefix not in (None, layout.prefix):
        raise InstallError(
            f"the agent is installed in {prefix}, not in {layout.prefix}; leave --prefix out, or "
            "uninstall it first"
        )


def _removal(snapshot: Snapshot, path: Path) -> Step:
    what = "left by an interrupted installation"
    folder = snapshot.at(path).kind is Kind.DIRECTORY
    return RemoveFolder(path, what) if folder else Remove(path, what)


def _directories(snapshot: Snapshot, layout: Layout, wish: Wish) -> Iterator[Step]:
    wanted = [layout.prefix, layout.etc, layout.unit.parent]
    wanted += [layout.wanted.parent] if wish.start else []
    wanted += [layout.link.parent] if wish.link else []
    for path in wanted:
        if snapshot.at(path).kind is Kind.ABSENT:
            yield MakeDirectory(path)


def _folder(snapshot: Snapshot, layout: Layout, release: Release) -> Iterator[Step]:
    there = snapshot.folders.get(release.name)
    if (there is None or not there.whole) and release.source is not None:
        yield CopyFolder(release.source, layout.prefix / release.name, release.digest)


def _environment(
    snapshot: Snapshot, layout: Layout, release: Release, notes: list[str]
) -> Iterator[Step]:
    """As package managers do it: what a person has edited stays, the new form comes beside it."""
    now = snapshot.at(layout.environment)
    beside = snapshot.at(layout.new_environment)
    forms = {folder.form for folder in snapshot.folders.values()} | {release.form}
    if now.kind is Kind.ABSENT:
        yield WriteFile(layout.environment, release.form, "settings")
    elif now.kind is Kind.FILE and now.content == release.form:
        if beside.kind is Kind.FILE and beside.content in forms:
            yield Remove(layout.new_environment, "the same as the one in use")
    elif now.kind is Kind.FILE and now.content in forms:
        yield WriteFile(layout.environment, release.form, "settings, which nobody had edited")
    else:
        before = snapshot.folders.get(current_name(snapshot, layout))
        news = before is None or before.form != release.form
        if news and beside != Found(kind=Kind.FILE, content=release.form):
            yield WriteFile(layout.new_environment, release.form, "its newer form")
            notes.append(
                f"{layout.environment} was edited and stays as it is; what is new in its form is "
                f"in {layout.new_environment}"
            )


def _pointed(snapshot: Snapshot, path: Path, target: str, what: str) -> Iterator[Step]:
    if snapshot.at(path) != _link_to(target):
        yield PointLink(path, target, what)


def _link_to(target: str) -> Found:
    return Found(kind=Kind.LINK, target=target)


def _link(snapshot: Snapshot, layout: Layout, notes: list[str]) -> Iterator[Step]:
    found = snapshot.at(layout.link)
    if found.kind is not Kind.ABSENT and not _is_our_link(found):
        notes.append(f"{layout.link} is somebody else's and stays; ours is {layout.program}")
        return
    yield from _pointed(snapshot, layout.link, str(layout.program), "for people")


def _is_our_link(found: Found) -> bool:
    return found.kind is Kind.LINK and found.target.endswith("/current/vgpu-agent")


def _service(
    snapshot: Snapshot, *, wanted: bool, runs: bool, reload: bool, notes: list[str]
) -> Iterator[Step]:
    service = snapshot.service
    if service is None:
        return
    if reload or service.needs_reload:
        yield Systemctl(("daemon-reload",))
    if not wanted:
        notes.append(f"the agent was not running and is left so; `systemctl start {UNIT}`")
    elif runs and not reload and not service.needs_reload:
        return
    elif snapshot.missing:
        notes.append(f"not started: {snapshot.missing}; then `systemctl restart {UNIT}`")
    else:
        yield StartAgent(UNIT, serves=service.serving)


def _outdated(
    snapshot: Snapshot, layout: Layout, keep: set[str], notes: list[str], *, restarts: bool
) -> Iterator[Step]:
    for name in sorted(snapshot.folders.keys() - keep):
        path = layout.prefix / name
        if name in snapshot.in_use and not (restarts and _is_service(snapshot, name)):
            notes.append(f"{path} stays, because a process still runs from it")
        else:
            yield RemoveFolder(path, "an older version")


def _is_service(snapshot: Snapshot, name: str) -> bool:
    return snapshot.service is not None and snapshot.service.version == name


# --- away with it ---------------------------------------------------------------------------------


def plan_stop(snapshot: Snapshot) -> Plan:
    """End the service, so that nothing is written again."""
    if snapshot.service is None or snapshot.service.active == "inactive":
        return Plan()
    return Plan((Systemctl(("stop", UNIT)),))


def plan_removal(
    snapshot: Snapshot, layout: Layout, *, purge: bool, also: tuple[Step, ...] = ()
) -> Plan:
    """Remove what an installation has placed; `also`: what else goes with --purge.

    First what starts it at boot; last the unit, which tells a removal that was interrupted where
    the rest is. Settings stay for as long as they tell what else is to go, and the folders, from
    one of which the program runs that does it, until nothing but the unit is left.
    """
    steps: list[Step] = [_removal(snapshot, path) for path in snapshot.leftovers]
    notes: list[str] = []
    if snapshot.at(layout.wanted).kind is not Kind.ABSENT:
        steps.append(Remove(layout.wanted))
    if _is_our_link(snapshot.at(layout.link)):
        steps.append(Remove(layout.link))
    steps += also
    steps += _settings_removed(snapshot, layout, purge=purge, notes=notes)
    for path in (layout.trying, layout.current, layout.previous):
        if snapshot.at(path).kind is Kind.LINK:
            steps.append(Remove(path))
    steps += [RemoveFolder(layout.prefix / name) for name in sorted(snapshot.folders)]
    if snapshot.at(layout.prefix).kind is Kind.DIRECTORY:
        steps.append(RemoveIfEmpty(layout.prefix))
    if snapshot.at(layout.unit).kind is not Kind.ABSENT:
        steps.append(Remove(layout.unit))
        if snapshot.service is not None:
            steps.append(Systemctl(("daemon-reload",)))
            steps.append(Systemctl(("reset-failed", UNIT), may_fail=True))
    return Plan(tuple(steps), tuple(notes))


def _settings_removed(
    snapshot: Snapshot, layout: Layout, *, purge: bool, notes: list[str]
) -> Iterator[Step]:
    if snapshot.at(layout.new_environment).kind is Kind.FILE:
        yield Remove(layout.new_environment)
    now = snapshot.at(layout.environment)
    forms = {folder.form for folder in snapshot.folders.values()}
    if now.kind is not Kind.ABSENT:
        if purge or now.content in forms:
            yield Remove(layout.environment)
        else:
            notes.append(f"{layout.environment} was edited and stays; --purge removes it")
    if snapshot.at(layout.etc).kind is Kind.DIRECTORY:
        yield RemoveIfEmpty(layout.etc)
