"""The API server is away for an hour: of the agent, whose clocks run sixty times as fast meanwhile.

A library that is preloaded into the agent alone makes its clocks and waits so; API server, kubelet, driver
and tenants keep their own.
"""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves
from tests.faults.clocks import Clocks
from tests.faults.invariants import violations
from tests.waiting import eventually

FASTER, HOUR_S = 60, 3600
LONGEST_PAUSE_S = 30  # between two tries of one loop (agent/services/retries.py)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@pytest.fixture
def node(make_node: NodeMaker, clocks: Clocks) -> SimNode:
    return make_node("--probe-interval", "30s", environ=dict(clocks.environ))


@contextmanager
def nobody_at(port: int) -> Iterator[list[float]]:
    """Takes connections in the API server's place, and drops them: when each came."""
    came: list[float] = []
    listener = socket.create_server(("127.0.0.1", port), reuse_port=False)

    def take() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            came.append(time.monotonic())
            connection.close()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield came
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def hours_told(node: SimNode) -> set[str]:
    """By the agent's own log."""
    return {match[1] for match in re.finditer(r"^(\d\d):\d\d:\d\d ", node.log_text(), re.MULTILINE)}


def test_the_api_server_is_away_for_an_hour(node: SimNode, clocks: Clocks) -> None:
    """Who runs keeps what it has, tries go on without a storm, and the next pod is served."""
    pod = node.run_pod("before", [Ask(memory_mib=700)])
    grant = pod.admitted.containers["main"]
    tenant = Container.start(
        "tenant", driver=node.driver, env=grant.env,
        mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
    )  # fmt: skip
    try:
        assert tenant.ask("alloc 600").ok
        node.api.stop()
        with nobody_at(node.api.port) as came:
            clocks.run(FASTER)
            eventually(lambda: clocks.ahead_s() > HOUR_S, within_s=300, every_s=1.0)
            tried = len(came)
            print(f"{tried} tries in an hour")  # noqa: T201 - shown where it fails
            assert node.agent is not None
            assert node.agent.poll() is None, "the agent is alive"
            assert not tenant.ask("alloc 101").ok, "limits hold"
            clocks.run(1)
        assert len(hours_told(node)) > 1, "its clock was ahead"
        # Two watches, each of which tries again after at most 30 s, and no more than both each second.
        assert HOUR_S / LONGEST_PAUSE_S / 2 < tried < HOUR_S, tried
        node.api.start()
        serves(node, "after")
        assert violations(node, [pod]) == []
        assert tenant.running
        assert not tenant.ask("alloc 101").ok
    finally:
        tenant.stop()
