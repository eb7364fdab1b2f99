"""How do k3s, kubeadm and k0s start a kubelet, and where on the node do they keep its things?

Flags and files as each writes them, for a kubelet 1.20, without those that would change the
machine (cgroups, ports, iptables: `KubeletProcess` sets these) or that need its own certificates.
Sources: k3s 1.20, pkg/daemons/agent, pkg/agent/config and pkg/agent/templates; kubeadm 1.20,
app/componentconfigs and app/phases/kubelet; k0s, pkg/component/worker/kubelet.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTAINERD_OF_K3S = """\
[plugins.opt]
  path = "/var/lib/rancher/k3s/agent/containerd"
[plugins.cri]
  stream_server_address = "127.0.0.1"
  enable_selinux = false
[plugins.cri.containerd]
  snapshotter = "overlayfs"
[plugins.cri.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.cri.containerd.runtimes."nvidia"]
  runtime_type = "io.containerd.runc.v2"
[plugins.cri.containerd.runtimes."nvidia".options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""
DEFAULT_IS_NVIDIA = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """Paths are the node's own, where it is seen by kubelet and by the agent."""

    name: str
    runtime: str  # socket of the container runtime
    static_pods: str
    kubeconfig: str
    root_dir: str = "/var/lib/kubelet"
    flags: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)  # KubeletConfiguration
    files: Mapping[str, str] = field(default_factory=dict)

    def make(self, tree: Path) -> None:
        """Write its files and directories below `tree`, which becomes the node's root."""
        for folder in (
            *("/run", "/var/lib/kubelet", "/etc", self.static_pods, self.root_dir),
            *(str(Path(name).parent) for name in (self.runtime, self.kubeconfig)),
        ):
            inside(tree, folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            inside(tree, name).parent.mkdir(parents=True, exist_ok=True)
            inside(tree, name).write_text(content)


def inside(tree: Path, path: str) -> Path:
    """Where a path of the node is for those outside."""
    return tree / path.lstrip("/")


K3S = NodeLayout(
    name="k3s",
    runtime="/run/k3s/containerd/containerd.sock",
    static_pods="/var/lib/rancher/k3s/agent/pod-manifests",
    kubeconfig="/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    flags=(
        "--authentication-token-webhook=true",
        "--authorization-mode=Webhook",
        "--anonymous-auth=false",
        "--cgroup-driver=cgroupfs",
        "--cloud-provider=external",
        "--cluster-dns=10.43.0.10",
        "--cluster-domain=cluster.local",
        "--eviction-minimum-reclaim=imagefs.available=10%,nodefs.available=10%",
        "--fail-swap-on=false",
        "--node-labels=",
        "--pod-manifest-path=/var/lib/rancher/k3s/agent/pod-manifests",
        "--read-only-port=0",
        "--serialize-image-pulls=false",
    ),
    files={
        "/etc/systemd/system/k3s.service": "",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml": CONTAINERD_OF_K3S,
    },
)
KUBEADM = NodeLayout(
    name="kubeadm",
    runtime="/run/containerd/containerd.sock",
    static_pods="/etc/kubernetes/manifests",
    kubeconfig="/etc/kubernetes/kubelet.conf",
    config={
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"cacheTTL": "0s", "enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "systemd",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "healthzBindAddress": "127.0.0.1",
        "imageMinimumGCAge": "0s",
        "runtimeRequestTimeout": "0s",
        "staticPodPath": "/etc/kubernetes/manifests",
        "volumeStatsAggPeriod": "0s",
    },
    files={
        "/etc/systemd/system/kubelet.service": "",
        "/etc/containerd/config.toml": DEFAULT_IS_NVIDIA,
        "/var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--container-runtime=remote '
        '--container-runtime-endpoint=/run/containerd/containerd.sock"\n',
    },
)
K0S = NodeLayout(
    name="k0s",
    runtime="/run/k0s/containerd.sock",
    static_pods="/var/lib/k0s/manifests-static",
    kubeconfig="/var/lib/k0s/kubelet.conf",
    root_dir="/var/lib/k0s/kubelet",
    config={"staticPodPath": "/var/lib/k0s/manifests-static"},
)
