"""Who is wired to whom: Config -> adapters -> services -> supervisor. The only room that knows all.

Configuration stops here: everything below receives plain values.
"""

import ctypes
import faulthandler
import gc
import json
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent import logs
from agent.adapters.cluster import KubeCluster
from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.instance_lock import Instance, InstanceLock
from agent.adapters.kube_config import in_a_pod_with_credentials
from agent.adapters.kube_transport import KubeTransport
from agent.adapters.kubelet_devices import KubeletDevices
from agent.adapters.listeners import TcpListener
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.local_sockets import RuntimeDirectory, control_listener, read_listener
from agent.adapters.memory import give_memory_back
from agent.adapters.metrics import Exposed, Metrics
from agent.adapters.mig_files import HamiApplyLock
from agent.adapters.mounted_directories import MountedDirectories
from agent.adapters.nvml import NvmlDriver
from agent.adapters.own_devices import devices_taken
from agent.adapters.routes import METRICS, Route, Routes, probes, scraped, shown
from agent.adapters.systemd import Notifier
from agent.adapters.web_page import web_page
from agent.build_info import build_info
from agent.bundle import web_dir
from agent.config import Config
from agent.domain.accounting import NodeUse
from agent.domain.bypass import Bypass
from agent.domain.enforcement import ContainerState
from agent.domain.gpu import GpuInventory
from agent.domain.mig_info import MigInfo, mig_info
from agent.domain.node_picture import NodePicture
from agent.domain.ownership import Rival
from agent.domain.pods import Node
from agent.domain.topology import GpuPair
from agent.domain.use_json import encode
from agent.errors import AgentError
from agent.modes import Mode, made, objection, own_form, own_resources
from agent.observing import Observing
from agent.parts import Parts
from agent.ports import Cluster
from agent.services.events import Events
from agent.services.gate import Gate, Gated
from agent.services.health import Health, Patience
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.ownership import Ownership
from agent.services.pod_watch import PodWatch
from agent.services.published import Inventory, PodTable, Published
from agent.supervisor import EXIT_GAVE_UP, EXIT_USAGE, Service, Supervisor, serve
from agent.version import VERSION

log = logs.get(__name__)

M_ARENA_MAX = -8  # mallopt(3)
# Together under the 5 s in which the agent promises to stop; an Allocate may still need its budget.
JOIN_WITHIN_S, LEAVE_WITHIN_S = 3.2, 1.4
SETTLED_TICKS = 3
USE, LIMITS = "/v1/use", "/v1/limits"


@dataclass(slots=True)
class _Seen:
    """What /metrics looks at when it is scraped; filled in while the agent is put together."""

    gpus: Published[GpuInventory]
    mode: Mode | None = None
    grants: FileGrantLog | None = None
    observing: Observing | None = None
    ownership: Ownership | None = None
    supervisor: Supervisor | None = None

    def inventory(self) -> GpuInventory:
        return self.gpus.now()

    def service_restarts(self) -> Mapping[str, int]:
        return self.supervisor.restarts() if self.supervisor else {}

    def registered(self) -> Mapping[str, bool]:
        if self.mode is None:
            return {}
        told = (plugin.status.now() for plugin in self.mode.plugins)
        return {status.resource: status.registered for status in told}

    def rivals(self) -> Sequence[Rival]:
        return self.ownership.found.now() if self.ownership else ()

    def cache_directories(self) -> int:
        try:
            return len(self.mode.caches.listed()) if self.mode else 0
        except AgentError:
            return 0

    def containers(self) -> Sequence[ContainerState]:
        return self.observing.enforcement.states.now() if self.observing else ()

    def use(self) -> NodeUse:
        """As it was a moment ago; who looks again soon finds it fresh."""
        if self.observing is None:
            return NodeUse()
        self.observing.accounting.wake()
        return self.observing.accounting.use.now()

    def bypasses(self) -> tuple[Bypass, ...]:
        return self.observing.detector.found.now() if self.observing else ()

    def migs(self) -> tuple[MigInfo, ...]:
        """Which MIG device each container has."""
        return mig_info(self.grants.records(), self.gpus.now()) if self.grants else ()


