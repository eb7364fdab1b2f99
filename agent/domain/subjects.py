"""Which containers' use is told: those with a grant of ours, and those that others granted.

The second kind, of HAMi's or Volcano's plugin, has a directory on the node and a pod, whose
annotation says what was decided. So has one of ours whose grant the journal has lost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from agent.domain import volcano
from agent.domain.choice import bind_time_s
from agent.domain.claims import decode_claims, is_padding
from agent.domain.dialect import DECIDED
from agent.domain.grant_plan import PRELOAD_PATH
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.hook_files import LIBRARY, is_hook_name
from agent.domain.mig import gpu_uuid_of
from agent.domain.pods import Pod
from agent.errors import MalformedAnnotation

REGION_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A container whose use is told."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    claims: tuple[Claim, ...]  # empty: not known
    granted_at_s: float  # unix time
    region_name: str = ""  # empty: no grant of ours says it
    hook_version: str = ""
    priority: int | None = None  # that its pod asked for when it was granted; None: not known
    switched_off: bool = False  # by its author
    by_others: bool = False  # its pod's annotation or its region says its GPUs, which it can write

    @property
    def key(self) -> tuple[str, str]:
        """Pod uid and container."""
        return self.pod_uid, self.container

    @property
    def about(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"


def of_record(record: GrantRecord) -> Subject:
    """The container of a grant."""
    return Subject(
        pod_uid=record.pod_uid,
        namespace=record.namespace,
        pod=record.pod_name,
        container=record.container,
        claims=_of_gpus(record.claims),
        granted_at_s=record.granted_at_s,
        region_name=PurePosixPath(record.grant.envs.get(REGION_VARIABLE, "")).name,
        hook_version=hook_version(record.grant),
        priority=record.priority,
        switched_off=all(m.container_path != PRELOAD_PATH for m in record.grant.mounts),
    )


def _of_gpus(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """By the GPU alone, as the driver names it; HAMi 2.5 to 2.9 add a slot of a MIG geometry."""
    return tuple(replace(claim, uuid=gpu_uuid_of(claim.uuid)) for claim in claims)


def hook_version(grant: Grant) -> str:
    """Version and digest of the library that was mounted; empty: not ours, or not known."""
    for mount in grant.mounts:
        name = PurePosixPath(mount.host_path).name
        if PurePosixPath(mount.container_path).name == LIBRARY and is_hook_name(name):
            return name.removeprefix(f"{LIBRARY}.")
    return ""


def granted_by_others(
    directories: Iterable[tuple[str, str]],
    known: frozenset[tuple[str, str]],
    pods: Mapping[str, Pod],
    now_s: float,
) -> list[Subject]:
    """Containers with a directory (pod uid, name) and a pod that runs, but not among the known."""
    found = []
    for uid, container in directories:
        pod = pods.get(uid)
        if pod is None or pod.finished or container in pod.ended or (uid, container) in known:
            continue
        if any(one.name == container for one in pod.containers):
            found.append(_of_pod(pod, container, now_s))
    return found


def _of_pod(pod: Pod, container: str, now_s: float) -> Subject:
    bound_s = bind_time_s(pod)
    return Subject(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        claims=_of_gpus(_decided(pod, container)),
        granted_at_s=now_s if bound_s is None else min(bound_s, now_s),
        by_others=True,
    )


def _decided(pod: Pod, container: str) -> tuple[Claim, ...]:
    """What the scheduler gave the container; empty where the annotation does not tell.

    Its places are those of all containers of the pod, or of those that are not init containers.
    """
    if DECIDED not in pod.annotations and volcano.DECIDED in pod.annotations:
        return _decided_by_volcano(pod, container)
    try:
        slots = decode_claims(pod.annotations.get(DECIDED, ""))
    except MalformedAnnotation:
        return ()
    for containers in (pod.containers, [one for one in pod.containers if one.kind == "app"]):
        names = [one.name for one in containers]
        if len(names) == len(slots) and container in names:
            claims = slots[names.index(container)]
            return tuple(claim for claim in claims if not is_padding(claim))
    return ()


def _decided_by_volcano(pod: Pod, container: str) -> tuple[Claim, ...]:
    """The GPUs. How many MiB a unit was then is not known, so no limit is."""
    try:
        slots = volcano.decode(pod.annotations[volcano.DECIDED], 1)
    except MalformedAnnotation:
        return ()
    names = [one.name for one in volcano.listed(pod)]
    if len(names) != len(slots) or container not in names:
        return ()
    return tuple(replace(claim, memory_mib=0) for claim in slots[names.index(container)])
