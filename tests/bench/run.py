"""Measure agent and hook: `python3 build.py bench [--only AREA] [--json FILE]`.

Without both, and without a peer, it writes docs/results/bench.json and install.json, a page beside
each. Exit code 1: a negative control passed the check that it must fail, so nothing was shown.

Every area but `hook`, `share`, `scrape`, `region`, `wake` and `feedback` starts a simulated node of its own
and the agent as a process; nothing of the agent runs in here.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agent.sim.node import Ask, SimNode  # noqa: E402 - the path above leads to them
from tests import provenance  # noqa: E402
from tests.bench.artifact_area import artifact_area  # noqa: E402
from tests.bench.columns_area import columns_area  # noqa: E402
from tests.bench.cpu import cores, cpu_s, wake_area  # noqa: E402
from tests.bench.feedback_area import feedback_area  # noqa: E402
from tests.bench.hook_area import hook_area, peer_path  # noqa: E402
from tests.bench.install_area import INSTALLING, install_area  # noqa: E402
from tests.bench.nodes import a_node, resident_mib  # noqa: E402
from tests.bench.plugin_area import allocations, peer_named, plugin_area  # noqa: E402
from tests.bench.region_area import region_area  # noqa: E402
from tests.bench.rows import (  # noqa: E402
    BENCHMARK,
    BenchError,
    Page,
    Row,
    as_text,
    failed_controls,
    percentile,
    row,
    write,
)
from tests.bench.scrape_area import scrape_area  # noqa: E402
from tests.bench.share_matrix import share_area  # noqa: E402

IDLE_S = 60.0
ALLOCATE_P99_MS = 20.0  # meant without what the API server takes for its two writes
RECORD = ROOT / "docs" / "results"


def bystanders(node: SimNode, count: int) -> None:
    """Pods that already run on the node and want no GPU."""
    for number in range(count):
        name = f"bystander-{number}"
        node.create_pod(name, [Ask(vgpus=0)])
        node.scheduler.bind("team", name, node.name)


def allocate_area() -> Iterator[Row]:
    """Allocate with 1, 10 and 100 pods on the node, and what it costs the API server."""
    for pods in (1, 10, 100):
        with a_node("--device-split-count", "100") as node:
            bystanders(node, pods - 1)
            found = allocations(node, 100)
            suffix = f", {pods} pod{'s' if pods > 1 else ''} on the node"
            took_ms, writes, reads = found.took_ms, found.writes, found.reads
            yield row("allocate", f"Allocate p50{suffix}", took_ms, "ms")
            yield row(
                "allocate", f"Allocate p99{suffix}", took_ms, "ms", target=ALLOCATE_P99_MS,
                value=percentile(took_ms, 99),
            )  # fmt: skip
            yield row("allocate", f"admission of a pod p50{suffix}", found.whole_ms, "ms")
            yield row(
                "allocate", f"API writes per Allocate{suffix}", writes, "", target=3,
                value=max(writes),
            )  # fmt: skip
            yield row(
                "allocate", f"API reads per Allocate{suffix}", reads, "", target=0, value=max(reads)
            )


def idle_area() -> Iterator[Row]:
    """CPU and API requests of an agent with nothing to do, for a minute; cores awake, and asleep."""
    with a_node() as node:
        assert node.agent is not None
        time.sleep(5.0)  # what start-up left to do
        for state in ("awake", "asleep"):
            with cores(state):
                before_cpu, before_requests = cpu_s(node.agent.pid), len(node.api.requests())
                time.sleep(IDLE_S)
                percent = (cpu_s(node.agent.pid) - before_cpu) / IDLE_S * 100
            yield row("idle", f"CPU, share of one core, cores {state}", [percent], "%", target=0.2)
        made = node.api.requests()[before_requests:]
        watches = sum(r.verb == "watch" for r in made) * 60 / IDLE_S
        per_minute = len(made) * 60 / IDLE_S - watches
        yield row("idle", "API requests a minute beyond watches", [per_minute], "", target=0)
        # Two watches, each renewed after 8 to 16 minutes.
        yield row("idle", "watches opened a minute", [watches], "", target=1)


def memory_area() -> Iterator[Row]:
    """Resident memory after start, and after pods have come and gone; modules come from .pyc files.

    An agent that compiles them itself has 12 MiB more until it serves, and 2 MiB from then on.
    """
    with a_node():
        pass  # what it starts writes those files
    with a_node() as node:
        assert node.agent is not None
        yield row(
            "memory",
            "resident, ready, with .pyc files",
            [resident_mib(node.agent.pid)],
            "MiB",
            target=64,
        )
        for number in range(50):
            pod = node.run_pod(f"pod-{number}", [Ask(memory_mib=100, core_percent=0)])
            node.delete_pod(pod)
        yield row(
            "memory",
            "resident, after 50 pods, with .pyc files",
            [resident_mib(node.agent.pid)],
            "MiB",
            target=64,
        )


def start_area() -> Iterator[Row]:
    """From exec to registered, from kubelet restart to registered again, from SIGTERM to the end."""
    started, restarted, stopped = [], [], []
    for number in range(5):
        with a_node(started=False) as node:
            began = time.perf_counter()
            node.start_agent()
            node.wait("registration", lambda: node.allocatable() > 0)
            started.append(time.perf_counter() - began)
            node.wait("readiness", node.ready)
            node.kubelet.stop()
            time.sleep(0.5)
            began = time.perf_counter()
            node.kubelet.start()
            node.wait("registration", lambda: node.allocatable() > 0)
            restarted.append(time.perf_counter() - began)
            node.wait("readiness", node.ready)
            time.sleep(0.37 * number)  # a stop finds each loop elsewhere in its turn
            began = time.perf_counter()
            if code := node.stop_agent():
                raise RuntimeError(f"the agent ended with {code} instead of 0")
            stopped.append(time.perf_counter() - began)
    yield row("start", "start to registered, from source", started, "s", target=1.0)
    yield row("start", "kubelet restart to registered again", restarted, "s", target=1.0)
    yield row(
        "start",
        "SIGTERM to the end, the slowest of 5",
        stopped,
        "s",
        target=5.0,
        value=max(stopped),
    )


def large_area() -> Iterator[Row]:
    """16 GPUs x 100 vGPUs: 1600 devices, above kubelet's comfortable 1000."""
    with a_node("--device-split-count", "100", gpus=16, started=False) as node:
        began = time.perf_counter()
        node.start_agent()
        node.wait("registration", lambda: node.allocatable() == 1600)
        yield row(
            "large", "16 x 100 vGPUs: start to registered", [time.perf_counter() - began], "s"
        )
        node.wait("readiness", node.ready)
        took_ms = []
        for number in range(30):
            node.run_pod(f"pod-{number}", [Ask(memory_mib=100, core_percent=0)])
            took_ms.append(node.kubelet.history("allocated")[-1].detail["took_s"] * 1e3)
        yield row("large", "16 x 100 vGPUs: Allocate p50", took_ms, "ms")
        assert node.agent is not None
        yield row(
            "large", "16 x 100 vGPUs: resident", [resident_mib(node.agent.pid)], "MiB", target=64
        )
        node.driver.xid(3, 79)
        began = time.perf_counter()
        node.wait("the sick GPU leaves", lambda: node.allocatable() == 1500)
        yield row(
            "large",
            "16 x 100 vGPUs: XID to kubelet",
            [time.perf_counter() - began],
            "s",
            target=0.5,
        )


