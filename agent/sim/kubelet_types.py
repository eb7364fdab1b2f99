"""What goes into the stand-in kubelet and what comes out of it: plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BEHAVIOURS = ("1.20", "1.22", "1.36", "1.37")  # see StandInKubelet
NEWER = ("1.36", "1.37")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The part of a container in a pod's spec that concerns devices.

    resources: limits of extended resources, e.g. {"nvidia.com/gpu": 1}. env: the pod author's.
    sidecar: an init container with restartPolicy Always; it keeps its devices.
    """

    name: str
    resources: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that is bound to the node."""

    uid: str
    namespace: str
    name: str
    containers: Sequence[ContainerSpec]
    init_containers: Sequence[ContainerSpec] = ()

    def container(self, name: str) -> ContainerSpec:
        """The container of this name. Raises KeyError."""
        for container in (*self.init_containers, *self.containers):
            if container.name == name:
                return container
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class MountGrant:
    """A mount that the runtime is told to make."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """A device node that the runtime is told to pass on."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGrant:
    """What the runtime is told about one container.

    cri_env: as in the CRI request, plugin's variables first and the pod author's after them, equal
    names kept. env: what a process sees of it (the later one wins).
    """

    cri_env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[MountGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    device_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by resource

    @property
    def env(self) -> dict[str, str]:
        """The environment of the container's process, as far as kubelet decides it."""
        return dict(self.cri_env)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitResult:
    """Kubelet's decision on a pod; `reason` and `message` are those of its status when refused."""

    ok: bool
    reason: str = ""
    message: str = ""
    containers: Mapping[str, ContainerGrant] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the kubelet, for assertions. kind: see `StandInKubelet`."""

    kind: str
    resource: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceView:
    """One resource as kubelet sees it now."""

    healthy: frozenset[str]
    unhealthy: frozenset[str]
    connected: bool  # a plugin is registered and its stream is open
    in_use: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Number of devices by resource, as in `status.capacity` and `status.allocatable`."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


class PodRejected(Exception):
    """Why a container cannot have its devices; becomes the pod's status."""

    def __init__(self, message: str, reason: str = "UnexpectedAdmissionError") -> None:
        super().__init__(message)
        self.reason = reason
