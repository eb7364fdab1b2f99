"""What the cases need from a node, whichever kubelet and API server it consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kube_api import KubeApi

RESOURCE = "nvidia.com/gpu"

# What not every node lets a test do; a case that needs one is skipped where it is missing.
SEES_CONTAINERS = "show what a container was started with"
ENDS_CONTAINERS = "let a container end"
STOPS_KUBELET = "stop and start its kubelet"
LOSES_FILES = "have its kubelet's files replaced"
REBOOTS = "lose its containers, as a machine that reboots"
STOPS_API = "stop and start its API server"
API_FAULTS = "have its API server misbehave on demand"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a runtime was asked to start, without what kubelet adds to every container.

    env: in order; a name may come twice, and then the later one wins. mounts: (container path,
    host path, read only). devices: (container path, host path, permissions).
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

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        """Every start of this container, oldest first."""

    def end_container(self, pod_uid: str, name: str, exit_code: int) -> None:
        """Let it end by itself; kubelet will start it again as the pod says."""

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

    @property
    def api_server(self) -> Any:
        """The stand-in `agent.sim.apiserver.ApiServer`, with its faults; only with API_FAULTS."""


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
