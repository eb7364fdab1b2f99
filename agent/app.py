"""Who is wired to whom: Config -> adapters -> services -> supervisor. The only room that knows all.

Configuration stops here: everything below receives plain values.
"""

import ctypes
import faulthandler
import functools
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent import logs
from agent.adapters.caches import CONTAINERS, HostCaches
from agent.adapters.cluster import KubeCluster
from agent.adapters.device_plugin import Answers
from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import HostHookFiles, install_hook, offer_plain_name
from agent.adapters.instance_lock import Instance, InstanceLock
from agent.adapters.kube_transport import KubeTransport
from agent.adapters.kubelet import KubeletLink
from agent.adapters.listeners import TcpListener
from agent.adapters.metrics import Metrics
from agent.adapters.nvml import NvmlDriver
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.processes import HostProcesses
from agent.adapters.regions import HostRegions
from agent.adapters.routes import METRICS, probes, scraped
from agent.adapters.socket_watch import SocketWatch
from agent.adapters.systemd import Notifier
from agent.bundle import hook_dir
from agent.config import Config
from agent.domain.enforcement import ContainerState
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.pods import Node
from agent.domain.register import Scores
from agent.domain.topology import GpuPair, pair_scores
from agent.domain.vgpu_ids import advertised, judge_list
from agent.errors import AgentError
from agent.services.allocator import Allocator, Host, Supply
from agent.services.bind_finisher import BindFinisher
from agent.services.cache_gc import CacheGc
from agent.services.enforcement import Enforced, Enforcement
from agent.services.events import Events
from agent.services.gate import Gate, Gated
from agent.services.health import Health, Patience
from agent.services.hook_gc import HookGc
from agent.services.hook_install import HookInstall
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.plugin import Plugin, PluginStatus
from agent.services.pod_watch import PodWatch
from agent.services.preference import Preference
from agent.services.published import Inventory, PodTable, Published
from agent.services.reconcile import Reconcile
from agent.services.registrar import Registrar
from agent.services.turns import Turns
from agent.supervisor import EXIT_GAVE_UP, EXIT_USAGE, Service, Supervisor, serve
from agent.version import VERSION

log = logs.get(__name__)

M_ARENA_MAX = -8  # mallopt(3)
# Together under the 5 s in which the agent promises to stop; an Allocate may still need its budget.
JOIN_WITHIN_S, LEAVE_WITHIN_S = 3.2, 1.4


def _scores(
    inventory: Inventory, topology: Published[tuple[GpuPair, ...]], sharing: Sharing
) -> Callable[[], Scores]:
    """What the registrar asks for the pair scores as they are now."""

    def now() -> Scores:
        uuids = [gpu.uuid for gpu in sharing.offered(inventory.now())]
        return pair_scores(uuids, topology.now())

    return now


@dataclass(slots=True)
class _Seen:
    """What /metrics looks at when it is scraped; filled in while the agent is put together."""

    gpus: Published[GpuInventory]
    plugin: Published[PluginStatus] | None = None
    caches: HostCaches | None = None
    enforced: Enforced | None = None
    supervisor: Supervisor | None = None

    def inventory(self) -> GpuInventory:
        return self.gpus.now()

    def service_restarts(self) -> Mapping[str, int]:
        return self.supervisor.restarts() if self.supervisor else {}

    def registered(self) -> Mapping[str, bool]:
        if self.plugin is None:
            return {}
        status = self.plugin.now()
        return {status.resource: status.registered}

    def cache_directories(self) -> int:
        try:
            return len(self.caches.listed()) if self.caches else 0
        except AgentError:
            return 0

    def containers(self) -> tuple[ContainerState, ...]:
        return self.enforced.now() if self.enforced else ()


def _policy(config: Config) -> GrantPolicy:
    return GrantPolicy(
        hook_dir=f"{config.hook_path}/vgpu",
        device_list_strategy=config.device_list_strategy,
        device_id_strategy=config.device_id_strategy,
        pass_device_specs=config.pass_device_specs,
        dev_root=str(config.dev_root or config.driver_root),
        gds_enabled=config.gds_enabled,
        mofed_enabled=config.mofed_enabled,
        gdrcopy_enabled=config.gdrcopy_enabled,
        oversubscribed=config.sharing.memory_scaling > 1,
        disable_core_limit=config.disable_core_limit,
        hook_log_level=config.hook_log_level,
        allow_disable_control=config.allow_disable_control,
    )


