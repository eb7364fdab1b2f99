"""The agent as a service of a host that systemd has booted, installed from the release alone, without a network."""

import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle.conftest import ROOT, made
from environment_files import FILES
from install_page import PAGES, lines
from systemd_machine import Machine, missing
from systemd_node import SETTINGS, UNIT, Node
from waiting import eventually

from agent.sim.scheduler import REGISTER
from agent.version import VERSION

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("systemd"),
]


@pytest.fixture(scope="module")
def booted(frozen_folder: Path) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp") as directory:
        machine = Machine(Path(directory) / "root")
        try:
            machine.boot()
            node = Node(machine, frozen_folder)
            try:
                node.start()
                yield node
            finally:
                node.stop()
        finally:
            machine.stop()


@pytest.fixture
def node(booted: Node) -> Node:
    """The release is installed on it, whatever was before, and serves."""
    booted.settings().parent.mkdir(exist_ok=True)
    booted.settings().write_text(SETTINGS.format(config=booted.driver.config_path.name))
    booted.machine.ok("/root/release/install.sh")
    eventually(booted.serves, within_s=60, every_s=0.2, what="the agent serves")
    return booted


def ended(node: Node, pid: int) -> bool:
    """Whether another process than this one is the agent, and is up."""
    return node.pid() not in (0, pid) and node.machine.shown(UNIT, "ActiveState") == "active"


def test_installed_it_serves_and_again_there_is_nothing_to_do(node: Node) -> None:
    pid = node.pid()
    assert node.machine.ok("systemctl", "is-enabled", UNIT).strip() == "enabled"
    assert node.program() == f"/opt/vgpu-agent/{node.current()}/vgpu-agent"
    assert node.machine.shown(UNIT, "StatusText") == "serving 2 of 2 GPUs"
    assert node.machine.ok("/root/release/install.sh").startswith("nothing to do")
    assert node.machine.ok(
        "vgpu-agent", "upgrade", "--from", "/root/release/vgpu-agent"
    ).startswith("nothing to do")
    assert node.pid() == pid


def test_whoever_is_on_the_node_can_ask_it(node: Node) -> None:
    told = json.loads(node.machine.ok("vgpu-agent", "top", "--json"))
    assert len(told["gpus"]) == 2


def test_the_single_file_installs_the_same(node: Node, single_file: Path) -> None:
    program = node.machine.root / "root/vgpu-agent-one"
    shutil.copy(single_file, program)
    assert node.machine.ok("/root/vgpu-agent-one", "install").startswith("nothing to do")


def test_a_setting_that_is_wrong_is_told_by_who_installs(node: Node) -> None:
    right = node.settings().read_text()
    node.settings().write_text(f"{right}VGPU_DEVICE_SPLIT_COUNT=many\n")
    node.machine.ok("systemctl", "stop", UNIT)
    done = node.machine.run("/root/release/install.sh")
    assert done.returncode == 1
    assert "VGPU_DEVICE_SPLIT_COUNT is 'many'" in done.stderr
    node.settings().write_text(right)
    node.machine.ok("/root/release/install.sh")
    eventually(node.serves, within_s=60, every_s=0.2, what="the agent serves")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="ended by somebody else than systemd"),
        pytest.param(signal.SIGHUP, id="told to read its settings"),
    ],
)
def test_it_is_started_again(node: Node, number: int) -> None:
    pid = node.pid()
    node.machine.ok("kill", f"-{number}", str(pid))
    eventually(lambda: ended(node, pid), within_s=60, every_s=0.2)
    eventually(node.serves, within_s=60, every_s=0.2)


def test_a_hang_is_ended_by_the_watchdog(node: Node) -> None:
    drop_in = node.machine.root / "etc/systemd/system/vgpu-agent.service.d/short.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text("[Service]\nWatchdogSec=4\n")
    try:
        node.machine.ok("systemctl", "daemon-reload")
        node.machine.ok("systemctl", "restart", UNIT)
        pid = node.pid()
        node.machine.ok("kill", "-STOP", str(pid))
        eventually(lambda: ended(node, pid), within_s=60, every_s=0.2)
    finally:
        drop_in.unlink()
        node.machine.ok("systemctl", "daemon-reload")
    assert (
        "watchdog" in node.machine.ok("journalctl", "-u", UNIT, "-o", "cat", "--no-pager").lower()
    )


