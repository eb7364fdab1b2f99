"""The DaemonSet's pod on a node whose pods really run: kubelet starts it, asks its probes, ends it.

Its specification is the manifest's, in mode `slices`; API server, kubelet, containerd and runc are
real. There are no controllers and no pod network: its pod is made here, on the machine's network,
with directories of the test's own. `test_image_as_daemonset` has what needs no kubelet.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from built_hook import sim_libraries
from cluster.agent_process import two_gpus
from manifests import only, plain
from peers.container_node import (
    IMAGE,
    NODE,
    ContainerNode,
)
from peers.processes import free_port
from tenant_node import tenant_node
from tenant_rootfs import DRIVER, TENANT
from waiting import eventually

from agent.sim.container import Container

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("image")]

OURS, TENANTS = "/api/v1/namespaces/kube-system/pods", "/api/v1/namespaces/default/pods"
PROGRAM, AGENT = "/opt/vgpu-agent/vgpu-agent", "vgpu-agent"
SLICE_MIB = 46068 // 10
ON_THE_NODE = {
    "nodeName": NODE,
    "hostNetwork": True,
    "automountServiceAccountToken": False,
    "tolerations": [{"operator": "Exists"}],
}


class Bed:
    """A node, and the agent's pod on it."""

    def __init__(self, node: ContainerNode, stack: ExitStack) -> None:
        self.node, self.api, self._stack = node, node.plane.admin, stack
        (folder := node.state / "driver").mkdir()
        driver, _gpus = two_gpus(folder)
        self._folder = folder
        self._sim = {"name": "VGPU_SIM_DRIVER", "value": str(driver.config_path)}
        self._port = free_port()

    def start_agent(self) -> None:
        """Make its pod, and wait until kubelet counts what it offers and says that it is ready."""
        self.api.request("POST", OURS, self._agent_pod())
        eventually(lambda: self._is_ready() and self.allocatable() == "20", within_s=90,
                   what="the agent's pod is ready")  # fmt: skip
        for made in self._folder.iterdir():  # any user may use a device
            made.chmod(0o666)

    def stop_agent(self) -> None:
        """Delete its pod, and wait until it is gone."""
        self.api.request("DELETE", f"{OURS}/{AGENT}")
        gone = {"fieldSelector": f"metadata.name={AGENT}"}
        eventually(lambda: not self.api.get(OURS, **gone)["items"], within_s=60, what="it is gone")

    def _agent_pod(self) -> dict[str, Any]:
        """The manifest's, with what this machine forces."""
        template = only("DaemonSet", plain())["spec"]["template"]
        moved = json.dumps(template["spec"]).replace("/usr/local/vgpu", f"{self.node.state}/vgpu")
        spec = json.loads(moved)
        del spec["nodeSelector"]["gpu"]  # kubelet asks for it, too, and may not know of it yet
        kubelet = self.node.kubelet
        elsewhere = {
            "device-plugins": kubelet.plugins,
            "pod-resources": kubelet.pod_resources.parent,
            "state": self.node.state / "agent-state",
            "run": self.node.state / "agent-run",
        }
        for volume in spec["volumes"]:
            if volume["name"] in elsewhere:
                volume["hostPath"]["path"] = str(elsewhere[volume["name"]])
        [container] = spec["containers"]
        container["ports"][0]["containerPort"] = self._port
        container["env"] += [
            self._sim,
            {"name": "VGPU_MODE", "value": "slices"},
            {"name": "VGPU_METRICS_BIND_ADDRESS", "value": f"127.0.0.1:{self._port}"},
            {"name": "VGPU_HOST_HOOK_PATH", "value": str(self.node.state)},
        ]
        nvml = {"name": "nvml", "hostPath": {"path": str(sim_libraries() / DRIVER[1])}}
        there = f"/usr/lib/x86_64-linux-gnu/{DRIVER[1]}"
        spec["volumes"] += [nvml, self._driver_volume()]  # the part of NVIDIA's runtime
        container["volumeMounts"] += [
            {"name": "nvml", "mountPath": there, "readOnly": True},
            self._driver_mount(),
        ]
        return {"metadata": {"name": AGENT}, "spec": spec | ON_THE_NODE}

    def show(self) -> None:
        """Print what tells why a case failed; pytest shows it with one that did."""
        for pod in self.api.get(OURS)["items"] + self.api.get(TENANTS)["items"]:
            print(json.dumps(pod["status"], indent=1))  # noqa: T201
        print(self.node.kubelet.process.tail(40))  # noqa: T201

    def _driver_volume(self) -> dict[str, Any]:
        return {"name": "driver", "hostPath": {"path": str(self._folder)}}

    def _driver_mount(self) -> dict[str, Any]:
        return {"name": "driver", "mountPath": str(self._folder)}

    def _is_ready(self) -> bool:
        conditions = self.api.get(f"{OURS}/{AGENT}")["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def allocatable(self) -> str:
        """What the Node says of it."""
        status = self.api.get(f"/api/v1/nodes/{NODE}")["status"]
        found: str = status.get("allocatable", {}).get("nvidia.com/gpu", "0")
        return found

    def make_tenant(self, name: str) -> None:
        """A pod that asks for a slice."""
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sleep", "3600"],
            "env": [self._sim],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "volumeMounts": [self._driver_mount()],
        }
        spec = {
            "terminationGracePeriodSeconds": 0,
            "volumes": [self._driver_volume()],
            "containers": [container],
        }
        pod = {"metadata": {"name": name}, "spec": spec | ON_THE_NODE}
        self.api.request("POST", TENANTS, pod)

    def container_of(self, pods: str, pod: str) -> str:
        """The id of its container, once that runs."""

        def running() -> str:
            [one] = self.api.get(f"{pods}/{pod}")["status"].get("containerStatuses") or [{}]
            return str(one["containerID"]) if "running" in one.get("state", {}) else ""

        found = eventually(running, within_s=60, what=f"{pod} runs")
        return str(found).removeprefix("containerd://")

    def workload(self, pod: str) -> Container:
        """A program in it that uses the GPU."""
        talk = Container(
            pod, self.node.execute(self.container_of(TENANTS, pod), TENANT), isolated=True
        )
        self._stack.callback(talk.stop)
        assert talk._read_answer("starting").ok
        return talk

    def used_mib(self) -> dict[str, int]:
        """What `top` says of each pod, typed as `kubectl exec` runs it."""
        container = self.container_of(OURS, AGENT)
        process = self.node.execute(container, PROGRAM, "top", "--json")
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        return {
            one["pod"]: (one["devices"][0]["self_reported"] or {}).get("used_bytes", 0) >> 20
            for one in json.loads(out)["containers"]
        }


