"""The agent's Unix sockets: who may do what there, whose they are, and clients that misbehave."""

import grp
import io
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from agent import boundaries, logs
from agent.adapters import endpoints
from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.http_messages import MAX_BODY_BYTES, Answer, Head, read_head
from agent.adapters.listeners import EndpointUnavailable, TcpListener
from agent.adapters.local_client import AgentUnreachable, ask
from agent.adapters.local_sockets import (
    RuntimeDirectory,
    UnixListener,
    control_listener,
    read_listener,
)
from agent.adapters.routes import Route, Wake, probes, shown
from agent.services.limit_changes import Asked
from agent.supervisor import Supervisor

OWN_GROUP = str(os.getegid())
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
NOBODY = 65534

# Connects as somebody else, who is handed a directory descriptor past all modes, and posts.
POST_AS = """
import os, socket, sys
uid, path = int(sys.argv[1]), sys.argv[2]
sock = socket.socket(socket.AF_UNIX)
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
try:
    sock.connect(path)
except OSError as error:
    print(error.strerror)
    sys.exit()
sock.sendall(b"POST /v1/limits HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
print(sock.recv(65536).decode().replace("\\r\\n", "\\n"))
"""

ASK_AS_NOBODY = """
import os, sys
from pathlib import Path
from agent.adapters.local_client import AgentUnreachable, ask
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    ask(Path(sys.argv[1]), "GET", "/healthz")
except AgentUnreachable as error:
    print(error)
"""


@dataclass
class Agent:
    """Endpoints as the agent has them: TCP and both sockets."""

    directory: Path
    posted: list[bytes] = field(default_factory=list)
    posted_by: list[str] = field(default_factory=list)
    listening: list[UnixListener] = field(default_factory=list)
    tcp: TcpListener = field(default_factory=lambda: TcpListener("127.0.0.1:0"))
    group: str = OWN_GROUP
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        reading = {**probes(list, list), "/v1/use": shown(lambda: b'{"version": 1}\n')}
        runtime = RuntimeDirectory(self.directory)
        self.listening = [read_listener(runtime, self.group), control_listener(runtime)]
        doors = [
            Door(self.tcp, reading),
            Door(self.listening[0], reading),
            Door(self.listening[1], {**reading, "/v1/limits": Route(post=self._post)}),
        ]
        self.supervisor = Supervisor([Endpoints(doors)])

    def _post(self, body: bytes, asked_by: str, wake: Wake) -> Asked:
        self.posted.append(body)
        self.posted_by.append(asked_by)
        asked = Asked(body, asked_by, wake)
        asked.finish((200, json.dumps({"bytes": len(body)}).encode()))
        return asked

    @property
    def read(self) -> Path:
        return self.directory / "read.sock"

    @property
    def control(self) -> Path:
        return self.directory / "control.sock"

    def start(self) -> "Agent":
        self.supervisor.start()
        eventually(lambda: self.tcp.port, what="the TCP endpoint serves")
        return self

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(timeout_s=10) == 0

    def tcp_serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.tcp.port), timeout=60) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            return b"200 OK" in sock.recv(4096)

    def talk(self, path: Path, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(str(path))
            sock.sendall(request)
            parts = []
            while data := sock.recv(65536):
                parts.append(data)
            return b"".join(parts)


@pytest.fixture(name="written", autouse=True)
def log_to_memory(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    monkeypatch.setattr(endpoints, "REBIND_EVERY_S", 0.05)
    monkeypatch.setattr(endpoints, "LOOK_EVERY_S", 0.05)
    return sink.stream


Make = Callable[..., Agent]


@pytest.fixture(name="make")
def maker(tmp_path: Path) -> Iterator[Make]:
    made: list[Agent] = []

    def make(directory: Path | None = None, group: str = OWN_GROUP) -> Agent:
        made.append(Agent(directory or tmp_path / "run", group=group).start())
        return made[-1]

    yield make
    for agent in made:
        agent.stop()


@pytest.fixture(name="agent")
def one_agent(make: Make) -> Agent:
    agent = make()
    eventually(lambda: all(listener.bound for listener in agent.listening))
    return agent


# --- who may do what ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("", stat.S_IFDIR | 0o755, id="the directory lets everybody see"),
        pytest.param("read.sock", stat.S_IFSOCK | 0o660, id="read.sock is for owner and group"),
        pytest.param("control.sock", stat.S_IFSOCK | 0o600, id="control.sock is for the owner"),
        pytest.param("agent.lock", stat.S_IFREG | 0o600, id="nobody else can hold the lock"),
    ],
)
def test_modes(agent: Agent, name: str, mode: int) -> None:
    assert oct((agent.directory / name).lstat().st_mode) == oct(mode)


