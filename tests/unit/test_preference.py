"""GetPreferredAllocation: valid whatever happens, and of the scheduler's GPU where it can be."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.preferred_ids import gpu_of, preferred_ids
from tests.unit.fakes import (
    GPU_A,
    GPU_B,
    FakeCaches,
    FakeClock,
    FakeCluster,
    FakeGrantLog,
    Process,
    pod,
    vgpu_ids,
)

A, B = vgpu_ids(GPU_A, 0, 1, 2, 3), vgpu_ids(GPU_B, 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("available", "must", "size", "wanted", "chosen"),
    [
        pytest.param(A + B, [], 1, [GPU_B], B[:1], id="of the claimed GPU"),
        pytest.param(A + B, [], 2, [GPU_B, GPU_A], [B[0], A[0]], id="one of each claim"),
        pytest.param(A + B, [], 2, [GPU_B, GPU_B], B[:2], id="two of one GPU"),
        pytest.param(A + B, [B[3]], 1, [GPU_B], [B[3]], id="what must be included fits the claim"),
        pytest.param(A + B, [B[3]], 2, [GPU_B, GPU_A], [B[3], A[0]], id="and counts for its claim"),
        pytest.param(A + B, [A[3]], 1, [GPU_B], [A[3]], id="or it does not fit"),
        pytest.param(A, [], 2, [GPU_B, GPU_A], [A[0], A[1]], id="a claim that cannot be met"),
        pytest.param(A + B, [], 2, [], [A[0], B[0]], id="nothing claimed: spread"),
        pytest.param(A[:1] + B, [], 2, [], [B[0], A[0]], id="the GPU with most left first"),
        pytest.param(A[:1], [], 3, [], A[:1], id="fewer than asked for"),
        pytest.param(A, A[:3], 2, [], A[:2], id="more to include than asked for"),
        pytest.param(A, [], 0, [GPU_A], [], id="none asked for"),
        pytest.param(["odd", "ids"], [], 1, [GPU_A], ["ids"], id="ids of somebody else"),
        pytest.param([A[0]] * 2, [A[0]] * 2, 2, [], A[:1], id="twins"),
        pytest.param(A, [], -1, [], [], id="nonsense size"),
        pytest.param([], [], 1, [GPU_A], [], id="nothing there"),
    ],
)
def test_choice(
    available: list[str], must: list[str], size: int, wanted: list[str], chosen: list[str]
) -> None:
    assert preferred_ids(available, must, size, wanted) == chosen


IDS = st.sampled_from(A + B + ["foreign", ""]) | st.text(max_size=5)


@given(
    st.lists(IDS), st.lists(IDS, max_size=3), st.integers(-1, 10), st.lists(st.sampled_from([GPU_A, GPU_B]))
)  # fmt: skip
def test_every_choice_is_one_that_kubelet_takes(
    available: list[str], must: list[str], size: int, wanted: list[str]
) -> None:
    chosen = preferred_ids(available, must, size, wanted)
    offered = set(available) | set(must)
    assert len(set(chosen)) == len(chosen) == min(max(0, size), len(offered))
    assert set(chosen) <= offered
    assert set(must) <= set(chosen) or len(set(must)) > size
    if size == len(wanted) and not must:
        free = Counter(gpu_of(device_id) for device_id in set(available))
        for uuid, claims in Counter(wanted).items():
            assert Counter(gpu_of(i) for i in chosen)[uuid] >= min(claims, free[uuid])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def agent(cluster: FakeCluster) -> Process:
    process = Process(cluster, FakeCaches(), FakeGrantLog(), clock=FakeClock())
    process.relist()
    return process


def preferred(agent: Process, size: int = 1) -> list[str]:
    return agent.preference.preferred(A + B, [], size, deadline_s=agent.clock() + 2)


def test_the_next_container_gets_ids_of_its_gpu(agent: Process, cluster: FakeCluster) -> None:
    cluster.put(pod("p", f"{GPU_B},NVIDIA,5000,0:;"))
    agent.deliver()
    assert preferred(agent) == B[:1]
    assert agent.allocate(*B[:1])["NVIDIA_VISIBLE_DEVICES"] == GPU_B


def test_nobody_is_known_to_wait(agent: Process) -> None:
    assert preferred(agent, 2) == [A[0], B[0]]


def test_the_api_server_does_not_answer(agent: Process, cluster: FakeCluster) -> None:
    cluster.faults.verdict = lambda _effect: "error"
    assert preferred(agent, 2) == [A[0], B[0]]


def test_even_a_defect_of_ours_does_not_cost_the_pod(agent: Process) -> None:
    agent.turns.find = lambda *_args, **_kwargs: 1 // 0  # type: ignore[method-assign]
    assert preferred(agent) == A[:1]


def test_it_writes_nothing(agent: Process, cluster: FakeCluster) -> None:
    before = cluster.put(pod("p", "a,b:;"))
    preferred(agent)
    assert cluster.pods[before.uid] == before
    assert cluster.requests == ["list pods", "get node"]
