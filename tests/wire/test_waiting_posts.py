"""Changes that are asked for and whose answers take their time, over real sockets."""

import contextlib
import http.client
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from limits_node import Node
from waiting import eventually

from agent.adapters import endpoints
from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.listeners import TcpListener
from agent.adapters.routes import Route, probes
from agent.services import limit_changes
from agent.services.limit_changes import MAX_WAITING, LimitChanges
from agent.supervisor import RestartPolicy, Supervisor

ASKED = b'{"target": "p", "memory": "500Mi"}'
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close ends the connection by a reset


def request(body: bytes = ASKED) -> bytes:
    head = f"POST /v1/limits HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass
class World:
    """A node whose loop is the test, with an endpoint for kubelet and one for administrators."""

    node: Node
    probed: TcpListener = field(default_factory=lambda: TcpListener("127.0.0.1:0"))
    control: TcpListener = field(default_factory=lambda: TcpListener("127.0.0.1:0"))
    now_s: float = 0.0
    open: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record = self.node.grant("p")
        self.changes: LimitChanges = self.node.agent().changes
        doors = [
            Door(self.probed, probes(list, list)),
            Door(self.control, {"/v1/limits": Route(post=self.changes.post)}),
        ]
        self.service = Endpoints(doors, clock=lambda: self.now_s)
        self.supervisor = Supervisor([self.service], policy=RestartPolicy(first_s=0.01))

    def start(self) -> None:
        self.supervisor.start()
        eventually(lambda: self.probed.port and self.control.port)

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(timeout_s=10) == 0
        assert self.supervisor.restarts() == {"endpoints": 0}
        for sock in self.open:
            sock.close()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.control.port), timeout=60)
        self.open.append(sock)
        return sock

    def post(self, body: bytes = ASKED) -> socket.socket:
        sock = self.connect()
        sock.sendall(request(body))
        return sock

    def waiting(self, count: int) -> bool:
        return sum(asked.waits for asked in self.changes._waiting) == count

    def healthz(self) -> int:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.probed.port, timeout=60)
        ) as connection:
            connection.request("GET", "/healthz")
            return connection.getresponse().status

    def passes(self, seconds: float) -> None:
        """Let time pass, and the thread that answers look at its clock."""
        self.now_s += seconds
        assert self.healthz() == 200


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(Node(tmp_path))
    made.start()
    yield made
    made.stop()


def answered(*socks: socket.socket) -> list[socket.socket]:
    """Those at which there is something to read already."""
    readable, _, _ = select.select(socks, [], [], 0)
    return readable


def read(sock: socket.socket) -> tuple[int, str]:
    """Status and body of an answer."""
    parts = []
    while data := sock.recv(65536):
        parts.append(data)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    assert head, "closed without an answer"
    return int(head.split()[1]), body.decode()


def test_probes_are_answered_before_changes_that_wait(world: World) -> None:
    posts = [world.post() for _ in range(8)]
    eventually(lambda: world.waiting(8))
    assert world.healthz() == 200
    assert answered(*posts) == []
    world.changes.serve_waiting()
    assert [read(sock)[0] for sock in posts] == [200] * 8
    assert world.node.held(world.record) == [(500, 40)]


def test_probes_are_answered_while_a_change_is_made(world: World) -> None:
    loop = threading.Thread(target=world.changes.serve_waiting)
    with world.changes.one_at_a_time:  # as long as the disk takes
        post = world.post()
        eventually(lambda: world.waiting(1))
        loop.start()
        eventually(lambda: world.waiting(0))
        assert world.healthz() == 200
        assert answered(post) == []
    assert read(post)[0] == 200
    loop.join(10)


def test_one_answer_does_not_wait_for_another(world: World) -> None:
    first = world.post()
    eventually(lambda: world.waiting(1))
    second = world.post(b"{")
    eventually(lambda: world.waiting(2))
    wrong = world.changes._waiting.pop()
    assert wrong.begin()
    wrong.finish(world.changes.answer(wrong.body))
    assert read(second)[0] == 400
    assert answered(first) == []


def test_an_answer_is_given_when_it_is_there_and_not_at_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoints, "_wait_s", lambda _: None)
    assert world.healthz() == 200, "from now on it looks only when it is woken"
    post = world.post()
    eventually(lambda: world.waiting(1))
    world.changes.serve_waiting()
    assert read(post)[0] == 200
    eventually(lambda: not world.service._selector.select(0), what="it rests again")


def test_more_than_may_wait_are_told_so_at_once(world: World) -> None:
    posts = [world.post() for _ in range(MAX_WAITING)]
    eventually(lambda: world.waiting(MAX_WAITING))
    status, body = read(world.post())
    assert status == 503
    assert "too many requests wait to be done" in body
    assert answered(*posts) == []
    world.changes.serve_waiting()
    assert [read(sock)[0] for sock in posts] == [200] * MAX_WAITING