AREAS: dict[str, Callable[[], Iterator[Row]]] = {
    "start": start_area,
    "allocate": allocate_area,
    "memory": memory_area,
    "large": large_area,
    "wake": wake_area,
    "idle": idle_area,
    "scrape": scrape_area,
    "region": region_area,
    "feedback": feedback_area,
    "artifact": artifact_area,
    "install": install_area,
    "hook": hook_area,
    "columns": columns_area,
    "share": share_area,
    "plugin": lambda: plugin_area(None),
}


@dataclass(frozen=True, slots=True)
class Written:
    """A file, the page beside it, and the rows on both."""

    target: Path
    page: Page
    rows: Sequence[Row]


def to_write(
    rows: Sequence[Row], *, target: Path | None, only: Sequence[str] | None, compared: bool
) -> Iterator[Written]:
    """Where the rows go: to what is named, else to the record, if all of ours and no peer is in them."""
    if target is not None:
        yield Written(target, INSTALLING if only == ["install"] else BENCHMARK, rows)
    elif not only and not compared:
        ours = [found for found in rows if found.area != "install"]
        yield Written(RECORD / "bench.json", BENCHMARK, ours)
        installing = [found for found in rows if found.area == "install"]
        yield Written(RECORD / "install.json", INSTALLING, installing)


def main() -> int:
    """Run the areas, print the table, write the files."""
    parser = argparse.ArgumentParser(prog="build.py bench", description=__doc__)
    parser.add_argument("--only", choices=AREAS, action="append", help="this area (repeatable)")
    parser.add_argument("--json", type=Path, help="write the rows here, and a .md beside it")
    parser.add_argument(
        "--peer-hook", type=Path, metavar="LIBRARY",
        help="measure this library, too, in the area hook (or VGPU_BENCH_PEER_HOOK)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-plugin", type=Path, metavar="PROGRAM",
        help="measure this device plugin, too, in the area plugin (or VGPU_BENCH_PEER_PLUGIN)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-plugin-words", metavar="WORDS",
        help="what it is started with; tests/bench/plugin_area.py says what they may name",
    )  # fmt: skip
    chosen = parser.parse_args()
    try:
        peer = peer_path(chosen.peer_hook)
        plugin = peer_named(chosen.peer_plugin, chosen.peer_plugin_words)
    except BenchError as error:
        parser.error(str(error))
    if plugin is None and chosen.only == ["plugin"]:
        parser.error("the area plugin compares with a peer: name it with --peer-plugin")
    areas = AREAS | {
        "hook": lambda: hook_area(peer),
        "columns": lambda: columns_area(peer),
        "plugin": lambda: plugin_area(plugin),
    }
    about = provenance.described()  # of the tree that is measured, whatever becomes of it meanwhile
    rows: list[Row] = []
    for name, area in AREAS.items():
        if chosen.only and name not in chosen.only:
            continue
        if name == "plugin" and plugin is None:
            continue
        print(f"{name}: {area.__doc__ or plugin_area.__doc__}", file=sys.stderr, flush=True)
        rows += areas[name]()
    print(as_text(rows))
    words, compared = " ".join(sys.argv[1:]), bool(peer or plugin)
    for one in to_write(rows, target=chosen.json, only=chosen.only, compared=compared):
        write(one.rows, one.target, about, words=words, page=one.page)
    failed = failed_controls(rows)
    for found in failed:
        what = f"{found.area}, {found.name} {found.column}".rstrip()
        print(
            f"{what}: passed the check that it must fail, so the check tells nothing",
            file=sys.stderr,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