def test_told_to_stop_it_stops_well(node: Node) -> None:
    node.machine.ok("systemctl", "stop", UNIT)
    assert node.machine.shown(UNIT, "Result") == "success"
    assert node.machine.shown(UNIT, "ExecMainStatus") == "0"
    assert "agent_stopped" in node.machine.ok(
        "journalctl", "-u", UNIT, "-n", "5", "-o", "cat", "--no-pager"
    )


def files_of_pods(node: Node) -> str:
    """What containers have mounted, with inodes."""
    return node.machine.ok("find", "/usr/local/vgpu", "-type", "f", "-printf", "%p %i %s\\n")


def newer(folder: Path) -> None:
    form = folder / "_internal/packaging/systemd/vgpu-agent.env"
    form.write_text(form.read_text() + "# new\n")


def test_upgrade_rollback_and_a_settings_file_that_was_edited(node: Node) -> None:
    release = node.unpack("newer", newer)
    old, pid, settings = node.current(), node.pid(), node.settings().read_text()
    used = files_of_pods(node)

    said = node.machine.ok(f"{release}/install.sh")
    assert "vgpu-agent.env was edited and stays" in said
    assert node.settings().read_text() == settings
    assert node.settings().with_name("vgpu-agent.env.new").read_text().endswith("# new\n")
    assert node.current() != old
    assert node.pid() != pid
    assert node.program() == f"/opt/vgpu-agent/{node.current()}/vgpu-agent"
    assert files_of_pods(node) == used
    eventually(node.serves, within_s=60, every_s=0.2)

    said = node.machine.ok("vgpu-agent", "upgrade", "--rollback")
    assert node.current() == old
    assert node.program() == f"/opt/vgpu-agent/{old}/vgpu-agent"
    eventually(node.serves, within_s=60, every_s=0.2)


def script(text: str) -> Callable[[Path], object]:
    """A version whose `run` does something else."""

    def change(folder: Path) -> None:
        program = folder / "vgpu-agent"
        program.rename(folder / "real")
        program.write_text(f'#!/bin/sh\n[ "$1" = run ] || exec "${{0%/*}}/real" "$@"\n{text}\n')
        program.chmod(0o755)

    return change


# systemd takes READY=1 from the main process alone, so no child can say it.
READY = """exec perl -MSocket -e '
socket(my $s, AF_UNIX, SOCK_DGRAM, 0) or die; (my $to = $ENV{NOTIFY_SOCKET}) =~ s/^@/\\0/;
send($s, "READY=1", 0, pack_sockaddr_un($to)) or die; select(undef, undef, undef, 1); exit 3'"""
BLIND = 'unset LD_LIBRARY_PATH; exec "${0%/*}/real" "$@"'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param("ends", "echo broken; exit 3", "`systemctl restart", id="ends at once"),
        pytest.param("flaps", READY, "came up and ended again", id="ends when it is up"),
        pytest.param("blind", BLIND, "does not serve, as the one before did", id="does not serve"),
    ],
)
def test_a_version_that_does_not_come_up_is_taken_back(
    node: Node, name: str, text: str, said: str
) -> None:
    release = node.unpack(name, script(text))
    old = node.current()
    done = node.machine.run("vgpu-agent", "upgrade", "--from", f"{release}/vgpu-agent")
    assert done.returncode == 1
    assert f"{old} is in use again" in done.stderr.splitlines()[-1]
    assert said in done.stderr.splitlines()[-1]
    assert node.current() == old
    eventually(node.serves, within_s=60, every_s=0.2)
    assert old in node.program()
    folders = {p.name for p in (node.machine.root / "opt/vgpu-agent").iterdir()}
    assert folders <= {"current", "previous", old, *previous(node)}


def test_killed_between_the_versions_the_way_back_is_known(node: Node) -> None:
    """As the upgrade is left that is killed when `current` leads to the new version already."""
    release = node.unpack("bad", script("echo broken; exit 3"))
    old, machine = node.current(), node.machine
    upgrade = f"/root/release/vgpu-agent/vgpu-agent upgrade --from {release}/vgpu-agent"
    swapped = f'[ "$(readlink /opt/vgpu-agent/current)" = {old} ]'
    machine.run("sh", "-c", f"{upgrade} & while {swapped}; do :; done; kill -9 $!; wait")
    assert node.current() != old, "it was killed after the swap"
    done = machine.run(*upgrade.split())
    assert done.returncode == 1
    assert f"{old} is in use again" in done.stderr.splitlines()[-1]
    eventually(node.serves, within_s=60, every_s=0.2)


