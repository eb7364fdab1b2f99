"""Sharing through NVIDIA's MPS daemon: what it is told, and what its clients get.

One daemon for each resource that is shared so. Each replica may use an equal part of a GPU's memory
and of its threads.

The daemon knows GPUs by numbers. It takes a limit of a uuid without a word and keeps none, and one
of a number that its server does not see has the server forget all: so it is started with the list
of its GPUs, whose places are their numbers, and asked afterwards. It exits with 0 whatever it is
told. Sources: NVIDIA, "Multi-Process Service", control daemon commands; k8s-device-plugin, pull
request 572; the daemons of drivers 470, 535 and 550.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.domain.grants import Grant, Mount
from agent.domain.nvidia_devices import Device

PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
IN_CONTAINER = "/mps"  # as NVIDIA's plugin
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of containers; daemon and clients meet there
UNKNOWN = "Unknown command"
TOO_OLD = "Drivers before 495 know no memory limits: update the driver, or use sharing.timeSlicing"
ALIVE = "get_default_active_thread_percentage"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan:
    """One daemon, and what each of its clients may use."""

    resource: str
    uuids: tuple[str, ...]  # in the order of the driver
    memory_mib: Mapping[str, int] = field(default_factory=dict)  # by uuid
    percent: int = 100  # of the threads


@dataclass(frozen=True, slots=True)
class Order:
    """What a daemon is told, and how it is seen that it was understood."""

    command: str
    question: str
    taken: str  # a regular expression for the answer
    what: str

    def refusal(self, answer: str) -> str:
        """Why the daemon's clients would be without this limit; empty: they have it."""
        if re.fullmatch(self.taken, answer.strip()):
            return ""
        said = " ".join(answer.split())[:100]
        why = (
            f"did not take {self.what}: {self.command!r} was said, and to {self.question!r} it "
            f"answers {said!r}"
        )
        return f"{why}. {TOO_OLD}" if said.startswith(UNKNOWN) else why


def plan(resource: str, devices: Sequence[Device]) -> MpsPlan | None:
    """For the shared devices of a resource; None: it has none."""
    shared = [device for device in devices if device.shared]
    if not shared:
        return None
    replicas = Counter(device.uuid for device in shared)
    return MpsPlan(
        resource=resource,
        uuids=tuple(replicas),
        memory_mib={
            device.uuid: device.memory_mib // replicas[device.uuid]
            for device in shared
            if device.memory_mib is not None
        },
        percent=max(1, 100 // max(replicas.values())),
    )


def orders(wanted: MpsPlan, numbers: Mapping[str, int]) -> Sequence[Order]:
    """What is to be told before anybody becomes a client. `numbers`: of GPUs, for this daemon."""
    of_memory = [
        Order(
            f"set_default_device_pinned_mem_limit {numbers[uuid]} {mib}M",
            f"get_default_device_pinned_mem_limit {numbers[uuid]}",
            r"\d+[GM]",  # of 1536M it says 1G
            f"the memory limit of {uuid}",
        )
        for uuid, mib in wanted.memory_mib.items()
    ]
    return (*of_memory, _of_threads(wanted.percent))


def _of_threads(percent: int) -> Order:
    return Order(
        f"set_default_active_thread_percentage {percent}",
        ALIVE,
        rf"{percent}(\.0*)?",
        f"the limit of {percent} % of the threads",
    )


def forgotten(told: MpsPlan, answer: str) -> bool:
    """Whether a daemon that was told does not know of it: somebody has started it anew, at once.

    `answer`: to ALIVE. One that was just started says 100.
    """
    return bool(_of_threads(told.percent).refusal(answer))


def commands_of_server(wanted: MpsPlan, numbers: Mapping[str, int], pid: str) -> Sequence[str]:
    """What goes for who becomes a client of a server that runs already: defaults are for others."""
    of_memory = [
        f"set_device_pinned_mem_limit {pid} {numbers[uuid]} {mib}M"
        for uuid, mib in wanted.memory_mib.items()
    ]
    return (*of_memory, f"set_active_thread_percentage {pid} {wanted.percent}")


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
