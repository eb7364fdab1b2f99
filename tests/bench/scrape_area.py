"""What a scrape of a full node costs: 8 GPUs, each shared by 100 containers of 4 processes."""

import sys
import time
from collections.abc import Iterator

from tests.bench.nodes import ROOT
from tests.bench.rows import Row, row

RUNS = 30
GPUS, CONTAINERS_EACH, PROCESSES_EACH = 8, 100, 4


def scrape_area() -> Iterator[Row]:
    """One page of metrics of 800 containers, made in this process."""
    sys.path.insert(0, str(ROOT / "tests"))
    from use_pictures import NOW_S, Node, crowd

    from agent.adapters.metrics import Exposed, Metrics

    use = crowd(GPUS, CONTAINERS_EACH, PROCESSES_EACH)
    node = Node(tuple(one.state for one in use.containers if one.state))
    suffix = f"{GPUS} GPUs x {CONTAINERS_EACH} containers x {PROCESSES_EACH} processes"
    for name, exposed in (
        ("scrape", Exposed(node_name="node")),
        ("scrape with --metrics-per-process", Exposed(node_name="node", per_process=True)),
        ("scrape with --legacy-metrics", Exposed(node_name="node", legacy=True)),
    ):
        metrics = Metrics("0", node, use=lambda: use, exposed=exposed, clock=lambda: NOW_S)
        metrics.render("")  # the first one compiles and fills caches
        took_ms, ran_ms = [], []
        for _ in range(RUNS):
            began, ran = time.perf_counter(), time.thread_time()
            metrics.render("")
            took_ms.append((time.perf_counter() - began) * 1e3)
            ran_ms.append((time.thread_time() - ran) * 1e3)
        yield row("scrape", f"{name}: time, {suffix}", took_ms, "ms", target=50)
        yield row("scrape", f"{name}: CPU, {suffix}", ran_ms, "ms", target=50)
        yield row("scrape", f"{name}: size", [len(metrics.render("")[0]) / 1e6], "MB")
