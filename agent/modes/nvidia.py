"""Mode `nvidia`: what NVIDIA's device plugin does, by its names. No scheduler, no API server.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.adapters.caches import HostCaches
from agent.adapters.device_plugin import Answers
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.kubelet import KubeletLink
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.socket_watch import SocketWatch
from agent.config import Config
from agent.domain.gpu import GpuInventory
from agent.domain.mps import client
from agent.domain.nvidia_devices import (
    MIG_MIXED,
    MPS,
    TIME_SLICING,
    Offer,
    is_own_form,
    judge,
    vgpus,
)
from agent.domain.topology import GpuPair
from agent.modes.host_side import cdi_specs, driver_files, policy_of
from agent.modes.slices import kubelet_pods, running_of
from agent.parts import Parts
from agent.services.mps import MpsDaemons
from agent.services.nvidia import NvidiaAllocator, NvidiaPreference, Offered, Supply
from agent.services.nvidia_grants import NvidiaGrants
from agent.services.nvidia_resources import ResourcePlaces
from agent.services.plugin import Plugin
from agent.services.published import Published
from agent.supervisor import Service

MIG_PROFILES = 16  # on one node, more than any GPU has

__all__ = ["NvidiaMode", "is_own_form", "offer_of"]


def offer_of(config: Config) -> Offer:
    """What is offered, by the settings."""
    shared, strategy = config.time_slicing, TIME_SLICING if config.time_slicing.resources else ""
    if config.mps.resources:
        shared, strategy = config.mps, MPS
    return Offer(
        resource_name=config.resource_name,
        mig_strategy=config.mig_strategy,
        patterns=config.resource_patterns,
        strategy=strategy,
        replication=shared,
        excluded_uuids=config.sharing.excluded_uuids,
        excluded_indices=config.sharing.excluded_indices,
    )


class NvidiaMode:
    """Implements `Mode`."""

    services: Sequence[Service]

    def __init__(self, parts: Parts, grants: FileGrantLog, _limits: HostLiveLimits) -> None:
        config = parts.config
        self._parts = parts
        self._offer = offer_of(config)
        files = driver_files(config)
        policy = replace(policy_of(config), imex_channels=())
        self.caches = HostCaches(config.host_vgpu_dir, lock_dir=config.lock_dir)
        self._cdi = cdi_specs(config, parts.inventory, files, policy)
        pods = kubelet_pods(parts, grants, running=running_of(parts))
        notes = NvidiaGrants(grants, noted=pods.wake)
        self._supply = Supply(
            note=notes.note,
            inventory=parts.inventory,
            offered=Offered(self._offer),
            policy=policy,
            files=files,
            channels=self._cdi.channels if self._cdi else files.imex_channels,
            obstacle=self._obstacle,
            extras=lambda resource: client(resource, str(config.mps_root)),
        )
        self._mps = self._made_mps()
        self._places = ResourcePlaces(
            parts.inventory, self._names, self._plugin, _most_resources(self._offer)
        )
        more = (self._cdi, self._mps)
        self.services = [
            *self._places.places,
            notes,
            pods,
            *(one for one in more if one),
            *_configuration(parts),
        ]

    @property
    def plugins(self) -> Sequence[Plugin]:
        """Of the resources there have been so far."""
        return self._places.plugins()

    def missing(self) -> Sequence[str]:
        reasons, gpus = [], self._parts.inventory.now()
        if not gpus.known and not gpus.driver_error:  # or there would be nothing missing yet
            reasons.append("the GPUs are not known yet")
        elif gpus.known and not self.plugins:
            reasons.append("this node has no device that could be offered")
        if self._cdi and (why := self._cdi.problem.now()):
            reasons.append(why)
        if self._mps and (why := self._mps.first_problem()):
            reasons.append(why)
        return reasons

    def leave(self, within_s: float) -> None:
        """Nothing was written to the cluster."""

    def _obstacle(self, resource: str) -> str:
        """Why a container cannot be given devices of a resource now; empty: it can."""
        problem = self._cdi.problem.now() if self._cdi else ""
        return problem or (self._mps.problem(resource) if self._mps else "")

    def _tried(self, timeout_s: float) -> bool:
        """Wait until CDI files and MPS daemons are there, or could not be had."""
        return all(one.tried(timeout_s) for one in (self._cdi, self._mps) if one)

    def _made_mps(self) -> MpsDaemons | None:
        """Who looks after daemons, where there are to be some or were some."""
        root = self._parts.config.mps_root
        if self._offer.strategy != MPS and not root.is_dir():
            return None
        from agent.adapters.mps import HostMps

        return MpsDaemons(self._parts.inventory, self._offer, HostMps(root))

    def _names(self, inventory: GpuInventory) -> Sequence[str]:
        return list(self._supply.offered.of(inventory))

    def _plugin(self, resource: str) -> Plugin:
        parts, config, supply = self._parts, self._parts.config, self._supply
        metrics = parts.metrics
        answers = Answers(
            parts.inventory,
            lambda gpus: vgpus(supply.offered.of(gpus).get(resource, ())),
            NvidiaAllocator(resource, supply, on_outcome=metrics.allocation),
            NvidiaPreference(
                resource,
                supply,
                parts.topology or Published[tuple[GpuPair, ...]](()),
                policy=config.shared_allocation_policy,
            ),
            budget_s=config.allocate_budget_s,
            on_overdue=lambda took_s: metrics.allocation("budget_exceeded", took_s),
        )
        return Plugin(
            resource,
            KubeletLink(config.kubelet_socket, resource, answers),
            SocketWatch(config.kubelet_socket),
            parts.inventory,
            config.sharing,
            judge=lambda gpus: judge(supply.offered.of(gpus).get(resource, ())),
            prepared=self._tried,
            count=metrics.registration,
        )


def _configuration(parts: Parts) -> Sequence[Service]:
    """Who follows the Node's label, where that chooses the configuration."""
    if parts.config.config_srcdir is None:
        return ()
    from agent.modes.node_config import watching

    return watching(parts)


def _most_resources(offer: Offer) -> int:
    return len(offer.names()) + (MIG_PROFILES if offer.mig_strategy == MIG_MIXED else 0)
