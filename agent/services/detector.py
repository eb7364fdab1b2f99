"""Loop: compare who is on the GPUs, by the driver, with who was granted them, and say so.

A finding is said when it is seen a second time, so that a process that ends while we look, or a
pid that is given away again, accuses nobody; the second look comes soon.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent import logs
from agent.domain.accounting import GpuProcess
from agent.domain.bypass import (
    Allowed,
    Bypass,
    Held,
    Kind,
    Node,
    PodName,
    Whereabouts,
    allowances,
    judge,
    sightings,
)
from agent.domain.gpu import Sharing
from agent.domain.identities import is_identity
from agent.domain.pods import Pod
from agent.domain.subjects import Subject, granted_by_others, of_record
from agent.errors import AgentError
from agent.ports import (
    ClusterEvent,
    GpuUsers,
    GrantLog,
    ProcessPlaces,
)
from agent.services.enforcement import Enforced
from agent.services.published import Inventory, Pods, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOKING_S = 600.0  # the driver may hang; a restart of this loop would meet the same
AGAIN_S = 0.5
REST_PER_WORK = 20.0  # per second on a processor: many processes, or with many mounts, take long
EVICT_AGAIN_ROUNDS, UNSEEN_ROUNDS = 10, 3
EVENT, EVICTED = "VgpuBypass", "VgpuBypassEvicted"
UNSEEN = (
    "the driver lists processes that are not in the agent's /proc, so it is not known whose they "
    "are; run the agent with hostPID: true, or mount the host's /proc and name it with --host-proc"
)

Bypasses = Published[tuple[Bypass, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the detector compares with; all of it is read at each look."""

    grants: GrantLog
    pods: Pods
    inventory: Inventory
    sharing: Sharing
    # By pod uid and container: the largest memory limit of each GPU since it was asked last.
    limits: Callable[[str, str], Mapping[str, int] | None]
    changed: Callable[[], Iterable[tuple[str, str]]]  # whose limits were changed live
    largest_ever: Callable[[str, str], Mapping[str, int]]  # of one of these, by GPU; 0: none
    directories: Callable[[], Iterable[tuple[str, str]]]  # whose there are on the host
    states: Enforced


