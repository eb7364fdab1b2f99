"""Which containers share the node's GPUs, and what is known of each when a round begins."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from agent import logs
from agent.domain.feedback import BLOCKED, Sharer, asked_of, asked_strict, priority_of
from agent.domain.grants import GrantRecord
from agent.domain.lending import WHOLE_PERMILLE, Lease
from agent.domain.limits_file import CorePolicy, LimitsFile
from agent.domain.pods import Container
from agent.domain.region import MAX_DEVICES
from agent.domain.switch_words import UNREADABLE, SwitchWords
from agent.errors import AgentError
from agent.ports import ContainerKey, Leases, RegionSwitches
from agent.services.lending import ShareOfGpu, Sharing
from agent.services.published import Pods

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A container that is steered by its limits file or by its usage region."""

    words: SwitchWords
    limits: LimitsFile | None  # the agent gave it one; None: the usage region is all there is
    priority: int
    strict: bool  # its author wants it never to have more than its share

    def sharer(self, *, blocked: bool) -> Sharer:
        """It as the table sees it; `blocked`: by a lease."""
        return Sharer(
            recent_kernel=BLOCKED if blocked else self.words.recent_kernel,
            priority=self.priority,
            devices=frozenset(self._devices),
            switch=self.words.switch,
        )

    @property
    def _devices(self) -> tuple[str, ...]:
        """Uuids in small letters; the agent's word goes before the container's."""
        if self.limits is None:
            return tuple(filter(None, self.words.devices))
        return tuple(device.uuid.lower() for device in self.limits.devices)

    @property
    def line_permille(self) -> tuple[int, ...]:
        """Its shares as the limits file has them, line by line; 1000: none."""
        if self.limits is None:
            return ()
        keeps = self.limits.core_policy is not CorePolicy.DISABLE
        return tuple(
            d.core_permille if keeps and 0 < d.core_permille < WHOLE_PERMILLE else WHOLE_PERMILLE
            for d in self.limits.devices
        )

    def sharing(self, key: ContainerKey, *, switch: int, blocked: bool) -> Sharing:
        """It as lending sees it. With a `switch` of 0, HAMi-core's library keeps no share."""
        places = {uuid: place for place, uuid in enumerate(self.words.devices) if uuid}
        if self.limits is None:
            shares = {
                uuid: self.words.core_permille[place] if switch else WHOLE_PERMILLE
                for uuid, place in places.items()
            }
        else:
            shares = dict(zip(self._devices, self.line_permille, strict=True))
            if self.words is UNREADABLE:  # whether it computes is not known: its share stays its
                places = dict.fromkeys(self._devices, MAX_DEVICES)
        return Sharing(
            key=key,
            shares=tuple(
                ShareOfGpu(uuid=uuid, permille=permille, line=line, place=places.get(uuid))
                for line, (uuid, permille) in enumerate(shares.items())
            ),
            counts=self.limits is not None,
            borrows=not self.strict,
            blocked=blocked,
        )


class Roster:
    """Finds them. Used by one thread."""

    def __init__(
        self,
        switches: RegionSwitches,
        leases: Leases,
        pods: Pods,
        *,
        priorities_of_regions: bool = False,
        grants: Callable[[], Iterable[GrantRecord]] = tuple,
    ) -> None:
        """`priorities_of_regions`: believe what libraries write down, as HAMi's monitor does.

        `grants` say what a pod asked for that is not known (yet): a new agent may have to wait for
        the API server.
        """
        self._switches = switches
        self._leases = leases
        self._pods = pods
        self._of_regions = priorities_of_regions
        self._grants = grants
        self._fresh = True  # nothing was looked at yet

    def members(self) -> Mapping[ContainerKey, Member]:
        """All containers that can be told anything. Raises NodeNotReady.

        Whether a container goes by a limits file is what the agent has given it. Its usage region
        has no say in that: with a few bytes of its own a tenant could have itself told where only
        it can read. So one with a limits file is here even when its region is spoilt.

        What somebody else left blocked or lent, perhaps an agent that is gone, is taken back: the
        first time everywhere, later where our library is, which nobody else is to block.
        """
        words = self._switches.refresh()
        fresh, self._fresh = self._fresh, False
        members = {}
        for key in self._switches.directories() | words.keys():
            try:
                limits = self._leases.read(*key)
            except AgentError as error:  # what it was told by then ends by itself
                log.failing("limits not read", about="_".join(key), error=error)
                continue
            log.recovered("limits not read", about="_".join(key))
            if key in words or limits is not None:
                found = words.get(key, UNREADABLE)
                members[key] = self._member(key, found, limits, fresh=fresh)
        return members

    def _member(
        self, key: ContainerKey, words: SwitchWords, limits: LimitsFile | None, *, fresh: bool
    ) -> Member:
        if fresh and limits is not None:
            self._take_back(key, limits)
        if fresh or limits is not None:
            words = self._lifted(key, words)
        spec = self._spec(key)
        granted = self._granted(key) if spec is None else None
        asked = asked_of(spec, granted.priority if granted else None)
        # Until a process counts there, a region that the agent has made says what the agent wrote.
        in_region = words.priority if limits is None or words.slot_count > 0 else None
        return Member(
            words=words,
            limits=limits,
            priority=priority_of(in_region, asked, of_region=self._of_regions),
            strict=asked_strict(spec.core_policy) if spec else bool(granted and granted.strict),
        )

    def _lifted(self, key: ContainerKey, words: SwitchWords) -> SwitchWords:
        if words.recent_kernel < 0 and self._switches.put(key, recent_kernel=0):
            log.info("block lifted", container=key[1], pod_uid=key[0])
            return replace(words, recent_kernel=0)
        return words

    def _take_back(self, key: ContainerKey, limits: LimitsFile) -> None:
        """Leases end by themselves, but launches take the slower way while one stands there."""
        left = {
            line: Lease()
            for line, device in enumerate(limits.devices)
            if device.lent_permille or device.lent_until_ns or device.blocked_until_ns
        }
        if left:
            try:
                self._leases.lease(*key, left)
            except AgentError as error:
                log.failing("lease not ended", about="_".join(key), error=error)

    def _granted(self, key: ContainerKey) -> GrantRecord | None:
        """Which says what its pod asked for by then; None: no grant of ours."""
        found = (one for one in self._grants() if (one.pod_uid, one.container) == key)
        return next(found, None)

    def _spec(self, key: ContainerKey) -> Container | None:
        pod = self._pods.now().pods.get(key[0])
        return pod.container(key[1]) if pod else None
