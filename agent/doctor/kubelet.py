"""Kubelet's room: its sockets, our registration, and who else wants the same GPUs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import grpc

from agent.adapters.kubelet import SOCKET_PATH_BYTES, SOCKET_PREFIX
from agent.adapters.podresources import MAX_RECEIVE_BYTES
from agent.doctor import volcano
from agent.doctor.finding import Check, Finding, failed, ok, warning
from agent.doctor.host import Host, is_socket, listens, writable
from agent.doctor.units import of_kubelet, restart_kubelet
from agent.domain.gpu import GpuInventory
from agent.domain.nvidia_devices import Offer, is_own_form
from agent.domain.slices import offers
from agent.domain.vgpu_ids import MANY_VGPUS, judge_list, parse_vgpu_id
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

CHECKPOINT = "kubelet_internal_checkpoint"
ANSWER_S = 5.0
LONGEST_OWN = f"{SOCKET_PREFIX}4194304-999999.sock"
# Names of device plugins that hand out NVIDIA GPUs, as their images and their sockets have them.
RIVAL_PROGRAMS = frozenset(
    {
        *("nvidia-device-plugin", "k8s-device-plugin", "gpu-device-plugin"),
        *("vgpu-device-plugin", "volcano-vgpu-device-plugin", "volcano-device-plugin"),
    }
)
RIVAL_WORDS = ("nvidia", "vgpu", "volcano", "hami", "gpu")


def kubelet_socket(host: Host) -> Finding:
    """Where plugins register."""
    path = host.config.kubelet_socket
    if not is_socket(path):
        return failed(
            f"there is no socket {path}: kubelet does not run, or it is not kubelet's own path",
            f"{restart_kubelet(host)}   # it is /var/lib/kubelet/device-plugins/kubelet.sock, "
            "whatever --root-dir is",
        )
    if not listens(path):
        return failed(
            f"nobody listens on {path}: kubelet has ended or hangs", restart_kubelet(host)
        )
    return ok(f"{path} takes connections")


def plugin_directory(host: Host) -> Finding:
    """Ours is made beside it."""
    directory = host.config.kubelet_socket.parent
    size = len(os.fsencode(directory / LONGEST_OWN))
    if size > SOCKET_PATH_BYTES:
        return failed(
            f"a socket of ours in {directory} would have a path of {size} bytes, and Unix takes "
            f"{SOCKET_PATH_BYTES}",
            f"ln -s {directory} /run/kdp   # and --kubelet-socket /run/kdp/kubelet.sock",
        )
    if not writable(directory, host.uid):
        return failed(
            f"{directory} cannot be written, so there can be no socket of ours in it",
            f"findmnt -T {directory}   # in a pod: mount the directory, not the socket, writable",
        )
    return ok(f"{directory} can be written")


def pod_resources(host: Host) -> Finding:
    """Where kubelet tells who holds what."""
    path = host.config.pod_resources_socket
    if not is_socket(path):
        return failed(
            f"there is no socket {path}: grants cannot be compared with kubelet's books",
            f"{restart_kubelet(host)}   # in a pod: mount hostPath {path.parent}; kubelet with "
            "--root-dir=DIR: --pod-resources-socket DIR/pod-resources/kubelet.sock",
        )
    channel = rpc.unix_channel(path, max_receive_bytes=MAX_RECEIVE_BYTES)
    try:
        answer = rpc.LIST_POD_RESOURCES.client(channel)(
            pr.ListPodResourcesRequest(), timeout=ANSWER_S
        )
    except grpc.RpcError as error:
        return failed(f"{path}: {error.code().name}: {error.details()}", restart_kubelet(host))
    finally:
        channel.close()
    return ok(f"{path} tells of {len(answer.pod_resources)} pods")


def registered(host: Host) -> Finding:
    """Kubelet counts our vGPUs."""
    resource = _first_resource(host)
    counted = _allocatable(host, resource)
    if counted is None:  # a kubelet that is too old to say
        live = [path.name for path in _own_sockets(host) if listens(path)]
        counted = len(live)
        said = f"a socket of ours ({', '.join(live) or 'none'}) takes connections"
    else:
        said = f"kubelet counts {counted} of {resource}"
    if counted:
        return ok(said)
    return failed(
        f"{said}, so no pod gets any: the agent is not registered",
        volcano.LOGS,
    )


def _first_resource(host: Host) -> str:
    """One that kubelet should count."""
    if host.config.mode == "nvidia":
        offered = _offer(host).resources(GpuInventory.of(host.gpus))
        return next(iter(offered), host.config.resource_name)
    if host.config.mode == "slices":
        return offers(host.config.resource_name, host.config.slice_sizes)[0].resource
    return host.config.resource_name


def _offer(host: Host) -> Offer:
    from agent.modes.nvidia import offer_of

    return offer_of(host.config)


def _own_sockets(host: Host) -> list[Path]:
    directory = host.config.kubelet_socket.parent
    return [path for path in host.entries(directory) if path.name.startswith(SOCKET_PREFIX)]


def _allocatable(host: Host, resource: str) -> int | None:
    channel = rpc.unix_channel(
        host.config.pod_resources_socket, max_receive_bytes=MAX_RECEIVE_BYTES
    )
    try:
        answer = rpc.GET_ALLOCATABLE.client(channel)(
            pr.AllocatableResourcesRequest(), timeout=ANSWER_S
        )
    except grpc.RpcError:
        return None
    finally:
        channel.close()
    return sum(
        len(devices.device_ids) for devices in answer.devices if devices.resource_name == resource
    )


def rivals(host: Host) -> Finding:
    """Two plugins for one resource drop each other's stream, for ever."""
    directory = host.config.kubelet_socket.parent
    found = [
        f"{path} takes connections"
        for path in host.entries(directory)
        if path.name != rpc.KUBELET_SOCKET
        and not path.name.startswith(SOCKET_PREFIX)
        and any(word in path.name.lower() for word in RIVAL_WORDS)
        and is_socket(path)
        and listens(path)
    ]
    found += [
        f"process {pid} is {program}"
        for pid, program in host.processes()
        if PurePosixPath(program).name in RIVAL_PROGRAMS
    ]
    if not found:
        return ok(f"nobody else in {directory}, no other plugin among the processes")
    return failed(
        f"another device plugin hands out the same GPUs: {'; '.join(found)}",
        "kubectl get ds -A | grep -iE 'nvidia|vgpu|hami|volcano'   # delete it, or keep it "
        "off this node by its nodeSelector",
    )