@AS_ROOT
@pytest.mark.parametrize("by", ["name", "number"])
def test_read_sock_belongs_to_the_group(make: Make, by: str) -> None:
    daemon = grp.getgrnam("daemon")
    agent = make(group=daemon.gr_name if by == "name" else str(daemon.gr_gid))
    eventually(lambda: agent.listening[1].bound)
    assert ask(agent.read, "GET", "/healthz").status == 200
    info = agent.read.lstat()
    assert (info.st_uid, info.st_gid) == (0, daemon.gr_gid)
    assert agent.control.lstat().st_gid == os.getegid()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", ["read", "control"])
def test_both_are_read(agent: Agent, name: str, method: str) -> None:
    answer = ask(getattr(agent, name), method, "/v1/use")
    assert answer.status == 200
    assert answer.body == ({"version": 1} if method == "GET" else None)


@pytest.mark.parametrize(
    ("name", "target", "status"),
    [
        pytest.param("control", "/v1/limits", 200, id="control.sock changes"),
        pytest.param("read", "/v1/limits", 405, id="read.sock does not"),
        pytest.param("read", "/v1/use", 405, id="nor what is only read"),
        pytest.param("control", "/v1/use", 405, id="not even control.sock"),
        pytest.param("control", "/v1/nothing", 404, id="nothing there"),
    ],
)
def test_changes(agent: Agent, name: str, target: str, status: int) -> None:
    assert ask(getattr(agent, name), "POST", target, {}).status == status
    assert agent.posted == ([b"{}"] if status == 200 else [])


def test_tcp_changes_nothing(agent: Agent) -> None:
    with socket.create_connection(("127.0.0.1", agent.tcp.port), timeout=60) as sock:
        sock.sendall(b"POST /v1/limits HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        assert b"405" in sock.recv(4096).split(b"\r\n")[0]
    assert agent.posted == []


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "uid", "told"),
    [
        pytest.param(0o600, NOBODY, "Permission denied", id="the mode keeps others out"),
        pytest.param(0o666, NOBODY, "user 65534 may change nothing here", id="and if it did not"),
        pytest.param(0o666, 0, '{"bytes": 2}', id="root"),
    ],
)
def test_who_connects(make: Make, mode: int, uid: int, told: str) -> None:  # fmt: skip
    top = Path("/tmp") / f"vgpu-who-{os.getpid()}-{mode:o}-{uid}"  # pytest's are for root only
    agent = make(top / "run")
    try:
        eventually(lambda: agent.listening[1].bound)
        agent.control.chmod(mode)
        with subprocess.Popen(
            [sys.executable, "-c", POST_AS, str(uid), str(agent.control)],
            stdout=subprocess.PIPE,
            text=True,
        ) as asks:
            said, _ = asks.communicate(timeout=60)
        assert asks.returncode == 0
        assert told in said
        assert agent.posted_by == ([f"uid 0, pid {asks.pid}"] if uid == 0 else [])
    finally:
        agent.stop()
        (top / "run" / "agent.lock").unlink()
        (top / "run").rmdir()
        top.rmdir()


# --- bodies --------------------------------------------------------------------------------------


def post(headers: str, body: bytes) -> bytes:
    return f"POST /v1/limits HTTP/1.1\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(post("", b"{}"), 411, id="no length"),
        pytest.param(post("Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"), 411, id="in chunks"),
        pytest.param(post("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"{}"), 411, id="in chunks with a length"),
        pytest.param(post("Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"), 400, id="two lengths"),
        pytest.param(post("Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"), 200, id="the same length twice"),
        pytest.param(post("Content-Length: -1\r\n", b""), 400, id="negative"),
        pytest.param(post("Content-Length: +2\r\n", b"{}"), 400, id="signed"),
        pytest.param(post("Content-Length: 0x2\r\n", b"{}"), 400, id="hexadecimal"),
        pytest.param(post("Content-Length: \u0662\r\n", b"{}"), 400, id="digits of another script"),
        pytest.param(post("Content-Length:\r\n", b"{}"), 400, id="no number"),
        pytest.param(post(f"Content-Length: {MAX_BODY_BYTES + 1}\r\n", b""), 413, id="too long"),
        pytest.param(post(f"Content-Length: {'9' * 5000}\r\n", b""), 413, id="longer than numbers are"),
        pytest.param(post("content-length: 0\r\n", b""), 200, id="empty"),
        pytest.param(post("CONTENT-LENGTH: 2\r\n", b"{}GET /healthz HTTP/1.1\r\n\r\n"), 200, id="with a second request"),
        pytest.param(post(f"Content-Length: {MAX_BODY_BYTES}\r\n", b"x" * MAX_BODY_BYTES), 200, id="as long as may be"),
    ],
)  # fmt: skip
def test_bodies(agent: Agent, request_bytes: bytes, status: int) -> None:
    said = agent.talk(agent.control, request_bytes)
    assert int(said.split(b" ")[1]) == status
    assert said.count(b"HTTP/1.1") == 1
    assert len(agent.posted) == (status == 200)


