"""Loop: learn from kubelet whose grants are, and which of them nobody holds any more.

This is what the API server's list of pods is elsewhere: a table of who is there, by the names of
the grants. Nobody is taken for gone whom kubelet lists, or has not got round to listing, or of whom
a process lives; and nobody at all before kubelet's books could be read.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent import logs
from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.identities import is_identity
from agent.domain.kubelet_books import (
    Assigned,
    Entry,
    KubeletLook,
    doubtful,
    given_ids,
    listed,
    of_other_pods,
    owners,
    strays,
    with_known,
)
from agent.domain.pods import Container, Pod
from agent.domain.unnamed_grants import Unnamed, UnnamedGrants
from agent.errors import AgentError, KubeletUnavailable
from agent.ports import Checkpoint, ClusterEvent, GrantLog, PodLists
from agent.services.published import Pods, PodTable, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOKING_S = 30.0
SOON_S, EVERY_S, IDLE_S = 0.3, 2.0, 10.0
API_AFTER_S = 1.0  # old kubelets take back what a pod has that they admit while they are asked
RELEASED_AFTER_S = 4.0  # not listed for so long: what it held can be had again
GONE_AFTER_S = 60.0  # not listed for so long: it is forgotten
NOBODY_AFTER_S = 300.0  # the same while kubelet lists nobody at all: it may not know its pods yet
ANEW_S = 30.0  # so often kubelet has to write its checkpoint for those of whom that alone speaks
UNNAMED_S = 5.0  # so long nobody speaks of a grant of which it is not known whose it is
YOUNG_S = 20.0  # granted, and perhaps not in any book yet, unless kubelet has named its owner
DOUBLE = (
    "it asks for slices of several resources, and kubelet tells it only the limits of one; ask for "
    "one size in each container"
)


class KubeletPods:
    """The loop. `released` is told which grants hold nothing any more.

    `again` counts how often kubelet is to get the list of devices once more, changed or not: it
    writes its checkpoint then.
    """

    name = "kubelet-pods"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        grants: GrantLog,
        pods: Pods,
        pod_resources: PodLists,
        checkpoint: Checkpoint,
        *,
        running: Callable[[GrantRecord], bool] = lambda _: False,
        released: Callable[[frozenset[str]], None] = lambda _: None,
        given: Callable[[frozenset[str]], None] = lambda _: None,
        adopt: Callable[[Entry], GrantRecord | None] = lambda _: None,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        only_own: bool = False,
        gone_after_s: float = GONE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`given` is told every id that kubelet says somebody has, of whatever plugin.

        `adopt` makes a record of a grant that kubelet knows and the journal has lost; None: it
        cannot be made, and nothing is known of the grant but that its files are in use.

        `gone_after_s`: a grant that kubelet does not list for so long is forgotten.

        With `only_own` grants that have a pod's uid are left to whoever knows that pod.
        """
        self._only_own = only_own
        self._grants = grants
        self._pods = pods
        self._pod_resources = pod_resources
        self._checkpoint = checkpoint
        self._running = running
        self._released = released
        self._given = given
        self._adopt = adopt
        self._post = post
        self._gone_after_s = gone_after_s
        self._clock = clock
        self._now_s = now_s
        self.again: Published[int] = Published(0)
        self._anew_s = -ANEW_S
        self._woken: Published[int] = Published(0)
        self._unlisted_since_s: dict[str, float] = {}
        self._unnamed = UnnamedGrants()
        self._ended: frozenset[str] = frozenset()
        self._doubles: frozenset[str] = frozenset()

    def wake(self) -> None:
        """There is a new grant; returns at once."""
        self._woken.update(lambda count: count + 1)

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._woken.poke)
        while not life.stopping:
            version, _ = self._woken.read()
            life.pulse(LOOKING_S)
            self.look_once()
            records = self._records()
            if any(not record.named and self._young(record) for record in records):
                life.pause(SOON_S)
                continue
            pause_s = EVERY_S if records else IDLE_S
            life.pulse(pause_s + LOOKING_S)
            self._woken.wait_for_change(version, pause_s)

    def look_once(self) -> KubeletLook:
        """Look into both books, and tell everybody; gives what was seen."""
        records = self._records()
        look = self._look(records)
        if look.assigned is None and look.entries is None:
            if not self._pods.now().synced:
                self._publish(records, (), synced=False)
            return look
        records = self._records()  # as they are now: a grant is written down before it is listed
        if look.assigned is not None and self._adopted(strays(records, look)):
            records = self._records()
        found = owners([one for one in records if is_identity(one.pod_uid)], look)
        for record in records:
            if (owner := found.get(record.pod_uid)) is not None:
                self._own_up(record, with_known(record, owner))
        records = self._records()
        gone = self._gone(records, look) if look.complete else frozenset[str]()
        if look.complete:
            self._given(given_ids(look))
            self._have_it_written(records, look)
        if gone:
            self._grants.forget(gone)
            log.info("grants released", grants=len(gone))
        kept = [record for record in records if record.pod_uid not in gone]
        self._publish(kept, strays(self._records(), look), synced=True)
        self._tell_doubles(kept)
        return look

    def _records(self) -> Sequence[GrantRecord]:
        records = self._grants.records()
        if not self._only_own:
            return records
        return [record for record in records if is_identity(record.pod_uid)]

    # --- kubelet's books ------------------------------------------------------------------------

    def _look(self, records: Sequence[GrantRecord]) -> KubeletLook:
        entries: tuple[Entry, ...] | None = None
        assigned: tuple[Assigned, ...] | None = None
        try:
            entries = self._checkpoint.entries()
        except KubeletUnavailable as error:
            log.failing("kubelet's checkpoint unread", error=error)
        else:
            log.recovered("kubelet's checkpoint unread")
        now_s = self._now_s()
        if any(0 <= now_s - record.granted_at_s < API_AFTER_S for record in records):
            return KubeletLook(entries=entries, complete=False)
        pods: frozenset[tuple[str, str]] = frozenset()
        try:
            answer = self._pod_resources.pod_list()
            pods = answer.pods
            assigned = tuple(
                Assigned(
                    namespace=one.namespace,
                    pod_name=one.pod_name,
                    container=one.container,
                    resource=one.resource,
                    device_ids=frozenset(one.device_ids),
                )
                for one in answer.assignments
            )
        except AgentError as error:
            log.failing("assignments unknown", error=error)
        else:
            log.recovered("assignments unknown")
        return KubeletLook(assigned=assigned, entries=entries, pods=pods)

    def _adopted(self, entries: Sequence[Entry]) -> bool:
        """Write down anew what the journal has lost; tell whether anything was."""
        adopted = False
        for entry in entries:
            try:
                record = self._adopt(entry)
                if record is None:
                    continue
                self._grants.record(record)
            except AgentError as error:
                log.failing("grant not adopted", about=entry.grant, error=error)
                continue
            log.info("grant adopted", grant=entry.grant, pod_uid=entry.pod_uid)
            adopted = True
        return adopted

    def _own_up(self, record: GrantRecord, owner: GrantOwner) -> None:
        known = (record.owner_uid, record.namespace, record.pod_name, record.container)
        if known == (owner.pod_uid, owner.namespace, owner.pod_name, owner.container):
            return
        self._grants.own(record, owner)
        if owner.pod_name != record.pod_uid:
            log.info(
                "grant owned",
                grant=record.pod_uid,
                pod=f"{owner.namespace}/{owner.pod_name}",
                container=owner.container,
                pod_uid=owner.pod_uid,
            )

    # --- who is gone ----------------------------------------------------------------------------

    def _young(self, record: GrantRecord) -> bool:
        return abs(self._now_s() - record.granted_at_s) < YOUNG_S

    def _gone(self, records: Sequence[GrantRecord], look: KubeletLook) -> frozenset[str]:
        """Whose grant is forgotten; tells what is released, which kubelet may take back."""
        present, now_s = listed(records, look) - self._without_pod(records, look), self._clock()
        absent = {
            record.pod_uid
            for record in records
            if record.pod_uid not in present
            and not (self._young(record) and not record.named)
            and not self._running(record)
        }
        self._unlisted_since_s = {
            grant: self._unlisted_since_s.get(grant, now_s) for grant in absent
        }
        lasting = {grant: now_s - since_s for grant, since_s in self._unlisted_since_s.items()}
        self._ended = frozenset(
            grant for grant, for_s in lasting.items() if for_s >= RELEASED_AFTER_S
        )
        self._released(self._ended)
        gone_after_s = self._gone_after_s if look.assigned else NOBODY_AFTER_S
        return frozenset(grant for grant, for_s in lasting.items() if for_s >= gone_after_s)

    def _without_pod(self, records: Sequence[GrantRecord], look: KubeletLook) -> frozenset[str]:
        """Grants that the checkpoint alone still lists, and no pod can hold."""
        if not look.pods:  # not told, or kubelet does not know of any yet
            return frozenset()
        now_s, wall_s = self._clock(), self._now_s()
        nameless, others = doubtful(records, look), of_other_pods(records, look)
        unnamed = [
            Unnamed(
                record.pod_uid,
                now_s - abs(wall_s - record.granted_at_s),  # the clock may have been set back
                others[record.pod_uid],
            )
            for record in records
            if record.pod_uid in nameless
        ]
        return self._unnamed.gone(look.pods, unnamed, now_s)

    def _have_it_written(self, records: Sequence[GrantRecord], look: KubeletLook) -> None:
        """Kubelet has just been asked who holds what, so it knows who is gone; its file may not."""
        old = [record for record in records if not self._young(record)]
        if look.assigned is None or not doubtful(old, look):
            return
        now_s = self._clock()
        if now_s - self._anew_s >= ANEW_S:
            self._anew_s = now_s
            self.again.update(lambda count: count + 1)

    # --- what is told ---------------------------------------------------------------------------

    def _publish(
        self, records: Sequence[GrantRecord], unknown: Sequence[Entry], *, synced: bool
    ) -> None:
        """One that is not listed any more has ended; its files stay until it is forgotten.

        `unknown`: there, but without a record. Nobody may delete their files.
        """
        table: dict[str, Pod] = {
            one.grant: Pod(uid=one.grant, namespace="", name=one.grant, kubelet_uid=one.pod_uid)
            for one in unknown
        }
        for record in records:
            age_s = abs(self._now_s() - record.granted_at_s)  # the clock may have been set back
            if synced and not record.named and age_s < UNNAMED_S:
                continue  # kubelet is about to say whose it is
            pod = _pod(record, table.get(record.pod_uid))
            table[pod.uid] = replace(pod, phase="Succeeded") if pod.uid in self._ended else pod
        self._pods.publish(PodTable(table, synced=synced))

    def _tell_doubles(self, records: Sequence[GrantRecord]) -> None:
        """A container that asks for two sizes gets one of both answers, as kubelet likes."""
        count = Counter(
            _full_name(record)
            for record in records
            if record.named and record.pod_uid not in self._unlisted_since_s
        )
        doubles = frozenset(about for about, grants in count.items() if grants > 1)
        for about in self._doubles - doubles:
            log.recovered("several grants of one container", about=about)
        for about in doubles:
            log.failing("several grants of one container", about=about, error=DOUBLE)
        for about in doubles - self._doubles:
            one = next(record for record in records if _full_name(record) == about)
            message = f"container {one.container}: {DOUBLE}"
            self._post(ClusterEvent(reason="SeveralSizes", message=message, pod=_pod(one, None)))
        self._doubles = doubles


def _full_name(record: GrantRecord) -> str:
    return f"{record.namespace}/{record.pod_name}/{record.container}"


def _pod(record: GrantRecord, before: Pod | None) -> Pod:
    """The pod as everybody else sees it: by the name of the grant, with the one container."""
    container = Container(name=record.container, vgpus=len(record.device_ids))
    return Pod(
        uid=record.pod_uid,
        namespace=record.namespace,
        name=record.pod_name,
        phase="Running",
        containers=(*(before.containers if before else ()), container),
        kubelet_uid=record.owner_uid,
    )
