"""Config: every setting of the daemon, checked once, with its default and its unit.

Built by `agent.settings` from flags, environment and files; taken apart by `agent.app`. Nothing
below imports this module: services and adapters receive plain arguments.
"""

from dataclasses import dataclass, field
from pathlib import Path

from agent.domain.gpu import Sharing
from agent.errors import ConfigError

REGISTER_FORMATS = ("json", "csv9", "csv7")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of `vgpu-agent run`."""

    # who we are
    node_name: str
    kubeconfig: Path | None = None  # None: the pod's service account
    resource_name: str = "nvidia.com/gpu"

    # how GPUs are shared
    sharing: Sharing = field(default_factory=Sharing)
    disable_core_limit: bool = False
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
    lock_dir: Path = Path("/tmp/vgpulock")  # noqa: S108 - the path HAMi-core's contract fixes
    state_dir: Path = Path("/var/lib/vgpu-agent")
    cache_gc_after_s: float = 300.0
    cache_gc_every_s: float = 30.0

    # how devices reach the container
    device_list_strategy: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = False
    driver_root: Path = Path("/")
    dev_root: Path | None = None  # None: the same as driver_root
    gds_enabled: bool = False
    mofed_enabled: bool = False
    gdrcopy_enabled: bool = False

    # GPU health
    fail_on_init_error: bool = False  # True: exit when there is no driver; False: wait for it
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
    health_checks: bool = True
    recovery_probes: int = 3  # clean probes in a row that make a GPU healthy again
    probe_every_s: float = 10.0

    # Allocate
    allocate_budget_s: float = 2.0

    # observation
    metrics_address: str = ":9394"  # empty: no endpoint
    log_format: str = "auto"
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Check ranges and combinations; say what is wrong and what to do.

        Raises ConfigError.
        """
        if not self.node_name:
            raise ConfigError(
                "the node's name is not known: set --node-name or NODE_NAME to the name that "
                "`kubectl get nodes` shows for this machine"
            )
        if self.register_format not in REGISTER_FORMATS:
            raise ConfigError(
                f"register-format is {self.register_format!r}, but the schedulers read only "
                f"{', '.join(REGISTER_FORMATS)}; use json for HAMi 2.8 and later"
            )

    @property
    def host_vgpu_dir(self) -> Path:
        """`<hook path>/vgpu` on the host."""
        return (self.host_hook_path or self.hook_path) / "vgpu"

    @property
    def answers_handshake(self) -> bool:
        """Whether `hami.io/node-handshake` is kept alive by us."""
        return self.handshake == "on" or (
            self.handshake == "auto" and self.register_format != "json"
        )
