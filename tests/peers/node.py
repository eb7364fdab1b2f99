"""What is a whole real node for a test? etcd, API server, stand-in runtime and kubelet together.

By hand: `PYTHONPATH=tests .build/venv/bin/python -m peers.node` runs one until end of input.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waiting import eventually

from .build_peers import Peers, available, default_cache
from .control_plane import ControlPlane
from .cri import StandInRuntime
from .kubelet_process import KubeletProcess
from .proto_messages import ProtoApi

NODE = "gpu-node-1"


def missing() -> str:
    """Why real peers cannot run here, as one sentence; empty when they can."""
    if available(default_cache()) is None:
        return "the real peers are not built; run `build.py cluster-peers` once"
    if os.geteuid() != 0:
        return "a kubelet runs as root only"
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/tmp", "/tmp"]
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        return "this machine does not allow mount namespaces, in which the kubelet is shut in"
    return ""


class PeerNode:
    """A running node of real peers; made by `running_node`."""

    def __init__(
        self,
        peers: Peers,
        *,
        state: Path,
        plane: ControlPlane,
        runtime: StandInRuntime,
        kubelet: KubeletProcess,
    ) -> None:
        self.name = NODE
        self.state = state
        self.plane = plane
        self.runtime = runtime
        self.kubelet = kubelet
        self._peers = peers

    def proto(self, name: str, package: str) -> ProtoApi:
        """Upstream's messages of one API, see Peers.descriptors."""
        return ProtoApi(self._peers.descriptors(name), package)

    def is_ready(self) -> bool:
        """Whether the kubelet has reported the node ready."""
        nodes = self.plane.admin.get("/api/v1/nodes")["items"]
        conditions = [c for n in nodes for c in n.get("status", {}).get("conditions", [])]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@contextmanager
def running_node(peers: Peers) -> Iterator[PeerNode]:
    """Start all of them, and end all of them and their files afterwards.

    The state lies under /tmp and not where pytest would put it: unix sockets are opened in it, and
    their paths may have 107 bytes at most.
    """
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp")))
        plane = ControlPlane(peers, state=state, node=NODE)
        stack.callback(plane.stop)
        plane.start()
        runtime = StandInRuntime(ProtoApi(peers.descriptors("cri"), "runtime.v1alpha2"))
        stack.enter_context(runtime.serving(state / "cri.sock"))
        kubelet = KubeletProcess(
            peers,
            state=state,
            node=NODE,
            kubeconfig=plane.kubeconfig("kubelet"),
            runtime=state / "cri.sock",
        )
        stack.callback(kubelet.stop)
        kubelet.start()
        node = PeerNode(peers, state=state, plane=plane, runtime=runtime, kubelet=kubelet)
        eventually(node.is_ready, within_s=60, what="the node is ready")
        yield node


def main() -> int:
    """Run a node until standard input ends, and print the variables that point tests at it."""
    reason, peers = missing(), available(default_cache())
    if reason or peers is None:
        print(reason, file=sys.stderr)  # noqa: T201 - it talks to a person
        return 1
    with running_node(peers) as node:
        print(f"export VGPU_TEST_KUBECONFIG={node.plane.kubeconfig('admin')}")  # noqa: T201
        print(f"export VGPU_TEST_KUBELET_DIR={node.kubelet.root}", flush=True)  # noqa: T201
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
