"""A pod and a node as the agent needs them, read from the API server's JSON.

Anybody who may create a pod writes these objects: reading is total (a missing or mistyped part
becomes its empty value, never an exception) and keeps only what the agent uses, so that memory
stays bounded by the number of pods on the node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.domain.asked import NOTHING, AmountNames, Asked, asked_of, whole

KEPT_PREFIXES = ("hami.io/", "volcano.sh/", "hamivgpu", "nvidia.com/", "vgpu-agent/")
MAX_ANNOTATION_CHARS = 262_144  # the API server's own limit on all annotations together
MAX_CONTAINERS = 1000
MAX_ID_CHARS = 128
AMOUNTS = AmountNames()
_VARIABLES = ("CUDA_DISABLE_CONTROL", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a pod spec, in the order kubelet starts them."""

    name: str
    kind: str = "app"  # "init" | "sidecar" (restartable init) | "app"
    vgpus: int = 0  # asked for of the count resource (limits, else requests)
    asked: Asked = NOTHING  # of each of them
    listed: bool = False  # has a limit that makes Volcano's scheduler decide about it
    control_disabled: str | None = None  # literal value of env CUDA_DISABLE_CONTROL
    task_priority: str | None = None  # of CUDA_TASK_PRIORITY
    core_policy: str | None = None  # of GPU_CORE_UTILIZATION_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod bound to this node."""

    namespace: str
    name: str
    uid: str
    node_name: str = ""
    phase: str = ""  # "Pending", "Running", "Succeeded", "Failed"
    deleting: bool = False
    created_at: str = ""  # RFC 3339
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)  # only KEPT_PREFIXES
    containers: tuple[Container, ...] = ()  # init (and sidecar) containers first, then app
    container_ids: Mapping[str, str] = field(default_factory=dict)  # the runtime's id -> name
    ended: frozenset[str] = frozenset()  # init containers that have done their work
    acknowledged: bool = False  # kubelet has begun with it, so it was given what it asks for
    kubelet_uid: str = ""  # the pod's own uid, where `uid` is the name of a grant (identities)

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Whether its containers have ended for good: it holds no vGPU any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def admitted(self) -> bool:
        """Whether kubelet has let it in, and so asked some device plugin for its vGPUs."""
        return self.acknowledged or self.phase == "Running"

    def container(self, name: str) -> Container | None:
        """The one of that name in its spec."""
        return next((one for one in self.containers if one.name == name), None)

    def with_annotations(self, changes: Mapping[str, str | None]) -> "Pod":
        """The pod after a patch of its annotations; None removes."""
        return replace(self, annotations=_changed(self.annotations, changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Our own Node object."""

    name: str
    uid: str = ""
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)  # only KEPT_PREFIXES
    labels: Mapping[str, str] = field(default_factory=dict)

    def with_annotations(self, changes: Mapping[str, str | None]) -> "Node":
        """The node after a patch of its annotations; None removes."""
        return replace(self, annotations=_changed(self.annotations, changes))


def _changed(now: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**now, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _annotations(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: value
        for key, value in _mapping(metadata.get("annotations")).items()
        if isinstance(value, str)
        and key.startswith(KEPT_PREFIXES)
        and len(value) <= MAX_ANNOTATION_CHARS
    }


def _narrow(annotations: Mapping[str, str]) -> dict[str, str]:
    """With a question mark for what is not ASCII: nothing that we read in a pod's has any.

    One such character can make Python keep a text in four bytes for each, and a tenant's pods
    together would take more memory than the agent may have.
    """
    return {
        key: value if value.isascii() else value.encode("ascii", "replace").decode()
        for key, value in annotations.items()
    }


def _container(
    spec: Any, kind: str, resource: str, also: tuple[str, ...], amounts: AmountNames
) -> Container:
    spec = _mapping(spec)
    resources = _mapping(spec.get("resources"))
    limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
    env = spec.get("env")
    told: dict[str, str] = {}
    for entry in env if isinstance(env, list) else []:
        variable = _mapping(entry)
        if (name := _text(variable.get("name"))) in _VARIABLES:
            told[name] = _text(variable.get("value"))[:MAX_ID_CHARS]
    if kind == "init" and spec.get("restartPolicy") == "Always":
        kind = "sidecar"
    return Container(
        name=_text(spec.get("name")),
        kind=kind,
        vgpus=whole(limits.get(resource, requests.get(resource, 0))),
        asked=asked_of(limits, requests, amounts),
        listed=bool(also) and any(name in limits for name in (resource, *also)),
        control_disabled=told.get("CUDA_DISABLE_CONTROL"),
        task_priority=told.get("CUDA_TASK_PRIORITY"),
        core_policy=told.get("GPU_CORE_UTILIZATION_POLICY"),
    )


def _container_ids(status: Mapping[str, Any]) -> dict[str, str]:
    """Which containers run, or ran last: `containerd://<id>` by name."""
    found = {}
    for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        listed = status.get(key)
        for item in (listed if isinstance(listed, list) else [])[:MAX_CONTAINERS]:
            told = _mapping(item)
            identity = _text(told.get("containerID")).rpartition("//")[2]
            if identity and len(identity) <= MAX_ID_CHARS and (name := _text(told.get("name"))):
                found[identity] = name
    return found


def _ended(status: Mapping[str, Any], containers: list[Container]) -> frozenset[str]:
    """Whom kubelet does not start again, unless it makes the whole pod anew."""
    init = {container.name for container in containers if container.kind == "init"}
    listed = status.get("initContainerStatuses")
    found = set()
    for item in (listed if isinstance(listed, list) else [])[:MAX_CONTAINERS]:
        told = _mapping(item)
        end = _mapping(_mapping(told.get("state")).get("terminated"))
        if end.get("exitCode") == 0 and _text(told.get("name")) in init:
            found.add(_text(told.get("name")))
    return frozenset(found)


def decode_pod(
    obj: Any, *, resource: str, also: tuple[str, ...] = (), amounts: AmountNames = AMOUNTS
) -> Pod:
    """Read a pod object of the API server; `resource` is the count resource, e.g. nvidia.com/gpu.

    `also`: resources whose limit alone makes the scheduler decide about a container. `amounts`:
    those by which it asks for a part of each vGPU.

    Total: whatever is missing is empty, and a pod without uid or name is still a value.
    """
    obj = _mapping(obj)
    metadata, spec = _mapping(obj.get("metadata")), _mapping(obj.get("spec"))
    status = _mapping(obj.get("status"))
    containers: list[Container] = []
    for key, kind in (("initContainers", "init"), ("containers", "app")):
        listed = spec.get(key)
        for item in (listed if isinstance(listed, list) else [])[:MAX_CONTAINERS]:
            containers.append(_container(item, kind, resource, also, amounts))
    return Pod(
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        node_name=_text(spec.get("nodeName")),
        phase=_text(status.get("phase")),
        deleting=metadata.get("deletionTimestamp") is not None,
        created_at=_text(metadata.get("creationTimestamp")),
        resource_version=_text(metadata.get("resourceVersion")),
        annotations=_narrow(_annotations(metadata)),
        containers=tuple(containers),
        container_ids=_container_ids(status),
        ended=_ended(status, containers),
        acknowledged=bool(_text(status.get("startTime"))),
    )


def decode_node(obj: Any) -> Node:
    """Read a Node object of the API server. Total."""
    metadata = _mapping(_mapping(obj).get("metadata"))
    labels = _mapping(metadata.get("labels")).items()
    return Node(
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        resource_version=_text(metadata.get("resourceVersion")),
        annotations=_annotations(metadata),
        labels={key: value for key, value in labels if isinstance(value, str)},
    )
