"""How is a real kubelet run on a machine that is not a node, without changing that machine?"""

import json
import shutil
from pathlib import Path

from .build_peers import Peers
from .node_layouts import NodeLayout, inside
from .processes import Process, free_port

_NAMESPACE = Path(__file__).with_name("kubelet_namespace.sh")
START_S = 60
REMOTE_ONLY, REFUSES_CGROUP_V1 = 27, 35  # minors


class KubeletProcess:
    """A kubelet that registers one node and runs its pods on a stand-in runtime.

    Its /var/lib/kubelet is `root`, so the device plugins' directory is `plugins` for everybody
    outside. It keeps to loopback, touches no cgroups, iptables or kernel settings, and everything
    outside the state directory is read-only to it (see kubelet_namespace.sh).

    Args:
        peers: the binaries.
        state: a directory of its own; short, for the sockets in it.
        node: name of the node it registers.
        kubeconfig: how it reaches the API server; None: there is none, and its pods are the files
            in `static_pods`.
        runtime: socket of the container runtime; with a layout, where it is within `host`.
        layout: whose flags and paths it has. Its files are below `host`; whoever is to see the
            node as it is starts within `on_the_node`.
    """

    def __init__(
        self,
        peers: Peers,
        *,
        state: Path,
        node: str,
        kubeconfig: Path | None,
        runtime: Path,
        layout: NodeLayout | None = None,
    ) -> None:
        self.minor = peers.minor
        self.root = state / "kubelet"
        self.host = state / "host"
        self.plugins = self.root / "device-plugins"
        self.socket = self.plugins / "kubelet.sock"
        self.checkpoint = self.plugins / "kubelet_internal_checkpoint"
        self.pod_resources = self.root / "pod-resources" / "kubelet.sock"
        self.root.mkdir()
        (state / "resolv.conf").touch()
        config = state / "kubelet.json"
        self.static_pods = state / "static-pods"
        self.static_pods.mkdir()
        static = {"staticPodPath": str(self.static_pods), "fileCheckFrequency": "500ms"}
        settings = _configuration(state) | (static if layout or not kubeconfig else {})
        settings |= {"failCgroupV1": False} if peers.minor >= REFUSES_CGROUP_V1 else {}
        if layout:
            self.static_pods = inside(self.host, layout.static_pods)
            settings |= layout.config
        config.write_text(json.dumps(settings))
        kubelet = [
            str(peers.kubelet),
            f"--config={config}",
            *([f"--kubeconfig={kubeconfig}"] if kubeconfig else []),
            f"--hostname-override={node}",
            f"--cert-dir={state / 'pki'}",
            "--node-ip=127.0.0.1",
            *(["--container-runtime=remote"] if peers.minor < REMOTE_ONLY else []),
            f"--container-runtime-endpoint=unix://{layout.runtime if layout else runtime}",
            *((f"--root-dir={layout.root_dir}", *layout.flags) if layout else ()),
        ]
        unshare = shutil.which("unshare") or "unshare"
        self.on_the_node = [
            *(unshare, "--mount", "--propagation", "private", str(_NAMESPACE), str(state)),
        ]
        self.process = Process([*self.on_the_node, *kubelet], log=state / "kubelet.log")

    def start(self) -> None:
        """Start it and wait until device plugins can register."""
        self.socket.unlink(missing_ok=True)  # what a killed one leaves; a new one makes it anew
        self.process.start()
        self.process.wait_until(
            self.socket.exists, within_s=START_S, what="the kubelet accepts device plugins"
        )

    def stop(self) -> None:
        """End it at once; nothing of it outlives the process."""
        self.process.kill()

    def restart(self) -> None:
        """What a kubelet upgrade or crash looks like to everybody else."""
        self.stop()
        self.start()


def _configuration(state: Path) -> dict[str, object]:
    """KubeletConfiguration, kubelet.config.k8s.io/v1beta1; only what differs from the defaults."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": free_port(),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # of nobody: no login is configured
        # Leave the machine alone.
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "resolvConf": str(state / "resolv.conf"),
        "volumePluginDir": str(state / "volume-plugins"),
        "evictionHard": {},
        # Nobody runs the controllers that would attach volumes.
        "enableControllerAttachDetach": False,
        # A test waits for these.
        "nodeStatusUpdateFrequency": "1s",
        "syncFrequency": "1s",
    }
