"""The page says what was found, and what is not met."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.scale import page
from tests.scale.counts import Counts
from tests.scale.scenarios import GROWTH, NAMES, Cost, Seen, Shard

NODES = 10
SAME = page.Proof(
    steps=2,
    requests=4,
    differences=(),
    rest_s=60.0,
    real={"list pods": 1, "watch pods": 1},
    simulated={"list pods": (1, 1), "watch pods": (1, 2)},
)
COST = Cost(
    pods=1, gpus=1, split_count=1, vgpus_per_pod=1, start_bytes=1024.0, hour_bytes=2048.0,
    hour_requests=10.0, pod_bytes=1024, register_bytes=100, kubelet_bytes=50,
)  # fmt: skip
ABOUT = {
    "command": "build.py scale", "machine": "a machine", "version": "1", "commit": "1234abc",
    "date": "2026-01-31", "took_s": 60,
}  # fmt: skip


def cluster(**requests: int) -> Shard:
    """Each scenario with these requests, evenly over its first seconds."""
    asked = Counter({(verb, "pods", 200): number for verb, number in requests.items()})
    by_second = Counter({(second, "watch", 200): 1 for second in range(sum(requests.values()))})
    seen = Seen(Counts(requests=asked, by_second=by_second), lasts_s=3600.0)
    return Shard(NODES, {"node": 1, "pod": 1}, dict.fromkeys(NAMES, seen))


def test_every_scenario_says_how_many_bytes_it_was() -> None:
    rows = page.rows(cluster(watch=2 * NODES), SAME)
    assert {row.scenario for row in rows if row.what.startswith("KiB per node")} == set(NAMES)


def test_the_figures_on_record_are_those_of_the_bytes_on_record() -> None:
    found = json.loads((Path(__file__).parents[2] / "docs/results/scale.json").read_text())
    figures = {f["scenario"]: f["value"] for f in found["figures"] if f["what"] == "KiB per node"}
    assert len(figures) == len(NAMES) - 1  # rest is told by the hour
    for name, value in figures.items():
        seen = found["scenarios"][name]
        kib = (seen["bytes_in"] + seen["bytes_out"]) / 1024 / found["about"]["nodes"]
        assert value == pytest.approx(kib), name


def written(whole: Shard, proof: page.Proof) -> str:
    growth = {kind: [COST] for kind in GROWTH}
    return page.as_markdown(page.as_json(whole, proof, growth, ABOUT | {"processes": 1}))


def test_a_cluster_that_only_renews_its_watches() -> None:
    text = written(cluster(watch=2 * NODES), SAME)
    assert "All are met." in text
    assert "NO" not in text
    assert "differences: none" in text


@pytest.mark.parametrize("key", ["command", "version", "commit", "date", "machine"])
def test_it_says_what_was_counted_where_and_when(key: str) -> None:
    text = written(cluster(watch=2 * NODES), SAME)
    (line,) = [line for line in text.splitlines() if line.startswith(f"- {key}: ")]
    assert ABOUT[key] in line


@pytest.mark.parametrize(
    ("whole", "proof", "unmet"),
    [
        pytest.param(cluster(patch=1), SAME, "rest, writes", id="a write at rest"),
        pytest.param(cluster(list=1), SAME, "rest, gets and lists", id="a list at rest"),
        pytest.param(
            cluster(watch=13 * NODES), SAME, "rest, watches renewed", id="too many renewals"
        ),
        pytest.param(
            cluster(watch=1),
            replace(SAME, differences=("start, pods: a against b",)),
            "proof, steps in which",
            id="a real agent asks otherwise",
        ),
        pytest.param(
            cluster(watch=1),
            replace(SAME, real={"list pods": 2, "watch pods": 1}),
            "proof, kinds of requests",
            id="a real agent asks more",
        ),
        pytest.param(
            cluster(watch=1),
            replace(SAME, real={"list pods": 1, "watch pods": 1, "get nodes": 1}),
            "proof, kinds of requests",
            id="a real agent asks for something else",
        ),
    ],
)
def test_what_is_not_met_is_told(whole: Shard, proof: page.Proof, unmet: str) -> None:
    text = written(whole, proof)
    assert f"Not met: {unmet}" in text or f"; {unmet}" in text
    assert "**NO**" in text