class Detector:
    """The loop around `judge`."""

    name = "detector"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        users: GpuUsers,
        places: ProcessPlaces,
        books: Books,
        allowed: Allowed,
        *,
        every_s: float = 3.0,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        count: Callable[[str], None] = lambda _: None,
        evict: Callable[[Pod], None] | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`evict` ends a pod, where that is wanted; it may raise AgentError."""
        self._users = users
        self._places = places
        self._books = books
        self._allowed = allowed
        self._every_s = every_s
        self._post = post
        self._count = count
        self._evict = evict
        self._cpu_s = cpu_s
        self._listed: Mapping[str, Sequence[GpuProcess]] = {}
        self._seen_once: frozenset[object] = frozenset()
        self._unseen_rounds = 0
        self._allowances: Mapping[Held, int] = {}
        self._largest: dict[tuple[str, str], Mapping[str, int]] = {}  # as it was first asked for
        self._said: dict[tuple[str, ...], Bypass] = {}
        self._evicting: dict[str, int] = {}  # pod uid -> rounds until it is tried again
        self.found: Bypasses = Published(())

    def run(self, life: Lifeline) -> None:
        states = self._books.states
        life.on_stop(states.poke)
        owed_s, soon = 0.0, False
        while not life.stopping:
            version, _ = states.read()
            life.pulse(LOOKING_S)
            before_s = self._cpu_s()
            again = self.look_once()
            owed_s += REST_PER_WORK * (self._cpu_s() - before_s)
            soon = again and not soon
            # The second look at a finding comes before the rest, which then is that of both.
            rest_s = 0.0 if soon else owed_s
            owed_s -= rest_s
            pause_s = (AGAIN_S if again else self._every_s) - rest_s
            if life.pause(rest_s) and pause_s > 0:
                life.pulse(pause_s + LOOKING_S)
                states.wait_for_change(version, pause_s)

    def look_once(self) -> bool:
        """Look and say what is wrong; give whether a second look is worth while soon."""
        try:
            listed = self._users.look()
        except AgentError as error:
            log.failing("processes of GPUs not listed", error=error)
            # What was found stays found: nothing says that it is over.
            kept = [one for one in self._said.values() if one.kind is not Kind.NOT_ENFORCED]
            self._say([*kept, *judge(self._node(self._listed, {}), self._allowed)])
            return False
        log.recovered("processes of GPUs not listed")
        self._listed = listed
        traced = self._places.trace({p.pid for some in listed.values() for p in some})
        self._tell_of_sight(listed, traced)
        node = self._node(listed, self._names(traced))
        found = judge(node, self._allowed)
        self._allowances = allowances(node)
        seen = {bypass.key: sightings(bypass, node.traced) for bypass in found}
        sure = [
            bypass
            for bypass in found
            if bypass.key in self._said
            or bypass.kind is Kind.NOT_ENFORCED  # was looked at twice already
            or seen[bypass.key] & self._seen_once
        ]
        self._seen_once = frozenset().union(*seen.values())
        self._say(sure)
        return len(sure) < len(found)

    def _node(
        self, listed: Mapping[str, Sequence[GpuProcess]], traced: Mapping[int, Whereabouts]
    ) -> Node:
        books = self._books
        table, subjects = books.pods.now(), self._subjects()
        limits, known_as = self._limits(subjects), self._known_as()
        return Node(
            processes=listed,
            traced=traced,
            gpus={gpu.uuid: gpu for gpu in books.sharing.offered(books.inventory.now())},
            grants=[_owned(subject, known_as) for subject in subjects],
            limits={_owner(key, known_as): held for key, held in limits.items()},
            allowances=self._allowances,
            pods={
                uid: PodName(uid=uid, namespace=pod.namespace, name=pod.name)
                for uid, pod in _by_own_uid(table.pods.values()).items()
            },
            synced=table.synced,
            changed={_owner(key, known_as): held for key, held in self._changed().items()},
            states=books.states.now(),
            memory_scaling=books.sharing.memory_scaling,
        )

    # --- what is known --------------------------------------------------------------------------

    def _subjects(self) -> list[Subject]:
        """Whoever was granted something here: by us, or by HAMi's plugin before us.

        Pods that have finished are among them, since their processes may still be ending.
        """
        books = self._books
        ours = [of_record(record) for record in books.grants.records()]
        try:
            directories = list(books.directories())
        except AgentError as error:
            log.failing("container directories not listed", error=error)
            return ours
        log.recovered("container directories not listed")
        known = frozenset(subject.key for subject in ours)
        return [*ours, *granted_by_others(directories, known, books.pods.now().pods, 0.0)]

    def _known_as(self) -> Mapping[str, tuple[str, str]]:
        """Pod uid and container of grants that have a name of their own."""
        return {
            record.pod_uid: (record.owner_uid or record.pod_uid, record.container)
            for record in self._books.grants.records()
            if is_identity(record.pod_uid)
        }

    def _changed(self) -> Mapping[tuple[str, str], Mapping[str, int]]:
        """Whose limits were changed, with the largest there were before it was looked at here.

        Larger ones since then are seen by `Books.limits`, so each is asked for once.
        """
        try:
            listed = frozenset(self._books.changed())
            for key in listed - self._largest.keys():
                self._largest[key] = self._books.largest_ever(*key)
        except AgentError as error:
            log.failing("changed limits not listed", error=error)
            return self._largest
        log.recovered("changed limits not listed")
        self._largest = {key: held for key, held in self._largest.items() if key in listed}
        return self._largest

    def _names(self, traced: Mapping[int, Whereabouts]) -> dict[int, Whereabouts]:
        """With the pod and container that the runtime's id belongs to.

        The API server says it (a static pod's cgroup has another uid than its Pod object), else
        another process of the same cgroup, since one can be rid of its mounts.
        """
        known_as = self._known_as()
        traced = {pid: _named(where, known_as) for pid, where in traced.items()}
        by_id = {
            where.container_id: (where.pod_uid, where.container)
            for where in traced.values()
            if where.container and where.container_id
        } | {
            identity: (pod.uid, name)
            for pod in self._books.pods.now().pods.values()
            for identity, name in pod.container_ids.items()
        }
        return {
            pid: Whereabouts(
                where.start_time, where.program, known[0], where.container_id, known[1]
            )
            if (known := by_id.get(where.container_id))
            else where
            for pid, where in traced.items()
        }

    def _limits(self, subjects: Sequence[Subject]) -> dict[tuple[str, str], Mapping[str, int]]:
        found: dict[tuple[str, str], Mapping[str, int]] = {}
        for subject in subjects:
            try:
                limits = self._books.limits(*subject.key)
            except AgentError as error:
                log.failing("limits not read", about=subject.about, error=error)
                continue
            log.recovered("limits not read", about=subject.about)
            if limits is not None:
                found[subject.key] = limits
        return found

    def _tell_of_sight(
        self, listed: Mapping[str, Sequence[object]], traced: Mapping[int, Whereabouts]
    ) -> None:
        unseen = any(listed.values()) and not traced
        self._unseen_rounds = self._unseen_rounds + 1 if unseen else 0
        if self._unseen_rounds >= UNSEEN_ROUNDS:  # a single process may just have ended
            log.failing("processes of GPUs not seen", error=UNSEEN)
        elif traced:
            log.recovered("processes of GPUs not seen")

    # --- what is said ---------------------------------------------------------------------------

    def _say(self, sure: Sequence[Bypass]) -> None:
        now = {bypass.key: bypass for bypass in sure}
        for key in self._said.keys() - now.keys():
            log.recovered("GPU used past its grant", about=_about(self._said[key]))
        for key, bypass in now.items():
            log.failing(
                "GPU used past its grant",
                about=_about(bypass),
                error=bypass.explained,
                kind=bypass.kind.value,
                pid=bypass.pid,
            )
            if key not in self._said:
                self._count(bypass.kind.value)
                if bypass.kind is not Kind.NOT_ENFORCED:  # of which there is an Event already
                    self._post(
                        ClusterEvent(reason=EVENT, message=bypass.explained, pod=self._pod(bypass))
                    )
        self._said = now
        self.found.publish(tuple(sure))
        if self._evict:
            self._evict_all(self._evict, sure)

    def _pod(self, bypass: Bypass) -> Pod | None:
        return _by_own_uid(self._books.pods.now().pods.values()).get(bypass.pod_uid)

    def _evict_all(self, evict: Callable[[Pod], None], sure: Sequence[Bypass]) -> None:
        pods = {pod.uid: (pod, bypass) for bypass in sure if (pod := self._pod(bypass))}
        self._evicting = {uid: n - 1 for uid, n in self._evicting.items() if uid in pods}
        for uid, (pod, bypass) in pods.items():
            if pod.deleting or self._evicting.get(uid, 0) > 0:
                continue
            self._evicting[uid] = EVICT_AGAIN_ROUNDS
            try:
                evict(pod)
            except AgentError as error:
                log.failing("pod not evicted", about=pod.full_name, error=error)
                continue
            log.recovered("pod not evicted", about=pod.full_name)
            message = f"evicted, as --on-bypass asks: {bypass.explained}"
            self._post(ClusterEvent(reason=EVICTED, message=message, pod=pod))


def _by_own_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    return {pod.kubelet_uid or pod.uid: pod for pod in pods}


def _owner(key: tuple[str, str], known_as: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    return known_as.get(key[0], key)


def _owned(subject: Subject, known_as: Mapping[str, tuple[str, str]]) -> Subject:
    return replace(subject, pod_uid=_owner(subject.key, known_as)[0])


def _named(where: Whereabouts, known_as: Mapping[str, tuple[str, str]]) -> Whereabouts:
    """By the grant whose directory it has mounted, if that is its own pod's."""
    uid, container = known_as.get(where.grant, ("", ""))
    if uid in (where.pod_uid, where.grant) and container:
        return replace(where, pod_uid=uid, container=container)
    return where


def _about(bypass: Bypass) -> str:
    if bypass.kind is Kind.HOST_PROCESS:
        return f"{bypass.gpu} {bypass.program}"
    who = f"{bypass.namespace}/{bypass.pod}" if bypass.pod else bypass.pod_uid
    return f"{who}/{bypass.container} {bypass.gpu} {bypass.kind.value}"
