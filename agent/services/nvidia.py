"""Allocate and GetPreferredAllocation as NVIDIA's device plugin answers them: kubelet decides.

Nobody but kubelet says which container gets which device, so an answer depends on nothing but the
ids and the settings.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent import logs
from agent.domain.gpu import GpuInventory
from agent.domain.grant_plan import GrantPolicy, Named, base_grant
from agent.domain.grants import Grant
from agent.domain.nvidia_devices import MPS, Device, Offer, Resources, physical
from agent.domain.preferred_ids import aligned, greedy
from agent.domain.topology import GpuPair
from agent.errors import AgentError, NodeNotReady, RequestRefused, UnknownDevice
from agent.ports import DriverFiles
from agent.services.published import Inventory, Published

log = logs.get(__name__)

GRANTED = "granted"
LABELS: tuple[tuple[type[AgentError], str], ...] = (
    (UnknownDevice, "unknown_device"),
    (RequestRefused, "request_refused"),
    (NodeNotReady, "node_not_ready"),
)


class Offered:
    """What is offered of the GPUs as they are, made anew when they change. Thread-safe."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._last: tuple[GpuInventory | None, Resources] = (None, {})  # replaced as a whole

    def of(self, inventory: GpuInventory) -> Resources:
        """By resource."""
        seen, resources = self._last
        if seen is not inventory:
            resources = self.offer.resources(inventory)
            self._last = (inventory, resources)
        return resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The devices there are and how they are handed out: the same for all resources of a node."""

    inventory: Inventory
    offered: Offered
    policy: GrantPolicy
    files: DriverFiles
    # IMEX channels that a container gets; raises NodeNotReady where one is required and missing.
    channels: Callable[[], Sequence[int]]
    # Why a container cannot be given devices of a resource now; empty: it can.
    obstacle: Callable[[str], str] = lambda _resource: ""
    # Is told of every grant.
    note: Callable[[Sequence[Device], Grant], None] = lambda _devices, _grant: None
    # What a container gets beside the devices, by resource: MPS.
    extras: Callable[[str], Grant] = lambda _resource: Grant()
    new_id: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))

    def now(self) -> Resources:
        """What is offered now."""
        return self.offered.of(self.inventory.now())


class NvidiaAllocator:
    """Answers Allocate of one resource. Thread-safe: it keeps nothing."""

    def __init__(
        self,
        resource: str,
        supply: Supply,
        *,
        on_outcome: Callable[[str, float], None] = lambda _outcome, _took_s: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resource = resource
        self._supply = supply
        self._on_outcome = on_outcome
        self._clock = clock

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        """Grant the devices of these ids. Raises AllocateRefused, in words for the pod's owner."""
        del deadline_s  # nothing here waits
        started_s = self._clock()
        try:
            devices = self._devices(device_ids)
            grant = self._grant(devices)
        except AgentError as error:
            label = next((name for kind, name in LABELS if isinstance(error, kind)), "internal")
            self._on_outcome(label, self._clock() - started_s)
            log.warning("allocate refused", outcome=label, resource=self._resource, error=error)
            raise
        self._supply.note(devices, grant)
        took_s = self._clock() - started_s
        self._on_outcome(GRANTED, took_s)
        log.info(
            "allocated",
            outcome=GRANTED,
            resource=self._resource,
            devices=",".join(device.device_id for device in devices),
            took_ms=round(took_s * 1000, 1),
        )
        return grant

    def _devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        known = {one.device_id: one for one in self._supply.now().get(self._resource, ())}
        if missing := [device_id for device_id in device_ids if device_id not in known]:
            raise UnknownDevice(
                f"kubelet asks for {missing[0][:80]!r} of {self._resource}, which this node does "
                "not offer (any more): delete the pod, so that it is given another device"
            )
        asked = frozenset(device_ids)  # kubelet's order is none
        devices = tuple(one for one in known.values() if one.device_id in asked)
        self._refuse_too_many(devices)
        return devices

    def _refuse_too_many(self, devices: Sequence[Device]) -> None:
        fails = self._supply.offered.offer.replication.fail_above_one
        if len(devices) > 1 and fails and any(device.shared for device in devices):
            raise RequestRefused(
                f"the container asks for {len(devices)} of {self._resource}, and this node gives "
                "one replica of a shared GPU to a container (failRequestsGreaterThanOne): a second "
                f"one would bring neither memory nor time. Ask for {self._resource}: 1, or for "
                "whole GPUs on a node that does not share them"
            )

    def _grant(self, devices: Sequence[Device]) -> Grant:
        supply = self._supply
        if why := supply.obstacle(self._resource):
            raise NodeNotReady(f"{why}; then delete the pod, so that it is created anew")
        policy = replace(supply.policy, imex_channels=tuple(supply.channels()))
        named = [Named(device.uuid, device.index, device.nodes) for device in devices]
        grant = base_grant(
            named,
            policy,
            response_id=supply.new_id(),
            common_nodes=supply.files.common_nodes(),
        )
        if supply.offered.offer.strategy != MPS or not any(device.shared for device in devices):
            return grant
        extra = supply.extras(self._resource)
        return replace(
            grant, envs={**grant.envs, **extra.envs}, mounts=(*grant.mounts, *extra.mounts)
        )


class NvidiaPreference:
    """Advises kubelet: whole GPUs that are near each other; copies of shared ones as by policy."""

    def __init__(
        self, resource: str, supply: Supply, pairs: Published[tuple[GpuPair, ...]], *, policy: str
    ) -> None:
        """`policy`: of shared devices, see `preferred_ids.greedy`."""
        self._resource = resource
        self._supply = supply
        self._pairs = pairs
        self._policy = policy

    def preferred(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        *,
        deadline_s: float,
    ) -> list[str]:
        """`size` of the available ids; fewer if there are no more."""
        del deadline_s
        devices = self._supply.now().get(self._resource, ())
        if any(device.shared or device.mig for device in devices):
            ids = [device.device_id for device in devices]
            return greedy(
                available, must_include, size, ids, physical=physical, policy=self._policy
            )
        return aligned(available, must_include, size, self._pairs.now())
