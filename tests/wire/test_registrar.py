"""The scheduler finds this node's GPUs, and the agent writes no more than that takes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kube_stage import StoppableLife, annotate_node, annotations, cluster_of
from sick_gpus import with_health
from waiting import eventually

from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.pods import Node
from agent.domain.register import retired
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.published import PodTable, Published
from agent.services.registrar import Registrar
from agent.sim.api_client import ApiClient
from agent.sim.apiserver import ApiServer
from agent.sim.scheduler import Scheduler

REGISTER = "hami.io/node-nvidia-register"
SCORE = "hami.io/node-nvidia-score"
HANDSHAKE = "hami.io/node-handshake"
GPUS = GpuInventory.of(
    Gpu(uuid=f"GPU-{letter}", index=index, name="NVIDIA A40", memory_mib=46068)
    for index, letter in ((1, "b"), (0, "a"))
)
JSON = (
    '[{"id":"GPU-a","count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40",'
    '"mode":"hami-core","health":true},'
    '{"id":"GPU-b","index":1,"count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40",'
    '"mode":"hami-core","health":true}]'
)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        annotate_node(server, {"other/key": "theirs"})
        yield server


class Scene:
    """A registrar and a node watch on a node whose GPUs the test decides."""

    def __init__(self, server: ApiServer, tmp_path: Path, **settings: Any) -> None:
        self.server = server
        watch_s = settings.pop("watch_s", (300.0, 600.0))
        self.inventory = Published(settings.pop("gpus", GPUS))
        self.own_node: Published[Node | None] = Published(None)
        self.outcomes: list[str] = []
        cluster = cluster_of(server, tmp_path, watch_s=watch_s)
        view = NodeView(cluster, node_name="n1", pods=Published(PodTable()), own_node=self.own_node)
        self.node_watch = NodeWatch(cluster, view)
        self.registrar = Registrar(
            cluster,
            self.inventory,
            self.own_node,
            Sharing(),
            count=self.outcomes.append,
            jitter=lambda: 0.0,
            **settings,
        )
        self.life = StoppableLife()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for service in (self.node_watch, self.registrar):
            thread = threading.Thread(target=service.run, args=(self.life,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self.life.end()
        for thread in self._threads:
            eventually(lambda it=thread: not it.is_alive(), what="the services end")

    def annotation(self, key: str = REGISTER) -> str | None:
        return annotations(self.server, "nodes", "n1").get(key)

    @property
    def writes(self) -> int:
        return len(self.server.requests(verb="patch", resource="nodes"))

    def at_rest(self) -> bool:
        """Whether everything that happened has reached the registrar and it wants nothing more."""
        node, now = self.own_node.now(), self.server.objects.get("nodes", "n1")
        seen = node is not None and node.resource_version == now["metadata"]["resourceVersion"]
        return seen and not self.registrar.missing()


@contextmanager
def running(server: ApiServer, tmp_path: Path, **settings: Any) -> Iterator[Scene]:
    scene = Scene(server, tmp_path, **settings)
    scene.start()
    try:
        yield scene
    finally:
        scene.end()


# --- the register annotation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "release"), [("csv7", "2.4"), ("csv9", "2.7"), ("json", "2.8"), ("json", "2.10")]
)
def test_the_scheduler_of_each_release_finds_the_gpus(
    server: ApiServer, tmp_path: Path, form: str, release: str
) -> None:
    scheduler = Scheduler(ApiClient(server.url), release=release)
    with running(server, tmp_path, form=form) as scene:
        eventually(lambda: not scene.registrar.missing())
        set_allocatable(server, 20)
        assert scheduler.handshake_once("n1") == "refreshed"
        seen = [(gpu.uuid, gpu.count, gpu.healthy) for gpu in scheduler.nodes["n1"]]
        assert seen == [("GPU-a", 10, True), ("GPU-b", 10, True)]


def set_allocatable(server: ApiServer, count: int) -> None:
    def change(node: dict[str, Any]) -> dict[str, Any]:
        return node | {"status": {"allocatable": {"nvidia.com/gpu": str(count)}}}

    server.objects.update("nodes", "n1", "", change, subresource="status")


def test_it_is_written_once_and_sorted(server: ApiServer, tmp_path: Path) -> None:
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        assert scene.annotation() == JSON
        assert annotations(server, "nodes", "n1")["other/key"] == "theirs"
        assert (scene.writes, scene.outcomes) == (1, ["ok"])


def test_at_rest_there_is_nothing_but_renewed_watches(server: ApiServer, tmp_path: Path) -> None:
    with running(server, tmp_path, watch_s=(1.0, 1.0)) as scene:
        eventually(scene.at_rest)
        server.log.clear()
        eventually(lambda: len(server.requests(verb="watch")) >= 2)
        assert {request.verb for request in server.requests()} == {"watch"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(JSON, id="the same text"),
        pytest.param(
            "[" + ",".join(reversed(JSON[1:-1].replace("},{", "}|{").split("|"))) + "]",
            id="another order, as HAMi's plugin leaves it",
        ),
    ],
)
def test_a_restarted_agent_writes_nothing(server: ApiServer, tmp_path: Path, text: str) -> None:
    annotate_node(server, {REGISTER: text})
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        assert scene.writes == 0
        assert scene.annotation() == text


def test_a_gpu_that_falls_ill_and_recovers_is_told(server: ApiServer, tmp_path: Path) -> None:
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        scene.inventory.update(lambda now: with_health(now, "GPU-b", "XID 79"))
        eventually(lambda: '"mode":"hami-core"}]' in (scene.annotation() or ""))
        scene.inventory.update(lambda now: with_health(now, "GPU-b", ""))
        eventually(lambda: scene.annotation() == JSON)
        eventually(scene.at_rest)
        assert scene.writes == 3


def test_nothing_is_written_before_the_gpus_are_known(server: ApiServer, tmp_path: Path) -> None:
    with running(server, tmp_path, gpus=GpuInventory()) as scene:
        eventually(scene.own_node.now)
        assert scene.registrar.step_once() > 0
        assert scene.registrar.missing() == "the GPUs are not known yet"
        assert scene.writes == 0
        scene.inventory.publish(GpuInventory(known=True))
        eventually(lambda: scene.annotation() == "[]")


def test_without_our_node_there_is_a_sentence(server: ApiServer, tmp_path: Path) -> None:
    server.objects.delete("nodes", "n1")
    with running(server, tmp_path) as scene:
        eventually(lambda: "--node-name" in scene.registrar.missing())
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        eventually(lambda: scene.annotation() == JSON)


@pytest.mark.parametrize("spoil", ["removed", "changed", "node made anew"])
def test_what_somebody_undid_is_written_again(
    server: ApiServer, tmp_path: Path, spoil: str
) -> None:
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        if spoil == "removed":
            ApiClient(server.url).annotate("nodes", "n1", {REGISTER: None})
        elif spoil == "changed":
            annotate_node(server, {REGISTER: "[]"})
        else:
            server.objects.delete("nodes", "n1")
            server.objects.create("nodes", {"metadata": {"name": "n1"}})
        eventually(lambda: scene.annotation() == JSON)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"code": 429, "retry_after_s": 0.1}, id="429"),
        pytest.param({"code": 500}, id="500"),
        pytest.param({"code": 403}, id="forbidden"),
        pytest.param({"code": 409}, id="conflict"),
    ],
)
def test_a_failed_write_is_repeated(
    server: ApiServer, tmp_path: Path, fault: dict[str, Any]
) -> None:
    server.fail(**fault, count=2, verb="patch")
    with running(server, tmp_path) as scene:
        eventually(
            lambda: "cannot be written" in scene.registrar.missing() or "ok" in scene.outcomes
        )
        eventually(scene.at_rest)
        assert scene.annotation() == JSON
        assert scene.outcomes == ["failed", "failed", "ok"]


def test_a_lost_answer_costs_one_more_write_at_most(server: ApiServer, tmp_path: Path) -> None:
    server.lose_answer(verb="patch")
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        assert scene.annotation() == JSON
        assert scene.writes <= 2


def test_pair_scores_go_with_the_registration(server: ApiServer, tmp_path: Path) -> None:
    scores: list[tuple[str, dict[str, int]]] = [("GPU-a", {"GPU-b": 110}), ("GPU-b", {})]
    with running(server, tmp_path, scores=lambda: scores) as scene:
        eventually(scene.at_rest)
        assert (
            scene.annotation(SCORE) == '[{"uuid":"GPU-a","score":{"GPU-b":110}},{"uuid":"GPU-b"}]'
        )
        assert scene.writes == 1


# --- time, turned by hand -----------------------------------------------------------------------------


class Turned:
    """A registrar whose clock the test turns, fed by hand with what the node says."""

    def __init__(self, server: ApiServer, tmp_path: Path, **settings: Any) -> None:
        self.clock_s = 1000.0
        self.scene = Scene(
            server, tmp_path, clock=lambda: self.clock_s, now=lambda: 1.7e9 + self.clock_s,
            **settings,
        )  # fmt: skip
        self.server = server

    def until(self, end_s: float) -> int:
        """Run the loop until this time; give the number of writes."""
        before = self.scene.writes
        while True:
            self.look()
            wait_s = self.scene.registrar.step_once()
            if self.clock_s + wait_s > end_s:
                self.clock_s = end_s
                return self.scene.writes - before
            self.clock_s += wait_s

    def look(self) -> None:
        """What the watch would tell."""
        metadata = self.server.objects.get("nodes", "n1")["metadata"]
        self.scene.own_node.publish(
            Node(
                name="n1",
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
                annotations=metadata["annotations"],
            )
        )


def test_two_agents_do_not_write_against_each_other(server: ApiServer, tmp_path: Path) -> None:
    """One that undoes our annotation at once is answered ever less often."""
    turned = Turned(server, tmp_path)
    writes = 0
    for minute in range(1, 11):
        end_s = 1000.0 + 60 * minute
        while turned.clock_s < end_s:
            writes += turned.until(min(end_s, turned.clock_s + 0.5))
            annotate_node(server, {REGISTER: "[]"})
    assert 6 <= writes <= 18


def test_a_question_is_answered_within_5_s_and_never_in_a_loop(
    server: ApiServer, tmp_path: Path
) -> None:
    """Against a scheduler that asks again as soon as it sees an answer."""
    turned = Turned(server, tmp_path, handshake=True, form="csv9")
    turned.until(1001.0)
    answered, asked_at_s = 0, turned.clock_s
    for _ in range(200):
        annotate_node(server, {HANDSHAKE: "Requesting_2023-11-14 22:13:20"})
        while (turned.scene.annotation(HANDSHAKE) or "").startswith("Requesting"):
            turned.until(turned.clock_s + 0.25)
            assert turned.clock_s - asked_at_s <= 5.0
        answered, asked_at_s = answered + 1, turned.clock_s
    assert turned.clock_s >= 1001.0 + 4.0 * (answered - 1)


def test_failures_are_repeated_ever_more_slowly(server: ApiServer, tmp_path: Path) -> None:
    """Also when the node changes all the time, as by kubelet's heartbeats."""
    server.fail(503, count=1_000_000, verb="patch")
    turned = Turned(server, tmp_path)
    writes = 0
    for half_second in range(600):
        writes += turned.until(1000.0 + half_second / 2)
        annotate_node(server, {"other/beat": str(half_second)})
    assert 10 <= writes <= 40


