"""What is a whole real node for a test? etcd, API server, stand-in runtime and kubelet together.

By hand: `PYTHONPATH=tests .build/venv/bin/python -m peers.node` runs one until end of input.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waiting import eventually

from . import remote
from .build_peers import Peers, available, default_cache
from .control_plane import ControlPlane
from .cri import StandInRuntime
from .kubelet_process import KubeletProcess
from .proto_messages import ProtoApi

NODE = "gpu-node-1"
END_OF_EXPORTS = "# a node runs until this command's input ends (Ctrl-D)"


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
        runtime = StandInRuntime(ProtoApi.read(peers.descriptors("cri"), peers.cri))
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
        node = PeerNode(state=state, plane=plane, runtime=runtime, kubelet=kubelet)
        eventually(plane.has_ready_node, within_s=60, what="the node is ready")
        yield node


def exports(node: PeerNode, control: Path) -> dict[str, str]:
    """What points the tests at a node of another process (see tests/cluster/given_node.py)."""

    def command(word: str) -> str:
        return shlex.join([sys.executable, str(Path(remote.__file__)), str(control), word])

    return {
        "VGPU_TEST_KUBECONFIG": str(node.plane.kubeconfig("admin")),
        "VGPU_TEST_AGENT_KUBECONFIG": str(node.plane.kubeconfig("agent")),
        "VGPU_TEST_KUBELET_DIR": str(node.kubelet.root),
        "VGPU_TEST_KUBELET_LOG": str(node.kubelet.process.log),
        "VGPU_TEST_KUBELET_STOP": command("stop-kubelet"),
        "VGPU_TEST_KUBELET_START": command("start-kubelet"),
        "VGPU_TEST_API_STOP": command("stop-api"),
        "VGPU_TEST_API_START": command("start-api"),
        "VGPU_TEST_LOSE_CONTAINERS": command("lose-containers"),
    }


def main() -> int:
    """Run a node until standard input ends, and print the variables that point tests at it."""
    reason, peers = missing(), available(default_cache())
    if reason or peers is None:
        print(reason, file=sys.stderr)  # noqa: T201 - it talks to a person
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running_node(peers) as node:
        control = node.state / "control.sock"
        for name, value in exports(node, control).items():
            print(f"export {name}={shlex.quote(value)}")  # noqa: T201
        print(END_OF_EXPORTS, flush=True)  # noqa: T201
        deeds = {
            "stop-kubelet": node.kubelet.stop,
            "start-kubelet": node.kubelet.start,
            "stop-api": node.plane.stop_apiserver,
            "start-api": node.plane.start_apiserver,
            "lose-containers": node.runtime.forget,
        }
        remote.listen(control, deeds, until_end_of=sys.stdin)
    return 0


@contextmanager
def node_of_another_process() -> Iterator[dict[str, str]]:
    """Run this file as a person does, and read what it prints: the variables."""
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-m", "peers.node"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        found = {}
        for line in iter(process.stdout.readline, f"{END_OF_EXPORTS}\n"):
            assert line, "the node has not started"
            name, _, value = shlex.split(line)[1].partition("=")
            found[name] = value
        yield found  # and leaving the block ends its input, and waits for it


if __name__ == "__main__":
    raise SystemExit(main())
