"""Which GPUs are shared, and with how much memory: the same for kubelet and the scheduler."""

from dataclasses import replace

import pytest

from agent.domain.gpu import Gpu, GpuInventory, MigProfile, Sharing
from agent.domain.register import registered_gpus
from agent.domain.vgpu_ids import advertised

A = Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=46068)
UNIFIED = Gpu(uuid="GPU-u", index=1, name="NVIDIA GB10", memory_mib=None)
NODE = GpuInventory.of([A, UNIFIED])


@pytest.mark.parametrize(
    ("sharing", "offered"),
    [
        pytest.param(Sharing(), {"GPU-a": 46068}, id="without known memory a GPU is left out"),
        pytest.param(
            Sharing(preconfigured_memory_mib=8192),
            {"GPU-a": 46068, "GPU-u": 8192},
            id="memory as configured, where the driver does not tell",
        ),
        pytest.param(
            Sharing(preconfigured_memory_mib=8192, memory_scaling=1.5),
            {"GPU-a": 69102, "GPU-u": 12288},
            id="scaled like any other",
        ),
        pytest.param(
            Sharing(preconfigured_memory_mib=8192, excluded_uuids=frozenset({"GPU-a"})),
            {"GPU-u": 8192},
            id="filtered by uuid",
        ),
        pytest.param(
            Sharing(preconfigured_memory_mib=8192, excluded_indices=frozenset({1})),
            {"GPU-a": 46068},
            id="filtered by index",
        ),
        pytest.param(
            Sharing(excluded_uuids=frozenset({"GPU-z"}), excluded_indices=frozenset({7})),
            {"GPU-a": 46068},
            id="a filter that fits no GPU",
        ),
    ],
)
def test_both_are_offered_the_same_gpus(sharing: Sharing, offered: dict[str, int]) -> None:
    at_scheduler = registered_gpus(sharing.offered(NODE), sharing, "json")
    assert {gpu.uuid: gpu.memory_mib for gpu in at_scheduler} == offered
    at_kubelet = {vgpu.device_id.rpartition("-")[0] for vgpu in advertised(NODE, sharing)}
    assert at_kubelet == offered.keys()


def test_a_gpu_to_be_divided_is_left_out_too_without_known_memory() -> None:
    """Who may not see all of a GPU may not divide it either, and the scheduler goes by memory."""
    profile = MigProfile(
        name="1g.5gb", profile_id=19, memory_mib=4864, slice_count=1, multiprocessors=14,
        instance_count=7, placements=(),
    )  # fmt: skip
    seen = replace(A, mig_enabled=True, mig_profiles=(profile,))
    unseen = replace(seen, uuid="GPU-b", index=1, memory_mib=None)
    offered = Sharing(mode="mig").offered(GpuInventory.of([seen, unseen]))
    assert [gpu.uuid for gpu in offered] == ["GPU-a"]


def test_the_scheduler_counts_as_many_vgpus_as_kubelet() -> None:
    sharing = Sharing(split_count=7, preconfigured_memory_mib=1)
    offers = registered_gpus(sharing.offered(NODE), sharing, "csv9")
    assert sum(offer.count for offer in offers) == len(advertised(NODE, sharing)) == 14
