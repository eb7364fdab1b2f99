"""The stand-in scheduler writes and reads what HAMi's releases do."""

from collections.abc import Iterator
from typing import Any

import pytest

from agent.sim.api_client import ApiClient
from agent.sim.apiserver import ApiServer
from agent.sim.scheduler import (
    PROFILES,
    NodeLocked,
    NoFit,
    PlacedClaim,
    Scheduler,
    SchedulerCrash,
    UnreadableNode,
)
from agent.sim.scheduler_init import counted
from agent.sim.scheduler_placement import GpuRequest, place, request_of
from agent.sim.scheduler_wire import SeenGpu, check_score, decode_register, encode_claims

A = PlacedClaim("GPU-a", 3000, 30)
B = PlacedClaim("GPU-b", 5000, 0)
CSV7 = "GPU-a,10,46068,100,NVIDIA-NVIDIA A40,0,true:"
CSV9 = "GPU-a,10,24576,100,NVIDIA-NVIDIA GeForce RTX 3090,0,true,0,hami-core:"
JSON = '[{"id":"GPU-a","count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40","health":true}]'
NOW_S = 1_700_000_000.0


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        for name in ("web-1", "web-10"):
            pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}]}}
            server.objects.create("pods", pod)
        yield server


class Clock:
    """A clock that tests turn."""

    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def scheduler(server: ApiServer, release: str = "2.10", **more: Any) -> tuple[Scheduler, Clock]:
    clock = Clock()
    return Scheduler(ApiClient(server.url), release=release, clock=clock, **more), clock


def annotations(server: ApiServer, resource: str, name: str) -> dict[str, str]:
    namespace = "default" if resource == "pods" else ""
    metadata = server.objects.get(resource, name, namespace)["metadata"]
    return metadata.get("annotations") or {}


def annotate(server: ApiServer, node: str, **texts: str | None) -> None:
    keys = {"register": "hami.io/node-nvidia-register", "handshake": "hami.io/node-handshake",
            "lock": "hami.io/mutex.lock", "score": "hami.io/node-nvidia-score"}  # fmt: skip
    changes = {keys[short]: text for short, text in texts.items()}
    ApiClient(server.url).annotate("nodes", node, changes)


def set_allocatable(server: ApiServer, count: int) -> None:
    def change(node: dict[str, Any]) -> dict[str, Any]:
        return node | {"status": {"allocatable": {"nvidia.com/gpu": str(count)}}}

    server.objects.update("nodes", "n1", "", change, subresource="status")


# --- pods -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("containers", "padding", "text"),
    [
        pytest.param([[A]], "empty", "GPU-a,NVIDIA,3000,30:;", id="one"),
        pytest.param([[A, B]], "empty", "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,5000,0:;", id="two"),
        pytest.param([[], [A], []], "empty", ";GPU-a,NVIDIA,3000,30:;;", id="2.7: all slots"),
        pytest.param([[], [A], []], "missing", "GPU-a,NVIDIA,3000,30:;", id="2.10.0: dropped"),
        pytest.param(
            [[], [A], [], []], "tuple", "GPU-a,NVIDIA,3000,30:;;,,0,0:;", id="2.4: empty tuple"
        ),
        pytest.param([[], []], "tuple", "", id="2.4: nothing at all"),
    ],
)
def test_claims_are_encoded_as_each_release_does(
    containers: list[list[PlacedClaim]], padding: str, text: str
) -> None:
    assert encode_claims(containers, padding=padding) == text


def test_a_pod_is_scheduled_in_the_order_of_the_real_one(server: ApiServer) -> None:
    hami, _ = scheduler(server)
    hami.schedule("default", "web-1", "n1", [[A]])
    writes = [(r.verb, r.resource) for r in server.requests() if r.verb not in ("get", "list")]
    assert writes == [
        ("patch", "pods"),
        ("patch", "nodes"),
        ("patch", "pods"),
        ("create", "pods/binding"),
    ]
    pod = server.objects.get("pods", "web-1", "default")
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["labels"] == {"hami.io/vgpu-node": "n1"}
    assert pod["metadata"]["annotations"] == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": "GPU-a,NVIDIA,3000,30:;",
        "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,3000,30:;",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000000",
    }
    lock = annotations(server, "nodes", "n1")["hami.io/mutex.lock"]
    assert lock == "2023-11-14T22:13:20Z,default,web-1"