# --- the handshake ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "release"), [("csv7", "2.4"), ("csv9", "2.7")])
def test_a_scheduler_that_asks_is_answered_and_stays(
    server: ApiServer, tmp_path: Path, form: str, release: str
) -> None:
    now_s = time.time()
    scheduler = Scheduler(ApiClient(server.url), release=release, clock=lambda: now_s)
    with running(server, tmp_path, form=form, handshake=True) as scene:
        eventually(scene.at_rest)
        for _ in range(2):
            assert scheduler.handshake_once("n1") == "refreshed"
            eventually(lambda: (scene.annotation(HANDSHAKE) or "").startswith("Reported "))
            now_s += 61
        assert [g.uuid for g in scheduler.nodes["n1"]] == ["GPU-a", "GPU-b"]


def test_a_node_that_was_given_up_comes_back(server: ApiServer, tmp_path: Path) -> None:
    scheduler = Scheduler(ApiClient(server.url), release="2.7")
    annotate_node(server, {REGISTER: "", HANDSHAKE: "Deleted_2023-11-14 22:13:20"})
    with running(server, tmp_path, form="csv9", handshake=True) as scene:
        eventually(lambda: (scene.annotation(HANDSHAKE) or "").startswith("Reported "))
        eventually(scene.at_rest)
        assert scheduler.handshake_once("n1") == "refreshed"


