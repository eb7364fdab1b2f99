"""What kubelet's own books say of all devices of the node, whoever hands them out.

A kubelet of 1.23 or later is asked (PodResources). An older one does not say what is offered, and
must not be asked what is held: of those its checkpoint is read, as where there is no such socket.
That lists pods that are gone until the next one is admitted, so a pod counts while a process of it
lives.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.adapters.kubelet import SOCKET_PREFIX
from agent.adapters.kubelet_checkpoint import KubeletCheckpoint
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.proc_files import entry_of, text_of
from agent.domain.ownership import HeldDevice
from agent.domain.proc_text import place_of
from agent.errors import KubeletUnavailable
from agent.wire import rpc

CONNECT_S = 0.5


class KubeletDevices:
    """Implements `ports.NodeDevices`. Used by one thread."""

    def __init__(self, pod_resources_socket: Path, device_plugins_dir: Path, proc: Path) -> None:
        self._socket = pod_resources_socket
        self._api = PodResourcesClient(pod_resources_socket)
        self._checkpoint = KubeletCheckpoint(device_plugins_dir)
        self._directory = device_plugins_dir
        self._proc = proc
        self._asked = False  # whether this kubelet may be asked what is held

    def offered(self) -> Mapping[str, tuple[str, ...]]:
        """See `ports.NodeDevices.offered`."""
        self._asked = False
        offered = self._api.offered() if self._socket.exists() else None
        self._asked = offered is not None
        return self._checkpoint.registered() if offered is None else offered

    def held(self) -> tuple[HeldDevice, ...]:
        """See `ports.NodeDevices.held`."""
        if self._asked:
            return self._api.held()
        entries = self._checkpoint.entries()
        living = self._living() if entries else frozenset()
        return tuple(
            HeldDevice(f"pod {one.pod_uid}/{one.container}", one.resource, device_id)
            for one in entries
            if one.pod_uid.replace("_", "-") in living
            for device_id in sorted(one.device_ids)
        )

    def other_plugins(self) -> tuple[str, ...]:
        """See `ports.NodeDevices.other_plugins`."""
        own = f"{SOCKET_PREFIX}{os.getpid()}-"
        try:
            names = sorted(os.listdir(self._directory))  # noqa: PTH208 - names are wanted
        except OSError as error:
            raise KubeletUnavailable(f"{self._directory} cannot be read: {error}") from error
        return tuple(
            name
            for name in names
            if name != rpc.KUBELET_SOCKET and not name.startswith(own) and self._listens(name)
        )

    def _listens(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CONNECT_S)
            try:
                probe.connect(str(self._directory / name))
            except OSError:
                return False
        return True

    def _living(self) -> frozenset[str]:
        """Uids of pods of which processes are seen."""
        return frozenset(place for pid in self._pids() if (place := self._pod_of(pid)))

    def _pids(self) -> Iterator[int]:
        try:
            with os.scandir(self._proc) as entries:
                yield from [int(e.name) for e in entries if e.name.isascii() and e.name.isdigit()]
        except OSError:
            return

    def _pod_of(self, pid: int) -> str:
        try:
            with entry_of(self._proc, pid) as entry:
                place = place_of(text_of(entry, "cgroup"))
        except OSError:  # it has ended, is hidden from us, or cannot be read: no other's loss
            return ""
        return place.pod_uid if place else ""