@pytest.mark.parametrize(
    ("release", "text"),
    [
        pytest.param("2.8", "GPU-b,NVIDIA,5000,0:;", id="2.8 knows no init containers"),
        pytest.param(
            "2.9", "GPU-a,NVIDIA,3000,30:;GPU-b,NVIDIA,5000,0:;", id="2.9 puts them first"
        ),
    ],
)
def test_init_containers(server: ApiServer, release: str, text: str) -> None:
    hami, _ = scheduler(server, release)
    hami.filter("default", "web-1", "n1", [[B]], init_claims=[[A]])
    assert annotations(server, "pods", "web-1")["hami.io/vgpu-devices-to-allocate"] == text


@pytest.mark.parametrize(("release", "locked"), [("2.9", False), ("2.10", False), ("master", True)])
def test_pods_with_gpus_only_in_init_containers_take_no_lock(
    server: ApiServer, release: str, locked: bool
) -> None:
    hami, _ = scheduler(server, release)
    hami.schedule("default", "web-1", "n1", [[]], init_claims=[[A]])
    assert ("hami.io/mutex.lock" in annotations(server, "nodes", "n1")) is locked


# --- the lock -------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["2.4", "2.10"])
def test_one_pod_at_a_time_and_only_the_owner_unlocks(server: ApiServer, release: str) -> None:
    hami, _ = scheduler(server, release)
    hami.lock("n1", "default", "web-10")
    with pytest.raises(NodeLocked):
        hami.lock("n1", "default", "web-1")
    hami.unlock("n1", "default", "web-1")
    assert annotations(server, "nodes", "n1")["hami.io/mutex.lock"].endswith(",default,web-10")
    hami.unlock("n1", "default", "web-10")
    assert "hami.io/mutex.lock" not in annotations(server, "nodes", "n1")


@pytest.mark.parametrize(
    ("release", "owner", "age_s", "stolen"),
    [
        pytest.param("2.10", "default,web-10", 10, False, id="young"),
        pytest.param("2.10", "default,web-10", 301, True, id="expired"),
        pytest.param("2.10", "default,gone", 10, True, id="owner is gone"),
        pytest.param("2.4", "default,gone", 10, False, id="2.4 does not look for the owner"),
        pytest.param("2.10", "default,web-1", 10, True, id="our own"),
        pytest.param("2.9", "default,web-1", 10, False, id="our own, before 2.10"),
    ],
)
def test_which_locks_are_stolen(
    server: ApiServer, release: str, owner: str, age_s: float, stolen: bool
) -> None:
    hami, clock = scheduler(server, release)
    annotate(server, "n1", lock=f"2023-11-15T06:13:20+08:00,{owner}")
    clock.now_s += age_s
    if stolen:
        hami.lock("n1", "default", "web-1")
        assert annotations(server, "nodes", "n1")["hami.io/mutex.lock"].endswith(",default,web-1")
    else:
        with pytest.raises(NodeLocked):
            hami.lock("n1", "default", "web-1")


def test_a_failed_binding_gives_the_lock_back(server: ApiServer) -> None:
    hami, _ = scheduler(server)
    server.fail(500, resource="pods/binding")
    with pytest.raises(Exception, match="500"):
        hami.schedule("default", "web-1", "n1", [[A]])
    assert "hami.io/mutex.lock" not in annotations(server, "nodes", "n1")


# --- the register annotation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "text", "result"),
    [
        pytest.param("2.4", CSV7, 1, id="2.4 reads 7 fields"),
        pytest.param("2.4", CSV9, UnreadableNode, id="2.4 rejects 9 fields"),
        pytest.param("2.7", CSV7, 1, id="2.7 reads 7 fields"),
        pytest.param("2.7", CSV9 + CSV9.replace("-a", "-b"), 2, id="2.7 reads 9 fields"),
        pytest.param("2.7", CSV9.replace(",hami-core", ""), UnreadableNode, id="8 fields"),
        pytest.param("2.7", JSON.replace(":", ""), UnreadableNode, id="no separator"),
        pytest.param("2.7", ":", UnreadableNode, id="empty CSV"),
        pytest.param("2.8", CSV9, UnreadableNode, id="2.8 rejects CSV"),
        pytest.param("2.8", JSON, 1, id="2.8 reads JSON"),
        pytest.param("2.10", "[]", UnreadableNode, id="no GPUs"),
        pytest.param("2.10", "null", UnreadableNode, id="null"),
        pytest.param("2.10", "[null]", SchedulerCrash, id="null element"),
        pytest.param("2.10", '[{"index":-1}]', UnreadableNode, id="negative index"),
        pytest.param("2.10", '[{"count":1.0}]', UnreadableNode, id="float"),
        pytest.param("2.10", '[{"ID":"GPU-a","surprise":{}}]', 1, id="case and unknown keys"),
    ],
)
def test_what_each_release_reads(release: str, text: str, result: Any) -> None:
    if isinstance(result, int):
        assert len(decode_register(text, PROFILES[release])) == result
    else:
        with pytest.raises(result):
            decode_register(text, PROFILES[release])


