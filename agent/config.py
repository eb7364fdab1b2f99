"""Config: every setting of the daemon, checked once, with its default and its unit.

Built by `agent.settings` from flags, environment and files; taken apart by `agent.app`. Nothing
below imports this module: services and adapters receive plain arguments. What a value may be is
said once, in `RULES`: `Config` holds every instance to them, `agent.settings` uses the same rules
to say which flag, variable or file key is wrong.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.domain.asked import VOLCANO, AmountNames
from agent.domain.cdi import ANNOTATION_PREFIX
from agent.domain.config_choice import FALLBACKS, NAMED, SINGLE, ConfigChoice
from agent.domain.gpu import Sharing
from agent.domain.mig import Geometries
from agent.domain.nvidia_config import NO_PATTERNS, NO_REPLICATION, Replication, ResourcePatterns
from agent.domain.slice_choice import GPUS as CHOICES_OF_GPUS
from agent.domain.slice_choice import PLACEMENTS
from agent.domain.slices import SliceSize, objection_to, offers
from agent.domain.volcano_units import LARGEST_FACTOR, LONG, SHORT
from agent.errors import ConfigError

REGISTER_FORMATS = ("json", "csv9", "csv7")
IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # caused by applications, not by the card
ALLOWED_PROGRAMS = (  # of the host, that belong to the driver or to its display
    *("nvidia-persistenced", "nvidia-smi", "nv-hostengine", "dcgm-exporter"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "Xorg", "Xwayland", "gnome-shell"),
)
ALL_XIDS = frozenset(range(1024))  # the highest one NVIDIA documents is below 200
DAY_S = 86_400.0
UNIX_PATH_BYTES = 107  # sun_path without its closing zero

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_RESOURCE = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
MAX_NAME_CHARS, MAX_RESOURCE_CHARS = 253, 63


@dataclass(frozen=True, slots=True)
class Between:
    """A number in a range, both ends included."""

    lowest: float
    highest: float
    unit: str = ""

    def objection(self, value: object) -> str:
        """Why the value cannot be, and what to do; empty: it can."""
        if isinstance(value, int | float) and self.lowest <= value <= self.highest:
            return ""
        return f"it must be {self.accepts}; choose a value in that range"

    @property
    def accepts(self) -> str:
        """For the manual."""
        return f"{self.lowest:.10g} to {self.highest:.10g}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A word, or a tuple of words, from a list; `others` says why some are not in it."""

    choices: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)

    def objection(self, value: object) -> str:
        """Why the value cannot be, and what to do; empty: it can."""
        for word in value if isinstance(value, tuple) else (value,):
            if word in self.others:
                return self.others[str(word)]
            if word not in self.choices:
                return f"the choices are {self.accepts}; use one of them"
        return "" if value != () else f"it is empty; use {self.accepts}"

    @property
    def accepts(self) -> str:
        """For the manual."""
        return ", ".join(choice or '""' for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Fits:
    """Anything about which `objection` has nothing to say."""

    objection: Callable[[object], str]
    accepts: str


Rule = Between | OneOf | Fits


def _node_name(value: object) -> str:
    text = str(value)
    if not text:
        return (
            "the node's name must be known: set --node-name or NODE_NAME to the name that "
            "`kubectl get nodes` shows for this machine"
        )
    if len(text) > MAX_NAME_CHARS or not _SUBDOMAIN.fullmatch(text):
        return (
            "that is no name of a Kubernetes node (lower-case letters, digits, - and .); set "
            "--node-name or NODE_NAME to the name that `kubectl get nodes` shows for this machine"
        )
    return ""


def _resource_name(value: object) -> str:
    text = str(value)
    domain = text.partition("/")[0]
    fits = len(text) <= MAX_RESOURCE_CHARS and _RESOURCE.fullmatch(text)
    if fits and not domain.endswith("kubernetes.io") and not domain.startswith("requests."):
        return ""
    return (
        "kubelet takes only names like nvidia.com/gpu: a domain that is not kubernetes.io, a "
        f"slash and a name, at most {MAX_RESOURCE_CHARS} characters; use the name the scheduler is "
        "configured with (resourceCountName)"
    )


def _amount_name(value: object) -> str:
    text = str(value)
    domain, _, name = text.partition("/")
    fits = len(domain) <= MAX_NAME_CHARS and len(name) <= MAX_RESOURCE_CHARS  # kubelet gets none
    if not text or (fits and _RESOURCE.fullmatch(text)):
        return ""
    return (
        "containers can only ask for names like nvidia.com/gpumem: a domain, a slash and a name of "
        f"at most {MAX_RESOURCE_CHARS} characters; use the one of the scheduler's configuration"
    )


def _absolute(value: object) -> str:
    if value is None or Path(str(value)).is_absolute():
        return ""
    return "the path must be absolute (begin with /); write it in full"


def _socket_path(value: object) -> str:
    if len(str(value).encode()) > UNIX_PATH_BYTES:
        return f"a Unix socket path has at most {UNIX_PATH_BYTES} bytes; use a shorter directory"
    return _absolute(value)


def _runtime_dir(value: object) -> str:
    if len(str(value).encode()) > UNIX_PATH_BYTES - len("/control.sock"):
        return "the sockets in it would have paths that are too long; use a shorter directory"
    return _absolute(value)


_NODE_NAME = Fits(_node_name, "the name `kubectl get nodes` shows")
_RESOURCE_NAME = Fits(_resource_name, "domain/name")
_AMOUNT_NAME = Fits(_amount_name, "domain/name, or empty")
_PATH = Fits(_absolute, "absolute path")
_SOCKET = Fits(_socket_path, f"absolute path of at most {UNIX_PATH_BYTES} bytes")
_LABEL_KEY = re.compile(rf"({_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_PREFIX = re.compile(rf"{_SUBDOMAIN.pattern}/")
NO_MPS = Replication(fail_above_one=True)  # as NVIDIA's plugin: a client has one replica


def _annotation_prefix(value: object) -> str:
    if len(str(value)) <= MAX_NAME_CHARS and _DNS_PREFIX.fullmatch(str(value)):
        return ""
    return "an annotation begins with a domain and a slash; use one such as cdi.k8s.io/"


def _label(value: object) -> str:
    if isinstance(value, str) and _LABEL_KEY.fullmatch(value):
        return ""
    return (
        "a label has letters, digits, dashes, dots and underscores, after a domain and a slash; "
        "use one such as nvidia.com/device-plugin.config"
    )


def _imex(value: object) -> str:
    if value in (frozenset(), frozenset({0})):
        return ""
    return "NVIDIA's drivers have channel 0 for containers; use 0, or leave the setting out"


RULES: Mapping[str, Rule] = {
    "node_name": _NODE_NAME,
    "kubeconfig": _PATH,
    "config_srcdir": _PATH,
    "config_label": Fits(_label, "domain/name"),
    "fallback_strategies": OneOf(FALLBACKS),
    "resource_name": _RESOURCE_NAME,
    "mode": OneOf(
        ("hami", "slices", "volcano", "nvidia"),
        others={
            "mig": "GPUs are divided by MIG in mode hami; use --mode hami --operating-mode mig",
        },
    ),
    "slice_placement": OneOf(PLACEMENTS),
    "slice_gpus": OneOf(CHOICES_OF_GPUS),
    "unannotated": OneOf(("refuse", "slice")),
    "memory_factor": Between(0, LARGEST_FACTOR, "MiB"),
    "memory_ids": OneOf((SHORT, LONG)),
    "gpumem_name": _AMOUNT_NAME,
    "gpumem_percentage_name": _AMOUNT_NAME,
    "gpucores_name": _AMOUNT_NAME,
    "gpumem_factor": Between(0, LARGEST_FACTOR, "MiB"),
    "sharing.split_count": Between(1, 65_536, "vGPUs per GPU"),
    "sharing.memory_scaling": Between(0.01, 100),
    "sharing.core_scaling": Between(0.01, 100),
    "sharing.mode": OneOf(
        ("hami-core", "mig"),
        others={
            "mps": "GPUs are shared by MPS in mode nvidia only (sharing.mps); use hami-core",
        },
    ),
    "sharing.preconfigured_memory_mib": Between(0, 16_777_216, "MiB"),
    "hook_log_level": OneOf(("", "0", "1", "2", "3", "4")),
    "register_format": OneOf(REGISTER_FORMATS),
    "handshake": OneOf(("auto", "on", "off")),
    "kubelet_socket": _SOCKET,
    "pod_resources_socket": _SOCKET,
    "hook_path": _PATH,
    "host_hook_path": _PATH,
    "lock_dir": _PATH,
    "mig_apply_lock": _PATH,
    "state_dir": _PATH,
    "cache_gc_after_s": Between(10, 30 * DAY_S, "s"),
    "cache_gc_every_s": Between(1, DAY_S, "s"),
    "host_proc": _PATH,
    "host_cgroup": _PATH,
    "hami_library": OneOf(("missing", "replace", "off")),
    "process_every_s": Between(0.1, 3600, "s"),
    "device_list_strategy": OneOf(("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")),
    "device_id_strategy": OneOf(("uuid", "index")),
    "driver_root": _PATH,
    "dev_root": _PATH,
    "container_driver_root": _PATH,
    "cdi_spec_dir": _PATH,
    "cdi_hook_path": _PATH,
    "cdi_annotation_prefix": Fits(_annotation_prefix, "domain/"),
    "imex_channel_ids": Fits(_imex, "0"),
    "mig_strategy": OneOf(("none", "single", "mixed")),
    "shared_allocation_policy": OneOf(("distributed", "packed", "spread")),
    "mps_root": _PATH,
    "recovery_probes": Between(1, 1000, "probes"),
    "probe_every_s": Between(0.5, 3600, "s"),
    "allocate_budget_s": Between(0.1, 10, "s"),
    "runtime_dir": Fits(_runtime_dir, "absolute path of at most 90 bytes"),
    "accounting_every_s": Between(0.1, 3600, "s"),
    "bypass_every_s": Between(0.1, 3600, "s"),
    "owners_every_s": Between(0.1, 3600, "s"),
    "on_bypass": OneOf(("report", "evict")),
    "priority_from": OneOf(("pod", "region")),
    "limits_annotation": OneOf(("off", "lower", "any")),
    "log_format": OneOf(("auto", "logfmt", "json", "journal")),
    "log_level": OneOf(("debug", "info", "warning", "error")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of `vgpu-agent run`."""

    # who we are
    node_name: str
    kubeconfig: Path | None = None  # None: the pod's service account
    resource_name: str = "nvidia.com/gpu"
    config_file: Path | None = None  # what was read
    config_srcdir: Path | None = None  # of several, of which the Node's label chooses
    config_label: str = "nvidia.com/device-plugin.config"
    default_config: str = ""
    fallback_strategies: tuple[str, ...] = (NAMED, SINGLE)

    # how GPUs are shared
    mode: str = "hami"  # who decides which container gets what: a module of agent/modes each
    sharing: Sharing = field(default_factory=Sharing)
    slice_sizes: tuple[SliceSize, ...] = ()  # empty: equal parts, as many as the split count says
    slice_placement: str = "spread"
    slice_gpus: str = "one"
    gpumem_name: str = "nvidia.com/gpumem"  # which no claim may exceed; empty: claims are believed
    gpumem_percentage_name: str = "nvidia.com/gpumem-percentage"
    gpucores_name: str = "nvidia.com/gpucores"
    gpumem_factor: int = 1  # MiB of a unit of gpumem_name
    unannotated: str = "refuse"  # what a pod gets about which the scheduler has said nothing
    memory_factor: int = 0  # MiB of a unit of volcano.sh/vgpu-memory; 0: the smallest that works
    memory_ids: str = SHORT  # how those units are named
    disable_core_limit: bool = False
    allow_disable_control: bool = False  # whether a container's own CUDA_DISABLE_CONTROL counts
    hook_log_level: str = ""  # LIBCUDA_LOG_LEVEL for containers; empty: not set

    # what the scheduler reads
    register_format: str = "json"  # json: HAMi >= 2.8; csv9: 2.5 - 2.7; csv7: <= 2.4
    handshake: str = "auto"  # auto: answer it for the csv formats; on; off
    topology_score: bool = False
    clean_exit: bool = False

    # kubelet and host
    kubelet_socket: Path = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    hook_path: Path = Path("/usr/local")  # where containers see the hook: <hook_path>/vgpu
    host_hook_path: Path | None = None  # where the host has it; None: the same path
    hami_library: str = "missing"  # whether HAMi's name of the library is offered beside ours
    mig_geometries: tuple[Geometries, ...] = ()  # what slots of HAMi 2.5 to 2.9 mean
    mig_apply_lock: Path = Path("/tmp/hami/hami-mig-apply.lock")  # noqa: S108 - HAMi's path
    lock_dir: Path = Path("/tmp/vgpulock")  # noqa: S108 - the path HAMi-core's contract fixes
    state_dir: Path = Path("/var/lib/vgpu-agent")  # grant log, instance lock
    cache_gc_after_s: float = 300.0
    cache_gc_every_s: float = 30.0
    host_proc: Path = Path("/proc")  # which shows the processes of pods
    host_cgroup: Path = Path("/sys/fs/cgroup")
    kernel_limits: bool = True  # where the driver offers it, the kernel limits memory, too
    process_every_s: float = 2.0  # a process is judged when it is seen twice, within 5 s

    # how devices reach the container
    device_list_strategy: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = False
    driver_root: Path = Path("/")
    dev_root: Path | None = None  # None: the same as driver_root
    gds_enabled: bool = False
    mofed_enabled: bool = False
    gdrcopy_enabled: bool = False
    container_driver_root: Path = Path("/driver-root")  # the driver's root in our own container
    cdi_spec_dir: Path = Path("/var/run/cdi")
    cdi_hook_path: Path | None = None  # of the host; None: CDI files name no program
    cdi_disabled_hooks: tuple[str, ...] = ()
    cdi_annotation_prefix: str = ANNOTATION_PREFIX
    imex_channel_ids: frozenset[int] = frozenset()
    imex_required: bool = False

    # mode nvidia
    mig_strategy: str = "none"
    resource_patterns: ResourcePatterns = NO_PATTERNS
    time_slicing: Replication = NO_REPLICATION
    mps: Replication = NO_MPS
    mps_root: Path = Path("/run/nvidia/mps")
    shared_allocation_policy: str = "distributed"

    # GPU health
    fail_on_init_error: bool = False  # True: exit when there is no driver; False: wait for it
    ignored_xids: frozenset[int] = IGNORED_XIDS
    health_checks: bool = True  # False: XIDs are not looked at; probes go on
    recovery_probes: int = 3  # clean probes in a row that make a GPU healthy again
    probe_every_s: float = 10.0

    # Allocate
    allocate_budget_s: float = 2.0

    # observation
    metrics_address: str = ":9394"  # empty: no endpoint
    ready_standing_by: bool = False
    web_page: bool = True
    legacy_metrics: bool = False  # HAMi's names before 2.9 beside those of today
    metrics_per_process: bool = False
    runtime_dir: Path = Path("/run/vgpu-agent")  # of the sockets that `top` and `limit` use
    socket_group: str = ""  # who may read there; empty: root alone
    accounting_every_s: float = 5.0
    bypass_every_s: float = 3.0
    on_bypass: str = "report"
    owners_every_s: float = 30.0
    bypass_allow_programs: tuple[str, ...] = ALLOWED_PROGRAMS
    bypass_allow_namespaces: tuple[str, ...] = ("gpu-operator", "kube-system")

    # steering
    limits_annotation: str = "lower"  # whether a pod's annotation may change its limits, and how
    priority_from: str = "pod"  # or "region": as a process writes it, which HAMi believes
    priorities: bool = True  # containers of a higher priority come first
    core_lending: bool = True  # idle shares of GPU time are lent

    # what is written
    log_format: str = "auto"
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Hold every field to its rule.

        Raises ConfigError.
        """
        for name, rule in RULES.items():
            value: object = self
            for part in name.split("."):
                value = getattr(value, part)
            if objection := rule.objection(value):
                raise ConfigError(f"{name} is {str(value)!r}, but {objection}")
        if self.sharing.mode == "mig" and self.mode != "hami":
            raise ConfigError(
                f"the operating mode is mig, but in mode {self.mode} nobody decides on MIG "
                "instances: only mode hami divides GPUs; MIG that is there already is the matter "
                "of mode nvidia and its --mig-strategy"
            )
        if self.sharing.mode == "mig" and any("cdi" in one for one in self.device_list_strategy):
            raise ConfigError(
                "device_list_strategy names CDI devices, but in operating mode mig devices are "
                "made while kubelet waits, and no CDI file has them; use envvar or volume-mounts"
            )
        if objection := _together(self):
            raise ConfigError(objection)
        if self.mode == "slices" or self.slices_for_others:
            _check_slices(self)

    @property
    def slices_for_others(self) -> bool:
        """Whether pods that the scheduler has not annotated get slices."""
        return self.mode == "hami" and self.unannotated == "slice"

    @property
    def follows_cluster(self) -> bool:
        """Whether the API server says which pods there are; else kubelet does."""
        return self.mode in ("hami", "volcano")

    @property
    def limits_containers(self) -> bool:
        """Whether what containers get is limited by our hook."""
        return self.mode != "nvidia"

    @property
    def config_choice(self) -> ConfigChoice:
        """How one of several configurations is chosen."""
        return ConfigChoice(
            label=self.config_label,
            default=self.default_config,
            fallbacks=self.fallback_strategies,
        )

    @property
    def reads_topology(self) -> bool:
        """Whether anybody asks how GPUs are connected."""
        return self.topology_score or self.mode == "nvidia"

    @property
    def host_vgpu_dir(self) -> Path:
        """`<hook path>/vgpu` on the host."""
        return (self.host_hook_path or self.hook_path) / "vgpu"

    @property
    def host_directories(self) -> tuple[Path, ...]:
        """Those of the host's that a pod has mounted, whatever it is for."""
        return (
            self.kubelet_socket.parent,
            self.pod_resources_socket.parent,
            self.host_vgpu_dir,
            self.state_dir,
            self.runtime_dir,
        )

    @property
    def answers_handshake(self) -> bool:
        """Whether the scheduler's handshake is kept alive by us."""
        needed = self.mode == "volcano" or self.register_format != "json"
        return self.handshake == "on" or (self.handshake == "auto" and needed)

    @property
    def lock_key(self) -> str:
        """The Node's annotation by which the scheduler locks it."""
        return "hamivgpu" if self.mode == "volcano" else "hami.io/mutex.lock"

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Resources, beside the counted one, whose limit makes the scheduler list a container."""
        return ("volcano.sh/vgpu-memory",) if self.mode == "volcano" else ()

    @property
    def amounts(self) -> AmountNames:
        """By which resources containers ask for parts of a vGPU, and so the most of a claim."""
        if self.mode == "volcano":
            return VOLCANO
        return AmountNames(self.gpumem_name, self.gpumem_percentage_name, self.gpucores_name)


def _together(config: Config) -> str:
    """Why settings that are good by themselves do not fit each other; empty: they do."""
    shared = [
        name
        for name, sharing in (("timeSlicing", config.time_slicing), ("mps", config.mps))
        if sharing.resources
    ]
    if config.config_srcdir is not None and config.mode != "nvidia":
        return (
            f"--config-file-srcdir is set, but in mode {config.mode} there is one configuration "
            "for all nodes, with HAMi's node override for single ones; leave it out"
        )
    if config.mode == "nvidia":
        if len(shared) > 1:
            return (
                "sharing.timeSlicing and sharing.mps are both set, but a node shares its GPUs in "
                "one way; remove one of the two"
            )
        return ""
    if shared:
        return (
            f"sharing.{shared[0]} divides GPUs without limits per container or through a daemon, "
            f"but in mode {config.mode} this agent divides them by limits; remove that section and "
            "set deviceSplitCount in section nvidia to the number of replicas, or set --mode nvidia"
        )
    if config.mig_strategy != "none":
        return (
            f"the MIG strategy is {config.mig_strategy}, but mode {config.mode} does not manage "
            "MIG; use none, or set --mode nvidia"
        )
    return ""


def _check_slices(config: Config) -> None:
    """Raises ConfigError for slices that no node can offer."""
    sizes = config.slice_sizes if config.mode == "slices" else ()
    for offer in offers(config.resource_name, sizes):
        if objection := _resource_name(offer.resource):
            raise ConfigError(f"the resource {offer.resource!r}: {objection}")
    if objection := objection_to(sizes, config.sharing):
        raise ConfigError(objection)
