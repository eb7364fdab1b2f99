"""How large a unit of memory is: for every node, and by the bytes of the real messages."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.adapters.device_list import PART, encode_list, encoded_list
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.ownership import HeldDevice, rivals
from agent.domain.vgpu_ids import Vgpu
from agent.domain.volcano_units import (
    LARGEST_FACTOR,
    LONG,
    MAX_LIST_BYTES,
    MAX_STATUS_BYTES,
    SHORT,
    STATUS_REST_BYTES,
    UnitGroup,
    Units,
    core_units,
    is_own_form,
    judge_factor,
    list_bytes,
    memory_names,
    memory_units,
    objection,
    smallest_factor,
    status_bytes,
)
from agent.errors import NodeNotReady
from agent.services.memory_factor import MemoryFactor
from agent.services.published import Published
from agent.wire import deviceplugin_pb2 as dp

GIB = 1024
KUBELET_READS_BYTES = 4 * 1024 * 1024
SHARING = Sharing()


def node(gpus: int, memory_mib: int, *, healthy: bool = True) -> GpuInventory:
    return GpuInventory.of(
        Gpu(
            uuid=f"GPU-{number:08x}-6b70-5b3d-de52-1aaafc1495fc",
            index=number,
            name="NVIDIA A40",
            memory_mib=memory_mib,
            unhealthy_reason="" if healthy else "xid 79",
        )
        for number in range(gpus)
    )


# --- the messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [SHORT, LONG])
@pytest.mark.parametrize(
    ("gpus", "memory_mib", "factor"),
    [
        pytest.param(1, 9, 1, id="one digit"),
        pytest.param(1, 10, 1, id="just one digit"),
        pytest.param(3, 101, 1, id="three digits"),
        pytest.param(2, 46068, 3, id="two A40"),
        pytest.param(8, 81559, 5, id="eight H100"),
        pytest.param(1, 5, 10, id="less than a unit"),
        pytest.param(0, 0, 1, id="no GPU"),
    ],
)
def test_the_list_has_as_many_bytes_as_the_real_encoder_makes(
    gpus: int, memory_mib: int, factor: int, form: str
) -> None:
    units = memory_units(node(gpus, memory_mib, healthy=False), SHARING, factor, form)
    assert len(encode_list(units).SerializeToString()) == list_bytes(units)
    healthy = memory_units(node(gpus, memory_mib), SHARING, factor, form)
    assert len(encode_list(healthy).SerializeToString()) <= list_bytes(healthy)


@given(st.lists(st.tuples(st.text("abc-é", max_size=9), st.integers(0, 1200)), max_size=3))
@settings(max_examples=50, deadline=None)
def test_any_list_has_as_many_bytes_as_the_real_encoder_makes(
    groups: list[tuple[str, int]],
) -> None:
    units = Units(tuple(UnitGroup(name, count, healthy=False) for name, count in groups))
    assert len(encode_list(units).SerializeToString()) == list_bytes(units)


@pytest.mark.parametrize("count", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
def test_a_list_made_in_parts_is_the_same_message(count: int) -> None:
    units = Units((UnitGroup("a-m", count, healthy=True), UnitGroup("b-m", 7, healthy=False)))
    message, healthy = asyncio.run(encoded_list(units))
    assert dp.ListAndWatchResponse.FromString(message) == encode_list(units)
    assert healthy == count


def as_kubelet_writes(*resources: tuple[str, list[str]]) -> int:
    """Bytes of what a status says about devices, as JSON of the API."""
    status = [
        {"name": name, "resources": [{"resourceID": one, "health": "Unhealthy"} for one in ids]}
        for name, ids in resources
    ]
    return len(json.dumps(status, separators=(",", ":")))


@pytest.mark.parametrize("form", [SHORT, LONG])
@pytest.mark.parametrize(("gpus", "memory_mib"), [(1, 24576), (8, 81559), (16, 288 * GIB)])
def test_the_status_of_a_pod_with_a_whole_gpu_is_not_larger_than_said(
    gpus: int, memory_mib: int, form: str
) -> None:
    inventory = node(gpus, memory_mib)
    factor = smallest_factor(inventory, SHARING, form)
    memory, cores = memory_units(inventory, SHARING, factor, form), core_units(inventory, SHARING)
    longest = sorted((v.device_id for v in memory), key=len)[-(memory_mib // factor) :]
    written = as_kubelet_writes(
        ("volcano.sh/vgpu-memory", longest),
        ("volcano.sh/vgpu-cores", [v.device_id for v in cores][-100:]),
        ("volcano.sh/vgpu-number", [f"{inventory.gpus[0].uuid}-9"]),
    )
    said = status_bytes(memory, cores)
    assert 0.9 * (said - STATUS_REST_BYTES) < written <= said - STATUS_REST_BYTES + 1000
    assert said <= MAX_STATUS_BYTES


# --- the factor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "memory_mib", "short", "long"),
    [
        pytest.param(1, 15360, 1, 2, id="T4"),
        pytest.param(1, 24576, 2, 3, id="RTX 4090"),
        pytest.param(2, 46068, 3, 5, id="two A40"),
        pytest.param(8, 81559, 5, 11, id="eight H100"),
        pytest.param(1, 143771, 8, 14, id="H200"),
        pytest.param(8, 143771, 9, 20, id="eight H200"),
        pytest.param(16, 288 * GIB, 35, 79, id="sixteen of 288 GiB"),
    ],
)
def test_the_smallest_factor_of_well_known_nodes(
    gpus: int, memory_mib: int, short: int, long: int
) -> None:
    inventory = node(gpus, memory_mib)
    assert smallest_factor(inventory, SHARING, SHORT) == short
    assert smallest_factor(inventory, SHARING, LONG) == long


@pytest.mark.parametrize("form", [SHORT, LONG])
@pytest.mark.parametrize("gpus", range(1, 17))
def test_every_node_has_a_smallest_factor_that_works(gpus: int, form: str) -> None:
    """Every GiB up to 288, and the sizes that drivers give, which are a little less."""
    sizes = sorted({*range(GIB, 288 * GIB + 1, GIB), *range(GIB - 477, 288 * GIB, 8 * GIB)})
    for memory_mib in sizes:
        inventory = node(gpus, memory_mib)
        verdict = judge_factor(inventory, SHARING, 0, form)
        assert verdict.works, memory_mib
        assert verdict.list_bytes <= MAX_LIST_BYTES < KUBELET_READS_BYTES
        assert verdict.status_bytes <= MAX_STATUS_BYTES
        if verdict.factor > 1:
            below = judge_factor(inventory, SHARING, verdict.factor - 1, form)
            assert not below.works, memory_mib
            assert below.smallest == verdict.factor


@given(
    st.lists(st.integers(0, 288 * GIB), min_size=1, max_size=16),
    st.sampled_from([SHORT, LONG]),
    st.floats(0.01, 10),
)
@settings(deadline=None)
def test_gpus_of_different_sizes(sizes: list[int], form: str, core_scaling: float) -> None:
    inventory = GpuInventory.of(
        Gpu(uuid=f"GPU-{i:08x}-{i:028x}", index=i, name="x", memory_mib=size)
        for i, size in enumerate(sizes)
    )
    sharing = Sharing(core_scaling=core_scaling)
    smallest = smallest_factor(inventory, sharing, form)
    assert 1 <= smallest <= LARGEST_FACTOR
    assert judge_factor(inventory, sharing, smallest, form).works
    for larger in (smallest + 1, 2 * smallest, LARGEST_FACTOR):
        assert judge_factor(inventory, sharing, larger, form).works
    assert smallest == 1 or not judge_factor(inventory, sharing, smallest - 1, form).works


def test_a_factor_that_is_too_small_is_refused_with_the_smallest_that_works() -> None:
    refusal = objection(node(8, 81559), SHARING, 4)
    assert "set gpu-memory-factor to 5 or more" in refusal
    assert "a list for kubelet of 4804480 bytes" in refusal
    assert not objection(node(8, 81559), SHARING, 5)
    assert "a status of a pod with a whole GPU" in objection(node(1, 81559), SHARING, 1)
    assert not objection(node(8, 81559), SHARING, 0)
    assert not objection(node(0, 0), SHARING, 1)


@pytest.mark.parametrize(
    ("gpus", "core_scaling", "advice"),
    [
        pytest.param(16, 100.0, "a list of volcano.sh/vgpu-cores of", id="the list of cores"),
        pytest.param(1, 200.0, "lower the cores scaling", id="the cores of one pod"),
    ],
)
def test_when_no_factor_helps(gpus: int, core_scaling: float, advice: str) -> None:
    assert advice in objection(node(gpus, 81559), Sharing(core_scaling=core_scaling), 0)


# --- names ----------------------------------------------------------------------------------------


def test_units_have_short_names_that_tell_the_gpu() -> None:
    units = memory_units(node(2, 30), SHARING, 10, SHORT)
    ids = [unit.device_id for unit in units]
    assert ids == [f"0000000{gpu}-m{unit}" for gpu in (0, 1) for unit in (0, 1, 2)]
    assert [units[place] for place in range(len(units))] == list(units)
    assert units[-1] == Vgpu("00000001-m2", healthy=True)
    with pytest.raises(IndexError):
        units[6]


def test_gpus_whose_uuids_begin_alike_keep_them() -> None:
    uuids = [f"GPU-a8243209-6b70-5b3d-de52-00000000000{n}" for n in (1, 2)]
    gpus = [Gpu(uuid=uuid, index=n, name="x", memory_mib=1) for n, uuid in enumerate(uuids)]
    assert memory_names(gpus, SHORT) == {uuid: f"{uuid}-memory-" for uuid in uuids}


def test_what_pods_hold_of_the_three_resources_is_ours() -> None:
    """Or the agent would withhold the GPUs of its own pods."""
    inventory = node(2, 46068)
    uuid = inventory.gpus[1].uuid
    ours = {
        "volcano.sh/vgpu-number": [f"{uuid}-3"],
        "volcano.sh/vgpu-memory": ["00000001-m17", f"{uuid}-memory-17"],
        "volcano.sh/vgpu-cores": [f"{uuid}-core-99"],
    }
    held = [HeldDevice("t/p/c", name, one) for name, ids in ours.items() for one in ids]
    found = rivals(held, ours, own_resources=ours, gpus=inventory, own_form=is_own_form)
    assert found == ()
    assert not is_own_form("99999999-m1", inventory)
    theirs = [HeldDevice("t/p/c", "nvidia.com/gpu", f"{uuid}-core-1")]
    assert rivals(theirs, {}, own_resources=ours, gpus=inventory, own_form=is_own_form)


# --- what is chosen stays -------------------------------------------------------------------------


class Disk:
    """Implements `FactorStore`."""

    def __init__(self, factor: int = 0, *, broken: bool = False) -> None:
        self.factor, self.broken = factor, broken

    def load(self) -> int:
        if self.broken:
            raise NodeNotReady("the disk is broken")
        return self.factor

    def save(self, factor: int) -> None:
        if self.broken:
            raise NodeNotReady("the disk is broken")
        self.factor = factor


def factor_of(gpus: Published[GpuInventory], disk: Disk, configured: int = 0) -> MemoryFactor:
    return MemoryFactor(gpus, SHARING, configured=configured, form=SHORT, store=disk)


@pytest.mark.parametrize(
    ("remembered", "configured", "expected"),
    [
        pytest.param(0, 0, 5, id="the smallest"),
        pytest.param(9, 0, 9, id="what was chosen before"),
        pytest.param(3, 0, 5, id="what was chosen before no longer works"),
        pytest.param(9, 6, 6, id="the setting"),
    ],
)
def test_which_factor_is_used(remembered: int, configured: int, expected: int) -> None:
    disk = Disk(remembered)
    factor = factor_of(Published(node(8, 81559)), disk, configured)
    assert (factor.now(), disk.factor) == (expected, expected)


def test_a_gpu_that_is_missing_for_a_while_changes_nothing() -> None:
    gpus, disk = Published(GpuInventory()), Disk()
    factor = factor_of(gpus, disk)
    assert factor.now() == 1
    gpus.publish(node(8, 143771))
    assert factor.now() == 9
    gpus.publish(node(7, 143771))
    assert factor.now() == 9
    gpus.publish(GpuInventory.of([]))
    assert factor.now() == 9
    assert factor_of(Published(node(7, 143771)), disk).now() == 9
    gpus.publish(node(16, 288 * GIB))
    assert (factor.now(), disk.factor) == (35, 35)


def test_a_broken_disk_keeps_nobody_from_being_served() -> None:
    assert factor_of(Published(node(8, 81559)), Disk(broken=True)).now() == 5
