"""The main job, end to end: the agent as a process, real sockets, real HTTP, stand-in peers."""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import HANDSHAKE, LOCK, REGISTER
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.whole import finished, got_its_claims, serves, up
from tests.waiting import eventually

WAIT_S = 30.0  # for the init system to hear something
SHAPES = [
    pytest.param([Ask()], id="one container"),
    pytest.param([Ask(vgpus=2, memory_mib=3000)], id="one container with two vGPUs"),
    pytest.param(
        [Ask(name="a", memory_mib=2000), Ask(name="b", memory_mib=3000)], id="two containers"
    ),
    pytest.param(
        [Ask(name="log", vgpus=0), Ask(name="a", memory_mib=2000)], id="first container without GPU"
    ),
    pytest.param(
        [Ask(name="a", memory_mib=2000), Ask(name="log", vgpus=0)], id="last container without GPU"
    ),
]
WITH_INIT = [
    pytest.param(
        [Ask(name="i", kind="init", memory_mib=500), Ask(memory_mib=900)],
        id="init container with GPU",
    ),
    pytest.param(
        [Ask(name="i", kind="init", vgpus=0), Ask(memory_mib=900)], id="init container without GPU"
    ),
    pytest.param(
        [
            Ask(name="s", kind="sidecar", memory_mib=500),
            Ask(memory_mib=900),
            Ask(name="b", memory_mib=70),
        ],
        id="sidecar and two containers",
    ),
]


@pytest.mark.parametrize("asks", SHAPES + WITH_INIT)
def test_every_container_gets_exactly_its_own_share(node: SimNode, asks: list[Ask]) -> None:
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
@pytest.mark.parametrize(
    ("release", "form"),
    [
        pytest.param("2.4", "csv7", id="HAMi 2.4"),
        pytest.param("2.5", "csv9", id="HAMi 2.5"),
        pytest.param("2.7", "csv9", id="HAMi 2.7"),
        pytest.param("2.8", "json", id="HAMi 2.8"),
        pytest.param("2.9", "json", id="HAMi 2.9"),
        pytest.param("2.10", "json", id="HAMi 2.10"),
        pytest.param("master", "json", id="HAMi master"),
    ],
)
def test_every_release_of_the_scheduler_is_served(
    make_node: NodeMaker, release: str, form: str, behaviour: str
) -> None:
    node = make_node("--register-format", form, release=release, behaviour=behaviour)
    # kubelet's word on what is allocatable may reach the API server after the agent's
    assert eventually(lambda: node.scheduler.handshake_once(node.name) == "refreshed")
    assert [gpu.uuid for gpu in node.scheduler.nodes[node.name]] == [
        made_up_uuid(0),
        made_up_uuid(1),
    ]
    asks = [
        Ask(name="log", vgpus=0),
        Ask(name="a", memory_mib=2000),
        Ask(name="b", memory_mib=3000),
    ]
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))


def test_kubelets_books_agree_with_the_scheduler(node: SimNode) -> None:
    """GetPreferredAllocation steers kubelet to device ids of the GPU the scheduler chose."""
    for number in range(4):
        pod = node.run_pod(f"pod-{number}", [Ask(memory_mib=20000, core_percent=40)])
        ids = pod.admitted.containers["main"].device_ids["nvidia.com/gpu"]
        assert [device.rpartition("-")[0] for device in ids] == [pod.claims[0][0].uuid]


def test_the_handshake_of_old_schedulers_is_answered(make_node: NodeMaker) -> None:
    node = make_node("--register-format", "csv9", release="2.7")
    assert node.scheduler.handshake_once(node.name) == "refreshed"
    assert eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"))
    node.client.annotate("nodes", node.name, {HANDSHAKE: "Deleted_2026-01-01 00:00:00"})
    assert eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"))


