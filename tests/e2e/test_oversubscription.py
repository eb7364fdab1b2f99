"""More memory promised than a GPU has: refused unless the node's setting says that it is wanted."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import PlacedClaim
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import env_of, up
from tests.waiting import eventually

GPU, CARD_MIB = made_up_uuid(0), 46068


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is to be ended after the test."""
    with ExitStack() as things:
        yield things


def decided(node: SimNode, name: str, memory_mib: int) -> RanPod:
    """A pod of a scheduler that does not know what is in use."""
    asks = [Ask(memory_mib=memory_mib)]
    uid = node.create_pod(name, asks)
    claims = [[PlacedClaim(GPU, memory_mib, asks[0].core_percent)]]
    node.scheduler.schedule("team", name, node.name, claims)
    return node.offer(name, uid, asks, claims)


def started(node: SimNode, pod: RanPod, stack: ExitStack) -> Container:
    grant = pod.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    container = Container.start(pod.name, driver=node.driver, env=grant.env, mounts=mounts)
    stack.callback(container.stop)
    return container


def test_what_exceeds_the_card_is_refused_also_after_a_restart(make_node: NodeMaker) -> None:
    node = make_node(gpus=1)
    first = decided(node, "first", 30000)
    assert "CUDA_OVERSUBSCRIBE" not in env_of(first)
    for number in range(2):
        refused = decided(node, f"too-much-{number}", CARD_MIB - 30000 + 1)
        assert not refused.admitted.ok
        assert "30000 already" in refused.admitted.message
        assert "--device-memory-scaling" in refused.admitted.message
        node.delete_pod(refused)
        if number == 0:
            node.stop_agent()
            node.start_agent()
            up(node, 10)
    assert decided(node, "fits", CARD_MIB - 30000).admitted.ok


def test_a_limit_that_the_operator_raised_counts(make_node: NodeMaker) -> None:
    node = make_node(gpus=1)
    decided(node, "first", 10000)
    run = ("--runtime-dir", str(node.root / "run"))
    done = node.run_plain("limit", "team/first", "--memory", "40000Mi", *run)
    assert done.returncode == 0, done.stderr
    refused = decided(node, "second", 10000)
    assert "40000 already" in refused.admitted.message


def test_the_opt_in_sets_what_the_library_needs(make_node: NodeMaker, stack: ExitStack) -> None:
    """Two containers have the whole card each, and both can use it at once."""
    node = make_node("--device-memory-scaling", "2", gpus=1)
    eventually(lambda: f'"devmem":{2 * CARD_MIB}' in str(node.annotations()), within_s=60)
    pods = [node.run_pod(name, [Ask(memory_mib=CARD_MIB)]) for name in ("one", "two")]
    for pod in pods:
        assert env_of(pod)["CUDA_OVERSUBSCRIBE"] == "true"
        container = started(node, pod, stack)
        assert container.ask("alloc 40000").ok, "beyond the card it is the host's memory"
        assert not container.ask(f"alloc {CARD_MIB - 40000 + 1}").ok, "its limit still holds"
    third = decided(node, "third", 1)
    assert f"{2 * CARD_MIB} already" in third.admitted.message, "twice the card, and no more"
    running = node.flags.index("--device-memory-scaling")
    del node.flags[running : running + 2]
    node.stop_agent()
    node.start_agent()
    up(node, 10)
    refused = decided(node, "after", 1)
    assert f"{2 * CARD_MIB} already" in refused.admitted.message


def test_an_init_container_leaves_its_memory_to_those_after_it(make_node: NodeMaker) -> None:
    """A scheduler after HAMi 2.10 counts of a pod what its containers have at one time."""
    node = make_node(gpus=1, release="master")
    asks = [Ask(name="load", kind="init", memory_mib=30000), Ask(memory_mib=30000)]
    uid = node.create_pod("steps", asks)
    claims = node.place_pod("steps", asks)
    steps = node.offer("steps", uid, asks, claims, init_runs=True)
    assert steps.admitted.ok, steps.admitted.message
    beside = node.run_pod("beside", [Ask(memory_mib=CARD_MIB - 30000)])
    assert beside.admitted.ok, beside.admitted.message
    assert f"{CARD_MIB} already" in decided(node, "too-much", 1).admitted.message
