"""Mode `slices`: nobody decides but kubelet, by the ids it takes. No scheduler, no API server.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

from collections.abc import Callable, Mapping, Sequence

from agent import logs
from agent.adapters.caches import CONTAINERS
from agent.adapters.device_plugin import Answers
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.grant_wire import decode_grant
from agent.adapters.kubelet import KubeletLink
from agent.adapters.kubelet_checkpoint import KubeletCheckpoint
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.process_places import HostProcessPlaces
from agent.adapters.processes import HostProcesses
from agent.adapters.socket_watch import SocketWatch
from agent.domain.enforcement import Granted
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.grants import Grant, GrantRecord
from agent.domain.kubelet_books import Entry
from agent.domain.slices import Amount, Offer, advertised, offers, unfit, worth
from agent.domain.vgpu_ids import ListVerdict
from agent.modes.host_side import HostSide
from agent.parts import Parts
from agent.services.grant_writer import GrantWriter
from agent.services.kubelet_pods import KubeletPods
from agent.services.lost_grants import LostGrants
from agent.services.plugin import Plugin
from agent.services.published import Pods
from agent.services.slice_allocator import SliceAllocator
from agent.services.slice_books import SliceBooks
from agent.services.slice_preference import SlicePolicy, SlicePreference
from agent.supervisor import Service

log = logs.get(__name__)


class SlicesMode:
    """Implements `Mode`."""

    services: Sequence[Service]
    plugins: Sequence[Plugin]

    def __init__(self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> None:
        config = parts.config
        host = HostSide(config, grants, parts.view.pods, parts.inventory)
        self.caches, self._host = host.caches, host
        running = running_of(parts)
        offered = offers(config.resource_name, config.slice_sizes)

        def worths() -> Mapping[str, tuple[str, Amount]]:
            return worth(offered, parts.inventory.now(), config.sharing)

        self._books = SliceBooks(grants, limits, worth=worths)
        limits.listen(self._books.touch)
        pods = kubelet_pods(
            parts,
            grants,
            running=running,
            released=self._books.release,
            given=self._books.given,
            adopt=LostGrants(
                limits.read, decode=decode_grant, gpus=parts.inventory.now, worth=worths
            ).adopt,
        )
        self._books.changed.listen(pods.wake)
        self._again = pods.again
        self._allocator = SliceAllocator(
            parts.inventory,
            config.sharing,
            self._books,
            GrantWriter(host.caches, grants, host.policy, changed=limits),
            running=running,
            on_outcome=parts.metrics.allocation,
        )
        self._preference = SlicePreference(
            parts.inventory,
            config.sharing,
            self._books,
            SlicePolicy(placement=config.slice_placement, gpus=config.slice_gpus),
            running=running,
        )
        self.plugins = [self._plugin(parts, offer) for offer in offered]
        self.services = [*self.plugins, pods, *host.services]

    def missing(self) -> Sequence[str]:
        return [why for why in (self._host.missing(),) if why]

    def leave(self, within_s: float) -> None:
        """Nothing was written to the cluster."""

    def _plugin(self, parts: Parts, offer: Offer) -> Plugin:
        config, metrics = parts.config, parts.metrics
        answers = Answers(
            parts.inventory,
            lambda picture: advertised(offer, picture, config.sharing, self._books.held()),
            _Granting(self._allocator, offer),
            _Choosing(self._preference, offer),
            also=self._books.changed,
            again=self._again,
            budget_s=config.allocate_budget_s,
            on_overdue=lambda took_s: metrics.allocation("budget_exceeded", took_s),
        )
        return Plugin(
            offer.resource,
            KubeletLink(config.kubelet_socket, offer.resource, answers),
            SocketWatch(config.kubelet_socket),
            parts.inventory,
            config.sharing,
            judge=_sizes(offer, config.sharing) if offer.size else None,
            prepared=self._host.tried,
            count=metrics.registration,
        )


def _sizes(offer: Offer, sharing: Sharing) -> Callable[[GpuInventory], ListVerdict]:
    """Of a size there are never too many; whether there is any at all is said once."""

    def judge(inventory: GpuInventory) -> ListVerdict:
        if why := unfit(offer, inventory, sharing):
            log.failing("size fits no gpu", about=offer.resource, error=why)
        else:
            log.recovered("size fits no gpu", about=offer.resource)
        return ListVerdict(0, 0, 0)

    return judge


class _Granting:
    """The allocator of one resource."""

    def __init__(self, allocator: SliceAllocator, offer: Offer) -> None:
        self._allocator, self._offer = allocator, offer

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        return self._allocator.allocate(self._offer, device_ids, deadline_s=deadline_s)


class _Choosing:
    """The preference of one resource."""

    def __init__(self, preference: SlicePreference, offer: Offer) -> None:
        self._preference, self._offer = preference, offer

    def preferred(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        *,
        deadline_s: float,
    ) -> Sequence[str]:
        del deadline_s  # it only computes
        return self._preference.preferred(self._offer, available, must_include, size)


# --- for every mode in which kubelet alone says whose grants are ----------------------------------


def running_of(parts: Parts) -> Callable[[GrantRecord], bool]:
    """Whether a process of the grant's container lives, as far as processes can be seen here."""
    places = HostProcessPlaces(parts.config.host_proc, CONTAINERS)

    def running(record: GrantRecord) -> bool:
        seen = parts.seen.now().processes
        known = {
            process.pid: process.start_time
            for (uid, _), processes in seen.items()
            if uid == record.pod_uid
            for process in processes
        }
        traced = places.trace(known) if known else {}
        if any(where.start_time == known[pid] for pid, where in traced.items()):
            return True
        return _found_now(parts, record)  # the last look may be older than the container

    return running


def _found_now(parts: Parts, record: GrantRecord) -> bool:
    """Look at all processes, for those of this grant."""
    wanted = Granted(frozenset({record.container}), {}, record.owner_uid)
    try:
        found = HostProcesses(parts.config.host_proc, CONTAINERS).look({record.pod_uid: wanted})
    except OSError:
        return False
    return any(uid == record.pod_uid for uid, _ in found.processes)


def kubelet_pods(
    parts: Parts,
    grants: FileGrantLog,
    *,
    pods: Pods | None = None,
    running: Callable[[GrantRecord], bool],
    released: Callable[[frozenset[str]], None] = lambda _: None,
    given: Callable[[frozenset[str]], None] = lambda _: None,
    adopt: Callable[[Entry], GrantRecord | None] = lambda _: None,
    only_own: bool = False,
) -> KubeletPods:
    """Who fills a table of pods by kubelet's books; None: that of the API server, in its place."""
    config = parts.config
    return KubeletPods(
        grants,
        parts.view.pods if pods is None else pods,
        PodResourcesClient(config.pod_resources_socket),
        KubeletCheckpoint(config.kubelet_socket.parent),
        running=running,
        released=released,
        given=given,
        adopt=adopt,
        post=parts.events.post,
        only_own=only_own,
        gone_after_s=min(60.0, config.cache_gc_after_s),
    )