def test_neither_users_nor_containers_can_take_what_pods_need(node: Node) -> None:
    machine = node.machine
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    machine.ok("systemctl", "stop", UNIT)
    machine.ok(*nobody, "mkdir", "/tmp/vgpulock")
    machine.ok("systemctl", "start", UNIT)
    eventually(node.serves, within_s=60, every_s=0.2)
    eventually(
        lambda: machine.shown(UNIT, "StatusText") == "serving 2 of 2 GPUs", within_s=60, every_s=0.2
    )
    assert machine.ok("stat", "-c", "%a %u", "/usr/local/vgpu/vgpulock").split() == ["1777", "0"]

    machine.ok("systemctl", "stop", UNIT)
    machine.ok("chmod", "700", "/usr/local/vgpu/vgpulock")  # as root of a container may
    machine.ok("chown", "65534", "/usr/local/vgpu/vgpulock")
    machine.ok("systemctl", "start", UNIT)
    eventually(
        lambda: machine.shown(UNIT, "StatusText") == "serving 2 of 2 GPUs", within_s=60, every_s=0.2
    )
    assert machine.ok("stat", "-c", "%a %u", "/usr/local/vgpu/vgpulock").split() == ["1777", "0"]
    machine.ok("rmdir", "/tmp/vgpulock")


def test_what_was_stopped_and_disabled_stays_so(node: Node) -> None:
    machine = node.machine
    machine.ok("systemctl", "disable", "--now", UNIT)
    release = node.unpack("disabled", newer)
    old = node.current()
    assert "is disabled and is left so" in machine.ok(f"{release}/install.sh")
    assert node.current() != old
    assert machine.shown(UNIT, "ActiveState") == "inactive"
    assert machine.run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    machine.ok("systemctl", "enable", "--now", UNIT)
    eventually(node.serves, within_s=60, every_s=0.2)


def test_the_directory_of_the_sockets_stays_the_same_when_it_is_started_again(node: Node) -> None:
    before = node.machine.ok("stat", "-c", "%i %a", "/run/vgpu-agent")
    node.machine.ok("systemctl", "restart", UNIT)
    assert node.machine.ok("stat", "-c", "%i %a", "/run/vgpu-agent") == before
    assert before.split()[1] == "755"
    assert "vgpu-agent" in node.machine.ok("ls", "/run")
    eventually(lambda: node.machine.run("vgpu-agent", "top", "--once").returncode == 0)


@pytest.mark.parametrize(
    ("directory", "code"),
    [
        pytest.param("/run/cdi", 0, id="of CDI, which was not there before"),
        pytest.param("/usr/local/vgpu", 0, id="of the library"),
        pytest.param("/var/lib/kubelet", 0, id="of kubelet"),
        pytest.param("/etc", 1, id="of the host's settings"),
        pytest.param("/opt/vgpu-agent", 1, id="of the program"),
    ],
)
def test_where_the_service_may_write(node: Node, directory: str, code: int) -> None:
    inside = ("nsenter", "-t", str(node.pid()), "-m")
    made = 'made=$(mktemp -d "$1/test-XXXX") && rmdir "$made"'
    assert node.machine.run(*inside, "sh", "-c", made, "sh", directory).returncode == code


def previous(node: Node) -> set[str]:
    link = node.machine.root / "opt/vgpu-agent/previous"
    return {str(link.readlink())} if link.is_symlink() else set()


def test_uninstalled_nothing_is_left_but_what_pods_use(node: Node) -> None:
    machine = node.machine
    said = machine.ok("/root/release/uninstall.sh")
    assert "/usr/local/vgpu" in said
    assert REGISTER not in node.annotations()
    assert machine.run("systemctl", "cat", UNIT).returncode
    assert not (machine.root / "opt/vgpu-agent").exists()
    assert machine.run("vgpu-agent", "version").returncode
    assert node.settings().exists(), "it was edited"
    assert "libvgpu.so" in machine.ok("ls", "/usr/local/vgpu")

    machine.ok("/root/release/uninstall.sh", "--purge", "--keep-node")
    assert not node.settings().exists()
    assert machine.run("ls", "/usr/local/vgpu").returncode
    assert not (machine.root / "var/lib/vgpu-agent").exists()