def test_without_the_setting_nothing_is_answered(server: ApiServer, tmp_path: Path) -> None:
    annotate_node(server, {REGISTER: JSON, HANDSHAKE: "Requesting_2023-11-14 22:13:20"})
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
        assert scene.writes == 0


# --- leaving --------------------------------------------------------------------------------------------


def test_leaving_removes_what_is_ours_and_nothing_else(server: ApiServer, tmp_path: Path) -> None:
    with running(server, tmp_path, scores=list, handshake=True, form="csv9") as scene:
        eventually(scene.at_rest)
        annotate_node(server, {HANDSHAKE: "Requesting_x", "hami.io/mutex.lock": "l"})
        eventually(scene.at_rest)
    assert scene.registrar.leave(within_s=5.0)
    assert annotations(server, "nodes", "n1") == {"other/key": "theirs", "hami.io/mutex.lock": "l"}


def test_leaving_tells_a_scheduler_that_would_remember_them_that_no_gpu_is_healthy(
    server: ApiServer, tmp_path: Path
) -> None:
    annotate_node(server, {HANDSHAKE: "Requesting_x"})
    with running(server, tmp_path, scores=list) as scene:
        eventually(scene.at_rest)
    assert scene.registrar.leave(within_s=5.0)
    left = annotations(server, "nodes", "n1")
    assert left == {"other/key": "theirs", REGISTER: retired(JSON)}
    assert "health" not in left[REGISTER]


