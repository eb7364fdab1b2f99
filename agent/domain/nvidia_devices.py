"""What mode `nvidia` offers: resources, the devices of each, and the names that runtimes know.

Ids are those of NVIDIA's plugin: the uuid of a GPU or of a MIG device, and `<uuid>::<n>` for the
copies of a shared one. Source: NVIDIA k8s-device-plugin 0.19 and 0.20, internal/rm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.domain.gpu import Gpu, GpuInventory, MigDevice
from agent.domain.nvidia_config import (
    NO_PATTERNS,
    NO_REPLICATION,
    PREFIX,
    Replicas,
    Replication,
    ResourcePatterns,
)
from agent.domain.vgpu_ids import MANY_VGPUS, MAX_LIST_BYTES, ListVerdict, Vgpu, list_bytes

MIG_NONE, MIG_SINGLE, MIG_MIXED = "none", "single", "mixed"
TIME_SLICING, MPS = "time-slicing", "mps"
MPS_CLIENTS = 48  # of one server, Volta and later
SEPARATOR = "::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One thing that kubelet counts."""

    device_id: str  # as kubelet knows it
    uuid: str  # of the GPU, or of the MIG device
    index: str  # "0"; "0:1" for the second MIG device of the first GPU
    gpu: Gpu
    mig: MigDevice | None = None
    replicas: int = 1  # how often it is offered

    @property
    def shared(self) -> bool:
        """Whether others may have it at the same time."""
        return self.replicas > 1

    @property
    def healthy(self) -> bool:
        """Whether it may be handed out."""
        return self.gpu.healthy and not (self.mig and self.mig.unhealthy_reason)

    @property
    def memory_mib(self) -> int | None:
        """Of all of it; None: the driver does not tell."""
        return self.mig.memory_mib if self.mig else self.gpu.memory_mib

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its own device nodes, below the dev root."""
        card = () if self.gpu.minor is None else (f"/dev/nvidia{self.gpu.minor}",)
        return card + (self.mig.device_nodes if self.mig else ())


Resources = Mapping[str, tuple[Device, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The settings that decide what is offered. Pure: the same GPUs give the same resources."""

    resource_name: str = "nvidia.com/gpu"
    mig_strategy: str = MIG_NONE
    patterns: ResourcePatterns = NO_PATTERNS
    strategy: str = ""  # TIME_SLICING or MPS; empty: nothing is shared
    replication: Replication = NO_REPLICATION
    excluded_uuids: frozenset[str] = frozenset()
    excluded_indices: frozenset[int] = frozenset()

    def whole(self, inventory: GpuInventory) -> dict[str, list[Device]]:
        """The devices of each resource before any is shared."""
        found: dict[str, list[Device]] = {}
        for gpu in inventory.gpus:
            for device in self._of(gpu):
                if resource := self._resource(device):
                    found.setdefault(resource, []).append(device)
        return found

    def _of(self, gpu: Gpu) -> Iterator[Device]:
        if gpu.uuid in self.excluded_uuids or gpu.index in self.excluded_indices:
            return
        if not gpu.mig_enabled or self.mig_strategy == MIG_NONE:
            yield Device(device_id=gpu.uuid, uuid=gpu.uuid, index=str(gpu.index), gpu=gpu)
            return
        for place, mig in enumerate(gpu.mig_devices):
            index = f"{gpu.index}:{place}"
            yield Device(device_id=mig.uuid, uuid=mig.uuid, index=index, gpu=gpu, mig=mig)

    def _resource(self, device: Device) -> str:
        """What a device is offered as; empty: as nothing."""
        if device.mig is None:
            product, patterns = device.gpu.name, self.patterns.gpus
            usual = self.resource_name
        else:
            product, patterns = device.mig.profile, self.patterns.mig
            usual = self.resource_name
            if self.mig_strategy == MIG_MIXED:
                part = device.mig.compute_slice_count != device.mig.slice_count
                usual = "" if part else mig_resource(product)
        return next((one.name for one in patterns if one.matches(product)), usual)

    def resources(self, inventory: GpuInventory) -> Resources:
        """All that kubelet is offered, by resource, in the order of the GPUs."""
        found: dict[str, list[Device]] = {}
        for resource, devices in self.whole(inventory).items():
            shared = self.replication.of(resource) if self.strategy else None
            chosen = set(_chosen(shared, devices)) if shared else set[str]()
            for device in devices:
                if shared is None or device.uuid not in chosen:
                    found.setdefault(resource, []).append(device)
                    continue
                copies = found.setdefault(self.replication.offered_as(shared), [])
                copies.extend(
                    replace(
                        device, device_id=f"{device.uuid}{SEPARATOR}{n}", replicas=shared.replicas
                    )
                    for n in range(shared.replicas)
                )
        return {resource: tuple(devices) for resource, devices in sorted(found.items())}

    def names(self) -> frozenset[str]:
        """What resources can be called by the settings alone: all but MIG profiles under mixed."""
        patterns = (*self.patterns.gpus, *self.patterns.mig)
        shared = self.replication.resources if self.strategy else ()
        return frozenset(
            {self.resource_name}
            | {one.name for one in patterns}
            | {name for one in shared for name in (one.name, self.replication.offered_as(one))}
        )

    def objection(self, inventory: GpuInventory) -> str:
        """Why these settings do not fit these GPUs, and what to do; empty: they do."""
        if wrong := self._mig_objection(inventory):
            return wrong
        if wrong := self._sharing_objection(self.whole(inventory)):
            return wrong
        lists = self.resources(inventory).values()
        return next((wrong for one in lists if (wrong := judge(one).refusal)), "")

    def _mig_objection(self, inventory: GpuInventory) -> str:
        if self.mig_strategy == MIG_NONE:
            return ""
        gpus = [
            gpu
            for gpu in inventory.gpus
            if gpu.uuid not in self.excluded_uuids and gpu.index not in self.excluded_indices
        ]
        divided = [gpu for gpu in gpus if gpu.mig_enabled]
        if empty := [gpu for gpu in divided if not gpu.mig_devices]:
            return (
                f"GPU {empty[0].index} ({empty[0].uuid}) is in MIG mode and has no MIG device: "
                "create some (nvidia-smi mig -cgi ... -C), take it out of MIG mode, or leave it "
                "out with --filter-device-uuids"
            )
        if self.mig_strategy != MIG_SINGLE or not divided:
            return ""
        if len(divided) != len(gpus):
            return (
                "the MIG strategy single needs all GPUs in MIG mode or none, but "
                f"{len(divided)} of {len(gpus)} are: use mixed, or make them equal"
            )
        kinds = {(mig.profile, mig.memory_mib) for gpu in divided for mig in gpu.mig_devices}
        if len(kinds) > 1:
            named = ", ".join(sorted(profile for profile, _ in kinds))
            return (
                f"the MIG strategy single needs MIG devices of one kind, but there are {named}: "
                "use mixed, or divide all GPUs the same way"
            )
        return ""

    def _sharing_objection(self, whole: Mapping[str, Sequence[Device]]) -> str:
        if not self.strategy:
            return ""
        for shared in self.replication.resources:
            devices = whole.get(shared.name, ())
            if wrong := _unmet(shared, devices):
                return wrong
            if self.strategy == MPS and devices and shared.replicas > MPS_CLIENTS:
                return (
                    f"{shared.name} is to have {shared.replicas} replicas, but an MPS server has "
                    f"{MPS_CLIENTS} clients at most: set {MPS_CLIENTS} or fewer"
                )
            if self.strategy == MPS and any(device.mig for device in devices):
                return (
                    f"{shared.name} has MIG devices, which cannot be shared through MPS: use "
                    "timeSlicing for it, or take its GPUs out of MIG mode"
                )
        return ""


