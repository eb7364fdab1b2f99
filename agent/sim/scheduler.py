"""A stand-in for HAMi's scheduler extender: it writes what the real one writes, in its order.

It speaks HTTP to any API server, the stand-in or a real one. Imitated, per release (`PROFILES`):
the annotations and the label of Filter, the node lock, bind-phase and bind-time, the binding, the
handshake, what it reads and rejects in the register annotation. NOT imitated: the webhook, other
vendors, MIG before 2.10, quotas, the retry queue, two schedulers at once, and the choice between
nodes beyond "the first that fits".
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from agent.sim.api_client import MERGE_PATCH, STRATEGIC_PATCH, ApiClient, ApiFailed, Object, path
from agent.sim.scheduler_init import counted, is_sidecar
from agent.sim.scheduler_mig import (
    MIG_ALLOCATIONS,
    decode_instances,
    encode_instances,
    place_instances,
)
from agent.sim.scheduler_placement import GpuRequest, NoFit, place, request_of
from agent.sim.scheduler_wire import (
    PROFILES,
    PlacedClaim,
    Profile,
    SchedulerCrash,
    SeenGpu,
    UnreadableNode,
    check_score,
    decode_register,
    encode_claims,
    handshake_time,
    parse_handshake_time,
    rfc3339,
)

__all__ = [
    "PROFILES",
    "NoFit",
    "NodeLocked",
    "PlacedClaim",
    "Scheduler",
    "SchedulerCrash",
    "UnreadableNode",
]

REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"
SCORE = "hami.io/node-nvidia-score"
LOCK = "hami.io/mutex.lock"
NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"

LOCK_EXPIRES_S = 300.0
HANDSHAKE_TIMEOUT_S = 60.0
Claims = Sequence[Sequence[PlacedClaim]]


class NodeLocked(Exception):
    """Another pod holds the node's lock."""


