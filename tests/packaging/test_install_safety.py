"""What an installation must not do or trust: links out of a tree, other users, a power cut, an odd umask."""

import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disk_calls import disk_calls
from install_tree import made_release, tree

from agent.adapters.instance_lock import InstanceLock
from agent.cli import main
from agent.hostinstall.alone import alone
from agent.hostinstall.command import version_in
from agent.hostinstall.execute import Executor
from agent.hostinstall.layout import DEFAULT_PREFIX, InstallError, Layout, temporary
from agent.hostinstall.look import look
from agent.hostinstall.steps import MakeDirectory, Plan, PointLink, WriteFile
from agent.hostinstall.tree import check_place, directory_within, within

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users' files take root")


def command(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments], os.environ)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made_release(tmp_path / "release")
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def install(root: Path, *more: str) -> int:
    return command("install", "--root", root, "--from", root.with_name("release"), *more)


# --- links of a tree --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "path", "leads_to"),
    [
        pytest.param({"opt": "/var/opt"}, "/opt/a", "var/opt/a", id="absolute"),
        pytest.param({"opt": "../../../var/opt"}, "/opt/a", "var/opt/a", id="above the root"),
        pytest.param({"opt": "var/opt"}, "/opt/a", "var/opt/a", id="relative"),
        pytest.param({"opt": "/b", "b": "c"}, "/opt/a", "c/a", id="a link to a link"),
        pytest.param({"a": "/etc/passwd"}, "/a", "a", id="its own name"),
        pytest.param({}, "/x/../../y/z", "y/z", id="dots"),
        pytest.param({}, "/", "", id="the root"),
    ],
)
def test_a_link_leads_to_a_place_in_the_tree(
    tmp_path: Path, links: dict[str, str], path: str, leads_to: str
) -> None:
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    assert within(Path(path), tmp_path) == tmp_path / leads_to


def test_a_directory_that_is_a_link_is_followed_in_the_tree(tmp_path: Path) -> None:
    (tmp_path / "opt").symlink_to("/srv")
    assert directory_within(Path("/opt"), tmp_path) == tmp_path / "srv"
    (tmp_path / "srv").symlink_to("/opt")
    with pytest.raises(InstallError, match="too many links"):
        directory_within(Path("/opt"), tmp_path)


