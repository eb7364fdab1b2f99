"""docs/results/scale.md and scale.json: what the fleet asked, held against what it may ask."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.scale.counts import described
from tests.scale.scenarios import (
    FEW_PER_SECOND,
    HOUR_S,
    OUTAGE_S,
    REFUSED_S,
    RETRY_AFTER_S,
    Cost,
    Seen,
    Shard,
)

BUSIEST = "requests in the busiest second, per node"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. Without a target it is only told; all targets are upper bounds."""

    scenario: str
    what: str
    value: float
    target: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Proof:
    """The simulated node held against a real agent process."""

    steps: int
    requests: int
    differences: Sequence[str]
    rest_s: float
    real: Mapping[str, int]  # requests by kind in `rest_s`, the start included
    simulated: Mapping[str, tuple[int, int]]  # fewest and most of any simulated node

    @property
    def outside(self) -> int:
        """Kinds of requests of which the real agent sent fewer or more than any simulated node."""
        kinds = self.real.keys() | self.simulated.keys()
        return sum(
            not low <= self.real.get(kind, 0) <= high
            for kind in kinds
            for low, high in [self.simulated.get(kind, (0, 0))]
        )


def rows(whole: Shard, proof: Proof) -> list[Row]:
    """All figures."""
    nodes, seen = whole.nodes, whole.seen
    return [
        Row("proof", "steps in which a real agent asked otherwise", len(proof.differences), 0),
        Row(
            "proof",
            f"kinds of requests otherwise in {proof.rest_s:.0f} s of rest",
            proof.outside,
            0,
        ),
        *_start("first start", seen["first start"], nodes, writes=1),
        *_rest(seen["rest"], nodes),
        *_start("agents restarted", seen["agents restarted"], nodes, writes=0),
        *_lost("API server goes in good order", seen, nodes, lists=0, requests=2),
        *_lost("API server away", seen, nodes, lists=0, requests=2),
        *_lost("history lost", seen, nodes, lists=1, requests=4),
        *_refused(seen, nodes),
        *_few("agents restarted, few served", seen, nodes),
    ]


def _start(name: str, seen: Seen, nodes: int, *, writes: int) -> list[Row]:
    counts = seen.counts
    return [
        Row(name, "requests per node", seen.number() / nodes, 3 + writes),
        Row(name, "writes per node", seen.number("patch", "create", "update") / nodes, writes),
        Row(name, "lists not from the API server's memory", seen.number("list") - counts.cached_lists, 0),
        Row(name, "KiB per node", _kib(seen) / nodes),
        Row(name, "s until all are whole", seen.whole_s),
        Row(name, BUSIEST, _busiest(seen) / nodes, 1),
    ]  # fmt: skip


def _rest(seen: Seen, nodes: int) -> list[Row]:
    counts, hours = seen.counts, seen.lasts_s / HOUR_S
    ten_minutes = seen.lasts_s / 600.0
    return [
        Row("rest", "writes", seen.number("patch", "create", "update", "delete"), 0),
        Row("rest", "gets and lists", seen.number("get", "list"), 0),
        Row("rest", "lists and watches of more than one node's objects", counts.unselected, 0),
        Row("rest", "watches renewed per node in 10 minutes", seen.number("watch") / nodes / ten_minutes, 2),
        Row("rest", "new connections per node and hour", counts.connections / nodes / hours),
        Row("rest", "requests a second, all nodes", seen.number() / seen.lasts_s),
        Row("rest", "KiB a second, all nodes", _kib(seen) / seen.lasts_s),
        Row("rest", "KiB per node and hour", _kib(seen) / nodes / hours),
        Row("rest", BUSIEST, _busiest(seen) / nodes, 1),
    ]  # fmt: skip


def _lost(
    name: str, seen: Mapping[str, Seen], nodes: int, *, lists: int, requests: int
) -> list[Row]:
    found = seen[name]
    return [
        Row(name, "requests per node", found.number() / nodes, requests),
        Row(name, "lists per node", found.number("list") / nodes, lists),
        Row(name, "writes", found.number("patch", "create", "update"), 0),
        Row(name, "KiB per node", _kib(found) / nodes),
        Row(name, "s until all are whole", found.whole_s),
        Row(name, BUSIEST, _busiest(found) / nodes, 1),
    ]


