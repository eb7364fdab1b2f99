"""Makes the GPU instances of one container, at the very places that the scheduler chose.

Each is written into the book before it is made and again when its names are known, and a place only
once it is free, or the container's own: so what lies there after a crash is what had been begun.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agent import logs
from agent.boundaries import passed
from agent.domain.mig import DividedGpu, MigInstance
from agent.domain.mig_books import Book, MigHolding, with_holdings
from agent.errors import AgentError, MigInUse, MigNoRoom, NodeNotReady, NvmlError
from agent.ports import MigMaker
from agent.services.mig_owners import MigOwners, PodsByUid

log = logs.get(__name__)


class MigMaking:
    """Used by one thread at a time, under the sign that GPUs are being divided."""

    def __init__(self, maker: MigMaker, owners: MigOwners, *, count: Callable[[str], None]) -> None:
        self._maker = maker
        self._owners = owners
        self._count = count

    def realise(
        self, wanted: Sequence[MigHolding], *, deadline_s: float, apart: Collection[str]
    ) -> Book:
        """Have these instances exist; gives them with their names. All or nothing.

        What a container `apart` has at the very place, of the same profile, is this one's as well.

        Raises AgentError, after what was made has been taken back.
        """
        making = _Making(deadline_s=deadline_s, apart=apart)
        before: Book = ()
        try:
            before = self._owners.book()
            same = {(one.key, one.place, one.profile_id) for one in wanted}
            known = {one.key: one for one in before if (one.key, one.place, one.profile_id) in same}
            begun = [known.get(one.key) or _handed_on(one, before, apart) for one in wanted]
            _refuse_overlaps(begun)
            # The book names a place only when it is free, or ours: what lies there after a
            # crash is then what had been begun.
            there = [self._free_or_ours(one, making, begun=one.key in known) for one in begun]
            self._owners.write(with_holdings(before, begun))
            done = tuple(
                self._one(one, found, making) for one, found in zip(begun, there, strict=True)
            )
            self._owners.write(with_holdings(self._owners.book(), done))
        except AgentError:
            self._roll_back(before, making)
            raise
        return done

    def _free_or_ours(
        self, holding: MigHolding, making: "_Making", *, begun: bool
    ) -> MigInstance | None:
        """What this container was given there before; None: nothing lies there (any more).

        `begun`: the book has it from before. Raises NodeNotReady, MigNoRoom, MigInUse.
        """
        gpu = self._maker.look(holding.gpu_uuid)
        if not gpu.enabled:
            raise NodeNotReady(
                f"GPU {holding.gpu_uuid} is not in MIG mode: something is still running on it, or "
                "it needs a reset; look at this node's agent"
            )
        if not any(one.placement.overlaps(holding.placement) for one in gpu.instances):
            return None
        pods = self._owners.sure_pods(making.deadline_s)
        found = gpu.at(holding.placement)
        if found is not None and self._owners.is_ours(
            holding, found, pods, begun=begun, apart=making.apart
        ):
            return found
        self._clear(gpu, holding, pods)
        return None

    def _one(self, holding: MigHolding, found: MigInstance | None, making: "_Making") -> MigHolding:
        if found is not None:
            instance = found if found.devices else self._maker.complete(found)
            log.info("mig instance adopted", **_about(holding, instance))
            self._count("adopted")
            return holding.named(instance)
        making.tried.append(holding)
        instance = self._maker.create(holding.gpu_uuid, holding.profile_id, holding.placement)
        passed("mig-instance-made")
        log.info("mig instance created", **_about(holding, instance))
        self._count("created")
        return holding.named(instance)

    def _clear(self, gpu: DividedGpu, holding: MigHolding, pods: PodsByUid) -> None:
        """Make room: what lies there and is nobody's goes. Raises MigNoRoom, MigInUse."""
        where = (
            f"the scheduler has chosen {holding.profile} at slice {holding.placement.start} of GPU "
            f"{holding.gpu_uuid}"
        )
        for instance in gpu.instances:
            if not instance.placement.overlaps(holding.placement):
                continue
            uid = self._owners.owner(holding, instance, pods)
            pod = pods.get(uid) if uid else None
            if pod is not None and not (pod.deleting and not instance.busy):
                raise MigNoRoom(f"{where}, where pod {pod.full_name} has its instance")
            if instance.busy:
                raise MigInUse(f"{where}, where a process still uses what was there before")
            if not self._owners.is_nobodys(instance, pods):
                raise MigNoRoom(
                    f"at slice {instance.placement.start} of GPU {instance.gpu_uuid} lies an "
                    "instance of which nobody can tell yet whose it is: it may be another "
                    "plugin's, or that of a pod whose annotation does not say; look at this node's "
                    "agent"
                )
            self.destroy(instance)

    def _roll_back(self, before: Book, making: "_Making") -> None:
        """Take back what was made; what cannot be stays in the book, so that the loop finds it."""
        left = []
        for one in reversed(making.tried):
            try:
                found = self._maker.look(one.gpu_uuid).at(one.placement)
                if found is not None:
                    self._maker.destroy(found)
                    self._count("rolled back")
            except NvmlError as error:
                log.failing("mig instance not rolled back", error=error)
                left.append(one)
        with suppress(AgentError):
            self._owners.write(with_holdings(before, left))

    def destroy(self, instance: MigInstance) -> None:
        self._maker.destroy(instance)
        passed("mig-instance-destroyed")
        log.info(
            "mig instance destroyed", gpu=instance.gpu_uuid, gpu_instance=instance.gpu_instance,
            start=instance.placement.start, size=instance.placement.size,
        )  # fmt: skip
        self._count("destroyed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """One container's instances while they are made."""

    deadline_s: float
    apart: Collection[str]  # containers of the pod that never run beside it
    tried: list[MigHolding] = field(default_factory=list)  # made, or perhaps made in part


def _handed_on(holding: MigHolding, book: Book, apart: Collection[str]) -> MigHolding:
    """The holding by the names of the instance that such a container has there, if one has."""
    for one in book:
        if (
            (one.pod_uid, one.place, one.profile_id)
            == (holding.pod_uid, holding.place, holding.profile_id)
            and one.container in apart
            and one.identity is not None
        ):
            return replace(holding, identity=one.identity)
    return holding


def _refuse_overlaps(holdings: Sequence[MigHolding]) -> None:
    for one, other in itertools.combinations(holdings, 2):
        if one.gpu_uuid == other.gpu_uuid and one.placement.overlaps(other.placement):
            raise MigNoRoom(
                f"container {one.container} was promised two instances on GPU {one.gpu_uuid} that "
                f"lie over each other, at slices {one.placement.start} and {other.placement.start}"
            )


def _about(holding: MigHolding, instance: MigInstance) -> dict[str, object]:
    return {
        "gpu": holding.gpu_uuid,
        "profile": holding.profile,
        "start": holding.placement.start,
        "mig": instance.devices[0][1] if instance.devices else "",
        "container": holding.container,
    }
