"""Whose each GPU instance is, and which of them nobody's.

Two things are believed, in this order: our own book, which is written before an instance is made
and again when its names are known, and the annotation that the scheduler and HAMi's plugin keep on
the pod, which the pod's author can write too. What the book says is never overruled by a pod.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.domain.claims import TO_ALLOCATE, decode_claims
from agent.domain.dialect import DECIDED, VGPU_NODE
from agent.domain.gpu import MigPlacement
from agent.domain.grants import Claim
from agent.domain.mig import DividedGpu, MigInstance, gpu_uuid_of
from agent.domain.mig_allocations import (
    MIG_ALLOCATIONS,
    MigAllocation,
    MigIdentity,
    decode_allocations,
)
from agent.domain.pods import Container, Pod
from agent.domain.shown import bare
from agent.errors import MalformedAnnotation

MAX_HOLDINGS = 4_096
Key = tuple[str, str, int]  # pod uid, container, place among the container's devices
Place = tuple[str, MigPlacement]  # GPU uuid and where on it


@dataclass(frozen=True, slots=True, kw_only=True)
class MigHolding:
    """A GPU instance of one container: to be made, or made when it has names."""

    pod_uid: str
    container: str
    device_index: int
    gpu_uuid: str
    profile: str
    profile_id: int
    placement: MigPlacement
    identity: MigIdentity | None = None

    @property
    def key(self) -> Key:
        return self.pod_uid, self.container, self.device_index

    @property
    def place(self) -> Place:
        return self.gpu_uuid, self.placement

    def named(self, instance: MigInstance) -> "MigHolding":
        """With what the driver calls it."""
        compute, uuid = instance.devices[0]
        return replace(self, identity=MigIdentity(uuid, instance.gpu_instance, compute))


Book = tuple[MigHolding, ...]


# --- which allocations are a container's ------------------------------------------------------


def allocations_for(
    pod: Pod, container: Container, claims: Sequence[Claim], *, taken: Iterable[int] = ()
) -> tuple[MigAllocation, ...]:
    """What the scheduler decided for this container, in the order of its devices.

    Normally that is what it wrote for the container's place. HAMi 2.10.0 sometimes counts places
    otherwise (it leaves out containers without GPUs): where what is written does not go with the
    pod's containers, the first entry is the first container's that asks for GPUs, and so on. The
    GPUs have to agree with the claims in any case; else the first entries count that do, and that
    no other container has (`taken`, places).

    Raises MalformedAnnotation.
    """
    by_place: dict[int, list[MigAllocation]] = {}
    for one in decode_allocations(pod.annotations.get(MIG_ALLOCATIONS, "")):
        by_place.setdefault(one.container_index, []).append(one)
    wanted = [claim.uuid for claim in claims]
    asking = [place for place, one in enumerate(pod.containers) if one.vgpus]
    own = next((i for i, one in enumerate(pod.containers) if one.name == container.name), -1)
    if len(by_place) == len(asking) and own in asking:
        own = sorted(by_place)[asking.index(own)]
    others = [place for place in sorted(by_place) if place != own and place not in set(taken)]
    for place in [own, *others]:
        entries = sorted(by_place.get(place, ()), key=lambda one: one.device_index)
        if [one.gpu_uuid for one in entries] == wanted:
            return tuple(entries)
    raise MalformedAnnotation(
        f"container {container.name} of pod {pod.full_name} is to get {len(wanted)} MIG device(s), "
        f"but the annotation {MIG_ALLOCATIONS} does not say which profile and placement on "
        f"{bare(', '.join(wanted))}: the scheduler has to be HAMi 2.10 with this node registered "
        "in mode mig; delete the pod, so that it is scheduled again"
    )


def never_beside(pod: Pod, container: Container) -> frozenset[str]:
    """The pod's containers that never run beside this one: an init container ends first.

    HAMi's scheduler after 2.10 chooses the same place for both.
    """
    own = next((i for i, one in enumerate(pod.containers) if one.name == container.name), -1)
    return frozenset(
        one.name
        for place, one in enumerate(pod.containers)
        if place != own and (one if place < own else container).kind == "init"
    )


def filled(
    allocations: Iterable[MigAllocation], holdings: Iterable[MigHolding]
) -> tuple[MigAllocation, ...]:
    """The annotation's entries with the names of what these holdings became."""
    names = {holding.place: holding.identity for holding in holdings}
    return tuple(
        replace(one, identity=names.get((one.gpu_uuid, one.placement)) or one.identity)
        for one in allocations
    )


