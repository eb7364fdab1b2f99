"""Doctor as the program it is, beside a running agent, without one, and before one is started."""

import json
from typing import Any

from agent.sim.node import SimNode
from tests.e2e.conftest import NodeMaker

# What a simulated node has; the rest of the host is this machine's.
OF_THE_NODE = (
    *("nvml", "driver-match", "cuda-range", "gpus", "gpus-lost", "gpu-health", "gpu-memory"),
    *("compute-mode", "mig"),
    *("agent", "local-socket", "metrics-address", "kubelet-socket", "plugin-directory"),
    *("pod-resources", "registered", "kubelet-books", "list-size", "credentials", "api-server"),
    *(
        "authorized",
        "rights-nodes",
        "rights-pods",
        "rights-events",
        "rights-eviction",
        "node",
        "register",
        "node-label",
    ),
    *("scheduler-protocol", "hook-loads", "hook-glibc", "hook-limits", "hook-installed"),
)
BEFORE = "kubelet-socket,rights-nodes,rights-pods,rights-events,hook-limits"


def look(node: SimNode, *words: str) -> tuple[int, dict[str, Any]]:
    done = node.run_command("doctor", "--json", *words)
    assert not done.stderr
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def test_beside_a_running_agent_all_of_it_is_in_order(make_node: NodeMaker) -> None:
    node = make_node()
    node.wait("ready", node.ready)
    code, found = look(node, "--only", ",".join(OF_THE_NODE))
    assert {name: found[name] for name in OF_THE_NODE if found[name]["verdict"] != "ok"} == {}
    assert code == 0


def test_before_the_agent_is_started_as_an_init_container_would(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    code, found = look(node, "--only", BEFORE, "--wait", "10s", "--warnings-ok")
    assert (code, {one["verdict"] for one in found.values()}) == (0, {"ok"})
    node.api.stop()
    code, found = look(node, "--only", BEFORE)
    assert code == 2
    assert found["api-server"]["verdict"] == "failed"
    assert found["rights-pods"]["verdict"] == "skipped"
    assert found["hook-limits"]["verdict"] == "ok"


def test_a_driver_that_hangs_does_not_hang_doctor(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    node.driver.hang()
    code, found = look(node, "--only", "gpus,kubelet-socket", "--timeout", "3s")
    assert code == 2
    slow = [one["name"] for one in found.values() if one["evidence"] == "did not answer within 3 s"]
    assert slow == ["driver-loaded"]  # which asks NVML where the kernel does not tell
    assert found["gpus"]["verdict"] == "skipped"
    assert found["kubelet-socket"]["verdict"] == "ok"