def test_a_body_may_come_byte_by_byte(agent: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(agent.control))
        for byte in post("Content-Length: 5\r\n", b"1\r\n\r\n"):
            sock.sendall(bytes((byte,)))
        assert sock.recv(4096).endswith(b'{"bytes": 5}')


def test_a_client_may_wait_for_leave_to_send(agent: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(agent.control))
        sock.sendall(post("Content-Length: 2\r\nExpect: 100-continue\r\n", b""))
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"{}")
        assert sock.recv(4096).endswith(b'{"bytes": 2}')


def test_half_a_body_changes_nothing(agent: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(agent.control))
        sock.sendall(post("Content-Length: 5\r\n", b"1"))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(4096) == b""
    assert agent.posted == []


@given(head=st.binary(max_size=300))
def test_the_length_of_any_body_is_known_or_refused(head: bytes) -> None:
    read = read_head(b"POST / HTTP/1.1\r\nContent-Length:" + head)
    assert isinstance(read, Head)
    length = read.body_bytes()
    assert isinstance(length, Answer) or 0 <= length <= MAX_BODY_BYTES


def test_a_change_that_fails_ends_nothing(agent: Agent, written: io.StringIO) -> None:
    agent.posted = None  # type: ignore[assignment] # what is called raises
    assert ask(agent.control, "POST", "/v1/limits", {}).status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert ask(agent.control, "GET", "/healthz").status == 200
    assert "AttributeError" in written.getvalue()


def test_a_flood_of_one_door_closes_no_other(agent: Agent) -> None:
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(endpoints.MAX_CONNECTIONS + 20)]
    with socket.socket(socket.AF_UNIX) as quiet:
        quiet.settimeout(20)
        quiet.connect(str(agent.control))
        quiet.sendall(post("Content-Length: 2\r\n", b""))
        try:
            for sock in crowd:
                sock.connect(str(agent.read))
                sock.sendall(b"GET /heal")
            assert ask(agent.read, "GET", "/healthz").status == 200
            quiet.sendall(b"{}")
            assert quiet.recv(4096).endswith(b'{"bytes": 2}')
        finally:
            for sock in crowd:
                sock.close()


# --- whose they are ------------------------------------------------------------------------------


def in_the_way(place: Path, what: str) -> None:
    run = place / "run"
    if what == "a link":
        (place / "other").mkdir()
        run.symlink_to(place / "other")
    elif what == "a file":
        run.write_text("x")
    elif what == "open to all":
        run.mkdir()
        run.chmod(0o777)
    elif what == "of somebody else":
        run.mkdir()
        os.chown(run, 12345, 12345)
    else:
        run.mkdir()
        sock = run / "read.sock"
        if what == "a file for a socket":
            sock.write_text("x")
        elif what == "a directory for a socket":
            sock.mkdir()
        elif what == "a link for a socket":
            sock.symlink_to(place / "elsewhere")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        pytest.param("a link", "it is a link or a file where", id="the directory is a link"),
        pytest.param("a file", "where a directory belongs", id="a file"),
        pytest.param("open to all", "chmod go-w", id="everybody can write there"),
        pytest.param("of somebody else", "belongs to user 12345", id="somebody else's", marks=AS_ROOT),
        pytest.param("a file for a socket", "read.sock is in the way", id="a file for a socket"),
        pytest.param("a directory for a socket", "read.sock is in the way", id="a directory for a socket"),
        pytest.param("a link for a socket", "read.sock is in the way", id="a link for a socket"),
    ],
)  # fmt: skip
def test_what_is_not_ours_stays_and_tcp_serves(
    tmp_path: Path, make: Make, written: io.StringIO, what: str, told: str
) -> None:
    in_the_way(tmp_path, what)
    before = sorted((path, path.lstat().st_ino) for path in tmp_path.iterdir())
    agent = make()
    eventually(lambda: told in written.getvalue())
    assert agent.tcp_serves()
    assert not agent.listening[0].bound
    assert sorted((path, path.lstat().st_ino) for path in tmp_path.iterdir()) == before
    assert agent.supervisor.restarts() == {"endpoints": 0}


