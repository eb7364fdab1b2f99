"""The Allocate use case where nobody has decided: device ids say what a container gets.

Which pod asks is not known. So the grant gets a name of its own, by which all its files are named;
`agent.services.kubelet_pods` learns from kubelet whose it is. That kubelet asks for an id again
means that it took it back: whoever had it is gone, or is an init container of the same pod.
"""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence

from agent import logs
from agent.domain.gpu import Gpu, Sharing
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.identities import HOLDER, identity
from agent.domain.pods import Container
from agent.domain.slices import Held, Offer, Slice, claims_of, free, slices_of
from agent.errors import BudgetExceeded, NodeNotReady, UnknownDevice
from agent.services.allocator import GRANTED, outcome_of
from agent.services.grant_writer import GrantWriter, Holder, Undo
from agent.services.published import Inventory
from agent.services.slice_books import SliceBooks

log = logs.get(__name__)

MODE = "slices"
_AGAIN = "delete the pod, so that it is created anew"


def _random() -> int:
    return secrets.randbits(64)


class SliceAllocator:
    """Grants slices, one container at a time. Thread-safe."""

    def __init__(
        self,
        inventory: Inventory,
        sharing: Sharing,
        books: SliceBooks,
        writer: GrantWriter,
        *,
        running: Callable[[GrantRecord], bool] = lambda _: False,
        on_outcome: Callable[[str, float], None] = lambda _outcome, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], int] = _random,
    ) -> None:
        """`running`: whether processes of a grant's container are known to live right now."""
        self._inventory = inventory
        self._sharing = sharing
        self._books = books
        self._writer = writer
        self._running = running
        self._on_outcome = on_outcome
        self._clock = clock
        self._random = random
        self._one_at_a_time = threading.Lock()

    def allocate(self, offer: Offer, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        """Grant what these ids stand for. Raises AllocateRefused, in words for the pod's owner."""
        started_s = self._clock()
        try:
            record = self._in_turn(offer, tuple(sorted(device_ids)), deadline_s)
        except Exception as error:
            took_s = self._clock() - started_s
            outcome = outcome_of(error)
            self._on_outcome(outcome, took_s)
            log.warning(
                "allocate refused", outcome=outcome, error=error, took_ms=round(took_s * 1000, 1)
            )
            raise
        took_s = self._clock() - started_s
        self._on_outcome(GRANTED, took_s)
        log.info(
            "allocated",
            outcome=GRANTED,
            grant=record.pod_uid,
            resource=offer.resource,
            ids=",".join(record.device_ids),
            memory_mib=sum(claim.memory_mib for claim in record.claims),
            took_ms=round(took_s * 1000, 1),
        )
        return record.grant

    def _in_turn(self, offer: Offer, ids: tuple[str, ...], deadline_s: float) -> GrantRecord:
        if not self._one_at_a_time.acquire(timeout=max(0.0, deadline_s - self._clock())):
            raise BudgetExceeded(
                "another container's slices are still being granted on this node, and the time "
                f"for this one is used up: the node's disk is slow; {_AGAIN}"
            )
        try:
            slices = self._slices(offer, ids)
            self._refuse_running(ids)
            self._refuse_too_much(slices)
            return self._write(ids, slices, deadline_s)
        finally:
            self._one_at_a_time.release()

    def _write(
        self, ids: tuple[str, ...], slices: Sequence[Slice], deadline_s: float
    ) -> GrantRecord:
        claims, undo = claims_of(slices), Undo()
        gpus = {one.gpu.uuid: one.gpu for one in slices}
        try:
            record = self._writer.write(
                _nobody_yet(identity(MODE, self._random()), deadline_s),
                claims=claims,
                gpus=[gpus[claim.uuid] for claim in claims],
                device_ids=ids,
                before=None,
                undo=undo,
            )
            self._refuse_late(deadline_s)
        except Exception:
            for step in undo:
                step()
            raise
        self._writer.answered(record)
        self._books.touch()
        return record

    # --- what can be wrong

    def _slices(self, offer: Offer, ids: Sequence[str]) -> list[Slice]:
        """What the ids stand for. Raises UnknownDevice, NodeNotReady."""
        inventory = self._inventory.now()
        if not inventory.known:
            raise NodeNotReady(
                f"the agent has not read the node's GPUs yet; {_AGAIN}, once the node offers "
                f"{offer.resource} again"
            )
        if not ids:
            raise UnknownDevice(f"kubelet asks for no slice of {offer.resource} at all; {_AGAIN}")
        known = {one.device_id: one for one in slices_of(offer, inventory, self._sharing)}
        for device_id in ids:
            if device_id not in known:
                raise UnknownDevice(
                    f"kubelet asks for the slice {device_id[:80]!a}, which is none of this node's: "
                    "a GPU was removed, sizes were changed, or kubelet's books are old; "
                    f"{_AGAIN}; if that happens again, look at this node's agent"
                )
            gpu = known[device_id].gpu
            if not gpu.healthy:
                raise NodeNotReady(
                    f"the slice {device_id} is of a GPU that is unhealthy since: "
                    f"{gpu.unhealthy_reason}; {_AGAIN} with slices of a healthy one"
                )
        return [known[device_id] for device_id in ids]

    def _refuse_late(self, deadline_s: float) -> None:
        if self._clock() > deadline_s:
            raise BudgetExceeded(
                f"the time for granting slices is used up: the node's disk is slow; {_AGAIN}"
            )

    def _refuse_running(self, ids: Collection[str]) -> None:
        """Kubelet without its checkpoint takes what runs for free. Raises NodeNotReady."""
        for record in self._books.overlapping(ids):
            if self._running(record):
                name = "/".join(filter(None, (record.namespace, record.pod_name, record.container)))
                raise NodeNotReady(
                    f"kubelet gives away the slice {min(set(ids) & set(record.device_ids))} that "
                    f"{name} holds, whose processes still run: kubelet has lost its books (its "
                    f"checkpoint); delete that pod, or {_AGAIN} until it gets other slices"
                )

    def _refuse_too_much(self, slices: Sequence[Slice]) -> None:
        """Sizes share a GPU, and another container was faster. Raises NodeNotReady."""
        held, ids = self._books.held(), {one.device_id for one in slices}
        gpus = {one.gpu.uuid: one.gpu for one in slices}
        for claim in claims_of(slices):
            gpu = gpus[claim.uuid]
            left = free(gpu, self._sharing, held, but=ids)
            if claim.memory_mib > left.memory_mib or claim.core_percent > left.core_percent:
                raise NodeNotReady(_too_much(claim, gpu, self._sharing, held, ids))


def _nobody_yet(name: str, deadline_s: float) -> Holder:
    return Holder(
        pod_uid=name,
        namespace="",
        pod_name=name,
        container=Container(name=HOLDER),
        deadline_s=deadline_s,
    )


def _too_much(claim: Claim, gpu: Gpu, sharing: Sharing, held: Held, ids: Collection[str]) -> str:
    left = free(gpu, sharing, held, but=ids)
    return (
        f"the container asks for {claim.memory_mib} MiB and {claim.core_percent} % of the cores of "
        f"GPU {gpu.index} ({gpu.uuid}), but only {left} are free: other containers were faster; "
        f"{_AGAIN} when there is room, or ask for a smaller size"
    )
