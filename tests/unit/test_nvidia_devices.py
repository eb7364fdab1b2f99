"""What mode nvidia offers of which GPUs, and which ids kubelet is advised to take."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sick_gpus import with_health

from agent.domain.gpu import Gpu, GpuInventory, MigDevice
from agent.domain.nvidia_config import Replicas, Replication, ResourcePattern, ResourcePatterns
from agent.domain.nvidia_devices import MPS, TIME_SLICING, Offer, is_own_form, physical, vgpus
from agent.domain.ownership import HeldDevice, rivals
from agent.domain.preferred_ids import DISTRIBUTED, PACKED, SPREAD, aligned, greedy
from agent.domain.topology import GpuPair

GPU = "nvidia.com/gpu"


def card(index: int, name: str = "NVIDIA A40", migs: tuple[str, ...] | None = None) -> Gpu:
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{index}{place}", profile=profile, memory_mib=4864, gpu_instance=place + 1,
            compute_instance=0, device_nodes=(f"/dev/nvidia-caps/nvidia-cap{place + 3}",),
        )
        for place, profile in enumerate(migs or ())
    )  # fmt: skip
    return Gpu(
        uuid=f"GPU-{index}", index=index, name=name, memory_mib=40960, minor=index,
        numa_node=index // 2, mig_enabled=migs is not None, mig_devices=devices,
    )  # fmt: skip


def node(*gpus: Gpu) -> GpuInventory:
    return GpuInventory.of(gpus)


def shared(replicas: int = 2, **more: object) -> Replication:
    return Replication(resources=(Replicas(name=GPU, replicas=replicas, **more),))  # type: ignore[arg-type]


def offered(offer: Offer, inventory: GpuInventory) -> dict[str, list[str]]:
    found = offer.resources(inventory)
    return {name: [device.device_id for device in devices] for name, devices in found.items()}


TWO = node(card(0), card(1))
LONG = node(*(replace(card(n), uuid=f"GPU-{n:036}") for n in range(8)))  # as long as they are
PLAIN = {GPU: ["GPU-0", "GPU-1"]}
COPIES = ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]


@pytest.mark.parametrize(
    ("offer", "inventory", "expected"),
    [
        pytest.param(Offer(), TWO, PLAIN, id="whole GPUs"),
        pytest.param(Offer(resource_name="a.b/c"), TWO, {"a.b/c": PLAIN[GPU]}, id="another name"),
        pytest.param(Offer(excluded_indices=frozenset({0})), TWO, {GPU: ["GPU-1"]}, id="one left out"),
        pytest.param(Offer(excluded_uuids=frozenset({"GPU-1"})), TWO, {GPU: ["GPU-0"]}, id="one left out by uuid"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared()), TWO, {GPU: COPIES}, id="replicas"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=Replication(rename_by_default=True, resources=shared().resources)), TWO, {f"{GPU}.shared": COPIES}, id="renamed"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(rename="nvidia.com/x")), TWO, {"nvidia.com/x": COPIES}, id="renamed otherwise"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(devices=1, rename="nvidia.com/x")), TWO, {GPU: ["GPU-1"], "nvidia.com/x": COPIES[:2]}, id="the first one shared"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(devices=("1",))), TWO, {GPU: ["GPU-0", *COPIES[2:]]}, id="one of them shared, the same name"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(devices=("GPU-0",))), TWO, {GPU: [*COPIES[:2], "GPU-1"]}, id="one of them shared, by uuid"),
        pytest.param(Offer(replication=shared()), TWO, PLAIN, id="no way of sharing, no replicas"),
        pytest.param(Offer(patterns=ResourcePatterns(gpus=(ResourcePattern("*T4", "nvidia.com/t4"),))), node(card(0, "Tesla T4"), card(1)), {GPU: ["GPU-1"], "nvidia.com/t4": ["GPU-0"]}, id="by product"),
        pytest.param(Offer(), node(card(0, migs=("1g.5gb",))), {GPU: ["GPU-0"]}, id="MIG none: the whole GPU"),
        pytest.param(Offer(mig_strategy="single"), node(card(0, migs=("1g.5gb", "1g.5gb"))), {GPU: ["MIG-00", "MIG-01"]}, id="MIG single"),
        pytest.param(Offer(mig_strategy="mixed"), node(card(0, migs=("1g.5gb", "1g.5gb+me")), card(1)), {GPU: ["GPU-1"], "nvidia.com/mig-1g.5gb": ["MIG-00"], "nvidia.com/mig-1g.5gb.me": ["MIG-01"]}, id="MIG mixed"),
        pytest.param(Offer(mig_strategy="mixed", strategy=TIME_SLICING, replication=Replication(resources=(Replicas(name="nvidia.com/mig-1g.5gb", replicas=2),))), node(card(0, migs=("1g.5gb",))), {"nvidia.com/mig-1g.5gb": ["MIG-00::0", "MIG-00::1"]}, id="replicas of a MIG device"),
        pytest.param(Offer(mig_strategy="mixed", patterns=ResourcePatterns(mig=(ResourcePattern("1g.*", "nvidia.com/small"),))), node(card(0, migs=("1g.5gb", "2g.10gb"))), {"nvidia.com/small": ["MIG-00"], "nvidia.com/mig-2g.10gb": ["MIG-01"]}, id="MIG by profile"),
    ],
)  # fmt: skip
def test_what_is_offered(
    offer: Offer, inventory: GpuInventory, expected: dict[str, list[str]]
) -> None:
    assert offered(offer, inventory) == expected
    assert not offer.objection(inventory)
    assert set(expected) - offer.names() <= {name for name in expected if "/mig-" in name}


@pytest.mark.parametrize(
    ("offer", "inventory", "words"),
    [
        pytest.param(Offer(mig_strategy="single"), node(card(0, migs=("1g.5gb",)), card(1)), "1 of 2", id="single: half of the GPUs"),
        pytest.param(Offer(mig_strategy="single"), node(card(0, migs=("1g.5gb", "2g.10gb"))), "there are 1g.5gb, 2g.10gb", id="single: two kinds"),
        pytest.param(Offer(mig_strategy="mixed"), node(card(0, migs=())), "has no MIG device", id="MIG mode without a device"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(devices=3)), TWO, "ask for fewer", id="more devices than there are"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(devices=("7",))), TWO, "nvidia-smi -L", id="a device that is not there"),
        pytest.param(Offer(mig_strategy="single", strategy=MPS, replication=shared()), node(card(0, migs=("1g.5gb",))), "cannot be shared through MPS", id="MPS of MIG devices"),
        pytest.param(Offer(strategy=TIME_SLICING, replication=shared(10_000)), LONG, "set fewer replicas", id="a list that kubelet cannot bear"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(offer: Offer, inventory: GpuInventory, words: str) -> None:
    assert words in offer.objection(inventory)


def test_health_and_numa_are_those_of_the_gpu() -> None:
    inventory = with_health(node(card(0), card(2)), "GPU-2", "XID 79")
    listed = vgpus(Offer(strategy=TIME_SLICING, replication=shared()).resources(inventory)[GPU])
    assert [(one.healthy, one.numa_node) for one in listed] == [(True, 0)] * 2 + [(False, 1)] * 2


def test_nodes_of_a_mig_device_are_the_gpus_and_its_own() -> None:
    (device,) = Offer(mig_strategy="single").resources(node(card(1, migs=("1g.5gb",))))[GPU]
    assert device.nodes == ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3")
    assert device.index == "1:0"


@pytest.mark.parametrize(
    ("device_id", "ours"),
    [
        pytest.param("GPU-0", True, id="a GPU"),
        pytest.param("GPU-0::12", True, id="a replica"),
        pytest.param("MIG-00", True, id="a MIG device"),
        pytest.param("GPU-0-3", False, id="HAMi's vGPU"),
        pytest.param("GPU-0::x", False, id="no number"),
        pytest.param("GPU-9", False, id="a GPU that is not there"),
    ],
)
def test_ids_of_ours(device_id: str, ours: bool) -> None:
    assert is_own_form(device_id, node(card(0, migs=("1g.5gb",)))) is ours


@pytest.mark.parametrize(
    ("manager", "device", "owners"),
    [
        pytest.param(GPU, "GPU-0", 0, id="ours"),
        pytest.param(GPU, "GPU-0::1", 0, id="a replica of ours"),
        pytest.param(GPU, "GPU-0-1", 1, id="of HAMi's plugin, under our resource"),
        pytest.param("volcano.sh/vgpu-number", "GPU-0-1", 1, id="of Volcano's plugin"),
        pytest.param("gpu.nvidia.com", "gpu-0", 0, id="no claim"),
    ],
)
def test_our_own_devices_have_one_owner(manager: str, device: str, owners: int) -> None:
    found = rivals(
        [HeldDevice("ns/pod/main", manager, device)],
        {GPU: ["GPU-0", "GPU-1"]},
        own_resources=Offer().names(),
        gpus=TWO,
        own_form=is_own_form,
    )
    assert len(found) == owners


# --- GetPreferredAllocation ----------------------------------------------------------------------


def copies(*counts: int) -> list[str]:
    return [f"GPU-{gpu}::{n}" for gpu, count in enumerate(counts) for n in range(count)]


@pytest.mark.parametrize(
    ("policy", "available", "size", "gpus"),
    [
        pytest.param("distributed", copies(2, 4), 1, "1", id="distributed: where least is given"),
        pytest.param("distributed", copies(4, 4), 2, "01", id="distributed: one of each"),
        pytest.param("distributed", copies(1, 4), 2, "11", id="distributed: the emptier one twice"),
        pytest.param("packed", copies(2, 4), 1, "0", id="packed: where most is given"),
        pytest.param("packed", copies(4, 4), 2, "00", id="packed: on one"),
        pytest.param("spread", copies(1, 4), 2, "01", id="spread: distinct GPUs"),
    ],
)
def test_replicas(policy: str, available: Sequence[str], size: int, gpus: str) -> None:
    chosen = greedy(available, (), size, copies(4, 4), physical=physical, policy=policy)
    assert "".join(sorted(id_.partition("::")[0][-1] for id_ in chosen)) == gpus


@given(
    everything=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    size=st.integers(-1, 9),
    policy=st.sampled_from([DISTRIBUTED, PACKED, SPREAD]),
    data=st.data(),
)
def test_any_choice_is_one_that_kubelet_takes(
    everything: list[int], size: int, policy: str, data: st.DataObject
) -> None:
    ids = copies(*everything)
    available = data.draw(st.lists(st.sampled_from(ids), unique=True))
    must = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    for chosen in (
        greedy(available, must, size, ids, physical=physical, policy=policy),
        aligned(available, must, size, ()),
    ):
        assert len(chosen) == len(set(chosen)) == max(0, min(size, len(set(available) | set(must))))
        assert set(chosen) <= set(available)
        assert set(must) <= set(chosen) or len(must) > size


def links(*pairs: tuple[int, int, int]) -> list[GpuPair]:
    """Four GPUs on two CPUs, some joined by NVLinks: (a, b, links)."""
    joined = {(a, b): count for a, b, count in pairs}
    return [
        GpuPair(
            first=f"GPU-{a}", second=f"GPU-{b}",
            level="node" if a // 2 == b // 2 else "system",
            links=joined.get((a, b), 0), links_back=joined.get((a, b), 0),
        )
        for a in range(4)
        for b in range(a + 1, 4)
    ]  # fmt: skip


ALL = [f"GPU-{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("available", "must", "size", "pairs", "expected"),
    [
        pytest.param(ALL, [], 2, links(), "01", id="on one CPU"),
        pytest.param(ALL, ["GPU-3"], 2, links(), "23", id="beside the one that must be"),
        pytest.param(ALL, [], 2, links((1, 2, 4)), "12", id="NVLink is nearer than a common CPU"),
        pytest.param(ALL, [], 1, links((0, 1, 4)), "2", id="the one whose loss hurts least"),
        pytest.param(ALL[1:], [], 2, links(), "23", id="of those that are free"),
        pytest.param(ALL, [], 4, links(), "0123", id="all"),
        pytest.param(ALL, [], 2, [], "01", id="nothing is known"),
    ],
)
def test_whole_gpus_are_near_each_other(
    available: list[str], must: list[str], size: int, pairs: list[GpuPair], expected: str
) -> None:
    chosen = aligned(available, must, size, pairs)
    assert "".join(sorted(uuid[-1] for uuid in chosen)) == expected


def test_more_gpus_than_all_choices_can_be_tried_of() -> None:
    many = [f"GPU-{n:02}" for n in range(24)]
    pairs = [
        GpuPair(first=a, second=b, level="node" if i // 12 == j // 12 else "system")
        for i, a in enumerate(many)
        for j, b in enumerate(many)
        if i < j
    ]
    chosen = aligned(many, ["GPU-20"], 12, pairs)
    assert {uuid >= "GPU-12" for uuid in chosen} == {True}
