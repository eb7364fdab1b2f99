"""The unit and what reads its settings: systemd's own judgement, and ours of what systemd would read."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from environment_files import FILES
from hypothesis import given
from hypothesis import strategies as st

from agent.adapters.instance_lock import STATE_DIR_MODE
from agent.adapters.local_sockets import DIRECTORY_MODE
from agent.adapters.safe_files import opened_directory, remove_tree
from agent.app import JOIN_WITHIN_S, LEAVE_WITHIN_S
from agent.bundle import host_environment
from agent.config import Config
from agent.doctor import units
from agent.hostinstall import environment_file
from agent.hostinstall.layout import DEFAULT_PREFIX, Layout, prefix_of
from agent.hostinstall.removal import users_of
from agent.hostinstall.systemd import state_of
from agent.settings import resolve
from agent.settings.table import SETTINGS
from agent.supervisor import TICK_S
from tests.leaderless import leaderless

SHIPPED = Path(__file__).parents[2] / "packaging" / "systemd"
UNIT = SHIPPED / "vgpu-agent.service"
FORM = SHIPPED / "vgpu-agent.env"
MOST_EXPOSED = 3.8  # of 10, as systemd-analyze counts; see what the unit says cannot be set

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here"
)


def value(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return str(found)


def ordered(where: str) -> list[str]:
    """The units that the unit names as After= or Before= itself."""
    return " ".join(re.findall(rf"^{where}=(.*)$", UNIT.read_text(), re.MULTILINE)).split()


@needs_analyze
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "vgpu-agent"
    program.touch(0o755)
    unit = tmp_path / "vgpu-agent.service"
    unit.write_text(UNIT.read_text().replace("/opt/vgpu-agent/current", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    about_us = [line for line in done.stderr.splitlines() if "vgpu-agent" in line]
    assert about_us == []
    assert done.returncode == 0, done.stderr


@needs_analyze
def test_systemd_complains_of_a_unit_that_is_wrong(tmp_path: Path) -> None:
    """The test above can fail."""
    unit = tmp_path / "vgpu-agent.service"
    unit.write_text(UNIT.read_text().replace("WatchdogSec=", "WachdogSec="))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert "WachdogSec" in done.stderr


@needs_analyze
def test_what_the_service_could_do_is_bounded() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", UNIT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSED


def settings() -> dict[str, str]:
    """What the unit itself sets, and the environment file comes before."""
    return dict(re.findall(r"^Environment=([A-Z_]+)=(\S+)$", UNIT.read_text(), re.MULTILINE))


def as_service() -> Config:
    return resolve({}, {"NODE_NAME": "n", **settings()}).config


def test_the_unit_agrees_with_the_program() -> None:
    config = as_service()
    assert prefix_of(UNIT.read_bytes()) == DEFAULT_PREFIX
    assert value("EnvironmentFile") == f"-{Layout.environment}"
    assert Path("/var/lib") / value("StateDirectory") == config.state_dir
    assert Path("/run") / value("RuntimeDirectory") == config.runtime_dir
    assert int(value("RuntimeDirectoryMode"), 8) == DIRECTORY_MODE
    assert int(value("StateDirectoryMode"), 8) == STATE_DIR_MODE
    assert float(value("WatchdogSec")) > 5 * TICK_S
    assert float(value("TimeoutStopSec")) > JOIN_WITHIN_S + LEAVE_WITHIN_S
    assert all(path.startswith("-/") for path in value("ReadWritePaths").split()), "may be missing"
    writable = [Path(path.removeprefix("-")) for path in value("ReadWritePaths").split()]
    cdi = Path("/run/cdi")  # which /var/run/cdi leads to
    needed = (config.host_vgpu_dir, config.lock_dir, config.state_dir, config.kubelet_socket, cdi)
    for path in needed:
        assert any(path.is_relative_to(place) for place in writable), path


def test_nobody_else_can_make_what_pods_need_first() -> None:
    """In /tmp any user of the host could; the library's directory is the agent's own."""
    assert as_service().lock_dir.parent == as_service().host_vgpu_dir
    assert not [path for path in value("ReadWritePaths").split() if "tmp" in path]


@pytest.mark.parametrize(
    ("page", "written", "unbounded"),
    [
        pytest.param("mig.md", as_service().mig_apply_lock, set(), id="operating mode mig"),
        pytest.param(
            "nvidia.md",
            as_service().mps_root,
            {"MemoryMax", "TasksMax"},  # the daemon's servers are in the unit, too
            id="MPS",
        ),
    ],
)
def test_what_a_mode_takes_beside_the_unit_is_on_its_page(
    page: str, written: Path, unbounded: set[str]
) -> None:
    """The unit itself has neither the capability nor the directory."""
    text = (SHIPPED.parents[1] / "docs" / "modes" / page).read_text()
    (block,) = re.findall(r"^```ini\n\[Service\]\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = dict(line.split("=", 1) for line in block.splitlines())
    assert lines.keys() == {"CapabilityBoundingSet", "ReadWritePaths"} | unbounded
    assert lines["CapabilityBoundingSet"] == "CAP_SYS_ADMIN"
    assert {lines[name] for name in unbounded} <= {"infinity"}
    place = lines["ReadWritePaths"]
    assert written.is_relative_to(place.removeprefix("-"))
    # systemd starts no service of which a directory is missing, and after a boot /run is empty.
    assert place == "/tmp" or place.startswith("-")
    assert "CAP_SYS_ADMIN" not in value("CapabilityBoundingSet").split()


def test_what_the_unit_says_of_tmp_is_true() -> None:
    """Only a made sign that GPUs are being divided is written there: see adapters/mig_files."""
    (said,) = re.findall(
        r"^# PrivateTmp=:(.*?)^# [A-Z]", UNIT.read_text(), re.MULTILINE | re.DOTALL
    )
    assert as_service().mig_apply_lock.is_relative_to("/tmp")
    assert "writes there only in operating mode mig" in said


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("Restart", "always", id="SIGHUP ends it with exit code 0"),
        pytest.param("StartLimitIntervalSec", "0", id="without it no pod starts: never give up"),
        pytest.param("OOMScoreAdjust", "-900", id="small, and holds up every pod"),
        pytest.param("KillMode", "mixed", id="credential plugins get no SIGTERM of ours"),
        pytest.param("RuntimeDirectoryPreserve", "restart", id="whoever has it mounted keeps it"),
        pytest.param("WantedBy", "multi-user.target", id="what install enables"),
    ],
)
def test_how_it_is_kept_running(name: str, wanted: str) -> None:
    assert value(name) == wanted


@pytest.mark.parametrize(
    "before",
    [
        *("network-online.target", "containerd.service", "crio.service", "docker.service"),
        *("nvidia-persistenced.service", "nvidia-fabricmanager.service"),
    ],
)
def test_what_it_starts_after(before: str) -> None:
    assert before in ordered("After")


@pytest.mark.parametrize("kubelet", units.KUBELETS)
def test_a_kubelet_starts_after_it(kubelet: str) -> None:
    """One that finds nobody at boot ends the pods that had vGPUs."""
    assert f"{kubelet}.service" in ordered("Before")
    assert f"{kubelet}.service" not in ordered("After")


# What the comment above each hardening line has to speak of.
REASONS = {
    "CapabilityBoundingSet": "DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, CHOWN: files in containers'",
    "NoNewPrivileges": "Nothing it starts gains more",
    "ProtectSystem": "It writes below these only",
    "ReadWritePaths": "It writes below these only",
    "ProtectHome": "A kubeconfig may lie in root's home",
    "ProtectKernelTunables": "sysctls",
    "ProtectKernelLogs": "the kernel's log",
    "ProtectControlGroups": "cgroups",
    "ProtectHostname": "the host's name",
    "ProtectKernelModules": "The driver is loaded by the line with nvidia-modprobe",
    "RestrictNamespaces": "makes no namespaces",
    "RestrictSUIDSGID": "no set-uid files",
    "RestrictRealtime": "real-time",
    "LockPersonality": "execution domain",
    "RestrictAddressFamilies": "Kubelet (unix), the API server and metrics (IPv4, IPv6)",
    "SystemCallArchitectures": "What ordinary services call",
    "SystemCallFilter": "What ordinary services call",
    "SystemCallErrorNumber": "refused and not fatal",
    "MemoryMax": "A leak of ours",
    "TasksMax": "A leak of ours",
}
_HARDENING = re.compile(
    r"(Protect|Restrict|Private|NoNew|Lock|System|Capab|Ambient|ReadWrite|ReadOnly|Inaccessible|"
    r"Memory|Tasks|Device|IPAddress|Keyring|Remove)[A-Za-z]*(?==)"
)


def hardened() -> dict[str, str]:
    """Each hardening line's name, and the comment that stands above it and those beside it."""
    found: dict[str, str] = {}
    comment, ended = "", True
    for line in UNIT.read_text().splitlines():
        if line.startswith("#"):
            comment = line[1:] if ended else f"{comment} {line[1:]}"
            ended = False
        else:
            ended = True
            comment = comment if line else ""
            if name := _HARDENING.match(line):
                found[name[0]] = " ".join(comment.split())
    return found


