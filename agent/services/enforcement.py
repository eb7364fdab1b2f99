"""Loop: see whether containers are held to their limits, say so, and tell processes their pids.

Processes know their pid in the container only, the driver's lists have the node's; so the agent
writes that into the usage region, and nobody waits for it. Nothing is looked at while the node has
no grants.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from agent import logs
from agent.domain.enforcement import (
    ContainerState,
    Granted,
    Process,
    Reason,
    RegionLook,
    Seen,
    State,
    Verdict,
    judge,
    without_library,
)
from agent.domain.grant_plan import LIMITS_PATH, PRELOAD_PATH
from agent.domain.grants import GrantRecord
from agent.domain.identities import directory_of, leaves_no_mark
from agent.domain.pods import Pod
from agent.domain.proc_text import FileId
from agent.domain.region_reading import TICKS_PER_S
from agent.errors import AgentError
from agent.ports import ClusterEvent, GrantLog, Processes, Regions
from agent.services.live_grants import live_records
from agent.services.published import Pods, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

# A read may hang as the file system of a tenant's program does. A restart would meet the same, so
# it counts as stuck only after this.
LOOKING_S = 600.0
# Kubelet's books name pods that have ended, after a boot or while there was no agent, for so long.
UNSEEN_SAID_AFTER_S = 10.0
REST_PER_WORK = 20.0  # per second on a processor: very many processes are looked at less often
REGION_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
EVENT = "VgpuLimitsNotEnforced"
UNSEEN = (
    "pods run here, but no process of theirs is in the agent's /proc, so it is not known whether "
    "their limits hold; run the agent with hostPID: true, or mount the host's /proc and name it "
    "with --host-proc"
)
UNREADABLE = (
    "the agent may not look into processes of containers, so it is not known whether their limits "
    "hold; run it as root with the capability SYS_PTRACE"
)

NOBODY = Seen(seeing=False, processes={})

Enforced = Published[tuple[ContainerState, ...]]


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Told:
    """What was said about a container."""

    about: str
    reasons: set[Reason] = field(default_factory=set)  # in Events: each once
    enforced: bool = False


class Enforcement:
    """The loop around `judge`."""

    name = "enforcement"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        grants: GrantLog,
        pods: Pods,
        processes: Processes,
        regions: Regions,
        *,
        every_s: float = 5.0,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        seen: Published[Seen] | None = None,
        has_whole_gpus: Callable[[GrantRecord], bool | None] = lambda _: False,
        limits_files: Callable[[str, str], frozenset[FileId]] = lambda _uid, _name: frozenset(),
        cpu_s: Callable[[], float] = time.thread_time,
        boot_s: Callable[[], float] = _boot_s,
    ) -> None:
        """`has_whole_gpus`: no limit of this container's holds it back; None: not known.

        `limits_files`: those that the pod uid's container may have mounted, as the host has them
        now. Both may raise AgentError.
        """
        self._grants = grants
        self._pods = pods
        self._processes = processes
        self._regions = regions
        self._every_s = every_s
        self._post = post
        self._has_whole_gpus = has_whole_gpus
        self._limits_files = limits_files
        # All that were seen: whoever has one mounted goes on with it, also when it was deleted.
        self._given: dict[tuple[str, str], frozenset[FileId]] = {}
        self._cpu_s = cpu_s
        self._boot_s = boot_s
        self._told: dict[tuple[str, str], _Told] = {}  # by pod uid and container
        self._unseen_from_s: float | None = None
        self.states: Enforced = Published(())
        self.seen: Published[Seen] = Published(NOBODY) if seen is None else seen

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pulse(LOOKING_S)
            before_s = self._cpu_s()
            self.look_once()
            life.pause(max(self._every_s, REST_PER_WORK * (self._cpu_s() - before_s)))

    def look_once(self) -> tuple[ContainerState, ...]:
        """Look at every container with a grant; give what is published then."""
        records = live_records(self._grants, self._pods)
        self._forget_all_but(records)
        if not records:
            self._processes.forget()
            self._tell_of_sight(())
            self.states.publish(())
            self.seen.publish(NOBODY)
            return ()
        began_at_ticks = int(self._boot_s() * TICKS_PER_S)
        try:
            seen = self._processes.look(self._granted(records))
        except OSError as error:
            log.failing("processes not listed", error=error)
            seen = NOBODY
        else:
            log.recovered("processes not listed")
        looked_for = self._known(records)
        self.seen.publish(replace(seen, began_at_ticks=began_at_ticks, looked_for=looked_for))
        found = [(record, self._judged(record, seen)) for record in records]
        self._tell_of_sight(found)
        states = tuple(_state(record, verdict) for record, verdict in found)
        for record, verdict in found:
            self._tell(record, verdict)
        self.states.publish(states)
        return states

    def _forget_all_but(self, records: Sequence[GrantRecord]) -> None:
        known = {_key(record) for record in records}
        self._given = {key: files for key, files in self._given.items() if key in known}
        for key in self._told.keys() - known:
            log.recovered("limits not enforced", about=self._told.pop(key).about)

    def _granted(self, records: Sequence[GrantRecord]) -> dict[str, Granted]:
        containers: dict[str, set[str]] = {}
        owners: dict[str, str] = {}
        for record in records:
            containers.setdefault(record.pod_uid, set()).add(record.container)
            owners[record.pod_uid] = record.owner_uid
        pods = self._pods.now().pods
        return {
            uid: Granted(
                frozenset(names), pods[uid].container_ids if uid in pods else {}, owners[uid]
            )
            for uid, names in containers.items()
        }

    def _known(self, records: Sequence[GrantRecord]) -> frozenset[tuple[str, str]]:
        """Of whom it can be said what processes they have: of these that none was found is none.

        A process is its container's by the runtime's id, else by the directory that the container
        has mounted, else because its pod has no other grant (`adapters.processes`).
        """
        pods = self._pods.now().pods
        grants = Counter(record.owner_uid for record in records if record.owner_uid)
        found = []
        for record in records:
            pod = pods.get(record.pod_uid)
            by_id = pod is not None and record.container in pod.container_ids.values()
            alone = leaves_no_mark(record.pod_uid) and grants[record.owner_uid] == 1
            if by_id or alone or _has_its_directory(record):
                found.append(_key(record))
        return frozenset(found)

    def _judged(self, record: GrantRecord, seen: Seen) -> Verdict:
        processes = seen.processes.get((record.pod_uid, record.container), ())
        name = PurePosixPath(record.grant.envs.get(REGION_VARIABLE, "")).name
        verdict = judge(
            processes,
            self._region(record, name, processes),
            seeing=seen.seeing,
            switched_off=all(m.container_path != PRELOAD_PATH for m in record.grant.mounts),
            limits=self._all_given(record),
        )
        if verdict.state is State.NOT_ENFORCEABLE:
            verdict = without_library(verdict, self._is_unlimited(record))
        if verdict.told:
            try:
                self._regions.tell(record.pod_uid, record.container, name, verdict.told)
            except AgentError as error:
                log.failing("host pids not told", error=error)
            else:
                log.recovered("host pids not told")
        return replace(verdict, told=())  # as many as a container likes: not kept for all of them

    def _all_given(self, record: GrantRecord) -> frozenset[FileId]:
        """The container's limits files, by and by; none where the grant mounts none."""
        if all(mount.container_path != LIMITS_PATH for mount in record.grant.mounts):
            return frozenset()
        given = self._given.get(_key(record), frozenset())
        try:
            now = self._limits_files(record.pod_uid, record.container)
        except AgentError as error:
            log.failing("limits file not found", error=error)
            return given
        log.recovered("limits file not found")
        if not now <= given:
            given = self._given[_key(record)] = given | now
        return given

    def _is_unlimited(self, record: GrantRecord) -> bool | None:
        try:
            unlimited = self._has_whole_gpus(record)
        except AgentError as error:
            log.failing("limits not read", error=error)
            return False
        log.recovered("limits not read")
        return unlimited

    def _region(self, record: GrantRecord, name: str, processes: Sequence[Process]) -> RegionLook:
        if not name or not any(process.library for process in processes):
            return RegionLook()
        try:
            return self._regions.look(record.pod_uid, record.container, name)
        except AgentError as error:
            log.failing("usage region not read", error=error)
            return RegionLook()

    # --- what is said ---------------------------------------------------------------------------

    def _tell_of_sight(self, found: Sequence[tuple[GrantRecord, Verdict]]) -> None:
        """Say once what keeps the agent from knowing."""
        pods = self._pods.now().pods
        unseen = any(
            verdict.reason is Reason.UNSEEN
            and (pod := pods.get(record.pod_uid)) is not None
            and pod.phase == "Running"
            for record, verdict in found
        )
        unreadable = any(verdict.reason is Reason.UNREADABLE for _, verdict in found)
        for event, holds, text in (
            ("processes not seen", self._for_long(unseen), UNSEEN),
            ("processes not readable", unreadable, UNREADABLE),
        ):
            if holds:
                log.failing(event, error=text)
            else:
                log.recovered(event)

    def _for_long(self, unseen: bool) -> bool:
        if not unseen:
            self._unseen_from_s = None
            return False
        if self._unseen_from_s is None:
            self._unseen_from_s = self._boot_s()
        return self._boot_s() - self._unseen_from_s >= UNSEEN_SAID_AFTER_S

    def _tell(self, record: GrantRecord, verdict: Verdict) -> None:
        about = f"{record.namespace}/{record.pod_name}/{record.container}"
        told = self._told.setdefault(_key(record), _Told(about))
        if verdict.state is State.NOT_ENFORCEABLE:
            log.failing(
                "limits not enforced",
                about=about,
                error=verdict.explained,
                reason=verdict.reason.value,
                pid=verdict.pid,
            )
            pod = self._pods.now().pods.get(record.pod_uid)
            if pod is not None and verdict.reason not in told.reasons:
                told.reasons.add(verdict.reason)
                self._post(_event(pod, record, verdict))
            return
        log.recovered("limits not enforced", about=about)
        if verdict.state is State.ENFORCED and not told.enforced:
            told.enforced = True
            log.info("limits enforced", container=about)


def _key(record: GrantRecord) -> tuple[str, str]:
    return record.pod_uid, record.container


def _has_its_directory(record: GrantRecord) -> bool:
    """Whether it is mounted into the container; with MIG devices there is none."""
    own = directory_of(record.pod_uid, record.container)
    return any(PurePosixPath(mount.host_path).name == own for mount in record.grant.mounts)


def _state(record: GrantRecord, verdict: Verdict) -> ContainerState:
    return ContainerState(
        namespace=record.namespace,
        pod=record.pod_name,
        container=record.container,
        state=verdict.state,
        reason=verdict.reason,
        pids=verdict.pids,
    )


def _event(pod: Pod, record: GrantRecord, verdict: Verdict) -> ClusterEvent:
    message = f"container {record.container}: {verdict.explained}"
    return ClusterEvent(reason=EVENT, message=message, pod=pod)
