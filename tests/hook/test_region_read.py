"""Reading regions in which real processes count: under the hook, on the simulated driver."""

import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from built_hook import sim_libraries
from hooked_programs import LIMIT, Node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import eventually

from agent.adapters.region_reader import HostRegionReader
from agent.domain.enforcement import Process
from agent.domain.proc_text import life_of
from agent.domain.region import MalformedRegion, Region, decode
from agent.domain.region_reading import RegionName, Sight, living
from agent.sim.driver import SimDriver, made_up_uuid

UID, MIB = "0a1b2c3d-0000-4000-8000-00000000000f", 1 << 20
HOLD = "import os\nstart()\nalloc({mib})\nprint(os.getpid(), flush=True)\ninput()"
NEVER = 1 << 62  # nobody was started after it


@pytest.fixture
def host(tmp_path: Path, node: Node) -> HostRegionReader:
    """The node's host, on which the container's directory is where the agent makes it."""
    tmp_path.chmod(0o755)
    (tmp_path / "containers").mkdir(mode=0o755)
    (tmp_path / "containers" / f"{UID}_main").mkdir()
    return HostRegionReader(tmp_path)


@pytest.fixture
def tenant(tmp_path: Path, node: Node, host: HostRegionReader) -> Node:
    return Node(node.sim, tmp_path / "containers" / f"{UID}_main" / "x.cache")


def region_of(host: HostRegionReader) -> Region:
    (reading,) = host.read([RegionName(UID, "main")])
    assert reading.problem == ""
    assert reading.region is not None
    return reading.region


def started(tenant: Node, mib: int) -> "subprocess.Popen[str]":
    process = tenant.start(HOLD.format(mib=mib), env={LIMIT: "1000m"})
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(process.pid)
    return process


def sight_of(pids: Sequence[int]) -> Sight:
    """Processes as the agent sees them from outside."""
    found = []
    for pid in pids:
        life = life_of(Path(f"/proc/{pid}/stat").read_text())
        assert life is not None
        namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
        found.append(
            Process(
                pid=pid, pid_inside=pid, pid_namespace=namespace, start_time=life.start_time,
                library=True, uses_gpu=True,
            )
        )  # fmt: skip
    return Sight(tuple(found), NEVER, NEVER)


def test_a_killed_process_does_not_count(tenant: Node, host: HostRegionReader) -> None:
    first, second = started(tenant, 300), started(tenant, 200)
    region = region_of(host)
    assert region.has_tail
    assert (region.devices[0].uuid, region.devices[0].limit_bytes) == (made_up_uuid(0), 1000 * MIB)
    held = {process.pid: process.used[0].data_bytes for process in region.processes}
    assert held == {first.pid: 300 * MIB, second.pid: 200 * MIB}
    both = sight_of([first.pid, second.pid])
    assert len(living(region.processes, both)) == 2
    first.send_signal(signal.SIGKILL)
    first.communicate()
    region = region_of(host)
    assert len(region.processes) == 2  # nobody has swept its slot
    alive = living(region.processes, sight_of([second.pid]))
    assert [process.pid for process in alive] == [second.pid]
    second.communicate("\n", timeout=60)


CHURN = """
start()
print("ready", flush=True)
while True:
    free(alloc(100)[1])
"""


def test_a_region_that_is_counted_in_all_the_time(tenant: Node, host: HostRegionReader) -> None:
    process = tenant.start(CHURN, env={LIMIT: "1000m"})
    assert process.stdout is not None
    process.stdout.readline()
    seen: set[int] = set()

    def both() -> bool:
        (one,) = region_of(host).processes
        seen.add(one.used[0].data_bytes // MIB)
        return {0, 100} <= seen

    eventually(both, every_s=0)
    process.kill()
    process.communicate()
    assert seen == {0, 100}


# --- real regions that a tenant has written into --------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What two processes have counted, one of which was refused."""
    place = tmp_path_factory.mktemp("real")
    sim = SimDriver(place, libraries=sim_libraries())
    sim.add_gpu()
    tenant = Node(sim, place / "x.cache")
    first = started(tenant, 300)
    tenant.run("start()\nalloc(200)\nalloc(900)", **{LIMIT: "1000m"})
    content = tenant.cache.read_bytes()
    first.communicate("\n", timeout=60)
    assert decode(content).refusal_count == 1
    return content


EDITS = st.lists(st.tuples(st.integers(0, 2039799), st.binary(min_size=1, max_size=64)), max_size=9)
AIMED = st.lists(
    st.tuples(st.sampled_from([0, 4, 56, 64, 1856, 1864, 3784, 3816, 2008896, 2008912, 2031616,
                               2031632, 2031680, 2031760, 2035776]),
              st.binary(min_size=1, max_size=16)),
    max_size=5,
)  # fmt: skip


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None
)
@given(edits=EDITS, aimed=AIMED, cut=st.none() | st.integers(0, 2039808))
def test_any_change_of_a_real_region_is_read_or_refused(
    real: bytes, edits: list[tuple[int, bytes]], aimed: list[tuple[int, bytes]], cut: int | None
) -> None:
    raw = bytearray(real)
    for at, content in edits + aimed:
        raw[at : at + len(content)] = content
    try:
        region = decode(bytes(raw[:cut]))
    except MalformedRegion:
        return
    assert len(region.processes) <= region.slot_count <= 1024
    assert struct.unpack_from("<i", raw)[0] == 19920718
