"""The agent as a process with the machine's driver: its GPUs are registered and handed out."""

import json

import pytest
from gpu.machine import CudaProgram, Machine

from agent.sim.container import SimMount, host_environment
from agent.sim.node import Ask, RanPod, SimNode
from tests.waiting import eventually

REGISTER = "hami.io/node-nvidia-register"
SPLIT = 10  # the default


def up(node: SimNode, gpus: int) -> None:
    eventually(lambda: node.allocatable() == SPLIT * gpus, within_s=60, what="vGPUs at kubelet")
    eventually(node.ready, within_s=60, what="/readyz")


def test_the_machines_gpus_are_registered(node: SimNode, machine: Machine) -> None:
    shared = [facts for facts in machine.facts if facts.memory_mib is not None]
    up(node, len(shared))
    registered = json.loads(node.annotations()[REGISTER])
    assert [(gpu["id"], gpu["devmem"], gpu["health"]) for gpu in registered] == [
        (facts.uuid, facts.memory_mib, True) for facts in shared
    ]
    assert node.stop_agent() == 0


def test_a_pod_gets_its_share_of_one_and_no_more(node: SimNode, machine: Machine) -> None:
    if machine.unusable:
        pytest.skip(f"CUDA programs of these tests may not use {machine.unusable}")
    up(node, len(machine.facts))
    pod = node.run_pod("pod", [Ask(memory_mib=2048, core_percent=10)])
    assert pod.admitted.ok, pod.admitted.message
    uuid = pod.claims[0][0].uuid
    assert pod.admitted.containers["main"].env["NVIDIA_VISIBLE_DEVICES"] == uuid
    look_from_inside(machine, pod, uuid)


def look_from_inside(machine: Machine, pod: RanPod, uuid: str) -> None:
    """Run a CUDA program with the env and mounts of the grant, as the container runtime would."""
    grant = pod.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    program = CudaProgram(machine, uuid, hook=False, **host_environment(grant.env, mounts))
    try:
        assert program.hear() == 0
        assert program.ask("info_mib()")[1] == 2048
        assert program.ask("alloc(512)")[0] == 0
        assert program.ask("alloc(1600)")[0] != 0
    finally:
        program.kill()
