"""A grant as kubelet is told it, and as its checkpoint keeps it."""

from google.protobuf.message import DecodeError

from agent.domain.grants import DeviceNode, Grant, Mount
from agent.wire import deviceplugin_pb2 as dp


def encode_grant(grant: Grant) -> dp.ContainerAllocateResponse:
    """Encode the answer for one container."""
    return dp.ContainerAllocateResponse(
        envs=grant.envs,
        mounts=[
            dp.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in grant.mounts
        ],
        devices=[
            dp.DeviceSpec(
                container_path=d.container_path, host_path=d.host_path, permissions=d.permissions
            )
            for d in grant.device_nodes
        ],
        annotations=grant.annotations,
        cdi_devices=[dp.CDIDevice(name=name) for name in grant.cdi_devices],
    )


def decode_grant(answer: bytes) -> Grant | None:
    """Read an answer that we gave, as kubelet keeps it; None: it is none."""
    try:
        said = dp.ContainerAllocateResponse.FromString(answer)
    except DecodeError:
        return None
    return Grant(
        envs=dict(said.envs),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in said.mounts),
        device_nodes=tuple(
            DeviceNode(d.container_path, d.host_path, d.permissions) for d in said.devices
        ),
        annotations=dict(said.annotations),
        cdi_devices=tuple(device.name for device in said.cdi_devices),
    )
