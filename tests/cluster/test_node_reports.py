"""What kubelet and the scheduler learn about the node, and when they unlearn it."""

import json

import pytest
from cluster.agent_process import VGPUS_PER_GPU, AgentProcess
from cluster.conftest import StartAgent
from cluster.gpu_pods import GpuPods, NodeView
from cluster.node_under_test import NodeUnderTest
from installed_here import without_installed_agent
from waiting import eventually

from agent.sim.driver import SimDriver, SimGpu

pytestmark = pytest.mark.timeout(600)

REGISTER = "hami.io/node-nvidia-register"
SCORE = "hami.io/node-nvidia-score"
HANDSHAKE = "hami.io/node-handshake"
FALLEN_OFF_THE_BUS = 79
Gpus = tuple[SimGpu, SimGpu]


def test_the_node_object_says_what_the_gpus_are(
    view: NodeView, agent: AgentProcess, gpus: Gpus
) -> None:
    record = {
        "count": VGPUS_PER_GPU,
        "devmem": 46068,
        "devcore": 100,
        "type": "NVIDIA A40",
        "mode": "hami-core",
        "health": True,
    }
    assert json.loads(view.annotations()[REGISTER]) == [
        {"id": gpus[0].uuid, **record},
        {"id": gpus[1].uuid, "index": 1, **record},
    ]


@pytest.mark.parametrize(
    ("register_format", "release"),
    [
        pytest.param("json", "2.10", id="json for 2.10"),
        pytest.param("json", "2.8", id="json for 2.8"),
        pytest.param("csv9", "2.7", id="nine fields for 2.7"),
        pytest.param("csv7", "2.4", id="seven fields for 2.4"),
    ],
)
def test_each_release_of_the_scheduler_reads_its_format(
    node: NodeUnderTest,
    view: NodeView,
    start_agent: StartAgent,
    gpus: Gpus,
    register_format: str,
    release: str,
) -> None:
    start_agent(f"--register-format={register_format}")
    view.wait_for_allocatable(2 * VGPUS_PER_GPU)
    view.wait_for(REGISTER, bool)
    scheduler = GpuPods(node, release=release).scheduler
    assert scheduler.handshake_once(node.name) == "refreshed", scheduler.complaints
    seen = scheduler.nodes[node.name]
    assert [(gpu.uuid, gpu.memory_mib, gpu.healthy) for gpu in seen] == [
        (gpu.uuid, gpu.memory_mib, True) for gpu in gpus
    ]


def test_an_older_schedulers_question_is_answered(
    node: NodeUnderTest, view: NodeView, start_agent: StartAgent
) -> None:
    start_agent("--register-format=csv9")
    view.wait_for(REGISTER, bool)
    scheduler = GpuPods(node, release="2.7").scheduler
    for _ in range(2):
        assert scheduler.handshake_once(node.name) == "refreshed"
        view.wait_for(HANDSHAKE, lambda value: "Requesting" not in (value or "Requesting"))


def test_a_gpu_that_falls_ill_and_recovers_is_taken_away_and_given_back(
    view: NodeView, agent: AgentProcess, driver: SimDriver, gpus: Gpus
) -> None:
    def healthy() -> list[bool]:
        return [gpu.get("health", False) for gpu in json.loads(view.annotations()[REGISTER])]

    driver.lost(0)
    driver.xid(0, FALLEN_OFF_THE_BUS)
    view.wait_for_allocatable(VGPUS_PER_GPU)
    view.wait_for(REGISTER, lambda _: healthy() == [False, True])
    assert view.capacity() == 2 * VGPUS_PER_GPU
    driver.lost(0, lost=False)
    view.wait_for_allocatable(2 * VGPUS_PER_GPU)
    view.wait_for(REGISTER, lambda _: healthy() == [True, True])
    eventually(lambda: {"GpuUnhealthy", "GpuRecovered"} <= view.event_reasons(gpus[0].uuid))


def test_a_clean_exit_leaves_nothing_of_ours_on_the_node(
    view: NodeView, start_agent: StartAgent
) -> None:
    agent = start_agent("--clean-exit")
    view.wait_for(REGISTER, bool)
    assert agent.stop() == 0
    assert not [key for key in view.annotations() if key.startswith("hami.io/node-")]
    view.wait_for_allocatable(0)


@without_installed_agent
def test_uninstall_takes_back_what_an_agent_has_left_that_was_killed(
    view: NodeView, start_agent: StartAgent
) -> None:
    view.annotate(**{"hami.io/of-somebody-else": "keep"})
    agent = start_agent("--register-format=csv9", "--enable-topology-score")
    view.wait_for(REGISTER, bool)
    view.annotate(**{HANDSHAKE: "Requesting_2026-01-01 00:00:00"})
    view.wait_for(HANDSHAKE, lambda value: (value or "").startswith("Reported"))
    assert agent.uninstall().returncode == 1, "while it runs"
    assert {REGISTER, HANDSHAKE, SCORE} <= view.annotations().keys()
    agent.kill()
    before = view.annotations().keys()
    done = agent.uninstall()
    assert done.returncode == 0, done.stderr
    assert view.annotations().keys() == before - {REGISTER, SCORE, HANDSHAKE}
    assert view.annotations()["hami.io/of-somebody-else"] == "keep"
    assert "nothing to remove" in agent.uninstall().stdout


def test_an_ordinary_exit_leaves_the_annotation_for_the_next_start(
    view: NodeView, start_agent: StartAgent
) -> None:
    agent = start_agent()
    view.wait_for(REGISTER, bool)
    before = view.annotations()[REGISTER]
    assert agent.stop() == 0
    assert view.annotations()[REGISTER] == before
