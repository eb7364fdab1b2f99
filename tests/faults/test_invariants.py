"""The checkers of the matrix find what they are for: each invariant is broken by hand once."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.faults.invariants import Counters, unreleased, violations


def journal_of(node: SimNode) -> Path:
    (path,) = (node.root / "state/grants").glob("*.jsonl")
    return path


def cut_the_journal(node: SimNode) -> None:
    path = journal_of(node)
    path.write_bytes(path.read_bytes()[:-7])


def cut_a_region(node: SimNode) -> None:
    path = next((node.root / "host/vgpu/containers").glob("*/*.cache"))
    os.truncate(path, 1000)


def begin_a_line(node: SimNode) -> None:
    path = next((node.root / "host/vgpu/limits").glob("[!.]*"))
    raw = bytearray(path.read_bytes())
    raw[64] |= 1
    path.write_bytes(raw)


def grant_too_much(node: SimNode) -> None:
    path = journal_of(node)
    first = json.loads(path.read_text().splitlines()[0])
    first["granted"]["container"] = "other"
    first["granted"]["claims"][0]["memory_mib"] = 46068
    path.write_text(path.read_text() + json.dumps(first) + "\n")


def raise_a_limit(node: SimNode) -> None:
    path = next((node.root / "host/vgpu/limits").glob("[!.]*"))
    raw = bytearray(path.read_bytes())
    raw[88:96] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(raw)


def grant_twice(node: SimNode) -> None:
    path = journal_of(node)
    first = json.loads(path.read_text().splitlines()[0])
    first["granted"]["container"] = "other"
    path.write_text(path.read_text() + json.dumps(first) + "\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(cut_the_journal, "cut short", id="a journal cut short"),
        pytest.param(cut_a_region, "region", id="half a region"),
        pytest.param(begin_a_line, "half written", id="half a line"),
        pytest.param(grant_too_much, "MiB granted", id="more memory than there is"),
        pytest.param(raise_a_limit, "bytes in limits files", id="a limit above the GPU"),
        pytest.param(grant_twice, "belongs to", id="two owners"),
    ],
)
def test_it_is_found(make_node: NodeMaker, spoil: Callable[[SimNode], None], said: str) -> None:
    node = make_node("--allocate-budget", "10s")
    pod: RanPod = node.run_pod("pod", [Ask(memory_mib=700)])
    assert pod.admitted.ok, pod.admitted.message
    assert violations(node, [pod]) == []
    spoil(node)
    assert said in " ".join(violations(node, [pod]))


def test_what_is_left_is_found(make_node: NodeMaker) -> None:
    node = make_node("--allocate-budget", "10s")
    pod = node.run_pod("pod", [Ask(memory_mib=700)])
    assert unreleased(node) == []
    (node.root / "state" / ".totals.json.1.0123abcd").touch()
    node.delete_pod(pod)
    left = unreleased(node)
    assert {path.rpartition("/")[0] for path in left} == {
        "host/vgpu/containers", "host/vgpu/limits", "state/grants", "state",
    }  # fmt: skip


class _Pages:
    """A node whose /metrics says this, one after the other."""

    def __init__(self, *pages: str) -> None:
        self._pages = iter(pages)

    def fetch(self, _where: str) -> tuple[int, str]:
        return 200, next(self._pages)


def test_a_counter_that_goes_back_is_found() -> None:
    series = 'vgpu_container_gpu_seconds_total{pod="p"}'
    counters = Counters(_Pages(f"{series} 5.0", f"{series} 5.0", f"{series} 4.0"))  # type: ignore[arg-type]
    assert counters.violations() == []
    assert counters.violations() == []
    assert counters.violations() == [f"{series}: 4.0 after 5.0"]
