"""A node on which doctor finds nothing wrong: real sockets, simulated driver, a tree of host files."""

import ctypes
import http.server
import os
import socketserver
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from built_hook import built, sim_libraries
from toy_plugin import GPU, ToyPlugin, register
from waiting import eventually

from agent.adapters.hook_files import FIRST_PID_NAMESPACE, install_hook
from agent.adapters.instance_lock import InstanceLock
from agent.adapters.nvml import NvmlDriver
from agent.config import Config
from agent.doctor.checks import CHECKS
from agent.doctor.finding import Check, Finding, done
from agent.doctor.host import Host, Space
from agent.sim.api_client import MERGE_PATCH, ApiClient, path
from agent.sim.apiserver import ApiServer
from agent.sim.driver import SimDriver, made_up_uuid
from agent.sim.kubelet import StandInKubelet
from agent.version import VERSION

NAME = "sim-node"
PATIENCE_S = 30.0  # of tests, for what does not hang
TOKEN = "known"  # noqa: S105 - the stand-in asks for none unless told to
DRIVER = "570.86.15"
HANDSHAKE, REGISTER = "hami.io/node-handshake", "hami.io/node-nvidia-register"
UUID = made_up_uuid(0)
CONTAINERD = """\
version = 3
imports = ["conf.d/*.toml"]
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
CONTAINERD_NVIDIA = """\
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
CRIO_NVIDIA = """\
[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
"""
CDI = """\
cdiVersion: "0.6.0"
kind: nvidia.com/gpu
containerEdits:
  mounts:
  - hostPath: /usr/lib/libcuda.so.570.86.15
    containerPath: /usr/lib/libcuda.so.570.86.15
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
"""
DPKG = """\
Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.18.2-1
"""
FILES: Mapping[str, str] = {
    "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Tue Jan\n",
    "proc/driver/nvidia/gpus/0000:10:00.0/information": "",
    "proc/self/mountinfo": "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n",
    "proc/812/cmdline": "/usr/bin/kubelet\0--config\0x\0",
    "dev/nvidia0": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "etc/containerd/config.toml": CONTAINERD,
    "etc/containerd/conf.d/99-nvidia.toml": CONTAINERD_NVIDIA,
    "usr/bin/nvidia-container-runtime": "#!/bin/sh\n",
    "usr/lib/libcuda.so.570.86.15": "",
    "etc/nvidia-container-runtime/config.toml": "[nvidia-container-cli]\nno-cgroups = false\n",
    "var/lib/dpkg/status": DPKG,
    "etc/cdi/nvidia.yaml": CDI,
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/selinux/enforce": "0",
    "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n",
    "run/systemd/system/x": "",
}


