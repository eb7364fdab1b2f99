"""What is planned for a host, by what is there: tables, without a file system."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agent.hostinstall.layout import UNIT, InstallError, Layout, checked_prefix, is_folder_name
from agent.hostinstall.plan import (
    Release,
    Wish,
    installed,
    plan_install,
    plan_removal,
    plan_stop,
)
from agent.hostinstall.snapshot import Folder, Found, Kind, ServiceState, Snapshot
from agent.hostinstall.steps import (
    CopyFolder,
    EmptyFolder,
    PointLink,
    Remove,
    RemoveFolder,
    RemoveIfEmpty,
    StartAgent,
    Systemctl,
    WriteFile,
)

UNIT_TEXT = b"[Service]\nExecStart=/opt/vgpu-agent/current/vgpu-agent run\n"
FORM, NEW_FORM, EDITED = b"#A=\n", b"#A=\n#B=\n", b"A=1\n"
OLD, NOW, NEW = "1.0.0-" + "a" * 16, "1.1.0-" + "b" * 16, "1.2.0-" + "c" * 16
LAYOUT = Layout()
RELEASE = Release(name=NEW, unit=UNIT_TEXT, form=NEW_FORM, source=Path("/media/x"), digest="c" * 16)
DIRECTORY = Found(kind=Kind.DIRECTORY)


def file(content: bytes) -> Found:
    return Found(kind=Kind.FILE, content=content)


def link(target: str) -> Found:
    return Found(kind=Kind.LINK, target=target)


def host(
    changes: Mapping[Path, Found] | None = None, *, version: str = NOW, form: bytes = FORM
) -> Snapshot:
    """A host on which a version is installed, and runs."""
    paths = {
        path.parent: DIRECTORY for path in (LAYOUT.unit, LAYOUT.wanted, LAYOUT.link)
    } | {
        LAYOUT.prefix: DIRECTORY,
        LAYOUT.etc: DIRECTORY,
        LAYOUT.environment: file(form),
        LAYOUT.current: link(version),
        LAYOUT.unit: file(UNIT_TEXT),
        LAYOUT.wanted: link(str(LAYOUT.unit)),
        LAYOUT.link: link(str(LAYOUT.program)),
    }  # fmt: skip
    return Snapshot(
        paths=paths | dict(changes or {}),
        folders={version: Folder(unit=UNIT_TEXT, form=form)},
        in_use=frozenset({version}),
        service=ServiceState(active="active", main_pid=7, version=version),
    )


def test_on_an_empty_host_everything_is_placed_and_started_in_an_order_that_bears_interruption() -> (
    None
):
    plan = plan_install(Snapshot(service=ServiceState()), LAYOUT, RELEASE, Wish())
    said = [str(step) for step in plan]
    order = [
        "copy /media/x",
        f"point {LAYOUT.current}",
        f"write {LAYOUT.unit}",
        "systemctl daemon-reload",
        "systemctl restart",
    ]
    places = [next(i for i, text in enumerate(said) if text.startswith(start)) for start in order]
    assert places == sorted(places)
    assert said[-1].startswith("systemctl restart")


def test_where_it_is_installed_and_runs_there_is_nothing_to_do() -> None:
    snapshot = host(version=NEW, form=NEW_FORM)
    assert plan_install(snapshot, LAYOUT, RELEASE, Wish()).steps == ()
    assert plan_install(snapshot, LAYOUT, RELEASE, Wish(start=False)).steps == ()


def test_another_version_goes_beside_the_old_one_which_is_kept() -> None:
    steps = plan_install(host(), LAYOUT, RELEASE, Wish()).steps
    assert steps == (
        CopyFolder(Path("/media/x"), LAYOUT.prefix / NEW, "c" * 16),
        WriteFile(LAYOUT.environment, NEW_FORM, "settings, which nobody had edited"),
        PointLink(LAYOUT.previous, NOW, "to go back to"),
        PointLink(LAYOUT.trying, NEW, "until it has come up"),
        PointLink(LAYOUT.current, NEW, "the version in use"),
        StartAgent(UNIT),
        Remove(LAYOUT.trying),
    )


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        pytest.param("serving 2 of 2 GPUs", True, id="the one before serves"),
        pytest.param("driver: no library", False, id="the one before does not"),
    ],
)
def test_what_serves_is_asked_to_go_on_serving(status: str, asked: bool) -> None:
    service = ServiceState(active="active", main_pid=7, version=NOW, status=status)
    plan = plan_install(replace(host(), service=service), LAYOUT, RELEASE, Wish())
    assert StartAgent(UNIT, serves=asked) in plan.steps


@pytest.mark.parametrize("active", ["active", "deactivating", "inactive", "failed"])
@pytest.mark.parametrize("start", [True, False], ids=["install", "upgrade"])
def test_after_an_interruption_it_is_started_and_watched_whatever_it_does_by_now(
    active: str, start: bool
) -> None:
    snapshot = replace(
        host({LAYOUT.trying: link(NEW)}, version=NEW, form=NEW_FORM),
        service=ServiceState(active=active, version=NEW if active == "active" else ""),
    )
    steps = plan_install(snapshot, LAYOUT, RELEASE, Wish(start=start)).steps
    assert steps == (StartAgent(UNIT), Remove(LAYOUT.trying))


@pytest.mark.parametrize(
    ("active", "starts"),
    [pytest.param("active", True, id="runs"), pytest.param("inactive", False, id="stopped")],
)
def test_installing_over_what_is_disabled_enables_nothing(active: str, starts: bool) -> None:
    service = ServiceState(active=active, version=NOW if active == "active" else "")
    snapshot = replace(host({LAYOUT.wanted: Found()}), service=service)
    plan = plan_install(snapshot, LAYOUT, RELEASE, Wish())
    assert (StartAgent(UNIT) in plan.steps) is starts
    assert not [s for s in plan.steps if isinstance(s, PointLink) and s.path == LAYOUT.wanted]
    assert any("is disabled" in note for note in plan.notes)


def test_systemd_reads_units_again_that_it_says_have_changed() -> None:
    running = ServiceState(active="active", version=NEW, needs_reload=True)
    snapshot = replace(host(version=NEW, form=NEW_FORM), service=running)
    steps = plan_install(snapshot, LAYOUT, RELEASE, Wish()).steps
    assert steps == (Systemctl(("daemon-reload",)), StartAgent(UNIT))


@pytest.mark.parametrize(
    ("snapshot", "release"),
    [
        pytest.param(replace(host(version=NEW, form=NEW_FORM), service=ServiceState(active="active", version=NOW)), RELEASE, id="killed before the restart"),
        pytest.param(replace(host(version=NEW, form=NEW_FORM), service=ServiceState(active="active", version=NEW, needs_reload=True)), RELEASE, id="killed before the reload"),
        pytest.param(replace(host(version=NEW, form=NEW_FORM), service=ServiceState(active="failed")), RELEASE, id="it had not come up"),
        pytest.param(replace(host(version=NEW, form=NEW_FORM), service=ServiceState()), RELEASE, id="somebody has stopped it"),
        pytest.param(host({LAYOUT.unit: file(UNIT_TEXT + b"#")}, version=NEW, form=NEW_FORM), RELEASE, id="the unit differs"),
    ],
)  # fmt: skip
def test_installing_starts_what_does_not_run_from_it(snapshot: Snapshot, release: Release) -> None:
    assert plan_install(snapshot, LAYOUT, release, Wish()).steps[-1] == StartAgent(UNIT)


@pytest.mark.parametrize(
    ("active", "starts"),
    [
        pytest.param("active", True, id="runs"),
        pytest.param("activating", True, id="is being restarted again and again"),
        pytest.param("failed", True, id="failed"),
        pytest.param("inactive", False, id="stopped by somebody"),
    ],
)
def test_an_upgrade_restarts_only_what_was_to_run(active: str, starts: bool) -> None:
    snapshot = replace(
        host(), service=ServiceState(active=active, version=NOW if active == "active" else "")
    )
    plan = plan_install(snapshot, LAYOUT, RELEASE, Wish(start=False))
    assert (StartAgent(UNIT) in plan.steps) is starts
    assert any("was not running" in note for note in plan.notes) is not starts


def test_without_a_kubeconfig_it_is_not_started_and_says_so() -> None:
    snapshot = Snapshot(service=ServiceState(), missing="put a kubeconfig at /k")
    plan = plan_install(snapshot, LAYOUT, RELEASE, Wish())
    assert StartAgent(UNIT) not in plan.steps
    assert any("put a kubeconfig at /k" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("now", "beside", "current_form", "wanted"),
    [
        pytest.param(Found(), Found(), FORM, WriteFile(LAYOUT.environment, NEW_FORM, "settings"), id="missing"),
        pytest.param(file(FORM), Found(), FORM, WriteFile(LAYOUT.environment, NEW_FORM, "settings, which nobody had edited"), id="as it came"),
        pytest.param(file(EDITED), Found(), FORM, WriteFile(LAYOUT.new_environment, NEW_FORM, "its newer form"), id="edited"),
        pytest.param(file(EDITED), file(NEW_FORM), FORM, None, id="edited, and the news are there"),
        pytest.param(file(EDITED), Found(), NEW_FORM, None, id="edited, without news"),
        pytest.param(file(NEW_FORM), file(NEW_FORM), FORM, Remove(LAYOUT.new_environment, "the same as the one in use"), id="the news were taken over"),
        pytest.param(link("/elsewhere"), Found(), FORM, WriteFile(LAYOUT.new_environment, NEW_FORM, "its newer form"), id="a link of the administrator's"),
    ],
)  # fmt: skip
def test_the_settings(now: Found, beside: Found, current_form: bytes, wanted: object) -> None:
    snapshot = host({LAYOUT.environment: now, LAYOUT.new_environment: beside}, form=current_form)
    steps = plan_install(snapshot, LAYOUT, RELEASE, Wish()).steps
    found = [s for s in steps if isinstance(s, WriteFile | Remove) and s.path.parent == LAYOUT.etc]
    assert found == ([wanted] if wanted else [])


@pytest.mark.parametrize(
    ("back", "kept", "gone"),
    [
        pytest.param(None, NOW, OLD, id="a new version replaces the one before the one before"),
        pytest.param(OLD, OLD, NOW, id="going back after a failed upgrade keeps what was kept"),
        pytest.param("", "", NOW, id="there was nothing to go back to"),
    ],
)
def test_which_version_is_kept(back: str | None, kept: str, gone: str) -> None:
    there = {name: Folder(unit=UNIT_TEXT, form=FORM) for name in (OLD, NOW)}
    snapshot = replace(host({LAYOUT.previous: link(OLD)}), folders=there)
    steps = plan_install(snapshot, LAYOUT, RELEASE, Wish(back=back)).steps
    removed = {s.path.name for s in steps if isinstance(s, RemoveFolder)}
    assert gone in removed
    assert kept not in removed
    links = {s.path: s.target for s in steps if isinstance(s, PointLink)}
    assert links.get(LAYOUT.previous, OLD if kept else "") == kept


def test_a_folder_from_which_somebody_runs_the_program_stays() -> None:
    there = {name: Folder(unit=UNIT_TEXT, form=FORM) for name in (OLD, NOW)}
    plan = plan_install(
        replace(host(), folders=there, in_use=frozenset({OLD})), LAYOUT, RELEASE, Wish()
    )
    assert not [s for s in plan.steps if isinstance(s, RemoveFolder)]
    assert any(OLD in note for note in plan.notes)


def test_a_folder_of_the_service_goes_only_when_the_service_is_started_anew() -> None:
    there = {name: Folder(unit=UNIT_TEXT, form=FORM) for name in (OLD, NOW)}
    running = ServiceState(active="active", version=OLD)
    snapshot = replace(host(), folders=there, in_use=frozenset({OLD}), service=running)
    gone = RemoveFolder(LAYOUT.prefix / OLD, "an older version")
    assert gone in plan_install(snapshot, LAYOUT, RELEASE, Wish()).steps
    assert gone not in plan_install(replace(snapshot, missing="x"), LAYOUT, RELEASE, Wish()).steps


def test_a_damaged_folder_is_copied_again() -> None:
    snapshot = host(version=NEW, form=NEW_FORM)
    damaged = replace(snapshot, folders={NEW: Folder(unit=UNIT_TEXT, form=NEW_FORM, whole=False)})
    assert any(isinstance(s, CopyFolder) for s in plan_install(damaged, LAYOUT, RELEASE, Wish()))


@pytest.mark.parametrize(
    ("unit", "words_said"),
    [
        pytest.param(link("/dev/null"), "is masked", id="masked"),
        pytest.param(file(b"[Service]\nExecStart=/usr/bin/vgpu-agent run\n"), "is not one that", id="written by hand"),
        pytest.param(file(b"[Service]\nExecStart=/srv/x/current/vgpu-agent run\n"), "is installed in /srv/x", id="elsewhere"),
        pytest.param(DIRECTORY, "is not one that", id="a directory"),
    ],
)  # fmt: skip
def test_somebody_elses_unit_is_not_overwritten(unit: Found, words_said: str) -> None:
    with pytest.raises(InstallError, match=words_said):
        plan_install(host({LAYOUT.unit: unit}), LAYOUT, RELEASE, Wish())


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(file(b"\x7fELF"), id="the single file"),
        pytest.param(link("/srv/vgpu-agent"), id="a link elsewhere"),
    ],
)
def test_somebody_elses_program_is_not_overwritten(there: Found) -> None:
    plan = plan_install(host({LAYOUT.link: there}), LAYOUT, RELEASE, Wish())
    assert not [s for s in plan.steps if isinstance(s, PointLink) and s.path == LAYOUT.link]
    assert any("somebody else's" in note for note in plan.notes)


def test_another_prefix_is_in_the_unit() -> None:
    layout = Layout(Path("/srv/agent"))
    steps = plan_install(Snapshot(), layout, RELEASE, Wish()).steps
    unit = next(s.content for s in steps if isinstance(s, WriteFile) and s.path == layout.unit)
    assert b"ExecStart=/srv/agent/current/vgpu-agent run\n" in unit


@pytest.mark.parametrize(
    "text", ["opt", "/", "/opt/", "/o pt", "/opt/../x", "/opt/.x", "/opt/%n", ""]
)
def test_a_prefix_that_could_not_stand_in_a_unit(text: str) -> None:
    with pytest.raises(InstallError, match="--prefix"):
        checked_prefix(text)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        pytest.param(NEW, True, id="one"),
        pytest.param("1.0.0-rc.1-" + "0" * 16, True, id="a pre-release"),
        pytest.param("1.0.0", False, id="no digest"),
        pytest.param("../x-" + "0" * 16, False, id="elsewhere"),
        pytest.param("current", False, id="a link of ours"),
        pytest.param(".hidden-" + "0" * 16, False, id="being made"),
    ],
)
def test_names_of_folders(name: str, is_one: bool) -> None:
    assert is_folder_name(name) is is_one


@pytest.mark.parametrize(
    ("environment", "purge", "stays"),
    [
        pytest.param(FORM, False, False, id="as it came"),
        pytest.param(EDITED, False, True, id="edited"),
        pytest.param(EDITED, True, False, id="edited, purged"),
    ],
)
def test_what_removal_does_with_settings(environment: bytes, purge: bool, stays: bool) -> None:
    snapshot = host({LAYOUT.environment: file(environment)})
    plan = plan_removal(snapshot, LAYOUT, purge=purge)
    assert (Remove(LAYOUT.environment) not in plan.steps) is stays
    assert bool(plan.notes) is stays


def test_removal_ends_with_the_unit_which_says_where_the_rest_is() -> None:
    """And before that the folder that the program runs from."""
    state = EmptyFolder(Path("/var/lib/vgpu-agent"))
    steps = plan_removal(host(), LAYOUT, purge=True, also=(state,)).steps
    assert steps[0] == Remove(LAYOUT.wanted)
    assert steps[-5:-2] == (
        RemoveFolder(LAYOUT.prefix / NOW),
        RemoveIfEmpty(LAYOUT.prefix),
        Remove(LAYOUT.unit),
    )
    assert steps.index(state) < steps.index(Remove(LAYOUT.environment)), "which names it"


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(Snapshot(leftovers=(Path("/opt/vgpu-agent/.x"),)), id="half a folder"),
        pytest.param(Snapshot(paths={LAYOUT.unit: file(UNIT_TEXT)}), id="the unit alone"),
        pytest.param(Snapshot(paths={LAYOUT.current: link("x")}), id="a link of ours"),
        pytest.param(Snapshot(folders={NOW: Folder()}), id="a folder"),
    ],
)
def test_what_is_left_of_an_installation_is_seen(snapshot: Snapshot) -> None:
    assert installed(snapshot, LAYOUT)
    assert not installed(Snapshot(), LAYOUT)


def test_nothing_is_stopped_that_does_not_run() -> None:
    assert plan_stop(Snapshot(service=ServiceState())).steps == ()
    assert plan_stop(Snapshot()).steps == ()
    assert len(plan_stop(host()).steps) == 1
