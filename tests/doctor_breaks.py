"""One thing broken on a healthy node, check by check: what doctor must name, and nothing else."""

import json
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from built_hook import sim_libraries
from doctor_node import CDI, CONTAINERD, DPKG, NAME, UUID, DoctorNode, stamp

from agent.adapters.nvml import NvmlDriver
from agent.doctor.finding import Verdict
from agent.doctor.host import Space
from agent.domain.gpu import Sharing
from agent.errors import GpuLost
from agent.sim.driver import SimGpu

FAILED, WARNING, SKIPPED = Verdict.FAILED, Verdict.WARNING, Verdict.SKIPPED
UNKNOWN_ERROR = 999  # CUDA's


@dataclass(frozen=True)
class Break:
    """`id` says what is broken; `says` is part of the evidence."""

    check: str
    id: str
    verdict: Verdict
    says: str
    do: Callable[[DoctorNode], Any]


class IllGpus(NvmlDriver):
    """They are listed, and then no longer answer."""

    def probe(self, uuid: str) -> None:
        raise GpuLost(f"GPU {uuid} does not answer: it fell off the bus", code=15)


def _gpu(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.driver.change_gpu(0, replace(SimGpu(uuid=UUID), **changes))


def _settings(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.settings.update(changes)


def _effects(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.effects.update(changes)


def _file(name: str, content: str) -> Callable[[DoctorNode], Path]:
    return lambda node: node.write(name, content)


def _without(name: str) -> Callable[[DoctorNode], None]:
    return lambda node: node.remove(name)


def _deny(*rights: tuple[str, str]) -> Callable[[DoctorNode], None]:
    return lambda node: setattr(node.api, "denied", frozenset(rights))


def _nothing_listens(node: DoctorNode) -> None:
    path = node.root / "dp" / "kubelet.sock"
    node.kubelet.stop()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def _no_runtime(node: DoctorNode) -> None:
    shutil.rmtree(node.tree / "etc/containerd")


def _forget(node: DoctorNode) -> None:
    node.plugin.set_health({})


def _foreign_books(node: DoctorNode) -> None:
    content = {"Data": {"RegisteredDevices": {"nvidia.com/gpu": [UUID]}}, "Checksum": 1}
    (node.root / "dp/kubelet_internal_checkpoint").write_text(json.dumps(content))


def _hang_api(node: DoctorNode) -> None:
    node.within_s = 0.5
    node.api.hang(seconds=30, resource="selfsubjectaccessreviews")


def _hang_driver(node: DoctorNode) -> None:
    node.within_s = 1.0
    node.driver.hang()


def _occupied(node: DoctorNode) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    taken.settimeout(0.1)
    node.stack.callback(taken.close)
    node.settings["metrics_address"] = f"127.0.0.1:{taken.getsockname()[1]}"


def _hook_of(name: str, content: bytes) -> Callable[[DoctorNode], None]:
    def do(node: DoctorNode) -> None:
        _give_hook(node, node.root / name, content)

    return do


def _give_hook(node: DoctorNode, path: Path, content: bytes) -> None:
    """Another library as the program's own, installed as such."""
    from agent.adapters.hook_files import install_hook
    from agent.version import VERSION

    path.write_bytes(content)
    node.hook = path
    install_hook(path, node.vgpu, VERSION)


def _newer_glibc(node: DoctorNode) -> None:
    content = node.hook.read_bytes()
    _give_hook(node, node.root / "newer.so", content + b"\0GLIBC_2.38\0")


def _toothless(node: DoctorNode) -> None:
    """A library that can be loaded and limits nothing."""
    _give_hook(node, node.root / "other.so", (sim_libraries() / "libnvidia-ml.so.1").read_bytes())


def _unloadable(node: DoctorNode) -> None:
    """An ELF header of the right machine and nothing behind it."""
    content = bytearray(node.hook.read_bytes())
    content[32:40] = struct.pack("<Q", 1 << 40)  # e_phoff: program headers that are not there
    _give_hook(node, node.root / "unloadable.so", bytes(content))


def _alien(node: DoctorNode) -> None:
    content = bytearray(node.hook.read_bytes())
    content[18:20] = b"\x08\x00"  # MIPS
    _give_hook(node, node.root / "alien.so", bytes(content))


def _noexec(node: DoctorNode) -> None:
    line = f"40 21 8:2 / {node.root}/host rw,nosuid,noexec shared:2 - xfs /dev/sdb1 rw\n"
    node.write("proc/self/mountinfo", "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + line)


def _blind(node: DoctorNode) -> None:
    (node.tree / "proc/1/ns/pid").unlink()


def _enforcing(node: DoctorNode) -> None:
    node.write("sys/fs/selinux/enforce", "1")


def _older_kernel(node: DoctorNode) -> None:
    node.write(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  535.104.05  Sat Aug\n"
    )


def _hidden(node: DoctorNode) -> None:
    (node.tree / "proc/driver/nvidia/gpus/0000:20:00.0").mkdir()


def _no_local_socket(node: DoctorNode) -> None:
    (node.root / "run/read.sock").unlink()


def _time_zone(node: DoctorNode) -> None:
    """The scheduler's clock is eight hours ahead."""
    node.annotate(handshake=stamp("Requesting", ago_s=-8 * 3600))


def _written_in_another_zone(node: DoctorNode) -> None:
    """Behind ours, as the API server's own time of the write tells."""
    node.annotate(handshake=stamp("Requesting", ago_s=5 * 3600))
    fields = {"f:metadata": {"f:annotations": {"f:hami.io/node-handshake": {}}}}
    written = {"manager": "scheduler", "time": stamp("x", ago_s=0, form="%Y-%m-%dT%H:%M:%SZ")[2:]}
    node.patch_node({"managedFields": [{**written, "fieldsV1": fields}]})


def _wrong_library(node: DoctorNode) -> None:
    node.installed.write_bytes(node.installed.read_bytes()[:-1] + b"!")


def _delete_node(node: DoctorNode) -> None:
    node.client.ask("DELETE", f"/api/v1/nodes/{NAME}")


def _too_long(node: DoctorNode) -> None:
    """Kubelet's directory at a path that leaves no room for the longer name of our socket."""
    longer = node.root / ("d" * (107 - len(str(node.root)) - len("//kubelet.sock")))
    longer.symlink_to(node.root / "dp")
    node.settings["kubelet_socket"] = longer / "kubelet.sock"


def _another_lock(node: DoctorNode) -> None:
    node.lock.release()


BREAKS = (
    Break(
        "driver-loaded",
        "no kernel module",
        FAILED,
        "not loaded",
        _without("proc/driver/nvidia/version"),
    ),
    Break(
        "nvml",
        "library without driver",
        FAILED,
        "Driver Not Loaded",
        lambda n: n.driver.driver("absent"),
    ),
    Break("nvml", "a driver that hangs", FAILED, "did not answer within 1 s", _hang_driver),
    Break(
        "driver-match",
        "NVML finds another version",
        FAILED,
        "mismatch",
        lambda n: n.driver.driver("mismatch"),
    ),
    Break(
        "driver-match",
        "kernel module of before",
        FAILED,
        "the kernel module is 535.104.05",
        _older_kernel,
    ),
    Break(
        "cuda-range", "CUDA 11", FAILED, "offers CUDA 11.4", lambda n: n.driver.versions(cuda=11040)
    ),
    Break(
        "cuda-range",
        "a CUDA of the future",
        WARNING,
        "offers CUDA 14.2",
        lambda n: n.driver.versions(cuda=14020),
    ),
    Break("gpus", "none", FAILED, "no GPU", lambda n: n.driver.remove_gpu(0)),
    Break("gpus", "fell off the bus", FAILED, "GPU 0 of 1", lambda n: n.driver.lost(0)),
    Break("gpu-kernel", "one that NVML does not list", WARNING, "0000:20:00.0", _hidden),
    Break("gpu-health", "does not answer a probe", FAILED, "GPU 0:", _effects(nvml=IllGpus())),
    Break(
        "gpu-memory",
        "memory unknown",
        FAILED,
        "does not say how much memory GPU 0",
        _gpu(memory_mib=None),
    ),
    Break("mig", "divided", FAILED, "GPU 0 is divided by MIG", _gpu(mig=True)),
    Break("device-nodes", "no uvm", FAILED, "no device nvidia-uvm", _without("dev/nvidia-uvm")),
    Break(
        "device-links",
        "no link in /dev/char",
        WARNING,
        "no link to nvidia0",
        _without("dev/char/195:0"),
    ),
    Break("runtime", "none", FAILED, "no configuration", _no_runtime),
    Break(
        "runtime-config",
        "no TOML",
        FAILED,
        "conf.d/99-nvidia.toml cannot be understood",
        _file("etc/containerd/conf.d/99-nvidia.toml", "[[["),
    ),
    Break(
        "nvidia-runtime",
        "no handler",
        FAILED,
        "no handler of NVIDIA's (runc)",
        _file("etc/containerd/conf.d/99-nvidia.toml", "version = 3\n"),
    ),
    Break(
        "nvidia-runtime",
        "not the default",
        WARNING,
        "default runtime is runc",
        _file(
            "etc/containerd/conf.d/99-nvidia.toml",
            CONTAINERD.replace("runc", "nvidia").replace('name = "nvidia"', 'name = "runc"'),
        ),
    ),
    Break(
        "runtime-program",
        "uninstalled",
        FAILED,
        "does not exist",
        _without("usr/bin/nvidia-container-runtime"),
    ),
    Break(
        "runtime-program",
        "no program",
        FAILED,
        "cannot be executed",
        lambda n: (n.tree / "usr/bin/nvidia-container-runtime").chmod(0o644),
    ),
    Break(
        "toolkit-config",
        "no cgroups",
        FAILED,
        "no-cgroups is true",
        _file(
            "etc/nvidia-container-runtime/config.toml",
            "[nvidia-container-cli]\nno-cgroups = true\n",
        ),
    ),
    Break(
        "toolkit-config",
        "names are not accepted",
        FAILED,
        "unprivileged",
        _file(
            "etc/nvidia-container-runtime/config.toml",
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
        ),
    ),
    Break(
        "toolkit-config",
        "no TOML",
        FAILED,
        "cannot be understood",
        _file("etc/nvidia-container-runtime/config.toml", "="),
    ),
    Break(
        "toolkit-version",
        "all four holes",
        FAILED,
        "CVE-2024-0132",
        _file("var/lib/dpkg/status", DPKG.replace("1.18.2", "1.16.1")),
    ),
    Break(
        "toolkit-version",
        "the last two holes",
        FAILED,
        "1.17.4 (nvidia-container-toolkit in /var/lib/dpkg/status), with CVE-2025-23266",
        _file("var/lib/dpkg/status", DPKG.replace("1.18.2", "1.17.4")),
    ),
    Break("cdi-specs", "no YAML", FAILED, "is no CDI spec", _file("etc/cdi/other.yaml", "{")),
    Break(
        "cdi-fresh",
        "of an older driver",
        WARNING,
        "libcuda.so.550",
        _file("etc/cdi/nvidia.yaml", CDI.replace("570.86.15", "550.54.14")),
    ),
    Break(
        "cdi-conflicts",
        "two of a name",
        WARNING,
        "both describe nvidia.com/gpu=0",
        _file("etc/cdi/nvidia-old.yaml", CDI),
    ),
    Break("hook-mount", "noexec", FAILED, "mounted noexec", _noexec),
    Break("hook-directory", "anybody may write", FAILED, "mode 777", lambda n: n.vgpu.chmod(0o777)),
    Break(
        "hook-directory",
        "nobody may enter",
        FAILED,
        "cannot be entered",
        lambda n: n.vgpu.chmod(0o700),
    ),
    Break(
        "hook-same-path",
        "no volume in our pod",
        FAILED,
        "is no volume",
        _effects(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
    ),
    Break(
        "disk-space",
        "full",
        FAILED,
        "10 MiB and",
        _effects(space_of=lambda _: Space(10 << 20, 1_000_000)),
    ),
    Break(
        "disk-space",
        "no inodes",
        WARNING,
        "12 inodes",
        _effects(space_of=lambda _: Space(50 << 30, 12)),
    ),
    Break("state-dir", "anybody may write", FAILED, "mode 777", lambda n: n.state.chmod(0o777)),
    Break("agent", "does not run", SKIPPED, "nobody holds", _another_lock),
    Break(
        "metrics-address", "somebody else's", FAILED, "serves no metrics of this agent", _occupied
    ),
    Break("local-socket", "gone", FAILED, "read.sock", _no_local_socket),
    Break(
        "cgroups",
        "two managers",
        WARNING,
        "cgroupfs",
        _file("var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n"),
    ),
    Break("host-proc", "own processes only", WARNING, "shows no process of a pod", _blind),
    Break("security-modules", "SELinux without a label", WARNING, "SELinux enforcing", _enforcing),
    Break(
        "kubelet-socket",
        "missing",
        FAILED,
        "no socket",
        lambda n: (n.root / "dp/kubelet.sock").unlink(),
    ),
    Break("kubelet-socket", "nobody listens", FAILED, "nobody listens", _nothing_listens),
    Break("plugin-directory", "too long a path", FAILED, "Unix takes 107", _too_long),
    Break(
        "pod-resources",
        "missing",
        FAILED,
        "no socket",
        lambda n: (n.root / "pr/kubelet.sock").unlink(),
    ),
    Break("registered", "kubelet has forgotten us", FAILED, "counts 0 of nvidia.com/gpu", _forget),
    Break(
        "rival-plugins",
        "NVIDIA's socket",
        FAILED,
        "nvidia-gpu.sock takes connections",
        lambda n: n.serve("nvidia-gpu.sock", [UUID]),
    ),
    Break(
        "rival-plugins",
        "HAMi's process",
        FAILED,
        "process 900 is",
        _file("proc/900/cmdline", "/usr/bin/nvidia-device-plugin\0--x\0"),
    ),
    Break("kubelet-books", "ids of NVIDIA's plugin", WARNING, f"such as {UUID}", _foreign_books),
    Break("list-size", "too many", FAILED, "bytes", _settings(sharing=Sharing(split_count=65_536))),
    Break(
        "list-size",
        "many",
        WARNING,
        "make kubelet slow",
        _settings(sharing=Sharing(split_count=2000)),
    ),
    Break(
        "credentials",
        "no kubeconfig there",
        FAILED,
        "cannot be read",
        lambda n: (n.root / "kubeconfig").unlink(),
    ),
    Break(
        "credentials", "no cluster", SKIPPED, "nothing of the cluster", _settings(kubeconfig=None)
    ),
    Break("api-server", "down", FAILED, "cannot be reached", lambda n: n.api.stop()),
    Break(
        "authorized",
        "token ended",
        FAILED,
        "does not know our credentials",
        lambda n: n.api.accept_tokens("another"),
    ),
    Break(
        "authorized", "an API server that hangs", FAILED, "did not answer within 0.5 s", _hang_api
    ),
    Break("rights-nodes", "no patch", FAILED, "may not patch nodes", _deny(("patch", "nodes"))),
    Break(
        "rights-pods",
        "no list, no watch",
        FAILED,
        "may not list, watch pods",
        _deny(("list", "pods"), ("watch", "pods")),
    ),
    Break(
        "rights-events", "no create", FAILED, "may not create events", _deny(("create", "events"))
    ),
    Break("node", "of another name", FAILED, "no Node", _delete_node),
    Break(
        "node-label",
        "none",
        WARNING,
        "no label gpu",
        lambda n: n.patch_node({"labels": {"gpu": None}}),
    ),
    Break(
        "node-label", "off", WARNING, "gpu=off", lambda n: n.patch_node({"labels": {"gpu": "off"}})
    ),
    Break("register", "not written", FAILED, "no annotation", lambda n: n.annotate(register=None)),
    Break(
        "register",
        "in another format",
        WARNING,
        "csv9",
        lambda n: n.annotate(register="GPU-a,10,24576,100,NVIDIA-X,0,true,0,hami-core:"),
    ),
    Break(
        "scheduler-protocol",
        "HAMi 2.7 has given up",
        FAILED,
        "waits for answers",
        lambda n: n.annotate(handshake=stamp("Deleted", ago_s=600)),
    ),
    Break(
        "scheduler-protocol",
        "HAMi 2.4 asks",
        FAILED,
        "csv7",
        lambda n: n.annotate(handshake=stamp("Requesting", form="%Y.%m.%d %H:%M:%S")),
    ),
    Break("handshake-clock", "another time zone, ahead", WARNING, "+480 min", _time_zone),
    Break(
        "handshake-clock",
        "another time zone, behind",
        WARNING,
        "-300 min",
        _written_in_another_zone,
    ),
    Break(
        "hook-present",
        "missing",
        FAILED,
        "there is no",
        lambda n: setattr(n, "hook", n.root / "none.so"),
    ),
    Break("hook-present", "for another machine", FAILED, "is no library for", _alien),
    Break("hook-glibc", "built on a newer host", FAILED, "needs glibc 2.38", _newer_glibc),
    Break("hook-loads", "cannot be loaded", FAILED, "does not start", _unloadable),
    Break("hook-limits", "a library that limits nothing", FAILED, "was given more", _toothless),
    Break(
        "hook-limits",
        "CUDA does not start",
        FAILED,
        "cuInit gives 999",
        lambda n: n.driver.fail("cuInit", UNKNOWN_ERROR),
    ),
    Break("hook-installed", "deleted", FAILED, "is missing", lambda n: n.installed.unlink()),
    Break("hook-installed", "written into", FAILED, "not what its name says", _wrong_library),
    Break(
        "hook-installed",
        "not readable",
        FAILED,
        "cannot be read",
        lambda n: n.installed.chmod(0o700),
    ),
    Break(
        "preload-file",
        "another library",
        FAILED,
        "says '/usr/lib/libvgpu.so",
        lambda n: n.preload.write_text("/usr/lib/libvgpu.so\n"),
    ),
    Break(
        "host-preload",
        "the host's own file",
        FAILED,
        "every program of the host",
        _file("etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n"),
    ),
)