def stamp(word: str, ago_s: float = 5.0, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The handshake as a scheduler writes it."""
    return f"{word}_{datetime.fromtimestamp(time.time() - ago_s, UTC):{form}}"


class _Healthz(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def address_string(self) -> str:
        return "local"

    def log_message(self, *_: object) -> None:
        pass


class _UnixServer(socketserver.UnixStreamServer):
    def get_request(self) -> Any:
        return super().get_request()[0], ("", 0)


class DoctorNode:
    """Tests break one thing of it, then `look()`."""

    def __init__(self, root: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tree, self.stack = root, root / "t", stack
        self.settings: dict[str, Any] = {}
        self.effects: dict[str, Any] = {}
        self.hurried: dict[str, float] = {}  # check -> by when it must have answered
        self._driver(monkeypatch)
        self._host_files()
        self._kubelet()
        self._api_server()
        self._agent()

    # --- making it ------------------------------------------------------------------------------

    def _driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ctypes.CDLL(str(sim_libraries() / "libnvidia-ml.so.1"))  # the soname pynvml asks for next
        (self.root / "driver").mkdir()
        self.driver = SimDriver(self.root / "driver", libraries=sim_libraries())
        self.driver.add_gpu()
        monkeypatch.setenv("VGPU_SIM_DRIVER", str(self.driver.config_path))

    def _host_files(self) -> None:
        for name, content in FILES.items():
            self.write(name, content)
        (self.tree / "usr/bin/nvidia-container-runtime").chmod(0o755)
        (self.tree / "dev/char").mkdir()
        for minor, name in enumerate(("nvidia0", "nvidiactl", "nvidia-uvm")):
            (self.tree / f"dev/char/195:{minor}").symlink_to(f"../{name}")
        (self.tree / "proc/1/ns").mkdir(parents=True)
        (self.tree / "proc/1/ns/pid").symlink_to(FIRST_PID_NAMESPACE)

    def device_number(self, device: Path) -> tuple[int, int] | None:
        """As if these files were devices."""
        names = ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-cap1"]
        return (195, names.index(device.name)) if device.exists() else None

    def _kubelet(self) -> None:
        self.kubelet = StandInKubelet(self.root / "dp", self.root / "pr")
        self.stack.enter_context(self.kubelet)
        self.plugin = self.serve("vgpu-agent-1-1.sock", [f"{UUID}-{slot}" for slot in range(10)])
        register(self.kubelet, self.plugin)
        eventually(lambda: self.kubelet.node_status().allocatable.get(GPU) == 10)

    def serve(self, name: str, ids: list[str]) -> ToyPlugin:
        """A plugin that listens beside kubelet."""
        plugin = ToyPlugin(self.root / "dp" / name, ids)
        self.stack.callback(plugin.stop)
        return plugin

    def _api_server(self) -> None:
        self.api = self.stack.enter_context(ApiServer())
        self.api.write_kubeconfig(self.root / "kubeconfig", token=TOKEN)
        self.client = ApiClient(self.api.url)
        self.client.ask(
            "POST",
            path("nodes"),
            {
                "metadata": {
                    "name": NAME,
                    "labels": {"gpu": "on"},
                    "annotations": {REGISTER: "[]", HANDSHAKE: stamp("Requesting")},
                }
            },
        )

    def annotate(self, **changes: str | None) -> None:
        """Change annotations of the Node: handshake, register."""
        keys = {"handshake": HANDSHAKE, "register": REGISTER}
        self.patch_node({"annotations": {keys[name]: value for name, value in changes.items()}})

    def patch_node(self, metadata: Mapping[str, Any]) -> None:
        """Change the Node's metadata."""
        self.client.ask(
            "PATCH", path("nodes", NAME), {"metadata": metadata}, content_type=MERGE_PATCH
        )

    def _agent(self) -> None:
        """What an agent that runs has made."""
        self.hook = built() / "libvgpu.so"
        self.vgpu = self.root / "host" / "vgpu"
        self.installed = install_hook(self.hook, self.vgpu, VERSION)
        self.preload = self.vgpu / "ld.so.preload"
        self.preload.write_text("/usr/local/vgpu/libvgpu.so\n")
        self.state = self.root / "state"
        self.lock = InstanceLock(self.state)
        assert self.lock.try_acquire()
        self.stack.callback(self.lock.release)
        (self.root / "run").mkdir()
        self.local = _UnixServer(str(self.root / "run/read.sock"), _Healthz)
        self.stack.callback(self.local.server_close)
        threading.Thread(target=self.local.serve_forever, args=(0.05,), daemon=True).start()
        self.stack.callback(self.local.shutdown)

    def write(self, name: str, content: str) -> Path:
        """A file of the host."""
        file = self.tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def remove(self, name: str) -> None:
        """Take a file of the host away."""
        (self.tree / name).unlink()

    # --- looking --------------------------------------------------------------------------------

    def config(self) -> Config:
        """The settings, with what the test has changed of them."""
        settings: dict[str, Any] = {
            "node_name": NAME,
            "kubeconfig": self.root / "kubeconfig",
            "kubelet_socket": self.kubelet.socket,
            "pod_resources_socket": self.root / "pr/kubelet.sock",
            "host_hook_path": self.root / "host",
            "lock_dir": self.root / "lock",
            "state_dir": self.state,
            "host_proc": self.tree / "proc",
            "runtime_dir": self.root / "run",
            "metrics_address": "127.0.0.1:0",
        }
        return Config(**{**settings, **self.settings})

    def host(self) -> Host:
        """What doctor gets to see."""
        environ = {
            "PATH": os.environ["PATH"],
            **self.driver.environment(),
            **self.effects.get("environ", {}),
        }
        effects: dict[str, Any] = {
            "root": self.tree,
            "nvml": NvmlDriver(sysfs=self.tree / "sys", proc_gpus=self.tree / "none"),
            "hook": self.hook,
            "device_number": self.device_number,
            "space_of": lambda _: Space(free_bytes=50 << 30, free_inodes=1_000_000),
        }
        return Host(config=self.config(), **{**effects, **self.effects, "environ": environ})

    def look(self, checks: tuple[Check, ...] = CHECKS) -> dict[str, Finding]:
        """What doctor finds, by name of check."""
        host = self.host()
        try:
            table = [
                replace(one, within_s=self.hurried.get(one.name, PATIENCE_S)) for one in checks
            ]
            return {result.check.name: result.finding for result in done(table, host)}
        finally:
            self.driver.hang(False)
            for thread in threading.enumerate():
                if thread.name.startswith("doctor-"):  # one that hung: it would use the next node's
                    thread.join(20)
            host.nvml.close()
