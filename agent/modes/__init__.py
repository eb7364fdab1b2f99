"""The ways a cluster shares GPUs, one module each, chosen by the setting `mode`.

A mode wires what differs between them: who decides which container gets what of which GPU, what
kubelet is offered, what the scheduler is told. All else (health, limits, accounting, cleaning up)
is the same for all.
"""

from collections.abc import Callable
from dataclasses import replace

from agent.adapters.grant_log import FileGrantLog
from agent.adapters.live_limits import HostLiveLimits
from agent.config import Config
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.ownership import vgpu_of_ours
from agent.domain.vgpu_ids import judge_list
from agent.modes.hami import HamiMode
from agent.modes.mode import Mode
from agent.parts import Parts

__all__ = ["Mode", "made", "objection", "own_form", "own_resources"]


def made(parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> Mode:
    """The mode that the configuration names, wired. Nothing runs yet."""
    match parts.config.mode:
        case "slices":
            from agent.modes.slices import SlicesMode

            return SlicesMode(parts, grants, limits)
        case "nvidia":
            from agent.modes.nvidia import NvidiaMode

            return NvidiaMode(parts, grants, limits)
        case "volcano":
            from agent.modes.volcano import VolcanoMode

            return VolcanoMode(parts, grants, limits)
        case _:
            return HamiMode(parts, grants, limits)


def objection(config: Config, gpus: GpuInventory) -> str:
    """Why these settings cannot be on a node with these GPUs; empty: they can."""
    if config.mode == "nvidia":
        from agent.modes.nvidia import offer_of

        return offer_of(config).objection(gpus)
    if refusal := judge_list(gpus, _counted(config)).refusal:
        return refusal
    if config.mode == "volcano":
        from agent.domain import volcano_units

        return volcano_units.objection(
            gpus, config.sharing, config.memory_factor, config.memory_ids
        )
    return ""


def _counted(config: Config) -> Sharing:
    """The sharing by which vGPUs are counted: with sizes no split count says how many there are."""
    if config.mode == "slices" and config.slice_sizes:
        return replace(config.sharing, split_count=1)
    return config.sharing


def own_resources(mode: Mode, config: Config, gpus: GpuInventory) -> frozenset[str]:
    """What this agent offers, or will as soon as it is registered."""
    offered = frozenset(plugin.status.now().resource for plugin in mode.plugins)
    if config.mode == "nvidia":
        from agent.modes.nvidia import offer_of

        offer = offer_of(config)
        return offered | offer.names() | frozenset(offer.resources(gpus))
    return offered | {config.resource_name}  # which had the slices before there were sizes


def own_form(config: Config) -> Callable[[str, GpuInventory], bool]:
    """Whether an id of one of those resources can be ours."""
    if config.mode == "nvidia":
        from agent.domain.nvidia_devices import is_own_form

        return is_own_form
    if config.mode == "volcano":
        from agent.domain import volcano_units

        return volcano_units.is_own_form
    if config.mode == "slices":
        from agent.domain import slices

        return slices.is_own_form
    return vgpu_of_ours
