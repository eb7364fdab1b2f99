"""Offline means offline: the tarball, a host with no network but loopback, and none of our tools.

The kernel counts what has no route: nothing may even try to leave. The commands are those of
docs/install/offline.md.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from bundle.conftest import ROOT
from install_page import PAGES, lines

from agent.version import VERSION

TOP = f"vgpu-agent-{VERSION}-linux-x86_64"
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execv("/bin/sh", ["sh", "-c", *sys.argv[1:]])
"""
# Then the tree and the home directory with its caches are out of sight.
ALONE = 'for hidden in "$TREE" "$AT_HOME"; do mount -t tmpfs none "$hidden"; done; cd "$HERE"; '
COUNTED = "; code=$?; cat /proc/net/dev >interfaces; cat /proc/net/snmp /proc/net/snmp6 >counters; exit $code"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces: needs root"),
    pytest.mark.timeout(600),
]


@dataclass
class Offline:
    """Commands run in this directory, each in a network of its own that has only loopback."""

    here: Path

    def run(self, command: str, *, may_leave: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a line for the shell; it must not have tried to reach anything."""
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.here / "home"),
            "TREE": str(ROOT),
            "AT_HOME": str(Path.home()),
            "HERE": str(self.here),
        }
        own = (
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
        )
        script = f"{ALONE}({command}){COUNTED}"
        done = subprocess.run(
            [*own, sys.executable, "-c", LOOPBACK_UP, script],
            env=environment, capture_output=True, text=True, check=False, timeout=250,
        )  # fmt: skip
        counters = (self.here / "counters").read_text()
        interfaces = {
            line.split(":")[0].strip()
            for line in (self.here / "interfaces").read_text().splitlines()[2:]
        }
        assert interfaces == {"lo"}
        assert (no_routes(counters) == 0) is not may_leave, done.stdout + done.stderr
        return done

    def succeed(self, command: str) -> str:
        """Run a line that must do what it is for; give what it said."""
        done = self.run(command)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


def no_routes(counters: str) -> int:
    """How often something wanted to leave, with IPv4 and IPv6. Source: proc_net(5), RFC 4293."""
    names, values = (line.split() for line in counters.splitlines() if line.startswith("Ip:"))
    six = sum(
        int(line.split()[1]) for line in counters.splitlines() if line.startswith("Ip6OutNoRoutes")
    )
    return int(values[names.index("OutNoRoutes")]) + six


@pytest.fixture
def offline(tarball_file: Path, tmp_path: Path) -> Offline:
    for name in ("home", "host"):
        (tmp_path / name).mkdir()
    for path in (tarball_file, tarball_file.with_name("SHA256SUMS")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return Offline(tmp_path)


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def test_what_leaves_would_be_seen(offline: Offline) -> None:
    """Or the other tests here would pass whatever the agent does."""
    connect = "import socket; socket.create_connection(('192.0.2.1', 80))"
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no program here that is sure to open a connection")
    done = offline.run(f'{python} -c "{connect}"', may_leave=True)
    assert "unreachable" in done.stderr


def test_every_command_of_the_page(offline: Offline) -> None:
    """In its order; the installation goes into a tree, as the machine that runs the tests has a host of its own."""
    host = offline.here / "host"
    typed = lines(PAGES / "offline.md")
    assert len(typed) == 6
    told = ""
    for line in typed:
        told = offline.succeed(re.sub(r"(?<=install\.sh)", " --root $HERE/host", line))
        if "--dry-run" in line:
            assert tree(host) == set()
        elif "/install.sh" in line:
            assert (host / "etc/systemd/system/vgpu-agent.service").is_file()
    assert "remove /etc/systemd/system/vgpu-agent.service" in told
    assert tree(offline.here / "home") == set()


def test_install_run_and_uninstall_from_the_tarball_alone(offline: Offline) -> None:
    offline.succeed(f"tar -xzf {TOP}.tar.gz")
    installed = offline.succeed(f"{TOP}/install.sh --root $HERE/host")
    assert "/opt/vgpu-agent" in installed
    host = offline.here / "host"

    program = "host/opt/vgpu-agent/current/vgpu-agent"
    told = json.loads(offline.succeed(f"{program} version --json"))
    assert told["version"] == VERSION
    demo = json.loads(offline.succeed(f"{program} demo --json"))
    assert demo["passed"] is True
    assert all(check["passed"] for check in demo["checks"])

    assert "nothing to do" in offline.succeed(f"{TOP}/install.sh --root $HERE/host")
    offline.succeed(f"{TOP}/uninstall.sh --root $HERE/host --purge")
    assert tree(host) == set()
    assert tree(offline.here / "home") == set()


def test_a_damaged_release_is_refused_before_anything_is_done(offline: Offline) -> None:
    offline.succeed(f"tar -xzf {TOP}.tar.gz")
    library = offline.here / TOP / "vgpu-agent/_internal/hook/libvgpu.so"
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)
    refused = offline.run(f"{TOP}/install.sh --root $HERE/host")
    assert refused.returncode != 0
    assert "damaged" in refused.stderr
    assert tree(offline.here / "host") == set()


def test_a_damaged_tarball_is_told(offline: Offline) -> None:
    tarball = offline.here / f"{TOP}.tar.gz"
    content = bytearray(tarball.read_bytes())
    content[len(content) // 2] ^= 1
    tarball.write_bytes(content)
    assert offline.run("sha256sum --check --ignore-missing SHA256SUMS").returncode == 1