# --- whose is what ------------------------------------------------------------------------------


def lives(pod: Pod) -> bool:
    """Whether a pod may still use what it was given: until it has ended, or is gone.

    One that is being deleted still runs for its grace period.
    """
    return not pod.finished


@dataclass(frozen=True, slots=True)
class Told:
    """What the annotations of the node's living pods say is theirs: place -> pod uid.

    `unreadable`: pods whose annotation says nothing; while there is one, nobody can be sure that
    what is not told is nobody's. `unclear`: the same of one GPU (by uuid; the pod's name): a pod
    was given a part of it by somebody who wrote down no place: HAMi's plugin up to 2.9, or the
    agent itself while it shared the GPU by the library.
    """

    places: Mapping[Place, str]
    unreadable: tuple[str, ...] = ()
    unclear: Mapping[str, str] = field(default_factory=dict)


def told_by_pods(pods: Iterable[Pod], node_name: str, book: Book = ()) -> Told:
    """Instances that living pods of this node name, the first to name one having it. Total.

    What the book has is clear anyhow.
    """
    places: dict[Place, str] = {}
    unclear: dict[str, str] = {}
    unreadable = []
    for pod in pods:
        asks = any(container.vgpus for container in pod.containers)
        if not asks or not lives(pod) or pod.annotations.get(VGPU_NODE) != node_name:
            continue
        try:
            allocations = decode_allocations(pod.annotations.get(MIG_ALLOCATIONS, ""))
        except MalformedAnnotation:
            unreadable.append(pod.full_name)
            continue
        for one in allocations:
            if one.identity is not None:
                places.setdefault((one.gpu_uuid, one.placement), pod.uid)
        placed = {one.gpu_uuid for one in allocations}
        placed |= {one.gpu_uuid for one in book if one.pod_uid == pod.uid}
        for uuid in _served_gpus(pod) - placed:
            unclear.setdefault(uuid, pod.full_name)
    return Told(places, tuple(unreadable), unclear)


def _served_gpus(pod: Pod) -> frozenset[str]:
    """GPUs of which the pod was given something: decided on, and consumed. Total."""
    try:
        decided = decode_claims(pod.annotations.get(DECIDED, ""))
        waiting = decode_claims(pod.annotations.get(TO_ALLOCATE, ""))
    except MalformedAnnotation:
        return frozenset()
    left = Counter(claim.uuid for slot in waiting for claim in slot)
    given = Counter(claim.uuid for slot in decided for claim in slot) - left
    return frozenset(gpu_uuid_of(uuid) for uuid in given)


def held_places(book: Book, pods: Mapping[str, Pod]) -> dict[Place, str]:
    """Instances of the book whose pods live: place -> pod uid."""
    return {
        one.place: one.pod_uid
        for one in book
        if (pod := pods.get(one.pod_uid)) is not None and lives(pod)
    }


def strays(gpu: DividedGpu, owned: Mapping[Place, str]) -> tuple[MigInstance, ...]:
    """The instances of this GPU that are nobody's."""
    return tuple(one for one in gpu.instances if (gpu.uuid, one.placement) not in owned)


def kept(book: Book, pods: Mapping[str, Pod], gpus: Mapping[str, DividedGpu]) -> Book:
    """The book without those whose pod is gone and whose instance is, too."""
    return tuple(
        one
        for one in book
        if ((pod := pods.get(one.pod_uid)) is not None and lives(pod))
        or one.gpu_uuid not in gpus
        or gpus[one.gpu_uuid].at(one.placement) is not None
    )


def missed(
    book: Book, pods: Mapping[str, Pod], gpus: Mapping[str, DividedGpu]
) -> tuple[MigHolding, ...]:
    """Devices of living pods that do not exist any more, of these GPUs."""
    return tuple(
        one
        for one in book
        if (pod := pods.get(one.pod_uid)) is not None
        and lives(pod)
        and (gpu := gpus.get(one.gpu_uuid)) is not None
        and one.identity is not None
        and not is_there(one, gpu)
    )


