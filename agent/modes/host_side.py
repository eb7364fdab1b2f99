"""The host's files that containers get, and who puts and removes them: the same in every mode."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent import logs
from agent.adapters.caches import HostCaches
from agent.adapters.driver_files import HostDriverFiles
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import HostHookFiles, install_hook, offer_plain_name
from agent.bundle import hook_dir
from agent.config import Config
from agent.domain.grant_plan import CDI_STRATEGIES, GrantPolicy
from agent.errors import AgentError, NodeNotReady
from agent.ports import DriverFiles, HookFiles
from agent.services.cache_gc import CacheGc
from agent.services.hook_gc import HookGc
from agent.services.hook_install import HookInstall
from agent.services.published import Inventory, Pods
from agent.supervisor import Service
from agent.version import VERSION

if TYPE_CHECKING:
    from agent.services.cdi_specs import CdiSpecs

log = logs.get(__name__)


class HostSide:
    """The directories, with the hook library in place (or a log line that says why not)."""

    services: list[Service]

    def __init__(
        self, config: Config, grants: FileGrantLog, pods: Pods, inventory: Inventory
    ) -> None:
        """`pods` says who is still there: what belongs to nobody is deleted."""
        self.policy = policy_of(config)
        self._cdi = cdi_specs(config, inventory, driver_files(config), self.policy)
        self.caches, install = _caches(config, self._cdi)
        hooks = HostHookFiles(config.host_vgpu_dir, config.host_proc)
        self.hook = HookInstall(
            install,
            offer=_offer(config),
            prepare=lambda: HostCaches.prepare(self.caches),  # the hook's part alone
            collect=HookGc(hooks, self.caches, grants, pods).collect_once,
        )
        self.services = [
            self.hook,
            CacheGc(
                self.caches,
                grants,
                pods,
                after_s=config.cache_gc_after_s,
                every_s=config.cache_gc_every_s,
            ),
            *([self._cdi] if self._cdi else []),
        ]

    def tried(self, timeout_s: float) -> bool:
        """Wait until CDI files were written, or could not be; False after `timeout_s`."""
        return self._cdi.tried(timeout_s) if self._cdi else True

    def missing(self) -> str:
        """Why containers cannot be given what they need, in a sentence; empty: they can."""
        return self.hook.missing() or (self._cdi.problem.now() if self._cdi else "")


class _DescribedFirst(HostCaches):
    """Gives nothing to containers while no CDI file says what their devices are."""

    cdi: "CdiSpecs"

    def prepare(self) -> HookFiles:
        if why := self.cdi.problem.now():
            raise NodeNotReady(why)
        return super().prepare()


def policy_of(config: Config) -> GrantPolicy:
    """How this node hands GPUs to containers."""
    files = driver_files(config)
    policy = GrantPolicy(
        hook_dir=f"{config.hook_path}/vgpu",
        device_list_strategy=config.device_list_strategy,
        device_id_strategy=config.device_id_strategy,
        pass_device_specs=config.pass_device_specs,
        dev_root=str(config.dev_root or config.driver_root),
        gds_enabled=config.gds_enabled,
        mofed_enabled=config.mofed_enabled,
        gdrcopy_enabled=config.gdrcopy_enabled,
        cdi_annotation_prefix=config.cdi_annotation_prefix,
        imex_channels=tuple(sorted(config.imex_channel_ids))
        if config.imex_required
        else files.imex_there(),
        oversubscribed=config.sharing.memory_scaling > 1,
        disable_core_limit=config.disable_core_limit,
        hook_log_level=config.hook_log_level,
        allow_disable_control=config.allow_disable_control,
        any_value_disables=config.mode == "volcano",  # as in Volcano, where its presence is enough
    )
    absent = frozenset(name for name in policy.extras if not files.extra_nodes(name))
    return replace(policy, cdi_absent=absent)


def _caches(config: Config, cdi: "CdiSpecs | None") -> tuple[HostCaches, Callable[[], Path]]:
    """The host's directories, with the hook library in place, and what puts it there again."""
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
    caches = (_DescribedFirst if cdi else HostCaches)(
        where,
        lock_dir=config.lock_dir,
        hook_library=f"{config.hook_path}/vgpu/libvgpu.so",
        versioned_library=versioned,
        dev_root=config.dev_root or config.driver_root,
    )
    if isinstance(caches, _DescribedFirst) and cdi:
        caches.cdi = cdi
    return caches, install


def _offer(config: Config) -> Callable[[Path], None]:
    """What has HAMi's name beside the library."""
    if config.hami_library == "off":
        return lambda _: None
    return functools.partial(offer_plain_name, replace=config.hami_library == "replace")


def driver_files(config: Config) -> HostDriverFiles:
    """Where the driver's files are."""
    return HostDriverFiles(
        driver_root=config.driver_root,
        dev_root=config.dev_root,
        container_driver_root=config.container_driver_root,
        hook=config.cdi_hook_path,
        disabled_hooks=config.cdi_disabled_hooks,
        imex=config.imex_channel_ids,
        imex_required=config.imex_required,
    )


def cdi_specs(
    config: Config, inventory: Inventory, files: DriverFiles, policy: GrantPolicy
) -> "CdiSpecs | None":
    """Who writes CDI files; None: no strategy asks for them."""
    if CDI_STRATEGIES.isdisjoint(config.device_list_strategy):
        return None
    from agent.adapters.cdi_files import HostCdiFiles
    from agent.services.cdi_specs import CdiSpecs

    return CdiSpecs(inventory, HostCdiFiles(config.cdi_spec_dir), files, policy)
