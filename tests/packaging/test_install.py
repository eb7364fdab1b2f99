"""Plans as they are executed: in trees, interrupted anywhere, on full disks, and by the command itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from install_tree import SHIPPED, host_in, made_release, tree

from agent.cli import main
from agent.hostinstall.alone import alone
from agent.hostinstall.command import Host, _by_hand, _have, _release_before, release_of
from agent.hostinstall.layout import InstallError, Layout
from agent.hostinstall.plan import Release, Wish, current_name, plan_install, previous_name
from agent.hostinstall.steps import Plan, StartAgent

ROOT = Path(__file__).parents[2]


def have(host: Host, release: Release, *, start: bool = True) -> None:
    _have(host, release, Wish(start=start), dry_run=False)


def offline(root: Path) -> Host:
    root.mkdir(exist_ok=True)
    return Host(Layout(), root, None, lambda _: None)


# --- killed anywhere --------------------------------------------------------------------------------


CHANGES = frozenset(
    f"os.{call}" for call in ("mkdir", "rename", "remove", "rmdir", "symlink", "chmod", "link")
)


def opens_to_write(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def killed_after(events: int, action: Callable[[], object]) -> bool:
    """Do it in a process that is killed at its nth change of the disk; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = events

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in CHANGES or (event == "open" and opens_to_write(arguments)):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(count)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def installed_once(root: Path, first: Release, _second: Release) -> None:
    have(offline(root), first)


def upgraded(root: Path, first: Release, second: Release) -> None:
    have(offline(root), second)


def removed(root: Path, _first: Release, _second: Release) -> None:
    assert command("uninstall", "--root", root) == 0


def purged(root: Path, _first: Release, _second: Release) -> None:
    assert command("uninstall", "--root", root, "--purge") == 0


def installed_elsewhere(root: Path, first: Release, _second: Release) -> None:
    root.mkdir(exist_ok=True)
    host = Host(Layout(Path("/srv/agent")), root, None, lambda _: None)
    have(host, first)
    (root / "var/lib/vgpu-agent/grants").mkdir(parents=True)
    (root / "usr/local/vgpu/containers/a_b").mkdir(parents=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("before", "action"),
    [
        pytest.param((), installed_once, id="installing"),
        pytest.param((installed_once,), upgraded, id="upgrading"),
        pytest.param((installed_once, upgraded), installed_once, id="downgrading"),
        pytest.param((installed_once, upgraded), removed, id="removing"),
        pytest.param((installed_elsewhere,), purged, id="purging"),
    ],
)
def test_killed_anywhere_and_run_again_it_ends_as_if_nothing_had_been(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[Callable[[Path, Release, Release], None], ...],
    action: Callable[[Path, Release, Release], None],
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a process is killed, no machine
    releases = made_release(tmp_path / "a"), made_release(tmp_path / "b", form="#A=\n#B=\n")

    def prepared(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        for step in before:
            step(root, *releases)
        return root

    smooth = prepared("smooth")
    action(smooth, *releases)
    for events in range(10_000):
        root = prepared(f"killed-{events}")
        was_killed = killed_after(events, partial(action, root, *releases))
        if was_killed and before and action is upgraded:
            assert current_name(offline(root).look(), Layout()) in {r.name for r in releases}
            program = root / "opt/vgpu-agent/current/vgpu-agent"
            assert subprocess.run([program], capture_output=True, check=True).stdout
        action(root, *releases)
        assert tree(root) == tree(smooth), f"killed at call {events}"
        if not was_killed:
            assert events > 10, "it was interrupted somewhere"
            return
        subprocess.run(["rm", "-rf", root], check=True)


# --- errors -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here: needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_without_space_nothing_is_begun_and_nothing_stays(tmp_path: Path, small_disk: Path) -> None:
    with pytest.raises(InstallError, match=r"MiB free.*--prefix"):
        have(offline(small_disk), made_release(tmp_path / "a"))
    assert tree(small_disk / "opt") == {}


@pytest.mark.usefixtures("_no_check_of_space")
def test_on_a_disk_that_fills_up_meanwhile_nothing_is_half_made(
    tmp_path: Path, small_disk: Path
) -> None:
    with pytest.raises(InstallError, match=r"could not copy .*: the disk is full"):
        have(offline(small_disk), made_release(tmp_path / "a"))
    assert tree(small_disk / "opt") == {}


@pytest.fixture
def _no_check_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plenty:
        free = 1 << 60

    monkeypatch.setattr("agent.hostinstall.folder.shutil.disk_usage", lambda _: Plenty)


def test_a_read_only_place_is_named_with_what_to_do(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "opt").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(InstallError, match=r"read-only; choose a place .* --prefix DIR"):
        have(offline(small_disk), made_release(tmp_path / "a"))


def test_a_release_that_changes_while_it_is_copied_is_not_installed(tmp_path: Path) -> None:
    release = made_release(tmp_path / "a")
    (tmp_path / "a/_internal/library.so").write_bytes(b"other")
    host = offline(tmp_path / "root")
    with pytest.raises(InstallError, match="is not what was read there before"):
        have(host, release)
    assert current_name(host.look(), host.layout) == ""
    assert tree(tmp_path / "root/opt") == {}


def test_two_installations_do_not_run_at_once(tmp_path: Path) -> None:
    with (
        alone(tmp_path),
        pytest.raises(InstallError, match="another installation"),
        alone(tmp_path),
    ):
        pass
    with alone(tmp_path), alone(tmp_path, dry_run=True):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        pytest.param("vgpu-agent", "is not the agent's folder", id="no program"),
        pytest.param(
            "_internal/packaging/systemd/vgpu-agent.service",
            "has no vgpu-agent.service",
            id="no unit",
        ),
    ],
)
def test_what_is_no_release_is_not_installed(tmp_path: Path, missing: str, said: str) -> None:
    made_release(tmp_path / "a")
    (tmp_path / "a" / missing).unlink()
    with pytest.raises(InstallError, match=said):
        release_of(tmp_path / "a", "1.0.0")


