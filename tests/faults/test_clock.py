"""The clock of the day jumps under a running agent, as when somebody sets it or a machine slept.

A library that is preloaded into the agent alone adds what a file says to what the kernel says.
CLOCK_MONOTONIC is left alone, as Linux does: it neither jumps nor counts the time asleep.
"""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves
from tests.faults.invariants import Counters, violations
from tests.waiting import eventually

HOUR_S = 3600
CLOCKS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *jumps; /* seconds: of the day, since boot */

static long long jump(clockid_t clock)
{
    if (!jumps) {
        const char *path = getenv("VGPU_TEST_CLOCKS");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *at = fd < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            return 0;
        close(fd);
        jumps = at;
    }
    return clock == CLOCK_REALTIME ? jumps[0]
         : clock == CLOCK_BOOTTIME ? jumps[1] : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed)
        now->tv_sec += jump(clock);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out)
        *out = at.tv_sec;
    return at.tv_sec;
}
"""


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clocks")
    (folder / "clocks.c").write_text(CLOCKS)
    library = folder / "clocks.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-w"]
    subprocess.run([*compiler, str(folder / "clocks.c"), "-o", str(library)], check=True)
    return library


class Jump:
    """The file that the agent's clocks are shifted by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.to(0, 0)

    def to(self, of_day_s: int, asleep_s: int) -> None:
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.write(struct.pack("<qq", of_day_s, asleep_s))


@pytest.fixture
def jumping(make_node: NodeMaker, clocks: Path, tmp_path: Path) -> tuple[SimNode, Jump]:
    jump = Jump(tmp_path / "jump")
    more = {"LD_PRELOAD": str(clocks), "VGPU_TEST_CLOCKS": str(jump.path)}
    return make_node("--allocate-budget", "10s", environ=more), jump


@pytest.mark.parametrize(
    "jumps",
    [
        pytest.param([(HOUR_S, 0)], id="an hour forward"),
        pytest.param([(-HOUR_S, 0)], id="an hour back"),
        pytest.param([(HOUR_S, HOUR_S)], id="an hour was slept"),
        pytest.param(
            [(HOUR_S, 0), (-HOUR_S, 0), (86400 * 365, 60), (0, 120)],
            id="to and fro",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_clocks_jump_while_pods_run(
    jumping: tuple[SimNode, Jump], jumps: list[tuple[int, int]]
) -> None:
    """Who runs keeps what it has, its counters go on, and the next pod is served."""
    node, jump = jumping
    counters = Counters(node)
    pod = node.run_pod("before", [Ask(memory_mib=700)])
    grant = pod.admitted.containers["main"]
    tenant = Container.start(
        "tenant", driver=node.driver, env=grant.env,
        mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
    )  # fmt: skip
    try:
        assert tenant.ask("alloc 600").ok
        assert not tenant.ask("alloc 101").ok
        eventually(lambda: not counters.violations() and counters.seen, within_s=20)
        for number, (of_day_s, asleep_s) in enumerate(jumps):
            jump.to(of_day_s, asleep_s)
            serves(node, f"after-{number}")
            assert counters.violations() == []
            assert violations(node, [pod]) == []
            assert tenant.running
            assert not tenant.ask("alloc 101").ok
        assert counters.seen
    finally:
        tenant.stop()


def test_the_clock_is_really_shifted(jumping: tuple[SimNode, Jump]) -> None:
    """Otherwise the rows above would prove nothing."""
    node, jump = jumping
    jump.to(0, 0)
    today = node.log_text().splitlines()[0][:2]
    jump.to(11 * HOUR_S, 0)
    node.run_pod("later", [Ask(memory_mib=700)])
    eventually(lambda: node.log_text().splitlines()[-1][:2] != today)