def test_the_fields_of_a_gpu() -> None:
    (seven,) = decode_register(CSV7, PROFILES["2.7"])
    assert (seven.uuid, seven.count, seven.memory_mib, seven.index) == ("GPU-a", 10, 46068, 0)
    assert (seven.mode, seven.healthy, seven.type) == ("hami-core", True, "NVIDIA-NVIDIA A40")
    (unhealthy,) = decode_register('[{"id":"GPU-a"}]', PROFILES["2.10"])
    assert not unhealthy.healthy


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"uuid":1}]', '[{"score":{"GPU-b":"x"}}]'])
def test_a_bad_score_makes_the_node_unreadable(server: ApiServer, text: str) -> None:
    with pytest.raises(UnreadableNode):
        check_score(text)
    annotate(server, "n1", register=JSON, score=text)
    hami, _ = scheduler(server)
    assert hami.handshake_once("n1") == "unreadable"
    assert "pair score" in hami.complaints["n1"]


# --- the handshake ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "before", "after_s", "did", "stamp"),
    [
        pytest.param("2.4", "Reported x", 0, "refreshed", "Requesting_2023.11.14 22:13:20",
                     id="2.4 asks, with dots"),
        pytest.param("2.7", "Reported x", 0, "refreshed", "Requesting_2023-11-14 22:13:20",
                     id="2.7 asks"),
        pytest.param("2.7", None, 0, "refreshed", "Requesting_2023-11-14 22:13:20",
                     id="2.7 asks without being told"),
        pytest.param("2.7", "Requesting_2023-11-14 22:13:20", 59, "kept",
                     "Requesting_2023-11-14 22:13:20", id="2.7 waits 60 s"),
        pytest.param("2.7", "Requesting_2023-11-14 22:13:20", 61, "dropped",
                     "Deleted_2023-11-14 22:14:21", id="2.7 gives up after 60 s"),
        pytest.param("2.7", "Deleted_2023-11-14 22:13:20", 3600, "kept",
                     "Deleted_2023-11-14 22:13:20", id="2.7 never recovers by itself"),
        pytest.param("2.9", "Deleted_2023-11-14 22:13:20", 61, "refreshed",
                     "Requesting_2023-11-14 22:14:21", id="2.9 recovers after 60 s"),
        pytest.param("2.10", "Deleted_2023-11-14 22:13:20", 0, "refreshed",
                     "Requesting_2023-11-14 22:13:20", id="2.10 knows no Deleted"),
    ],
)  # fmt: skip
def test_the_handshake(
    server: ApiServer, release: str, before: str | None, after_s: float, did: str, stamp: str
) -> None:
    register = JSON if PROFILES[release].register == "json" else CSV7
    annotate(server, "n1", register=register, handshake=before)
    hami, clock = scheduler(server, release)
    clock.now_s += after_s
    assert hami.handshake_once("n1") == did
    assert annotations(server, "nodes", "n1")["hami.io/node-handshake"] == stamp
    assert ("n1" in hami.nodes) is (did == "refreshed")


def test_without_a_register_annotation_there_is_no_handshake(server: ApiServer) -> None:
    hami, _ = scheduler(server, "2.7")
    assert hami.handshake_once("n1") == "unregistered"
    assert annotations(server, "nodes", "n1") == {}