@dataclass(frozen=True)
class InitSystem:
    """What systemd would hear from the agent."""

    listener: socket.socket
    environ: dict[str, str]

    def hears(self, message: str) -> list[str]:
        """Everything up to and with the next such message."""
        heard = [self.listener.recv(4096).decode()]
        while heard[-1] != message:
            heard.append(self.listener.recv(4096).decode())
        return heard

    def skip(self) -> None:
        """Forget what was said so far."""
        self.listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.listener.recv(4096):
                pass
        self.listener.settimeout(WAIT_S)


@pytest.fixture
def init_system() -> Iterator[InitSystem]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        address = f"\0vgpu-agent-test-{os.getpid()}"
        listener.bind(address)
        listener.settimeout(WAIT_S)
        yield InitSystem(listener, {"NOTIFY_SOCKET": "@" + address[1:]})


def counted_requests(node: SimNode) -> list[str]:
    """The agent's own count of its requests."""
    lines = node.fetch("/metrics")[1].splitlines()
    return [line for line in lines if line.startswith("vgpu_api_requests_total{")]


def test_idle_costs_no_request(make_node: NodeMaker, init_system: InitSystem) -> None:
    """The main thread ticks on, GPUs are probed, sockets are looked at; nothing is asked."""
    node = make_node(environ=init_system.environ)
    pod = node.run_pod("pod", [Ask()])
    assert eventually(lambda: finished(node, pod))
    init_system.skip()
    init_system.hears("WATCHDOG=1")  # what serving the pod left to do is done by then
    before, counted = node.api.requests(), counted_requests(node)
    for _ in range(3):
        init_system.hears("WATCHDOG=1")
    made = node.api.requests()[len(before) :]
    assert [(request.verb, request.resource) for request in made] == []
    assert counted_requests(node) == counted != []


def test_a_kubelet_restart_is_no_business_of_the_api_server(node: SimNode) -> None:
    before = len(node.api.requests())
    node.kubelet.restart()
    up(node, 20)
    made = [(r.verb, r.resource) for r in node.api.requests()[before:]]
    kubelets_own = ("patch", "nodes/status")
    assert [request for request in made if request != kubelets_own] == []


def test_a_refusal_is_a_sentence_for_the_pods_owner(node: SimNode) -> None:
    asks = [Ask()]
    uid = node.create_pod("stray", asks)
    pod = node.offer("stray", uid, asks)
    assert not pod.admitted.ok
    assert "Allocate failed due to rpc error: code = FailedPrecondition" in pod.admitted.message
    assert "hami" in pod.admitted.message.lower()
    assert LOCK not in node.annotations()


def test_the_node_is_published_and_taken_back(make_node: NodeMaker) -> None:
    node = make_node("--clean-exit")
    published = json.loads(node.annotations()[REGISTER])
    assert [(gpu["id"], gpu["count"], gpu["devmem"], gpu["health"]) for gpu in published] == [
        (made_up_uuid(0), 10, 46068, True),
        (made_up_uuid(1), 10, 46068, True),
    ]
    assert node.stop_agent() == 0
    assert REGISTER not in node.annotations()
    assert HANDSHAKE not in node.annotations()


def test_after_a_clean_exit_the_scheduler_offers_no_gpu_here(make_node: NodeMaker) -> None:
    """HAMi's overlooks a Node without the annotation, and would go on with what it read last."""
    node = make_node("--clean-exit")
    assert node.scheduler.handshake_once(node.name) == "refreshed"
    assert node.stop_agent() == 0
    for _ in range(3):  # it forgets the node, takes it in again, and then it stays as it is
        node.scheduler.handshake_once(node.name)
        assert [gpu for gpu in node.scheduler.nodes.get(node.name, ()) if gpu.healthy] == []
    assert node.scheduler.nodes[node.name], "the ill ones have been read"
    node.start_agent()
    serves(node)


