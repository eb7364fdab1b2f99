"""A pod whose author takes its limits away by CUDA_DISABLE_CONTROL: not unless the node allows it."""

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import up
from tests.waiting import eventually

WANTS_NONE = Ask(memory_mib=1000, env={"CUDA_DISABLE_CONTROL": "true"})
HOLD = {"/etc/ld.so.preload", "/etc/vgpu.limits"}  # what a container's limits come from
EVENT = "DisableControlNotHonoured"


def paths(node: SimNode, name: str, *asks: Ask) -> set[str]:
    """What is mounted into the first container, once kubelet has its answer."""
    admitted = node.run_pod(name, list(asks)).admitted
    assert admitted.ok, admitted.message
    return {mount.container_path for mount in admitted.containers["main"].mounts}


def told(node: SimNode) -> list[tuple[str, str, str]]:
    """Kind, name and message of each such Event."""
    found = [event for event in node.events() if event["reason"] == EVENT]
    return [
        (one["involvedObject"]["kind"], one["involvedObject"]["name"], one["message"])
        for one in found
    ]


def enforced(node: SimNode, pod: str) -> str:
    """Reason and value of vgpu_container_enforced."""
    for line in node.fetch("/metrics")[1].splitlines():
        if line.startswith("vgpu_container_enforced{") and f'pod="{pod}"' in line:
            return line.rpartition(",")[2]
    return ""


def test_a_pod_that_takes_its_limits_away_keeps_them_and_is_told(make_node: NodeMaker) -> None:
    node = make_node(gpus=1)
    assert paths(node, "greedy", WANTS_NONE) >= HOLD
    assert paths(node, "plain", Ask()) >= HOLD
    assert paths(node, "modest", Ask(env={"CUDA_DISABLE_CONTROL": "false"})) >= HOLD
    ((kind, name, message),) = eventually(lambda: told(node))
    assert (kind, name) == ("Pod", "greedy")
    assert "container main sets CUDA_DISABLE_CONTROL" in message
    assert "--allow-disable-control" in message, "what the administrator would change"
    line = "disable_control_not_honoured in=grant_writer container=team/greedy/main"
    assert line in node.log_text()
    assert node.log_text().count("disable_control_not_honoured") == 1
    eventually(lambda: enforced(node, "greedy"))
    assert 'reason="off"' not in enforced(node, "greedy")


def test_the_flag_is_for_pods_that_are_granted_from_then_on(make_node: NodeMaker) -> None:
    node = make_node(gpus=1)
    before = node.run_pod("before", [WANTS_NONE])
    assert {mount.container_path for mount in before.admitted.containers["main"].mounts} >= HOLD
    eventually(lambda: told(node))
    assert node.stop_agent() == 0
    node.start_agent("--allow-disable-control", "--process-interval", "0.2s")
    up(node, 10)
    assert paths(node, "after", WANTS_NONE).isdisjoint(HOLD)
    eventually(lambda: enforced(node, "after") == 'reason="off"} 0.0')
    assert enforced(node, "before")
    assert 'reason="off"' not in enforced(node, "before")
    assert [name for _, name, _ in told(node)] == ["before"]


@pytest.mark.parametrize(
    ("flags", "holds"),
    [
        pytest.param((), True, id="by default"),
        pytest.param(("--allow-disable-control",), False, id="with the flag"),
    ],
)
def test_whether_a_program_in_it_gets_more_than_its_share(
    make_node: NodeMaker, flags: tuple[str, ...], *, holds: bool
) -> None:
    """With what the container is given, and the variable beside it."""
    node = make_node(*flags, "--process-interval", "0.2s", gpus=1)
    grant = node.run_pod("greedy", [WANTS_NONE]).admitted.containers["main"]
    assert HOLD.isdisjoint(mount.container_path for mount in grant.mounts) is not holds
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    env = {**grant.env, **WANTS_NONE.env}
    tenant = Container.start("pod", driver=node.driver, env=env, mounts=mounts)
    try:
        assert tenant.ask("alloc 2000").ok is not holds
        assert tenant.ask("alloc 500").ok
    finally:
        tenant.stop()
    if not holds:
        eventually(lambda: enforced(node, "greedy") == 'reason="off"} 0.0')
        assert told(node) == []
