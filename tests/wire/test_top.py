"""`vgpu-agent top` as a process, over a real socket, with and without a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import use_pictures
from waiting import eventually

from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.local_sockets import RuntimeDirectory, UnixListener, read_listener
from agent.adapters.routes import Route, shown
from agent.domain.accounting import NodeUse
from agent.domain.gpu import GpuInventory
from agent.domain.node_picture import NodePicture
from agent.domain.use_json import encode
from agent.supervisor import Supervisor
from agent.top.keyboard import keyboard
from tests.interrupt import skip_if_ignored

ROOT = Path(__file__).parents[2]
TOP = [
    sys.executable,
    "-c",
    "import sys; from agent.top.command import main; sys.exit(main(sys.argv[1:]))",
]
PATIENCE_S = 90.0  # a process starts and draws, however busy the machine is
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@dataclass
class Node:
    """An agent that looks at its GPUs anew each time it is asked."""

    place: Path
    routes: dict[str, Route] = field(default_factory=dict)
    listener: UnixListener = field(init=False)
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self.routes = self.routes or {"/v1/use": shown(self.document)}
        self.listener = read_listener(RuntimeDirectory(self.place), str(os.getegid()))
        self.supervisor = Supervisor([Endpoints([Door(self.listener, self.routes)])])

    def document(self) -> bytes:
        now_s = time.time()
        one = use_pictures.EVERYTHING.containers[0]
        assert one.devices[0].reported is not None
        device = replace(
            one.devices[0],
            totals=replace(one.devices[0].totals, gpu_ns=int(now_s * 0.29e9)),
            reported=replace(one.devices[0].reported, sm_percent=None),  # two looks tell, or none
        )
        one = replace(one, devices=(device,))
        use = replace(use_pictures.EVERYTHING, taken_at_s=now_s, containers=(one,))
        picture = NodePicture.of(
            use, GpuInventory(), answered_at_s=now_s, node="gpu-node-1", agent_version="0.4.0"
        )
        return json.dumps(encode(picture)).encode()

    def start(self) -> None:
        self.supervisor.start()
        eventually(lambda: self.listener.bound, within_s=PATIENCE_S)

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(timeout_s=10) == 0


@pytest.fixture(name="node")
def a_node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    node.start()
    yield node
    node.stop()


def top(*arguments: str | Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")
    }
    return subprocess.run(
        [*TOP, *map(str, arguments)],
        cwd=ROOT,
        env=environment | {"PYTHONUTF8": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("arguments", "environ", "width"),
    [
        pytest.param(["--once"], {}, 120, id="as wide as lines may be"),
        pytest.param([], {}, 120, id="without a terminal it is once"),
        pytest.param(["--once"], {"COLUMNS": "80"}, 80, id="80 columns"),
        pytest.param(["--once"], {"COLUMNS": "40"}, 40, id="40 columns"),
    ],
)
def test_once(node: Node, arguments: list[str], environ: dict[str, str], width: int) -> None:
    ran = top(*arguments, "--socket", node.place / "read.sock", **environ)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("gpu-node-1  2 GPUs, 1 container")
    text = " ".join(ran.stdout.split())
    assert "team/infer-0/main" in text
    assert "5 GiB of 8 GiB" in text
    assert "29 % of 30 % +13 %" in text, "the rate between two looks"


def test_once_shows_the_containers_of_an_agent_that_has_just_started(tmp_path: Path) -> None:
    """It answers before it has looked at its GPUs for the first time."""
    node = Node(tmp_path / "run")
    picture = NodePicture(answered_at_s=time.time(), node="n", agent_version="1", use=NodeUse())
    first = iter([json.dumps(encode(picture)).encode()] * 2)
    node.routes["/v1/use"] = shown(lambda: next(first, b"") or node.document())
    node.start()
    try:
        ran = top("--once", "--socket", node.place / "read.sock")
    finally:
        node.stop()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "team/infer-0/main" in ran.stdout
    assert "not looked" not in ran.stdout


def test_a_terminal_that_knows_ascii_alone(node: Node) -> None:
    """Whatever the names of GPUs and programs are made of."""
    ran = top("--once", "--socket", node.place / "read.sock", LC_ALL="C", PYTHONUTF8="0")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()
    assert "61 C" in ran.stdout
    assert "####" in ran.stdout


def test_json_is_what_the_agent_says(node: Node) -> None:
    ran = top("--json", VGPU_RUNTIME_DIR=str(node.place))
    assert (ran.returncode, ran.stderr) == (0, "")
    told, sent = json.loads(ran.stdout), json.loads(node.document())
    for document in (told, sent):
        del document["answered_at_s"], document["taken_at_s"]
        document["containers"][0]["devices"][0].pop("totals")
    assert told == sent


def odd(body: bytes) -> dict[str, Route]:
    return {"/v1/use": shown(lambda: body)}


def fails() -> bytes:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        pytest.param({"/healthz": shown(lambda: b"")}, "is older than this program", id="an older agent"),
        pytest.param({"/v1/use": shown(fails)}, r"\(HTTP 500\); look at its log", id="an agent that fails"),
        pytest.param(odd(b"<html>"), "the document is not an object", id="no JSON"),
        pytest.param(odd(b'{"version": 7}'), "speaks version 7 of /v1/use", id="another version"),
        pytest.param(odd(b'{"version": 1, "gpus": 3}'), "gpus is not a list", id="another shape"),
    ],
)  # fmt: skip
def test_answers_that_are_of_no_use(tmp_path: Path, routes: dict[str, Route], told: str) -> None:
    node = Node(tmp_path / "run", routes)
    node.start()
    try:
        ran = top("--once", "--socket", node.place / "read.sock")
    finally:
        node.stop()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.search(told, ran.stderr)
    assert len(ran.stderr.splitlines()) == 1


def test_no_agent(tmp_path: Path) -> None:
    for arguments in (["--once"], ["--json"], []):
        ran = top(*arguments, "--socket", tmp_path / "read.sock")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "the agent does not run on this node" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--interval", "0"], id="no time between"),
        pytest.param(["--interval", "nan"], id="no number"),
        pytest.param(["--interval", "1e9"], id="too long"),
        pytest.param(["--sock", "x"], id="abbreviated"),
        pytest.param(["what"], id="too much"),
    ],
)
def test_wrong_arguments(arguments: list[str]) -> None:
    assert top(*arguments).returncode == 2


def test_where_the_agent_is_can_be_said_as_to_limit(tmp_path: Path) -> None:
    """Its error names --runtime-dir, and the agent and `limit` have it."""
    ran = top("--once", "--runtime-dir", str(tmp_path))
    assert ran.returncode == 1
    assert f"{tmp_path / 'read.sock'}: there is no such socket" in ran.stderr
    both = top("--once", "--runtime-dir", str(tmp_path), "--socket", str(tmp_path / "s"))
    assert both.returncode == 2


def test_running_the_agent_loads_nothing_of_it() -> None:
    """The library for terminals costs memory, which the daemon shall not pay."""
    code = "import sys, agent.app, agent.cli; print([m for m in sys.modules if m.startswith(('rich', 'agent.top'))])"  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)  # fmt: skip
    assert ran.stdout == "[]\n"


# --- in a terminal -------------------------------------------------------------------------------


class Terminal:
    """`top` on a terminal of its own, of which everything that it writes is kept."""

    def __init__(self, *arguments: str | Path, columns: int = 100, **environ: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}  # fmt: skip
        self.process = subprocess.Popen(
            [*TOP, *map(str, arguments)],
            cwd=ROOT,
            env=environment | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | environ,
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.written = ""

    def resize(self, columns: int, lines: int = 30) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self) -> str:
        while select.select([self.master], [], [], 0.02)[0]:
            self.written += os.read(self.master, 65536).decode("utf-8", "replace")
        return self.written

    def since(self, mark: int) -> str:
        return self.read()[mark:]

    def ended(self) -> bool:
        self.read()
        return self.process.poll() is not None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture(name="terminals")
def kept_terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.close()


def opened(terminals: list[Terminal], node: Node, *arguments: str, **environ: str) -> Terminal:
    columns = int(environ.pop("columns", "100"))
    terminal = Terminal(
        *arguments, "--socket", node.place / "read.sock", columns=columns, **environ
    )
    terminals.append(terminal)
    eventually(lambda: "team/infer-0/main" in terminal.read(), within_s=PATIENCE_S)
    return terminal


def drawn_twice(terminal: Terminal) -> None:
    """The second look, which tells the rate, is on the screen down to the last line of it."""
    eventually(
        lambda: "n name" in terminal.read().partition("29 % of 30 %")[2], within_s=PATIENCE_S
    )


def test_it_goes_on_until_q(node: Node, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, node, "--interval", "0.5")
    assert "\x1b[?1049h" in terminal.written, "on a screen of its own"
    drawn_twice(terminal)
    mark = len(terminal.written)
    terminal.type("n")
    eventually(lambda: "n name" in terminal.since(mark), within_s=PATIENCE_S)
    terminal.type("q")
    eventually(terminal.ended, within_s=PATIENCE_S)
    assert terminal.process.returncode == 0
    assert terminal.written.endswith("\x1b[?25h\x1b[?1049l"), (
        "the cursor is back, and what was there"
    )
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_no_color(node: Node, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, node, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.read())
    coloured = opened(terminals, node)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", coloured.read())


def test_another_size_is_drawn_at_once(node: Node, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, node, "--interval", "600")
    drawn_twice(terminal)
    mark = len(terminal.written)
    terminal.resize(40)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    eventually(lambda: "limits by hook" in terminal.since(mark), within_s=PATIENCE_S)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.since(mark))
    assert max(len(line) for line in plain.splitlines()) <= 40


def test_an_agent_that_goes_away_and_comes_back(node: Node, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, node, "--interval", "0.5")
    node.stop()
    eventually(lambda: "does not run on this node" in terminal.read(), within_s=PATIENCE_S)
    again = Node(node.place)
    again.start()
    try:
        mark = len(terminal.read())
        eventually(
            lambda: (
                "gpu-node-1" in terminal.since(mark)
                and "does not run" not in terminal.since(mark).split("gpu-node-1")[-2][-300:]
            ),
            within_s=PATIENCE_S,
        )
    finally:
        again.stop()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="interrupt"),
        pytest.param(signal.SIGTERM, 143, id="terminate"),
        pytest.param(signal.SIGHUP, 129, id="hang up"),
    ],
)
def test_it_ends_when_it_is_told_to_and_leaves_the_terminal_as_it_was(
    node: Node, terminals: list[Terminal], number: signal.Signals, code: int
) -> None:
    skip_if_ignored(number)
    terminal = opened(terminals, node)
    os.kill(terminal.process.pid, number)
    eventually(terminal.ended, within_s=PATIENCE_S)
    assert terminal.process.returncode == code
    assert terminal.read().endswith("\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_a_hang_up_that_is_ignored_stays_ignored(node: Node, terminals: list[Terminal]) -> None:
    """As below nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        terminal = opened(terminals, node)
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(terminal.process.pid, signal.SIGHUP)
    terminal.type("q")
    eventually(terminal.ended, within_s=PATIENCE_S)
    assert terminal.process.returncode == 0


def test_a_terminal_that_cannot_be_drawn_on(node: Node, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, node, TERM="dumb")
    eventually(terminal.ended, within_s=PATIENCE_S)
    assert terminal.process.returncode == 0
    assert "\x1b" not in terminal.written


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        pytest.param(b"gq", ["g", "q"], id="two at once"),
        pytest.param(b"\x1b[B\x1b[B\x1b[5~q", ["down", "down", "page up", "q"], id="held arrows"),
        pytest.param(b"\x1b[1;5Bq", ["\x1b[1;5B", "q"], id="one that is not known"),
        pytest.param(b"\x1bOPq", ["\x1bOP", "q"], id="a function key"),
        pytest.param(b"\x1b", ["\x1b"], id="escape"),
        pytest.param("ä".encode(), ["ä"], id="of more than one byte"),
    ],
)
def test_no_key_is_lost_that_comes_with_others(typed: bytes, keys: list[str]) -> None:
    master, slave = pty.openpty()
    try:
        with keyboard(slave) as keyboard_:
            os.write(master, typed)
            assert [keyboard_.pressed(PATIENCE_S) for _ in keys] == keys
            assert keyboard_.pressed(0.0) == ""
    finally:
        os.close(master)
        os.close(slave)
