"""Which systemd unit runs kubelet, and which the container runtime?

k3s, RKE2 and k0s run both below their own process, so there is no unit of kubelet's or
containerd's; in snaps (MicroK8s, Canonical Kubernetes) their units have other names.
Sources: k3s, install.sh and pkg/agent/config; RKE2, bundle/lib/systemd/system; k0s, pkg/install;
MicroK8s and k8s-snap, snap/snapcraft.yaml.
"""

from agent.doctor.host import Host

FOLDERS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
K3S, RKE2 = ("k3s", "k3s-agent"), ("rke2-server", "rke2-agent")
K0S, SNAPS = ("k0sworker", "k0scontroller"), ("snap.microk8s.daemon-kubelite", "snap.k8s.kubelet")
KUBELETS = ("kubelet", *K3S, *RKE2, *K0S, *SNAPS)
ALONE = {"containerd": "containerd", "cri-o": "crio", "docker": "docker"}


def installed(host: Host, *units: str) -> str:
    """The first of these that the host has; else the first of all."""
    return next(
        (
            unit
            for unit in units
            for folder in FOLDERS
            if host.path(f"{folder}/{unit}.service").exists()
        ),
        units[0],
    )


def of_kubelet(host: Host) -> str:
    """The unit in which kubelet runs."""
    return installed(host, *KUBELETS)


def of_runtime(host: Host, kind: str) -> str:
    """The unit in which a container runtime runs."""
    own = {"k3s": K3S, "rke2": RKE2}.get(kind)
    return installed(host, *own) if own else ALONE[kind]


def restart_kubelet(host: Host) -> str:
    """Start kubelet anew, and look at what it says."""
    unit = of_kubelet(host)
    return f"systemctl restart {unit}; journalctl -u {unit} -n 50"
