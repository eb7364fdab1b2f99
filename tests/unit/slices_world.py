"""A kubelet of a few lines and the agent's side of mode `slices`, for tests of the books."""

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.domain.gpu import Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Grant, GrantRecord
from agent.domain.kubelet_books import Entry, decode_checkpoint
from agent.domain.slices import Offer, SliceSize, advertised, offers, worth
from agent.errors import KubeletUnavailable
from agent.ports import ClusterEvent, KubeletAssignment, PodList
from agent.services.grant_writer import GrantWriter
from agent.services.kubelet_pods import KubeletPods
from agent.services.published import PodTable, Published
from agent.services.slice_allocator import SliceAllocator
from agent.services.slice_books import SliceBooks
from agent.services.slice_preference import SlicePolicy, SlicePreference
from tests.unit.fakes import GPU_A, GPU_B, FakeCaches, FakeClock, FakeGrantLog, gpus

RESOURCE = "nvidia.com/gpu"
SIZES = (
    SliceSize(name="small", memory_mib=8192, core_percent=25),
    SliceSize(name="large", memory_mib=24576, core_percent=50),
)


@dataclass(frozen=True, slots=True)
class Given:
    """What kubelet has given a container."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    grant: Grant
    init: bool = False


@dataclass
class Kubelet:
    """Its books: what is given, what the checkpoint says, which is written at changes only."""

    given: list[Given] = field(default_factory=list)
    checkpoint: str = '{"Data": {"PodDeviceEntries": null}}'
    api: bool = True
    file: bool = True
    knows_pods: bool = True  # False: it has just started and has heard of none
    lists_heard: int = 0
    others: set[str] = field(default_factory=set)  # pods of the node that have no devices
    keeps_last: bool = False  # 1.22 to 1.31 keep whom they admitted last until another pod comes
    last: str = ""
    ended: set[str] = field(default_factory=set)  # uids of pods that are not there any more
    unheard_of: set[str] = field(default_factory=set)  # of pods that it does not know since a start

    def in_use(self, resource: str) -> set[str]:
        return {i for one in self.given if one.resource == resource for i in one.ids}

    def give(self, given: Given) -> None:
        self.admit(given.pod_uid)
        self.given.append(given)
        self.write()

    def admit(self, pod_uid: str) -> None:
        """Of pods that are gone, what they had is taken back."""
        self.last = pod_uid
        self.given = [one for one in self.given if one.pod_uid not in self.ended]

    def take_back(self, pod_uid: str) -> None:
        """A pod is deleted: the checkpoint still lists it."""
        self.ended.add(pod_uid)
        if not (self.keeps_last and self.last == pod_uid):
            self.given = [one for one in self.given if one.pod_uid != pod_uid]

    def hear_list(self) -> None:
        """The plugin sends its list: whatever is in it, the checkpoint is written."""
        self.lists_heard += 1
        self.write()

    def write(self) -> None:
        self.checkpoint = json.dumps(
            {
                "Data": {
                    "PodDeviceEntries": [
                        {
                            "PodUID": one.pod_uid,
                            "ContainerName": one.container,
                            "ResourceName": one.resource,
                            "DeviceIDs": {"-1": sorted(one.ids)},
                            "AllocResp": base64.b64encode(
                                "".join(m.host_path + "\n" for m in one.grant.mounts).encode()
                            ).decode(),
                        }
                        for one in self.given
                    ]
                }
            }
        )

    # --- ports

    def entries(self) -> tuple[Entry, ...]:
        if not self.file:
            raise KubeletUnavailable("no checkpoint")
        return decode_checkpoint(self.checkpoint)

    def pod_list(self) -> PodList:
        if not self.api:
            raise KubeletUnavailable("no API")
        if not self.knows_pods:
            return PodList((), frozenset())
        living = [one for one in self.given if one.pod_uid not in self.ended | self.unheard_of]
        return PodList(
            tuple(
                KubeletAssignment(
                    one.namespace, one.pod, one.container, one.resource, tuple(sorted(one.ids))
                )
                for one in living
                if not one.init
            ),
            frozenset(
                {(one.namespace, one.pod) for one in living}
                | {("team", name) for name in self.others}
            ),
        )


class World:
    """The agent's side; `restart` gives it a new life with the same journal."""

    def __init__(self, sizes: Sequence[SliceSize] = (), *, split_count: int = 10) -> None:
        self.kubelet = Kubelet()
        self.log = FakeGrantLog()
        self.caches = FakeCaches()
        self.clock = FakeClock(10_000.0)
        self.inventory = Published(gpus(GPU_A, GPU_B))
        self.sharing = Sharing(split_count=split_count)
        self.offers = offers(RESOURCE, sizes)
        self.adopt: Callable[[Entry], GrantRecord | None] = lambda _: None
        self.posted: list[ClusterEvent] = []
        self.alive: dict[str, list[Grant]] = {}  # by pod: of containers whose processes run
        self._numbers = itertools.count(1)
        self.restart()

    def restart(self) -> None:
        self.pods: Published[PodTable] = Published(PodTable())
        self.books = SliceBooks(
            self.log, worth=lambda: worth(self.offers, self.inventory.now(), self.sharing)
        )
        self.watch = KubeletPods(
            self.log,
            self.pods,
            self.kubelet,
            self.kubelet,
            running=self._running,
            released=self.books.release,
            given=self.books.given,
            adopt=self.adopt,
            post=self.posted.append,
            clock=self.clock,
            now_s=self.clock,
        )
        self.watch.again.listen(self.kubelet.hear_list)
        self.allocator = SliceAllocator(
            self.inventory,
            self.sharing,
            self.books,
            GrantWriter(self.caches, self.log, GrantPolicy(), now_s=self.clock),
            running=self._running,
            clock=self.clock,
            random=lambda: next(self._numbers),
        )
        self.preference = SlicePreference(
            self.inventory, self.sharing, self.books, SlicePolicy(), running=self._running
        )

    def _running(self, record: GrantRecord) -> bool:
        return any(record.grant == one for grants in self.alive.values() for one in grants)

    def start_processes(self, name: str) -> None:
        """All containers of the pod but init containers run from now on."""
        self.alive[f"uid-{name}"] = [
            one.grant for one in self.kubelet.given if one.pod == name and not one.init
        ]

    def offer(self, size: str = "") -> Offer:
        return next(one for one in self.offers if (one.size.name if one.size else "") == size)

    def healthy(self, offer: Offer) -> list[str]:
        """Ids that kubelet may give: healthy, and not in use by its books."""
        listed = advertised(offer, self.inventory.now(), self.sharing, self.books.held())
        used = self.kubelet.in_use(offer.resource)
        return [one.device_id for one in listed if one.healthy and one.device_id not in used]

    def allocate(self, offer: Offer, ids: Sequence[str]) -> Grant:
        return self.allocator.allocate(offer, ids, deadline_s=self.clock() + 2)

    def run_pod(
        self, name: str, ids: Sequence[str], offer: Offer | None = None, *,
        container: str = "main", init: bool = False,
    ) -> Given:  # fmt: skip
        """What kubelet does for one container of a pod: Allocate, then into the books."""
        offer = offer or self.offers[0]
        grant = self.allocate(offer, ids)
        given = Given(
            f"uid-{name}", "team", name, container, offer.resource, frozenset(ids), grant, init
        )
        self.kubelet.give(given)
        return given

    def end_pod(self, name: str) -> None:
        self.kubelet.take_back(f"uid-{name}")
        self.alive.pop(f"uid-{name}", None)

    def look(self, *, after_s: float = 2.0) -> None:
        self.clock.now_s += after_s
        self.watch.look_once()

    def names(self) -> dict[str, str]:
        """Whose grants are, as `namespace/pod/container`, by the name of the grant."""
        return {
            one.pod_uid: f"{one.namespace}/{one.pod_name}/{one.container}"
            for one in self.log.records()
        }
