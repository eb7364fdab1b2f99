"""sd_notify to a real datagram socket, and to what is none."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.adapters.systemd import MAX_MESSAGE_BYTES, Notifier
from agent.supervisor import Lifeline, Supervisor, serve


@pytest.fixture(name="systemd", params=["path", "abstract"])
def notify_socket(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET and the socket behind it."""
    name = f"@vgpu-{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(20)
        yield name, sock


def test_a_message_arrives(systemd: tuple[str, socket.socket]) -> None:
    name, sock = systemd
    notify = Notifier({"NOTIFY_SOCKET": name})
    assert notify.enabled
    notify("READY=1\nSTATUS=sharing 2 GPUs")
    assert sock.recv(9000) == b"READY=1\nSTATUS=sharing 2 GPUs"
    notify("STOPPING=1")
    assert sock.recv(9000) == b"STOPPING=1"


def test_odd_text_arrives_as_far_as_it_can(systemd: tuple[str, socket.socket]) -> None:
    name, sock = systemd
    Notifier({"NOTIFY_SOCKET": name})("STATUS=\udcff" + "ü" * 5000)
    received = sock.recv(90_000)
    assert len(received) == MAX_MESSAGE_BYTES
    assert received.startswith("STATUS=?ü".encode())


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="not set"),
        pytest.param("", id="empty"),
        pytest.param("relative", id="relative"),
        pytest.param("vsock:2:1234", id="another family"),
        pytest.param("/nowhere/at/all", id="nobody there"),
        pytest.param("/" + "x" * 200, id="too long"),
        pytest.param("/a\0b", id="zero byte"),
        pytest.param("@", id="abstract without a name"),
    ],
)
def test_without_systemd_nothing_happens(value: str | None) -> None:
    notify = Notifier({} if value is None else {"NOTIFY_SOCKET": value})
    notify("READY=1")
    if value in (None, "", "relative", "vsock:2:1234"):
        assert not notify.enabled


def test_a_full_socket_does_not_block(systemd: tuple[str, socket.socket]) -> None:
    name, sock = systemd
    notify = Notifier({"NOTIFY_SOCKET": name})
    done = threading.Event()

    def flood() -> None:
        for _ in range(5000):
            notify("WATCHDOG=1")
        done.set()

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    assert done.wait(30)
    thread.join()
    assert sock.recv(9000) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        pytest.param({}, None, id="no watchdog"),
        pytest.param({"WATCHDOG_USEC": "30000000"}, 30.0, id="30 s"),
        pytest.param({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "42"}, 0.5, id="for us"),
        pytest.param({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "43"}, None, id="for another process"),
        pytest.param({"WATCHDOG_USEC": "0"}, None, id="off"),
        pytest.param({"WATCHDOG_USEC": "soon"}, None, id="nonsense"),
        pytest.param({"WATCHDOG_USEC": "9" * 40}, None, id="absurd"),
    ],
)  # fmt: skip
def test_watchdog(environ: dict[str, str], interval_s: float | None) -> None:
    assert Notifier(environ, pid=42).watchdog_s == interval_s


def test_the_supervisor_speaks_through_it(
    systemd: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY first, STOPPING last, and the service ends in between."""
    name, sock = systemd
    monkeypatch.setenv("NOTIFY_SOCKET", name)

    class Short:
        name = "short"

        def run(self, life: Lifeline) -> None:
            supervisor.stop()
            life.pause(0)

    supervisor = Supervisor([Short()])
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        assert serve(supervisor, notify=Notifier(os.environ)) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sock.setblocking(False)
    received = []
    try:
        while True:
            received.append(sock.recv(9000))
    except BlockingIOError:
        pass
    assert (received[0], received[-1]) == (b"READY=1", b"STOPPING=1")
