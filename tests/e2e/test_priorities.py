"""Who waits, who borrows: the whole agent beside real processes under the hook."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.adapters.local_client import ask
from agent.sim.container import Container, ContainerError, SimMount
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.waiting import eventually

KERNEL_US, AT_ONCE = 2000, 25


def running(node: SimNode, name: str, core_percent: int, priority: str = "") -> Container:
    """A pod's container as Allocate answered, with the priority that its author asked for."""
    env = {"CUDA_TASK_PRIORITY": priority} if priority else {}
    ran = node.run_pod(name, [Ask(memory_mib=1000, core_percent=core_percent, env=env)])
    assert ran.admitted.ok, ran.admitted.message
    grant = ran.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    return Container.start(name, driver=node.driver, env={**grant.env, **env}, mounts=mounts)


@contextmanager
def computing(container: Container) -> Iterator[Callable[[], int]]:
    """Launch kernels without end; gives how many were done."""
    stop, done = threading.Event(), [0]

    def work() -> None:
        while not stop.is_set():
            try:
                container.ask(f"launch {AT_ONCE}", timeout_s=60)
            except ContainerError:
                return
            done[0] += AT_ONCE

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        thread.join(70)


def device(node: SimNode, pod: str) -> dict[str, Any]:
    """What the agent says of a pod's GPU."""
    document = ask(node.root / "run" / "read.sock", "GET", "/v1/use").body
    found = [one for one in json.loads(json.dumps(document))["containers"] if one["pod"] == pod]
    devices: list[dict[str, Any]] = found[0]["devices"] if found else [{}]
    return devices[0]


def of_process(node: SimNode, figure: str) -> float:
    """The only process's figure by the metrics; 0: it is not there."""
    lines = node.fetch("/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith(f"vgpu_process_{figure}{{")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


@pytest.mark.timeout(600)
def test_a_lower_priority_waits_and_goes_on_when_the_agent_is_killed(make_node: NodeMaker) -> None:
    node = make_node("--accounting-interval", "0.2s", gpus=1)
    first = running(node, "first", 0, priority="0")
    second = running(node, "second", 0)
    node.driver.kernel_us(KERNEL_US)
    try:
        with computing(first) as done_first, computing(second) as done_second:
            eventually(lambda: done_second() > 0, within_s=60, what="it computes at first")
            blocked = "blocked"
            eventually(lambda: device(node, "second").get(blocked), within_s=60, what=blocked)
            assert not device(node, "first")[blocked]
            at_block = done_first()
            eventually(lambda: done_first() > at_block, within_s=60)
            assert node.agent is not None
            node.agent.send_signal(signal.SIGKILL)
            node.agent.wait(10)
            held = done_second()
            eventually(lambda: done_second() > held + AT_ONCE, within_s=60, what="it goes on")
    finally:
        node.driver.kernel_us(0)
        first.stop()
        second.stop()


@pytest.mark.timeout(600)
def test_who_goes_first_is_known_to_a_new_agent_without_an_api_server(
    make_node: NodeMaker,
) -> None:
    node = make_node("--accounting-interval", "0.2s", gpus=1)
    first = running(node, "first", 0, priority="0")
    second = running(node, "second", 0)
    try:
        with computing(first), computing(second):
            eventually(lambda: device(node, "second").get("blocked"), within_s=120, what="it waits")
            node.stop_agent(signal.SIGKILL)
            node.api.stop()
            node.start_agent()
            eventually(lambda: node.fetch("/healthz")[0], within_s=120, what="it is up")
            eventually(lambda: device(node, "second").get("blocked"), within_s=120, what="again")
            node.stop_agent(signal.SIGKILL)  # it goes on, and so comes to its end
    finally:
        first.stop()
        second.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lends", [True, False])
def test_who_computes_alone_is_lent_the_rest(make_node: NodeMaker, lends: bool) -> None:
    flags = () if lends else ("--core-lending", "off", "--priorities", "off")
    node = make_node("--accounting-interval", "0.2s", "--metrics-per-process", *flags, gpus=1)
    tenant = running(node, "alone", 20)
    node.driver.kernel_us(KERNEL_US)
    try:
        with computing(tenant) as done:
            if lends:
                eventually(lambda: device(node, "alone").get("core_lent_permille"), within_s=60)
            else:
                eventually(lambda: device(node, "alone").get("totals", {}).get("throttled_ns"),
                           within_s=60)  # fmt: skip
                assert device(node, "alone")["core_lent_permille"] == 0
                for name in ("gpu", "throttled"):
                    eventually(lambda name=name: of_process(node, f"{name}_seconds_total"))
            eventually(lambda: done() > 0, within_s=60)
    finally:
        node.driver.kernel_us(0)
        tenant.stop()
