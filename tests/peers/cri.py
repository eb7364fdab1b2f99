"""What would a container have got? A stand-in container runtime for a real kubelet.

Serves the runtime and image services of CRI v1alpha2 or v1 on a unix socket and keeps every
request, so that a test sees the environment, mounts, devices and annotations exactly as a
runtime would. A "container" is a record: `true` as its command exits with 0 at once (what an init
container needs), `false` exits with 1, `sleep` with 0 after so many seconds, and anything else
runs until it is stopped.

Does not imitate: processes, images, logs, exec, networks, cgroups, statistics.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from .proto_messages import ProtoApi

_UID = "io.kubernetes.pod.uid"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount as the runtime is asked to make it."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node as the runtime is asked to make it."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(slots=True)
class Container:
    """One CreateContainer request and what became of it."""

    id: str
    sandbox_id: str
    config: Any  # ContainerConfig
    state: int = 0  # ContainerState: 0 created, 1 running, 2 exited
    exit_code: int = 0
    created_ns: int = field(default_factory=time.time_ns)
    started_ns: int = 0
    finished_ns: int = 0

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return str(self.config.metadata.name)

    @property
    def envs(self) -> tuple[tuple[str, str], ...]:
        """The environment in order; a key may come twice, and then the later one wins."""
        return tuple((env.key, _text(env.value)) for env in self.config.envs)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The mounts in order, the kubelet's own among them."""
        return tuple(Mount(m.container_path, m.host_path, m.readonly) for m in self.config.mounts)

    @property
    def devices(self) -> tuple[DeviceNode, ...]:
        """The device nodes in order."""
        return tuple(
            DeviceNode(d.container_path, d.host_path, d.permissions) for d in self.config.devices
        )

    @property
    def annotations(self) -> dict[str, str]:
        """Container annotations, the kubelet's own among them."""
        return dict(self.config.annotations)


@dataclass(slots=True)
class Sandbox:
    """One RunPodSandbox request and what became of it."""

    id: str
    config: Any  # PodSandboxConfig
    ready: bool = True
    created_ns: int = field(default_factory=time.time_ns)


