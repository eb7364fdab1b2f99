"""What a decided grant becomes on a node in mode mig: instances instead of limits.

Takes the place of `GrantWriter`: no library, no directory, no limits file; the container gets the
MIG devices, which the hardware keeps apart. In this order: the book, the instances, the book again,
the journal of grants. Where a scheduler of HAMi 2.10 decided, its annotation is completed in the
same patch that consumes the claim.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agent.domain.gpu import Gpu, Sharing
from agent.domain.grant_plan import GrantPolicy, Named, base_grant, refuse_negative
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.matching import Turn
from agent.domain.mig import Geometries, decode_slot, mig_uuids, profile_named, profile_of_slot
from agent.domain.mig_allocations import (
    MIG_ALLOCATIONS,
    decode_allocations,
    encode_allocations,
)
from agent.domain.mig_books import Book, MigHolding, allocations_for, filled, never_beside
from agent.domain.pods import Container, Pod
from agent.domain.shown import bare
from agent.errors import MalformedAnnotation, NodeNotReady
from agent.ports import GrantLog
from agent.services.container_limits import cache_name
from agent.services.grant_writer import Holder, Undo, host_advice
from agent.services.mig_keeper import MigKeeper
from agent.services.published import Inventory

AGAIN = "delete the pod, so that it is scheduled again"
Nodes = Callable[[int | None, int, int], tuple[str, ...]]  # of GPU minor and both instances


class MigGrants:
    """Called by one thread at a time: whoever decides holds a lock anyway."""

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        keeper: MigKeeper,
        grant_log: GrantLog,
        policy: GrantPolicy,
        inventory: Inventory,
        sharing: Sharing,
        *,
        geometries: Sequence[Geometries] = (),
        nodes: Nodes = lambda _minor, _gpu, _compute: (),
        common_nodes: Callable[[], Sequence[str]] = lambda: (),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`nodes` names the device nodes of an instance, `common_nodes` those of all GPUs."""
        self._keeper = keeper
        self._grant_log = grant_log
        self._policy = policy
        self._inventory = inventory
        self._sharing = sharing
        self._geometries = geometries
        self._nodes = nodes
        self._common_nodes = common_nodes
        self._now_s = now_s

    def write(
        self,
        holder: Holder,
        *,
        claims: tuple[Claim, ...],
        gpus: Sequence[Gpu],
        device_ids: tuple[str, ...],
        before: GrantRecord | None,
        undo: Undo,
    ) -> GrantRecord:
        """As `GrantWriter.write`: the instances exist and the grant is on disk on return.

        Raises MalformedAnnotation, NodeNotReady, in words for the pod's owner.
        """
        if holder.pod is None:
            raise AssertionError("in mode mig a pod is known")
        refuse_negative(claims)
        wanted = self._wanted(holder.pod, holder.container, claims, gpus)
        known = {one.key for one in self._keeper.holdings()}
        made = self._keeper.realise(
            wanted,
            deadline_s=holder.deadline_s,
            apart=never_beside(holder.pod, holder.container),
        )
        fresh = [one for one in made if one.key not in known]
        if fresh:
            undo.append(lambda: self._keeper.undo(fresh))
        grant = self._grant(holder, made, gpus)
        record = before
        if record is None or record.grant != grant or record.device_ids != device_ids:
            record = GrantRecord(
                pod_uid=holder.pod_uid,
                namespace=holder.namespace,
                pod_name=holder.pod_name,
                container=holder.container.name,
                device_ids=device_ids,
                claims=claims,
                grant=grant,
                granted_at_s=self._now_s() if before is None else before.granted_at_s,
            )
            with host_advice():
                self._grant_log.record(record)
        written = record
        undo.append(lambda: self._grant_log.drop(written))
        return record

    def renew(self, record: GrantRecord, *, deadline_s: float) -> None:
        """See to it that the instances of an answer given before are there still, as they were.

        Raises NodeNotReady: a container that runs with other devices than it was given is none.
        """
        held = tuple(
            one
            for one in self._keeper.holdings()
            if (one.pod_uid, one.container) == (record.pod_uid, record.container)
        )
        names = {one.identity.mig_uuid for one in held if one.identity is not None}
        whole = len(held) >= len(record.claims) and names == set(mig_uuids(record.grant))
        if not whole or not self._keeper.exist(held, deadline_s=deadline_s):
            raise NodeNotReady(
                "the MIG devices of this container are gone: somebody else has divided the GPU "
                f"anew; {AGAIN}"
            )

    def answered(self, record: GrantRecord) -> None:
        """Kubelet gets the answer: from now on the grant is given away."""
        self._grant_log.answered(record)

    def further(self, turn: Turn, record: GrantRecord) -> Mapping[str, str]:
        """What is to be written beside the claim that is consumed: which instance it became."""
        text = turn.pod.annotations.get(MIG_ALLOCATIONS)
        if not text:
            return {}
        held = [one for one in self._keeper.holdings() if one.pod_uid == record.pod_uid]
        try:
            return {MIG_ALLOCATIONS: encode_allocations(filled(decode_allocations(text), held))}
        except MalformedAnnotation:
            return {}  # a slot's way leads here, too, and does not need it

    # --- what is wanted

    def _wanted(
        self, pod: Pod, container: Container, claims: Sequence[Claim], gpus: Sequence[Gpu]
    ) -> Book:
        if any("[" in claim.uuid for claim in claims):
            return tuple(
                self._of_slot(pod, container, place, claim, gpu)
                for place, (claim, gpu) in enumerate(zip(claims, gpus, strict=True))
            )
        taken = [
            place
            for place, one in enumerate(pod.containers)
            if one.name != container.name and self._served(pod, one)
        ]
        allocations = allocations_for(pod, container, claims, taken=taken)
        found = []
        for one, gpu in zip(allocations, gpus, strict=True):
            profile = profile_named(gpu, one.profile)
            if profile is None or one.placement not in profile.placements:
                raise MalformedAnnotation(
                    f"the annotation {MIG_ALLOCATIONS} names the profile {bare(one.profile)} at "
                    f"slice {one.placement.start} of GPU {gpu.uuid}, which does not have that; "
                    f"{AGAIN}"
                )
            if profile not in self._sharing.mig_profiles(gpu):
                raise NodeNotReady(
                    f"the profile {bare(one.profile)} is not one of those that the settings "
                    f"of this node allow (migProfileAllowlist); {AGAIN}"
                )
            found.append(
                MigHolding(
                    pod_uid=pod.uid,
                    container=container.name,
                    device_index=one.device_index,
                    gpu_uuid=gpu.uuid,
                    profile=one.profile,
                    profile_id=profile.profile_id,
                    placement=one.placement,
                )
            )
        return tuple(found)

    def _served(self, pod: Pod, container: Container) -> bool:
        return any(
            (one.pod_uid, one.container) == (pod.uid, container.name)
            for one in self._keeper.holdings()
        )

    def _of_slot(
        self, pod: Pod, container: Container, place: int, claim: Claim, gpu: Gpu
    ) -> MigHolding:
        slot = decode_slot(claim.uuid)
        found = (
            "that is no slot of a geometry"
            if slot is None
            else profile_of_slot(slot, gpu, self._geometries)
        )
        if isinstance(found, str):
            raise NodeNotReady(
                f"the scheduler has chosen {bare(claim.uuid)}, but {found}: this node needs the "
                f"scheduler's own knownMigGeometries (--config-file); then {AGAIN}"
            )
        profile, placement = found
        return MigHolding(
            pod_uid=pod.uid,
            container=container.name,
            device_index=place,
            gpu_uuid=gpu.uuid,
            profile=profile.name,
            profile_id=profile.profile_id,
            placement=placement,
        )

    # --- what the container gets

    def _grant(self, holder: Holder, made: Book, gpus: Sequence[Gpu]) -> Grant:
        named = []
        for holding, gpu in zip(made, gpus, strict=True):
            identity = holding.identity
            if identity is None:
                raise AssertionError("an instance that exists has names")
            own = () if gpu.minor is None else (f"/dev/nvidia{gpu.minor}",)
            caps = self._nodes(gpu.minor, identity.gpu_instance, identity.compute_instance)
            named.append(Named(identity.mig_uuid, identity.mig_uuid, (*own, *caps)))
        policy = replace(self._policy, device_id_strategy="uuid")  # indices change with each one
        return base_grant(
            named,
            policy,
            response_id=cache_name(holder.pod_uid, holder.container.name).removesuffix(".cache"),
            common_nodes=tuple(self._common_nodes()),
        )
