"""The client of the local sockets, against real sockets."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from agent.adapters.local_client import AgentUnreachable, Answer, ask


class Handler(BaseHTTPRequestHandler):
    """Says what it was asked."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path == "/plain":
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"nothing here")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"asked": "%s %s %s"}' % (
            self.command.encode(), self.path.encode(), body.replace('"', "'").encode()
        ))  # fmt: skip

    do_GET = do_POST = answer  # noqa: N815 - the names that the library calls

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "local"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "s"


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)


def test_a_request_and_its_answer(place: Path) -> None:
    with listening(place):
        assert ask(place, "GET", "/v1/use") == Answer(200, {"asked": "GET /v1/use "})
        posted = ask(place, "POST", "/v1/limits", {"cores": 40})
        assert posted.ok
        assert posted.body == {"asked": "POST /v1/limits {'cores': 40}"}
        assert ask(place, "GET", "/plain") == Answer(404, None)
        assert not ask(place, "GET", "/plain").ok


def _listen_in_vain(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda _: None, "does not run on this node, is older", id="no agent"),
        pytest.param(_listen_in_vain, "has ended; start it", id="an agent that was killed"),
        pytest.param(Path.touch, "has ended", id="no socket"),
    ],
)
def test_why_there_is_no_answer(place: Path, make: object, said: str) -> None:
    make(place)  # type: ignore[operator]
    with pytest.raises(AgentUnreachable, match=said):
        ask(place, "GET", "/v1/use")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_use_the_socket_is_told(place: Path) -> None:
    for parent in (place.parent, *place.parent.parents[:2]):
        parent.chmod(0o755)
    with listening(place):
        place.chmod(0o600)
        os.seteuid(65534)
        try:
            with pytest.raises(AgentUnreachable, match="run this as root"):
                ask(place, "GET", "/v1/use")
        finally:
            os.seteuid(0)


def test_what_speaks_no_http_and_what_says_nothing(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen(2)

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)  # ended before it has read, the client could not even ask
                connection.sendall(b"220 mail\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(AgentUnreachable, match="does not speak HTTP"):
            ask(place, "GET", "/v1/use")
        thread.join(10)
        with pytest.raises(AgentUnreachable, match="does not answer"):
            ask(place, "GET", "/v1/use", timeout_s=0.05)


def _crowd(path: Path, stack: ExitStack) -> socket.socket:
    """A listener before which as many wait as it lets wait."""
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen(0)
    waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
    waiting.connect(str(path))
    late = stack.enter_context(socket.socket(socket.AF_UNIX))
    late.settimeout(5)
    with pytest.raises(BlockingIOError):
        late.connect(str(path))
    return server


def test_behind_a_crowd_one_waits_for_its_turn(place: Path) -> None:
    with ExitStack() as stack:
        server = _crowd(place, stack)

        def let_in() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(0.5)
                    with suppress(TimeoutError):
                        connection.recv(4096)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        timer = threading.Timer(0.1, let_in)
        timer.start()
        assert ask(place, "GET", "/v1/use") == Answer(200, {})
        timer.join()


def test_behind_a_crowd_that_stays_one_is_told(place: Path) -> None:
    with ExitStack() as stack:
        _crowd(place, stack)
        with pytest.raises(AgentUnreachable, match=r"does not answer on .* in time"):
            ask(place, "GET", "/v1/use", timeout_s=0.1)