def test_a_tree_with_links_is_installed_and_purged_without_leaving_it(
    root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    for name in ("opt/vgpu-agent/current", "systemd", "state", "vgpu"):
        (outside / name).mkdir(parents=True)
        (outside / name / "precious").write_text("x")
    (root / "etc").mkdir()
    (root / "var/lib").mkdir(parents=True)
    (root / "usr/local").mkdir(parents=True)
    (root / "opt").symlink_to(outside / "opt")
    (root / "etc/systemd").symlink_to(outside / "systemd")
    (root / "var/lib/vgpu-agent").symlink_to(outside / "state")
    (root / "usr/local/vgpu").symlink_to(outside / "vgpu")
    before = tree(outside)

    assert install(root) == 0
    there = root / str(outside)[1:]
    assert (there / "opt/vgpu-agent/current/vgpu-agent").exists()
    assert (there / "systemd/system/vgpu-agent.service").is_file()
    assert tree(outside) == before

    assert command("uninstall", "--root", root, "--purge") == 0
    assert tree(outside) == before
    assert not [p for p in root.rglob("*") if p.is_file()]
    assert not (root / "var/lib/vgpu-agent").is_symlink()


# --- other users ------------------------------------------------------------------------------------


@contextmanager
def locked_by_nobody(*paths: Path) -> Iterator[None]:
    """Another user holds these."""
    words = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    for path in paths:
        words += ["flock", "--exclusive", "--no-fork", str(path)]
    running = subprocess.Popen(
        [*words, "sh", "-c", "echo; read -r end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    try:
        assert running.stdout.readline()
        yield
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def open_root(root: Path) -> Path:
    """One that every user may look into."""
    for path in (root, *root.parents):
        if path in (Path("/tmp"), Path("/")):
            break
        path.chmod(path.stat().st_mode | 0o055)
    return root


@needs_root
def test_another_user_cannot_keep_an_installation_waiting(open_root: Path) -> None:
    (open_root / "etc").mkdir(mode=0o755)
    with locked_by_nobody(open_root, open_root / "etc"):
        assert install(open_root) == 0
        assert command("uninstall", "--root", open_root) == 0
    with alone(open_root):
        (lock,) = open_root.glob(".vgpu-agent-install.lock")
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_the_lock_of_one_that_was_killed_is_taken_over_and_not_left(root: Path) -> None:
    (root / ".vgpu-agent-install.lock").touch()
    assert install(root) == 0
    assert not list(root.glob(".vgpu-agent-install.lock"))


def test_the_lock_of_one_that_has_just_ended_is_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the file while another has it open already, and waits for nothing any more."""
    lock, flock = root / ".vgpu-agent-install.lock", fcntl.flock
    ends = [lock.unlink]

    def after_it_has_ended(fd: int, how: int) -> None:
        if ends:
            ends.pop()()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", after_it_has_ended)
    with alone(root):
        assert lock.exists()
        with pytest.raises(InstallError, match="another installation runs here"), alone(root):
            pass


def test_a_link_under_the_locks_name_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / ".vgpu-agent-install.lock").symlink_to(tmp_path / "victim")
    assert install(root) == 1
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", ["vgpulock", ".vgpulock.old.vgpu-agent-tmp"])
def test_a_link_in_tmp_does_not_stop_a_purge(root: Path, tmp_path: Path, name: str) -> None:
    """Where the settings say that containers lock there."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    assert install(root) == 0
    (root / "etc/vgpu-agent/vgpu-agent.env").write_text("VGPU_VGPULOCK_DIR=/tmp/vgpulock\n")
    (root / "tmp").mkdir()
    (root / "tmp/vgpulock").mkdir()
    if name == "vgpulock":
        (root / "tmp/vgpulock").rmdir()
    (root / "tmp" / name).symlink_to(precious)
    assert command("uninstall", "--root", root, "--purge") == 0
    assert not os.path.lexists(root / "tmp/vgpulock")
    assert (precious / "file").exists()


def test_the_state_on_another_disk_is_no_obstacle(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "data/grants").mkdir(parents=True)
    (root / "var/lib").mkdir(parents=True)
    (root / "var/lib/vgpu-agent").symlink_to("/data")
    assert install(root) == 0
    assert command("uninstall", "--root", root, "--purge") == 0
    assert "what it leads to, /data, stays" in capsys.readouterr().out
    assert not os.path.lexists(root / "var/lib/vgpu-agent")
    assert (root / "data/grants").is_dir()


def test_what_a_purge_removes_is_what_the_unit_and_the_settings_name(root: Path) -> None:
    assert install(root) == 0
    (root / "etc/vgpu-agent/vgpu-agent.env").write_text("VGPU_STATE_DIR=/srv/state\n")
    for name in ("srv/state/grants", "usr/local/vgpu/vgpulock", "tmp/vgpulock"):
        (root / name).mkdir(parents=True)
    assert command("uninstall", "--root", root, "--purge") == 0
    assert not (root / "srv/state").exists()
    assert not (root / "usr/local/vgpu").exists()
    assert (root / "tmp/vgpulock").exists(), "the unit names another"


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "above", "said"),
    [
        pytest.param(0, 0o755, 0o755, "", id="root's"),
        pytest.param(0, 0o755, 0o1777, "", id="below a sticky directory"),
        pytest.param(NOBODY, 0o755, 0o755, "owner 65534", id="another user's"),
        pytest.param(0, 0o775, 0o755, "mode 775", id="a group may write"),
        pytest.param(0, 0o757, 0o755, "mode 757", id="everybody may write"),
        pytest.param(0, 0o755, 0o777, "mode 777", id="everybody may write above"),
    ],
)
def test_a_place_where_others_write_is_refused(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    owner: int,
    mode: int,
    above: int,
    said: str,
) -> None:
    place = root / "srv/agent"
    place.mkdir(parents=True)
    os.chown(place, owner, owner)
    place.chmod(mode)
    place.parent.chmod(above)
    assert install(root, "--prefix", "/srv/agent") == (1 if said else 0)
    assert said in capsys.readouterr().err
    assert bool(list(place.iterdir())) is not bool(said)


def test_a_place_that_is_not_there_yet_is_no_obstacle(root: Path) -> None:
    check_place(DEFAULT_PREFIX, root)


# --- what runs --------------------------------------------------------------------------------------


def test_the_state_of_an_agent_that_runs_is_not_purged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(root) == 0
    state = root / "var/lib/vgpu-agent"
    state.mkdir(parents=True, mode=0o700)
    lock = InstanceLock(state)
    assert lock.try_acquire()
    try:
        assert command("uninstall", "--root", root, "--purge") == 1
        assert "an agent runs here" in capsys.readouterr().err
        assert state.is_dir()
        assert (root / "opt/vgpu-agent/current").is_symlink()
    finally:
        lock.release()
    assert command("uninstall", "--root", root, "--purge") == 0
    assert not state.exists()


def test_it_is_seen_which_versions_run(root: Path) -> None:
    assert install(root) == 0
    (folder,) = (path for path in (root / "opt/vgpu-agent").iterdir() if not path.is_symlink())
    shutil.copy(Path("/bin/sleep").resolve(), folder / "vgpu-agent")
    assert look(Layout(), root, None).in_use == frozenset()
    running = subprocess.Popen([folder / "vgpu-agent", "60"])
    try:
        assert look(Layout(), root, None).in_use == {folder.name}
    finally:
        running.kill()
        running.wait()


def test_a_program_that_tells_its_version_and_fails_is_not_installed(root: Path) -> None:
    program = root.with_name("release") / "vgpu-agent"
    program.write_text(program.read_text() + "exit 1\n")
    with pytest.raises(InstallError, match="does not run here"):
        version_in(program.parent)


# --- files ------------------------------------------------------------------------------------------


def test_whatever_the_umask_everybody_may_read_what_is_installed(root: Path) -> None:
    before = os.umask(0o077)
    try:
        assert install(root) == 0
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.lstat().st_mode) for p in root.rglob("*") if not p.is_symlink()}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o755}
    files = {path: mode for path, mode in modes.items() if path.is_file()}
    programs = [path for path in files if path.name == "vgpu-agent"]
    assert len(programs) == 1
    assert {path: mode for path, mode in files.items() if mode != 0o644} == {programs[0]: 0o755}
    assert {root / "etc/systemd/system/vgpu-agent.service"} < files.keys()
    assert {root / "etc/vgpu-agent/vgpu-agent.env"} < files.keys()