# --- systemd ----------------------------------------------------------------------------------------


def test_a_version_that_does_not_come_up_is_taken_back_with_what_was_kept(tmp_path: Path) -> None:
    releases = [made_release(tmp_path / name) for name in "abc"]
    host, systemd = host_in(tmp_path / "root")
    for release in releases[:2]:
        have(host, release)
    systemd.broken = {releases[2].name}
    with pytest.raises(InstallError, match=f"{releases[1].name} is in use again: it ended at once"):
        have(host, releases[2])
    snapshot = host.look()
    assert systemd.now.version == releases[1].name
    assert current_name(snapshot, host.layout) == releases[1].name
    assert previous_name(snapshot, host.layout) == releases[0].name
    assert set(snapshot.folders) == {releases[0].name, releases[1].name}
    assert not os.path.lexists(tmp_path / "root/opt/vgpu-agent/trying")


@pytest.mark.parametrize(
    ("served", "used"),
    [
        pytest.param(True, 0, id="the one before did"),
        pytest.param(False, 1, id="nor did the one before"),
    ],
)
def test_a_version_that_does_not_serve_is_taken_back_if_that_is_its_own_fault(
    tmp_path: Path, served: bool, used: int
) -> None:
    releases = made_release(tmp_path / "a"), made_release(tmp_path / "b")
    said: list[str] = []
    host, systemd = host_in(tmp_path / "root", said.append)
    systemd.mute = {release.name for release in releases[served:]}
    have(host, releases[0])
    if served:
        with pytest.raises(InstallError, match=f"{releases[0].name} is in use again: it does not"):
            have(host, releases[1])
    else:
        have(host, releases[1])
        assert "does not serve pods yet: driver: no library" in said[-1]
    assert systemd.now.version == releases[used].name
    assert current_name(host.look(), host.layout) == releases[used].name


@pytest.mark.parametrize(
    "killed_at",
    [
        pytest.param("restart", id="before it was started"),
        pytest.param("remove", id="before it was said to be up"),
    ],
)
def test_an_upgrade_that_was_killed_still_knows_the_way_back(
    tmp_path: Path, killed_at: str
) -> None:
    releases = [made_release(tmp_path / name) for name in "ab"]
    host, systemd = host_in(tmp_path / "root")
    have(host, releases[0])
    before = host.look(wanted=releases[1].name)
    steps = plan_install(before, host.layout, releases[1], Wish(start=False)).steps
    restart = next(n for n, step in enumerate(steps) if isinstance(step, StartAgent))
    host.execute(Plan(steps[: restart if killed_at == "restart" else restart + 1]))
    systemd.broken = {releases[1].name}
    with pytest.raises(InstallError, match=f"{releases[0].name} is in use again"):
        have(host, releases[1])
    assert systemd.now.version == releases[0].name
    assert current_name(host.look(), host.layout) == releases[0].name
    systemd.broken = set()
    have(host, releases[1])
    assert systemd.now.version == releases[1].name
    assert not os.path.lexists(tmp_path / "root/opt/vgpu-agent/trying")


def test_what_somebody_has_disabled_stays_so(tmp_path: Path) -> None:
    releases = [made_release(tmp_path / name) for name in "ab"]
    said: list[str] = []
    host, systemd = host_in(tmp_path / "root", said.append)
    have(host, releases[0])
    systemd.command("stop")
    (tmp_path / "root/etc/systemd/system/multi-user.target.wants/vgpu-agent.service").unlink()
    have(host, releases[1])
    assert current_name(host.look(), host.layout) == releases[1].name
    assert systemd.now.active == "inactive"
    assert not list((tmp_path / "root/etc/systemd/system/multi-user.target.wants").iterdir())
    assert any("is disabled and is left so" in line for line in said)


def test_going_back_twice_leads_to_where_it_began(tmp_path: Path) -> None:
    first, second = made_release(tmp_path / "a"), made_release(tmp_path / "b")
    host, systemd = host_in(tmp_path / "root")
    have(host, first)
    have(host, second)
    for wanted in (first, second, first):
        have(host, _release_before(host.look(), host.layout), start=False)
        assert systemd.now.version == wanted.name


