"""Mode `slices` on a real kubelet without API server: static pods get enforced slices."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.agent_process import TREE, HostFiles, two_gpus
from peers import node as peers
from peers.build_peers import available, default_cache
from peers.cri import Container, StandInRuntime
from peers.kubelet_process import KubeletProcess
from peers.processes import Process
from peers.proto_messages import ProtoApi
from toy_plugin import ToyPlugin

from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SIZES = "small=8Gi:25,large=24Gi:50"


class Alone:
    """A real kubelet with a directory of static pods, a stand-in runtime, and an agent."""

    def __init__(self, stack: ExitStack, state: Path) -> None:
        built = available(default_cache())
        if built is None or (reason := peers.missing()):
            pytest.skip(reason if built else "the peers are not built: build.py cluster-peers")
        self.state = state
        self.runtime = StandInRuntime(ProtoApi.read(built.descriptors("cri"), built.cri))
        stack.enter_context(self.runtime.serving(state / "cri.sock"))
        self.kubelet = KubeletProcess(
            built, state=state, node="alone", kubeconfig=None, runtime=state / "cri.sock"
        )
        stack.callback(self.kubelet.stop)
        self.kubelet.start()
        (state / "driver").mkdir()
        self.driver, self.gpus = two_gpus(state / "driver")
        self.files = HostFiles(state / "host")
        self.agent = self._made_agent()
        stack.callback(self.agent.kill)

    def _made_agent(self) -> Process:
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        command = [
            *(sys.executable, str(TREE / "agent.py"), "run", "--mode=slices"),
            f"--slice-sizes={SIZES}",
            f"--kubelet-socket={self.kubelet.socket}",
            f"--pod-resources-socket={self.kubelet.pod_resources}",
            f"--host-hook-path={self.files.hook}",
            f"--vgpulock-dir={self.files.locks}",
            f"--state-dir={self.state}/agent",
            f"--runtime-dir={self.state}/agent/run",
            "--metrics-bind-address=off",
            "--log-format=logfmt",
            "--cache-gc-after=10s",
            "--cache-gc-interval=1s",
            "--owners-interval=1s",
        ]
        (self.state / "agent").mkdir(exist_ok=True)
        environ = inherited | self.driver.environment()
        return Process(command, log=self.state / "agent.log", environ=environ)

    def said(self, what: str) -> int:
        log = self.agent.log
        return log.read_text(errors="replace").count(what) if log.exists() else 0

    def put(self, name: str, *, init: dict[str, Any] | None = None, **resources: int) -> None:
        """Write a static pod that asks for so many of each size; with `init`, before its own."""
        limits = {f"nvidia.com/gpu-{size}": count for size, count in resources.items()}
        main = {"name": "main", "image": "none", "resources": {"limits": limits}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "initContainers": [init] if init else [],
                "containers": [main],
            },
        }
        part = self.state / f"{name}.part"
        part.write_text(json.dumps(pod))
        part.rename(self.kubelet.static_pods / f"{name}.json")

    def written(self) -> int:
        """When kubelet last wrote its checkpoint."""
        return self.kubelet.checkpoint.stat().st_mtime_ns

    def take(self, name: str) -> None:
        (self.kubelet.static_pods / f"{name}.json").unlink()

    def container(self, name: str) -> Container:
        """The container of a pod, once the runtime was told to make it."""
        return eventually(lambda: self._made(name), within_s=60, what=f"{name} is started")

    def _made(self, name: str) -> Container | None:
        made = self.runtime.created()
        return next(
            (c for c in made if c.config.labels["io.kubernetes.pod.name"] == f"{name}-alone"), None
        )

    def owners(self) -> set[str]:
        """Pods of which the agent has learnt that grants are theirs."""
        text = self.agent.log.read_text(errors="replace")
        return set(re.findall(r"grant_owned .* pod=team/(\S+)-alone container=main", text))


@pytest.fixture
def alone() -> Iterator[Alone]:
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp")))
        node = Alone(stack, state)
        node.agent.start()
        eventually(lambda: node.said(" registered_with_kubelet ") == 2, within_s=60)
        yield node
        sys.stderr.write(node.agent.log.read_text(errors="replace"))


def test_static_pods_get_slices_and_give_them_back(alone: Alone) -> None:
    alone.put("train", large=1)
    alone.put("serve", small=2)
    train, serve = alone.container("train"), alone.container("serve")
    assert dict(train.envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"
    assert dict(train.envs)["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert dict(serve.envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "16384m"
    assert "/etc/ld.so.preload" in {mount.container_path for mount in serve.mounts}
    assert eventually(lambda: alone.owners() == {"train", "serve"}, within_s=60)
    directories = alone.files.vgpu / "containers"
    assert len(list(directories.iterdir())) == 2
    alone.take("train")
    eventually(lambda: len(list(directories.iterdir())) == 1, within_s=90, what="its files go")
    alone.put("again", large=1)
    assert dict(alone.container("again").envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"


def test_an_init_container_keeps_its_slice_until_its_pod_is_gone(alone: Alone) -> None:
    """This kubelet's API never lists it; its checkpoint does, also when it is written anew."""
    alone.put("serve", small=1)
    eventually(lambda: alone.owners() == {"serve"}, within_s=60)
    limits = {"limits": {"nvidia.com/gpu-large": 1}}
    fetch = {"name": "fetch", "image": "none", "command": ["sleep", "3600"], "resources": limits}
    alone.put("train", init=fetch)
    assert dict(alone.container("train").envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"
    before, directories = alone.written(), alone.files.vgpu / "containers"
    eventually(lambda: alone.written() != before, within_s=90, what="the checkpoint is written")
    assert '"ContainerName":"fetch"' in alone.kubelet.checkpoint.read_text()
    assert len(list(directories.iterdir())) == 2
    alone.take("train")
    eventually(lambda: len(list(directories.iterdir())) == 1, within_s=150, what="its files go")


def test_agent_and_kubelet_restart(alone: Alone) -> None:
    alone.put("train", large=1)
    alone.container("train")
    eventually(lambda: alone.owners() == {"train"}, within_s=60)
    alone.agent.kill()
    alone.agent.start()
    eventually(lambda: alone.said(" registered_with_kubelet ") == 4, within_s=60)
    alone.kubelet.restart()
    eventually(lambda: alone.said(" registered_with_kubelet ") == 6, within_s=60)
    alone.put("serve", small=1)
    assert dict(alone.container("serve").envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "8192m"
    assert eventually(lambda: alone.owners() == {"train", "serve"}, within_s=60)
    assert len(list((alone.files.vgpu / "containers").iterdir())) == 2


def test_a_plugin_that_takes_a_size_over_is_told(alone: Alone) -> None:
    """This kubelet says by its checkpoint alone who offers what, and leaves our stream open."""
    directory = alone.kubelet.socket.parent
    toy = ToyPlugin(directory / "nvidia-gpu.sock", [f"{alone.gpus[0].uuid}::0"])
    try:
        _register(alone, toy, "nvidia.com/gpu.shared")
        eventually(lambda: alone.said("offered to kubelet as nvidia.com/gpu.shared"), within_s=60)
        _register(alone, toy, "nvidia.com/gpu-large")
        eventually(lambda: alone.said("taken that name over"), within_s=60)
        assert not alone.said("registration_lost")
    finally:
        toy.stop()


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        pytest.param(("::0",), "taken that name over", id="ids as NVIDIA's"),
        pytest.param(("-0", "-1", "-2"), "connections at nvidia-gpu.sock", id="ids as ours"),
    ],
)
def test_a_size_that_a_plugin_took_over_is_served_again_when_it_has_gone(
    alone: Alone, ids: tuple[str, ...], told: str
) -> None:
    """From 1.37 on kubelet asks us again then, and goes on listing what the plugin had."""
    registered, uuid = " registered_with_kubelet ", alone.gpus[0].uuid
    toy = ToyPlugin(alone.kubelet.socket.parent / "nvidia-gpu.sock", [uuid + one for one in ids])
    try:
        _register(alone, toy, "nvidia.com/gpu-large")
        eventually(lambda: alone.said(told), within_s=60)
        assert alone.said(registered) == 2, "it is still there"
    finally:
        toy.stop()

    eventually(lambda: alone.said(registered) == 3, within_s=60)
    alone.put("train", large=1)
    assert dict(alone.container("train").envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"


def _register(alone: Alone, plugin: ToyPlugin, resource: str) -> None:
    request = dp.RegisterRequest(
        version=rpc.API_VERSION,
        endpoint=plugin.socket.name,
        resource_name=resource,
        options=plugin.options,
    )
    channel = rpc.unix_channel(alone.kubelet.socket, max_receive_bytes=1 << 22)
    try:
        rpc.REGISTER.client(channel)(request, timeout=60)
    finally:
        channel.close()