def test_a_link_under_a_temporary_name_is_not_written_through(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    path = root / "file"
    temporary(path).symlink_to(victim)
    Executor(root, None, DEFAULT_PREFIX).run(Plan((WriteFile(Path("/file"), b"new"),)))
    assert victim.read_text() == "x"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        pytest.param(WriteFile(Path("/f"), b"x"), ["file", "rename", "directory"], id="a file"),
        pytest.param(PointLink(Path("/l"), "x"), ["rename", "directory"], id="a link"),
        pytest.param(MakeDirectory(Path("/d/e")), ["directory", "directory"], id="directories"),
    ],
)
def test_each_step_is_on_disk_before_the_next(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: WriteFile | PointLink | MakeDirectory,
    calls: list[str],
) -> None:
    executor = Executor(root, None, DEFAULT_PREFIX)
    assert disk_calls(monkeypatch, lambda: executor.run(Plan((step,)))) == calls


def test_a_folder_is_on_disk_with_all_that_is_in_it_before_it_has_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = disk_calls(monkeypatch, lambda: install(root))
    named = calls.index("rename")
    files = len([p for p in root.with_name("release").rglob("*") if p.is_file()])
    folders = len([p for p in root.with_name("release").rglob("*") if p.is_dir()]) + 1
    assert calls[:named].count("file") == files
    assert calls[:named].count("directory") >= folders
    assert calls[named + 1] == "directory"
