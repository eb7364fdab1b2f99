"""A node with containers whose limits change: real files and records, everything else by hand."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.adapters.caches import HostCaches
from agent.adapters.live_limits import HostLiveLimits
from agent.domain.accounting import ContainerUse, DeviceUse, NodeUse, SelfReported, Tier
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.limit_change import AnnotationRule
from agent.domain.limit_requests import ANNOTATION
from agent.domain.limits_file import decode
from agent.domain.pods import Container, Pod
from agent.ports import ClusterEvent
from agent.services.container_limits import ContainerLimits
from agent.services.granted_containers import GrantedContainers
from agent.services.limit_annotations import LimitAnnotations
from agent.services.limit_changes import LimitChanges
from agent.services.published import PodTable, Published
from agent.sim.driver import made_up_uuid

MIB = 1 << 20
CARD_MIB = 10_000
GPUS = tuple(made_up_uuid(place) for place in range(2))


class Grants:
    """Implements what is asked of `GrantLog` here."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, str], GrantRecord] = {}

    def records(self) -> tuple[GrantRecord, ...]:
        return tuple(self.all.values())

    def record(self, record: GrantRecord) -> None:
        self.all[record.pod_uid, record.container] = record

    def answered(self, record: GrantRecord) -> None: ...

    def drop(self, record: GrantRecord) -> None: ...

    def forget(self, pod_uids: frozenset[str]) -> None:
        self.all = {key: record for key, record in self.all.items() if key[0] not in pod_uids}


@dataclass
class Node:
    """What outlives an agent: its files, the API server's pods, the grants."""

    root: Path
    pods: Published[PodTable] = field(default_factory=lambda: Published(PodTable({}, synced=True)))
    grants: Grants = field(default_factory=Grants)
    use: Published[NodeUse] = field(default_factory=lambda: Published(NodeUse()))
    events: list[ClusterEvent] = field(default_factory=list)
    counted: list[tuple[str, str]] = field(default_factory=list)
    now_s: float = 1000.0
    sharing: Sharing = field(default_factory=Sharing)

    def __post_init__(self) -> None:
        self.host = self.root / "vgpu"
        self.host.mkdir(parents=True)
        self.caches = HostCaches(self.host, lock_dir=self.root / "lock")

    def grant(
        self,
        pod: str,
        container: str = "main",
        *claims: tuple[int, int],
        namespace: str = "team",
        gpus: tuple[str, ...] = GPUS,
    ) -> GrantRecord:
        """Give a container memory (MiB) and cores of one GPU after the other; 1000 and 40 of one."""
        record = GrantRecord(
            pod_uid=f"uid-{namespace}-{pod}",
            namespace=namespace,
            pod_name=pod,
            container=container,
            device_ids=(),
            claims=tuple(
                Claim(uuid, "NVIDIA", mib, cores)
                for uuid, (mib, cores) in zip(gpus, claims or ((1000, 40),), strict=False)
            ),
            grant=Grant(),
            granted_at_s=1.0,
            answered=True,
        )
        self.grants.record(record)
        self.annotate(record, None)
        self.allocate(record)
        return record

    def allocate(self, record: GrantRecord) -> None:
        """As Allocate does, and does again whenever kubelet asks."""
        self.caches.create(record.pod_uid, record.container)
        ContainerLimits(self.caches, GrantPolicy(), changed=self.limits()).write(
            record.pod_uid, record.container, record.claims
        )

    def annotate(
        self,
        record: GrantRecord,
        value: object,
        *,
        others: Collection[Container] = (),
        ended: Collection[str] = (),
    ) -> None:
        """Let the watch bring the pod with this annotation; None: without.

        It has the containers that were granted something, and the `others`.
        """
        text = value if isinstance(value, str) else json.dumps(value)
        named = {one.name: one for one in others}
        granted = [one.container for one in self.grants.records() if one.pod_uid == record.pod_uid]
        pod = Pod(
            namespace=record.namespace,
            name=record.pod_name,
            uid=record.pod_uid,
            phase="Running",
            annotations={} if value is None else {ANNOTATION: text},
            containers=(
                *others,
                *(Container(name=name, vgpus=1) for name in granted if name not in named),
            ),
            ended=frozenset(ended),
        )
        self.pods.update(lambda table: table.applied(pod))

    def uses(self, record: GrantRecord, mib: int) -> None:
        """Let it be counted that the container uses so much of its first GPU."""
        reported = SelfReported(
            used_bytes=mib * MIB, context_bytes=0, module_bytes=0, buffer_bytes=0, limit_bytes=0
        )
        device = DeviceUse(
            place=0, uuid=record.claims[0].uuid, memory_limit_bytes=0, core_permille=0,
            reported=reported,
        )  # fmt: skip
        self.use.publish(
            NodeUse(
                containers=(
                    ContainerUse(
                        pod_uid=record.pod_uid, namespace=record.namespace, pod=record.pod_name,
                        container=record.container, tier=Tier.HOOK, hook_version="", priority=1,
                        state=None, devices=(device,),
                    ),
                )
            )
        )  # fmt: skip

    def limits(self) -> HostLiveLimits:
        return HostLiveLimits(self.host, self.root / "state")

    def file(self, record: GrantRecord) -> Path:
        return self.host / "limits" / f"{record.pod_uid}_{record.container}"

    def held(self, record: GrantRecord) -> list[tuple[int, int]]:
        """MiB and percent of each GPU, as the container's file says now."""
        return [
            (device.memory_limit_bytes // MIB, device.core_permille // 10)
            for device in decode(self.file(record).read_bytes()).devices
        ]

    def agent(self, rule: AnnotationRule = AnnotationRule.LOWER) -> "Agent":
        """One that starts now."""
        return Agent(self, rule)


class Agent:
    """One life of the part of the agent that changes limits."""

    def __init__(self, node: Node, rule: AnnotationRule) -> None:
        limits = node.limits()
        limits.mend()
        inventory = Published(
            GpuInventory.of(
                Gpu(uuid=uuid, index=place, name="A40", memory_mib=CARD_MIB)
                for place, uuid in enumerate(GPUS)
            )
        )
        self.inventory = inventory
        self.containers = containers = GrantedContainers(
            limits, node.grants, node.pods, inventory, node.sharing, use=node.use.now
        )
        self.asked_by = ""  # who is at the other end of the socket
        self.changes = LimitChanges(
            limits,
            containers,
            event=node.events.append,
            count=lambda source, outcome: node.counted.append((source, outcome)),
        )
        self.annotations = LimitAnnotations(
            self.changes, containers, limits, node.pods, rule=rule, clock=lambda: node.now_s
        )

    def post(self, **body: Any) -> tuple[int, dict[str, Any]]:
        status, content = self.changes.answer(json.dumps(body).encode(), self.asked_by)
        return status, json.loads(content)

    def asked(self, _path: Path, method: str, target: str, body: Mapping[str, Any]) -> Any:
        """In place of the socket: the same as `local_client.ask`."""
        from agent.adapters.local_client import Answer

        assert (method, target) == ("POST", "/v1/limits")
        return Answer(*self.post(**body))