def test_2_10_stamps_once_and_reads_what_changes(server: ApiServer) -> None:
    hami, clock = scheduler(server, "2.10")
    annotate(server, "n1", register=JSON)
    set_allocatable(server, 10)
    assert hami.handshake_once("n1") == "refreshed"
    stamp = annotations(server, "nodes", "n1")["hami.io/node-handshake"]
    clock.now_s += 15
    annotate(server, "n1", register=JSON.replace("GPU-a", "GPU-b"))
    assert hami.handshake_once("n1") == "refreshed"
    assert [gpu.uuid for gpu in hami.nodes["n1"]] == ["GPU-b"]
    assert annotations(server, "nodes", "n1")["hami.io/node-handshake"] == stamp


def test_2_10_takes_a_node_in_again_that_offers_nothing(server: ApiServer) -> None:
    """Its agent has stopped. It is out for one look, and in for a minute, again and again."""
    hami, clock = scheduler(server, "2.10")
    annotate(server, "n1", register=JSON)
    set_allocatable(server, 10)
    looks = [hami.handshake_once("n1")]
    set_allocatable(server, 0)
    for _ in range(7):
        clock.now_s += 15
        looks.append(hami.handshake_once("n1"))
    assert looks == ["refreshed", "dropped", "refreshed", *["kept"] * 3, "dropped", "refreshed"]


@pytest.mark.parametrize("release", ["2.8", "2.10"])
def test_since_2_8_allocatable_keeps_a_node_alive(server: ApiServer, release: str) -> None:
    hami, _ = scheduler(server, release)
    annotate(server, "n1", register=JSON)
    set_allocatable(server, 10)
    assert hami.handshake_once("n1") == "refreshed"
    assert hami.handshake_once("n1") == "kept"
    set_allocatable(server, 0)
    assert hami.handshake_once("n1") == "dropped"
    assert "n1" not in hami.nodes
    gone = "hami.io/node-handshake" not in annotations(server, "nodes", "n1")
    assert gone is (release == "2.10")
    set_allocatable(server, 10)
    assert hami.handshake_once("n1") == "refreshed"


def test_2_10_reads_a_changed_annotation_at_once(server: ApiServer) -> None:
    hami, _ = scheduler(server)
    annotate(server, "n1", register=JSON)
    set_allocatable(server, 10)
    hami.handshake_once("n1")
    annotate(server, "n1", register=JSON.replace("46068", "40000"))
    assert hami.handshake_once("n1") == "refreshed"
    assert hami.nodes["n1"][0].memory_mib == 40000


# --- placement --------------------------------------------------------------------------------------


def gpu(uuid: str, index: int, **more: Any) -> SeenGpu:
    settings = {"count": 2, "memory_mib": 1000, "core_percent": 100, "type": "NVIDIA A40",
                "numa": 0, "mode": "hami-core", "healthy": True}  # fmt: skip
    return SeenGpu(uuid=uuid, index=index, **(settings | more))


GPUS = [gpu("a", 0), gpu("b", 1)]


@pytest.mark.parametrize(
    ("gpus", "taken", "requests", "result"),
    [
        pytest.param(GPUS, [], [GpuRequest(gpus=1, memory_mib=400)], [["a"]], id="first by index"),
        pytest.param(
            GPUS,
            [PlacedClaim("b", 500, 0)],
            [GpuRequest(gpus=1, memory_mib=400)],
            [["b"]],
            id="fullest that fits",
        ),
        pytest.param(
            GPUS,
            [PlacedClaim("b", 700, 0)],
            [GpuRequest(gpus=1, memory_mib=400)],
            [["a"]],
            id="no memory left",
        ),
        pytest.param(GPUS, [], [GpuRequest(gpus=2)], [["a", "b"]], id="two different GPUs"),
        pytest.param(
            GPUS,
            [],
            [GpuRequest(), GpuRequest(gpus=1, memory_mib=600), GpuRequest(gpus=1, memory_mib=600)],
            [[], ["a"], ["b"]],
            id="containers see each other",
        ),
        pytest.param(
            GPUS,
            [],
            [
                GpuRequest(gpus=1, memory_mib=600, alone=True),
                GpuRequest(gpus=1, memory_mib=400),
                GpuRequest(gpus=1, memory_mib=600),
            ],
            [["a"], ["a"], ["a"]],
            id="one that ends first leaves its room",
        ),
        pytest.param(GPUS, [], [GpuRequest(gpus=3)], NoFit, id="more than there are"),
        pytest.param([gpu("a", 0, healthy=False)], [], [GpuRequest(gpus=1)], NoFit, id="unhealthy"),
        pytest.param(
            GPUS[:1],
            [PlacedClaim("a", 1, 0)] * 2,
            [GpuRequest(gpus=1, memory_mib=1)],
            NoFit,
            id="no slot",
        ),
        pytest.param(
            GPUS[:1],
            [PlacedClaim("a", 1, 60)],
            [GpuRequest(gpus=1, memory_mib=1, core_percent=50)],
            NoFit,
            id="no cores",
        ),
        pytest.param(
            GPUS[:1],
            [PlacedClaim("a", 1, 0)],
            [GpuRequest(gpus=1, memory_mib=1, core_percent=100)],
            NoFit,
            id="not exclusive",
        ),
    ],
)
def test_placement(
    gpus: list[SeenGpu], taken: list[PlacedClaim], requests: list[GpuRequest], result: Any
) -> None:
    if result is NoFit:
        with pytest.raises(NoFit):
            place(gpus, taken, requests)
    else:
        placed = place(gpus, taken, requests)
        assert [[claim.uuid for claim in claims] for claims in placed] == result


