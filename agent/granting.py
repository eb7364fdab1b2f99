"""Who grants GPUs, wired: from kubelet's Allocate to the scheduler's annotations and the host.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from agent import logs
from agent.adapters.caches import HostCaches
from agent.adapters.device_plugin import Answers
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import HostHookFiles, install_hook, offer_plain_name
from agent.adapters.kubelet import KubeletLink
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.socket_watch import SocketWatch
from agent.bundle import hook_dir
from agent.config import Config
from agent.domain.gpu import Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.register import Scores
from agent.domain.topology import GpuPair, pair_scores
from agent.domain.vgpu_ids import advertised
from agent.errors import AgentError
from agent.parts import Parts
from agent.services.allocator import Allocator, Host, Supply
from agent.services.bind_finisher import BindFinisher
from agent.services.cache_gc import CacheGc
from agent.services.hook_gc import HookGc
from agent.services.hook_install import HookInstall
from agent.services.plugin import Plugin
from agent.services.preference import Preference
from agent.services.published import Inventory, Published
from agent.services.reconcile import Reconcile
from agent.services.registrar import Registrar
from agent.services.turns import Turns
from agent.supervisor import Service
from agent.version import VERSION

log = logs.get(__name__)


class Granting:
    """The services that grant, and what others ask them."""

    services: list[Service]

    def __init__(self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> None:
        config, view = parts.config, parts.view
        self.caches, install = _host(config)
        hooks = HostHookFiles(config.host_vgpu_dir, config.host_proc)
        finisher = BindFinisher(view, grants.records, post=parts.events.post)
        turns = Turns(view, grants, failed=finisher.failed)
        allocator = Allocator(
            view,
            turns,
            finisher,
            Host(caches=self.caches, grant_log=grants, changed=limits),
            Supply(inventory=parts.inventory, sharing=config.sharing, policy=_policy(config)),
            on_outcome=parts.metrics.allocation,
        )
        self.plugin = _plugin(parts, allocator, Preference(turns))
        self.registrar = _registrar(parts)
        self.hook = HookInstall(
            install,
            offer=_offer(config),
            prepare=self.caches.prepare,
            collect=HookGc(hooks, self.caches, grants, view.pods).collect_once,
        )
        self.services = [
            self.plugin,
            self.registrar,
            finisher,
            self.hook,
            Reconcile(
                config.resource_name,
                grants,
                PodResourcesClient(config.pod_resources_socket),
                view.pods,
                self.plugin.status,
                count=parts.metrics.grant_mismatch,
                post=parts.events.post,
            ),
            CacheGc(
                self.caches,
                grants,
                view.pods,
                after_s=config.cache_gc_after_s,
                every_s=config.cache_gc_every_s,
            ),
        ]


def _plugin(parts: Parts, allocator: Allocator, preference: Preference) -> Plugin:
    config, metrics = parts.config, parts.metrics
    answers = Answers(
        parts.inventory,
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
        parts.inventory,
        config.sharing,
        count=metrics.registration,
    )


def _registrar(parts: Parts) -> Registrar:
    config, topology = parts.config, parts.topology
    return Registrar(
        parts.cluster,
        parts.inventory,
        parts.view.own_node,
        config.sharing,
        form=config.register_format,
        handshake=config.answers_handshake,
        scores=_scores(parts.inventory, topology, config.sharing) if topology else None,
        count=parts.metrics.register_write,
    )


def _scores(
    inventory: Inventory, topology: Published[tuple[GpuPair, ...]], sharing: Sharing
) -> Callable[[], Scores]:
    """What the registrar asks for the pair scores as they are now."""

    def now() -> Scores:
        uuids = [gpu.uuid for gpu in sharing.offered(inventory.now())]
        return pair_scores(uuids, topology.now())

    return now


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
