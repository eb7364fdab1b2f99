"""From claims to what the container gets: the tables of HAMi's Allocate, as one pure function.

Source: NVIDIA k8s-device-plugin, internal/plugin/server.go (the base response), and HAMi,
nvinternal/plugin/server.go (limits, hook library, cache directory).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.domain.claims import TO_ALLOCATE
from agent.domain.gpu import Gpu
from agent.domain.grants import Claim, DeviceNode, Grant, Mount
from agent.domain.pods import Container
from agent.errors import MalformedAnnotation

ENVVAR, VOLUME_MOUNTS = "envvar", "volume-mounts"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
VOLUME_MOUNTS_ROOT = "/var/run/nvidia-container-devices"
PRELOAD_PATH = "/etc/ld.so.preload"
LIMITS_PATH = (
    "/etc/vgpu.limits"  # not in the container's own directory: HAMi <= 2.9 counts files there
)
LICENSE_PATH = "/tmp/license"  # noqa: S108 - where HAMi's library looks, in the container
VALIDATOR_PATH = "/usr/bin/vgpuvalidator"
TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPolicy:
    """How this node hands GPUs to containers: the same for all of them."""

    hook_dir: str = "/usr/local/vgpu"  # in the container
    lock_dir: str = "/tmp/vgpulock"  # in the container # noqa: S108 - HAMi-core's fixed path
    device_list_strategy: tuple[str, ...] = (ENVVAR,)
    device_id_strategy: str = "uuid"  # uuid | index
    pass_device_specs: bool = False
    dev_root: str = "/"  # on the host
    gds_enabled: bool = False
    mofed_enabled: bool = False
    gdrcopy_enabled: bool = False
    oversubscribed: bool = False  # more memory is promised than there is
    disable_core_limit: bool = False
    hook_log_level: str = ""  # empty: not set
    allow_disable_control: bool = True  # a pod's author may switch the limits off, as in HAMi

    @property
    def hook_library(self) -> str:
        """Where the container finds the hook library."""
        return f"{self.hook_dir}/libvgpu.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """What is mounted into one container, as paths of the host."""

    library: str
    preload: str
    cache_dir: str
    lock_dir: str
    limits: str = ""  # empty: the environment alone says what the limits are
    license: str = ""  # empty: there is none
    validator: str = ""
    device_nodes: tuple[str, ...] = ()  # /dev paths, without the dev root, that exist


def control_disabled(container: Container, policy: GrantPolicy) -> bool:
    """Whether the pod's author has switched the limits off and may do so."""
    return policy.allow_disable_control and container.control_disabled in TRUE


def refuse_negative(claims: Sequence[Claim]) -> None:
    """Raise MalformedAnnotation for a claim that no limit can be made of."""
    for claim in claims:
        if claim.memory_mib < 0 or claim.core_percent < 0:
            raise MalformedAnnotation(
                f"the annotation {TO_ALLOCATE} sets {claim.memory_mib} MiB and "
                f"{claim.core_percent} % aside on {claim.uuid}: a negative limit would be no limit "
                "at all; check what writes it, and delete the pod so that it is scheduled again"
            )


def _device_ids(gpus: Sequence[Gpu], policy: GrantPolicy) -> list[str]:
    by_index = policy.device_id_strategy == "index"
    return list(dict.fromkeys(str(gpu.index) if by_index else gpu.uuid for gpu in gpus))


def _envs(claims: Sequence[Claim], ids: Sequence[str], policy: GrantPolicy) -> dict[str, str]:
    envs: dict[str, str] = {}
    if ENVVAR in policy.device_list_strategy:
        envs[VISIBLE_DEVICES] = ",".join(ids)
    if VOLUME_MOUNTS in policy.device_list_strategy:  # with both the mounts decide, as upstream
        envs[VISIBLE_DEVICES] = VOLUME_MOUNTS_ROOT
    for enabled, name in (
        (policy.gdrcopy_enabled, "NVIDIA_GDRCOPY"),
        (policy.gds_enabled, "NVIDIA_GDS"),
        (policy.mofed_enabled, "NVIDIA_MOFED"),
    ):
        if enabled:
            envs[name] = "enabled"
    for place, claim in enumerate(claims):
        envs[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{claim.memory_mib}m"
    envs["CUDA_DEVICE_SM_LIMIT"] = str(claims[0].core_percent)
    if policy.oversubscribed:
        envs["CUDA_OVERSUBSCRIBE"] = "true"
    if policy.hook_log_level:
        envs["LIBCUDA_LOG_LEVEL"] = policy.hook_log_level
    if policy.disable_core_limit:
        envs["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return envs


def _mounts(
    container: Container, ids: Sequence[str], paths: HostPaths, policy: GrantPolicy
) -> list[Mount]:
    mounts = []
    if VOLUME_MOUNTS in policy.device_list_strategy:
        mounts += [
            Mount(f"{VOLUME_MOUNTS_ROOT}/{id_}", "/dev/null", read_only=False) for id_ in ids
        ]
    mounts += [
        Mount(policy.hook_library, paths.library),
        Mount(policy.hook_dir, paths.cache_dir, read_only=False),
        Mount(policy.lock_dir, paths.lock_dir, read_only=False),
    ]
    if not control_disabled(container, policy):
        mounts.append(Mount(PRELOAD_PATH, paths.preload))
        if paths.limits:
            mounts.append(Mount(LIMITS_PATH, paths.limits))
    if paths.license:
        mounts.append(Mount(LICENSE_PATH, paths.license))
        if paths.validator:
            mounts.append(Mount(VALIDATOR_PATH, paths.validator))
    return mounts


def _device_nodes(
    gpus: Sequence[Gpu], paths: HostPaths, policy: GrantPolicy
) -> tuple[DeviceNode, ...]:
    if not policy.pass_device_specs:
        return ()
    own = [f"/dev/nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
    root = policy.dev_root.rstrip("/")
    return tuple(
        DeviceNode(path, root + path) for path in dict.fromkeys([*paths.device_nodes, *own])
    )


def plan_grant(
    container: Container,
    claims: Sequence[Claim],
    gpus: Sequence[Gpu],
    *,
    paths: HostPaths,
    cache_name: str,
    policy: GrantPolicy,
) -> Grant:
    """The grant for a container: the same arguments always give the same one. Touches nothing.

    `claims` is not empty and `gpus` holds the GPU of each claim, in the same order. `cache_name` is
    the name of the shared region's file in the container's cache directory.

    Raises MalformedAnnotation for a negative limit.
    """
    refuse_negative(claims)
    ids = _device_ids(gpus, policy)
    envs = _envs(claims, ids, policy)
    envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{policy.hook_dir}/{cache_name}"
    return Grant(
        envs=envs,
        mounts=tuple(_mounts(container, ids, paths, policy)),
        device_nodes=_device_nodes(gpus, paths, policy),
    )
