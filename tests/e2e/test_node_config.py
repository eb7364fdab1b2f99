"""Several configurations in one ConfigMap: the Node's label says which one the agent takes."""

from pathlib import Path

import pytest

from agent.sim.api_client import MERGE_PATCH, path
from agent.sim.node import SimNode
from tests.e2e.conftest import NodeMaker
from tests.waiting import eventually

GPU = "nvidia.com/gpu"
LABEL = "nvidia.com/device-plugin.config"
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "default").write_text("version: v1\n")
    (tmp_path / "four").write_text(SHARED % 4)
    return tmp_path


def label(node: SimNode, value: str | None) -> None:
    body = {"metadata": {"labels": {LABEL: value}}}
    node.client.ask("PATCH", path("nodes", node.name), body, content_type=MERGE_PATCH)


def offers(node: SimNode, count: int) -> None:
    eventually(
        lambda: node.kubelet.node_status().allocatable.get(GPU) == count,
        within_s=60,
        what=f"{count} of {GPU}",
    )
    eventually(node.ready, within_s=60, what="/readyz")


def test_the_label_chooses_and_a_change_ends_the_agent(make_node: NodeMaker, folder: Path) -> None:
    node = make_node("--mode", "nvidia", "--config-file-srcdir", str(folder), started=False)
    node.start_agent()
    offers(node, 2)
    label(node, "none-of-that-name")
    eventually(lambda: "none-of-that-name" in node.log_text(), within_s=60, what="told")
    label(node, "four")
    assert node.agent is not None
    assert node.agent.wait(30) == 0, "whoever runs it starts it anew"
    node.start_agent()
    offers(node, 8)


def test_a_label_of_none_is_told_at_the_start(make_node: NodeMaker, folder: Path) -> None:
    node = make_node("--mode", "nvidia", "--config-file-srcdir", str(folder), started=False)
    label(node, "five")
    node.start_agent()
    assert node.agent is not None
    assert node.agent.wait(30) == 1
    assert "names the configuration 'five', and there is none of that name" in node.log_text()
