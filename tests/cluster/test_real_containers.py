"""Pods that really run: kubelet, containerd and runc start what the agent granted.

Only the driver is simulated, and the scheduler a stand-in. Elsewhere in this directory the runtime
keeps records and starts nothing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.agent_process import TREE, HostFiles, two_gpus
from peers.container_node import (
    FILES,
    IMAGE,
    NODE,
    OURS,
    ContainerNode,
    clear_after_the_killed,
    scratch,
)
from peers.processes import Process
from pod_cgroups import every_hierarchy_is_ours, hierarchies
from tenant_node import tenant_node
from tenant_rootfs import TENANT
from waiting import eventually

from agent.sim.api_client import ApiClient, ApiFailed
from agent.sim.container import Container
from agent.sim.scheduler import NodeLocked, NoFit, Scheduler

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PODS = "/api/v1/namespaces/default/pods"
SHELL = ("/bin/busybox", "sh", "-c")
INIT, INIT_HAD = "echo alloc 40000", "'\"held_mib\":40000'"
NOBODY = {
    "runAsUser": 65534,
    "runAsGroup": 65534,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class Bed:
    """A node whose pods run, an agent on it, and a scheduler."""

    def __init__(self, stack: ExitStack, node: ContainerNode) -> None:
        self.node, self.api = node, node.plane.admin
        places = [node.state / name for name in ("driver", "agents", "agent")]
        for folder in places:
            folder.mkdir()
        driver, _gpus = two_gpus(places[0])
        self.sim = {"VGPU_SIM_DRIVER": str(driver.config_path)}
        self._files = HostFiles(places[1])
        self._sockets = f"--runtime-dir={places[2]}/run"
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        self._environ = inherited | driver.environment()
        settings = [
            f"--node-name={NODE}",
            f"--kubeconfig={node.plane.kubeconfig('agent')}",
            f"--kubelet-socket={node.kubelet.socket}",
            f"--pod-resources-socket={node.kubelet.pod_resources}",
            f"--host-hook-path={self._files.hook}",
            f"--vgpulock-dir={self._files.locks}",
            *(f"--state-dir={places[2]}", self._sockets, "--metrics-bind-address=off"),
            *("--cache-gc-after=10s", "--cache-gc-interval=1s", "--process-interval=0.2s"),
            *("--accounting-interval=0.5s", "--log-format=logfmt"),
        ]
        self.agent = Process(
            [sys.executable, str(TREE / "agent.py"), "run", *settings],
            log=node.state / "agent.log",
            environ=self._environ,
        )
        stack.callback(self.agent.stop)
        self.agent.start()
        token = self.api.headers["Authorization"].removeprefix("Bearer ")
        client = ApiClient(self.api.url, token=token, tls=self.api.tls)
        self._scheduler = Scheduler(client, release="2.9")
        self.agent.wait_until(self._at_work, within_s=60, what="the agent is at work")
        for made in places[0].iterdir():  # any user may use a device
            made.chmod(0o666)
        places[0].chmod(0o777)
        self._talks: list[Container] = []
        runtime_log = node.containerd.state / "containerd.log"
        self.logs = [self.agent.log, node.kubelet.process.log, runtime_log]

    def _at_work(self) -> bool:
        node = self.api.get(f"/api/v1/nodes/{NODE}")
        offered = node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0")
        return offered != "0" and "hami.io/node-nvidia-register" in node["metadata"]["annotations"]

    def run_pod(self, name: str, *containers: Mapping[str, Any], **more: Any) -> None:
        """Create a pod, place it as HAMi does, and wait until its containers run."""
        spec = {
            "schedulerName": "hami-scheduler",
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "driver", "hostPath": {"path": str(self.node.state / "driver")}}],
            "containers": containers,
            **more,
        }
        self.agent.wait_until(self._at_work, within_s=60, what="the agent is at work")
        self.api.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})
        eventually(lambda: self._placed(name), within_s=60, what=f"{name} is placed")
        eventually(
            lambda: all("running" in one["state"] for one in self._containers(name, len(containers))),
            within_s=60, what=f"{name} runs",
        )  # fmt: skip

    def _placed(self, name: str) -> bool:
        try:
            self._scheduler.handshake_once(NODE)
            return self._scheduler.schedule_by_request("default", name) == NODE
        except (NodeLocked, NoFit, ApiFailed):
            return False

    def _containers(self, pod: str, least: int = 1) -> list[dict[str, Any]]:
        status = self.api.get(f"{PODS}/{pod}")["status"].get("containerStatuses", [])
        return status if len(status) >= least else [{"state": {}}]

    def container(self, name: str, **more: Any) -> dict[str, Any]:
        """One of a pod's spec: 3000 MiB and 50 % of a GPU."""
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "50"}
        return {
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sleep", "3600"],
            "env": [{"name": name, "value": value} for name, value in self.sim.items()],
            "resources": {"limits": limits},
            "volumeMounts": [{"name": "driver", "mountPath": str(self.node.state / "driver")}],
            **more,
        }

    def workload(self, pod: str, number: int = 0) -> Container:
        """A program that uses the GPU, started in a container of the pod."""
        found = self._containers(pod)[number]["containerID"].removeprefix("containerd://")
        talk = Container(pod, self.node.execute(found, TENANT), isolated=True)
        assert talk._read_answer("starting").ok
        self._talks.append(talk)
        return talk

    def kill(self, pod: str) -> None:
        """End its container at once; kubelet starts another one."""
        found = self._containers(pod)[0]["containerID"].removeprefix("containerd://")
        done = self.node.containerd.ctr("tasks", "kill", "--signal", "KILL", found)
        assert done.returncode == 0, done.stderr
        eventually(lambda: self._restarted(pod), within_s=60, what=f"{pod} runs again")

    def _restarted(self, pod: str) -> bool:
        one = self._containers(pod)[0]
        return one.get("restartCount") == 1 and "running" in one["state"]

    def anew(self, start: Callable[[], None]) -> None:
        """Start kubelet or the agent, and wait until kubelet has the list of vGPUs from it."""
        before = self._lists_sent()
        start()
        self.agent.wait_until(
            lambda: self._lists_sent() > before, within_s=60, what="a list is sent"
        )

    def _lists_sent(self) -> int:
        return self.agent.log.read_text(errors="replace").count(" list_sent ")

    def ask_agent(self, *words: str) -> str:
        """A command of the agent's, on this node."""
        done = self._ask(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(TREE / "agent.py"), *words, self._sockets],
            env=self._environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def wait_for_use(self, pod: str, *, enforced: bool, used_mib: int) -> None:
        """Wait until the agent says so of its first container."""

        def said() -> bool:
            told = self._ask("top", "--json")
            return told.returncode == 0 and any(
                one["pod"] == pod
                and ((one["enforcement"] or {}).get("state") == "enforced") == enforced
                and (one["devices"][0]["self_reported"] or {}).get("used_bytes") == used_mib << 20
                for one in json.loads(told.stdout)["containers"]
            )

        eventually(said, within_s=30, what=f"the agent says that {pod} has {used_mib} MiB")

    def directories(self) -> set[str]:
        """What the agent keeps for containers."""
        return {found.name for found in (self._files.vgpu / "containers").iterdir()}

    def delete_all(self) -> None:
        """Every pod goes."""
        for pod in self.api.get(PODS)["items"]:
            self.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
        for talk in self._talks:
            talk.stop()
        self._talks.clear()
        eventually(lambda: not self.api.get(PODS)["items"], within_s=60, what="the pods are gone")


