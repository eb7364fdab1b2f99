"""Limits that the agent changes, as programs under the hook go by them."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import share_bed
from built_hook import ROOT, sim_libraries
from hooked_programs import Node
from limits_bed import LimitsBed, Talker, limits_bed

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.limit_record import LimitRecord, SetLimit
from agent.domain.limits_file import DeviceLimit
from agent.domain.region import V1
from agent.sim.driver import SimDriver, made_up_uuid

A = made_up_uuid(0)
UID, NAME = "11111111-2222-3333-4444-555555555555", "main"
MIB = 1 << 20


@dataclass(frozen=True)
class Host:
    """Where the agent has the limits file that the container has mounted."""

    bed: LimitsBed
    root: Path

    def give(self, mib: int) -> HostLiveLimits:
        """Grant memory; a hard link stands for the bind mount. Gives an agent that has started."""
        self.bed.write(DeviceLimit(uuid=A, memory_limit_bytes=mib * MIB))
        folder = self.root / "limits"
        folder.mkdir(parents=True)
        os.link(self.bed.path, folder / f"{UID}_{NAME}")
        return self.agent()

    def agent(self) -> HostLiveLimits:
        limits = HostLiveLimits(self.root, self.root / "state", most_names=2)
        limits.mend()
        return limits


def to(mib: int) -> LimitRecord:
    return LimitRecord(
        limits=(SetLimit(uuid=A, memory_limit_bytes=mib * MIB, core_permille=0),), source="socket"
    )


@pytest.fixture
def host(node: Node, tmp_path: Path) -> Host:
    return Host(limits_bed(node, tmp_path / "library"), tmp_path / "host")


def test_a_change_holds_from_the_next_call_on(host: Host) -> None:
    agent = host.give(1000)
    with Talker(host.bed) as program:
        assert program.ask("(alloc(600)[0], info_mib())") == [0, [400, 1000]]
        agent.set_limits(UID, NAME, to(800))
        assert program.ask("(total_mib(), info_mib(), alloc(201)[0])") == [800, [200, 800], 2]
        host.agent().set_limits(UID, NAME, to(2000))
        assert program.ask("(total_mib(), alloc(1400)[0], info_mib())") == [2000, 0, [0, 2000]]


def test_below_what_is_used_the_next_allocation_is_refused_and_nothing_is_taken(host: Host) -> None:
    agent = host.give(1000)
    with Talker(host.bed) as program:
        address = program.ask("alloc(600)[1]")
        agent.set_limits(UID, NAME, to(300))
        assert program.ask("(info_mib(), alloc(1)[0])") == [[0, 300], 2]
        assert program.ask(f"(free({address}), alloc(301)[0], alloc(300)[0])") == [0, 2, 0]


def test_a_process_that_starts_after_a_kill_is_let_in_by_the_next_agent(host: Host) -> None:
    """Those that run go by what the line said; one that starts cannot know, until it is mended."""
    agent = host.give(1000)
    agent.set_limits(UID, NAME, to(700))
    with Talker(host.bed) as program, host.bed.line() as line:
        assert program.ask("total_mib()") == 700
        line.begin()
        line.put(5 * MIB)  # and there the agent was killed
        assert program.ask("(total_mib(), alloc(600)[0])") == [700, 0]
        said = host.bed.node.run("say(init=cuda.cuInit(0))", **host.bed.environment())
        assert said["init"] == 1
        host.agent()
        said = host.bed.node.run("start()\nsay(total=total_mib())", **host.bed.environment())
        assert said["total"] == 700
        assert program.ask("(total_mib(), alloc(101)[0], alloc(100)[0])") == [700, 2, 0]


def test_a_change_holds_for_a_device_that_is_not_listed(host: Host) -> None:
    """Its limits are the least of the others', which were read by who used one of those only."""
    host.bed.node.sim.add_gpu()
    agent = host.give(2000)
    with Talker(host.bed, device=1) as program:
        assert program.ask("total_mib(1)") == 2000
        agent.set_limits(UID, NAME, to(500))
        assert program.ask("(total_mib(1), alloc(501)[0], alloc(500)[0])") == [500, 2, 0]
        with host.bed.line() as line:
            line.begin()
            line.put(5000 * MIB)  # and there the agent was killed
            assert program.ask("total_mib(1)") == 500
            line.put(500 * MIB)
            line.end()
        assert program.ask("total_mib(0)") == 500
    told = host.bed.node.cache.read_bytes()[V1["limit_bytes"] :][
        :8
    ]  # by who used the listed one last
    assert int.from_bytes(told, "little") == 500 * MIB