def test_what_a_process_uses_is_not_purged(node: Node) -> None:
    machine = node.machine
    preload = "--setenv=LD_PRELOAD=/usr/local/vgpu/libvgpu.so"
    machine.ok("systemd-run", "--unit=pod", preload, "sleep", "600")
    maps = f"/proc/{machine.shown('pod', 'MainPID')}/maps"
    eventually(lambda: "/vgpu/libvgpu" in machine.ok("cat", maps), what="it has the library")
    said = machine.ok("/root/release/uninstall.sh", "--purge", "--keep-node")
    assert f"because processes use it (pid {machine.shown('pod', 'MainPID')})" in said
    machine.ok("ls", "/usr/local/vgpu/libvgpu.so")
    assert not (machine.root / "var/lib/vgpu-agent").exists()
    machine.ok("systemctl", "stop", "pod")
    machine.ok("/root/release/uninstall.sh", "--purge", "--keep-node")
    assert machine.run("ls", "/usr/local/vgpu").returncode


def test_while_the_node_cannot_be_told_the_files_stay_to_try_again(node: Node) -> None:
    node.api.fail(403, verb="patch", resource="nodes", count=1000)
    done = node.machine.run("vgpu-agent", "uninstall")
    assert done.returncode == 1
    assert "run `vgpu-agent uninstall` again" in done.stderr
    assert node.machine.shown(UNIT, "ActiveState") == "inactive"
    node.api.clear_faults()
    assert REGISTER in node.machine.ok("vgpu-agent", "uninstall")
    assert not (node.machine.root / "opt/vgpu-agent").exists()


def test_the_installed_program_uninstalls_itself(node: Node) -> None:
    said = node.machine.ok("vgpu-agent", "uninstall")
    assert REGISTER in said
    assert not (node.machine.root / "opt/vgpu-agent").exists()


@pytest.mark.parametrize(("text", "values"), FILES)
def test_systemd_reads_the_same_in_an_environment_file(
    booted: Node, text: str, values: dict[str, str]
) -> None:
    (booted.machine.root / "root/some.env").write_text(text, newline="")
    said = booted.machine.ok(
        *("systemd-run", "--wait", "--pipe", "--quiet", "--collect"),
        *("--property=EnvironmentFile=/root/some.env", "env", "--null"),
    )
    read = dict(line.split("=", 1) for line in said.split("\0") if line)
    assert {name: read.get(name) for name in "ABCDE" if name in read} == values


# --- docs/install/systemd.md ---------------------------------------------------------------------


def test_every_command_of_the_page_that_is_typed_on_a_node_works(booted: Node) -> None:
    machine, home = booted.machine, booted.machine.root / "root"
    machine.ok("/root/release/uninstall.sh", "--purge", "--keep-node")
    name = f"vgpu-agent-{VERSION}-linux-x86_64"
    shutil.copy(made(ROOT / "dist" / f"{name}.tar.gz"), home)
    booted.api.write_kubeconfig(home / "kubeconfig")
    booted.settings().parent.mkdir(exist_ok=True)
    booted.settings().write_text(SETTINGS.format(config=booted.driver.config_path.name))

    typed = [line for line in lines(PAGES / "systemd.md") if not line.startswith("kubectl")]
    install = f"{name}/install.sh"
    assert typed.count(install) == 2
    for number, line in enumerate(typed):
        if line == install and line in typed[:number]:
            newer(home / name / "vgpu-agent")
            (home / name / "SHA256SUMS").unlink()  # which is not that of the newer one
        done = machine.run("sh", "-c", f"cd /root && {line}")
        if line.startswith("curl"):
            eventually(booted.serves, within_s=60, every_s=0.2, what="the agent serves")
        else:
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    assert not (machine.root / "opt/vgpu-agent").exists()
    assert not (machine.root / "var/lib/vgpu-agent").exists()