def test_who_has_waited_for_long_enough_is_told_and_holds_no_place(world: World) -> None:
    posts = [world.post() for _ in range(MAX_WAITING)]
    eventually(lambda: world.waiting(MAX_WAITING))
    world.passes(limit_changes.WAIT_S)
    for sock in posts:
        status, body = read(sock)
        assert (status, "nothing was changed" in body) == (503, True)
    late = world.post()
    eventually(lambda: world.waiting(1))
    world.changes.serve_waiting()
    assert read(late)[0] == 200
    assert world.node.counted == [("socket", "changed")], "of the others nothing is done"


def test_what_takes_longer_than_that_is_said_to_be_still_done(world: World) -> None:
    loop = threading.Thread(target=world.changes.serve_waiting)
    with world.changes.one_at_a_time:
        post = world.post()
        eventually(lambda: world.waiting(1))
        loop.start()
        eventually(lambda: world.waiting(0))
        world.passes(limit_changes.WAIT_S)
        status, body = read(post)
        assert (status, "still being done" in body) == (503, True)
    loop.join(10)
    assert world.node.held(world.record) == [(500, 40)]
    assert world.healthz() == 200


def test_the_time_to_talk_does_not_run_while_an_answer_is_made(world: World) -> None:
    sock = world.connect()
    sock.sendall(request()[:-1])
    eventually(lambda: any(talk.head for talk in world.service._talks.values()))
    world.passes(endpoints.TALK_WITHIN_S - 0.1)
    sock.sendall(request()[-1:])
    eventually(lambda: world.waiting(1))
    world.passes(limit_changes.WAIT_S - 0.1)
    world.changes.serve_waiting()
    assert read(sock)[0] == 200


def test_a_client_that_is_gone_leaves_nothing_to_be_done(world: World) -> None:
    gone, stays = world.post(), world.post()
    eventually(lambda: world.waiting(2))
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    gone.close()
    eventually(lambda: world.waiting(1))
    world.changes.serve_waiting()
    assert read(stays)[0] == 200
    assert len(world.node.counted) == 1


def test_a_client_that_is_gone_before_its_answer_harms_nobody(world: World) -> None:
    gone = world.post()
    eventually(lambda: world.waiting(1))
    (asked,) = world.changes._waiting
    assert asked.begin()
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    gone.close()
    eventually(lambda: not world.service._talks)
    asked.finish((200, b"{}"))
    assert world.healthz() == 200


def test_a_client_that_says_no_more_is_answered(world: World) -> None:
    sock = world.post()
    sock.shutdown(socket.SHUT_WR)
    eventually(lambda: world.waiting(1))
    (talk,) = eventually(lambda: list(world.service._talks.values()))
    eventually(
        lambda: talk.sock not in world.service._selector.get_map(), what="it is not looked at"
    )
    world.changes.serve_waiting()
    assert read(sock)[0] == 200


def test_what_is_said_meanwhile_is_ignored(world: World) -> None:
    sock = world.post()
    eventually(lambda: world.waiting(1))
    sock.sendall(request() * 1000)
    assert world.healthz() == 200
    assert world.waiting(1)
    world.changes.serve_waiting()
    assert read(sock)[0] == 200


def test_silent_clients_do_not_put_out_those_that_wait(world: World) -> None:
    post = world.post()
    eventually(lambda: world.waiting(1))
    for _ in range(endpoints.MAX_CONNECTIONS + 5):
        world.connect().sendall(b"POST")
    last = world.connect()
    last.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert read(last)[0] == 405, "all of those were let in before"
    assert world.waiting(1)
    world.changes.serve_waiting()
    assert read(post)[0] == 200


def test_an_agent_that_ends_says_so_and_does_nothing_more(world: World) -> None:
    posts = [world.post() for _ in range(3)]
    eventually(lambda: world.waiting(3))
    world.supervisor.stop()
    for sock in posts:
        status, body = read(sock)
        assert (status, "nothing was changed" in body) == (503, True)
    world.changes.serve_waiting()
    assert world.node.held(world.record) == [(1000, 40)]


def test_an_answer_that_comes_after_the_end_harms_nobody(world: World) -> None:
    post = world.post()
    eventually(lambda: world.waiting(1))
    (asked,) = world.changes._waiting
    assert asked.begin()
    world.supervisor.stop()
    assert "still being done" in read(post)[1]
    assert world.supervisor.join(timeout_s=10) == 0
    asked.finish((200, b"{}"))
