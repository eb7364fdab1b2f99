"""Nobody reads the log: the agent does its work all the same, and ends when it is told to."""

import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.whole import env_of, finished, serves, up
from tests.waiting import eventually

Stuck = tuple[int, Callable[[], None]]


@pytest.fixture
def pipe() -> Iterator[Stuck]:
    """A pipe, and how its reader stops reading."""
    read_fd, write_fd = os.pipe()

    def fill() -> None:
        fd = os.open(f"/proc/self/fd/{write_fd}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(fd, b"x")
        os.close(fd)

    yield write_fd, fill
    os.close(read_fd)
    os.close(write_fd)


@pytest.fixture
def terminal() -> Iterator[Stuck]:
    """A terminal, and Ctrl-S."""
    main_fd, terminal_fd = pty.openpty()
    yield terminal_fd, lambda: termios.tcflow(terminal_fd, termios.TCOOFF)
    os.close(main_fd)
    os.close(terminal_fd)


def started_with_log(node: SimNode, fd: int) -> None:
    node.agent = subprocess.Popen(
        [*node._command, "run", *node._arguments(), "--log-level=debug"],
        stdout=fd,
        stderr=fd,
        stdin=subprocess.DEVNULL,
        env=node._agent_environment(),
        start_new_session=True,
    )


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@pytest.mark.parametrize("when", ["before the start", "in service"])
def test_a_log_that_nobody_reads_holds_nothing_up(
    make_node: NodeMaker, request: pytest.FixtureRequest, kind: str, when: str
) -> None:
    fd, stop_reading = request.getfixturevalue(kind)
    node = make_node(started=False)
    if when == "before the start":
        stop_reading()
    started_with_log(node, fd)
    up(node, 20)
    stop_reading()
    pod = node.run_pod("pod", [Ask()])
    assert env_of(pod)["NVIDIA_VISIBLE_DEVICES"]
    eventually(lambda: finished(node, pod))
    node.driver.xid(0, 79)
    eventually(lambda: node.allocatable() == 10, within_s=60, what="the XID reaches kubelet")
    assert node.fetch("/healthz")[0] == 200
    assert node.stop_agent(signal.SIGTERM) == 0


def test_a_log_whose_reader_is_gone_holds_nothing_up(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    read_fd, write_fd = os.pipe()
    started_with_log(node, write_fd)
    os.close(write_fd)
    os.close(read_fd)
    up(node, 20)
    assert env_of(node.run_pod("pod", [Ask()]))
    assert node.stop_agent(signal.SIGTERM) == 0


def test_closed_standard_files_are_nobody_elses(make_node: NodeMaker) -> None:
    """The agent ended at once, without a word; what libraries print to 2 would go to a file of ours."""
    node = make_node(started=False, command=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND])
    node.start_agent()
    serves(node)
    assert node.agent is not None
    standard = [Path(f"/proc/{node.agent.pid}/fd/{number}").readlink() for number in range(3)]
    assert standard == [Path(os.devnull)] * 3