class Scheduler:
    """The stand-in. Single-threaded, like the part of the real one that it stands for.

    Args:
        client: the way to the API server.
        release: a key of `PROFILES`.
        padding: override of how containers without GPU are encoded.
        resource: the count resource.
        clock: unix time.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        release: str = "2.10",
        padding: str = "",
        resource: str = "nvidia.com/gpu",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self.profile: Profile = PROFILES[release]
        self._padding = padding or self.profile.padding
        self._resource = resource
        self._clock = clock
        self.nodes: dict[str, list[SeenGpu]] = {}  # what is known of each node, after a refresh
        self.complaints: dict[str, str] = {}  # why a node could not be read
        self._allocatable: dict[str, int] = {}
        self._registered: dict[str, str] = {}

    # --- one pod, step by step ------------------------------------------------------------------

    def filter(
        self, namespace: str, name: str, node: str, claims: Claims, *, init_claims: Claims = ()
    ) -> Object:
        """Write the decision onto the pod: one list of claims for each container, in spec order."""
        slots = [*init_claims, *claims] if self.profile.init_first else claims
        text = encode_claims(slots, padding=self._padding)
        decision: dict[str, str | None] = {
            NODE: node,
            TIME: str(int(self._clock())),
            TO_ALLOCATE: text,
            ALLOCATED: text,
        }
        if instances := encode_instances(slots):
            decision[MIG_ALLOCATIONS] = instances
        return self._client.annotate(
            "pods",
            name,
            decision,
            namespace=namespace,
            content_type=STRATEGIC_PATCH,
            labels={NODE: node},
        )

    def lock(self, node: str, namespace: str, name: str) -> None:
        """Take the node for this pod. Raises NodeLocked.

        Kubelet's own writes make the patch conflict now and then; the real one tries 5 times, too.
        """
        for last in (False, False, False, False, True):
            found = self._client.get("nodes", node)
            held = _annotations(found).get(LOCK, "")
            if held and not self._may_steal(held, namespace, name):
                raise NodeLocked(f"node {node} is locked by {held}")
            try:
                self._write_lock(found, f"{rfc3339(self._clock())},{namespace},{name}")
            except ApiFailed as error:
                if last or error.code != 409:  # noqa: PLR2004 - an HTTP status
                    raise
            else:
                return

    def unlock(self, node: str, namespace: str, name: str) -> None:
        """Give the node back, if this pod holds it."""
        found = self._client.get("nodes", node)
        held = _annotations(found).get(LOCK)
        if held is not None and ("," not in held or held.endswith(f",{namespace},{name}")):
            self._write_lock(found, None)

    def start_bind(self, namespace: str, name: str) -> None:
        """Mark the pod as being allocated; from here on the agent may be asked for it."""
        phase: dict[str, str | None] = {
            BIND_PHASE: "allocating",
            BIND_TIME: str(int(self._clock())),
        }
        self._client.annotate(
            "pods", name, phase, namespace=namespace, content_type=STRATEGIC_PATCH
        )

    def bind(self, namespace: str, name: str, node: str) -> None:
        """Create the binding: kubelet sees the pod now."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        where = path("pods", name, namespace=namespace, subresource="binding")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": target,
        }
        self._client.ask("POST", where, body)

    # --- one pod, as a whole --------------------------------------------------------------------

    def schedule(
        self, namespace: str, name: str, node: str, claims: Claims, *, init_claims: Claims = ()
    ) -> None:
        """Filter, lock, start_bind, bind. Up to 2.10 a GPU in an init container takes no lock.

        Raises NodeLocked, ApiFailed; the lock is given back when binding fails.
        """
        self.filter(namespace, name, node, claims, init_claims=init_claims)
        locked = any(claims) or (self.profile.init_locked and any(init_claims))
        if locked:
            self.lock(node, namespace, name)
        try:
            self.start_bind(namespace, name)
            self.bind(namespace, name, node)
        except (ApiFailed, OSError):
            if locked:
                self.unlock(node, namespace, name)
            raise

    def schedule_by_request(self, namespace: str, name: str) -> str:
        """Place a pod by its containers' limits on the first known node that has room.

        Gives the node's name. Raises NoFit (nothing is written then) and what `schedule` raises.
        """
        spec = self._client.get("pods", name, namespace=namespace).get("spec", {})
        init = spec.get("initContainers") or []
        requests = [
            replace(request_of(one, self._resource), alone=not is_sidecar(one)) for one in init
        ] + [request_of(one, self._resource) for one in spec.get("containers") or []]
        refusals = []
        for node, gpus in sorted(self.nodes.items()):
            try:
                claims = self.placed(node, gpus, requests)
            except NoFit as error:
                refusals.append(f"{node}: {error}")
                continue
            self.schedule(
                namespace, name, node, claims[len(init) :], init_claims=claims[: len(init)]
            )
            return node
        raise NoFit("; ".join(refusals) or "no node has registered GPUs")

    def placed(
        self, node: str, gpus: Sequence[SeenGpu], requests: Sequence[GpuRequest]
    ) -> list[list[PlacedClaim]]:
        """Decide for the containers of one pod on this node. Raises NoFit."""
        if not self.profile.init_alone:
            requests = [replace(request, alone=False) for request in requests]
        if any(gpu.mode == "mig" for gpu in gpus):
            return place_instances(gpus, self.instances_on(node), requests)
        return place(gpus, self.claims_on(node), requests)

    def claims_on(self, node: str) -> list[PlacedClaim]:
        """Give what the unfinished pods decided for this node hold, from their annotations."""
        taken: list[PlacedClaim] = []
        for pod in self._client.list("pods"):
            annotations = _annotations(pod)
            finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if annotations.get(NODE) != node or finished:
                continue
            slots = [_claims(slot) for slot in annotations.get(ALLOCATED, "").split(";")]
            if self.profile.init_alone:
                slots = [counted(pod, slots)]
            taken += [claim for slot in slots for claim in slot]
        return taken

    def instances_on(self, node: str) -> list[tuple[str, int, int]]:
        """MIG instances that the unfinished pods decided for this node hold: GPU, start, size."""
        taken = []
        for pod in self._client.list("pods"):
            annotations = _annotations(pod)
            finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if annotations.get(NODE) != node or finished:
                continue
            for one in decode_instances(annotations.get(MIG_ALLOCATIONS, "")):
                taken.append((one["gpuUUID"], one["placement"]["start"], one["placement"]["size"]))
        return taken

    # --- the lock -------------------------------------------------------------------------------

    def _may_steal(self, held: str, namespace: str, name: str) -> bool:
        taken_at, _, owner = held.partition(",")
        try:
            age_s = self._clock() - datetime.fromisoformat(taken_at).timestamp()
        except ValueError:
            return False  # the real one returns the parse error, for ever
        if age_s > LOCK_EXPIRES_S:
            return True
        if self.profile.lock_reacquired and owner == f"{namespace},{name}":
            return True
        return self.profile.lock_steals_orphans and owner != "" and not self._exists(owner)

    def _exists(self, owner: str) -> bool:
        namespace, _, name = owner.partition(",")
        try:
            self._client.get("pods", name, namespace=namespace)
        except ApiFailed as error:
            return error.code != 404  # noqa: PLR2004 - an HTTP status
        return True

    def _write_lock(self, node: Object, value: str | None) -> None:
        name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
        if self.profile.lock_patch:
            self._client.annotate("nodes", name, {LOCK: value}, resourceVersion=version)
            return
        annotations = _annotations(node)
        if value is None:
            annotations.pop(LOCK, None)
        else:
            annotations[LOCK] = value
        node["metadata"]["annotations"] = annotations
        self._client.ask("PUT", path("nodes", name), node)

    # --- the nodes ------------------------------------------------------------------------------

    def handshake_once(self, node_name: str) -> str:
        """Do what the scheduler does for one node every 15 s.

        Gives what it did: "refreshed" (stamped the handshake and read the GPUs), "dropped" (forgot
        them), "kept" (nothing), "unregistered", or "unreadable" (see `complaints`).
        """
        node = self._client.get("nodes", node_name)
        annotations = _annotations(node)
        register = annotations.get(REGISTER)
        if register is None:
            return "unregistered"
        allocatable = int(node.get("status", {}).get("allocatable", {}).get(self._resource, "0"))
        healthy, refresh = self._judge(
            annotations.get(HANDSHAKE, ""), allocatable, self._allocatable.get(node_name, 0)
        )
        plain = self.profile.handshake == "plain"
        if plain and allocatable and register != self._registered.get(node_name):
            refresh = True
        self._allocatable[node_name] = allocatable
        if not healthy:
            self._drop(node_name)
            return "dropped"
        if not refresh:
            return "kept"
        if not plain or "Requesting" not in annotations.get(HANDSHAKE, ""):
            stamp = f"Requesting_{handshake_time(self._clock(), self.profile)}"
            self._client.annotate("nodes", node_name, {HANDSHAKE: stamp}, content_type=MERGE_PATCH)
        self._registered[node_name] = register
        return self._read(node_name, register, annotations.get(SCORE))

    def _judge(self, handshake: str, now: int, before: int) -> tuple[bool, bool]:
        """Tell whether the node is healthy, and whether to read it again."""
        rule = self.profile.handshake
        if rule != "timestamp" and now == 0 and before > 0:
            return False, False
        if rule == "allocatable":
            return True, now != before
        if "Requesting" in handshake:
            young = self._age_s(handshake) < HANDSHAKE_TIMEOUT_S
            healthy = young or (rule != "timestamp" and now > 0)
            return healthy, healthy and rule != "timestamp" and now != before
        if "Deleted" in handshake and rule == "timestamp":
            return True, False
        if "Deleted" in handshake and rule == "both":
            return True, self._age_s(handshake) > HANDSHAKE_TIMEOUT_S
        return True, True

    def _age_s(self, handshake: str) -> float:
        written_s = parse_handshake_time(handshake.partition("_")[2], self.profile)
        return float("inf") if written_s is None else self._clock() - written_s

    def _drop(self, node_name: str) -> None:
        self.nodes.pop(node_name, None)
        self._registered.pop(node_name, None)
        stamp: Any = None
        if self.profile.handshake != "plain":
            stamp = f"Deleted_{handshake_time(self._clock(), self.profile)}"
        self._client.annotate("nodes", node_name, {HANDSHAKE: stamp}, content_type=MERGE_PATCH)

    def _read(self, node_name: str, register: str, score: str | None) -> str:
        try:
            gpus = decode_register(register, self.profile)
            if score is not None and self.profile.register != "csv7":
                check_score(score)
        except UnreadableNode as error:
            self.complaints[node_name] = str(error)
            return "unreadable"
        self.complaints.pop(node_name, None)
        self.nodes[node_name] = gpus
        return "refreshed"


def _claims(slot: str) -> list[PlacedClaim]:
    entries = [entry.partition(",NVIDIA,") for entry in slot.split(":")]
    found = [(uuid, rest.split(",")) for uuid, _, rest in entries if rest]
    return [PlacedClaim(uuid, int(memory), int(cores)) for uuid, (memory, cores) in found]


def _annotations(item: Object) -> dict[str, str]:
    found: dict[str, str] = item["metadata"].get("annotations") or {}
    return found
