"""Makes GPU instances for containers, and takes away those that are nobody's.

HAMi's scheduler (2.10) decides on profile and placement; `agent.services.mig_making` makes the
instances for Allocate, and here they are looked after. What is nobody's is destroyed only when that
is sure: all pods are known, every annotation could be read, the API server has just said so itself,
and kubelet that nobody has it through another plugin. In doubt everything stays.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from agent import logs
from agent.domain.gpu import Gpu, Sharing
from agent.domain.mig import DividedGpu, MigInstance
from agent.domain.mig_books import (
    Book,
    MigHolding,
    Place,
    is_there,
    kept,
    missed,
    strays,
)
from agent.domain.ownership import rivals, withheld
from agent.errors import (
    AgentError,
    BudgetExceeded,
    NodeNotReady,
    NvmlError,
)
from agent.ports import ApplyLock, ClusterEvent, DeviceBooks, MigBook, MigMaker
from agent.services.mig_making import MigMaking
from agent.services.mig_owners import MigOwners, PodsByUid
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
        books: DeviceBooks,
        own_resource: str,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        count: Callable[[str], None] = lambda _what: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`books` say who holds devices of others than `own_resource`.

        `count` is told "created", "adopted", "destroyed", "rolled back".
        """
        self._maker = maker
        self._books = books
        self._own_resource = own_resource
        self._owners = MigOwners(book, view, count=count)
        self._making = MigMaking(maker, self._owners, count=count)
        self._lock = lock
        self._view = view
        self._inventory = inventory
        self._sharing = sharing
        self._post = post
        self._count = count
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._missed: frozenset[MigHolding] = frozenset()  # told already
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
        """One turn: enable, adopt, destroy what is nobody's. Never raises AgentError.

        What only others can have is touched when kubelet has just said that they have not; it is
        asked while nobody waits for us, because it may be waiting itself.
        """
        try:
            with self._turn(self._clock() + LIST_S):
                waits = self._reconcile(None)
            if waits:
                self._owners.theirs = theirs = self._held_by_others()
                with self._turn(self._clock() + LIST_S):
                    self._reconcile(theirs)
        except AgentError as error:
            log.failing("mig not reconciled", error=error)
        else:
            log.recovered("mig not reconciled")

    def _held_by_others(self) -> frozenset[str]:
        """GPUs of which containers have something through another plugin or a DRA driver.

        Kubelets before 1.23 are not asked, see `DeviceBooks`. Raises KubeletUnavailable.
        """
        if self._books.offered() is None:
            return frozenset()
        found = rivals(
            self._books.held(), {}, own_resources=(self._own_resource,), gpus=self._inventory.now()
        )
        return frozenset(withheld(found))

    def missing(self) -> str:
        """Why no MIG device can be made, and what to do; empty: one can."""
        return self._lock.holder()

    def holdings(self) -> Book:
        """What is whose, as it is written. Raises NodeNotReady."""
        return self._owners.book()

    # --- for Allocate

    def realise(
        self,
        wanted: Sequence[MigHolding],
        *,
        deadline_s: float,
        apart: Collection[str] = frozenset(),
    ) -> Book:
        """Have these instances exist; gives them with their names. All or nothing.

        `apart`: containers of the pod that never run beside this one, which may have had them.

        Raises NodeNotReady (and BudgetExceeded) in words for the pod's owner.
        """
        with self._turn(deadline_s):
            try:
                with self._lock.held():
                    return self._making.realise(wanted, deadline_s=deadline_s, apart=apart)
            except AgentError as error:
                raise NodeNotReady(f"{error}; {AGAIN}") from error

    def exist(self, holdings: Sequence[MigHolding], *, deadline_s: float) -> bool:
        """Whether these are there still, under the names by which they were given away.

        Raises NodeNotReady, NvmlError (and BudgetExceeded).
        """
        with self._turn(deadline_s):
            return all(is_there(one, self._maker.look(one.gpu_uuid)) for one in holdings)

    def undo(self, holdings: Sequence[MigHolding]) -> None:
        """Take back what `realise` gave; what cannot be is found by the next turn of the loop."""
        with suppress(AgentError), self._turn(self._clock() + LIST_S), self._lock.held():
            keys = {one.key for one in holdings}
            others = tuple(one for one in self._owners.book() if one.key not in keys)
            shared = {one.place for one in others}
            for one in holdings:
                instance = self._maker.look(one.gpu_uuid).at(one.placement)
                if instance is not None and one.place not in shared:
                    self._maker.destroy(instance)
                    self._count("rolled back")
            self._owners.write(others)

    # --- reconciling

    def _reconcile(self, theirs: Collection[str] | None) -> bool:
        """`theirs`: GPUs that others have something of; None: not asked.

        Tells whether there is something to do that waits for that.
        """
        inventory, table = self._inventory.now(), self._view.pods.now()
        if not inventory.known or inventory.driver_error or not table.synced:
            return False  # nobody knows enough
        gpus, waits = self._seen(inventory.gpus, theirs)
        owned = self._owners.owned(table.pods, gpus, inventory.gpus)
        for divided in gpus.values():
            nothing_else = not strays(divided, owned)
            if divided.enabled and (nothing_else or not divided.busy):
                self._ours.add(divided.uuid)
        doomed = self._doomed(gpus, owned)
        booked = {one.place for one in self._owners.book()}
        certain = [one for one in doomed if _may_go(one, booked, theirs)]
        waits = waits or (theirs is None and len(certain) < len(doomed))
        if certain:
            # Before anything is destroyed: the API server itself, not what a watch has brought.
            pods = self._owners.pods_now(self._clock() + LIST_S)
            owned = self._owners.owned(pods, gpus, inventory.gpus)
            with self._lock.held():
                for instance in self._doomed(gpus, owned):
                    if instance in certain:
                        self._try_destroy(instance)
            gpus = {uuid: self._maker.look(uuid) for uuid in gpus}
        book = self._owners.book()
        fresh = kept(book, table.pods, gpus)
        if fresh != book:
            self._owners.write(fresh)
        self._miss(missed(book, table.pods, gpus), table.pods)
        return waits

    def _miss(self, gone: Sequence[MigHolding], pods: PodsByUid) -> None:
        """Tell once of each device that is not there any more while its pod is."""
        for one in gone:
            if one in self._missed:
                continue
            message = (
                f"the MIG device of container {one.container} ({one.profile} at slice "
                f"{one.placement.start} of GPU {one.gpu_uuid}) does not exist any more: the node "
                "was restarted, or somebody has divided the GPU anew; delete the pod, so that it "
                "is scheduled again"
            )
            log.warning("mig device gone", pod_uid=one.pod_uid, error=message)
            event = ClusterEvent(reason="MigDeviceGone", message=message, pod=pods.get(one.pod_uid))
            self._post(event)
        self._missed = frozenset(gone)

    def _seen(
        self, gpus: Sequence[Gpu], theirs: Collection[str] | None
    ) -> tuple[dict[str, DividedGpu], bool]:
        """What the GPUs are divided into, and whether some are not only because nobody was asked.

        Those that are idle and not in MIG mode are put into it.
        """
        unclear = self._owners.told(self._owners.known_pods()).unclear
        found: dict[str, DividedGpu] = {}
        waits = False
        for gpu in gpus:
            if not gpu.healthy or self._sharing.excludes(gpu):
                continue
            try:
                divided = self._maker.look(gpu.uuid)
                if not divided.enabled and not divided.busy and gpu.uuid not in unclear:
                    waits = waits or theirs is None
                    divided = self._enabled(gpu, theirs) or divided
            except NvmlError as error:
                log.failing("gpu not divided", about=gpu.uuid, error=error)
                continue
            found[gpu.uuid] = divided
            if divided.enabled:
                log.recovered("gpu not divided", about=gpu.uuid)
            elif theirs is not None or divided.busy or gpu.uuid in unclear:
                of = unclear.get(gpu.uuid)
                why = f"pod {of} has a share of it" if of else "somebody still has it"
                log.failing("gpu not divided", about=gpu.uuid, error=why)
        return found, waits

    def _enabled(self, gpu: Gpu, theirs: Collection[str] | None) -> DividedGpu | None:
        """The GPU, in MIG mode now; None: it is perhaps others'. Raises NvmlError."""
        if theirs is None or gpu.uuid in theirs:
            return None
        with self._lock.held():
            self._maker.enable(gpu.uuid)
        log.info("mig enabled", gpu=gpu.uuid, index=gpu.index)
        return self._maker.look(gpu.uuid)

    def _doomed(
        self, gpus: Mapping[str, DividedGpu], owned: Mapping[Place, str]
    ) -> list[MigInstance]:
        """What is nobody's and may go: on GPUs that are ours, and what the book says we made."""
        booked = {one.place for one in self._owners.book()}
        return [
            instance
            for gpu in gpus.values()
            for instance in strays(gpu, owned)
            if not instance.busy
            and (gpu.uuid in self._ours or (gpu.uuid, instance.placement) in booked)
        ]

    def _try_destroy(self, instance: MigInstance) -> None:
        try:
            self._making.destroy(instance)
        except NvmlError as error:
            log.failing(
                "mig instance not destroyed",
                about=f"{instance.gpu_uuid}/{instance.gpu_instance}", error=error,
            )  # fmt: skip

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
                raise NodeNotReady(f"{holder}; {AGAIN}")
            yield
        finally:
            self._one_at_a_time.release()


def _may_go(
    instance: MigInstance, booked: Collection[Place], theirs: Collection[str] | None
) -> bool:
    """Whether no other plugin can have given it away."""
    if (instance.gpu_uuid, instance.placement) in booked:
        return True
    return theirs is not None and instance.gpu_uuid not in theirs