def test_once_it_is_out_of_the_way_the_socket_is_there(tmp_path: Path, make: Make) -> None:
    in_the_way(tmp_path, "a file for a socket")
    agent = make()
    eventually(lambda: agent.listening[1].bound)
    assert ask(agent.control, "GET", "/healthz").status == 200
    agent.read.unlink()
    eventually(lambda: agent.listening[0].bound)
    assert ask(agent.read, "GET", "/healthz").status == 200


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path, make: Make) -> None:
    (tmp_path / "run").mkdir()
    for name in ("read.sock", "control.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "run" / name))
    agent = make()
    eventually(lambda: agent.listening[1].bound)
    assert ask(agent.read, "GET", "/healthz").status == 200
    assert ask(agent.control, "GET", "/healthz").status == 200


def test_a_living_agent_keeps_its_sockets(make: Make, agent: Agent, written: io.StringIO) -> None:
    before = [path.lstat().st_ino for path in (agent.read, agent.control)]
    second = make()
    eventually(lambda: f"another agent has its sockets in {agent.directory}" in written.getvalue())
    assert second.tcp_serves()
    assert [path.lstat().st_ino for path in (agent.read, agent.control)] == before
    agent.stop()
    eventually(lambda: all(listener.bound for listener in second.listening))
    assert ask(second.read, "GET", "/healthz").status == 200


def test_a_socket_that_is_taken_away_while_it_is_made_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = control_listener(RuntimeDirectory(tmp_path / "run"))

    def taken_away(name: str) -> None:
        if name == "local-socket-served":
            listener.path.unlink()

    monkeypatch.setattr(boundaries, "_observer", taken_away)
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(EndpointUnavailable):
        listener.open()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert not listener.bound


def test_what_was_taken_away_is_made_again(agent: Agent, written: io.StringIO) -> None:
    for path in (agent.read, agent.control, agent.directory / "agent.lock"):
        path.unlink()
    agent.directory.rmdir()
    eventually(lambda: agent.control.exists() and agent.listening[1].bound)
    assert ask(agent.read, "GET", "/healthz").status == 200
    assert "endpoint_lost" in written.getvalue()


def test_at_the_end_they_are_removed(agent: Agent) -> None:
    agent.stop()
    assert [path.name for path in agent.directory.iterdir()] == ["agent.lock"]


def test_what_somebody_put_there_instead_is_left(agent: Agent) -> None:
    eventually(agent.read.exists)
    other = agent.directory / "other"
    other.write_text("x")
    other.replace(agent.read)
    agent.stop()
    assert agent.read.read_text() == "x"


def test_a_directory_left_closed_is_opened_up(tmp_path: Path, make: Make) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    agent = make()
    eventually(lambda: agent.listening[0].bound)
    assert agent.directory.stat().st_mode & 0o777 == 0o755


def test_a_missing_group_is_told(make: Make, written: io.StringIO) -> None:
    agent = make(group="no-such-group")
    eventually(lambda: "groupadd --system no-such-group" in written.getvalue())
    eventually(lambda: agent.listening[1].bound, what="the other socket is there")
    assert not agent.read.exists()


@pytest.mark.parametrize("group", ["\0", "x" * 5000, "4294967296000", "-1", "٣"])
def test_any_group_is_one_or_refused(tmp_path: Path, group: str) -> None:
    with pytest.raises(EndpointUnavailable, match="no group"):
        read_listener(RuntimeDirectory(tmp_path / "run"), group).open()


def test_a_long_path_is_no_matter_for_the_agent(tmp_path: Path, make: Make) -> None:
    long = tmp_path / ("x" * 100) / "run"
    agent = make(long)
    eventually(lambda: agent.listening[0].bound)
    with pytest.raises(AgentUnreachable, match="path too long"):
        ask(agent.read, "GET", "/healthz")


# --- what a command is told ----------------------------------------------------------------------


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        pytest.param(0o660, "for root and the group daemon: run this as root, or join", id="a group's"),
        pytest.param(0o600, "for root only: run this as root", id="the owner's"),
    ],
)  # fmt: skip
def test_no_permission(mode: int, told: str) -> None:
    top = Path("/tmp") / f"vgpu-may-{os.getpid()}-{mode:o}"
    top.mkdir(mode=0o755)
    path = top / "read.sock"
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            os.chown(path, 0, grp.getgrnam("daemon").gr_gid)
            path.chmod(mode)
            ran = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    ASK_AS_NOBODY,
                    str(path),
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
                cwd=Path(__file__).parents[2],
            )
        assert told in ran.stdout
    finally:
        path.unlink(missing_ok=True)
        top.rmdir()
