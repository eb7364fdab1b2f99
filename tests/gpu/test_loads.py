"""The loads whose shares are measured on real GPUs: what they do, seen by the simulated GPU that they do it on."""

import json
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.sim.driver import LANE, LANES, LANES_AT
from tests.gpu import share_checks
from tests.gpu.checks import Suite
from tests.gpu.share_checks import LOADS, Loads, shares
from tests.gpu.simulated_bed import quick, simulated_bed
from tests.gpu.suite import run
from tests.gpu.tenants import Bed

HERE = Path(__file__).resolve().parent
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
USUAL_CONNECTIONS = 8
THOROUGH = ("small kernels", "CUDA graph", "memory-bound")
KERNEL_US = 20


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_checks, "SKIP_S", 0.05)


@pytest.mark.parametrize("name", [name for name in LOADS if name != "matmul"])
def test_shares_of_each_load_are_measured(tmp_path: Path, name: str) -> None:
    """Not how exact they are: a loaded machine is no place for that."""
    load = LOADS[name]
    connections = int(load.env.get(CONNECTIONS, USUAL_CONNECTIONS))
    bed = quick(simulated_bed(tmp_path, connections=connections), KERNEL_US)
    results = list(shares(bed, name, load, 0.1))
    every, few = 5 + 2 + 2 + 2 + 4, 2 + 2
    assert len(results) == 1 + (every if name in THOROUGH else few) + 1
    assert all(result.value.endswith("%") for result in results[1:-1]), results
    assert results[-1].name.startswith("negative control")


def test_rates_are_work_against_uncapped_work(bed: Bed) -> None:
    loads = Loads.measured(bed, "share", ("load_work.py", "compute"), 0.3)
    assert loads.whole > 0
    assert loads.rounds > 0


def test_a_share_that_is_changed_is_followed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_checks, "STEPS", ((0.0, 30), (0.3, 70), (0.6, 20)))
    monkeypatch.setattr(share_checks, "STEPS_S", 1.0)
    results = run(Suite(bed), ["step"])
    assert [result.name for result in results] == [
        "to 70 %: arrives after", "to 20 %: arrives after", "course",
    ]  # fmt: skip
    assert results[-1].data
    assert [percent for _, percent in results[-1].data["steps"]] == [30, 70, 20]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("16 streams", None, id="as it is by default"),
        pytest.param("16 streams in one queue", "1", id="one"),
    ],
)
def test_each_program_of_a_load_is_told_its_number_of_queues(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, name: str, wanted: str | None
) -> None:
    """That which is not limited, those that are, and those that nobody holds to their limits."""
    told: list[str | None] = []
    start = Bed.tenant

    def tenant(self: Bed, command: list[str], environ: Mapping[str, str]) -> object:
        told.append(environ.get(CONNECTIONS))
        return start(self, command, environ)

    monkeypatch.setattr(Bed, "tenant", tenant)
    list(shares(quick(bed, KERNEL_US), name, LOADS[name], 0.01))
    assert told == [wanted] * (1 + 2 + 2)


# What the simulated GPU keeps of each stream, its last items among it: hook/sim/execution_layout.h.
HEAD, STREAM, ITEM = struct.Struct("<II"), struct.Struct("<IIIIQQ"), struct.Struct("<QQQIIQ8x")
STREAMS, RING = 1024, 1024
STREAM_BYTES = STREAM.size + RING * ITEM.size
IN_USE, LEGACY, NON_BLOCKING, PRIORITIES = 1, 2, 4, 8
NAMES = {LEGACY: "legacy", NON_BLOCKING: "apart", 0: "blocking"}
LIVE, KERNEL, EVENT = 1, 0, 1


@dataclass(frozen=True)
class Seen:
    """A stream, as the simulated GPU sees it, and what it got."""

    context: int
    kind: str
    kernels: int
    events: int


