"""From claims to what the container gets: the tables of HAMi's Allocate, as one pure function.

`base_grant` is what makes a container see devices, whoever decides on them; `plan_grant` adds
limits, hook library and cache directory. Source: NVIDIA k8s-device-plugin,
internal/plugin/server.go (the base response), and HAMi, nvinternal/plugin/server.go (the rest).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.domain.cdi import (
    ANNOTATION_PREFIX,
    EVERY,
    GPU_CLASS,
    IMEX_CLASS,
    annotation_key,
    qualified,
)
from agent.domain.claims import TO_ALLOCATE
from agent.domain.gpu import Gpu
from agent.domain.grants import Claim, DeviceNode, Grant, Mount
from agent.domain.pods import Container
from agent.errors import MalformedAnnotation

ENVVAR, VOLUME_MOUNTS = "envvar", "volume-mounts"
CDI_ANNOTATIONS, CDI_CRI = "cdi-annotations", "cdi-cri"
CDI_STRATEGIES = frozenset({CDI_ANNOTATIONS, CDI_CRI})
VISIBLE_DEVICES, IMEX_CHANNELS = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS"
VOLUME_MOUNTS_ROOT = "/var/run/nvidia-container-devices"
PRELOAD_PATH = "/etc/ld.so.preload"
LIMITS_PATH = (
    "/etc/vgpu.limits"  # not in the container's own directory: HAMi <= 2.9 counts files there
)
LICENSE_PATH = "/tmp/license"  # noqa: S108 - where HAMi's library looks, in the container
VALIDATOR_PATH = "/usr/bin/vgpuvalidator"
TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


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
    cdi_annotation_prefix: str = ANNOTATION_PREFIX
    cdi_absent: frozenset[str] = frozenset()  # classes of which the node has nothing
    imex_channels: tuple[int, ...] = ()
    oversubscribed: bool = False  # more memory is promised than there is
    disable_core_limit: bool = False
    hook_log_level: str = ""  # empty: not set
    allow_disable_control: bool = False  # a pod's author may switch the limits off, as in HAMi
    any_value_disables: bool = False  # with any value of the variable that is not false

    @property
    def hook_library(self) -> str:
        """Where the container finds the hook library."""
        return f"{self.hook_dir}/libvgpu.so"

    @property
    def by_cdi_alone(self) -> bool:
        """Whether CDI does all of it: then nothing else names a device."""
        return CDI_STRATEGIES.issuperset(self.device_list_strategy)

    @property
    def extras(self) -> tuple[str, ...]:
        """What every container with a GPU gets as well; also classes of CDI devices."""
        wanted = (("gdrcopy", self.gdrcopy_enabled), ("gds", self.gds_enabled),
                  ("mofed", self.mofed_enabled))  # fmt: skip
        return tuple(name for name, enabled in wanted if enabled)


@dataclass(frozen=True, slots=True)
class Named:
    """A device as the container runtime is told of it."""

    uuid: str
    index: str  # "0"; "0:1" of a MIG device
    nodes: tuple[str, ...] = ()  # /dev paths of its own, without the dev root

    @staticmethod
    def of(gpu: Gpu) -> "Named":
        """A whole GPU."""
        nodes = () if gpu.minor is None else (f"/dev/nvidia{gpu.minor}",)
        return Named(gpu.uuid, str(gpu.index), nodes)


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


def asks_for_no_limits(container: Container, policy: GrantPolicy) -> bool:
    """Whether the pod's author wants the limits switched off."""
    value = container.control_disabled
    if value is None:
        return False
    return value not in FALSE if policy.any_value_disables else value in TRUE


def control_disabled(container: Container, policy: GrantPolicy) -> bool:
    """Whether the pod's author has switched the limits off and may do so."""
    return policy.allow_disable_control and asks_for_no_limits(container, policy)


def refuse_negative(claims: Sequence[Claim]) -> None:
    """Raise MalformedAnnotation for a claim that no limit can be made of."""
    for claim in claims:
        if claim.memory_mib < 0 or claim.core_percent < 0:
            raise MalformedAnnotation(
                f"the annotation {TO_ALLOCATE} sets {claim.memory_mib} MiB and "
                f"{claim.core_percent} % aside on {claim.uuid}: a negative limit would be no limit "
                "at all; check what writes it, and delete the pod so that it is scheduled again"
            )


# --- the base response ---------------------------------------------------------------------------