@pytest.mark.parametrize(
    ("inits", "ended", "slots", "amounts"),
    [
        pytest.param([], [], [[A], [A]], {"GPU-a": (6000, 60, 2)}, id="apps add up"),
        pytest.param(["i"], [], [[A], [A]], {"GPU-a": (3000, 30, 1)}, id="init, then app"),
        pytest.param(["i", "j"], [], [[A], [A], []], {"GPU-a": (3000, 30, 1)}, id="one at a time"),
        pytest.param(["s!"], [], [[A], [A]], {"GPU-a": (6000, 60, 2)}, id="a sidecar runs on"),
        pytest.param(
            ["s!", "i"], [], [[A], [A], []], {"GPU-a": (6000, 60, 2)}, id="init beside a sidecar"
        ),
        pytest.param(
            ["i", "s!"], [], [[A], [A], []], {"GPU-a": (3000, 30, 1)}, id="init before a sidecar"
        ),
        pytest.param(["i"], [], [[A], []], {"GPU-a": (3000, 30, 1)}, id="init alone, at work"),
        pytest.param(["i"], ["i"], [[A], [B]], {"GPU-b": (5000, 0, 1)}, id="init, ended"),
        pytest.param(
            ["i", "j"], ["i"], [[A], [], [B]],
            {"GPU-a": (3000, 30, 1), "GPU-b": (5000, 0, 1)}, id="not all have ended",
        ),
    ],
)  # fmt: skip
def test_after_2_10_a_pod_counts_for_what_it_has_at_one_time(
    inits: list[str], ended: list[str], slots: Any, amounts: dict[str, tuple[int, int, int]]
) -> None:
    rules = {True: {"restartPolicy": "Always"}, False: {}}
    over = {"terminated": {"exitCode": 0}}
    pod = {
        "spec": {
            "initContainers": [
                {"name": one.rstrip("!"), **rules[one.endswith("!")]} for one in inits
            ]
        },
        "status": {"initContainerStatuses": [{"name": one, "state": over} for one in ended]},
    }
    found = {c.uuid: (c.memory_mib, c.core_percent, c.slots) for c in counted(pod, slots)}
    assert found == amounts


def test_requests_come_from_the_limits() -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": 30}
    asked = request_of({"resources": {"limits": limits}})
    assert asked == GpuRequest(gpus=2, memory_mib=3000, core_percent=30)
    assert request_of({}) == GpuRequest()


def test_pods_are_placed_by_their_limits_until_the_node_is_full(server: ApiServer) -> None:
    hami, _ = scheduler(server)
    annotate(server, "n1", register=JSON)
    hami.handshake_once("n1")
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 30000}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    for name in ("first", "second"):
        server.objects.create("pods", {"metadata": {"name": name}, "spec": spec})
    assert hami.schedule_by_request("default", "first") == "n1"
    assert annotations(server, "pods", "first")["hami.io/vgpu-devices-allocated"] == (
        "GPU-a,NVIDIA,30000,0:;"
    )
    with pytest.raises(NoFit, match="insufficient memory"):
        hami.schedule_by_request("default", "second")
    assert annotations(server, "pods", "second") == {}
