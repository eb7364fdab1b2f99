"""Mode `volcano`, end to end: the agent as a process, a stand-in Volcano scheduler and kubelet."""

import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod
from agent.sim.volcano_node import VolcanoNode
from agent.sim.volcano_scheduler import (
    ALLOCATED,
    BIND_PHASE,
    CORES,
    HANDSHAKE,
    LOCK,
    MEMORY,
    NUMBER,
    REGISTER,
    TIME,
    TO_ALLOCATE,
)
from tests.e2e.conftest import COMMAND, QUICK
from tests.e2e.test_bypass import Stage
from tests.e2e.test_doctor import OF_THE_NODE, look
from tests.e2e.whole import env_of, got_its_claims
from tests.waiting import eventually

NodeMaker = Callable[..., VolcanoNode]
MEMORY_MIB = 46068
FACTOR = 3  # of two such GPUs, see tests/unit/test_volcano_units.py


def up(node: VolcanoNode, gpus: int = 2) -> None:
    """Wait until kubelet has all three resources and the scheduler sees the GPUs."""

    def whole() -> bool:
        allocatable = node.kubelet.node_status().allocatable
        return (
            allocatable.get(NUMBER) == gpus * 10
            and allocatable.get(CORES) == gpus * 100
            and allocatable.get(MEMORY) == gpus * (MEMORY_MIB // node.factor)
        )

    eventually(node.ready, within_s=60, what="/readyz")
    eventually(whole, within_s=60, what="three resources at kubelet")
    eventually(lambda: len(node.volcano.look(node.name)) == gpus, what="GPUs at the scheduler")


@pytest.fixture
def make_node() -> Iterator[NodeMaker]:
    nodes: list[VolcanoNode] = []
    roots: list[Path] = []

    def make(*flags: str, gpus: int = 2, started: bool = True, **more: object) -> VolcanoNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        roots.append(root)
        node = VolcanoNode(root, COMMAND, flags=(*QUICK, *flags), **more)  # type: ignore[arg-type]
        nodes.append(node.start())
        for number in range(gpus):
            node.driver.add_gpu(
                number,
                SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=MEMORY_MIB),
            )
        if started:
            node.start_agent()
            up(node, gpus)
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def node(make_node: NodeMaker) -> VolcanoNode:
    return make_node()


def finished(node: VolcanoNode, pod: RanPod) -> bool:
    annotations = node.pod_annotations(pod.namespace, pod.name)
    return (
        LOCK not in node.annotations()
        and annotations[BIND_PHASE] == "success"
        and annotations[TIME] == "18446744073709551615"
        and "GPU" not in annotations[TO_ALLOCATE]
    )


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param([Ask(memory_mib=3000, core_percent=30)], id="one container"),
        pytest.param([Ask(vgpus=2, memory_mib=3000)], id="one container with two vGPUs"),
        pytest.param(
            [Ask(name="a", memory_mib=2001), Ask(name="b", memory_mib=3000)], id="two containers"
        ),
        pytest.param(
            [Ask(name="a", vgpus=2, memory_mib=999), Ask(name="b", memory_mib=3000)],
            id="two containers that ask for different numbers",
        ),
        pytest.param(
            [Ask(name="log", vgpus=0), Ask(name="a", memory_mib=2001)],
            id="a container without GPU comes first",
        ),
        pytest.param(
            [Ask(name="i", kind="init", vgpus=0), Ask(name="log", vgpus=0), Ask(name="a")],
            id="an init container and one without GPU come first",
        ),
    ],
)
def test_every_container_gets_exactly_its_own_share(node: VolcanoNode, asks: list[Ask]) -> None:
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
@pytest.mark.parametrize("release", ["1.9", "1.12", "1.15", "master"])
def test_every_release_of_the_scheduler_is_served(
    make_node: NodeMaker, release: str, behaviour: str
) -> None:
    node = make_node(release=release, behaviour=behaviour)
    asks = [Ask(name="log", vgpus=0), Ask(name="a", memory_mib=3000), Ask(name="b", vgpus=2)]
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


def test_the_handshake_of_older_schedulers_is_begun_and_answered(make_node: NodeMaker) -> None:
    node = make_node(release="1.15")
    assert len(node.volcano.look(node.name)) == 2
    assert node.annotations()[HANDSHAKE].startswith("Requesting")
    assert eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"), within_s=45)
    node.client.annotate("nodes", node.name, {HANDSHAKE: "Deleted_2026.01.01 00:00:00"})
    assert eventually(lambda: len(node.volcano.look(node.name)) == 2)


def test_without_the_handshake_only_newer_schedulers_see_the_node(make_node: NodeMaker) -> None:
    node = make_node("--handshake", "off")
    assert HANDSHAKE not in node.annotations()


def test_the_lock_is_freed(make_node: NodeMaker) -> None:
    node = make_node(release="1.12", lock_nodes=True)
    for name in ("first", "second"):
        asks = [Ask(name="a"), Ask(name="b")]
        pod = node.run_pod(name, asks)
        assert got_its_claims(pod, asks)
        assert eventually(lambda pod=pod: finished(node, pod))  # type: ignore[misc]


