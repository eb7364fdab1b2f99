"""A simulated node as a whole: driver, kubelet, API server, scheduler, and the agent as a process.

The agent is the real program in a process of its own, started with nothing but flags and the
environment of the simulated driver: what it does here it does on a GPU node. Used by
`vgpu-agent demo`, by the end-to-end tests and by the benchmark. Not imitated: what each stand-in
says of itself, and that kubelet finds pods by watching; here `run_pod` hands them over.
"""

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from agent.sim.api_client import MERGE_PATCH, ApiClient, ApiFailed, path
from agent.sim.apiserver import ApiServer
from agent.sim.driver import SimDriver
from agent.sim.kubelet import (
    AdmitResult,
    ContainerSpec,
    NodeStatus,
    PodSpec,
    StandInKubelet,
)
from agent.sim.scheduler import PlacedClaim, Scheduler
from agent.sim.scheduler_placement import request_of

RESOURCE = "nvidia.com/gpu"
WAIT_S = 20.0
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container of a pod asks for. `kind`: app, init or sidecar."""

    name: str = "main"
    vgpus: int = 1
    memory_mib: int = 1000
    core_percent: int = 10
    kind: str = "app"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanPod:
    """A pod that was scheduled and offered to kubelet."""

    namespace: str
    name: str
    uid: str
    admitted: AdmitResult
    claims: tuple[tuple[PlacedClaim, ...], ...]  # as the scheduler decided, init containers first
    init: tuple[str, ...] = ()  # containers that have ended when the others run


class SimNode:
    """One node. `start()`, then `start_agent()`; `stop()` ends everything that was started.

    Args:
        root: an empty directory with a short path (unix sockets have at most 107 bytes).
        command: how to start the program, e.g. [python, "agent.py"].
        behaviour: kubelet's, one of `BEHAVIOURS`.
        release: the HAMi scheduler's, e.g. "2.10".
        flags: further flags of `vgpu-agent run`.
        environ: variables for the agent, beyond `plain_environment`.
        own_gpus: the agent finds this machine's own NVIDIA driver instead of the simulated one.
    """

    resource = RESOURCE  # by which kubelet and the scheduler count vGPUs

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        *,
        name: str = "sim-node",
        behaviour: str = "1.36",
        release: str = "2.10",
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        own_gpus: bool = False,
    ) -> None:
        self.root = root
        self.name = name
        self.flags = list(flags)
        self._command = list(command)
        self._environ = plain_environment() | dict(environ or {})
        self._own_gpus = own_gpus
        (root / "driver").mkdir()
        self.driver = SimDriver(root / "driver")
        self.api = ApiServer()
        self.kubelet = StandInKubelet(
            root / "dp", root / "pr", behaviour=behaviour, on_node_status=self._tell_status
        )
        self._release = release
        self.agent: subprocess.Popen[bytes] | None = None
        self.log = root / "agent.log"
        self.metrics_port = _free_port()

    # --- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Bring up everything but the agent."""
        self.api.start()
        self.client = ApiClient(self.api.url)
        self.client.ask("POST", path("nodes"), {"metadata": {"name": self.name}})
        self.scheduler = Scheduler(self.client, release=self._release)
        self.api.write_kubeconfig(self.root / "kubeconfig")
        self.kubelet.start()
        vgpu = self.root / "host" / "vgpu"
        vgpu.mkdir(parents=True, mode=0o755, exist_ok=True)
        return self

    def stop(self) -> None:
        """End the agent and the stand-ins."""
        try:
            if self.agent is not None and self.agent.poll() is None:
                self.stop_agent()
        finally:
            self.kubelet.stop()
            self.api.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_agent(self, *flags: str) -> None:
        """Start `vgpu-agent run` on this node; its log goes to `self.log`."""
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                [*self._command, "run", *self._arguments(), *flags],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._agent_environment(),
            )

    def run_command(self, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run another command of the program, with the agent's settings, until it has ended."""
        return self.run_plain(name, *self._arguments(), *flags)

    def run_plain(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the program that takes no settings, until it has ended."""
        return subprocess.run(
            [*self._command, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self._agent_environment(),
            timeout=3 * WAIT_S,
            check=False,
        )

    def _arguments(self) -> list[str]:
        return [
            *("--node-name", self.name),
            *("--kubeconfig", str(self.root / "kubeconfig")),
            *("--kubelet-socket", str(self.kubelet.socket)),
            *("--pod-resources-socket", str(self.kubelet.pod_resources_socket)),
            *("--host-hook-path", str(self.root / "host")),
            *("--vgpulock-dir", str(self.root / "vgpulock")),
            *("--state-dir", str(self.root / "state")),
            *("--runtime-dir", str(self.root / "run")),
            *("--metrics-bind-address", f"127.0.0.1:{self.metrics_port}"),
            *self.flags,
        ]

    def _agent_environment(self) -> dict[str, str]:
        """Ours, with the simulated driver in front of whatever libraries are searched for."""
        if self._own_gpus:
            return self._environ
        added = self.driver.environment()
        if searched := self._environ.get("LD_LIBRARY_PATH"):
            added["LD_LIBRARY_PATH"] += f":{searched}"
        return self._environ | added

    def stop_agent(self, number: int = signal.SIGTERM, timeout_s: float = WAIT_S) -> int:
        """Send a signal to the agent and wait until it ended; give its exit code."""
        if self.agent is None:
            raise RuntimeError("no agent was started")
        self.agent.send_signal(number)
        try:
            return self.agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait(timeout_s)
            raise

    def log_text(self) -> str:
        """What the agent has logged."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, what: str, probe: Callable[[], object], within_s: float = WAIT_S) -> None:
        """Wait until `probe()` is true, as long as the agent lives.

        Raises TimeoutError or ChildProcessError naming `what`.
        """
        deadline_s = time.monotonic() + within_s
        while not probe():
            if self.agent is not None and self.agent.poll() is not None:
                code = self.agent.returncode
                raise ChildProcessError(f"{what}: the agent has ended with exit code {code}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}: not within {within_s:.0f} s")
            time.sleep(0.02)

    # --- what can be seen from outside -------------------------------------------------------

    def fetch(self, where: str) -> tuple[int, str]:
        """Ask the agent's HTTP endpoint: status and body; (0, "") while nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", where)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def ready(self) -> bool:
        """Whether /readyz says so."""
        return self.fetch("/readyz")[0] == http.client.OK

    def allocatable(self) -> int:
        """Healthy vGPUs by the node's status, where schedulers read what kubelet counted.

        0 until a kubelet that was started anew has told its own: what stands there is the last
        one's.
        """
        told = self.kubelet.told
        return told.allocatable.get(self.resource, 0) if told else 0

    def annotations(self) -> dict[str, str]:
        """Annotations of our Node object."""
        node = self.client.get("nodes", self.name)
        return dict(node["metadata"].get("annotations") or {})

    def pod_annotations(self, namespace: str, name: str) -> dict[str, str]:
        """Annotations of a pod."""
        pod = self.client.get("pods", name, namespace=namespace)
        return dict(pod["metadata"].get("annotations") or {})

    def events(self) -> list[dict[str, Any]]:
        """Kubernetes Events that were posted."""
        return list(self.client.list("events"))

    # --- pods ----------------------------------------------------------------------------------

    def create_pod(
        self, name: str, asks: Sequence[Ask], *, namespace: str = "team", node_name: str = ""
    ) -> str:
        """Create a pod object that asks for this, perhaps bound to a node; give its uid."""
        pod = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "initContainers": [self._container(ask) for ask in asks if ask.kind != "app"],
                "containers": [self._container(ask) for ask in asks if ask.kind == "app"],
                **({"nodeName": node_name} if node_name else {}),
            },
            "status": {"phase": "Pending"},
        }
        created = self.client.ask("POST", path("pods", namespace=namespace), pod)
        return str(created["metadata"]["uid"])

    def run_pod(self, name: str, asks: Sequence[Ask], *, namespace: str = "team") -> RanPod:
        """Create a pod, have the scheduler place it, and offer it to kubelet.

        Raises NoFit, NodeLocked of the scheduler; a refusal of kubelet is in the answer.
        """
        uid = self.create_pod(name, asks, namespace=namespace)
        claims = self.place_pod(name, asks, namespace=namespace)
        return self.offer(name, uid, asks, claims, namespace=namespace)

    def place_pod(
        self, name: str, asks: Sequence[Ask], *, namespace: str = "team"
    ) -> list[list[PlacedClaim]]:
        """Have the scheduler decide on a pod, lock the node and bind; give its decision."""
        self.scheduler.handshake_once(self.name)
        ordered = [ask for ask in asks if ask.kind != "app"]
        init = len(ordered)
        ordered += [ask for ask in asks if ask.kind == "app"]
        requests = [
            replace(request_of(self._container(ask), RESOURCE), alone=ask.kind == "init")
            for ask in ordered
        ]
        gpus = self.scheduler.nodes.get(self.name, [])
        claims = self.scheduler.placed(self.name, gpus, requests)
        self.scheduler.schedule(
            namespace, name, self.name, claims[init:], init_claims=claims[:init]
        )
        return claims

    def offer(
        self,
        name: str,
        uid: str,
        asks: Sequence[Ask],
        claims: Sequence[Sequence[PlacedClaim]] = (),
        *,
        namespace: str = "team",
        init_runs: bool = False,
    ) -> RanPod:
        """Have kubelet admit a pod that is bound; its status says what came of it.

        `init_runs`: its init containers are still at work.
        """
        admitted = self.kubelet.admit(
            PodSpec(
                uid=uid,
                namespace=namespace,
                name=name,
                init_containers=[self._spec(ask) for ask in asks if ask.kind != "app"],
                containers=[self._spec(ask) for ask in asks if ask.kind == "app"],
            )
        )
        pod = RanPod(
            namespace=namespace,
            name=name,
            uid=uid,
            admitted=admitted,
            claims=tuple(tuple(slot) for slot in claims),
            init=tuple(ask.name for ask in asks if ask.kind == "init"),
        )
        self.report_status(pod, init_runs=init_runs)
        return pod

    def report_status(self, pod: RanPod, *, init_runs: bool = False) -> None:
        """Write a pod's status as kubelet would; kubelet tries again when nobody answers."""
        status: dict[str, Any] = {"phase": "Running" if pod.admitted.ok else "Failed"}
        if pod.admitted.ok and pod.init:
            state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            if init_runs:
                status["phase"], state = "Pending", {"running": {}}
            status["initContainerStatuses"] = [{"name": one, "state": state} for one in pod.init]
        elif not pod.admitted.ok:
            status |= {"reason": pod.admitted.reason, "message": pod.admitted.message}
        where = path("pods", pod.name, namespace=pod.namespace, subresource="status")
        with contextlib.suppress(ApiFailed, OSError):
            self.client.ask("PATCH", where, {"status": status}, content_type=MERGE_PATCH)

    def delete_pod(self, pod: RanPod) -> None:
        """Take a pod away, from kubelet and from the API server."""
        self.kubelet.remove(pod.uid)
        with contextlib.suppress(ApiFailed):  # it may be gone already
            self.client.ask("DELETE", path("pods", pod.name, namespace=pod.namespace))

    def _tell_status(self, status: NodeStatus) -> bool:
        """Write kubelet's node status; return whether the API server took it."""
        body = {
            "status": {
                "capacity": {name: str(count) for name, count in status.capacity.items()},
                "allocatable": {name: str(count) for name, count in status.allocatable.items()},
            }
        }
        where = path("nodes", self.name, subresource="status")
        try:
            self.client.ask("PATCH", where, body, content_type=MERGE_PATCH)
        except (ApiFailed, OSError):
            return False
        return True

    # --- what a pod looks like

    def limits_of(self, ask: Ask) -> dict[str, int]:
        """The limits of a container that asks for this."""
        if not ask.vgpus:
            return {}
        return {
            RESOURCE: ask.vgpus,
            "nvidia.com/gpumem": ask.memory_mib,
            "nvidia.com/gpucores": ask.core_percent,
        }

    def devices_of(self, ask: Ask) -> dict[str, int]:
        """What of them kubelet hands out."""
        return {RESOURCE: ask.vgpus} if ask.vgpus else {}

    def _container(self, ask: Ask) -> dict[str, Any]:
        limits = {name: str(amount) for name, amount in self.limits_of(ask).items()}
        container: dict[str, Any] = {
            "name": ask.name,
            "image": "none",
            "env": [{"name": key, "value": value} for key, value in ask.env.items()],
            "resources": {"limits": limits} if limits else {},
        }
        if ask.kind == "sidecar":
            container["restartPolicy"] = "Always"
        return container

    def _spec(self, ask: Ask) -> ContainerSpec:
        return ContainerSpec(ask.name, self.devices_of(ask), ask.env, sidecar=ask.kind == "sidecar")


def plain_environment() -> dict[str, str]:
    """What of our own environment a process on the simulated node gets.

    Proxies, and settings of the agent that somebody has exported, are none of this node's.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(("PYTHON", "LC_", "COVERAGE", "VGPU_TEST_"))
    }


def _free_port() -> int:
    """One that is free now, and that no connection is given before the agent listens there.

    Linux gives connections ports from 32768 on (`ip_local_port_range`), unless it is set otherwise.
    """
    for port in (*random.SystemRandom().sample(range(20000, 32768), 64), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no port of 127.0.0.1 is free")
