"""Makes GPU instances for containers, and takes away those that are nobody's.

HAMi's scheduler (2.10) decides on profile and placement; here the instance comes into being. Each
is written into our book before it is made and again when its names are known, so that an agent
that was killed anywhere finds, at the same place, what it had begun: it is taken up, not made
twice. What is nobody's is destroyed only when that is sure: all pods are known, every annotation
could be read, and the API server has just said so itself. In doubt everything stays.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from agent import logs
from agent.boundaries import passed
from agent.domain.gpu import Gpu, Sharing
from agent.domain.mig import DividedGpu, MigInstance
from agent.domain.mig_books import (
    Book,
    MigHolding,
    Place,
    adopted,
    held_places,
    kept,
    strays,
    told_by_pods,
    with_holdings,
)
from agent.domain.pods import Pod
from agent.errors import (
    AgentError,
    BudgetExceeded,
    MigInUse,
    MigNoRoom,
    NodeNotReady,
    NvmlError,
)
from agent.ports import ApplyLock, ClusterEvent, MigBook, MigMaker
from agent.services.node_view import NodeView
from agent.services.published import Inventory
from agent.supervisor import Lifeline

log = logs.get(__name__)

EVERY_S = 5.0
LIST_S = 5.0  # for asking the API server before something is destroyed
WORKING_S = 600.0  # a driver that hangs is no stuck agent, see services/health.py
AGAIN = "delete the pod, so that it is scheduled again"


class MigKeeper:
    """Loop: look every 5 s; and `realise`, called by Allocate. Thread-safe."""

    name = "mig"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        maker: MigMaker,
        book: MigBook,
        lock: ApplyLock,
        view: NodeView,
        inventory: Inventory,
        sharing: Sharing,
        *,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        count: Callable[[str], None] = lambda _what: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count` is told "created", "adopted", "destroyed", "rolled back"."""
        self._maker = maker
        self._file = book
        self._lock = lock
        self._view = view
        self._inventory = inventory
        self._sharing = sharing
        self._post = post
        self._count = count
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._book: Book | None = None  # None: not read yet
        self._ours: set[str] = set()  # GPUs that were seen to have nothing of anybody else's

    # --- the loop

    def run(self, life: Lifeline) -> None:
        while not self._view.pods.now().synced or not self._inventory.now().known:
            if not life.pause(0.5):
                return
        while not life.stopping:
            life.pulse(WORKING_S)
            self.step_once()
            life.pause(EVERY_S)

    def step_once(self) -> None:
        """One turn: enable, adopt, destroy what is nobody's. Never raises AgentError."""
        try:
            with self._turn(self._clock() + LIST_S):
                self._reconcile()
        except AgentError as error:
            log.failing("mig not reconciled", error=error)
        else:
            log.recovered("mig not reconciled")

    def missing(self) -> str:
        """Why no MIG device can be given; empty: one can."""
        return self._lock.holder()

    def holdings(self) -> Book:
        """What is whose, as it is written. Raises NodeNotReady."""
        return self._read_book()

    # --- for Allocate

    def realise(self, wanted: Sequence[MigHolding], *, deadline_s: float) -> Book:
        """Have these instances exist; gives them with their names. All or nothing.

        Raises NodeNotReady (and BudgetExceeded) in words for the pod's owner.
        """
        with self._turn(deadline_s), self._lock.held():
            made: list[MigInstance] = []
            before: Book = ()
            try:
                before = self._read_book()
                same = {(one.key, one.place, one.profile_id) for one in wanted}
                known = {
                    one.key: one for one in before if (one.key, one.place, one.profile_id) in same
                }
                begun = [known.get(one.key, one) for one in wanted]
                self._write(with_holdings(before, begun))
                done = tuple(self._one(one, made, begun=one.key in known) for one in begun)
                self._write(with_holdings(self._read_book(), done))
            except AgentError as error:
                self._roll_back(before, made)
                raise NodeNotReady(f"{error}; {AGAIN}") from error
            return done

    def undo(self, holdings: Sequence[MigHolding]) -> None:
        """Take back what `realise` gave; what cannot be is found by the next turn of the loop."""
        with suppress(AgentError), self._turn(self._clock() + LIST_S), self._lock.held():
            for one in holdings:
                instance = self._maker.look(one.gpu_uuid).at(one.placement)
                if instance is not None:
                    self._maker.destroy(instance)
                    self._count("rolled back")
            keys = {one.key for one in holdings}
            self._write(tuple(one for one in self._read_book() if one.key not in keys))

    def _one(self, holding: MigHolding, made: list[MigInstance], *, begun: bool) -> MigHolding:
        """`begun`: the book has it from before."""
        gpu = self._maker.look(holding.gpu_uuid)
        if not gpu.enabled:
            raise NodeNotReady(
                f"GPU {holding.gpu_uuid} is not in MIG mode: something is still running on it, or "
                "it needs a reset; look at this node's agent"
            )
        found = gpu.at(holding.placement)
        if found is not None and self._is_ours(holding, found, begun=begun):
            instance = found if found.devices else self._maker.complete(found)
            log.info("mig instance adopted", **_about(holding, instance))
            self._count("adopted")
            return holding.named(instance)
        self._clear(gpu, holding)
        instance = self._maker.create(holding.gpu_uuid, holding.profile_id, holding.placement)
        made.append(instance)
        passed("mig-instance-made")
        log.info("mig instance created", **_about(holding, instance))
        self._count("created")
        return holding.named(instance)

    def _is_ours(self, holding: MigHolding, found: MigInstance, *, begun: bool) -> bool:
        """Whether what lies there is what this very container was given, or was being given.

        Something with a process on it is only if it has the very names that were written down.
        """
        if found.profile_id != holding.profile_id or self._owner(holding, found) is not None:
            return False
        if holding.identity is not None:
            known = holding.identity.compute_instance, holding.identity.mig_uuid
            return found.gpu_instance == holding.identity.gpu_instance and known in found.devices
        return begun and not found.busy

    def _owner(self, holding: MigHolding, found: MigInstance) -> str | None:
        """The living pod, other than the holding's, whose instance this is."""
        place = found.gpu_uuid, found.placement
        pods = self._view.pods.now().pods
        held = {
            one.place: one
            for one in self._read_book()
            if one.key != holding.key and one.pod_uid in held_places((one,), pods).values()
        }
        if place in held:
            return held[place].pod_uid
        told = told_by_pods(pods.values(), self._view.node_name).places.get(place)
        return told if told != holding.pod_uid else None

    def _clear(self, gpu: DividedGpu, holding: MigHolding) -> None:
        """Make room: what lies there and is nobody's goes. Raises MigNoRoom, MigInUse."""
        pods = self._view.pods.now().pods
        for instance in gpu.instances:
            if not instance.placement.overlaps(holding.placement):
                continue
            uid = self._owner(holding, instance)
            pod = pods.get(uid) if uid else None
            if pod is not None and not (pod.deleting and not instance.busy):
                raise MigNoRoom(
                    f"the scheduler has chosen {holding.profile} at slice "
                    f"{holding.placement.start} of GPU {holding.gpu_uuid}, where pod "
                    f"{pod.full_name} has its instance"
                )
            if instance.busy:
                raise MigInUse(
                    f"the scheduler has chosen {holding.profile} at slice "
                    f"{holding.placement.start} of GPU {holding.gpu_uuid}, where a process still "
                    "uses what was there before"
                )
            if instance.devices and not self._certain(instance):
                raise MigNoRoom(
                    f"at slice {instance.placement.start} of GPU {instance.gpu_uuid} lies an "
                    "instance of which nobody can tell whose it is, because a pod's annotation "
                    "cannot be read; look at this node's agent"
                )
            self._destroy(instance)

    def _certain(self, instance: MigInstance) -> bool:
        """Whether what nobody seems to have is nobody's: our book says so, or all pods do."""
        if any(one.place == (instance.gpu_uuid, instance.placement) for one in self._read_book()):
            return True
        pods = self._view.pods.now().pods.values()
        return not told_by_pods(pods, self._view.node_name).unreadable

    def _roll_back(self, before: Book, made: Sequence[MigInstance]) -> None:
        for instance in reversed(made):
            try:
                self._maker.destroy(instance)
                self._count("rolled back")
            except NvmlError as error:  # nobody's now: the loop finds it
                log.failing("mig instance not rolled back", error=error)
        with suppress(AgentError):
            self._write(before)

    # --- reconciling

    def _reconcile(self) -> None:
        inventory, table = self._inventory.now(), self._view.pods.now()
        if not inventory.known or inventory.driver_error or not table.synced:
            return  # nobody knows enough
        gpus: dict[str, DividedGpu] = {}
        for gpu in inventory.gpus:
            if gpu.healthy and not self._sharing.excludes(gpu):
                found = self._seen(gpu)
                if found is not None:
                    gpus[gpu.uuid] = found
        owned = self._owned(table.pods, gpus, inventory.gpus)
        for divided in gpus.values():
            nothing_else = not strays(divided, owned)
            if divided.enabled and (nothing_else or not divided.busy):
                self._ours.add(divided.uuid)
        doomed = self._doomed(gpus, owned)
        if doomed:
            # Before anything is destroyed: the API server itself, not what a watch has brought.
            pods = {p.uid: p for p in self._view.read_pods(deadline_s=self._clock() + LIST_S)}
            owned = self._owned(pods, gpus, inventory.gpus)
            with self._lock.held():
                for instance in self._doomed(gpus, owned):
                    self._try_destroy(instance)
        book = self._read_book()
        fresh = kept(book, table.pods, {u: self._maker.look(u) for u in gpus} if doomed else gpus)
        if fresh != book:
            self._write(fresh)

    def _seen(self, gpu: Gpu) -> DividedGpu | None:
        """What a GPU is divided into; one that is idle and not in MIG mode is put into it."""
        try:
            found = self._maker.look(gpu.uuid)
            if not found.enabled and not found.busy:
                with self._lock.held():
                    self._maker.enable(gpu.uuid)
                log.info("mig enabled", gpu=gpu.uuid, index=gpu.index)
                found = self._maker.look(gpu.uuid)
        except NvmlError as error:
            log.failing("gpu not divided", about=gpu.uuid, error=error)
            return None
        if not found.enabled:
            log.failing("gpu not divided", about=gpu.uuid, error="something still runs on it")
        else:
            log.recovered("gpu not divided", about=gpu.uuid)
        return found

    def _owned(
        self, pods: Mapping[str, Pod], gpus: Mapping[str, DividedGpu], known: Sequence[Gpu]
    ) -> dict[Place, str]:
        """Whose is what; what a pod holds that somebody else served is written into the book.

        While a pod's annotation cannot be read, everything that is not in the book is its own.
        Raises NodeNotReady: then nothing is destroyed.
        """
        book = self._read_book()
        said = told_by_pods(pods.values(), self._view.node_name)
        told = dict(said.places)
        owned = told | held_places(book, pods)
        booked = {one.place for one in book}
        if said.unreadable:
            log.failing("mig annotation unreadable", about=said.unreadable[0], error="see the pod")
            owned |= {
                (gpu.uuid, instance.placement): ""
                for gpu in gpus.values()
                for instance in gpu.instances
                if (gpu.uuid, instance.placement) not in booked
            }
        profiles = {gpu.uuid: {p.name: p.profile_id for p in gpu.mig_profiles} for gpu in known}
        fresh = [
            one
            for uid in dict.fromkeys(told.values())
            for one in adopted(pods[uid], gpus, profiles)
            if one.place not in booked
        ]
        if fresh:
            self._write(with_holdings(book, fresh))
            for one in fresh:
                log.info("mig instance adopted", pod_uid=one.pod_uid, gpu=one.gpu_uuid)
                self._count("adopted")
        return owned

    def _doomed(
        self, gpus: Mapping[str, DividedGpu], owned: Mapping[Place, str]
    ) -> list[MigInstance]:
        """What is nobody's and may go: on GPUs that are ours, and what the book says we made."""
        booked = {one.place for one in self._read_book()}
        return [
            instance
            for gpu in gpus.values()
            for instance in strays(gpu, owned)
            if not instance.busy
            and (gpu.uuid in self._ours or (gpu.uuid, instance.placement) in booked)
        ]

    def _try_destroy(self, instance: MigInstance) -> None:
        try:
            self._destroy(instance)
        except NvmlError as error:
            log.failing(
                "mig instance not destroyed",
                about=f"{instance.gpu_uuid}/{instance.gpu_instance}", error=error,
            )  # fmt: skip

    def _destroy(self, instance: MigInstance) -> None:
        self._maker.destroy(instance)
        passed("mig-instance-destroyed")
        log.info(
            "mig instance destroyed", gpu=instance.gpu_uuid, gpu_instance=instance.gpu_instance,
            start=instance.placement.start, size=instance.placement.size,
        )  # fmt: skip
        self._count("destroyed")

    # --- one at a time

    @contextmanager
    def _turn(self, deadline_s: float) -> Iterator[None]:
        if not self._one_at_a_time.acquire(timeout=max(0.0, deadline_s - self._clock())):
            raise BudgetExceeded(
                "this node's GPUs are still being divided for somebody else, and the time for this "
                f"container is used up; {AGAIN}"
            )
        try:
            if holder := self._lock.holder():
                raise NodeNotReady(
                    f"{holder}; stop that plugin on this node, or wait until it is done; {AGAIN}"
                )
            yield
        finally:
            self._one_at_a_time.release()

    def _read_book(self) -> Book:
        if self._book is None:
            self._book = self._file.load()
        return self._book

    def _write(self, book: Book) -> None:
        self._file.save(book)
        self._book = book


def _about(holding: MigHolding, instance: MigInstance) -> dict[str, object]:
    return {
        "gpu": holding.gpu_uuid,
        "profile": holding.profile,
        "start": holding.placement.start,
        "mig": instance.devices[0][1] if instance.devices else "",
        "container": holding.container,
    }
