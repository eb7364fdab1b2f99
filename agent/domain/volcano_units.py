"""Amounts that kubelet counts as devices: how much a unit of GPU memory is, and its name.

Kubelet knows no amounts, so Volcano's device plugin advertises one fake device for each unit of
memory and of compute. A unit of one MiB makes messages that do not go through: ListAndWatch breaks
off at 4 MiB, and a pod's status lists each of its devices by name (kubelet 1.31 and later,
`allocatedResourcesStatus`), which the API server must be able to store. So a unit is `factor` MiB,
and the factor follows from the bytes of both messages.

Sources: volcano-vgpu-device-plugin, pkg/plugin (ids, --gpu-memory-factor); Kubernetes 1.36,
pkg/apis/core (ResourceHealth), pkg/kubelet/cm/devicemanager; its issue 109304.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from agent.domain.gpu import Gpu, GpuInventory, Sharing, scaled
from agent.domain.ownership import vgpu_of_ours
from agent.domain.vgpu_ids import UNHEALTHY, Vgpu, device_bytes, framed

MIB = 1 << 20
MAX_LIST_BYTES = 38 * MIB // 10  # of the 4 MiB at which kubelet breaks off
MAX_STATUS_BYTES = MIB  # of the 1.5 MiB that etcd stores, with spec and metadata
STATUS_REST_BYTES = 32 * 1024  # all of a status that is not about units: conditions, images, ...
LARGEST_FACTOR = 65_536
SHORT, LONG = "short", "uuid"
SHORT_CHARS = 8
CORE_UNITS = 100  # of one GPU
# As kubelet writes it into the pod's status: one object per device.
STATUS_ENTRY_CHARS = len('{"resourceID":"","health":"' + UNHEALTHY + '"},')


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """The units of one GPU: `<name>0` to `<name><count - 1>`."""

    name: str
    count: int
    healthy: bool

    @property
    def longest_id_chars(self) -> int:
        """Of its ids, the longest."""
        return len(self.name) + len(str(max(0, self.count - 1)))


@dataclass(frozen=True, slots=True)
class Units(Sequence[Vgpu]):
    """All units of the node, as kubelet is offered them; made when they are looked at."""

    groups: tuple[UnitGroup, ...] = ()

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)

    @overload
    def __getitem__(self, place: int) -> Vgpu: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Vgpu]: ...
    def __getitem__(self, place: int | slice) -> Vgpu | Sequence[Vgpu]:
        """The unit at a place."""
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        left = place if place >= 0 else place + len(self)
        for group in self.groups:
            if 0 <= left < group.count:
                return Vgpu(f"{group.name}{left}", group.healthy)
            left -= group.count
        raise IndexError(place)

    def __iter__(self) -> Iterator[Vgpu]:
        for group in self.groups:
            for number in range(group.count):
                yield Vgpu(f"{group.name}{number}", group.healthy)


def _start(uuid: str) -> str:
    return uuid.removeprefix("GPU-")[:SHORT_CHARS]


# --- names ----------------------------------------------------------------------------------------


def memory_names(gpus: Iterable[Gpu], form: str) -> Mapping[str, str]:
    """What the ids of each GPU's memory begin with, by uuid.

    `uuid`: `<uuid>-memory-`, as Volcano's plugin names them. `short`: `<8 digits>-m`, a third of
    that, of the uuid's first digits, so that it does not depend on which GPUs there are; GPUs that
    have these in common keep all of theirs.
    """
    uuids = [gpu.uuid for gpu in gpus]
    starts = [_start(uuid) for uuid in uuids]
    return {
        uuid: f"{start}-m" if form == SHORT and starts.count(start) == 1 else f"{uuid}-memory-"
        for uuid, start in zip(uuids, starts, strict=True)
    }


def memory_units(inventory: GpuInventory, sharing: Sharing, factor: int, form: str) -> Units:
    """What kubelet is offered as `volcano.sh/vgpu-memory`."""
    gpus = sharing.offered(inventory)
    names = memory_names(gpus, form)
    return Units(
        tuple(
            UnitGroup(names[gpu.uuid], (gpu.memory_mib or 0) // factor, gpu.healthy) for gpu in gpus
        )
    )


def core_units(inventory: GpuInventory, sharing: Sharing) -> Units:
    """What kubelet is offered as `volcano.sh/vgpu-cores`: `<uuid>-core-<n>`, one per percent."""
    count = scaled(CORE_UNITS, sharing.core_scaling)
    return Units(
        tuple(
            UnitGroup(f"{gpu.uuid}-core-", count, gpu.healthy) for gpu in sharing.offered(inventory)
        )
    )


def is_own_form(device: str, gpus: GpuInventory) -> bool:
    """Whether an id of one of the three resources can be ours, of a GPU that is there.

    Those of Volcano's plugin count as ours: after a switch running pods still hold them.
    """
    if vgpu_of_ours(device, gpus):
        return True
    name = device.rstrip("0123456789")
    return any(
        name in (f"{gpu.uuid}-core-", f"{gpu.uuid}-memory-", f"{_start(gpu.uuid)}-m")
        for gpu in gpus.gpus
    )


# --- bytes ----------------------------------------------------------------------------------------


def list_bytes(units: Units) -> int:
    """Size of the ListAndWatch message with every GPU unhealthy, the longer word: exact then."""
    return sum(_group_bytes(group) for group in units.groups)


def _group_bytes(group: UnitGroup) -> int:
    size_bytes, first = 0, 0  # ids of one length have one size: numbers of one digit, of two, ...
    for digits in range(1, len(str(group.count)) + 1):
        end = min(group.count, 10**digits)
        longest_id = group.name + "0" * digits
        entry_bytes = framed(device_bytes(longest_id, healthy=False, numa_node=None))
        size_bytes += (end - first) * entry_bytes
        first = end
    return size_bytes


def status_bytes(memory: Units, cores: Units) -> int:
    """Size of the status of a pod that has a whole GPU: as JSON, at most.

    Kubelet takes the units from any GPU, so all are counted with the longest name.
    """
    return STATUS_REST_BYTES + sum(
        max((group.count for group in units.groups), default=0)
        * (STATUS_ENTRY_CHARS + max((group.longest_id_chars for group in units.groups), default=0))
        for units in (memory, cores)
    )


# --- the factor -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FactorVerdict:
    """What a factor comes to on a node."""

    factor: int
    smallest: int  # that works; 0: none does
    list_bytes: int
    status_bytes: int

    @property
    def works(self) -> bool:
        """Whether both messages go through."""
        return self.list_bytes <= MAX_LIST_BYTES and self.status_bytes <= MAX_STATUS_BYTES


def judge_factor(
    inventory: GpuInventory, sharing: Sharing, factor: int, form: str = SHORT
) -> FactorVerdict:
    """Say what a factor comes to; 0 stands for the smallest that works."""
    smallest = smallest_factor(inventory, sharing, form)
    used = factor or smallest or LARGEST_FACTOR
    memory = memory_units(inventory, sharing, used, form)
    return FactorVerdict(
        used, smallest, list_bytes(memory), status_bytes(memory, core_units(inventory, sharing))
    )


def smallest_factor(inventory: GpuInventory, sharing: Sharing, form: str = SHORT) -> int:
    """The smallest factor with which both messages go through, by bisection; 0: there is none."""
    cores = core_units(inventory, sharing)

    def works(factor: int) -> bool:
        memory = memory_units(inventory, sharing, factor, form)
        return (
            list_bytes(memory) <= MAX_LIST_BYTES and status_bytes(memory, cores) <= MAX_STATUS_BYTES
        )

    too_small, enough = 0, LARGEST_FACTOR
    if not works(enough):
        return 0
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if works(middle):
            enough = middle
        else:
            too_small = middle
    return enough


def objection(inventory: GpuInventory, sharing: Sharing, factor: int, form: str = SHORT) -> str:
    """Why this factor cannot be on a node with these GPUs, and which can; empty: it can."""
    if not sharing.offered(inventory):
        return ""
    cores_bytes = list_bytes(core_units(inventory, sharing))
    if cores_bytes > MAX_LIST_BYTES:
        return (
            f"a cores scaling of {sharing.core_scaling:g} makes a list of volcano.sh/vgpu-cores of "
            f"{cores_bytes} bytes, of which {MAX_LIST_BYTES} go through: lower it; Volcano's "
            "scheduler gives no more than 100 of a GPU anyway"
        )
    verdict = judge_factor(inventory, sharing, factor, form)
    if verdict.works:
        return ""
    too_long = [
        f"{what} of {size_bytes} bytes, of which {most} go through"
        for what, size_bytes, most in (
            ("a list for kubelet", verdict.list_bytes, MAX_LIST_BYTES),
            ("a status of a pod with a whole GPU", verdict.status_bytes, MAX_STATUS_BYTES),
        )
        if size_bytes > most
    ]
    advice = (
        f"set gpu-memory-factor to {verdict.smallest} or more, or to 0 to have it chosen"
        if verdict.smallest
        else "lower the cores scaling"
    )
    return (
        f"a unit of volcano.sh/vgpu-memory of {verdict.factor} MiB makes "
        f"{' and '.join(too_long)}: {advice}"
    )
