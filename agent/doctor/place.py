"""The agent's place on the node: its directories, its lock, its sockets, what the kernel allows."""

import fcntl
import http.client
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import yaml

from agent.adapters.hook_files import FIRST_PID_NAMESPACE
from agent.adapters.instance_lock import InstanceLock
from agent.adapters.listeners import EndpointUnavailable, TcpListener, parse_address
from agent.adapters.local_client import READ_SOCKET, AgentUnreachable, ask
from agent.adapters.safe_files import OTHERS
from agent.doctor.finding import Check, Finding, failed, ok, skipped, unseen, warning
from agent.doctor.host import Host, writable
from agent.doctor.runtime_driver import told_by_runtime
from agent.domain.proc_text import place_of

MIB, GIB = 1 << 20, 1 << 30
LEAST_BYTES, FEW_BYTES = 64 * MIB, GIB
FEW_INODES = 1000
HTTP_OK, PAGE_BYTES = 200, 4 << 20
OWN_METRIC = b"\nvgpu_ready"
CGROUP2_FILE = "cgroup.controllers"
KUBELETS_DRIVER = (
    "sed -i 's/^cgroupDriver:.*/cgroupDriver: systemd/' /var/lib/kubelet/config.yaml   # the "
    "runtime too; drain, then restart both"
)
RUNTIMES_DRIVER = (
    "grep -rn SystemdCgroup /etc/containerd   # true for runc (CRI-O: cgroup_manager is systemd); "
    "drain, then restart the runtime and kubelet"
)
START = "systemctl start vgpu-agent   # kubectl -n kube-system rollout restart ds/vgpu-agent"


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of /proc/PID/mountinfo."""

    point: str
    kind: str
    options: frozenset[str]


def mounts_of(text: str) -> list[MountEntry]:
    """What mountinfo says; lines that are none are left out. Source: proc(5)."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        if not dash or len(words) < 6 or not rest[0]:  # noqa: PLR2004 - the options are the sixth
            continue
        point = words[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        found.append(MountEntry(point, rest[0], frozenset(words[5].split(","))))
    return found


def mount_of(path: Path, mounts: list[MountEntry]) -> MountEntry | None:
    """The mount that a path is on: the last of the deepest ones."""
    holding = [mount for mount in mounts if path.is_relative_to(mount.point or "/")]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def hook_mount(host: Host) -> Finding:
    """Programs must be able to map the library from there."""
    directory = host.config.host_vgpu_dir
    text = host.read(host.proc / "self/mountinfo")
    mount = mount_of(directory, mounts_of(text))
    if mount is None:
        return skipped(f"{host.proc}/self/mountinfo does not say what {directory} is on")
    if "noexec" in mount.options:
        return failed(
            f"{directory} is on {mount.point} ({mount.kind}), which is mounted noexec: the loader "
            "does not map the hook, and containers run without limits",
            f"mount -o remount,exec {mount.point}   # and in /etc/fstab; or --hook-path elsewhere",
        )
    return ok(f"{directory} is on {mount.point} ({mount.kind}), without noexec")


def hook_directory(host: Host) -> Finding:
    """Nobody but root may exchange what containers load."""
    directory = host.config.host_vgpu_dir
    try:
        info = directory.stat()
    except FileNotFoundError:
        return ok(f"{directory} does not exist yet; the agent makes it")
    if not stat.S_ISDIR(info.st_mode):
        return failed(f"{directory} is no directory", f"rm {directory}")
    if info.st_uid not in (0, host.uid):
        return failed(
            f"{directory} belongs to user {info.st_uid}, who could exchange what containers load",
            f"chown root {directory}",
        )
    if info.st_mode & 0o022:
        return failed(
            f"{directory} can be written by everybody (mode {stat.S_IMODE(info.st_mode):o})",
            f"chmod go-w {directory}",
        )
    if info.st_mode & OTHERS:
        return warning(
            f"{directory} can be entered by every user of this host "
            f"(mode {stat.S_IMODE(info.st_mode):o}), who could run what root of a container leaves "
            "there as a set-uid program",
            f"chmod o-rwx {directory}   # the agent does so when it starts",
        )
    return ok(f"{directory} is root's, mode {stat.S_IMODE(info.st_mode):o}")


def hook_same_path(host: Host) -> Finding:
    """Kubelet mounts host paths; what we call the directory must be what the host calls it."""
    config = host.config
    if config.host_hook_path is not None and not host.in_pod:
        return ok(f"containers see {config.host_vgpu_dir} as {config.hook_path}/vgpu")
    mount = mount_of(config.host_vgpu_dir, mounts_of(host.read(Path("/proc/self/mountinfo"))))
    if host.in_pod and (mount is None or Path(mount.point) != config.host_vgpu_dir):
        return failed(
            f"in this pod {config.host_vgpu_dir} is no volume: what the agent writes there never "
            "reaches the host",
            f"kubectl -n kube-system edit ds/vgpu-agent   # mount hostPath {config.host_vgpu_dir} "
            "at the same path",
        )
    return ok(f"{config.host_vgpu_dir} is the host's own path")


def disk_space(host: Host) -> Finding:
    """For hook and usage regions, and for the grants."""
    low, seen = [], []
    worst = 0
    for path in (host.config.host_vgpu_dir, host.config.state_dir):
        space = host.space_of(path)
        seen.append(f"{path}: {space.free_bytes // MIB} MiB free")
        if space.free_bytes < FEW_BYTES or 0 <= space.free_inodes < FEW_INODES:
            low.append(f"{path}: {space.free_bytes // MIB} MiB and {space.free_inodes} inodes free")
            worst = max(worst, 1 + (space.free_bytes < LEAST_BYTES or space.free_inodes == 0))
    if not low:
        return ok("; ".join(seen))
    fix = "journalctl --vacuum-size=200M; crictl rmi --prune; df -h"
    if worst > 1:
        return failed(f"{'; '.join(low)}: pods are refused their GPUs", fix)
    return warning("; ".join(low), fix)


def state_dir(host: Host) -> Finding:
    """Grants are remembered there."""
    path = host.config.state_dir
    try:
        info = path.stat()
    except FileNotFoundError:
        return ok(f"{path} does not exist yet; the agent makes it")
    if not stat.S_ISDIR(info.st_mode):
        return failed(f"{path} is no directory", f"rm {path}")
    if info.st_uid not in (0, host.uid) or info.st_mode & 0o022:
        return failed(
            f"{path} belongs to user {info.st_uid}, mode {stat.S_IMODE(info.st_mode):o}: others "
            "than root could change which limits hold",
            f"chown root {path} && chmod 700 {path}",
        )
    if not writable(path, host.uid):
        return failed(f"{path} cannot be written", f"findmnt -T {path}   # read-only? remount it")
    return ok(f"{path} can be written, mode {stat.S_IMODE(info.st_mode):o}")


def agent_runs(host: Host) -> Finding:
    """Whoever holds the lock acts; a second one waits."""
    lock = InstanceLock(host.config.state_dir)
    try:
        fd = os.open(lock.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return skipped(f"no agent runs here: there is no {lock.path}", START)
    with os.fdopen(fd, "rb"):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return ok(f"{lock.holder()} holds {lock.path}")
    return skipped(f"no agent runs here: nobody holds {lock.path}", START)


def metrics_address(host: Host) -> Finding:
    """Free for the agent, or its own."""
    address = host.config.metrics_address
    if not address:
        return ok("no metrics address is set")
    try:
        TcpListener(address).open().close()
    except EndpointUnavailable as error:
        if OWN_METRIC in _page(address):
            return ok(f"the agent answers on {address}")
        return failed(
            f"{error}; whoever has it serves no metrics of this agent",
            f"ss -ltnp 'sport = :{address.rpartition(':')[2]}'   # or --metrics-bind-address :PORT",
        )
    return ok(f"{address} is free")


def _page(address: str) -> bytes:
    """The beginning of /metrics there; nothing where nobody answers so."""
    name, port = parse_address(address)
    caller = http.client.HTTPConnection(name or "localhost", port, timeout=3.0)
    try:
        caller.request("GET", "/metrics")
        return caller.getresponse().read(PAGE_BYTES)
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        caller.close()


def local_socket(host: Host) -> Finding:
    """`top` and `limit` ask there."""
    path = host.config.runtime_dir / READ_SOCKET
    try:
        answer = ask(path, "GET", "/healthz", timeout_s=3.0)
    except AgentUnreachable as error:
        return failed(str(error), START.replace("start", "restart", 1))
    if answer.status != HTTP_OK:
        return warning(
            f"{path} answers {answer.status} to /healthz", "journalctl -u vgpu-agent -n 50"
        )
    return ok(f"{path} answers")


def cgroups(host: Host) -> Finding:
    """Kubelet and runtime must agree on who makes cgroups."""
    version = 2 if (host.path("/sys/fs/cgroup") / CGROUP2_FILE).exists() else 1
    kubelet = cgroup_driver(host.read_if_there(host.path("/var/lib/kubelet/config.yaml")) or "")
    runtime = told_by_runtime(host)
    systemd = (host.path("/run/systemd/system")).exists()
    said = f"cgroup v{version}, kubelet's driver: {runtime or kubelet or 'not told'}"
    if runtime:
        said += f", by its runtime (its own file says {kubelet or 'nothing'})"
    if (runtime or kubelet) == "cgroupfs" and version == 2 and systemd:  # noqa: PLR2004 - its name
        return warning(
            f"{said}, on a host with systemd: two managers of one tree, a reload can take the "
            "GPUs of running containers away",
            RUNTIMES_DRIVER if runtime else KUBELETS_DRIVER,
        )
    return ok(said)


def cgroup_driver(text: str) -> str:
    """`cgroupDriver` of a KubeletConfiguration; empty: it does not say."""
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):
        return ""
    named = config.get("cgroupDriver") if isinstance(config, dict) else None
    return named if isinstance(named, str) else ""


def host_processes(host: Host) -> Finding:
    """Whether limits hold is seen by looking at the processes of pods."""
    try:
        if str((host.proc / "1/ns/pid").readlink()) == FIRST_PID_NAMESPACE:
            return ok(f"{host.proc} shows the processes of the host")
    except FileNotFoundError:
        pass  # then by what is seen of pods
    except PermissionError:  # root may still be kept from it, by a container's rights
        if host.uid != 0:
            raise
    for entry in host.entries(host.proc):
        if entry.name.isdigit() and place_of(_text(host, entry / "cgroup")):
            return ok(f"{host.proc} shows processes of pods")
    return warning(
        f"{host.proc} shows no process of a pod and is not the host's: whether limits hold cannot "
        "be seen",
        "kubectl -n kube-system edit ds/vgpu-agent   # hostPath /proc, and --host-proc /host/proc",
    )


def _text(host: Host, path: Path) -> str:
    try:
        return host.read(path, 1 << 16)
    except OSError:
        return ""


def security_modules(host: Host) -> Finding:
    """A note: what may keep containers from mapping the hook."""
    if host.contained:  # a container is not shown that SELinux is on
        return unseen()
    enforcing = _text(host, host.path("/sys/fs/selinux/enforce")).strip()
    apparmor = _text(host, host.path("/sys/module/apparmor/parameters/enabled")).strip()
    selinux = {"1": "enforcing", "0": "permissive"}.get(enforcing, "off")
    said = f"SELinux {selinux}, AppArmor {'on' if apparmor == 'Y' else 'off'}"
    directory = host.config.host_vgpu_dir
    if selinux != "enforcing" or not directory.exists():
        return ok(said)
    try:
        label = os.getxattr(directory, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        label = "no label"
    if ":container_file_t:" in label:
        return ok(f"{said}; {directory} is {label}")
    # What they may read alone (container_ro_file_t, usr_t) has the file in which they count, too.
    return warning(
        f"{said}, and {directory} has {label}: containers may be kept from mapping the hook, or "
        "from counting what they use, without which CUDA does not start",
        f"semanage fcontext -a -t container_file_t '{directory}(/.*)?'; "
        f"restorecon -R {directory}   # or, until the next relabelling: "
        f"chcon -R -t container_file_t {directory}",
    )


CHECKS = (
    Check(
        name="hook-mount",
        question="may programs be mapped from the hook's directory?",
        look=hook_mount,
    ),
    Check(
        name="hook-directory",
        question="can only root change the hook's directory, or enter it?",
        look=hook_directory,
    ),
    Check(
        name="hook-same-path", question="do host and agent call it the same?", look=hook_same_path
    ),
    Check(name="disk-space", question="is there space for hook and grants?", look=disk_space),
    Check(name="state-dir", question="can grants be remembered?", look=state_dir),
    Check(name="agent", question="does an agent run here?", look=agent_runs),
    Check(
        name="metrics-address",
        question="is the metrics address free, or the agent's?",
        look=metrics_address,
    ),
    Check(
        name="local-socket",
        question="do `top` and `limit` reach the agent?",
        look=local_socket,
        needs=("agent",),
    ),
    Check(name="cgroups", question="which cgroups, made by whom?", look=cgroups),
    Check(name="host-proc", question="can the processes of pods be seen?", look=host_processes),
    Check(
        name="security-modules",
        question="do SELinux or AppArmor stand in the way?",
        look=security_modules,
    ),
)
