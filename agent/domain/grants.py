"""What a container receives: claims of the scheduler turned into env, mounts and device nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claim:
    """One vGPU as the scheduler decided it for a container."""

    uuid: str  # physical GPU
    vendor: str  # "NVIDIA"
    memory_mib: int  # 0: no limit
    core_percent: int  # 0 or >= 100: no limit


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path that the container sees."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file that the container may open."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer to one Allocate of one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantOwner:
    """Whose a grant turned out to be; empty: not told."""

    pod_uid: str = ""
    namespace: str = ""
    pod_name: str = ""
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRecord:
    """A grant as it is remembered, so that the same question gets the same answer after a crash."""

    pod_uid: str
    namespace: str
    pod_name: str
    container: str
    device_ids: tuple[str, ...]  # as kubelet asked, sorted
    claims: tuple[Claim, ...]
    grant: Grant
    granted_at_s: float  # unix time
    answered: bool = False  # kubelet got it; until then nobody but the log knows of the grant
    priority: int | None = None  # that its pod asked for; None: an older agent did not note it
    strict: bool = False  # its pod asked never to have more than its share
    owner_uid: str = ""  # the pod's own uid, where `pod_uid` is a name of the grant's (identities)

    @property
    def named(self) -> bool:
        """Whether it is known whose it is: a grant with a name of its own learns that later."""
        return self.pod_name != self.pod_uid
