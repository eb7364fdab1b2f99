"""The log's queue: nobody waits for the reader, and what is lost is told."""

import errno
import fcntl
import io
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from waiting import eventually

from agent import log_queue, logs
from agent.log_queue import MAX_BYTES, MAX_LINES, LineQueue

ROOT = Path(__file__).parents[2]


@dataclass
class Pipe:
    """A pipe of one page, whose reader the test plays."""

    read_fd: int
    write_fd: int
    text: str = ""
    closed: list[int] = field(default_factory=list)

    def fill(self) -> int:
        """Let nothing more go in; tells how many bytes did. Ours is a description of its own."""
        fd = os.open(f"/proc/self/fd/{self.write_fd}", os.O_WRONLY | os.O_NONBLOCK)
        filled = 0
        try:
            while True:
                filled += os.write(fd, b"x")
        except BlockingIOError:
            return filled
        finally:
            os.close(fd)

    def read_until(self, end: str) -> list[str]:
        """Be the reader until a line that contains `end` is complete; gives the lines so far."""
        while not any(end in line for line in self.text.split("\n")[:-1]):
            self.text += os.read(self.read_fd, 65536).decode()
        return self.text.split("\n")[:-1]

    def close(self, fd: int) -> None:
        if fd not in self.closed:
            os.close(fd)
            self.closed.append(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    fcntl.fcntl(pipe.write_fd, fcntl.F_SETPIPE_SZ, 4096)
    yield pipe
    pipe.close(pipe.read_fd)  # a writer that still waits ends with EPIPE
    pipe.close(pipe.write_fd)


def lost(lines: int) -> str:
    return f"{lines} lost"


def test_lines_are_written_in_order_and_whole(pipe: Pipe) -> None:
    queue = LineQueue(pipe.write_fd, lost)
    sent = [f"{number} {'y' * (number % 10 * 500)}" for number in range(100)]
    reader = threading.Thread(target=pipe.read_until, args=("99 ",))
    reader.start()
    for line in sent:
        queue.put(line)
    reader.join(10)
    assert pipe.text.splitlines() == sent
    assert queue.close(within_s=10)


def test_a_character_that_cannot_be_encoded_is_escaped(pipe: Pipe) -> None:
    queue = LineQueue(pipe.write_fd, lost)
    queue.put("a\ud800b")
    assert pipe.read_until("b") == ["a\\ud800b"]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        pytest.param("short {}", MAX_LINES, id="many lines"),
        pytest.param("{} " + "z" * 9997, MAX_BYTES // 10_000 + 1, id="many bytes"),
    ],
)
def test_what_finds_no_room_is_counted_and_told_in_its_place(
    pipe: Pipe, line: str, kept: int
) -> None:
    pipe.fill()
    queue = LineQueue(pipe.write_fd, lost)
    queue.put("in hand")
    eventually(lambda: queue._writing, what="the writer waits for the reader")
    sent = [line.format(f"{number:03}") for number in range(kept + 70)]
    for each in sent:
        queue.put(each)
    lines = pipe.read_until("lost")
    assert lines[0].endswith("xin hand")
    assert lines[1:] == [*sent[:kept], "70 lost"]
    queue.put("afterwards")
    assert pipe.read_until("afterwards")[-1] == "afterwards"
    assert queue.close(within_s=10)


def test_an_oversized_line_is_not_lost_when_there_is_room(pipe: Pipe) -> None:
    queue = LineQueue(pipe.write_fd, lost)
    queue.put("w" * (MAX_BYTES + 1) + " end")
    assert len(pipe.read_until("end")[0]) == MAX_BYTES + 5


def test_the_end_does_not_wait_for_a_reader_who_does_not_read(pipe: Pipe) -> None:
    pipe.fill()
    queue = LineQueue(pipe.write_fd, lost)
    queue.put("last words")
    assert not queue.close(within_s=0.05)
    assert pipe.read_until("last words")[-1].endswith("last words"), "they still go out"


def test_the_writer_ends_and_leaves_no_descriptor(pipe: Pipe) -> None:
    before = set(threading.enumerate())
    queue = LineQueue(pipe.write_fd, lost)
    (writer,) = set(threading.enumerate()) - before
    queue.put("a")
    assert queue.close(within_s=10)
    pipe.close(pipe.write_fd)
    while part := os.read(pipe.read_fd, 4096):  # until its end, which is when nobody can write
        pipe.text += part.decode()
    assert pipe.text == "a\n"
    eventually(lambda: not writer.is_alive())


