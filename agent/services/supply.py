"""The node's GPUs and how they are handed out: which one a claim gets, or why it gets none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.domain.asked import more_than_asked, other_unit_mib
from agent.domain.dialect import HAMI, Dialect
from agent.domain.gpu import Gpu, Sharing
from agent.domain.grants import Claim
from agent.domain.mig import gpu_uuid_of
from agent.domain.oversubscription import offered_mib
from agent.domain.pods import Container
from agent.domain.preferred_ids import gpu_of
from agent.errors import MalformedAnnotation, NodeNotReady, UnknownDevice
from agent.services.published import Inventory

NOBODY = "so no scheduler has decided that"
AGAIN = "delete the pod, so that it is scheduled again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What a scheduler's claims are served from. Thread-safe."""

    inventory: Inventory
    sharing: Sharing
    node_name: str
    memory_unit_mib: Callable[[], int]  # in which containers ask for memory
    dialect: Dialect = HAMI

    def check_ids(self, device_ids: Sequence[str]) -> None:
        """Raise NodeNotReady, UnknownDevice where kubelet asks for what the node does not have."""
        inventory = self.inventory.now()
        if not inventory.known:
            raise NodeNotReady(
                "the agent has not read the node's GPUs yet; delete the pod, so that it is created "
                "anew, once the node offers vGPUs again"
            )
        for device_id in device_ids:
            if inventory.gpu(gpu_of(device_id)) is None:
                raise UnknownDevice(
                    f"kubelet asks for the vGPU {device_id}, which is on no GPU of this node: a "
                    "GPU was removed or kubelet's books are old; delete the pod, so that it is "
                    "created anew; if that happens again, look at this node's agent"
                )

    def gpu(self, claim: Claim, container: Container) -> Gpu:
        """The GPU of a claim for a container.

        Raises UnknownDevice and NodeNotReady when it cannot be handed out, MalformedAnnotation when
        no scheduler can have decided that.
        """
        uuid = gpu_uuid_of(claim.uuid)
        if self.sharing.mode != "mig" and uuid != claim.uuid:
            raise NodeNotReady(
                f"the scheduler has chosen {claim.uuid}, which is a MIG device, but this node "
                f"shares its GPUs in mode {self.sharing.mode}; set the node's "
                f"operatingmode to mig (--operating-mode), then {AGAIN}"
            )
        gpu = self.inventory.now().gpu(uuid)
        if gpu is None or not self.sharing.offers(gpu):
            raise UnknownDevice(
                f"the scheduler has chosen the GPU {claim.uuid}, which node {self.node_name} does "
                f"not share (any more): it was removed or excluded after the pod was scheduled; "
                f"{AGAIN}"
            )
        if not gpu.healthy:
            raise NodeNotReady(
                f"the scheduler has chosen the GPU {claim.uuid}, which is unhealthy since: "
                f"{gpu.unhealthy_reason}; {AGAIN} on a healthy one"
            )
        if what := self._undecidable(claim, gpu, container):
            raise MalformedAnnotation(
                f"the pod's annotation claims {what}; {AGAIN}, and see who else writes its "
                "annotations"
            )
        return gpu

    def _undecidable(self, claim: Claim, gpu: Gpu, container: Container) -> str:
        """What of a claim the scheduler cannot have decided, in words; empty: nothing."""
        if self.dialect is HAMI and not self.sharing.could_give(
            gpu, memory_mib=claim.memory_mib, core_percent=claim.core_percent
        ):
            return (
                f"{claim.memory_mib} MiB and {claim.core_percent} % of the GPU {claim.uuid}, more "
                f"than the node offers of it, {NOBODY}"
            )
        if self.sharing.mode == "mig":  # a claim has what its MIG instance has
            return ""
        if self.dialect.lists is not None and container.kind != "app":  # it has another's claim
            return ""
        asked, unit_mib = container.asked, self.memory_unit_mib()
        offered = offered_mib(gpu, self.sharing)
        more = more_than_asked(claim, asked, unit_mib=unit_mib, offered_mib=offered)
        if not more:
            return ""
        other_mib = other_unit_mib(claim, asked, unit_mib=unit_mib)
        units = (
            f", unless it counts memory in units of {other_mib} MiB: set the node's "
            "--gpumem-factor to the scheduler's memoryFactor then"
            if self.dialect is HAMI and other_mib
            else ""
        )
        return f"for container {container.name} {more}, {NOBODY}{units}"
