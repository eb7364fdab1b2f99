"""Whose each GPU instance is: our book first, then what the pods' annotations say.

Nothing here changes a GPU; what is destroyed decides `agent.services.mig_keeper`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from agent import logs
from agent.domain.gpu import Gpu
from agent.domain.mig import DividedGpu, MigInstance
from agent.domain.mig_books import (
    Book,
    MigHolding,
    Place,
    Told,
    adopted,
    held_places,
    told_by_pods,
    with_holdings,
)
from agent.domain.pods import Pod
from agent.errors import ClusterError, NodeNotReady
from agent.ports import MigBook
from agent.services.node_view import NodeView

log = logs.get(__name__)

PodsByUid = Mapping[str, Pod]


class MigOwners:
    """Keeps the book. Used by one thread at a time."""

    def __init__(self, file: MigBook, view: NodeView, *, count: Callable[[str], None]) -> None:
        self._file = file
        self._view = view
        self._count = count
        self._book: Book | None = None  # None: not read yet
        self.theirs: Collection[str] | None = None  # GPUs of other plugins' containers, if known

    def book(self) -> Book:
        """What is whose, as it is written. Raises NodeNotReady."""
        if self._book is None:
            self._book = self._file.load()
        return self._book

    def write(self, book: Book) -> None:
        """Raises NodeNotReady."""
        self._file.save(book)
        self._book = book

    # --- pods

    def known_pods(self) -> PodsByUid:
        """As the watch has brought them."""
        return self._view.pods.now().pods

    def pods_now(self, deadline_s: float) -> PodsByUid:
        """As the API server has them. Raises ClusterError."""
        return {pod.uid: pod for pod in self._view.read_pods(deadline_s=deadline_s)}

    def sure_pods(self, deadline_s: float) -> PodsByUid:
        """The same for who is about to change a GPU. Raises NodeNotReady."""
        try:
            return self.pods_now(deadline_s)
        except ClusterError as error:
            raise NodeNotReady(
                "something lies where the scheduler wants the instance, and whose it is cannot be "
                "told while the API server does not answer"
            ) from error

    def told(self, pods: PodsByUid) -> Told:
        """What the pods' annotations say."""
        return told_by_pods(pods.values(), self._view.node_name, self.book())

    # --- one instance

    def is_ours(
        self,
        holding: MigHolding,
        found: MigInstance,
        pods: PodsByUid,
        *,
        begun: bool,
        apart: Collection[str] = frozenset(),
    ) -> bool:
        """Whether what lies there is what this very container was given, or was being given.

        Something with a process on it is only if it has the very names that were written down.
        `apart`: containers of the pod with which it may share it.
        """
        if found.profile_id != holding.profile_id:
            return False
        if self.owner(holding, found, pods, apart=apart) is not None:
            return False
        if holding.identity is not None:
            known = holding.identity.compute_instance, holding.identity.mig_uuid
            return found.gpu_instance == holding.identity.gpu_instance and known in found.devices
        return begun and not found.busy

    def owner(
        self,
        holding: MigHolding,
        found: MigInstance,
        pods: PodsByUid,
        *,
        apart: Collection[str] = frozenset(),
    ) -> str | None:
        """The living pod whose instance this is, unless the holding's container has it."""
        place = found.gpu_uuid, found.placement
        held = {
            one.place: one
            for one in self.book()
            if one.key != holding.key
            and not (one.pod_uid == holding.pod_uid and one.container in apart)
            and one.pod_uid in held_places((one,), pods).values()
        }
        if place in held:
            return held[place].pod_uid
        told = self.told(pods).places.get(place)
        return told if told != holding.pod_uid else None

    def is_nobodys(self, instance: MigInstance, pods: PodsByUid) -> bool:
        """Whether what has no owner is surely nobody's: our book says so, or all others do."""
        if any(one.place == (instance.gpu_uuid, instance.placement) for one in self.book()):
            return True
        if self.theirs is None or instance.gpu_uuid in self.theirs:
            return False
        told = self.told(pods)
        return not told.unreadable and instance.gpu_uuid not in told.unclear

    # --- all of them

    def owned(
        self, pods: PodsByUid, gpus: Mapping[str, DividedGpu], known: Sequence[Gpu]
    ) -> dict[Place, str]:
        """Whose is what; what a pod holds that somebody else served is written into the book.

        What cannot be told for sure is owned by "", unless it is in the book. Raises NodeNotReady:
        then nothing is destroyed.
        """
        told = self.told(pods)
        if told.unreadable:
            log.failing("mig annotation unreadable", about=told.unreadable[0], error="see the pod")
        booked = {one.place for one in self.book()}
        owned = {
            (gpu.uuid, instance.placement): ""
            for gpu in gpus.values()
            if told.unreadable or gpu.uuid in told.unclear
            for instance in gpu.instances
            if (gpu.uuid, instance.placement) not in booked
        }
        owned |= dict(told.places) | held_places(self.book(), pods)
        self._adopt(told, pods, gpus, known)
        return owned

    def _adopt(
        self,
        told: Told,
        pods: PodsByUid,
        gpus: Mapping[str, DividedGpu],
        known: Sequence[Gpu],
    ) -> None:
        book = self.book()
        booked = {one.place for one in book}
        profiles = {gpu.uuid: {p.name: p.profile_id for p in gpu.mig_profiles} for gpu in known}
        fresh = [
            one
            for uid in dict.fromkeys(told.places.values())
            for one in adopted(pods[uid], gpus, profiles)
            if one.place not in booked
        ]
        if not fresh:
            return
        self.write(with_holdings(book, fresh))
        for one in fresh:
            log.info("mig instance adopted", pod_uid=one.pod_uid, gpu=one.gpu_uuid)
            self._count("adopted")