def test_every_hardening_line_has_its_reason() -> None:
    found = hardened()
    assert found.keys() == REASONS.keys()
    assert {name: said for name, said in found.items() if REASONS[name] not in said} == {}


def test_the_form_of_the_settings_names_settings_with_their_defaults() -> None:
    known = {name for setting in SETTINGS for name in setting.environment}
    as_comments = re.findall(r"^#?(VGPU_[A-Z_]+)=(.*)$", FORM.read_text(), re.MULTILINE)
    assert {name for name, _ in as_comments} <= known
    given_values = {name: text for name, text in as_comments if text and name != "VGPU_KUBECONFIG"}
    assert resolve({}, {"NODE_NAME": "n", **settings(), **given_values}).config == as_service()
    active = environment_file.parse(FORM.read_bytes())
    assert active == {"VGPU_KUBECONFIG": "/etc/vgpu-agent/kubeconfig"}


# --- what systemd would read -------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "values"), FILES)
def test_an_environment_file(text: str, values: dict[str, str]) -> None:
    assert environment_file.parse(text.encode()) == values


@given(st.binary(max_size=300) | st.text("A=\\'\"\n #;1$", max_size=60).map(str.encode))
def test_whatever_is_in_an_environment_file_it_is_read(content: bytes) -> None:
    for name, text in environment_file.parse(content).items():
        assert name.isidentifier()
        assert isinstance(text, str)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text("aé '#=$\n ", max_size=20)
    )
)
def test_what_is_written_in_single_quotes_is_read_as_it_is(values: dict[str, str]) -> None:
    text = "".join(
        f"{name}='{value.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'\n"
        for name, value in values.items()
    )
    assert environment_file.parse(text.encode()) == values


