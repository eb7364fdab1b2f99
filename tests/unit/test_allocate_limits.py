"""Allocate: what a container finds in its limits file."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.domain.grant_plan import GrantPolicy
from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile, decode, encode
from agent.domain.new_region import RegionMark, SeenRegion, mark_of
from agent.errors import NodeNotReady
from tests.unit.fakes import GPU_A, GPU_B, container, pod, vgpu_ids
from tests.unit.scene import IDS, A, B, Scene

MINE = "uid-p_main"


@pytest.mark.parametrize(
    ("policy", "oversubscribe", "core_policy"),
    [
        pytest.param(GrantPolicy(), False, CorePolicy.FORCE, id="as it comes"),
        pytest.param(GrantPolicy(oversubscribed=True), True, CorePolicy.FORCE, id="more memory"),
        pytest.param(
            GrantPolicy(disable_core_limit=True), False, CorePolicy.DISABLE, id="no core limits"
        ),
    ],
)
@pytest.mark.parametrize("asked", ["once", "again"])
def test_the_nodes_policy_is_in_the_file(
    policy: GrantPolicy, oversubscribe: bool, core_policy: CorePolicy, asked: str
) -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    agent = scene.start(policy=policy)
    envs = agent.allocate(*IDS)
    if asked == "again":
        scene.caches.limits.clear()  # somebody tidied up, and kubelet has lost its books
        assert agent.allocate(*IDS) == envs
        assert agent.outcomes == ["granted", "repeated"]
    found = decode(scene.caches.limits[MINE])
    assert replace(found, cache_path="", region_inode=0, region_id=0) == LimitsFile(
        devices=(
            DeviceLimit(
                uuid=GPU_A,
                memory_limit_bytes=3000 << 20,
                core_permille=300,
                oversubscribe=oversubscribe,
                told_memory_mib=3000,
                told_core_permille=300,
            ),
        ),
        core_policy=core_policy,
    )
    assert found.cache_path == envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]


# --- the usage region -----------------------------------------------------------------------------


def marked(scene: Scene) -> RegionMark:
    found = decode(scene.caches.limits[MINE])
    return RegionMark(found.region_inode, found.region_id)


def region_of(scene: Scene, envs: Mapping[str, str]) -> tuple[str, str]:
    """Where the container's region lies."""
    return MINE, envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"].rpartition("/")[2]


def test_a_region_is_made_with_the_limits_and_named_in_them() -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    envs = scene.start().allocate(*IDS)
    (at,) = scene.caches.regions
    assert at == region_of(scene, envs)
    assert mark_of(scene.caches.regions[at]) == marked(scene) != RegionMark()
    assert marked(scene).id


def test_two_containers_have_two_marks() -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};{B};", container("main"), container("side")))
    agent = scene.start()
    agent.allocate(*IDS)
    agent.allocate(*vgpu_ids(GPU_B, 0))
    ids = {decode(content).region_id for content in scene.caches.limits.values()}
    assert len(ids) == len(scene.caches.regions) == 2


@pytest.mark.parametrize("agent_restarts", [False, True])
def test_asked_again_the_region_stays(agent_restarts: bool) -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.allocate(*IDS)
    limits = dict(scene.caches.limits)
    if agent_restarts:
        agent = scene.start()
    agent.allocate(*IDS)
    assert scene.caches.regions_made == 1
    assert scene.caches.limits == limits


@pytest.mark.parametrize(
    ("there", "made"),
    [
        pytest.param(None, True, id="deleted"),
        pytest.param(SeenRegion(inode=7), True, id="exchanged for something else"),
        pytest.param(SeenRegion(inode=1001), True, id="emptied"),
    ],
)
def test_asked_again_what_the_container_spoiled_is_made_anew(
    there: SeenRegion | None, made: bool
) -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    at = region_of(scene, agent.allocate(*IDS))
    before = marked(scene)
    scene.caches.regions.pop(at)
    if there:
        scene.caches.regions[at] = there
    agent.allocate(*IDS)
    assert (scene.caches.regions_made == 2) is made
    assert marked(scene) == mark_of(scene.caches.regions[at]) != before


def test_what_a_hook_made_is_named_and_not_exchanged() -> None:
    """An agent that made no regions granted it; its containers run."""
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    at = region_of(scene, agent.allocate(*IDS))
    by_agent = scene.caches.regions[at]
    tail = by_agent.tail[:32] + bytes(8) + by_agent.tail[40:]
    scene.caches.regions[at] = SeenRegion(inode=42, head=by_agent.head, tail=tail)
    before = replace(decode(scene.caches.limits[MINE]), region_inode=0, region_id=0)
    scene.caches.limits[MINE] = encode(before)
    agent.allocate(*IDS)
    assert (scene.caches.regions_made, marked(scene)) == (1, RegionMark(42, 0))


def test_a_disk_that_has_no_room_for_the_region_refuses_and_leaves_nothing() -> None:
    scene = Scene()
    scene.bound(pod("p", f"{A};"))
    scene.faults.verdict = lambda effect: "error" if effect == "make region" else None
    with pytest.raises(NodeNotReady, match="disk is full"):
        scene.start().allocate(*IDS)
    assert (scene.caches.directories, scene.caches.limits) == ({}, {})


@pytest.mark.parametrize(
    ("asked", "strict"),
    [
        pytest.param("force", True, id="force"),
        pytest.param("disable", False, id="disable"),
        pytest.param(None, False, id="nothing"),
    ],
)
def test_what_the_pod_says_of_its_share_is_remembered(asked: str | None, strict: bool) -> None:
    """A new agent may have to go by it until it reaches the API server."""
    scene = Scene()
    scene.bound(pod("p", f"{A};", replace(container("main"), core_policy=asked)))
    scene.start().allocate(*IDS)
    [record] = scene.grant_log.records()
    assert record.strict is strict
