"""A simulated node without API server and scheduler: kubelet runs the pods it is handed.

As a kubelet with a directory of static pods does, or one whose API server is away. The agent is
started without credentials. Not imitated: the files of static pods, the mirror pods that a kubelet
makes of them where there is an API server, and controllers that make a refused pod anew.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from agent.sim.kubelet import AdmitResult, ContainerSpec, NodeStatus, PodSpec
from agent.sim.node import SimNode
from agent.sim.proc import SimProc


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPod:
    """A pod that was handed to kubelet."""

    namespace: str
    name: str
    uid: str
    admitted: AdmitResult


class LoneNode(SimNode):
    """One node, as `SimNode`, with nobody else."""

    proc: SimProc  # the agent's /proc: it sees who is added there

    def start(self) -> Self:
        """Bring up kubelet."""
        self.proc = SimProc(self.root / "proc")
        self.flags += ["--host-proc", str(self.proc.root)]
        self.kubelet.start()
        (self.root / "host" / "vgpu").mkdir(parents=True, mode=0o755, exist_ok=True)
        return self

    def stop(self) -> None:
        """End the agent and kubelet."""
        try:
            if self.agent is not None and self.agent.poll() is None:
                self.stop_agent()
        finally:
            self.kubelet.stop()

    def _arguments(self) -> list[str]:
        words = super()._arguments()
        at = words.index("--kubeconfig")
        return [*words[:at], *words[at + 2 :]]

    def _tell_status(self, status: NodeStatus) -> bool:  # noqa: ARG002 - nobody to tell
        return True

    def run_static(
        self,
        name: str,
        *containers: ContainerSpec,
        init: Sequence[ContainerSpec] = (),
        namespace: str = "team",
    ) -> StaticPod:
        """Hand a pod to kubelet; a refusal is in the answer. A static pod's uid has no dashes."""
        uid = hashlib.md5(f"{namespace}/{name}".encode(), usedforsecurity=False).hexdigest()
        admitted = self.kubelet.admit(
            PodSpec(
                uid=uid,
                namespace=namespace,
                name=name,
                containers=containers,
                init_containers=init,
            )
        )
        return StaticPod(namespace=namespace, name=name, uid=uid, admitted=admitted)

    def end_static(self, pod: StaticPod) -> None:
        """Its file is taken away: kubelet forgets the pod."""
        self.kubelet.remove(pod.uid)
