"""A request with a deadline ends at its deadline, wherever the API server leaves it alone."""

import time
from pathlib import Path
from typing import Any

import pytest
from kube_stage import Counts, raw_server

from agent.adapters import kube_config, kube_transport
from agent.adapters.kube_answers import Request
from agent.adapters.kube_transport import KubeTransport
from agent.errors import ClusterDenied, ClusterError, ClusterUnavailable
from agent.sim.apiserver import ApiServer

REQUEST = Request(verb="get", resource="nodes", method="GET", path="/api/v1/nodes/n1", about="it")
SLOW = r"too slow|did not answer in time"
LONG = b"Content-Length: 100000\r\n\r\n"
A_WHILE = 500  # hundredths of a second, after which the server ends it; nobody waits for that


class FakeClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def transport(port: int, tmp_path: Path, **more: Any) -> KubeTransport:
    path = ApiServer(port=port).write_kubeconfig(tmp_path / "kubeconfig", "token")
    return KubeTransport(load=lambda: kube_config.load_configuration(path), **more)


@pytest.mark.parametrize(
    "status", ["200 OK", "403 Forbidden", "500 Oops", "503 Unavailable", "401 Unauthorized"]
)
def test_a_body_that_drips_is_read_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """An error's too, for which there is a time limit of its own."""
    monkeypatch.setattr(kube_transport, "REQUEST_TIMEOUT_S", 3600.0)
    head = f"HTTP/1.1 {status}\r\n".encode() + LONG
    with (
        raw_server(head, drip=b" ", stays=A_WHILE) as port,
        pytest.raises(ClusterUnavailable, match=SLOW),
    ):
        transport(port, tmp_path).send(REQUEST, deadline_s=time.monotonic() + 0.3)


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
def test_a_body_that_does_not_come_is_waited_for_as_long_as_is_left(
    tmp_path: Path, clock: FakeClock, status: str
) -> None:
    """Its head took most of the time."""
    head = f"HTTP/1.1 {status}\r\n".encode() + LONG
    with (
        raw_server(head, stays=A_WHILE, before=lambda: clock.advance(59.75)) as port,
        pytest.raises(ClusterUnavailable, match=SLOW),
    ):
        transport(port, tmp_path, clock=clock, pause=lambda _: clock.advance(60.0)).send(
            REQUEST, deadline_s=clock() + 60.0
        )


@pytest.mark.parametrize(
    ("took_s", "error", "says", "answers"),
    [
        pytest.param(4.75, ClusterUnavailable, r"read timeout=0\.", [401, 0], id="little is left"),
        pytest.param(6.0, ClusterDenied, "answered 401", [401], id="nothing is left"),
    ],
)
def test_who_was_refused_tries_again_for_as_long_as_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock,
    took_s: float, error: type[ClusterError], says: str, answers: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr(kube_transport, "RELOAD_EVERY_S", 0.0)
    loads: list[float] = []
    counts = Counts()

    def load() -> Any:
        loads.append(clock())
        if len(loads) == 2:
            clock.advance(took_s)
        return kube_config.load_configuration(tmp_path / "kubeconfig")

    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        server.write_kubeconfig(tmp_path / "kubeconfig")
        server.fail(401)
        server.hang(3600)
        one = KubeTransport(
            load=load, clock=clock, pause=lambda _: clock.advance(60.0), count=counts
        )
        with pytest.raises(error, match=says):
            one.send(REQUEST, deadline_s=clock() + 5.0)
        server.clear_faults()
    assert [code for _verb, _resource, code in counts.seen] == answers
