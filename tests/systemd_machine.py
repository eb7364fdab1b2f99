"""A machine that boots systemd: this one's /usr, everything else its own, and no network but loopback.

Not a virtual machine: namespaces, and a cgroup of its own. What is not imitated: a kernel of its own, devices,
and the controllers of cgroups (limits of memory are not kept).
"""

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from waiting import eventually

T = TypeVar("T")
INIT = Path("/usr/lib/systemd/systemd")
CLONE_NEWNET = 0x40000000
HOSTNAME = "gpu-node-1"
COMMAND_S = 120
# Runs as the first process of the new namespaces, with the root directory as its argument.
BECOME_INIT = """
set -e
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind /usr "$root/usr"
mount -o remount,bind,ro "$root/usr"
mount -t tmpfs -o mode=755 tmpfs "$root/usr/local"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : > "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd --log-target=journal >/dev/null 2>&1 </dev/null
"""


def cgroup2() -> Path | None:
    """Where the second version of cgroups is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def missing() -> str:
    """Why no machine can be booted here; empty when one can."""
    if os.geteuid() != 0:
        return "booting systemd takes root"
    for tool in (INIT, *map(shutil.which, ("unshare", "nsenter", "pivot_root", "systemctl"))):
        if tool is None or not Path(tool).exists():
            return (
                "this machine has no systemd, or not the tools of util-linux, that could be booted"
            )
    if not Path("/bin").is_symlink():
        return "this machine's /bin is not below /usr, so that its /usr alone does not boot"
    if cgroup2() is None:
        return "this machine has no cgroup2 mounted"
    probe = ["unshare", "--mount", "--pid", "--fork", "--net", "--cgroup", "--uts", "--ipc", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "this machine does not allow namespaces"
    return ""


class Machine:
    """A machine. `root`: a directory of its own, with a short path: sockets are opened in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        hierarchy = cgroup2()
        assert hierarchy is not None
        self._cgroup = hierarchy / f"vgpu-agent-test-{os.getpid()}-{root.parent.name}"
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init = 0
        for name in (
            "etc/systemd/system",
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
            "usr",
            "opt",
            "root",
        ):
            (root / name).mkdir(parents=True)
        for name in ("var/lib", "var/log/journal"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        users = "root:x:0:0::/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\n"
        (root / "etc/passwd").write_text(users)
        (root / "etc/group").write_text("root:x:0:\nmessagebus:x:100:\n")
        (root / "etc/machine-id").write_text("")
        (root / "etc/hostname").write_text(f"{HOSTNAME}\n")
        (root / "etc/systemd/system/default.target").symlink_to(
            "/lib/systemd/system/multi-user.target"
        )

    def boot(self) -> None:
        """Start it, and wait until it is up."""
        self._cgroup.mkdir()
        enter = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
        self._unshare = subprocess.Popen(
            ["sh", "-c", enter, "sh", self._cgroup,
             "unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup",
             "--propagation", "private", "sh", "-c", BECOME_INIT, "sh", self.root],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        eventually(lambda: children.read_text().strip(), within_s=60, what="a first process")
        self._init = int(children.read_text())
        comm = Path(f"/proc/{self._init}/comm")
        eventually(lambda: comm.read_text() == "systemd\n", within_s=60, what="systemd is its init")
        eventually(
            lambda: self.run("systemctl", "is-system-running").stdout.strip() == "running",
            within_s=60,
            every_s=0.2,
            what="the machine is up",
        )

    def stop(self) -> None:
        """Take its power away."""
        if self._unshare is not None:
            if self._init:
                os.kill(self._init, signal.SIGKILL)
            self._unshare.wait(30)
        for directory, _, _ in os.walk(self._cgroup, topdown=False):
            eventually(lambda d=directory: _removed(Path(d)), what=f"{directory} is empty")  # type: ignore[misc]

    def run(self, *command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on it, as root."""
        into = ["nsenter", "-t", str(self._init), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
        return subprocess.run(
            [*into, *map(str, command)],
            capture_output=True, text=True, input=stdin, timeout=COMMAND_S, check=False,
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    def ok(self, *command: str | Path) -> str:
        """The same, for what has to succeed; what it printed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def on_network(self, action: Callable[[], T]) -> T:
        """Do something where the machine's loopback is, and not this one's."""
        results: list[T] = []
        errors: list[BaseException] = []

        def act() -> None:
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                with Path(f"/proc/{self._init}/ns/net").open() as namespace:
                    assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
                results.append(action())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.ok("systemctl", "show", unit, f"--property={name}", "--value").strip()


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