@pytest.fixture(scope="module")
def whole() -> Iterator[Bed]:
    with ExitStack() as stack:
        node = stack.enter_context(tenant_node())
        yield Bed(stack, node)


@pytest.fixture
def bed(whole: Bed) -> Iterator[Bed]:
    """The same node for every case; no pods are left on it."""
    yield whole
    for log in whole.logs:  # shown with a case that failed
        lines = log.read_text(errors="replace").splitlines()[-40:]
        sys.stderr.write("\n".join([f"end of {log}", *(line[:600] for line in lines), ""]))
    whole.delete_all()


@pytest.mark.parametrize(
    "security",
    [
        pytest.param({}, id="as root"),
        pytest.param(NOBODY, id="as nobody, with the strictest profile"),
    ],
)
def test_a_pod_has_its_share_and_no_more(bed: Bed, security: Mapping[str, Any]) -> None:
    bed.run_pod("train", bed.container("main", securityContext=security))
    one, other = bed.workload("train"), bed.workload("train")
    assert [(gpu.total_mib, gpu.free_mib) for gpu in one.ask("info").devices] == [(3000, 3000)]
    assert one.ask("alloc 2000").ok
    assert other.ask("alloc 1001").result == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    assert other.ask("alloc 1000").ok
    assert other.ask("launch 2").ok
    bed.wait_for_use("train", enforced=True, used_mib=3000)