def _refused(seen: Mapping[str, Seen], nodes: int) -> list[Row]:
    name, after = "429 to everything", "429 gone"
    most = 2 * (1 + REFUSED_S / RETRY_AFTER_S)
    return [
        Row(name, "refused requests per node", seen[name].number(code=429) / nodes, most),
        Row(name, "KiB per node", _kib(seen[name]) / nodes),
        Row(name, BUSIEST, _busiest(seen[name]) / nodes, 1),
        Row(after, "requests per node", seen[after].number() / nodes, 2),
        Row(after, "lists per node", seen[after].number("list") / nodes, 0),
        Row(after, "KiB per node", _kib(seen[after]) / nodes),
        Row(after, "s until all are whole", seen[after].whole_s, RETRY_AFTER_S * 1.5 + 1),
        Row(after, BUSIEST, _busiest(seen[after]) / nodes, 1),
    ]


def _few(name: str, seen: Mapping[str, Seen], nodes: int) -> list[Row]:
    found = seen[name]
    refused = found.number(code=429)
    least_s = 3 * nodes / (FEW_PER_SECOND * nodes / 5000)
    return [
        Row(name, "refused requests per node", refused / nodes, 30),
        Row(name, "KiB per node", _kib(found) / nodes),
        Row(name, "s until all are whole", found.whole_s, 3 * least_s),
        Row(name, BUSIEST, _busiest(found) / nodes, 3),
    ]


def _kib(seen: Seen) -> float:
    return (seen.counts.bytes_in + seen.counts.bytes_out) / 1024


def _busiest(seen: Seen) -> int:
    return max(seen.by_second().values(), default=0)


# --- as text --------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    told = ["| " + " | ".join(line) + " |" for line in (head, *lines)]
    return "\n".join([told[0], "|" + "---|" * len(head), *told[1:]])


def figures(every: Sequence[Mapping[str, Any]]) -> str:
    """The table of figures."""
    words = {None: "", True: "yes", False: "**NO**"}
    return _table(
        ("scenario", "figure", "value", "at most", "met"),
        [
            (
                row["scenario"],
                row["what"],
                _number(row["value"]),
                _number(row["target"]),
                words[row["met"]],
            )
            for row in every
        ],
    )


KIBI = 1024
COLUMNS = (
    ("start, KiB", "start_bytes", KIBI),
    ("rest, requests an hour", "hour_requests", 1),
    ("rest, KiB an hour", "hour_bytes", KIBI),
    ("a change of a pod, KiB", "pod_bytes", KIBI),
    ("register annotation, bytes", "register_bytes", 1),
    ("message to kubelet, bytes", "kubelet_bytes", 1),
)
KINDS = {
    "pods": "pods",
    "gpus": "GPUs",
    "split_count": "vGPUs per GPU",
    "vgpus_per_pod": "vGPUs per pod",
}


