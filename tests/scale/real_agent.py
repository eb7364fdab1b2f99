"""One real agent process and one simulated node through the same mishaps: do they ask the same?

What is compared is each request's verb, object, query, content type, body and answer, in order per
resource. Left out: versions and durations in the query (each has its own), and when it was asked.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.sim.api_faults import ApiRequest
from agent.sim.driver import SimGpu
from agent.sim.node import SimNode
from tests.scale.fleet import AgentHalf
from tests.scale.front import Front
from tests.scale.virtual import World

NAME = "sim-node"  # SimNode's
AGENTS_OWN = "vgpu-agent/"  # how its User-Agent begins
PODS = 3
GPUS = tuple(
    SimGpu(uuid=f"GPU-00000000-0000-0000-0000-00000000000{n}", numa_node=0) for n in range(2)
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, without what differs from run to run."""

    verb: str
    resource: str
    name: str  # with its namespace
    query: tuple[tuple[str, str], ...]
    content_type: str
    body: str
    code: int


def _plain(request: ApiRequest) -> Asked:
    query = dict(request.query)
    if query.get("resourceVersion") not in (None, "0"):
        query["resourceVersion"] = "some"
    if "timeoutSeconds" in query:
        query["timeoutSeconds"] = "some"
    return Asked(
        request.verb,
        request.resource,
        f"{request.namespace}/{request.name}",
        tuple(sorted(query.items())),
        request.content_type,
        str(request.body or ""),
        request.code,
    )


def _by_resource(requests: list[ApiRequest]) -> dict[str, list[Asked]]:
    """Two watches run side by side: only the order of each is given."""
    own = [_plain(it) for it in requests if it.user_agent.startswith(AGENTS_OWN)]
    return {
        "pods": [it for it in own if it.resource == "pods"],
        "nodes": [it for it in own if it.resource == "nodes" and it.verb != "patch"],
        "writes": [it for it in own if it.verb not in ("get", "list", "watch")],
        "others": [it for it in own if it.resource not in ("pods", "nodes")],
    }


def _pod(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "team"},
        "spec": {"nodeName": NAME, "containers": [{"name": "main", "image": "none"}]},
    }


STEPS = ("start", "watches end", "cut", "history lost", "refused", "history lost, refused")


Told = dict[str, dict[str, list[Asked]]]


def real(root: Path, command: list[str], steps: Sequence[str] = STEPS) -> Told:
    """By step: what the agent asks as a process of its own."""
    node = SimNode(root, command, name=NAME)
    for gpu in GPUS:
        node.driver.add_gpu(gpu=gpu)
    told: Told = {}
    with node:
        api = node.api
        for number in range(PODS):
            api.objects.create("pods", _pod(number))

        def whole() -> bool:
            return api.open_watches("pods") == api.open_watches("nodes") == 1

        def step(name: str, cause: Callable[[], None], watches: int) -> None:
            if name not in steps:
                return
            api.log.clear()
            cause()
            node.wait(
                f"{name}: {watches} watches",
                lambda: len(api.requests(verb="watch")) >= watches and whole() and node.ready(),
                within_s=60.0,
            )
            told[name] = _by_resource(api.requests())

        def refuse() -> None:
            api.fail(429, count=2, verb="watch", resource="pods", retry_after_s=1)
            api.end_watches()

        def lose() -> None:
            api.restart(lose_history=True)

        def lose_and_refuse() -> None:
            api.fail(429, count=2, verb="list", resource="pods", retry_after_s=1)
            api.restart(lose_history=True)

        step("start", node.start_agent, 2)
        step("watches end", api.end_watches, 2)
        step("cut", api.restart, 2)
        step("history lost", lose, 3)
        step("refused", refuse, 4)
        step("history lost, refused", lose_and_refuse, 3)
    return told


def simulated(root: Path, steps: Sequence[str] = STEPS) -> Told:
    """By step: what one node of the fleet asks, in virtual time."""
    world = World()
    front = Front(world)
    front.keeps = True
    store, api = front.store, front.api
    store.create("nodes", {"metadata": {"name": NAME}})
    for number in range(PODS):
        store.create("pods", _pod(number))
    gpus = GpuInventory.of(
        Gpu(uuid=gpu.uuid, index=n, name=gpu.name, memory_mib=gpu.memory_mib, numa_node=0)
        for n, gpu in enumerate(GPUS)
    )
    agent = AgentHalf(
        world,
        front,
        api.write_kubeconfig(root / "kubeconfig"),
        NAME,
        gpus=gpus,
        sharing=Sharing(),
    )
    told: Told = {}

    def step(name: str, cause: Callable[[], None]) -> None:
        if name not in steps:
            return
        api.log.clear()
        cause()
        world.run_until(world.now_s + 60.0)
        agent.check()
        told[name] = _by_resource(api.requests())

    def cut() -> None:
        front.go_down()
        front.listen()

    def lose_and_refuse() -> None:
        api.fail(429, count=2, verb="list", resource="pods", retry_after_s=1)
        front.expire_watches()

    def refuse() -> None:
        api.fail(429, count=2, verb="watch", resource="pods", retry_after_s=1)
        front.end_watches()

    step("start", agent.start)
    step("watches end", front.end_watches)
    step("cut", cut)
    step("history lost", front.expire_watches)
    step("refused", refuse)
    step("history lost, refused", lose_and_refuse)
    agent.stop()
    world.run_until(world.now_s)
    front.close()
    return told


def differences(one: Told, other: Told) -> list[str]:
    """A sentence for each step in which they did not ask the same."""
    return [
        f"{step}, {part}: {one[step][part]} against {other[step][part]}"
        for step in one
        for part in one[step]
        if one[step][part] != other[step][part]
    ]


def at_rest(command: list[str], lasts_s: float) -> dict[str, int]:
    """What a real agent asks in so many seconds, its start included: requests by verb."""
    with tempfile.TemporaryDirectory(prefix="vs-") as root:
        node = SimNode(Path(root), command, name=NAME)
        for gpu in GPUS:
            node.driver.add_gpu(gpu=gpu)
        with node:
            node.start_agent()
            ends_s = time.monotonic() + lasts_s
            while time.monotonic() < ends_s:
                time.sleep(1.0)
            asked: dict[str, int] = {}
            for request in node.api.requests():
                if request.user_agent.startswith(AGENTS_OWN):
                    name = f"{request.verb} {request.resource}"
                    asked[name] = asked.get(name, 0) + 1
    return asked