def test_leaving_keeps_the_handshake_of_others(server: ApiServer, tmp_path: Path) -> None:
    """It has given the node up, and has nothing to forget."""
    annotate_node(server, {HANDSHAKE: "Deleted_x"})
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
    assert scene.registrar.leave(within_s=5.0)
    assert annotations(server, "nodes", "n1") == {"other/key": "theirs", HANDSHAKE: "Deleted_x"}


def test_scores_of_an_earlier_run_are_removed_when_they_are_no_longer_wanted(
    server: ApiServer, tmp_path: Path
) -> None:
    annotate_node(server, {SCORE: "[]"})
    with running(server, tmp_path) as scene:
        eventually(lambda: scene.annotation(SCORE) is None and scene.annotation())
        eventually(scene.at_rest)
    assert scene.writes == 1


def test_leaving_takes_back_what_an_earlier_run_has_left(server: ApiServer, tmp_path: Path) -> None:
    """The driver is away, so nothing was published in this run; the node must not promise GPUs."""
    annotate_node(server, {REGISTER: JSON, SCORE: "[]"})
    scene = Scene(server, tmp_path)
    assert scene.registrar.leave(within_s=5.0)
    assert annotations(server, "nodes", "n1") == {"other/key": "theirs"}


def test_leaving_right_after_a_write_whose_answer_was_lost(
    server: ApiServer, tmp_path: Path
) -> None:
    """The agent is stopped while its first write is on the way: what arrived is taken back."""
    server.lose_answer(verb="patch", resource="nodes", count=2)
    scene = Scene(server, tmp_path)
    scene.own_node.publish(Node(name="n1"))
    scene.registrar.step_once()
    assert scene.annotation() is not None, "the write has arrived"
    server.clear_faults()
    assert scene.registrar.leave(within_s=5.0)
    assert scene.annotation() is None


def test_leaving_without_an_api_server_takes_no_longer_than_it_may(
    server: ApiServer, tmp_path: Path
) -> None:
    with running(server, tmp_path) as scene:
        eventually(scene.at_rest)
    server.hang(3600)
    assert not scene.registrar.leave(within_s=0.2)
    server.clear_faults()
    server.stop()
    assert not scene.registrar.leave(within_s=0.2)
