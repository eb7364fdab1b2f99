"""Loop: have the kernel keep containers' memory limits where the driver offers that.

Three tiers, per container: the kernel, by the container's own cgroup (nothing in the container gets
round it); otherwise the library; otherwise nobody, and use is only seen. The library stays in
place in any case: it keeps shares of GPU time, and programs see its figures. A limit is set when it
is known which container of the runtime's it is: kubelet says so in the pod's status, a second or
two after its start; without an API server the container's processes show it by their cgroup.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent import logs
from agent.domain.enforcement import Seen
from agent.domain.grants import GrantRecord
from agent.domain.limit_lines import limits_in
from agent.domain.limits_file import MIB
from agent.domain.mig import mig_uuids
from agent.domain.subjects import of_record
from agent.errors import AgentError
from agent.ports import GrantLog, KernelLimits, LiveLimits
from agent.services.live_grants import live_records
from agent.services.published import Pods, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

Key = tuple[str, str]  # pod uid (or name of the grant) and container
LOOKING_S = 600.0  # a driver that hangs is no stuck agent, see services/health.py
UNLIMITED = 2**64 - 1
NOT_OFFERED_AGAIN_S = 3600.0  # a driver is upgraded with the agent's restart, or later


@dataclass(frozen=True, slots=True)
class _Set:
    """What the kernel was told of one GPU of one container."""

    cgroup: Path
    inode: int  # of the cgroup: one of the same name may come after it
    hard_bytes: int


class KernelLimitsLoop:
    """`kept`: the containers whose memory the kernel limits on all of their GPUs."""

    name = "kernel-limits"

    def __init__(
        self,
        kernel: KernelLimits,
        grants: GrantLog,
        pods: Pods,
        limits: LiveLimits,
        *,
        seen: Callable[[], Seen] = lambda: Seen(seeing=False, processes={}),
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seen`: the processes of the containers, as far as they can be seen."""
        self._kernel = kernel
        self._grants = grants
        self._pods = pods
        self._limits = limits
        self._seen = seen
        self._every_s = every_s
        self._clock = clock
        self._set: dict[tuple[Key, str], _Set] = {}
        self._unoffered: dict[str, float] = {}  # GPUs without the call: when to ask again
        self.kept: Published[frozenset[Key]] = Published(frozenset())

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pulse(LOOKING_S)
            self.step_once()
            life.pause(self._every_s)

    def step_once(self) -> None:
        """Tell the kernel what is new; forget what is gone."""
        kept: set[Key] = set()
        seen: set[tuple[Key, str]] = set()
        now_s = self._clock()
        self._unoffered = {gpu: until for gpu, until in self._unoffered.items() if until > now_s}
        for record in live_records(self._grants, self._pods):
            if self._unoffered.keys() >= {claim.uuid for claim in record.claims}:
                continue
            key = record.pod_uid, record.container
            wanted = self._wanted(record)
            where = self._cgroup(record) if wanted else None
            if where is None:
                continue
            seen.update((key, uuid) for uuid in wanted)
            if self._told(key, wanted, *where):
                kept.add(key)
        self._set = {one: told for one, told in self._set.items() if one in seen}
        self.kept.publish(frozenset(kept))

    def _wanted(self, record: GrantRecord) -> Mapping[str, int]:
        """Bytes by GPU, as they hold now, 0 for no limit; empty: it is none of the kernel's."""
        if mig_uuids(record.grant) or of_record(record).switched_off:
            return {}
        wanted: dict[str, int] = {}
        for claim in record.claims:
            wanted[claim.uuid] = wanted.get(claim.uuid, 0) + claim.memory_mib * MIB
        try:
            file = self._limits.read(record.pod_uid, record.container)
        except AgentError as error:
            log.failing("limits not read", about=record.pod_uid, error=error)
            return {}
        now = {uuid.lower(): one for uuid, one in (limits_in(file) if file else {}).items()}
        return {
            uuid: now[uuid.lower()].memory_limit_bytes if uuid.lower() in now else granted
            for uuid, granted in wanted.items()
        }

    def _cgroup(self, record: GrantRecord) -> tuple[Path, int] | None:
        """The cgroup of this very container; None: not known, or not there (any more)."""
        pod = self._pods.now().pods.get(record.pod_uid)
        if pod is None:
            return None
        uid = pod.kubelet_uid or pod.uid
        ids = {one for one, name in pod.container_ids.items() if name == record.container}
        if not pod.container_ids and record.owner_uid == uid:
            places = self._seen().places.get((record.pod_uid, record.container), frozenset())
            ids = (
                {one.container_id for one in places}
                if {p.pod_uid for p in places} == {uid}
                else ids
            )
        return self._kernel.cgroup_of(uid, min(ids)) if len(ids) == 1 else None

    def _told(self, key: Key, wanted: Mapping[str, int], cgroup: Path, inode: int) -> bool:
        """Whether the kernel keeps all of these."""
        done = True
        for uuid, limit_bytes in wanted.items():
            before = self._set.get((key, uuid))
            if not limit_bytes and before is None:
                continue  # it never had one
            now = _Set(cgroup, inode, limit_bytes or UNLIMITED)
            if before != now and not self._set_now(key, uuid, now):
                done = False
        return done and all(wanted.values())

    def _set_now(self, key: Key, uuid: str, now: _Set) -> bool:
        if uuid in self._unoffered:
            return False
        about = f"{key[0]}/{key[1]} on {uuid}"
        try:
            if not self._kernel.limit(uuid, now.cgroup, now.hard_bytes):
                self._unoffered[uuid] = self._clock() + NOT_OFFERED_AGAIN_S
                return False
        except AgentError as error:
            log.failing("kernel limit not set", about=about, error=error)
            return False
        log.recovered("kernel limit not set", about=about)
        log.info("kernel limit set", cgroup=now.cgroup, gpu=uuid, bytes=now.hard_bytes)
        self._set[(key, uuid)] = now
        return True