def test_without_clean_exit_the_annotations_stay(node: SimNode) -> None:
    assert node.stop_agent() == 0
    assert REGISTER in node.annotations()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_stops_cleanly(node: SimNode, number: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored since the tests were started (nohup), and so by the agent")
    assert node.stop_agent(number) == 0
    assert not list(node.kubelet.directory.glob("*vgpu*.sock")), "our socket is left behind"


def test_systemd_is_told(make_node: NodeMaker, init_system: InitSystem) -> None:
    node = make_node(environ=init_system.environ)
    heard = init_system.hears("WATCHDOG=1")
    node.stop_agent()
    init_system.hears("STOPPING=1")
    assert heard[0] == "READY=1"


def test_a_gpu_that_falls_ill_and_recovers(node: SimNode) -> None:
    node.driver.xid(0, 13)  # an application's: nothing happens
    node.driver.xid(1, 79)
    up_but = eventually(lambda: node.allocatable() == 10, what="one GPU less at kubelet")
    assert up_but
    assert eventually(
        lambda: (
            ["health" in gpu for gpu in json.loads(node.annotations()[REGISTER])] == [True, False]
        )
    ), "the scheduler is told"
    up(node, 20)
    assert eventually(lambda: all("health" in g for g in json.loads(node.annotations()[REGISTER])))
    reasons = eventually(
        lambda: {"GpuUnhealthy", "GpuRecovered"} <= {event["reason"] for event in node.events()}
    )
    assert reasons
    assert 'vgpu_xid_errors_total{gpu="' + made_up_uuid(0) in node.fetch("/metrics")[1]


def test_a_gpu_appears_while_running(node: SimNode) -> None:
    node.driver.add_gpu(2)
    up(node, 30)
    assert eventually(lambda: len(json.loads(node.annotations()[REGISTER])) == 3)


def test_the_metrics_of_a_busy_node(node: SimNode) -> None:
    node.run_pod("pod", [Ask()])
    text = node.fetch("/metrics")[1]
    for line in (
        'vgpu_allocations_total{outcome="granted"} 1.0',
        'vgpu_kubelet_registered{resource="nvidia.com/gpu"} 1.0',
        "vgpu_allocate_seconds_count 1.0",
        'vgpu_api_requests_total{code="200",resource="pods",verb="patch"}',
        f'vgpu_gpu_healthy{{gpu="{made_up_uuid(0)}",index="0"}} 1.0',
    ):
        assert line in text


def test_under_nohup_it_does_not_hear_the_hang_up(make_node: NodeMaker) -> None:
    node = make_node(command=["nohup", *COMMAND])
    assert node.agent is not None
    node.agent.send_signal(signal.SIGHUP)
    asks = [Ask(memory_mib=700)]
    assert got_its_claims(node.run_pod("afterwards", asks), asks)
    assert node.stop_agent() == 0


def test_a_stop_lets_an_allocate_under_way_finish(make_node: NodeMaker) -> None:
    """Its pod gets its grant, and the node's lock is released: nobody else would do that."""
    node = make_node()
    ask = [Ask(memory_mib=300)]
    uid = node.create_pod("late", ask)
    claims = node.place_pod("late", ask)
    slow = node.api.hang(1.0, count=1, verb="patch", resource="pods")
    admitted: list[bool] = []
    offering = threading.Thread(
        target=lambda: admitted.append(node.offer("late", uid, ask, claims).admitted.ok)
    )
    offering.start()
    eventually(lambda: slow.used)

    assert node.stop_agent() == 0

    offering.join(20)
    assert admitted == [True]
    assert not [key for key in node.annotations() if "mutex" in key]
    assert node.pod_annotations("team", "late")["hami.io/bind-phase"] == "success"


def test_a_lock_for_an_init_container_alone_is_removed(make_node: NodeMaker) -> None:
    """Schedulers after HAMi 2.10 lock the node for such pods, too."""
    node = make_node(release="master")
    asks = [Ask(name="i", kind="init", memory_mib=500), Ask(vgpus=0)]
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))
