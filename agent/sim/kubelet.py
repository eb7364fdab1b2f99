"""A stand-in kubelet: its device manager, over real unix sockets.

It registers plugins, dials them back, follows ListAndWatch with the 4 MiB limit, admits pods one
at a time with GetPreferredAllocation and Allocate per container and no deadline, keeps the
checkpoint, forgets a dead plugin's resource after 5 minutes, answers PodResources, and can be
restarted, killed, and robbed of its files. `behaviour` chooses the generation: "1.20", "1.22"
(as 1.20, but for PodResources and whom it admitted last), "1.36" (which stands for 1.25 to 1.36,
but that those to 1.31 keep whom they admitted last, as 1.22 does) or "1.37" (as 1.36, but that it
keeps all plugins of a resource).

Events, in `history()`: started, stopped, wiped, checkpoint, registered, register_failed,
stream_opened, devices, stream_closed, plugin_gone, preferred, allocate, allocated, allocate_failed,
pre_start, conflict, admitted, rejected, removed, dropped_resource.

Does not imitate: the API server's side of kubelet (watching pods, status updates of pods),
containers (nothing is started here), the topology, CPU and memory managers, plugins_registry, the
re-admission of running pods after a restart (they go on untouched, as since 1.25.14), the 5 to 10 s
period of node status updates (ours follow each change at once, and are tried again until the API
server has them), and the modification time of the stale socket a killed kubelet leaves.
"""

import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from agent.sim.kubelet_admission import Admission
from agent.sim.kubelet_books import CHECKPOINT, Books
from agent.sim.kubelet_plugins import Plugins
from agent.sim.kubelet_podresources import PodResources
from agent.sim.kubelet_types import (
    BEHAVIOURS,
    NEWER,
    AdmitResult,
    ContainerGrant,
    ContainerSpec,
    Event,
    NodeStatus,
    PodRejected,
    PodSpec,
    ResourceView,
)
from agent.wire import rpc

GRACE_S = 300.0  # how long a resource outlives its plugin
_STATUS_AGAIN_S = 0.2  # after a node status that the API server did not take

__all__ = [
    "AdmitResult",
    "ContainerGrant",
    "ContainerSpec",
    "Event",
    "NodeStatus",
    "PodSpec",
    "ResourceView",
    "StandInKubelet",
]


