"""What the cases need from a node, whichever kubelet and API server it consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kube_api import KubeApi

RESOURCE = "nvidia.com/gpu"

# What not every node lets a test do; a case that needs one is skipped where it is missing.
SEES_STARTS = "show what its runtime is asked to start"
STOPS_KUBELET = "stop and start its kubelet"
LOSES_FILES = "have its kubelet's files replaced"
REBOOTS = "lose its containers, as a machine that reboots"
STOPS_API = "stop and start its API server"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a container was started with, without what kubelet adds to every container.

    With SEES_STARTS it is all that the runtime was asked for, else what plugins gave. env: in
    order; a name may come twice, and then the later one wins. mounts: (container path, host path,
    read only). devices: (container path, host path, permissions).
    """

    env: tuple[tuple[str, str], ...]
    mounts: tuple[tuple[str, str, bool], ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    def gives_the_same_as(self, other: "ContainerView") -> bool:
        """Whether a process would see no difference; kubelet mixes the order of variables."""
        return (dict(self.env), set(self.mounts), set(self.devices), self.annotations) == (
            dict(other.env),
            set(other.mounts),
            set(other.devices),
            other.annotations,
        )


class NodeUnderTest(Protocol):
    """A node with a kubelet and an API server; it outlives the single case."""

    kind: str  # for people
    name: str
    kubelet_socket: Path
    pod_resources_socket: Path
    kubelet_log: Path | None
    agent_kubeconfig: Path
    api: KubeApi  # as an administrator
    abilities: frozenset[str]
    why_not: Mapping[str, str]  # of abilities that are missing, and could be there
    fails_pods_when_it_starts: bool  # its kubelet may: kubernetes#118559, kubernetes#124345

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        """Every start of this container, oldest first; a node may miss those nobody looked at."""

    def lose_containers(self) -> None:
        """Forget every container without a word to kubelet, which is stopped."""

    def stop_kubelet(self) -> None:
        """End kubelet as a crash does; its files stay."""

    def start_kubelet(self) -> None:
        """Start it again and wait until it takes registrations."""

    def stop_api(self) -> None:
        """End the API server as a crash does; its data stay."""

    def start_api(self) -> None:
        """Start it again, at the same address, and wait until it serves."""


def without_kubelets_own(
    env: Sequence[tuple[str, str]],
    mounts: Sequence[tuple[str, str, bool]],
    devices: Sequence[tuple[str, str, str]],
    annotations: Mapping[str, str],
) -> ContainerView:
    """Leave out what every container gets from kubelet: services, hosts file, its annotations."""
    own_mounts = ("/etc/hosts", "/dev/termination-log")
    return ContainerView(
        env=tuple((name, value) for name, value in env if not name.startswith("KUBERNETES_")),
        mounts=tuple(mount for mount in mounts if mount[0] not in own_mounts),
        devices=tuple(devices),
        annotations={k: v for k, v in annotations.items() if not k.startswith("io.kubernetes.")},
    )
