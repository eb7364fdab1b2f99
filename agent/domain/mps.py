"""Sharing through NVIDIA's MPS daemon: what it is told, and what its clients get.

One daemon for each resource that is shared so. Each replica may use an equal part of a GPU's memory
and of its threads. Limits are named by uuid: an ordinal that the daemon does not see would make it
forget all of them. Sources: NVIDIA, "Multi-Process Service", control daemon commands;
k8s-device-plugin 0.19, cmd/mps-control-daemon.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.domain.grants import Grant, Mount
from agent.domain.nvidia_devices import Device

PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
IN_CONTAINER = "/mps"  # as NVIDIA's plugin
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of containers; daemon and clients meet there
ALIVE = "get_default_active_thread_percentage"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan:
    """One daemon, and the commands it is given before anybody becomes its client."""

    resource: str
    uuids: tuple[str, ...]
    visible: bool  # whether it must be told which GPUs are its own
    commands: tuple[str, ...]


def plan(resource: str, devices: Sequence[Device], gpus: int) -> MpsPlan | None:
    """For the shared devices of a resource; None: it has none. `gpus`: how many the node has."""
    shared = [device for device in devices if device.shared]
    if not shared:
        return None
    replicas = Counter(device.uuid for device in shared)
    memory = {device.uuid: device.memory_mib for device in shared}
    limits = [
        f"set_default_device_pinned_mem_limit {uuid} {total // replicas[uuid]}M"
        for uuid, total in memory.items()
        if total is not None
    ]
    percent = max(1, 100 // max(replicas.values()))
    return MpsPlan(
        resource=resource,
        uuids=tuple(replicas),
        visible=len(replicas) < gpus,
        commands=(*limits, f"set_default_active_thread_percentage {percent}"),
    )


def client(resource: str, root: str) -> Grant:
    """What a container needs to be a client. `root`: the daemons' directory on the host."""
    pipe = f"{IN_CONTAINER}/{resource}/pipe"
    return Grant(
        envs={PIPE_VARIABLE: pipe},
        mounts=(
            Mount(pipe, f"{root}/{resource}/pipe", read_only=False),
            Mount(SHARED_MEMORY, f"{root}/shm", read_only=False),
        ),
    )