def is_there(holding: MigHolding, gpu: DividedGpu) -> bool:
    """Whether the device exists under the names by which it was given away."""
    instance, identity = gpu.at(holding.placement), holding.identity
    return (
        instance is not None
        and identity is not None
        and instance.gpu_instance == identity.gpu_instance
        and (identity.compute_instance, identity.mig_uuid) in instance.devices
    )


def with_holdings(book: Book, fresh: Iterable[MigHolding]) -> Book:
    """The book with these in place of what their keys were."""
    added = {one.key: one for one in fresh}
    return (*(one for one in book if one.key not in added), *added.values())


def adopted(
    pod: Pod, gpus: Mapping[str, DividedGpu], profiles: Mapping[str, Mapping[str, int]]
) -> tuple[MigHolding, ...]:
    """What a pod that somebody else served holds: named in its annotation, and really there.

    `profiles`: profile ids by GPU and name. Raises MalformedAnnotation.
    """
    found = []
    for one in decode_allocations(pod.annotations.get(MIG_ALLOCATIONS, "")):
        gpu = gpus.get(one.gpu_uuid)
        instance = gpu.at(one.placement) if gpu is not None else None
        profile_id = profiles.get(one.gpu_uuid, {}).get(one.profile)
        identity = one.identity
        if instance is None or identity is None or instance.profile_id != profile_id:
            continue
        device = identity.compute_instance, identity.mig_uuid
        if one.container_index < len(pod.containers) and device in instance.devices:
            found.append(
                MigHolding(
                    pod_uid=pod.uid,
                    container=pod.containers[one.container_index].name,
                    device_index=one.device_index,
                    gpu_uuid=one.gpu_uuid,
                    profile=one.profile,
                    profile_id=instance.profile_id,
                    placement=one.placement,
                    identity=identity,
                )
            )
    return tuple(found)


# --- the file -----------------------------------------------------------------------------------


def encode_book(book: Book) -> bytes:
    """The book as a file."""
    return json.dumps({"version": 1, "holdings": [_object(one) for one in book]}).encode()


def _object(one: MigHolding) -> dict[str, Any]:
    identity = one.identity
    return {
        "pod_uid": one.pod_uid,
        "container": one.container,
        "device_index": one.device_index,
        "gpu_uuid": one.gpu_uuid,
        "profile": one.profile,
        "profile_id": one.profile_id,
        "start": one.placement.start,
        "size": one.placement.size,
        "mig_uuid": identity.mig_uuid if identity else None,
        "gpu_instance": identity.gpu_instance if identity else None,
        "compute_instance": identity.compute_instance if identity else None,
    }


def decode_book(content: bytes) -> Book:
    """Read it back. Raises ValueError, and nothing else, for what `encode_book` did not write."""
    try:
        listed = json.loads(content)["holdings"]
        if not isinstance(listed, list) or len(listed) > MAX_HOLDINGS:
            raise ValueError(f"more than {MAX_HOLDINGS} holdings")
        return tuple(_holding(item) for item in listed)
    except (TypeError, KeyError, RecursionError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _holding(item: Any) -> MigHolding:
    texts = [item[key] for key in ("pod_uid", "container", "gpu_uuid", "profile")]
    numbers = [item[key] for key in ("device_index", "profile_id", "start", "size")]
    if any(type(one) is not str for one in texts) or any(type(one) is not int for one in numbers):
        raise ValueError("a holding with fields of another kind")
    names = item["mig_uuid"], item["gpu_instance"], item["compute_instance"]
    made = [type(one) for one in names] == [str, int, int]
    if not made and names != (None, None, None):
        raise ValueError("a holding with half of its names")
    return MigHolding(
        pod_uid=texts[0],
        container=texts[1],
        gpu_uuid=texts[2],
        profile=texts[3],
        device_index=numbers[0],
        profile_id=numbers[1],
        placement=MigPlacement(numbers[2], numbers[3]),
        identity=MigIdentity(*names) if made else None,
    )