class _Server:
    """One gRPC server on one socket file."""

    def __init__(self, path: Path, handler: Any) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(
            max_workers=8, thread_name_prefix=f"kubelet-{path.parent.name}"
        )
        self._server = grpc.server(self._pool, handlers=[handler])
        self._server.add_insecure_port(rpc.unix_target(path))
        self._server.start()

    def stop(self, *, leave_socket: bool) -> None:
        """Stop at once. A killed process leaves its socket file: nobody listens on it."""
        spare = self._path.with_name(f".{self._path.name}.left")
        if leave_socket and self._path.exists():
            spare.hardlink_to(self._path)
        self._server.stop(None).wait(timeout=1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if spare.exists():
            spare.replace(self._path)


class StandInKubelet:
    """One kubelet. Thread-safe. `start()` and `stop()` may alternate for ever."""

    def __init__(
        self,
        device_plugins_dir: Path,
        pod_resources_dir: Path | None = None,
        *,
        behaviour: str = "1.36",
        clock: Callable[[], float] = time.monotonic,
        dial_timeout_s: float = 10.0,
        on_node_status: Callable[[NodeStatus], bool] | None = None,
        seed: int = 0,
    ) -> None:
        if behaviour not in BEHAVIOURS:
            raise ValueError(f"behaviour is {behaviour!r}; known are {', '.join(BEHAVIOURS)}")
        self.directory = device_plugins_dir
        self.socket = device_plugins_dir / rpc.KUBELET_SOCKET
        self.pod_resources_socket = (
            pod_resources_dir / rpc.KUBELET_SOCKET if pod_resources_dir else None
        )
        self.behaviour = behaviour
        self._clock = clock
        self._dial_timeout_s = dial_timeout_s
        self._on_node_status = on_node_status
        self._rng = random.Random(seed)  # noqa: S311 - imitates the order of a Go map
        self._books = Books(device_plugins_dir / CHECKPOINT)
        self._pods: dict[str, PodSpec] = {}
        self._admitting = ""
        self._published: set[str] = set()  # resources that the Node object has ever named
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._one_pod_at_a_time = threading.Lock()
        self._changed = threading.Event()
        self._running = False
        self._plugins = self._new_plugins()
        self._servers: list[_Server] = []
        self._status_thread: threading.Thread | None = None
        self.told: NodeStatus | None = None  # what `on_node_status` took last, since `start`

    # --- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Read the checkpoint, wipe the directory, serve."""
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._books = Books(self.directory / CHECKPOINT)
        self._note("checkpoint", "", {"found": self._books.load(self._clock())})
        self._wipe()
        self._plugins = self._new_plugins()
        self.told = None
        self._running = True
        self._serve()
        self._note("started", "", {})
        if self._on_node_status is not None:
            self._status_thread = threading.Thread(
                target=self._push_status,
                args=(self._on_node_status, self._books),
                name="kubelet-node-status",
                daemon=True,
            )
            self._status_thread.start()
        return self

    def stop(self, *, leave_socket: bool = True) -> None:
        """Die, as when killed: streams end, the stale socket stays, files and books stay."""
        if not self._running:
            return
        self._running = False
        self._books.close()
        self._changed.set()
        for server in self._servers:
            server.stop(leave_socket=leave_socket)
        self._plugins.stop()
        self._servers = []
        if self._status_thread is not None:
            self._status_thread.join(timeout=1.0)
        self._note("stopped", "", {})

    def restart(self) -> None:
        """Stop and start: every plugin's socket is wiped."""
        self.stop()
        self.start()

    def restart_registration(self) -> None:
        """A crash of the registration server alone: a new kubelet.sock, streams live on."""
        for server in self._servers:
            server.stop(leave_socket=False)
        self._serve()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self) -> None:
        self._servers = [_Server(self.socket, rpc.registration_handler(self._plugins.register))]
        if self.pod_resources_socket is not None:
            self.pod_resources_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            servicer = PodResources(
                self._books, self._active, self._take_back, behaviour=self.behaviour
            )
            self._servers.append(
                _Server(self.pod_resources_socket, rpc.pod_resources_handler(servicer))
            )

    def _new_plugins(self) -> Plugins:
        return Plugins(
            self.directory,
            self._books,
            behaviour=self.behaviour,
            dial_timeout_s=self._dial_timeout_s,
            clock=self._clock,
            note=self._note,
        )

    def _wipe(self) -> None:
        """1.20 removes every file but its checkpoint, later kubelets only sockets."""
        for path in self.directory.iterdir():
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # its owner was faster
            if path.name == CHECKPOINT or stat.S_ISDIR(mode):
                continue
            if self.behaviour not in NEWER or stat.S_ISSOCK(mode):
                path.unlink(missing_ok=True)
                self._note("wiped", "", {"file": path.name})

    # --- pods ------------------------------------------------------------------------------

    def admit(self, pod: PodSpec) -> AdmitResult:
        """Decide on a pod. Blocks, and with it every other pod, as long as the plugin takes."""
        with self._one_pod_at_a_time:
            admission = self._admission()
            with self._lock:
                self._admitting = pod.uid
            self._take_back()
            try:
                grants = admission.give_to_pod(pod)
                self._check_capacity(pod)
            except PodRejected as refusal:
                self._decided()
                return self._reject(pod, refusal)
            with self._lock:
                self._pods[pod.uid] = pod
            self._decided()
        self._note("admitted", "", {"pod": pod.uid})
        return AdmitResult(ok=True, containers=grants)

    def _decided(self) -> None:
        """1.22 holds what the pod has until the next one comes, also when this one is gone."""
        if self.behaviour != "1.22":
            with self._lock:
                self._admitting = ""

    def restart_container(self, uid: str, name: str) -> ContainerGrant:
        """A container crashed: it gets the same answer again, also when its device is sick by now.

        If the books know nothing of it (the checkpoint was lost), the plugin is asked again, and
        this happens beside the admission of other pods. Raises KeyError, PodRejected.
        """
        with self._lock:
            pod = self._pods[uid]
        container = pod.container(name)
        admission = self._admission()
        if not self._books.of_container(uid, name):
            admission.give(pod, container, {})
        return admission.start(uid, container)

    def remove(self, uid: str) -> None:
        """The pod is deleted. Its devices are taken back when the next pod comes."""
        with self._lock:
            self._pods.pop(uid, None)
        self._note("removed", "", {"pod": uid})

    def pods(self) -> tuple[PodSpec, ...]:
        """The admitted pods."""
        return tuple(self._active())

    def _take_back(self) -> None:
        """Of pods that are gone: before each that comes, and when somebody asks who has what."""
        with self._lock:
            self._books.free_all_but({*self._pods, self._admitting})

    def _active(self) -> Iterable[PodSpec]:
        with self._lock:
            return list(self._pods.values())

    def _admission(self) -> Admission:
        return Admission(
            self._books,
            self._plugins.current,
            behaviour=self.behaviour,
            rng=self._rng,
            note=self._note,
        )

    def _reject(self, pod: PodSpec, refusal: PodRejected) -> AdmitResult:
        if refusal.reason == "UnexpectedAdmissionError":
            text = f"Allocate failed due to {refusal}, which is unexpected"
        else:
            text = str(refusal)
        opening = "Pod was rejected: " if self.behaviour in NEWER else "Pod "
        result = AdmitResult(ok=False, reason=refusal.reason, message=opening + text)
        self._note("rejected", "", {"pod": pod.uid, "message": result.message})
        return result

    def _check_capacity(self, pod: PodSpec) -> None:
        """The last look: a resource that the Node names with 0 cannot be had.

        A resource that the Node has never named is no concern of kubelet's: the pod is admitted.
        """
        status = self.node_status()
        for container in (*pod.init_containers, *pod.containers):
            for resource, count in container.resources.items():
                known = resource in self._books.devices or resource not in status.allocatable
                if count > 0 and not known:
                    raise PodRejected(
                        f"Node didn't have enough resource: {resource}, "
                        f"requested: {count}, used: 0, capacity: 0",
                        reason=f"OutOf{resource}",
                    )

    # --- what can be seen ------------------------------------------------------------------

    @property
    def resources(self) -> dict[str, ResourceView]:
        """Every resource as kubelet sees it now."""
        return self._books.view()

    def node_status(self) -> NodeStatus:
        """What kubelet reports; looking also drops resources whose plugin is gone for too long."""
        with self._books.lock:
            now_s = self._clock()
            dropped = [
                name
                for name, known in self._books.devices.items()
                if known.stopped_at_s is not None and now_s - known.stopped_at_s > GRACE_S
            ]
            for name in dropped:
                del self._books.devices[name]
            view = self._books.view()
            self._published |= view.keys()
            status = NodeStatus(
                capacity={
                    name: len(view[name].healthy) + len(view[name].unhealthy) if name in view else 0
                    for name in self._published
                },
                allocatable={
                    name: len(view[name].healthy) if name in view else 0 for name in self._published
                },
            )
        for name in dropped:  # not under the books' lock: who holds ours may be waiting for it
            self._note("dropped_resource", name, {})
        return status

    def history(self, kind: str = "", resource: str = "") -> list[Event]:
        """What happened so far, optionally only of one kind or about one resource."""
        with self._lock:
            return [
                event
                for event in self._events
                if kind in ("", event.kind) and resource in ("", event.resource)
            ]

    def _note(self, kind: str, resource: str, detail: Mapping[str, Any]) -> None:
        with self._lock:
            self._events.append(Event(kind, resource, dict(detail)))
        self._changed.set()

    def _push_status(self, push: Callable[[NodeStatus], bool], books: Books) -> None:
        """Tell each change; `push` says whether it arrived, and what did not is told again.

        `books`: of the kubelet that this belongs to; with others it is a later one's turn.
        """
        pushed: NodeStatus | None = None
        arrived = True
        while True:
            self._changed.wait(None if arrived else _STATUS_AGAIN_S)
            self._changed.clear()
            if not self._running or books is not self._books:
                self._changed.set()  # it may have been for a later one
                return
            status = self.node_status()
            if status != pushed or not arrived:
                arrived = push(status)
                pushed = status
                if arrived and books is self._books:
                    self.told = status

    # --- mishaps ---------------------------------------------------------------------------

    def drop_stream(self, resource: str) -> None:
        """Lose the connection to a plugin, as after a message that is too long."""
        self._plugins.drop(resource)

    def delete_checkpoint(self) -> None:
        """Take the books away; felt at the next start."""
        (self.directory / CHECKPOINT).unlink(missing_ok=True)

    def corrupt_checkpoint(self) -> None:
        """Cut the books in half; felt at the next start."""
        path = self.directory / CHECKPOINT
        os.truncate(path, path.stat().st_size // 2)