def growth_table(growth: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What a node costs, one line per kind of node."""
    return _table(
        ("node with", *(head for head, _, _ in COLUMNS)),
        [
            (f"{one[kind]} {words}", *(_number(one[key] / unit) for _, key, unit in COLUMNS))
            for kind, words in KINDS.items()
            for one in growth[kind]
        ],
    )


def as_json(
    whole: Shard, proof: Proof, growth: Mapping[str, Sequence[Cost]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "about": dict(about) | {"nodes": whole.nodes, "object_bytes": whole.object_bytes},
        "figures": [asdict(row) | {"met": row.met} for row in rows(whole, proof)],
        "proof": asdict(proof),
        "scenarios": {
            name: described(seen.counts)
            | {
                "lasts_s": seen.lasts_s,
                "whole_s": seen.whole_s,
                "answered_by_second": _series(seen.by_second(refused=False)),
                "refused_by_second": _series(seen.by_second(refused=True)),
            }
            for name, seen in whole.seen.items()
        },
        "growth": {name: [asdict(one) for one in some] for name, some in growth.items()},
    }


def _series(by_second: Mapping[int, int]) -> dict[str, int]:
    return {str(second): number for second, number in sorted(by_second.items())}


def as_markdown(found: Mapping[str, Any]) -> str:
    """docs/results/scale.md, of what `as_json` gives."""
    about, proof, size = found["about"], found["proof"], found["about"]["object_bytes"]
    unmet = [f"{row['scenario']}, {row['what']}" for row in found["figures"] if row["met"] is False]
    real = ", ".join(f"{kind} {number}" for kind, number in sorted(proof["real"].items()))
    ranges = [f"{kind} {low} to {high}" for kind, (low, high) in sorted(proof["simulated"].items())]
    nodes = about["nodes"]
    return PAGE.format(
        nodes=f"{nodes:,}",
        command=about["command"],
        machine=about["machine"],
        version=about["version"],
        commit=about.get("commit", "not recorded"),
        date=about.get("date", "not recorded"),
        minutes=_number(round(about["took_s"] / 60, 1)),
        processes=about["processes"],
        node_kib=_number(round(size["node"] / KIBI, 1)),
        pod_kib=_number(round(size["pod"] / KIBI, 1)),
        unmet=f"Not met: {'; '.join(unmet)}." if unmet else "All are met.",
        figures=figures(found["figures"]),
        growth=growth_table(found["growth"]),
        steps=proof["steps"],
        requests=proof["requests"],
        differences="; ".join(proof["differences"]) or "none",
        rest=f"{proof['rest_s']:.0f}",
        real=real,
        ranges=", ".join(ranges),
        compared=about.get("compared", 50),
        outage=f"{OUTAGE_S:.0f}",
        refused=f"{REFUSED_S / 60:.0f}",
        retry=f"{RETRY_AFTER_S:.0f}",
        few=_number(FEW_PER_SECOND * nodes / 5000),
    )


PAGE = """\
# Scale

{nodes} agents and one API server, counted: requests, bytes, and how fast they come. Every second of it is in
[scale.json](scale.json). Written by the command; do not edit.

- command: `{command}`, {minutes} minutes
- version: {version}
- commit: {commit}
- date: {date}
- machine: {machine}

{unmet}

{figures}

The bounds are our own: nothing but renewed watches at rest, at most two in ten minutes and node; never
more than a request per node in one second; no list because an API server was away or busy. What each scenario is:

| scenario | what happens |
|---|---|
| first start | all agents are started in one moment, on nodes that no agent was on before |
| rest | an hour in which nothing is placed and nothing ends; kubelets write the status of their nodes every 5 minutes |
| agents restarted | all agents are stopped and started in one moment |
| API server goes in good order | it ends every watch in one moment, as when it is upgraded; another answers at once |
| API server away | it is killed: every connection is cut, and for {outage} s nobody listens |
| history lost | every connection is cut and no watch can be resumed (410) |
| 429 to everything | every watch is ended, and for {refused} minutes all is answered with 429 and `Retry-After: {retry}` |
| 429 gone | what follows |
| agents restarted, few served | all agents start in one moment; the API server takes {few} requests a second and answers 429 with `Retry-After: 1` to all others |

![Requests in each second after the event](scale-storms.png)

Agents do not wait at their start, since a pod may wait for them: all in one moment means all requests in
one second. A DaemonSet is rolled out node by node, unless it is told otherwise. An API server that cannot bear
it answers 429: that is the last scenario. After a lost history each agent asks for four things, each soon after the
one before. An agent that was refused for long finds its version forgotten, if the API server keeps no longer history:
the stand-in keeps 5,000 changes, which 2,500 nodes make in ten minutes, and etcd is compacted every 5 minutes by default.
Then a list each is due after the 429s, too, and with fewer nodes it is not.

## How the cost of a node grows

An hour at rest, and a start, of nodes with 8 GPUs, 10 vGPUs per GPU, 10 pods and one vGPU per pod but for what is named:

{growth}

![What a node costs with more pods, GPUs and vGPUs](scale-growth.png)

A start brings all pods of the node once; at rest pods cost nothing until they change. The message with all vGPUs
goes to kubelet on the same node, not to the API server; kubelet takes at most 4 MiB.

## What is real, and what is not

- Real: the agent's way to the API server (`KubeTransport` with its HTTP library, `KubeCluster`), the picture it keeps
  (`NodeView`, `PodWatch`, `NodeWatch`) and what it writes by itself (`Registrar`), one instance of each per node, with their
  own loops; HTTP over sockets of the loopback device; of the stand-in API server routes, selectors, patches, versions,
  watches and refusals.
- Not real: time. An hour passes as fast as it can be computed; requests take none of it, so delays of a network or of an API
  server that is slow are not in this. Nodes do not wait for one another.
- Not there: TLS (each new connection would cost some KiB more), GPUs and kubelets (made-up GPUs; nothing is allocated, so
  writes of Allocate and Events are not counted here: [the benchmark](bench.md) counts two writes for each pod), other agents
  of the cluster, etcd, priority and fairness. Bytes are those of HTTP, heads included, uncompressed.
- Nodes and pods are made up, a Node of {node_kib} KiB and pods of {pod_kib} KiB, with the images, conditions and managed fields that
  real ones have. The {nodes} nodes are in {processes} processes, each with an API server of its own, as several API servers
  behind one address share a cluster's nodes.

That a simulated node asks what an agent asks: a real agent process (simulated driver, stand-in kubelet) and a simulated node went
through the same {steps} steps, among them a restarted API server, 410 and 429. Verb, object, query, body and answer of each of the real
one's {requests} requests were compared, in order; differences: {differences}. At rest for {rest} s, its start included, the
real one asked: {real}; the {compared} simulated ones in the same time: {ranges}. `tests/scale/test_scale.py` compares again in every
test run.
"""