def base_grant(
    devices: Sequence[Named],
    policy: GrantPolicy,
    *,
    response_id: str,
    common_nodes: Sequence[str] = (),
) -> Grant:
    """What makes a container see these devices, each once.

    `response_id`: tells this answer from others in annotations, e.g. a uuid. `common_nodes`: device
    nodes of all GPUs that exist, as in `HostPaths.device_nodes`.
    """
    by_index = policy.device_id_strategy == "index"
    ids = list(dict.fromkeys(one.index if by_index else one.uuid for one in devices))
    cdi = _cdi_names(ids, policy)
    in_annotation = CDI_ANNOTATIONS in policy.device_list_strategy
    named = Grant(
        annotations={annotation_key(policy.cdi_annotation_prefix, response_id): ",".join(cdi)}
        if in_annotation
        else {},
        cdi_devices=tuple(cdi) if CDI_CRI in policy.device_list_strategy else (),
    )
    if policy.by_cdi_alone:
        return named
    return replace(
        named,
        envs=_base_envs(ids, policy),
        mounts=_base_mounts(ids, policy),
        device_nodes=_device_nodes(devices, common_nodes, policy),
    )


def _cdi_names(ids: Sequence[str], policy: GrantPolicy) -> list[str]:
    return [
        *(qualified(GPU_CLASS, id_) for id_ in ids),
        *(qualified(IMEX_CLASS, str(channel)) for channel in policy.imex_channels),
        *(qualified(extra, EVERY) for extra in policy.extras if extra not in policy.cdi_absent),
    ]


def _base_envs(ids: Sequence[str], policy: GrantPolicy) -> dict[str, str]:
    envs: dict[str, str] = {}
    if ENVVAR in policy.device_list_strategy:
        envs[VISIBLE_DEVICES] = ",".join(ids)
        if policy.imex_channels:
            envs[IMEX_CHANNELS] = ",".join(map(str, policy.imex_channels))
    if VOLUME_MOUNTS in policy.device_list_strategy:  # with both the mounts decide, as upstream
        envs[VISIBLE_DEVICES] = VOLUME_MOUNTS_ROOT
    for name in policy.extras:
        envs[f"NVIDIA_{name.upper()}"] = "enabled"
    return envs


def _base_mounts(ids: Sequence[str], policy: GrantPolicy) -> tuple[Mount, ...]:
    if VOLUME_MOUNTS not in policy.device_list_strategy:
        return ()
    names = [*ids, *(f"imex/{channel}" for channel in policy.imex_channels)]
    return tuple(
        Mount(f"{VOLUME_MOUNTS_ROOT}/{name}", "/dev/null", read_only=False) for name in names
    )


def _device_nodes(
    devices: Sequence[Named], common_nodes: Sequence[str], policy: GrantPolicy
) -> tuple[DeviceNode, ...]:
    if not policy.pass_device_specs:
        return ()
    own = [node for one in devices for node in one.nodes]
    channels = [imex_node(channel) for channel in policy.imex_channels]
    root = policy.dev_root.rstrip("/")
    return tuple(
        DeviceNode(path, root + path) for path in dict.fromkeys([*common_nodes, *own, *channels])
    )


def imex_node(channel: int) -> str:
    """The device node of an IMEX channel."""
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"


# --- limits --------------------------------------------------------------------------------------


def _limit_envs(claims: Sequence[Claim], policy: GrantPolicy) -> dict[str, str]:
    envs = {
        f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{claim.memory_mib}m"
        for place, claim in enumerate(claims)
    }
    envs["CUDA_DEVICE_SM_LIMIT"] = str(claims[0].core_percent)
    if policy.oversubscribed:
        envs["CUDA_OVERSUBSCRIBE"] = "true"
    if policy.hook_log_level:
        envs["LIBCUDA_LOG_LEVEL"] = policy.hook_log_level
    if policy.disable_core_limit:
        envs["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return envs


def _hook_mounts(container: Container, paths: HostPaths, policy: GrantPolicy) -> list[Mount]:
    mounts = [
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
    base = base_grant(
        [Named.of(gpu) for gpu in gpus],
        policy,
        response_id=cache_name.removesuffix(".cache"),
        common_nodes=paths.device_nodes,
    )
    counted = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{policy.hook_dir}/{cache_name}"}
    return replace(
        base,
        envs={**base.envs, **_limit_envs(claims, policy), **counted},
        mounts=(*base.mounts, *_hook_mounts(container, paths, policy)),
    )
