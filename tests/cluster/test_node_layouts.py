"""A real kubelet as k3s, kubeadm and k0s start it, at their paths; the agent has its defaults.

Neither k3s nor kubeadm nor k0s runs here: it is the kubelet, and what they tell it and write.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster.agent_process import TREE, HostFiles, two_gpus
from peers import node as peers
from peers.build_peers import available, default_cache
from peers.control_plane import ControlPlane
from peers.cri import Container, StandInRuntime
from peers.kubelet_process import KubeletProcess
from peers.node_layouts import K0S, K3S, KUBEADM, NodeLayout, inside
from peers.processes import Process
from peers.proto_messages import ProtoApi

from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE, UUID = "layout", "io.kubernetes.pod.uid"
OF_ETC = ("passwd", "group", "nsswitch.conf", "hosts", "ld.so.cache", "localtime")


class LaidOut:
    """A node with an API server, without a scheduler, and the agent on it in mode slices."""

    def __init__(self, stack: ExitStack, state: Path, layout: NodeLayout) -> None:
        built = available(default_cache())
        if built is None or (reason := peers.missing()):
            pytest.skip(reason if built else "the peers are not built: build.py cluster-peers")
        tree = state / "host"
        layout.make(tree)
        for name in OF_ETC:
            if Path("/etc", name).exists():
                shutil.copy(f"/etc/{name}", tree / "etc")
        plane = ControlPlane(built, state=state, node=NODE)
        stack.callback(plane.stop)
        plane.start()
        self.api = plane.admin
        inside(tree, layout.kubeconfig).write_text(plane.kubeconfig("kubelet").read_text())
        self.runtime = StandInRuntime(ProtoApi.read(built.descriptors("cri"), built.cri))
        stack.enter_context(self.runtime.serving(inside(tree, layout.runtime)))
        self.kubelet = KubeletProcess(
            built,
            state=state,
            node=NODE,
            kubeconfig=Path(layout.kubeconfig),
            runtime=Path(layout.runtime),
            layout=layout,
        )
        stack.callback(self.kubelet.stop)
        self.kubelet.start()
        (state / "driver").mkdir()
        driver, _gpus = two_gpus(state / "driver")
        self.files = HostFiles(state / "agents")
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        self._environ = inherited | driver.environment()
        self._settings = [
            *("--mode=slices", "--device-split-count=4"),
            f"--host-hook-path={self.files.hook}",
            f"--vgpulock-dir={self.files.locks}",
            *(f"--state-dir={state}/agent", "--cache-gc-after=10s", "--cache-gc-interval=1s"),
        ]
        if layout.root_dir != "/var/lib/kubelet":
            resources = f"{layout.root_dir}/pod-resources/kubelet.sock"
            self._settings.append(f"--pod-resources-socket={resources}")
        (state / "agent").mkdir()
        self.agent = Process(
            self._command("run", "--log-format=logfmt", "--metrics-bind-address=off"),
            log=state / "agent.log",
            environ=self._environ,
        )
        stack.callback(self.agent.kill)

    def _command(self, name: str, *flags: str) -> list[str]:
        program = [sys.executable, str(TREE / "agent.py"), name]
        return [*self.kubelet.on_the_node, *program, *self._settings, *flags]

    def doctor(self, *checks: str) -> dict[str, Any]:
        """What it finds on the node, by check."""
        only = ("--json", "--only", ",".join(checks))
        done = subprocess.run(
            [*self.kubelet.on_the_node, sys.executable, str(TREE / "agent.py"), "doctor", *only],
            env=self._environ | {"VGPU_MODE": "slices"} | self._variables(),
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        return {one["name"]: one for one in json.loads(done.stdout)["checks"]}

    def _variables(self) -> dict[str, str]:
        pairs = (setting.removeprefix("--").split("=", 1) for setting in self._settings)
        return {f"VGPU_{name.upper().replace('-', '_')}": value for name, value in pairs}

    def pod(self, name: str, slices: int) -> dict[str, Any]:
        """One that asks for slices."""
        resources = {"limits": {"nvidia.com/gpu": slices}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "resources": resources}],
            },
        }

    def put_static(self, name: str, slices: int) -> Path:
        """Its file, which is written elsewhere: in the directory kubelet takes any for a pod."""
        file = self.kubelet.static_pods / f"{name}.json"
        whole = file.parent.parent / file.name
        whole.write_text(json.dumps(self.pod(name, slices)))
        return whole.rename(file)

    def container(self, pod: str) -> Container:
        """The container of a pod, once the runtime was told to make it."""
        return eventually(lambda: self._made(pod), within_s=90, what=f"{pod} is started")

    def _made(self, pod: str) -> Container | None:
        label = "io.kubernetes.pod.name"
        return next((c for c in self.runtime.created() if c.config.labels[label] == pod), None)

    def said(self, what: str) -> bool:
        """Whether the agent has logged this."""
        return self.agent.log.exists() and what in self.agent.log.read_text(errors="replace")


@pytest.fixture
def laid_out(request: pytest.FixtureRequest) -> Iterator[LaidOut]:
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp")))
        node = LaidOut(stack, state, request.param)
        node.agent.start()
        eventually(lambda: node.said(" registered_with_kubelet "), within_s=90)
        yield node
        sys.stderr.write(node.agent.log.read_text(errors="replace"))


ALL = pytest.mark.parametrize(
    "laid_out",
    [pytest.param(layout, id=layout.name) for layout in (K3S, KUBEADM, K0S)],
    indirect=True,
)


@ALL
def test_pods_and_static_pods_get_slices_with_nothing_set(laid_out: LaidOut) -> None:
    static = laid_out.put_static("static", 1)
    laid_out.api.request("POST", "/api/v1/namespaces/default/pods", laid_out.pod("web", 2))
    a_slice, two = laid_out.container(f"static-{NODE}"), laid_out.container("web")
    assert dict(a_slice.envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "11517m"
    assert dict(two.envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "23034m"
    for pod in (f"static-{NODE}", "web"):
        owned = f"pod=default/{pod} container=main"
        eventually(lambda owned=owned: laid_out.said(owned), within_s=60, what=owned)
    elsewhere = laid_out.kubelet.host / "var/lib/k0s/kubelet/device-plugins"
    assert not elsewhere.exists()  # kubelet's --root-dir does not move it
    static.unlink()  # at once: kubelet may ask for its devices once more while it takes it away
    left = laid_out.files.vgpu / "containers"
    eventually(lambda: len(list(left.iterdir())) == 1, within_s=120, what="its files go")


@pytest.mark.parametrize("laid_out", [pytest.param(KUBEADM, id="kubeadm")], indirect=True)
def test_a_pod_that_never_ran_leaves_nothing(laid_out: LaidOut) -> None:
    """It is gone before kubelet could say whose its slice was; its checkpoint still lists it."""
    laid_out.api.request("POST", "/api/v1/namespaces/default/pods", laid_out.pod("web", 2))
    owned, granted = "pod=default/web container=main", "memory_mib=11517"
    eventually(lambda: laid_out.said(owned), within_s=60, what=owned)
    static = laid_out.put_static("static", 1)
    eventually(lambda: laid_out.said(granted), within_s=60, every_s=0.02, what=granted)
    static.unlink()
    left = laid_out.files.vgpu / "containers"
    eventually(lambda: len(list(left.iterdir())) == 1, within_s=150, what="its files go")


@dataclass(frozen=True)
class Seen:
    """What doctor says on a node."""

    runtime: str
    nvidia: str
    verdict: str
    mends: str


@pytest.mark.parametrize(
    ("laid_out", "seen"),
    [
        pytest.param(
            K3S,
            Seen(
                runtime="k3s (/run/k3s/containerd/containerd.sock, "
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml)",
                nvidia="k3s's default runtime is runc",
                verdict="warning",
                mends="systemctl restart k3s ",
            ),
            id="k3s",
        ),
        pytest.param(
            KUBEADM,
            Seen(
                runtime="containerd (/run/containerd/containerd.sock, /etc/containerd/config.toml)",
                nvidia="containerd's default runtime is nvidia",
                verdict="ok",
                mends="",
            ),
            id="kubeadm",
        ),
    ],
    indirect=["laid_out"],
)
def test_doctor_knows_the_node(laid_out: LaidOut, seen: Seen) -> None:
    of_kubelet = ("kubelet-socket", "plugin-directory", "pod-resources")
    found = laid_out.doctor(*of_kubelet, "runtime", "nvidia-runtime")
    assert [found[name]["verdict"] for name in of_kubelet] == ["ok"] * 3
    assert found["runtime"]["evidence"] == seen.runtime
    said = found["nvidia-runtime"]
    assert (said["verdict"], said["evidence"][: len(seen.nvidia)]) == (seen.verdict, seen.nvidia)
    assert seen.mends in said["fix"]
    laid_out.kubelet.stop()
    (broken,) = (laid_out.doctor("kubelet-socket")["kubelet-socket"],)
    unit = "k3s" if seen.verdict == "warning" else "kubelet"
    assert broken["verdict"] == "failed"
    assert broken["fix"].startswith(f"systemctl restart {unit};")