def _host(config: Config) -> tuple[HostCaches, Callable[[], Path]]:
    """The host's directories, with the hook library in place (or a log line that says why not).

    Also what puts it there again.
    """
    source, where = hook_dir() / "libvgpu.so", config.host_vgpu_dir

    def install() -> Path:
        if source.is_file():
            return install_hook(source, where, VERSION)
        return where / "libvgpu.so"  # somebody else's matter, e.g. an image without a hook

    try:
        versioned = install().name
    except AgentError as error:  # HookInstall says it again, until it is mended
        log.failing("hook not installed", error=error)
        versioned = ""
    caches = HostCaches(
        where,
        lock_dir=config.lock_dir,
        hook_library=f"{config.hook_path}/vgpu/libvgpu.so",
        versioned_library=versioned,
        dev_root=config.dev_root or config.driver_root,
    )
    return caches, install


def _offer(config: Config) -> Callable[[Path], None]:
    """What has HAMi's name beside the library."""
    if config.hami_library == "off":
        return lambda _: None
    return functools.partial(offer_plain_name, replace=config.hami_library == "replace")


class Agent:
    """The daemon, put together. `run()` blocks until it ends and gives the exit code.

    Raises ConfigError, before it touches the host, when there are no credentials to be had.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._code: int | None = None  # how to end, when that is decided before the end
        self._inventory: Inventory = Published(GpuInventory())
        self._seen = _Seen(self._inventory)
        self._metrics = Metrics(VERSION, self._seen)
        self._cluster = KubeCluster(
            KubeTransport(config.kubeconfig, count=self._metrics.api_request),
            node_name=config.node_name,
            resource_name=config.resource_name,
        )
        self._cluster.connect()
        self._view = NodeView(
            self._cluster,
            node_name=config.node_name,
            pods=Published(PodTable()),
            own_node=Published[Node | None](None),
        )
        self._events = Events(self._cluster)
        self._may_act = Published(value=False)
        self._trimmed = False
        self._instance = Instance(InstanceLock(config.state_dir), self._may_act)
        self._topology = Published[tuple[GpuPair, ...]](()) if config.topology_score else None

        services = [*self._watchers(), *self._granting()]
        if config.metrics_address:
            routes = {
                **probes(self._stuck, self.missing),
                METRICS: scraped(self._metrics.render),
            }
            services.append(Endpoints([Door(TcpListener(config.metrics_address), routes)]))
        self.supervisor = Supervisor(services)
        self._seen.supervisor = self.supervisor

    def _watchers(self) -> list[Service]:
        """Whoever only looks: they run even while another agent serves the node."""
        config = self._config
        health = Health(
            NvmlDriver(),
            self._inventory,
            probe_every_s=config.probe_every_s,
            recovery_probes=config.recovery_probes,
            ignored_xids=config.ignored_xids,
            events_watched=config.health_checks,
            post=self._events.post,
            count=self._metrics.health_transition,
            count_xid=self._metrics.xid_error,
            leave=self._leave,
            objection=lambda gpus: judge_list(gpus, config.sharing).refusal,
            refuse=self._refuse,
            leave_when_absent=config.fail_on_init_error,
            topology=self._topology,
        )
        return [
            self._instance,
            health,
            Patience(health),
            PodWatch(self._cluster, self._view),
            NodeWatch(self._cluster, self._view),
            self._events,
        ]

    def _granting(self) -> list[Service]:
        """Whoever acts: behind the gate that opens when this agent is alone on the node."""
        config, pods = self._config, self._view.pods
        caches, install = _host(config)
        grants = FileGrantLog(config.state_dir)
        hooks = HostHookFiles(config.host_vgpu_dir, config.host_proc)
        finisher = BindFinisher(self._view, grants.records, post=self._events.post)
        turns = Turns(self._view, grants, failed=finisher.failed)
        allocator = Allocator(
            self._view,
            turns,
            finisher,
            Host(caches=caches, grant_log=grants),
            Supply(inventory=self._inventory, sharing=config.sharing, policy=_policy(config)),
            on_outcome=self._metrics.allocation,
        )
        self._plugin = self._made_plugin(allocator, Preference(turns))
        self._registrar = self._made_registrar()
        self._seen.plugin, self._seen.caches = self._plugin.status, caches
        enforcement = Enforcement(
            grants,
            pods,
            HostProcesses(config.host_proc, CONTAINERS),
            HostRegions(config.host_vgpu_dir),
            every_s=config.process_every_s,
            post=self._events.post,
        )
        self._seen.enforced = enforcement.states
        alone: list[Service] = [
            self._plugin,
            self._registrar,
            finisher,
            HookInstall(
                install,
                offer=_offer(config),
                collect=HookGc(hooks, caches, grants, pods).collect_once,
            ),
            Reconcile(
                config.resource_name,
                grants,
                PodResourcesClient(config.pod_resources_socket),
                pods,
                self._plugin.status,
                count=self._metrics.grant_mismatch,
                post=self._events.post,
            ),
            CacheGc(
                caches,
                grants,
                pods,
                after_s=config.cache_gc_after_s,
                every_s=config.cache_gc_every_s,
            ),
            enforcement,
        ]
        gate = Gate(self._may_act, on_open=grants.reload)
        return [Gated(service, gate) for service in alone]

    def _made_plugin(self, allocator: Allocator, preference: Preference) -> Plugin:
        config, metrics = self._config, self._metrics
        answers = Answers(
            self._inventory,
            lambda picture: advertised(picture, config.sharing),
            allocator,
            preference,
            budget_s=config.allocate_budget_s,
            on_overdue=lambda took_s: metrics.allocation("budget_exceeded", took_s),
        )
        return Plugin(
            config.resource_name,
            KubeletLink(config.kubelet_socket, config.resource_name, answers),
            SocketWatch(config.kubelet_socket),
            self._inventory,
            config.sharing,
            count=metrics.registration,
        )

    def _made_registrar(self) -> Registrar:
        config, topology = self._config, self._topology
        return Registrar(
            self._cluster,
            self._inventory,
            self._view.own_node,
            config.sharing,
            form=config.register_format,
            handshake=config.answers_handshake,
            scores=_scores(self._inventory, topology, config.sharing) if topology else None,
            count=self._metrics.register_write,
        )

    # --- what is missing, what it says of itself ------------------------------------------------

    def missing(self) -> list[str]:
        """Why the node does not serve pods yet, a sentence each; empty: it does."""
        if self._instance.waiting_for:
            return [f"another agent serves this node: {self._instance.waiting_for}"]
        gpus = self._inventory.now()
        reasons = [f"driver: {gpus.driver_error}"] if gpus.driver_error else []
        status = self._plugin.status.now()
        if not status.registered:
            reasons.append(f"not registered with kubelet: {status.reason}")
        if objection := self._registrar.missing():
            reasons.append(objection)
        return reasons

    def _stuck(self) -> list[str]:
        return self.supervisor.stuck()

    def _status(self) -> str:
        reasons = self.missing()
        if reasons:
            return reasons[0]
        if not self._trimmed:
            self._trimmed = True
            _give_memory_back()
        gpus = self._inventory.now().gpus
        return f"serving {sum(gpu.healthy for gpu in gpus)} of {len(gpus)} GPUs"

    def _leave(self, why: str) -> None:
        """Something only a new process can mend: end with the exit code of giving up."""
        self._code = EXIT_GAVE_UP
        log.error("agent leaves", error=why)
        self.supervisor.stop()

    def _refuse(self, why: str) -> None:
        """The settings do not fit this node's GPUs: end as with any wrong setting."""
        self._code = EXIT_USAGE
        log.error("settings refused", error=why)
        self.supervisor.stop()

    def run(self) -> int:
        """Serve until a signal or a reason to leave; give the exit code."""
        code = serve(
            self.supervisor, notify=Notifier(), tick=self._status, stop_within_s=JOIN_WITHIN_S
        )
        if self._config.clean_exit and self._may_act.now():
            self._registrar.leave(within_s=LEAVE_WITHIN_S)
        code = code if self._code is None else self._code
        log.info("agent stopped", code=code)
        return code


def _spare_memory() -> None:
    """Keep glibc from giving each of our many threads a heap of its own."""
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        return  # another libc has other habits


def _give_memory_back() -> None:
    """Once all is loaded: what compiling modules without .pyc files took, about 10 MiB, is free."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def run(config: Config) -> int:
    """Run the daemon with these settings until it is told to stop; give the exit code."""
    logs.configure(form=config.log_format, level=config.log_level)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it hang? ask it
    _spare_memory()
    log.info("agent starting", version=VERSION, node=config.node_name, pid=os.getpid())
    return Agent(config).run()
