"""A stand-in for Volcano's scheduler with its deviceshare plugin: vGPUs as it hands them out.

It speaks HTTP to any API server and encodes and reads everything itself, with string formatting,
on purpose without the agent's codecs. Imitated: which containers it decides about and how much it
takes them to ask for, its placement (from the last GPU to the first, nothing but room counts), the
annotations it writes in one patch before it binds, the node lock, what it reads of a node and when
a node is none to it, and the handshake up to 1.15. NOT imitated: queues and gangs, MIG, scoring,
use-gputype and use-gpuuuid, preemption, and the choice between nodes.

Sources: Volcano 1.9 to 1.15 and later, pkg/scheduler/api/devices/nvidia/vgpu (device_info.go,
utils.go), pkg/scheduler/plugins/util/nodelock.
"""

import calendar
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.sim.api_client import STRATEGIC_PATCH, ApiClient, Object, path

NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
MEMORY_PERCENT = "volcano.sh/vgpu-memory-percentage"
REGISTER, HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
NODE, TIME = "volcano.sh/vgpu-node", "volcano.sh/vgpu-time"
ALLOCATED, TO_ALLOCATE = "volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate"
BIND_PHASE, BIND_TIME = "volcano.sh/bind-phase", "volcano.sh/bind-time"
LOCK = "hamivgpu"
HANDSHAKE_TIMEOUT_S, LOCK_EXPIRES_S = 60.0, 300.0
HANDSHAKE_TIME = "%Y.%m.%d %H:%M:%S"
WHOLE = 100
RELEASES: Mapping[str, tuple[int, bool]] = {  # fields it needs of a GPU, whether it handshakes
    "1.9": (5, True),
    "1.12": (6, True),
    "1.15": (6, True),
    "master": (6, False),
}


class NoFit(Exception):
    """The pod does not fit on the node."""


class NodeLocked(Exception):
    """The node is being prepared for another pod."""


@dataclass(slots=True)
class Device:
    """One GPU as this scheduler understands it; `place` is its id."""

    place: int
    uuid: str
    number: int
    memory: int  # in units of the node's factor
    type: str
    healthy: bool
    mode: str
    used_number: int = 0
    used_memory: int = 0
    used_cores: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """One vGPU as it was decided."""

    uuid: str
    memory: int  # units
    cores: int

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.uuid},NVIDIA,{self.memory},{self.cores}:"


@dataclass(frozen=True, slots=True)
class Wish:
    """What one container asks for, as this scheduler reads it."""

    number: int
    memory: int
    memory_percent: int  # 101: not given
    cores: int