@pytest.fixture
def bed(image_file: Path) -> Iterator[Bed]:
    with ExitStack() as stack:
        node = stack.enter_context(tenant_node())
        loaded = node.containerd.ctr("images", "import", image_file)
        assert loaded.returncode == 0, loaded.stderr
        yield (bed := Bed(node, stack))
        bed.show()


def test_its_pod_serves_and_is_replaced(bed: Bed) -> None:
    """Pods that run keep their limits; one that comes while there is no agent is refused."""
    bed.start_agent()
    bed.make_tenant("train")
    workload = bed.workload("train")
    assert [gpu.total_mib for gpu in workload.ask("info").devices] == [SLICE_MIB]
    assert workload.ask("alloc 3000").ok
    bed.stop_agent()
    assert workload.ask("alloc 2000").result == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    eventually(lambda: bed.allocatable() == "0", what="kubelet counts none any more")
    bed.make_tenant("early")
    eventually(lambda: bed.api.get(f"{TENANTS}/early")["status"]["phase"] == "Failed",
               what="kubelet refuses who comes meanwhile")  # fmt: skip
    bed.start_agent()
    bed.make_tenant("later")
    assert bed.workload("later").ask(f"alloc {SLICE_MIB}").ok
    used = {"train": 3000, "later": SLICE_MIB}
    eventually(lambda: bed.used_mib() == used, what="the new agent sees both")
    assert workload.ask("alloc 1606").ok
