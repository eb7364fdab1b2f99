"""How the stand-in kubelet gives devices to the containers of a pod, one pod at a time.

Does not imitate: the topology manager (every free device is equally good; the plugin is always
asked for its preference), CPU and memory, the pause between admission and the start of a
container, retries of a failing PreStartContainer.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from agent.sim.kubelet_books import Assignment, Books
from agent.sim.kubelet_plugins import Endpoint, Note
from agent.sim.kubelet_types import (
    NEWER,
    ContainerGrant,
    ContainerSpec,
    DeviceGrant,
    MountGrant,
    PodRejected,
    PodSpec,
)
from agent.wire import deviceplugin_pb2 as dp

PRE_START_TIMEOUT_S = 30.0
_GO_NAMES = {"CANCELLED": "Canceled", "DATA_LOSS": "DataLoss"}


def go_error(error: Exception) -> str:
    """An RPC error as grpc-go prints it: this is what the pod's owner reads."""
    if not isinstance(error, grpc.RpcError):
        return "rpc error: code = Canceled desc = grpc: the client connection is closing"
    name = error.code().name
    camel = _GO_NAMES.get(name) or "".join(part.capitalize() for part in name.split("_"))
    return f"rpc error: code = {camel} desc = {error.details()}"


class Admission:
    """Chooses devices, asks the plugin, writes the answer into the books."""

    def __init__(
        self,
        books: Books,
        endpoint_of: Callable[[str], Endpoint | None],
        *,
        behaviour: str,
        rng: random.Random,
        note: Note,
    ) -> None:
        self._books = books
        self._endpoint_of = endpoint_of
        self._checks_health = behaviour in NEWER
        self._rng = rng
        self._note = note

    def give_to_pod(self, pod: PodSpec) -> dict[str, ContainerGrant]:
        """All containers in kubelet's order: init containers first. Raises PodRejected.

        Devices of an ordinary init container are free for the later containers of the pod; those of
        a sidecar are not.
        """
        reusable: dict[str, set[str]] = {}
        for container in pod.init_containers:
            self.give(pod, container, reusable)
            for assignment in self._books.of_container(pod.uid, container.name):
                pool = reusable.setdefault(assignment.resource, set())
                if container.sidecar:
                    pool -= assignment.device_ids
                else:
                    pool |= assignment.device_ids
        for container in pod.containers:
            self.give(pod, container, reusable)
            for assignment in self._books.of_container(pod.uid, container.name):
                reusable.setdefault(assignment.resource, set()).difference_update(
                    assignment.device_ids
                )
        return {c.name: self.start(pod.uid, c) for c in (*pod.init_containers, *pod.containers)}

    def give(
        self, pod: PodSpec, container: ContainerSpec, reusable: Mapping[str, set[str]]
    ) -> None:
        """One container: one Allocate for each of its resources that a plugin serves."""
        wanted = [(name, count) for name, count in container.resources.items() if count > 0]
        self._rng.shuffle(wanted)  # kubelet walks a Go map
        for resource, count in wanted:
            if resource not in self._books.devices:
                continue  # not a device plugin's business, as far as kubelet knows
            try:
                chosen = self._choose(
                    pod, container, resource, count, reusable.get(resource, set())
                )
                if chosen:
                    response = self._allocate(pod, container, resource, chosen)
                    self._books.assign(
                        Assignment(pod.uid, container.name, resource, chosen, response)
                    )
            except PodRejected:
                self._books.recount()
                raise

    def start(self, uid: str, container: ContainerSpec) -> ContainerGrant:
        """What the runtime is told; the plugin is asked only if it wanted PreStartContainer."""
        assignments = self._books.of_container(uid, container.name)
        for assignment in assignments:
            endpoint = self._endpoint_of(assignment.resource)
            if endpoint is None or not endpoint.options.pre_start_required:
                continue
            ids = sorted(assignment.device_ids)
            self._note("pre_start", assignment.resource, {"container": container.name, "ids": ids})
            endpoint.stub.pre_start_container(
                dp.PreStartContainerRequest(device_ids=ids), timeout=PRE_START_TIMEOUT_S
            )
        return merged(container, assignments, self._note)

    # --- choosing --------------------------------------------------------------------------

    def _choose(
        self,
        pod: PodSpec,
        container: ContainerSpec,
        resource: str,
        count: int,
        reusable: set[str],
    ) -> frozenset[str]:
        """Reserve devices for a container; empty: it has them already. Raises PodRejected."""
        books = self._books
        held = books.held(pod.uid, container.name, resource)
        if held and len(held) != count:
            raise PodRejected(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource '
                f'"{resource}" from {len(held)} to {count}'
            )
        with books.lock:
            self._check_health(resource, held)
            if held:
                return frozenset()
            chosen = set(sorted(reusable)[:count])
            free = self._free(resource) - chosen
            missing = count - len(chosen)
            if missing > len(free):
                raise PodRejected(
                    f"requested number of devices unavailable for {resource}. "
                    f"Requested: {missing}, Available: {len(free)}"
                )
        if missing:
            preferred = self._preferred(resource, free | chosen, chosen, count)
            with books.lock:
                free = self._free(resource) - chosen  # another container start may have been faster
                chosen |= set(self._some(preferred & free, missing))
                chosen |= set(self._some(free - chosen, count - len(chosen)))
                if len(chosen) < count:
                    raise PodRejected(
                        "unexpectedly allocated less resources than required. "
                        f"Requested: {count}, Got: {len(chosen)}"
                    )
                books.in_use.setdefault(resource, set()).update(chosen)
        return frozenset(chosen)

    def _check_health(self, resource: str, held: frozenset[str]) -> None:
        """1.25.10 and later tell a dead plugin and sick devices from a full node."""
        if not self._checks_health:
            return
        known = self._books.devices.get(resource)
        if known is None:
            raise PodRejected(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise PodRejected(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if not held <= known.healthy.keys():
            raise PodRejected(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )

    def _free(self, resource: str) -> set[str]:
        known = self._books.devices.get(resource)
        healthy = set(known.healthy) if known else set()
        return healthy - self._books.in_use.get(resource, set())

    def _some(self, candidates: set[str], count: int) -> list[str]:
        """Any `count` of them: kubelet's order is random."""
        ordered = sorted(candidates)
        self._rng.shuffle(ordered)
        return ordered[: max(0, count)]

    # --- asking the plugin -----------------------------------------------------------------

    def _preferred(
        self, resource: str, available: set[str], must_include: set[str], count: int
    ) -> set[str]:
        endpoint = self._endpoint_of(resource)
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        request = dp.PreferredAllocationRequest(
            container_requests=[
                dp.ContainerPreferredAllocationRequest(
                    available_device_ids=self._some(available, len(available)),
                    must_include_device_ids=self._some(must_include, len(must_include)),
                    allocation_size=count,
                )
            ]
        )
        try:
            response = endpoint.stub.get_preferred_allocation(request)
        except (grpc.RpcError, ValueError) as error:
            raise PodRejected(
                f"device plugin GetPreferredAllocation rpc failed with err: {go_error(error)}"
            ) from error
        answers = response.container_responses
        preferred = set(answers[0].device_ids) if answers else set()
        self._note("preferred", resource, {"size": count, "ids": sorted(preferred)})
        return preferred

    def _allocate(
        self, pod: PodSpec, container: ContainerSpec, resource: str, chosen: frozenset[str]
    ) -> bytes:
        endpoint = self._endpoint_of(resource)
        if endpoint is None:
            raise PodRejected(f"unknown Device Plugin {resource}")
        ids = self._some(set(chosen), len(chosen))
        about: dict[str, Any] = {"pod": pod.uid, "container": container.name, "ids": ids}
        self._note("allocate", resource, about)
        request = dp.AllocateRequest(
            container_requests=[dp.ContainerAllocateRequest(device_ids=ids)]
        )
        began_s = time.perf_counter()
        try:
            response = endpoint.stub.allocate(request)
        except (grpc.RpcError, ValueError) as error:
            self._note("allocate_failed", resource, about | {"error": go_error(error)})
            raise PodRejected(go_error(error)) from error
        took_s = time.perf_counter() - began_s
        if not response.container_responses:
            raise PodRejected(f"no containers return in allocation response {response}")
        self._note("allocated", resource, about | {"took_s": took_s})
        return response.container_responses[0].SerializeToString()


def merged(container: ContainerSpec, assignments: list[Assignment], note: Note) -> ContainerGrant:
    """The answers for several resources in one: the first writer of a key wins.

    The pod author's variables come after the plugin's, so that equal names are overridden.
    """
    envs: dict[str, str] = {}
    mounts: dict[str, MountGrant] = {}
    devices: dict[str, DeviceGrant] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}

    def put(into: dict[str, Any], resource: str, key: str, value: object) -> None:
        if into.setdefault(key, value) != value:
            note("conflict", resource, {"container": container.name, "key": key})

    for assignment in assignments:
        answer = dp.ContainerAllocateResponse.FromString(assignment.response)
        name = assignment.resource
        for key, value in sorted(answer.envs.items()):
            put(envs, name, key, value)
        for m in answer.mounts:
            grant = MountGrant(m.container_path, m.host_path, m.read_only)
            put(mounts, name, m.container_path, grant)
        for d in answer.devices:
            node = DeviceGrant(d.container_path, d.host_path, d.permissions)
            put(devices, name, d.container_path, node)
        for key, value in sorted(answer.annotations.items()):
            put(annotations, name, key, value)
        cdi |= dict.fromkeys(device.name for device in answer.cdi_devices)
    return ContainerGrant(
        cri_env=(*envs.items(), *container.env.items()),
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
        cdi_devices=tuple(cdi),
        device_ids={a.resource: tuple(sorted(a.device_ids)) for a in assignments},
    )