def wish_of(container: Mapping[str, Any]) -> Wish | None:
    """What it asks for by its limits; None: this scheduler does not decide about it."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}

    def amount(name: str, default: int) -> int:
        text = str(limits.get(name, requests.get(name, default)))
        return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)

    if NUMBER not in limits and MEMORY not in limits:
        return None
    memory, percent = amount(MEMORY, 0), amount(MEMORY_PERCENT, WHOLE + 1)
    if percent == WHOLE + 1 and memory == 0:
        percent = WHOLE
    return Wish(amount(NUMBER, 0) if NUMBER in limits else 1, memory, percent, amount(CORES, 0))


def _number(text: str) -> int:
    """Read a number as Go does when the error is dropped."""
    return int(text) if text.isascii() and text.isdigit() else 0


def decode_register(text: str, fields: int = 6) -> list[Device]:
    """The GPUs of a node, or none at all when one record is too short."""
    devices = []
    for place, record in enumerate(text.split(":")):
        if "," not in record:
            continue
        items = record.split(",")
        if len(items) < fields:
            return []
        devices.append(
            Device(
                place=place,
                uuid=items[0],
                number=_number(items[1]),
                memory=_number(items[2]),
                type=items[3],
                healthy=items[4] in ("1", "t", "T", "TRUE", "true", "True"),
                mode="mig" if len(items) > 5 and items[5] == "mig" else "hami-core",  # noqa: PLR2004
            )
        )
    return devices


def shares_of(text: str) -> list[list[Share]]:
    """Read a decision back."""
    found = []
    for slot in text.split(";") if text else []:
        shares = []
        for entry in slot.split(":"):
            if "," in entry:
                uuid, _, memory, cores = entry.split(",")[:4]
                shares.append(Share(uuid, _number(memory), _number(cores)))
        found.append(shares)
    return found


class VolcanoScheduler:
    """The stand-in. `lock_nodes`: deviceshare.NodeLockEnable."""

    def __init__(
        self,
        client: ApiClient,
        *,
        release: str = "master",
        lock_nodes: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._fields, self.handshakes = RELEASES[release]
        self._lock_nodes = lock_nodes
        self._clock = clock

    # --- nodes ------------------------------------------------------------------------------------

    def look(self, node_name: str) -> list[Device]:
        """What this scheduler sees of a node, with what pods hold of it; does the handshake.

        Empty: it has no vGPUs for this scheduler.
        """
        node = self._client.get("nodes", node_name)
        annotations = _annotations(node)
        if REGISTER not in annotations:
            return []
        if self.handshakes:
            if HANDSHAKE not in annotations or not self._shakes(node_name, annotations[HANDSHAKE]):
                return []
        elif not all(_allocatable(node, name) for name in (NUMBER, MEMORY, CORES)):
            return []
        devices = decode_register(annotations[REGISTER], self._fields)
        self._book(devices, node_name)
        return devices

    def _shakes(self, node_name: str, handshake: str) -> bool:
        """Tell whether the node lives; ask it, or declare it gone."""
        if "Requesting" in handshake:
            try:
                moment = time.strptime(handshake.split("_")[1], HANDSHAKE_TIME)
                asked_s = float(calendar.timegm(moment))
            except ValueError:
                asked_s = 0.0
            if self._clock() - asked_s > HANDSHAKE_TIMEOUT_S:
                self._stamp(node_name, "Deleted_")
                return False
            return True
        if "Deleted" in handshake:
            return False
        self._stamp(node_name, "Requesting_")
        return True

    def _stamp(self, node_name: str, word: str) -> None:
        moment = time.strftime(HANDSHAKE_TIME, time.gmtime(self._clock()))
        self._client.annotate(
            "nodes", node_name, {HANDSHAKE: word + moment}, content_type=STRATEGIC_PATCH
        )

    def _book(self, devices: Sequence[Device], node_name: str) -> None:
        for pod in self._client.list("pods"):
            annotations = _annotations(pod)
            finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if annotations.get(NODE) != node_name or finished:
                continue
            for shares in shares_of(annotations.get(ALLOCATED, "")):
                for share in shares:
                    for device in devices:
                        if device.uuid in share.uuid:
                            _take(device, share)

    # --- pods -------------------------------------------------------------------------------------

    def decide(self, namespace: str, name: str, node_name: str) -> list[tuple[str, list[Share]]]:
        """For each container that it lists, by name: its shares. Raises NoFit."""
        devices = self.look(node_name)
        spec = self._client.get("pods", name, namespace=namespace).get("spec", {})
        decided = []
        for container in spec.get("containers") or []:
            if (wish := wish_of(container)) is not None:
                decided.append((container["name"], _placed(devices, wish)))
        return decided

    def schedule(self, namespace: str, name: str, node_name: str) -> dict[str, list[Share]]:
        """Decide, lock, annotate, bind; give the shares by container. Raises NoFit, NodeLocked."""
        decided = self.decide(namespace, name, node_name)
        if self._lock_nodes:
            self._lock(node_name)
        self.annotate(namespace, name, node_name, ";".join(_text(s) for _, s in decided))
        self.bind(namespace, name, node_name)
        return dict(decided)

    def annotate(self, namespace: str, name: str, node_name: str, decision: str) -> None:
        """Write a decision onto the pod: all in one patch."""
        now = str(int(self._clock()))
        changes: dict[str, str | None] = {
            NODE: node_name,
            TIME: now,
            ALLOCATED: decision,
            TO_ALLOCATE: decision,
            BIND_PHASE: "allocating",
            BIND_TIME: now,
        }
        self._client.annotate(
            "pods", name, changes, namespace=namespace, content_type=STRATEGIC_PATCH
        )

    def bind(self, namespace: str, name: str, node_name: str) -> None:
        """Create the binding: kubelet sees the pod now."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        where = path("pods", name, namespace=namespace, subresource="binding")
        self._client.ask("POST", where, body)

    def _lock(self, node_name: str) -> None:
        node = self._client.get("nodes", node_name)
        annotations = _annotations(node)
        if held := annotations.get(LOCK):
            taken_s = calendar.timegm(time.strptime(held, "%Y-%m-%dT%H:%M:%SZ"))
            if self._clock() - taken_s < LOCK_EXPIRES_S:
                raise NodeLocked(f"node {node_name} has been locked within 5 minutes")
        annotations[LOCK] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        node["metadata"]["annotations"] = annotations
        self._client.ask("PUT", path("nodes", node_name), node)


def _text(shares: Sequence[Share]) -> str:
    return "".join(share.text for share in shares)


def _placed(devices: Sequence[Device], wish: Wish) -> list[Share]:
    """From the last GPU to the first, as long as there is room; one share of a GPU at most."""
    if wish.number > len(devices):
        raise NoFit("not enough GPU cards on the node")
    shares: list[Share] = []
    memory = wish.memory
    for device in reversed(devices):
        if len(shares) == wish.number:
            break
        if device.number <= device.used_number:
            continue
        if wish.memory_percent != WHOLE + 1 and memory == 0:
            memory = device.memory * wish.memory_percent // WHOLE
        if not _has_room(device, memory, wish.cores):
            continue
        share = Share(device.uuid, memory, wish.cores)
        _take(device, share)
        shares.append(share)
    if len(shares) < wish.number:
        raise NoFit(f"{len(shares)} of {wish.number} GPUs fit on the node")
    return shares


def _has_room(device: Device, memory: int, cores: int) -> bool:
    exclusive_of_used = cores == WHOLE and device.used_number
    none_of_full = device.used_cores == WHOLE and cores == 0
    return (
        device.memory - device.used_memory >= memory
        and device.used_cores + cores <= WHOLE
        and not (exclusive_of_used or none_of_full)
        and "NVIDIA" in device.type
    )


def _take(device: Device, share: Share) -> None:
    device.used_number += 1
    device.used_memory += share.memory
    device.used_cores += share.cores


def _annotations(item: Object) -> dict[str, str]:
    found: dict[str, str] = item["metadata"].get("annotations") or {}
    return found


def _allocatable(node: Object, name: str) -> int:
    text = str((node.get("status", {}).get("allocatable") or {}).get(name, "0"))
    return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)
