"""GPUs that are found sick, or well again."""

from dataclasses import replace

from agent.domain.gpu import GpuInventory


def with_health(inventory: GpuInventory, uuid: str, unhealthy_reason: str) -> GpuInventory:
    """The same picture with one GPU's health changed; an empty reason: it is well."""
    gpus = (
        replace(gpu, unhealthy_reason=unhealthy_reason) if gpu.uuid == uuid else gpu
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))