def test_signals_are_left_to_the_main_thread(pipe: Pipe) -> None:
    """Else one that comes while that thread does not wait for it ends the process on the spot."""
    before = set(threading.enumerate())
    queue = LineQueue(pipe.write_fd, lost)
    (writer,) = set(threading.enumerate()) - before
    status = Path(f"/proc/self/task/{writer.native_id}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert blocked >> (number - 1) & 1
        assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert queue.close(within_s=10)


def test_a_reader_that_is_gone_harms_nobody(pipe: Pipe) -> None:
    queue = LineQueue(pipe.write_fd, lost)
    pipe.close(pipe.read_fd)
    for number in range(3 * MAX_LINES):
        queue.put(str(number))
    assert queue.close(within_s=10)


@dataclass
class Disk:
    """Has room for so many more bytes."""

    room_bytes: int
    write: Callable[[int, bytes], int] = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written


def test_after_a_full_disk_lines_are_lines_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(room_bytes=3)
    monkeypatch.setattr(log_queue.os, "write", disk)
    with (tmp_path / "log").open("wb") as file:
        queue = LineQueue(file.fileno(), lost)
    queue.put("first")
    queue.put("second")
    eventually(lambda: not queue._lines and not queue._writing)
    disk.room_bytes = 1_000_000
    queue.put("third")
    assert queue.close(within_s=10)
    assert (tmp_path / "log").read_text() == "fir\n2 lost\nthird\n"


def test_a_description_that_somebody_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    queue = LineQueue(pipe.write_fd, lost)
    line = "v" * 100_000
    queue.put(line)
    assert pipe.read_until("v") == [line]
    assert not os.get_blocking(pipe.write_fd), "it is not ours to change"


# --- the log with it -----------------------------------------------------------------------------


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> Iterator[logs._Sink]:
    """A sink that writes to the pipe."""
    sink = logs._Sink()
    monkeypatch.setattr(logs, "_SINK", sink)
    with open(pipe.write_fd, "w", closefd=False) as stream:
        logs.configure(form="json", environ={}, stream=stream)
        yield sink


def test_nobody_waits_for_the_reader_of_the_log(pipe: Pipe, sink: logs._Sink) -> None:
    log = logs.get("agent.x")
    pipe.fill()
    with logs.unblocked():
        log.info("in hand")
        eventually(lambda: sink.queue and sink.queue._writing)
        for number in range(2 * MAX_LINES + 5):
            log.failing("tried", about=str(number), error="no")
            log.recovered("tried", about=str(number))
        lines = pipe.read_until("lines lost")
    *told, note = [json.loads(line.lstrip("x")) for line in lines]
    assert note["level"] == "warn"
    assert len(told) + note["lines"] == 1 + 2 * (2 * MAX_LINES + 5)


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        pytest.param("journal", "<4>warn  lines_lost ", id="journal"),
        pytest.param("logfmt", "00:00:00 warn  lines_lost ", id="logfmt"),
    ],
)
def test_what_is_lost_is_told_in_the_shape_of_the_log(
    sink: logs._Sink, form: str, begins: str
) -> None:
    logs.configure(form=form, environ={}, stream=sink.stream)
    sink.clock = lambda: 0.0
    assert logs._lost_line(3).startswith(begins)
    assert "lines=3" in logs._lost_line(3)


def warn_as_a_library() -> None:
    logging.getLogger("some.library").warning("pool is full: %s", "x")


def crash_a_thread() -> None:
    def run() -> None:
        raise RuntimeError("broken")

    thread = threading.Thread(target=run, name="pool-1")
    thread.start()
    thread.join(10)


@pytest.mark.parametrize(
    ("happen", "line"),
    [
        pytest.param(
            warn_as_a_library,
            {
                "level": "warn",
                "event": "library warned",
                "in": "some.library",
                "text": "pool is full: x",
            },
            id="a library warns",
        ),
        pytest.param(
            crash_a_thread,
            {
                "level": "error",
                "event": "thread crashed",
                "in": "pool-1",
                "error": "RuntimeError('broken')",
            },
            id="a thread crashes",
        ),
    ],
)
@pytest.mark.usefixtures("sink")
def test_what_python_would_write_goes_the_same_way(
    pipe: Pipe,
    monkeypatch: pytest.MonkeyPatch,
    happen: Callable[[], None],
    line: dict[str, str],
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has its own
    before = logging.lastResort, threading.excepthook
    with logs.unblocked():
        happen()
        (written,) = pipe.read_until("}")
    found = json.loads(written)
    assert line.items() <= found.items()
    assert (logging.lastResort, threading.excepthook) == before


def test_a_log_that_is_no_file_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = logs._Sink()
    monkeypatch.setattr(logs, "_SINK", sink)
    sink.stream = io.StringIO()
    with logs.unblocked():
        logs.get("agent.x").info("happened")
        assert "happened" in sink.stream.getvalue()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "unblocked"])
def test_a_process_without_stderr_logs_nothing(direct: bool) -> None:
    program = (
        "import contextlib, sys\nfrom agent import logs\n"
        f"with contextlib.nullcontext() if {direct} else logs.unblocked():\n"
        "    assert sys.stderr is None\n    logs.get('agent.x').info('happened')\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0


ENDING = """
import signal, sys, time
from agent import logs
from agent.supervisor import Supervisor, serve

class Loop:
    name = "loop"
    def run(self, life):
        print("ready", flush=True)
        while life.pause(1.0):
            pass

with logs.unblocked():
    code = serve(Supervisor([Loop()]), notify=lambda _: None)
    logs.get("agent.x").info("last words")
raise SystemExit(code)
"""


def test_a_signal_ends_a_process_whose_terminal_is_stopped() -> None:
    """Ctrl-S in the terminal: the end takes its course, and nothing is half-written."""
    main_fd, terminal_fd = pty.openpty()
    termios.tcflow(terminal_fd, termios.TCOOFF)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", ENDING], cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal_fd
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    finally:
        os.close(main_fd)
        os.close(terminal_fd)


def test_last_words_are_written_before_the_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line.split()[2] for line in said.splitlines()] == ["signal_received", "last_words"]
