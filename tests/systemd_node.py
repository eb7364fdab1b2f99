"""A GPU node that systemd has booted: simulated driver, stand-in kubelet and API server, and the release on it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from systemd_machine import HOSTNAME, Machine

from agent.sim.api_client import ApiClient, path
from agent.sim.apiserver import ApiServer
from agent.sim.driver import SimDriver
from agent.sim.kubelet import StandInKubelet
from agent.sim.scheduler import REGISTER

ROOT = Path(__file__).resolve().parents[1]
UNIT = "vgpu-agent.service"
RESOURCE = "nvidia.com/gpu"
RELEASE = Path("root/release")
SETTINGS = """
VGPU_KUBECONFIG=/etc/vgpu-agent/kubeconfig
LD_LIBRARY_PATH=/var/sim/lib
VGPU_SIM_DRIVER=/var/sim/{config}
"""


class Node:
    """A booted machine with a simulated driver, a stand-in kubelet and API server, and the release on it."""

    def __init__(self, machine: Machine, frozen: Path) -> None:
        self.machine = machine
        self._frozen = frozen
        sim = machine.root / "var/sim"
        sim.mkdir()
        shutil.copytree(frozen / "_internal/hook/sim", sim / "lib")
        self.driver = SimDriver(sim, libraries=sim / "lib")
        for _ in range(2):
            self.driver.add_gpu()
        kubelet = machine.root / "var/lib/kubelet"
        self.kubelet = StandInKubelet(kubelet / "device-plugins", kubelet / "pod-resources")
        self.api = ApiServer()
        self.unpack("release")

    def start(self) -> None:
        """Bring up what is beside the agent."""
        self.kubelet.start()
        self.machine.on_network(self.api.start)
        node = {"metadata": {"name": HOSTNAME}}
        self.ask(lambda client: client.ask("POST", path("nodes"), node))
        (self.machine.root / "etc/vgpu-agent").mkdir()
        self.api.write_kubeconfig(self.machine.root / "etc/vgpu-agent/kubeconfig")

    def stop(self) -> None:
        self.kubelet.stop()
        self.api.stop()

    def ask(self, question: Callable[[ApiClient], object]) -> object:
        """Ask the API server."""
        return self.machine.on_network(lambda: question(ApiClient(self.api.url)))

    def annotations(self) -> dict[str, str]:
        node = self.ask(lambda client: client.get("nodes", HOSTNAME))
        assert isinstance(node, dict)
        return dict(node["metadata"].get("annotations") or {})

    def unpack(self, name: str, change: Callable[[Path], object] = lambda _: None) -> str:
        """A release on the machine, as the tarball unpacks; where."""
        folder = self.machine.root / "root" / name
        shutil.copytree(self._frozen, folder / "vgpu-agent")
        for script in ("install.sh", "uninstall.sh"):
            shutil.copy(ROOT / "packaging/tarball" / script, folder / script)
        change(folder / "vgpu-agent")
        return f"/root/{name}"

    def settings(self) -> Path:
        return self.machine.root / "etc/vgpu-agent/vgpu-agent.env"

    def serves(self) -> bool:
        """Registered with kubelet, and published."""
        vgpus = self.kubelet.node_status().allocatable.get(RESOURCE, 0)
        return vgpus == 20 and REGISTER in self.annotations()

    def pid(self) -> int:
        return int(self.machine.shown(UNIT, "MainPID"))

    def program(self) -> str:
        """What the service runs, without links."""
        return self.machine.ok("readlink", f"/proc/{self.pid()}/exe").strip()

    def current(self) -> str:
        return str((self.machine.root / "opt/vgpu-agent/current").readlink())