def test_the_lock_is_freed_when_the_pod_cannot_be_served(make_node: NodeMaker) -> None:
    node = make_node(lock_nodes=True)
    uid = node.create_pod("broken", [Ask()])
    node.volcano.schedule("team", "broken", node.name)
    node.client.annotate("pods", "broken", {TO_ALLOCATE: "GPU-a,NVIDIA,1"}, namespace="team")
    pod = node.offer("broken", uid, [Ask()])
    assert not pod.admitted.ok
    assert TO_ALLOCATE in pod.admitted.message
    assert "3 of the 4 fields" in pod.admitted.message
    assert eventually(lambda: LOCK not in node.annotations(), within_s=60)
    annotations = node.pod_annotations("team", "broken")
    assert (annotations[BIND_PHASE], annotations[TIME]) == ("failed", "18446744073709551615")
    asks = [Ask(memory_mib=3000)]
    assert got_its_claims(node.run_pod("good", asks), asks)


def test_a_pod_that_decides_itself_gets_no_more_than_its_limits(node: VolcanoNode) -> None:
    asks = [Ask(memory_mib=3000, core_percent=30)]
    uid = node.create_pod("greedy", asks)
    [[claim]] = node.place_pod("greedy", asks)
    units = claim.memory_mib // node.factor
    forged = f"{claim.uuid},NVIDIA,{units + 1},30:;"
    node.client.annotate("pods", "greedy", {TO_ALLOCATE: forged}, namespace="team")
    admitted = node.offer("greedy", uid, asks).admitted
    assert not admitted.ok
    assert f"container main {claim.memory_mib + node.factor} MiB, where" in admitted.message


def test_two_pods_of_one_size_are_served_in_the_schedulers_order(node: VolcanoNode) -> None:
    """Placed one after the other, and only then admitted, as kubelet hears of them."""
    asks = {"one": [Ask(memory_mib=3000)], "two": [Ask(memory_mib=6000)]}
    placed = {}
    for name, wanted in asks.items():
        uid = node.create_pod(name, wanted)
        placed[name] = (uid, node.place_pod(name, wanted))
    for name, (uid, claims) in placed.items():
        assert got_its_claims(node.offer(name, uid, asks[name], claims), asks[name])