class StandInRuntime:
    """Both CRI services, and the view of them that tests use."""

    def __init__(self, api: ProtoApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._created: list[Container] = []

    @contextmanager
    def serving(self, socket: Path) -> Iterator[None]:
        """Serve on a unix socket, with a few threads, until the block ends."""
        server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="cri"))
        for service in ("RuntimeService", "ImageService"):
            rpcs = {
                m.name: self._handler(m.name, m.response)
                for m in self._api.methods(service)
                if not m.streams
            }
            self._api.serve(server, service, rpcs)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=None).wait(5)

    def containers_of(self, pod_uid: str, name: str = "") -> list[Container]:
        """Every container ever created for a pod, oldest first; of one name when it is given."""
        with self._lock:
            return [
                c
                for c in self._created
                if c.config.labels[_UID] == pod_uid and (not name or c.name == name)
            ]

    def created(self) -> list[Container]:
        """Every container ever created, oldest first."""
        with self._lock:
            return list(self._created)

    def forget(self) -> None:
        """Lose all sandboxes and containers, as a reboot does; what was created stays on record."""
        with self._lock:
            self._sandboxes.clear()
            self._containers.clear()

    def _handler(self, rpc: str, response: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
        """One rpc: its method here fills the response; those without one answer with nothing."""
        method: Callable[[Any, Any], None] | None = getattr(self, f"_on_{rpc}", None)

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            answer = response()
            if method is not None:
                try:
                    with self._lock:
                        self._wake_sleepers()
                        method(request, answer)
                except KeyError as missing:
                    context.abort(grpc.StatusCode.NOT_FOUND, f"{rpc}: no {missing}")
            return answer

        return handle

    def _on_Version(self, _request: Any, answer: Any) -> None:  # noqa: N802 - the rpc's name
        answer.version = "0.1.0"
        answer.runtime_name = "stand-in"
        answer.runtime_version = "1.0.0"
        answer.runtime_api_version = self._api.package.removeprefix("runtime.")

    def _on_Status(self, _request: Any, answer: Any) -> None:  # noqa: N802
        for condition in ("RuntimeReady", "NetworkReady"):
            answer.status.conditions.add(type=condition, status=True)

    def _on_RunPodSandbox(self, request: Any, answer: Any) -> None:  # noqa: N802
        sandbox = Sandbox(f"sandbox-{next(self._ids)}", request.config)
        self._sandboxes[sandbox.id] = sandbox
        answer.pod_sandbox_id = sandbox.id

    def _on_StopPodSandbox(self, request: Any, _answer: Any) -> None:  # noqa: N802
        sandbox = self._sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            return  # stopping twice is fine, says the API
        sandbox.ready = False
        for container in self._containers.values():
            if container.sandbox_id == sandbox.id and container.state == 1:
                self._finish(container, 137)

    def _on_RemovePodSandbox(self, request: Any, _answer: Any) -> None:  # noqa: N802
        self._sandboxes.pop(request.pod_sandbox_id, None)
        for container in list(self._containers.values()):
            if container.sandbox_id == request.pod_sandbox_id:
                del self._containers[container.id]

    def _on_PodSandboxStatus(self, request: Any, answer: Any) -> None:  # noqa: N802
        self._describe_sandbox(self._sandboxes[request.pod_sandbox_id], answer.status)
        answer.status.network.ip = "10.88.0.1"

    def _on_ListPodSandbox(self, request: Any, answer: Any) -> None:  # noqa: N802
        wanted = request.filter
        for sandbox in self._sandboxes.values():
            if wanted.id and wanted.id != sandbox.id:
                continue
            if wanted.HasField("state") and wanted.state.state != int(not sandbox.ready):
                continue
            if _matches(wanted.label_selector, sandbox.config.labels):
                self._describe_sandbox(sandbox, answer.items.add())

    def _on_CreateContainer(self, request: Any, answer: Any) -> None:  # noqa: N802
        _ = self._sandboxes[request.pod_sandbox_id]
        identity = f"container-{next(self._ids)}"
        container = Container(identity, request.pod_sandbox_id, request.config)
        self._containers[container.id] = container
        self._created.append(container)
        answer.container_id = container.id

    def _on_StartContainer(self, request: Any, _answer: Any) -> None:  # noqa: N802
        container = self._containers[request.container_id]
        container.state = 1
        container.started_ns = time.time_ns()
        command = [*container.config.command, *container.config.args][:1]
        if command in (["true"], ["false"]):
            self._finish(container, int(command == ["false"]))

    def _on_StopContainer(self, request: Any, _answer: Any) -> None:  # noqa: N802
        container = self._containers.get(request.container_id)
        if container is not None and container.state == 1:
            self._finish(container, 137)

    def _on_RemoveContainer(self, request: Any, _answer: Any) -> None:  # noqa: N802
        self._containers.pop(request.container_id, None)

    def _on_ListContainers(self, request: Any, answer: Any) -> None:  # noqa: N802
        wanted = request.filter
        for container in self._containers.values():
            if wanted.id and wanted.id != container.id:
                continue
            if wanted.pod_sandbox_id and wanted.pod_sandbox_id != container.sandbox_id:
                continue
            if wanted.HasField("state") and wanted.state.state != container.state:
                continue
            if _matches(wanted.label_selector, container.config.labels):
                listed = answer.containers.add(pod_sandbox_id=container.sandbox_id)
                self._describe_container(container, listed)

    def _on_ContainerStatus(self, request: Any, answer: Any) -> None:  # noqa: N802
        container = self._containers[request.container_id]
        self._describe_container(container, answer.status)
        answer.status.started_at = container.started_ns
        answer.status.finished_at = container.finished_ns
        answer.status.exit_code = container.exit_code
        answer.status.log_path = container.config.log_path
        if container.state == 2:
            answer.status.reason = "Error" if container.exit_code else "Completed"

    def _on_ImageStatus(self, request: Any, answer: Any) -> None:  # noqa: N802
        answer.image.id = request.image.image  # every image is already on the node
        answer.image.size = 1

    def _on_PullImage(self, request: Any, answer: Any) -> None:  # noqa: N802
        answer.image_ref = request.image.image

    def _on_ImageFsInfo(self, _request: Any, answer: Any) -> None:  # noqa: N802
        usage = answer.image_filesystems.add(timestamp=time.time_ns())
        usage.fs_id.mountpoint = "/"
        usage.used_bytes.value = usage.inodes_used.value = 0  # present: a kubelet reads them

    def _wake_sleepers(self) -> None:
        for container in self._containers.values():
            command = [*container.config.command, *container.config.args]
            if container.state == 1 and command[:1] == ["sleep"]:
                slept_s = (time.time_ns() - container.started_ns) / 1e9
                if slept_s >= float(command[1]):
                    self._finish(container, 0)

    @staticmethod
    def _finish(container: Container, exit_code: int) -> None:
        container.state = 2
        container.exit_code = exit_code
        container.finished_ns = time.time_ns()

    @staticmethod
    def _describe_sandbox(sandbox: Sandbox, message: Any) -> None:
        message.id = sandbox.id
        message.metadata.CopyFrom(sandbox.config.metadata)
        message.state = int(not sandbox.ready)
        message.created_at = sandbox.created_ns
        message.labels.update(sandbox.config.labels)
        message.annotations.update(sandbox.config.annotations)

    @staticmethod
    def _describe_container(container: Container, message: Any) -> None:
        message.id = container.id
        message.metadata.CopyFrom(container.config.metadata)
        message.image.CopyFrom(container.config.image)
        message.image_ref = container.config.image.image
        message.state = container.state
        message.created_at = container.created_ns
        message.labels.update(container.config.labels)
        message.annotations.update(container.config.annotations)


def _text(value: str | bytes) -> str:
    """A value of a variable: text up to Kubernetes 1.35, bytes from then on."""
    return value.decode() if isinstance(value, bytes) else value


def _matches(selector: Any, labels: Any) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())