# --- what systemctl prints; who uses files; the environment of others -----------------------------------


def test_what_systemctl_shows_of_a_unit_that_runs() -> None:
    shown = "ActiveState=active\nMainPID=7\nNRestarts=2\nNeedDaemonReload=yes\nResult=success\n"
    state = state_of(shown, {7: "folder"}.__getitem__)
    assert (state.active, state.main_pid, state.restarts) == ("active", 7, 2)
    assert state.needs_reload
    assert state.version == "folder"
    assert state.wanted_up


@pytest.mark.parametrize("shown", ["", "MainPID=\nNRestarts=[not set]\n", "nonsense"])
def test_what_systemctl_shows_of_no_unit(shown: str) -> None:
    state = state_of(shown, lambda _: "never asked")
    assert (state.active, state.main_pid, state.version) == ("inactive", 0, "")
    assert not state.wanted_up


def test_a_process_that_has_mapped_a_file_below_uses_the_directory(tmp_path: Path) -> None:
    library = tmp_path / "vgpu" / "libvgpu.so.1"
    library.parent.mkdir()
    library.write_bytes(b"x")
    inode = library.stat().st_ino
    proc = tmp_path / "proc"
    for pid, path in ((7, "/usr/local/vgpu/libvgpu.so"), (8, "/lib/libc.so")):
        (proc / str(pid)).mkdir(parents=True)
        line = f"7f00-7f10 r-xp 00000000 fe:00 {inode} {path}\n7f10-7f20 rw-p 00000000 00:00 0 \n"
        (proc / str(pid) / "maps").write_text(line)
    (proc / "9").mkdir()
    (proc / "meminfo").touch()
    assert users_of(library.parent, proc) == {7}
    assert users_of(tmp_path / "absent", proc) == set()


def test_a_process_whose_first_thread_has_ended_uses_what_it_has_mapped(tmp_path: Path) -> None:
    library = tmp_path / "vgpu" / "libvgpu.so.1"
    library.parent.mkdir()
    library.write_bytes(b"x")
    with leaderless(library) as process:
        assert users_of(library.parent) == {process.pid}


def test_a_container_may_make_directories_as_deep_as_it_likes(tmp_path: Path) -> None:
    """In its own, below the one that is looked through: a removal is not stopped by that."""
    (tmp_path / "vgpu").mkdir()
    (tmp_path / "vgpu" / "libvgpu.so.1").touch()
    (tmp_path / "proc").mkdir()
    fd = os.open(tmp_path / "vgpu", os.O_DIRECTORY)
    for _ in range(3000):  # deeper than Python calls, longer than a path may be
        os.mkdir("d", dir_fd=fd)
        above, fd = fd, os.open("d", os.O_DIRECTORY, dir_fd=fd)
        os.close(above)
    os.close(fd)
    try:
        assert users_of(tmp_path / "vgpu", tmp_path / "proc") == set()
        with opened_directory(tmp_path) as top:
            assert remove_tree("vgpu", dir_fd=top)
    finally:  # pytest could not
        subprocess.run(["rm", "-rf", tmp_path / "vgpu"], check=True)


@pytest.mark.parametrize(
    ("given_environ", "wanted"),
    [
        pytest.param({"LD_LIBRARY_PATH": "/x/_internal", "LD_LIBRARY_PATH_ORIG": "/b"}, {"LD_LIBRARY_PATH": "/b"}, id="there was one before"),
        pytest.param({"LD_LIBRARY_PATH": "/x/_internal", "A": "1"}, {"A": "1"}, id="there was none"),
        pytest.param({"_PYI_ARCHIVE_FILE": "/x", "A": "1"}, {"A": "1"}, id="the bootloader's own"),
    ],
)  # fmt: skip
def test_programs_of_the_host_do_not_get_our_libraries(
    monkeypatch: pytest.MonkeyPatch, given_environ: dict[str, str], wanted: dict[str, str]
) -> None:
    monkeypatch.setattr("sys._MEIPASS", "/x/_internal", raising=False)
    assert host_environment(given_environ) == wanted


def test_from_source_the_environment_is_passed_on() -> None:
    assert host_environment({"LD_LIBRARY_PATH": "/b"}) == {"LD_LIBRARY_PATH": "/b"}