def mig_resource(profile: str) -> str:
    """The resource of a MIG profile under the strategy mixed, e.g. `nvidia.com/mig-1g.10gb.me`."""
    return f"{PREFIX}mig-{profile.replace('+', '.')}"


def _chosen(shared: Replicas, devices: Sequence[Device]) -> Iterator[str]:
    """Uuids of the devices that are shared."""
    if shared.devices is None:
        yield from (device.uuid for device in devices)
    elif isinstance(shared.devices, int):
        yield from (device.uuid for device in devices[: shared.devices])
    else:
        yield from (one.uuid for one in devices if {one.uuid, one.index} & set(shared.devices))


def _unmet(shared: Replicas, devices: Sequence[Device]) -> str:
    """What `devices` of an entry asks for and is not there. No device at all is no mistake."""
    if not devices:
        return ""
    if isinstance(shared.devices, int) and shared.devices > len(devices):
        return (
            f"sharing asks for {shared.devices} devices of {shared.name} and there are "
            f"{len(devices)}: ask for fewer, or for `all`"
        )
    if isinstance(shared.devices, tuple):
        known = {name for device in devices for name in (device.uuid, device.index)}
        if missing := [name for name in shared.devices if name not in known]:
            return (
                f"sharing names the device {missing[0]} of {shared.name}, which is not there: "
                "`nvidia-smi -L` lists indices and uuids"
            )
    return ""


def vgpus(devices: Iterable[Device]) -> tuple[Vgpu, ...]:
    """As kubelet is told of them. The NUMA node is the GPU's."""
    return tuple(Vgpu(device.device_id, device.healthy, device.gpu.numa_node) for device in devices)


def judge(devices: Sequence[Device]) -> ListVerdict:
    """Whether kubelet can bear the list of a resource."""
    listed = [replace(one, healthy=False) for one in vgpus(devices)]
    size_bytes = list_bytes(listed)
    refusal = warning = ""
    if size_bytes > MAX_LIST_BYTES:
        refusal = (
            f"{len(listed)} replicas make a list of {size_bytes} bytes; kubelet breaks off at "
            f"4 MiB and we stop at {MAX_LIST_BYTES}: set fewer replicas"
        )
    elif len(listed) > MANY_VGPUS:
        warning = (
            f"{len(listed)} replicas of one resource make kubelet slow, because it writes the "
            f"whole list to disk at every change: {MANY_VGPUS} or fewer avoid it"
        )
    return ListVerdict(len(listed), size_bytes, len(listed), refusal, warning)


def physical(device_id: str) -> str:
    """The uuid in an id."""
    return device_id.partition(SEPARATOR)[0]


def is_own_form(device_id: str, inventory: GpuInventory) -> bool:
    """Whether an id is one that this mode gives, of a GPU or MIG device that is there."""
    uuid, separator, number = device_id.partition(SEPARATOR)
    if separator and not (number.isascii() and number.isdecimal()):
        return False
    return any(
        uuid == gpu.uuid or any(uuid == mig.uuid for mig in gpu.mig_devices)
        for gpu in inventory.gpus
    )
