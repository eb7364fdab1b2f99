"""Which containers and processes have metrics? Those of the picture, but not without bound.

A name in the API can stand for two grants for a moment, when a pod was deleted and another of its
name created; a metric can stand for one only, or Prometheus refuses the whole page.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.domain.accounting import ContainerUse, DeviceUse, NodeUse, ProcessUse

MAX_DEVICES = 4096  # vGPUs; a kubelet that is not tuned takes 110 pods
MAX_PROCESSES_EACH = 64  # of a container: the list is its own word
MAX_PROCESSES = 8192
VERSION_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a picture is shown, and how much of it is not."""

    containers: tuple[ContainerUse, ...]
    processes: tuple[tuple[ContainerUse, tuple[ProcessUse, ...]], ...]
    containers_left_out: int = 0
    processes_left_out: int = 0

    def devices(self) -> Iterator[tuple[ContainerUse, DeviceUse]]:
        """Each GPU of each container, once."""
        for container in self.containers:
            yield from ((container, device) for device in container.devices)


def shown(
    use: NodeUse,
    *,
    per_process: bool,
    max_devices: int = MAX_DEVICES,
    max_processes_each: int = MAX_PROCESSES_EACH,
    max_processes: int = MAX_PROCESSES,
) -> Shown:
    """Choose what is shown, in the picture's order."""
    chosen: list[ContainerUse] = []
    devices = 0
    for container in _unique(use):
        devices += len(container.devices)
        if devices > max_devices:
            break
        chosen.append(container)
    kept: list[tuple[ContainerUse, tuple[ProcessUse, ...]]] = []
    room, left_out = max_processes, 0
    for container in chosen if per_process else ():
        some = container.processes[: min(max_processes_each, room)]
        room -= len(some)
        left_out += len(container.processes) - len(some)
        kept.append((container, some))
    return Shown(
        tuple(chosen),
        tuple(kept),
        containers_left_out=len(use.containers) - len(chosen),
        processes_left_out=left_out,
    )


def _unique(use: NodeUse) -> Iterator[ContainerUse]:
    """Of containers with one name, that which lives (or the last)."""
    by_name: dict[tuple[str, str, str], ContainerUse] = {}
    for one in use.containers:
        name = (one.namespace, one.pod, one.container)
        other = by_name.get(name)
        if other is None or _life(one) >= _life(other):
            by_name[name] = one
    yield from by_name.values()


def _life(container: ContainerUse) -> tuple[bool, int]:
    return bool(container.processes), container.last_kernel_s