def test_without_a_version_before_there_is_no_going_back(tmp_path: Path) -> None:
    host, _ = host_in(tmp_path / "root")
    have(host, made_release(tmp_path / "a"))
    with pytest.raises(InstallError, match="names no version to go back to"):
        _release_before(host.look(), host.layout)


def test_a_damaged_installation_is_repaired(tmp_path: Path) -> None:
    release = made_release(tmp_path / "a")
    host = offline(tmp_path / "root")
    have(host, release)
    whole = tree(tmp_path / "root")
    (tmp_path / "root/opt/vgpu-agent" / release.name / "_internal/library.so").write_bytes(b"")
    (tmp_path / "root/usr/local/bin/vgpu-agent").unlink()
    have(host, release)
    assert tree(tmp_path / "root") == whole


# --- the command ------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments], os.environ)


def test_the_command_places_files_and_removes_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = made_release(tmp_path / "a")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    install = ("install", "--root", root, "--from", tmp_path / "a")

    assert command(*install, "--dry-run") == 0
    assert "would copy" in capsys.readouterr().out
    assert list(tree(root)) == ["etc"]

    assert command(*install) == 0
    assert f"{release.name} is installed" in capsys.readouterr().out
    assert (root / "etc/systemd/system/vgpu-agent.service").read_bytes() == (
        SHIPPED / "vgpu-agent.service"
    ).read_bytes()
    before = tree(root)
    assert command(*install) == 0
    assert capsys.readouterr().out.startswith("nothing to do")
    assert tree(root) == before

    assert command("uninstall", "--root", root, "--dry-run") == 0
    assert tree(root) == before
    assert command("uninstall", "--root", root) == 0
    assert not [name for name in tree(root) if "vgpu" in name]


def test_settings_that_were_edited_survive_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    made_release(tmp_path / "a")
    made_release(tmp_path / "b", form="#new\n")
    assert command("install", "--root", root, "--from", tmp_path / "a") == 0
    settings = root / "etc/vgpu-agent/vgpu-agent.env"
    settings.write_text("VGPU_NODE_NAME=x\n")
    assert command("upgrade", "--root", root, "--from", tmp_path / "b") == 0
    assert "was edited and stays" in capsys.readouterr().out
    assert settings.read_text() == "VGPU_NODE_NAME=x\n"
    assert settings.with_name("vgpu-agent.env.new").read_text() == "#new\n"
    assert command("upgrade", "--root", root, "--rollback") == 0
    assert command("uninstall", "--root", root) == 0
    assert settings.exists()
    assert command("uninstall", "--root", root, "--purge") == 0
    assert not settings.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["install"], "runs from source", id="from source"),
        pytest.param(["install", "--from", "/nowhere"], "is not the agent's folder", id="no folder"),
        pytest.param(["install", "--from", "{a}", "--root", "/nowhere"], "is no directory", id="no root"),
        pytest.param(["install", "--from", "{a}", "--root", "{root}", "--prefix", "x"], "--prefix", id="prefix"),
        pytest.param(["upgrade", "--from", "{a}", "--root", "{root}"], "nothing is installed", id="nothing to upgrade"),
        pytest.param(["upgrade", "--rollback", "--root", "{root}"], "nothing is installed", id="nothing to go back to"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    made_release(tmp_path / "a")
    (tmp_path / "root").mkdir()
    places = {"a": tmp_path / "a", "root": tmp_path / "root"}
    assert command(*(argument.format(**places) for argument in arguments)) == 1
    error = capsys.readouterr().err
    assert error.startswith("vgpu-agent: ")
    assert said in error


def test_only_root_changes_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_release(tmp_path / "a")
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    assert command("install", "--from", tmp_path / "a") == 1
    assert "which takes root" in capsys.readouterr().err


def test_errors_without_advice_say_what_the_system_said(tmp_path: Path) -> None:
    host = offline(tmp_path / "root")
    (tmp_path / "root/opt").write_text("")
    with pytest.raises(InstallError, match="could not make the directory"):
        have(host, made_release(tmp_path / "a"))


def test_by_hand_it_has_the_settings_of_the_unit_and_of_the_file(tmp_path: Path) -> None:
    """Without the unit's, containers lock in /tmp, where any user of the host can be the first."""
    release = made_release(tmp_path / "release")
    file = tmp_path / "vgpu-agent.env"
    file.write_text("VGPU_MODE=slices\n")
    said = _by_hand(Host(Layout(), Path("/"), None, lambda _: None), release)
    start = said.partition("by hand: ")[2]
    start = start.replace("/etc/vgpu-agent/vgpu-agent.env", str(file))
    start = start.replace("/opt/vgpu-agent/current/vgpu-agent run", "env")
    has = subprocess.run(["sh", "-c", start], capture_output=True, text=True, check=True).stdout
    assert "VGPU_VGPULOCK_DIR=/usr/local/vgpu/vgpulock" in has.splitlines()
    assert "VGPU_MODE=slices" in has.splitlines()
