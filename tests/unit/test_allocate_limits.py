"""Allocate: what a container finds in its limits file."""

from dataclasses import replace

import pytest

from agent.domain.grant_plan import GrantPolicy
from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile, decode
from tests.unit.fakes import GPU_A, pod
from tests.unit.scene import IDS, A, Scene

MINE = "uid-p_main"


@pytest.mark.parametrize(
    ("policy", "oversubscribe", "core_policy"),
    [
        pytest.param(GrantPolicy(), False, CorePolicy.DEFAULT, id="as it comes"),
        pytest.param(GrantPolicy(oversubscribed=True), True, CorePolicy.DEFAULT, id="more memory"),
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
    assert replace(found, cache_path="") == LimitsFile(
        devices=(
            DeviceLimit(
                uuid=GPU_A,
                memory_limit_bytes=3000 << 20,
                core_permille=300,
                oversubscribe=oversubscribe,
            ),
        ),
        core_policy=core_policy,
    )
    assert found.cache_path == envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
