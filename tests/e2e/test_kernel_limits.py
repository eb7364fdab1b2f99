"""The kernel keeps memory limits where the driver offers that: the agent as a process."""

from pathlib import Path

from agent.sim.api_client import MERGE_PATCH, path
from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.test_slices import SLICE_MIB, LoneMaker, Runner, asks, lone, run, use  # noqa: F401
from tests.e2e.whole import up
from tests.waiting import eventually

CONTAINER = "a" * 64
QUICK = ("--process-interval", "0.3s", "--accounting-interval", "0.3s")


def tell_container_id(node: SimNode, pod: RanPod) -> None:
    """As kubelet does when the container runs."""
    status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{CONTAINER}"}]}
    where = path("pods", pod.name, namespace=pod.namespace, subresource="status")
    node.client.ask("PATCH", where, {"status": status}, content_type=MERGE_PATCH)


def cgroup(node: SimNode, pod: RanPod) -> Path:
    made = node.root / "cgroup/kubepods" / f"pod{pod.uid}" / CONTAINER
    made.mkdir(parents=True)
    return made


def info(node: SimNode) -> str:
    lines = node.fetch("/metrics")[1].splitlines()
    return next((line for line in lines if line.startswith("vgpu_container_info{")), "")


def test_a_limit_is_the_kernels_and_follows_what_the_operator_sets(make_node: NodeMaker) -> None:
    node = make_node(*QUICK, gpus=1, started=False)
    node.flags += ["--host-cgroup", str(node.root / "cgroup")]
    node.driver.versions(driver="615.71.09", cuda=13040)
    node.start_agent()
    up(node, 10)
    pod = node.run_pod("pod", [Ask(memory_mib=2048)])
    group = cgroup(node, pod)
    assert eventually(lambda: 'tier="' in info(node), within_s=60)
    assert 'tier="kernel"' not in info(node)
    tell_container_id(node, pod)
    assert eventually((group / "dmem.max").exists, within_s=60)
    assert eventually(
        lambda: (group / "dmem.max").read_text().endswith(f"vidmem {2048 << 20}\n"), within_s=60
    )
    assert eventually(lambda: 'tier="kernel"' in info(node), within_s=60)
    where = ("--runtime-dir", str(node.root / "run"))
    done = node.run_plain("limit", "team/pod", "--memory", "1Gi", *where)
    assert done.returncode == 0, done.stderr
    assert eventually(
        lambda: (group / "dmem.max").read_text().endswith(f"vidmem {1024 << 20}\n"), within_s=60
    )
    touched = {found.parent for found in (node.root / "cgroup").rglob("dmem.*")}
    assert touched == {group}


def test_an_older_driver_leaves_it_to_the_library(make_node: NodeMaker) -> None:
    node = make_node(*QUICK, gpus=1, started=False)
    node.flags += ["--host-cgroup", str(node.root / "cgroup")]
    node.start_agent()
    up(node, 10)
    pod = node.run_pod("pod", [Ask(memory_mib=2048)])
    group = cgroup(node, pod)
    tell_container_id(node, pod)
    assert eventually(lambda: 'tier="none"' in info(node), within_s=60)  # nothing runs in it
    assert not list(group.iterdir())
    assert "kernel_limit_not_set" not in node.log_text()


def test_without_an_api_server_its_processes_tell_which_cgroup(
    lone: LoneMaker,  # noqa: F811 - fixtures of another file
    run: Runner,  # noqa: F811
) -> None:
    """Mode slices: nobody tells the runtime's id of a container, and kubelet its uid alone."""
    node = lone(gpus=1, started=False)
    node.flags += ["--host-cgroup", str(node.root / "cgroup")]
    node.driver.versions(driver="615.71.09", cuda=13040)
    node.start_agent()
    eventually(lambda: node.allocatable() == 10, within_s=60)
    pod = node.run_static("web", asks(1))
    # Processes that are seen before it is known whose they are, are looked at again only now and
    # then.
    eventually(lambda: "grant_owned" in node.log_text(), within_s=60)
    running = run(node, pod)
    shown = (node.proc.root / str(running.container.pid) / "cgroup").read_text().strip()
    group = node.root / "cgroup" / shown.removeprefix("0::/")
    group.mkdir(parents=True)
    other = group.with_name("b" * 64)
    other.mkdir()
    assert eventually((group / "dmem.max").exists, within_s=60)
    assert eventually(
        lambda: (group / "dmem.max").read_text().endswith(f"vidmem {SLICE_MIB << 20}\n"),
        within_s=60,
    )
    assert not list(other.iterdir())
    assert eventually(lambda: [one["tier"] for one in use(node)] == ["kernel"], within_s=60)