def books(host: Host) -> Finding:
    """What kubelet remembers under our resource is ours."""
    path = host.config.kubelet_socket.parent / CHECKPOINT
    text = host.read_if_there(path)
    resource, unit = host.config.resource_name, of_kubelet(host)
    if text is None:
        return ok(f"kubelet has no {path.name} yet")
    ids = registered_ids(text, resource)
    if ids is None:
        return warning(
            f"{path} cannot be read as kubelet writes it",
            f"drain the node, then: systemctl stop {unit} && rm {path} && systemctl start {unit}",
        )
    foreign = [one for one in ids if not _is_ours(one, host)]
    if foreign:
        return warning(
            f"kubelet remembers {len(foreign)} ids of {resource} that this agent does not give, "
            f"such as {foreign[0]}: another plugin had the resource",
            f"kubectl drain NODE --ignore-daemonsets && systemctl restart {unit}   # then uncordon",
        )
    return ok(f"{path.name} has {len(ids)} ids of {resource}, all of this agent's form")


def _is_ours(device_id: str, host: Host) -> bool:
    if host.config.mode == "nvidia":
        return is_own_form(device_id, GpuInventory.of(host.gpus))
    parsed = parse_vgpu_id(device_id)
    return parsed is not None and parsed[0] in {gpu.uuid for gpu in host.gpus}


def registered_ids(checkpoint: str, resource: str) -> list[str] | None:
    """Ids of a resource in kubelet's checkpoint; None: it is none. Total.

    Source: Kubernetes, pkg/kubelet/cm/devicemanager/checkpoint.
    """
    try:
        content = json.loads(checkpoint)
    except (ValueError, RecursionError):
        return None
    data = content.get("Data") if isinstance(content, dict) else None
    if not isinstance(data, Mapping):
        return None
    devices = data.get("RegisteredDevices")
    ids = devices.get(resource) if isinstance(devices, Mapping) else None
    return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []


def list_size(host: Host) -> Finding:
    """Kubelet breaks the stream at 4 MiB."""
    sharing = host.config.sharing
    if host.config.mode == "nvidia":
        return _offered(host)
    verdict = judge_list(GpuInventory(gpus=host.gpus), sharing)
    said = f"{verdict.vgpus} vGPUs make a list of {verdict.encoded_bytes} bytes"
    if verdict.refusal:
        return failed(
            verdict.refusal,
            f"vgpu-agent run --device-split-count {max(1, verdict.largest_split_count)}",
        )
    if verdict.warning:
        count = max(1, MANY_VGPUS // max(1, len(host.gpus)))
        return warning(verdict.warning, f"vgpu-agent run --device-split-count {count}")
    if host.config.mode == "volcano":
        return volcano.units(host.config, GpuInventory.of(host.gpus))
    return ok(f"{said}; kubelet takes 4 MiB")


def _offered(host: Host) -> Finding:
    """The same in mode nvidia, where the settings may not fit the GPUs for other reasons, too."""
    gpus, offer = GpuInventory.of(host.gpus), _offer(host)
    if why := offer.objection(gpus):
        return failed(why, "vgpu-agent config   # shows where each setting is from")
    found = offer.resources(gpus)
    told = ", ".join(f"{len(devices)} of {name}" for name, devices in found.items())
    return ok(f"{told or 'nothing'} is offered; kubelet takes 4 MiB")


CHECKS = tuple(
    Check(name=name, question=question, look=look, needs=needs, hangs=restart_kubelet)
    for name, question, look, needs in (
        ("kubelet-socket", "does kubelet take registrations?", kubelet_socket, ()),
        (
            "plugin-directory",
            "can our socket be made beside it?",
            plugin_directory,
            ("kubelet-socket",),
        ),
        ("pod-resources", "does kubelet tell who holds what?", pod_resources, ("kubelet-socket",)),
        (
            "registered",
            "does kubelet count our vGPUs?",
            registered,
            ("agent", "pod-resources"),
        ),
        ("rival-plugins", "does nobody else hand out these GPUs?", rivals, ()),
        ("kubelet-books", "does kubelet remember only ids of ours?", books, ("gpus",)),
        ("list-size", "does the list of vGPUs fit into kubelet's 4 MiB?", list_size, ("gpus",)),
    )
)
