"""The stand-in kubelet's books: devices by resource, who holds which, and the checkpoint file.

Does not imitate: the checksum of the real file (another algorithm), NUMA-aware bookkeeping (device
ids are filed under the first NUMA node of the device, or -1).
"""

import base64
import json
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.sim.kubelet_types import ResourceView
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Devices of one resource that one container holds, and what the plugin answered."""

    uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    response: bytes  # ContainerAllocateResponse


@dataclass(slots=True)
class Devices:
    """What is known of one resource. `stopped_at_s` is None while its plugin is connected."""

    healthy: dict[str, int] = field(default_factory=dict)  # id -> NUMA node, -1: none
    unhealthy: dict[str, int] = field(default_factory=dict)
    stopped_at_s: float | None = None


class Books:
    """Thread-safe; every method is one transaction. Compound changes hold `lock` around them."""

    def __init__(self, checkpoint: Path) -> None:
        self.lock = threading.RLock()
        self._checkpoint = checkpoint
        self._closed = False
        self.devices: dict[str, Devices] = {}
        self.assignments: dict[tuple[str, str, str], Assignment] = {}
        self.in_use: dict[str, set[str]] = {}  # assigned, or about to be

    # --- devices ---------------------------------------------------------------------------

    def replace_devices(self, resource: str, devices: Iterable[dp.Device]) -> tuple[int, int]:
        """Take a ListAndWatch message: it is always the whole list. Gives (healthy, unhealthy)."""
        with self.lock:
            known = self.devices.setdefault(resource, Devices())
            known.healthy, known.unhealthy = {}, {}
            for device in devices:
                numa = device.topology.nodes[0].id if device.topology.nodes else -1
                side = known.healthy if device.health == rpc.HEALTHY else known.unhealthy
                side[device.id] = numa
            self.save()
            return len(known.healthy), len(known.unhealthy)

    def plugin_connected(self, resource: str) -> None:
        """A plugin registered; its devices arrive with the first message."""
        with self.lock:
            if resource in self.devices:
                self.devices[resource].stopped_at_s = None

    def plugin_gone(self, resource: str, now_s: float) -> None:
        """All devices of the resource count as unhealthy from now on."""
        with self.lock:
            known = self.devices.setdefault(resource, Devices())
            known.unhealthy |= known.healthy
            known.healthy = {}
            known.stopped_at_s = now_s

    def view(self) -> dict[str, ResourceView]:
        """A picture of all resources."""
        with self.lock:
            return {
                name: ResourceView(
                    frozenset(known.healthy),
                    frozenset(known.unhealthy),
                    known.stopped_at_s is None,
                    frozenset(self.in_use.get(name, ())),
                )
                for name, known in self.devices.items()
            }

    # --- assignments -----------------------------------------------------------------------

    def held(self, uid: str, container: str, resource: str) -> frozenset[str]:
        """Devices that a container holds already."""
        with self.lock:
            assignment = self.assignments.get((uid, container, resource))
            return assignment.device_ids if assignment else frozenset()

    def of_container(self, uid: str, container: str) -> list[Assignment]:
        """All assignments of one container."""
        with self.lock:
            return [
                a for a in self.assignments.values() if (a.uid, a.container) == (uid, container)
            ]

    def assign(self, assignment: Assignment) -> None:
        """Write an assignment down, on disk before returning."""
        with self.lock:
            key = (assignment.uid, assignment.container, assignment.resource)
            self.assignments[key] = assignment
            self.save()

    def recount(self) -> None:
        """Count as in use what is assigned, forgetting what was only about to be."""
        with self.lock:
            self.in_use = {}
            for assignment in self.assignments.values():
                self.in_use.setdefault(assignment.resource, set()).update(assignment.device_ids)

    def free_all_but(self, active: Iterable[str]) -> None:
        """Take the devices of pods that no longer exist back; the file still lists them."""
        with self.lock:
            kept = set(active)
            gone = [key for key in self.assignments if key[0] not in kept]
            for key in gone:
                assignment = self.assignments.pop(key)
                self.in_use.get(assignment.resource, set()).difference_update(assignment.device_ids)

    # --- the file --------------------------------------------------------------------------

    def close(self) -> None:
        """The process dies: nothing is written any more, whatever its threads still do."""
        with self.lock:
            self._closed = True

    def save(self) -> None:
        """Write the checkpoint: on every device message and every assignment."""
        with self.lock:
            if self._closed:
                return
            data = {
                "PodDeviceEntries": [self._entry(a) for a in self.assignments.values()] or None,
                "RegisteredDevices": {
                    name: sorted(known.healthy) for name, known in self.devices.items()
                },
            }
            text = json.dumps({"Data": data, "Checksum": checksum(data)})
            part = self._checkpoint.with_name(f".{CHECKPOINT}.part")
            try:
                part.touch(mode=0o600)
                part.chmod(0o600)
                part.write_text(text)
                part.replace(self._checkpoint)
            except FileNotFoundError:
                return  # the directory is gone: kubelet only logs that

    def _entry(self, assignment: Assignment) -> dict[str, Any]:
        known = self.devices.get(assignment.resource, Devices())
        by_numa: dict[str, list[str]] = {}
        for device_id in sorted(assignment.device_ids):
            numa = known.healthy.get(device_id, known.unhealthy.get(device_id, -1))
            by_numa.setdefault(str(numa), []).append(device_id)
        return {
            "PodUID": assignment.uid,
            "ContainerName": assignment.container,
            "ResourceName": assignment.resource,
            "DeviceIDs": by_numa,
            "AllocResp": base64.b64encode(assignment.response).decode(),
        }

    def load(self, now_s: float) -> str:
        """Start from the checkpoint; an unreadable one means empty books. Gives what was found.

        Registered resources exist from then on, with no devices until their plugin is back.
        """
        with self.lock:
            self.devices, self.assignments, self.in_use = {}, {}, {}
            try:
                stored = json.loads(self._checkpoint.read_text())
                data = stored["Data"]
                if stored["Checksum"] != checksum(data):
                    return "corrupt"
                for entry in data["PodDeviceEntries"] or ():
                    assignment = _assignment(entry)
                    key = (assignment.uid, assignment.container, assignment.resource)
                    self.assignments[key] = assignment
                for name in data["RegisteredDevices"]:
                    self.devices[name] = Devices(stopped_at_s=now_s)
            except FileNotFoundError:
                return "absent"
            except (ValueError, KeyError, TypeError):
                self.devices, self.assignments = {}, {}
                return "corrupt"
            self.recount()
            return "read"


def _assignment(entry: Mapping[str, Any]) -> Assignment:
    ids = frozenset(i for ids in entry["DeviceIDs"].values() for i in ids)
    return Assignment(
        entry["PodUID"],
        entry["ContainerName"],
        entry["ResourceName"],
        ids,
        base64.b64decode(entry["AllocResp"]),
    )


def checksum(data: Any) -> int:
    """Tell a damaged checkpoint from a whole one."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