def test_memory_comes_back_when_kubelet_starts_the_container_again(bed: Bed) -> None:
    """The container's processes got no chance to say goodbye."""
    bed.run_pod("train", bed.container("main"))
    assert bed.workload("train").ask("alloc 2900").ok
    bed.wait_for_use("train", enforced=True, used_mib=2900)
    bed.kill("train")
    assert bed.workload("train").ask("alloc 3000").ok
    bed.wait_for_use("train", enforced=True, used_mib=3000)


def test_a_limit_changes_while_its_container_runs(bed: Bed) -> None:
    bed.run_pod("train", bed.container("main"))
    workload = bed.workload("train")
    assert workload.ask("alloc 2500").ok
    told = bed.ask_agent("limit", "default/train/main", "--memory", "4000Mi", "--cores", "80")
    assert "3000 MiB -> 4000 MiB, 50 % -> 80 %" in told
    assert workload.ask("alloc 1501").result == 2
    assert workload.ask("alloc 1500").ok
    assert bed.workload("train").ask("info").devices[0].free_mib == 0


def test_containers_of_a_pod_have_a_share_each(bed: Bed) -> None:
    """They see each other's processes; and an init container before them had a whole GPU."""
    init = bed.container("init", command=[*SHELL, f"{INIT} | {TENANT} | grep -q {INIT_HAD}"])
    init["resources"] = {"limits": {"nvidia.com/gpu": "1"}}  # kubelet refuses others here
    both = [bed.container("main"), bed.container("loader")]
    bed.run_pod("train", *both, initContainers=[init], shareProcessNamespace=True)
    main, loader = bed.workload("train", 0), bed.workload("train", 1)
    assert main.ask("alloc 3000").ok
    assert loader.ask("alloc 3000").ok
    assert main.ask("alloc 1").result == loader.ask("alloc 1").result == 2


def test_pods_run_on_while_kubelet_starts_anew(bed: Bed) -> None:
    bed.run_pod("train", bed.container("main"))
    workload = bed.workload("train")
    assert workload.ask("alloc 2000").ok
    bed.anew(bed.node.kubelet.restart)
    assert workload.ask("alloc 1001").result == 2
    bed.run_pod("later", bed.container("main"))
    assert bed.workload("later").ask("alloc 3000").ok
    assert workload.ask("alloc 1000").ok
    bed.wait_for_use("train", enforced=True, used_mib=3000)


def test_the_agent_starts_anew_under_pods_that_run(bed: Bed) -> None:
    bed.run_pod("train", bed.container("main"))
    workload = bed.workload("train")
    assert workload.ask("alloc 2000").ok
    bed.agent.kill()
    assert workload.ask("alloc 1001").result == 2
    bed.anew(bed.agent.start)
    bed.wait_for_use("train", enforced=True, used_mib=2000)
    assert workload.ask("alloc 1000").ok


def test_the_machine_keeps_nothing_of_them(bed: Bed) -> None:
    bed.run_pod("train", bed.container("main"))
    uid = bed.api.get(f"{PODS}/train")["metadata"]["uid"]
    for folder in ("/var/log/pods", "/var/lib/kubelet/pods", "/run/containerd"):
        assert not list(Path(folder).rglob(f"*{uid}*")), folder


def test_nothing_is_left_of_pods_that_are_gone(bed: Bed) -> None:
    bed.run_pod("train", bed.container("main"))
    uid = bed.api.get(f"{PODS}/train")["metadata"]["uid"]
    assert f"{uid}_main" in bed.directories()
    bed.delete_all()
    eventually(lambda: not bed.directories(), within_s=120, what="the directories go")


@pytest.mark.skipif(not every_hierarchy_is_ours(), reason="cgroups cannot be made here")
def test_what_a_killed_run_left_goes_with_the_next_one() -> None:
    with subprocess.Popen(["sleep", "0"]) as gone:
        pass
    of_the_dead = [hierarchy / f"{OURS}{gone.pid}" for hierarchy in hierarchies()]
    for top in of_the_dead:
        (top / "kubepods" / "besteffort").mkdir(parents=True)
    of_the_dead.append(FILES / f"{OURS}{gone.pid}-x")
    (of_the_dead[-1] / "containerd").mkdir(parents=True)
    with scratch() as ours:
        clear_after_the_killed()
        assert ours.exists()
    assert not [left for left in of_the_dead if left.exists()]