def test_an_init_container_uses_what_the_app_container_gets(node: VolcanoNode) -> None:
    """The scheduler decides nothing for it, but kubelet asks."""
    asks = [Ask(name="i", kind="init", memory_mib=3000), Ask(memory_mib=3000)]
    pod = node.run_pod("pod", asks)
    init, main = env_of(pod, "i"), env_of(pod, "main")
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"):
        assert init[name] == main[name]
    assert main["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert eventually(lambda: finished(node, pod))


def test_amounts_are_only_counted(node: VolcanoNode) -> None:
    asks = [Ask(memory_mib=3000, core_percent=30)]
    pod = node.run_pod("pod", asks)
    held = pod.admitted.containers["main"].device_ids
    assert {name: len(ids) for name, ids in held.items()} == {NUMBER: 1, MEMORY: 1000, CORES: 30}
    [number] = held[NUMBER]
    assert number.rpartition("-")[0] == pod.claims[0][0].uuid
    assert {mount.container_path for mount in pod.admitted.containers["main"].mounts} >= {
        "/etc/ld.so.preload",
        "/usr/local/vgpu/libvgpu.so",
    }


def test_a_killed_agent_goes_on_where_it_was(node: VolcanoNode) -> None:
    asks = [Ask(name="a", memory_mib=3000), Ask(name="b", memory_mib=6000)]
    before = node.run_pod("before", asks)
    assert got_its_claims(before, asks)
    unit = node.annotations()[REGISTER]
    node.stop_agent(signal.SIGKILL)
    uid = node.create_pod("between", asks)
    node.start_agent()
    up(node)
    assert node.annotations()[REGISTER] == unit
    claims = node.place_pod("between", asks)
    pod = node.offer("between", uid, asks, claims)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


def test_all_three_resources_survive_a_restart_of_kubelet(node: VolcanoNode) -> None:
    node.kubelet.restart()
    up(node)
    asks = [Ask(memory_mib=3000)]
    assert got_its_claims(node.run_pod("pod", asks), asks)


def test_the_factor_is_shown_and_refused_when_it_cannot_be(make_node: NodeMaker) -> None:
    node = make_node()
    assert node.factor == FACTOR
    told = re.findall(
        r'^vgpu_memory_unit_bytes\{which="(\w+)"\} (\S+)$', node.fetch("/metrics")[1], re.MULTILINE
    )
    assert {which: float(size) for which, size in told} == {
        "used": FACTOR << 20,
        "smallest": FACTOR << 20,
    }
    assert "memory_unit_chosen" in node.log_text()
    node.stop_agent()
    node.start_agent("--gpu-memory-factor", "2")
    assert node.agent is not None
    assert node.agent.wait(30) == 2
    assert "set gpu-memory-factor to 3 or more" in node.log_text()
    node.start_agent("--gpu-memory-factor", "12")
    eventually(lambda: node.factor == 12, within_s=60)
    up(node)
    asks = [Ask(memory_mib=2400)]
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert env_of(pod)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2400m"


def test_units_named_as_volcanos_plugin_names_them(make_node: NodeMaker) -> None:
    node = make_node("--gpu-memory-ids", "uuid")
    assert node.factor == 5
    uuid = made_up_uuid(0)
    ids = node.kubelet.resources[MEMORY].healthy
    assert f"{uuid}-memory-0" in ids


def test_the_pods_of_the_cluster_are_never_listed(node: VolcanoNode) -> None:
    """Volcano's plugin lists them all at each Allocate."""
    node.run_pod("pod", [Ask()])
    asked = [
        request
        for verb in ("list", "watch")
        for request in node.api.requests(verb=verb, resource="pods")
        if request.user_agent.startswith("vgpu-agent")
    ]
    assert asked
    assert {request.query["fieldSelector"] for request in asked} == {f"spec.nodeName={node.name}"}


def test_a_gpu_that_fails_takes_its_units_with_it(node: VolcanoNode) -> None:
    node.driver.xid(0, 79)
    units = MEMORY_MIB // FACTOR

    def half() -> bool:
        allocatable = node.kubelet.node_status().allocatable
        return [allocatable[name] for name in (NUMBER, CORES, MEMORY)] == [10, 100, units]

    assert eventually(half, within_s=60)
    assert eventually(lambda: ",false,hami-core:" in node.annotations()[REGISTER])


def test_what_is_left_is_taken_back(make_node: NodeMaker) -> None:
    node = make_node(release="1.12")
    node.run_pod("pod", [Ask()])
    node.stop_agent()
    gone = node.run_command("uninstall")
    assert gone.returncode == 0, gone.stderr
    assert not [key for key in node.annotations() if key.startswith(("volcano.sh/", "vgpu-agent/"))]


def test_a_clean_exit_takes_it_back(make_node: NodeMaker) -> None:
    node = make_node("--clean-exit", "true")
    assert node.stop_agent() == 0
    assert REGISTER not in node.annotations()


def test_scheduler_books_stay(node: VolcanoNode) -> None:
    pod = node.run_pod("pod", [Ask(memory_mib=3000)])
    kept = node.pod_annotations("team", "pod")[ALLOCATED]
    assert kept.startswith(pod.claims[0][0].uuid)


def test_doctor_finds_all_of_it_in_order(make_node: NodeMaker) -> None:
    node = make_node(release="1.15")
    node.run_pod("pod", [Ask(memory_mib=3000)])
    code, found = look(node, "--only", ",".join(OF_THE_NODE))
    assert {name: found[name] for name in OF_THE_NODE if found[name]["verdict"] != "ok"} == {}
    assert found["register"]["evidence"].endswith("2 GPUs, in units of 3 MiB")
    assert code == 0


def test_nobody_whom_volcanos_plugin_has_granted_a_gpu_is_accused(make_node: NodeMaker) -> None:
    """Its pods run on when the agent takes over the node."""
    node = make_node("--process-interval", "0.2s", "--bypass-interval", "0.2s", gpus=1)
    with ExitStack() as stack:
        stage = Stage(node, stack)
        uids = {}
        for name in ("granted", "thief"):
            uid = node.create_pod(name, [Ask(memory_mib=3000)], node_name=node.name)
            node.volcano.annotate("team", name, node.name, f"{made_up_uuid(0)},NVIDIA,1000,10:")
            uids[name] = uid
        place = node.root / "host" / "vgpu" / "vgpu" / "containers" / f"{uids['granted']}_main"
        place.mkdir(parents=True)
        for uid in uids.values():
            stage.taker(uid)
        eventually(lambda: ("no grant", "thief") in stage.found(), within_s=60)
        assert stage.found() == [("no grant", "thief")]


@pytest.mark.parametrize(
    ("flags", "holds"),
    [
        pytest.param((), True, id="by default"),
        pytest.param(("--allow-disable-control",), False, id="with the flag"),
    ],
)
def test_whether_a_pod_can_take_its_limits_away(
    make_node: NodeMaker, flags: tuple[str, ...], *, holds: bool
) -> None:
    node = make_node(*flags, gpus=1)
    pod = node.run_pod("greedy", [Ask(env={"CUDA_DISABLE_CONTROL": "any word"})])
    mounts = {mount.container_path for mount in pod.admitted.containers["main"].mounts}
    assert ("/etc/vgpu.limits" in mounts) is ("/etc/ld.so.preload" in mounts) is holds
    if holds:
        told = eventually(
            lambda: [e for e in node.events() if e["reason"] == "DisableControlNotHonoured"]
        )
        assert [event["involvedObject"]["name"] for event in told] == ["greedy"]