class InMemory(HostLiveLimits):
    """Does not wait until the file is on disk."""

    def _sync(self, name: str) -> None: ...


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory that is not on disk, where there is such a place."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as place:
        yield Path(place)


CROWD, CHANGES, MOST_CHANGES = 16, 1000, 100_000
SMALL, LARGE = 0x0010_0000 * 4097, 0x0010_0000 * 8190  # bytes; differ in both halves of the word
ALLOCATE = """
start()
import os
os.nice(10)
totals, given, refused, mine = {}, 0, 0, []
print("ready", flush=True)
while not os.path.exists(ENDS):
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    totals[total.value] = totals.get(total.value, 0) + 1
    result, address = alloc(97)
    if result == 0:
        given += 1
        mine.append(address)
    else:
        refused += 1
        while len(mine) > 1:
            free(mine.pop())
say(totals=sorted(totals), given=given, refused=refused)
"""


def test_a_thousand_changes_while_sixteen_processes_allocate(
    host: Host, tmp_path: Path, memory: Path
) -> None:
    """No process ever sees another limit than one of the two, and the larger one is never passed.

    As fast as memory is: it is not the disk that is tested here.
    """
    host.give(SMALL // MIB)
    agent = InMemory(host.root, memory, most_names=2)
    ends = tmp_path / "ends"
    code = ALLOCATE.replace("ENDS", repr(str(ends)))
    crowd = [host.bed.node.start(code, env=host.bed.environment()) for _ in range(CROWD)]
    try:
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
        for turn in range(MOST_CHANGES):
            if turn >= CHANGES and host.bed.node.sim.peak_mib(A) > SMALL // MIB:
                break  # somebody had the processor while the larger limit held
            held = agent.set_limits(UID, NAME, to((LARGE if turn % 2 else SMALL) // MIB))
            assert held is not None
    finally:
        ends.touch()
        said = [
            json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in crowd
        ]
    seen = {total for one in said for total in one["totals"]}
    assert seen == {SMALL, LARGE}
    assert SMALL // MIB < host.bed.node.sim.peak_mib(A) <= LARGE // MIB
    assert sum(one["given"] for one in said) > CROWD
    assert sum(one["refused"] for one in said) > 0


def test_a_share_that_the_agent_changes_holds_within_100_ms(tmp_path: Path) -> None:
    """In virtual time: 30 %, after 2 s 70 %, after 4 s 30 % again."""
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    gpu = sim.add_gpu()
    sim.execution(clock="virtual")
    sim.kernel("kernel", 300)
    tenant = share_bed.Tenant(30, ("ms=6000",), limits_file=True)
    share_bed._make_container(tmp_path, 0, tenant, [gpu.uuid])
    home, host = tmp_path / "c0", tmp_path / "host"
    (host / "limits").mkdir(parents=True)
    os.link(home / "vgpu.limits", host / "limits" / f"{UID}_main")
    words = [
        sys.executable, Path(__file__).with_name("limits_world.py"), ROOT, "2", host,
        host / "state", UID, json.dumps([[2000, 700], [4000, 300]]),
    ]  # fmt: skip
    processes = [
        share_bed._start(sim, home, tenant, [gpu.uuid], 2, 0, 1),
        share_bed._process(
            [str(word) for word in words], {"PATH": os.environ["PATH"], **sim.environment()}
        ),
    ]
    said = [process.communicate(timeout=250) for process in processes]
    assert [err for _, err in said] == ["", ""]
    told = json.loads(said[0][0])
    container = share_bed._judged(tmp_path, 0, 30, [told], share_bed._whole_steps(told))
    percents = container.percents(0.5, 0)  # windows begin every 100 ms
    assert [round(percents[i]) for i in (10, 21, 41)] == [30, 70, 30]
    had_ms = [round(ns / 1e6) for ns in container.worked_ns]  # in each 100 ms
    assert [had_ms[i] for i in (19, 21, 39, 41)] == [30, 70, 70, 30]
