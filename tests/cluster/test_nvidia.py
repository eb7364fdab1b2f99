"""Mode `nvidia` on a real kubelet without API server: what its runtime is told of GPUs."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster.agent_process import TREE
from cluster.test_slices import Alone
from peers.processes import Process

from agent.sim.driver import made_up_uuid
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GPUS = {made_up_uuid(0), made_up_uuid(1)}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CDI = "k8s.device-plugin.nvidia.com"
SHARED = """
version: v1
sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}
"""
StartNode = Callable[..., "NvidiaNode"]


class NvidiaNode(Alone):
    """The same node with this mode."""

    def __init__(self, stack: ExitStack, state: Path, flags: tuple[str, ...]) -> None:
        self._flags = flags
        super().__init__(stack, state)

    def _made_agent(self) -> Process:
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        command = [
            *(sys.executable, str(TREE / "agent.py"), "run", "--mode=nvidia", *self._flags),
            f"--kubelet-socket={self.kubelet.socket}",
            f"--pod-resources-socket={self.kubelet.pod_resources}",
            f"--host-hook-path={self.files.hook}",
            f"--state-dir={self.state}/agent",
            f"--runtime-dir={self.state}/agent/run",
            "--metrics-bind-address=off",
            "--log-format=logfmt",
        ]
        (self.state / "agent").mkdir(exist_ok=True)
        environ = inherited | self.driver.environment()
        return Process(command, log=self.state / "agent.log", environ=environ)


@pytest.fixture
def start() -> Iterator[StartNode]:
    with ExitStack() as stack:

        def made(*flags: str, config: str = "") -> NvidiaNode:
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp"))
            state = Path(path)
            if config:
                (state / "config.yaml").write_text(config)
                flags = (*flags, f"--config-file={state}/config.yaml")
            node = NvidiaNode(stack, state, flags)
            node.agent.start()
            stack.callback(lambda: sys.stderr.write(node.agent.log.read_text(errors="replace")))
            eventually(lambda: node.said(" registered_with_kubelet ") == 1, within_s=60)
            return node

        yield made


def put(node: NvidiaNode, name: str, resource: str) -> None:
    """Write a static pod that asks for one."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": "none", "resources": {"limits": {resource: 1}}}
            ],
        },
    }
    part = node.state / f"{name}.part"
    part.write_text(json.dumps(pod))
    part.rename(node.kubelet.static_pods / f"{name}.json")


def test_whole_gpus_by_variable_and_annotation(start: StartNode, tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.570.86.15").write_bytes(b"")
    node = start(
        "--device-list-strategy=envvar,cdi-annotations",
        f"--nvidia-driver-root={tmp_path}",
        f"--cdi-spec-dir={tmp_path}/cdi",
    )
    put(node, "a", "nvidia.com/gpu")
    put(node, "b", "nvidia.com/gpu")
    told = [dict(node.container(name).envs)[VISIBLE] for name in ("a", "b")]
    assert set(told) == GPUS
    annotations = dict(node.container("a").config.annotations)
    (names,) = (v for k, v in annotations.items() if k.startswith("cdi.k8s.io/nvidia-device"))
    assert names == f"{CDI}/gpu={told[0]}"


def test_replicas_by_nvidias_file(start: StartNode) -> None:
    node = start(config=SHARED)
    for name in ("a", "b"):
        put(node, name, "nvidia.com/gpu.shared")
    told = [dict(node.container(name).envs)[VISIBLE] for name in ("a", "b")]
    assert set(told) == GPUS, "the preferred allocation spreads them"
