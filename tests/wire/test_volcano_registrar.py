"""Volcano's scheduler finds this node's GPUs, over real HTTP; see test_registrar for the rest."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from kube_stage import annotate_node
from waiting import eventually

from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.volcano import FACTOR, HANDSHAKE, REGISTER, VolcanoRegister, dialect
from agent.sim.api_client import ApiClient
from agent.sim.apiserver import ApiServer
from agent.sim.volcano_scheduler import VolcanoScheduler
from tests.wire.test_registrar import Scene, running, server

__all__ = ["server"]

GPUS = GpuInventory.of(
    Gpu(uuid=f"GPU-{letter}", index=index, name="NVIDIA A40", memory_mib=46068, minor=1 - index)
    for index, letter in ((0, "a"), (1, "b"))
)
RECORD = "GPU-{},10,15356,NVIDIA-NVIDIA A40,true,hami-core:"
TEXT = RECORD.format("b") + RECORD.format("a")  # by minor number


def volcano(server: ApiServer, tmp_path: Path, **settings: Any) -> AbstractContextManager[Scene]:
    return running(
        server,
        tmp_path,
        gpus=GPUS,
        register=VolcanoRegister(sharing=Sharing(), factor=lambda: 3),
        dialect=dialect(lambda: 3),
        **settings,
    )


@pytest.mark.parametrize("release", ["1.9", "1.12", "1.15"])
def test_the_scheduler_of_each_release_finds_the_gpus(
    server: ApiServer, tmp_path: Path, release: str
) -> None:
    scheduler = VolcanoScheduler(ApiClient(server.url), release=release)
    with volcano(server, tmp_path, handshake=True) as scene:
        eventually(scene.at_rest)
        seen = [(d.place, d.uuid, d.number, d.memory, d.healthy) for d in scheduler.look("n1")]
        assert seen == [(0, "GPU-b", 10, 15356, True), (1, "GPU-a", 10, 15356, True)]


def test_all_is_written_at_once(server: ApiServer, tmp_path: Path) -> None:
    with volcano(server, tmp_path, handshake=True) as scene:
        eventually(scene.at_rest)
        assert (scene.annotation(REGISTER), scene.annotation(FACTOR)) == (TEXT, "3")
        assert (scene.annotation(HANDSHAKE) or "").startswith("Reported")
        assert scene.writes == 1


def test_another_order_is_another_meaning(server: ApiServer, tmp_path: Path) -> None:
    """A GPU's id in the scheduler is its place."""
    annotate_node(server, {REGISTER: RECORD.format("a") + RECORD.format("b"), FACTOR: "3"})
    with volcano(server, tmp_path) as scene:
        eventually(lambda: scene.annotation(REGISTER) == TEXT)
        eventually(scene.at_rest)
        assert scene.writes == 1


def test_a_restarted_agent_writes_nothing(server: ApiServer, tmp_path: Path) -> None:
    annotate_node(server, {REGISTER: TEXT, FACTOR: "3", HANDSHAKE: "Reported x"})
    with volcano(server, tmp_path, handshake=True) as scene:
        eventually(scene.at_rest)
        assert scene.writes == 0


def test_scores_of_hami_are_left_alone(server: ApiServer, tmp_path: Path) -> None:
    annotate_node(server, {"hami.io/node-nvidia-score": "[]"})
    with volcano(server, tmp_path) as scene:
        eventually(scene.at_rest)
        assert scene.annotation("hami.io/node-nvidia-score") == "[]"


def test_who_undoes_it_again_and_again_does_not_make_us_write_all_the_time(
    server: ApiServer, tmp_path: Path
) -> None:
    with volcano(server, tmp_path) as scene:
        eventually(scene.at_rest)
        for _ in range(3):
            written = scene.writes
            annotate_node(server, {FACTOR: "7"})
            eventually(lambda written=written: scene.writes > written, within_s=60)
        eventually(lambda: scene.annotation(FACTOR) == "3", within_s=60)
        annotate_node(server, {FACTOR: "7"})
        assert eventually(lambda: scene.registrar.step_once() > 1.0, within_s=60)


def test_it_is_taken_back(server: ApiServer, tmp_path: Path) -> None:
    with volcano(server, tmp_path, handshake=True) as scene:
        eventually(scene.at_rest)
    assert scene.registrar.leave(within_s=5.0)
    assert [scene.annotation(key) for key in (REGISTER, FACTOR, HANDSHAKE)] == [None] * 3