class Agent:
    """The daemon, put together. `run()` blocks until it ends and gives the exit code.

    Raises ConfigError, before it touches the host, when there are no credentials to be had.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._code: int | None = None  # how to end, when that is decided before the end
        self._inventory: Inventory = Published(GpuInventory())
        self._seen = _Seen(self._inventory)
        self._metrics = self._made_metrics()
        self._cluster = _cluster(config, self._metrics)
        self._view = NodeView(
            self._cluster,
            node_name=config.node_name,
            pods=Published(PodTable()),
            own_node=Published[Node | None](None),
            lock_key=config.lock_key,
        )
        self._events = Events(self._cluster)
        self._may_act = Published(value=False)
        self._ready_ticks = 0
        self._instance = Instance(
            InstanceLock(config.state_dir), self._may_act, all_left=self._nobody_acts
        )
        self._topology = Published[tuple[GpuPair, ...]](()) if config.reads_topology else None

        services = [*self._watchers(), *self._acting()]
        if doors := self._doors():
            services.append(Endpoints(doors))
        self.supervisor = Supervisor(services)
        self._seen.supervisor = self.supervisor

    def _made_metrics(self) -> Metrics:
        config, build = self._config, build_info()["build"]
        return Metrics(
            VERSION,
            self._seen,
            use=self._seen.use,
            bypasses=self._seen.bypasses,
            migs=self._seen.migs,
            ready=lambda: not self.missing(),
            exposed=Exposed(
                node_name=config.node_name,
                legacy=config.legacy_metrics,
                per_process=config.metrics_per_process,
                revision=build.get("revision", ""),
            ),
        )

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
            found=self._metrics.gpu_found,
            count=self._metrics.health_transition,
            count_xid=self._metrics.xid_error,
            leave=self._leave,
            objection=lambda gpus: objection(config, gpus),
            refuse=self._refuse,
            leave_when_absent=config.fail_on_init_error,
            # Clients of an MPS daemon that was started in our pod would end with us.
            devices_taken=(lambda: False) if config.mps.resources else devices_taken,
            topology=self._topology,
        )
        self._health = health
        return [
            self._instance,
            health,
            Patience(health),
            MountedDirectories(config.host_directories, self._leave),
            *self._cluster_watchers(),
            self._events,
        ]

    def _cluster_watchers(self) -> list[Service]:
        if not self._config.follows_cluster:
            return []
        return [PodWatch(self._cluster, self._view), NodeWatch(self._cluster, self._view)]

    def _acting(self) -> list[Service]:
        """Whoever acts: behind the gate that opens when this agent is alone on the node."""
        config = self._config
        parts = Parts(
            config=config,
            metrics=self._metrics,
            cluster=self._cluster,
            view=self._view,
            events=self._events,
            inventory=self._inventory,
            topology=self._topology,
            mig_lock=HamiApplyLock(config.mig_apply_lock),
            all_pods=Published(PodTable()) if config.slices_for_others else None,
        )
        grants = self._seen.grants = FileGrantLog(config.state_dir)
        limits = HostLiveLimits(config.host_vgpu_dir, config.state_dir)
        self._mode = self._seen.mode = made(parts, grants, limits)
        self._observing = self._seen.observing = Observing(parts, grants, limits)
        ownership = self._seen.ownership = Ownership(
            KubeletDevices(
                config.pod_resources_socket, config.kubelet_socket.parent, config.host_proc
            ),
            self._inventory,
            lambda gpus: own_resources(self._mode, config, gpus),
            own_form=own_form(config),
            withhold=self._health.withhold,
            expected=lambda: {
                plugin.status.now().resource: count
                for plugin in self._mode.plugins
                if (count := plugin.expected())
            },
            renew=self._renew,
            post=self._events.post,
            every_s=config.owners_every_s,
        )

        def opened() -> None:
            grants.reload()
            grants.sweep()
            limits.mend()
            parts.mig_lock.tidy()

        self._gate = Gate(self._may_act, on_open=opened)
        return [
            Gated(service, self._gate)
            for service in (*self._mode.services, *self._observing.services, ownership)
        ]

    def _nobody_acts(self, timeout_s: float) -> bool:
        """Whether the next agent may, so that it need not wait for the rest of us to end."""
        return not self._config.clean_exit and self._gate.wait_until_empty(timeout_s)

    def _renew(self, resources: Collection[str]) -> None:
        for plugin in self._mode.plugins:
            if plugin.status.now().resource in resources:
                plugin.renew()

    # --- what is answered -----------------------------------------------------------------------

    def _doors(self) -> list[Door]:
        """Where it is listened, and what for."""
        config = self._config
        open_to_all: Routes = {
            **probes(self._stuck, self._unready),
            METRICS: scraped(self._metrics.render),
        }
        use: Routes = {USE: shown(self._picture)}
        page = web_page(web_dir()) if config.web_page else {}
        directory = RuntimeDirectory(config.runtime_dir)
        doors = [
            Door(read_listener(directory, config.socket_group), {**open_to_all, **use, **page}),
            Door(
                control_listener(directory),
                {**open_to_all, **use, LIMITS: Route(post=self._observing.changes.post)},
            ),
        ]
        if config.metrics_address:
            everything = {**open_to_all, **use, **page} if config.web_page else open_to_all
            doors.append(Door(TcpListener(config.metrics_address), everything))
        return doors

    def _picture(self) -> bytes:
        picture = NodePicture.of(
            self._seen.use(),
            self._inventory.now(),
            answered_at_s=time.time(),
            node=self._config.node_name,
            agent_version=VERSION,
            bypasses=self._seen.bypasses(),
            missing=tuple(self.missing()),
        )
        return json.dumps(encode(picture), separators=(",", ":")).encode()

    # --- what is missing, what it says of itself ------------------------------------------------

    def missing(self) -> list[str]:
        """Why the node does not serve pods yet, a sentence each; empty: it does."""
        if self._instance.waiting_for:
            return [f"another agent serves this node: {self._instance.waiting_for}"]
        reasons = self._driver_missing()
        for status in (plugin.status.now() for plugin in self._mode.plugins):
            if not status.registered:
                of = f" as {status.resource}" if len(self._mode.plugins) > 1 else ""
                reasons.append(f"not registered with kubelet{of}: {status.reason}")
            elif any(r.manager == status.resource and not r.holder for r in self._seen.rivals()):
                reasons.append(f"another device plugin has taken {status.resource} over")
        return [*reasons, *self._mode.missing()]

    def _driver_missing(self) -> list[str]:
        error = self._inventory.now().driver_error
        return [f"driver: {error}"] if error else []

    def _unready(self) -> list[str]:
        """What /readyz says: whether the agent before us may go."""
        if not (self._config.ready_standing_by and self._instance.waiting_for):
            return self.missing()
        gpus = self._inventory.now()
        if not gpus.known and not gpus.driver_error:  # it has not answered: we may find none, yet
            return ["the GPUs are not known yet"]
        return self._driver_missing()

    def _stuck(self) -> list[str]:
        return self.supervisor.stuck()

    def _status(self) -> str:
        reasons = self.missing()
        if reasons:
            return reasons[0]
        self._ready_ticks += 1
        if self._ready_ticks == SETTLED_TICKS:  # the other threads have their modules by then
            give_memory_back()  # what compiling modules without .pyc files took, about 10 MiB
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
        # A node without CPU time to spare needs all of it: the loop of GPUs has a second's wait and
        # the driver's own end to wait for.
        within_s = JOIN_WITHIN_S + (0.0 if self._config.clean_exit else LEAVE_WITHIN_S)
        code = serve(self.supervisor, notify=Notifier(), tick=self._status, stop_within_s=within_s)
        if self._config.clean_exit and self._may_act.now():
            self._mode.leave(LEAVE_WITHIN_S)
        code = code if self._code is None else self._code
        log.info("agent stopped", code=code)
        return code


def _cluster(config: Config, metrics: Metrics) -> Cluster:
    """The way to the API server. Raises ConfigError where one is needed and there is none."""
    kube = KubeCluster(
        KubeTransport(config.kubeconfig, count=metrics.api_request),
        node_name=config.node_name,
        resource_name=config.resource_name,
        decided_by=config.decided_by,
        amounts=config.amounts,
    )
    if config.follows_cluster:
        kube.connect()
        return kube
    from agent.adapters.no_cluster import NoCluster

    if config.kubeconfig is None and not in_a_pod_with_credentials():
        return NoCluster()
    kube.connect()
    return NoCluster(events=kube)


def _spare_memory() -> None:
    """Keep glibc from giving each of our many threads a heap of its own."""
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        return  # another libc has other habits


def run(config: Config) -> int:
    """Run the daemon with these settings until it is told to stop; give the exit code."""
    logs.configure(form=config.log_format, level=config.log_level)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it hang? ask it
    _spare_memory()
    # What we make is nobody else's to change, directories on the way to it included, of which no
    # mode is said anywhere; who starts us may have no umask at all. One that forbids more stays.
    os.umask(os.umask(0o077) | 0o022)
    log.info("agent starting", version=VERSION, node=config.node_name, pid=os.getpid())
    code = Agent(config).run()
    # Or the interpreter would look through everything for garbage before it ends: most of what a
    # stop costs, and seconds on a node that is out of CPU time.
    gc.freeze()
    return code
