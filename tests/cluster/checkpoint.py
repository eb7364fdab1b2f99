"""What do kubelet's own books say that a container was given?

`<kubelet's directory>/device-plugins/kubelet_internal_checkpoint` keeps the answer to every
Allocate, so that a container can be started again without asking. It has had three shapes
(Kubernetes, pkg/kubelet/cm/devicemanager/checkpoint): device ids as a list up to 1.19, as a map
from NUMA node to list since 1.20, and with the machine's BootID beside the data in the newest.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.node_under_test import ContainerView
from google.protobuf.message import DecodeError

from agent.wire import deviceplugin_pb2 as dp

CHECKPOINT = "kubelet_internal_checkpoint"


class CheckpointUnreadable(ValueError):
    """The file is none that a kubelet writes."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one container was given of one resource. device_ids: sorted."""

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    given: ContainerView


def read_assignments(content: bytes) -> tuple[Assignment, ...]:
    """Read a checkpoint, in the order it is written in. Raises CheckpointUnreadable, only."""
    try:
        entries = json.loads(content)["Data"]["PodDeviceEntries"]
        return tuple(_assignment(entry) for entry in entries or ())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadable(f"not a checkpoint of a kubelet: {error!r}") from error
    except DecodeError as error:
        raise CheckpointUnreadable(f"its AllocResp is no answer of Allocate: {error}") from error


def given_to(assignments: Sequence[Assignment], pod_uid: str, container: str) -> ContainerView:
    """Everything that plugins gave to one container; of two that name a thing, the first wins."""
    env: dict[str, tuple[str, str]] = {}
    mounts: dict[str, tuple[str, str, bool]] = {}
    devices: dict[str, tuple[str, str, str]] = {}
    annotations: dict[str, str] = {}
    for found in assignments:
        if (found.pod_uid, found.container) == (pod_uid, container):
            env = {each[0]: each for each in found.given.env} | env
            mounts = {each[0]: each for each in found.given.mounts} | mounts
            devices = {each[0]: each for each in found.given.devices} | devices
            annotations = {**found.given.annotations, **annotations}
    return ContainerView(
        env=tuple(env.values()),
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
    )


def _assignment(entry: Any) -> Assignment:
    response = base64.b64decode(_text(entry["AllocResp"] or ""), validate=True)
    answer = dp.ContainerAllocateResponse.FromString(response)
    return Assignment(
        pod_uid=_text(entry["PodUID"]),
        container=_text(entry["ContainerName"]),
        resource=_text(entry["ResourceName"]),
        device_ids=tuple(sorted(_text(each) for each in _device_ids(entry["DeviceIDs"]))),
        given=ContainerView(
            env=tuple(sorted(answer.envs.items())),
            mounts=tuple((m.container_path, m.host_path, m.read_only) for m in answer.mounts),
            devices=tuple((d.container_path, d.host_path, d.permissions) for d in answer.devices),
            annotations=dict(answer.annotations),
        ),
    )


def _device_ids(found: Any) -> Iterator[Any]:
    for ids in found.values() if isinstance(found, dict) else [found]:
        if not isinstance(ids, list | None):
            raise TypeError(f"DeviceIDs has {type(ids).__name__} where a list should be")
        yield from ids or ()


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{type(found).__name__} where a text should be")
    return found
