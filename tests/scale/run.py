"""`python3 build.py scale`: what thousands of agents ask of their API server, in virtual time.

Meanwhile a real agent is at rest, and is held against the simulated ones afterwards. Writes
docs/results/scale.md, scale.json and, with matplotlib, the plots beside it.
"""

import argparse
import importlib.util
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from agent import logs  # noqa: E402
from agent.version import VERSION  # noqa: E402
from tests import provenance  # noqa: E402
from tests.scale import page, real_agent, scenarios  # noqa: E402
from tests.scale.fleet import Fleet  # noqa: E402

PAGE = ROOT / "docs" / "results" / "scale.md"
AGENT = [sys.executable, str(ROOT / "agent.py")]
COMPARED = 50  # simulated nodes that the real one is held against


def _shard(nodes: int, seed: int, began_s: float) -> scenarios.Shard:
    def told(name: str) -> None:
        print(f"  {time.time() - began_s:5.0f} s  {nodes} nodes: {name}", flush=True)

    return scenarios.shard(nodes, seed, told)


def whole_cluster(nodes: int, processes: int, seed: int) -> scenarios.Shard:
    """All shards, side by side."""
    parts = [nodes // processes + (number < nodes % processes) for number in range(processes)]
    arguments = [(part, seed + number, time.time()) for number, part in enumerate(parts)]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        return scenarios.together(pool.starmap(_shard, arguments, chunksize=1))


def simulated_rest(lasts_s: float) -> dict[str, tuple[int, int]]:
    """Fewest and most requests of any simulated node in so long, its start included."""
    with tempfile.TemporaryDirectory() as root:
        fleet = Fleet(Path(root), COMPARED, seed=3, pods=0, gpus=2)
        fleet.front.keeps = True
        fleet.start()
        fleet.run(lasts_s)
        by_node: dict[str, Counter[str]] = {name: Counter() for name in fleet.names}
        for request in fleet.front.api.requests():
            selector = request.query.get("fieldSelector", "")
            name = selector.partition("=")[2] or request.name
            by_node[name][f"{request.verb} {request.resource}"] += 1
        fleet.close()
    kinds = sorted({kind for counted in by_node.values() for kind in counted})
    return {
        kind: (min(c[kind] for c in by_node.values()), max(c[kind] for c in by_node.values()))
        for kind in kinds
    }


class Resting:
    """A real agent at rest, while the others are simulated."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._asked: dict[str, int] = {}
        self._thread = threading.Thread(target=self._rest, name="real-agent")
        self._thread.start()

    def _rest(self) -> None:
        self._asked = real_agent.at_rest(AGENT, self._lasts_s)

    def asked(self) -> dict[str, int]:
        """Once it is over."""
        self._thread.join()
        return self._asked


def through_mishaps() -> page.Proof:
    """The simulated node against the real agent, without their rest."""
    with tempfile.TemporaryDirectory(prefix="vs-") as root:
        real = real_agent.real(Path(root), AGENT)
    with tempfile.TemporaryDirectory(prefix="vs-") as root:
        simulated = real_agent.simulated(Path(root))
    return page.Proof(
        steps=len(real),
        requests=sum(len(part) for step in real.values() for part in step.values()),
        differences=real_agent.differences(real, simulated),
        rest_s=0.0,
        real={},
        simulated={},
    )


def show(source: Path) -> None:
    """The page, and the plots where there is the library."""
    source.with_suffix(".md").write_text(page.as_markdown(json.loads(source.read_text())))
    print(f"wrote {source.with_suffix('.md')} and {source.name}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return
    subprocess.run([sys.executable, str(ROOT / "tests/scale/plots.py"), str(source)], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build.py scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000, help="how many (5000)")
    parser.add_argument("--processes", type=int, default=2, help="nodes are shared by them (2)")
    parser.add_argument("--seed", type=int, default=1, help="of all jitter (1)")
    parser.add_argument("--rest", type=float, default=1000.0, help="s of the real agent (1000)")
    parser.add_argument("--page", type=Path, default=PAGE, help="docs/results/scale.md")
    parser.add_argument("--again", action="store_true", help="page and plots of the last run")
    chosen = parser.parse_args(arguments)
    if min(chosen.nodes, chosen.processes) < 1:
        parser.error("--nodes, --processes: at least 1")
    if chosen.again:
        show(chosen.page.with_suffix(".json"))
        return 0
    logs.configure(level="critical")
    began_s, commit, date = time.monotonic(), provenance.commit(), provenance.today()
    resting = Resting(chosen.rest)
    print("a real agent beside a simulated one", flush=True)
    proven = through_mishaps()
    print(f"{chosen.nodes} nodes in {chosen.processes} processes", flush=True)
    whole = whole_cluster(chosen.nodes, chosen.processes, chosen.seed)
    print("growth", flush=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # it changes its process' settings
        growth = pool.apply(scenarios.growth)
    proven = replace(
        proven, rest_s=chosen.rest, real=resting.asked(), simulated=simulated_rest(chosen.rest)
    )
    words = "" if arguments is None and len(sys.argv) == 1 else " " + " ".join(sys.argv[1:])
    about = {
        "command": f"python3 build.py scale{words}",
        "machine": provenance.machine(),
        "version": VERSION,
        "commit": commit,
        "date": date,
        "processes": chosen.processes,
        "compared": COMPARED,
        "took_s": round(time.monotonic() - began_s),
    }
    found = page.as_json(whole, proven, growth, about)
    source = chosen.page.with_suffix(".json")
    source.write_text(json.dumps(found, indent=1) + "\n")
    print(page.figures(found["figures"]))
    show(source)
    return 1 if proven.differences or proven.outside else 0


if __name__ == "__main__":
    sys.exit(main())