def seen_streams(bed: Bed) -> list[Seen]:
    """Those of the programs that live."""
    raw = Path(bed.environ["VGPU_SIM_DRIVER"] + ".gpu").read_bytes()
    _, size = HEAD.unpack_from(raw)
    lanes = LANE.iter_unpack(raw[LANES_AT : LANES_AT + LANES * LANE.size])
    live = {place for place, (_, _, state, _) in enumerate(lanes) if state == LIVE}
    found = []
    for at in range(size - STREAMS * STREAM_BYTES, size, STREAM_BYTES):
        lane, flags, _, _, _, pushed = STREAM.unpack_from(raw, at)
        if not flags & IN_USE or lane not in live:
            continue
        assert flags >> PRIORITIES == 0, "none of a load's is urgent"
        assert pushed <= RING, "or the first of them are no longer there"
        items = ITEM.iter_unpack(raw[at + STREAM.size :][: pushed * ITEM.size])
        kinds = [kind for _, _, _, kind, _, _ in items]
        name = NAMES[flags & (LEGACY | NON_BLOCKING)]
        found.append(Seen(lane, name, kinds.count(KERNEL), kinds.count(EVENT)))
    return found


@pytest.mark.parametrize(
    ("kind", "contexts", "streams"),
    [
        pytest.param("small", 1, {("legacy", 20, 1): 1}, id="small"),
        pytest.param("graph", 1, {("legacy", 1, 1): 1}, id="graph"),
        pytest.param("memory", 1, {("legacy", 1, 1): 1}, id="memory"),
        pytest.param("compute", 1, {("legacy", 1, 1): 1}, id="compute"),
        pytest.param("streams", 1, {("apart", 1, 1): 16}, id="16 streams"),
        pytest.param("contexts", 2, {("apart", 8, 1): 2}, id="two contexts"),
        pytest.param("legacy", 1, {("blocking", 1, 0): 8, ("legacy", 8, 1): 1}, id="legacy"),
    ],
)
def test_what_a_piece_of_a_load_is_and_where(
    bed: Bed, kind: str, contexts: int, streams: dict[tuple[str, int, int], int]
) -> None:
    """How many streams of which kind get how many kernels and events in each piece.

    Without the hook, and so without its streams; with rounds that are given, and so without what measures them.
    """
    with quick(bed, 100).start(["load_work.py", kind, 1], hooked=False) as tenant:
        tenant.hear()
        assert float(tenant.ask("rate", 0.02, 0.0)["rate"]) > 0
        seen = [one for one in seen_streams(bed) if one.kernels or one.events]
    pieces = max(one.events for one in seen)
    assert pieces > 0
    assert len({one.context for one in seen}) == contexts
    assert Counter((one.kind, one.kernels, one.events) for one in seen) == {
        (name, kernels * pieces, events * pieces): number
        for (name, kernels, events), number in streams.items()
    }


RECORDED = """
import json, sys
import cuda_work, load_work
grids = []
class Recorded(cuda_work.Gpu):
    def call(self, name, *arguments):
        if name == "cuLaunchKernel":
            grids.append(arguments[1:7])
        super().call(name, *arguments)
cuda_work.Gpu = Recorded
work = load_work.load(Recorded().start(), sys.argv[1], 0)
grids.clear()
work.enqueue()
print(json.dumps(grids))
"""


@pytest.mark.parametrize("kind", ["streams", "contexts", "legacy"])
def test_kernels_in_several_places_leave_nothing_of_the_gpu_to_each_other(
    bed: Bed, kind: str
) -> None:
    """Or more of them at once would get more done than one after the other, whatever the limit."""
    done = subprocess.run(
        [sys.executable, "-c", RECORDED, kind],
        env={**bed.environ, "PYTHONPATH": str(HERE)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    grids = json.loads(done.stdout)
    assert grids == [[84 * 1536 // 256, 1, 1, 256, 1, 1]] * 16  # what the simulated GPU has
