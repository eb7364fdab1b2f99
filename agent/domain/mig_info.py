"""Which MIG device each container has, for whoever shows it."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.domain.gpu import GpuInventory, MigDevice
from agent.domain.grants import GrantRecord
from agent.domain.mig import mig_uuids


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInfo:
    """One MIG device of one container."""

    namespace: str
    pod: str
    container: str
    place: int  # among the container's devices
    gpu_uuid: str
    device: MigDevice


def mig_info(records: Iterable[GrantRecord], inventory: GpuInventory) -> tuple[MigInfo, ...]:
    """Of all grants, those devices that the driver lists, in the grants' order."""
    devices = {
        device.uuid: (gpu.uuid, device) for gpu in inventory.gpus for device in gpu.mig_devices
    }
    return tuple(
        MigInfo(
            namespace=record.namespace,
            pod=record.pod_name,
            container=record.container,
            place=place,
            gpu_uuid=devices[uuid][0],
            device=devices[uuid][1],
        )
        for record in (records if devices else ())
        for place, uuid in enumerate(mig_uuids(record.grant))
        if uuid in devices
    )
