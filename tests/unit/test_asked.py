"""What a container asks for of each vGPU, and which claims are more than that."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.asked import MOST, NOTHING, AmountNames, Asked, asked_of, more_than_asked, whole
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Claim
from agent.domain.register import registered_gpus
from agent.errors import MalformedAnnotation
from agent.sim.scheduler_placement import NoFit, place, request_of
from agent.sim.scheduler_wire import SeenGpu
from tests.unit.fakes import GPU_A, GPU_B, container, pod
from tests.unit.mig_world import LARGE, World, allocation, mig_pod
from tests.unit.scene import IDS, Scene

NAMES = AmountNames()
MEM, PERCENT, CORES = NAMES.memory, NAMES.memory_percent, NAMES.cores
CARD_MIB = 24576


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("3000", 3000, id="as written"),
        pytest.param("3k", 3000, id="as the API server rewrites it"),
        pytest.param("1.5k", 1500, id="a fraction that is whole"),
        pytest.param("16Ki", 16384, id="in 1024s"),
        pytest.param("3e3", 3000, id="with an exponent"),
        pytest.param("3E3", 3000, id="with a capital one"),
        pytest.param(f"{MOST}", MOST, id="the most"),
        pytest.param(f"{MOST + 1}", 0, id="more than that"),
        pytest.param("1e99", 0, id="absurd"),
        pytest.param("1.5", 0, id="a part"),
        pytest.param("1500m", 0, id="thousandths"),
        pytest.param("1e", 0, id="half an exponent"),
        pytest.param("k", 0, id="a unit alone"),
        pytest.param([], 0, id="a list"),
        pytest.param(1e3, 0, id="not whole by its kind"),
    ],
)
def test_quantities(text: object, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize(
    ("limits", "requests", "names", "asked"),
    [
        pytest.param({}, {}, NAMES, NOTHING, id="nothing"),
        pytest.param(
            {MEM: "3k", PERCENT: 50, CORES: "30"}, {}, NAMES, Asked(3000, 50, 30), id="all"
        ),
        pytest.param({}, {MEM: "3k"}, NAMES, Asked(3000), id="by requests"),
        pytest.param({MEM: 1}, {MEM: 2}, NAMES, Asked(1), id="limits first"),
        pytest.param({PERCENT: 200, CORES: 200}, {}, NAMES, Asked(0, 100, 100), id="clamped"),
        pytest.param(
            {"x.org/m": 9, MEM: 5}, {}, replace(NAMES, memory="x.org/m"), Asked(9), id="own name"
        ),
        pytest.param({MEM: 5, "": 6}, {}, replace(NAMES, memory=""), NOTHING, id="not compared"),
        pytest.param({MEM: None, CORES: {}}, {}, NAMES, NOTHING, id="nonsense"),
    ],
)
def test_what_a_container_asks_for(
    limits: dict[str, Any], requests: dict[str, Any], names: AmountNames, asked: Asked
) -> None:
    assert asked_of(limits, requests, names) == asked


@pytest.mark.parametrize(
    ("memory_mib", "core_percent", "asked", "words"),
    [
        pytest.param(3000, 30, Asked(3000, 0, 30), "", id="just that"),
        pytest.param(2000, 20, Asked(3000, 0, 30), "", id="less"),
        pytest.param(0, 0, NOTHING, "", id="nothing is asked for"),
        pytest.param(CARD_MIB, 100, NOTHING, "", id="all, where nothing is asked for"),
        pytest.param(3001, 30, Asked(3000), "3001 MiB, where .* 3000", id="more memory"),
        pytest.param(0, 30, Asked(3000), "all MiB, where .* 3000", id="no limit of memory"),
        pytest.param(3000, 31, Asked(0, 0, 30), "31 % .* asks for 30", id="more cores"),
        pytest.param(3000, 0, Asked(0, 0, 30), "all % .* asks for 30", id="no limit of cores"),
        pytest.param(3000, 0, Asked(0, 0, 100), "", id="all cores are asked for"),
        pytest.param(12288, 0, Asked(0, 50), "", id="a percentage"),
        pytest.param(12289, 0, Asked(0, 50), "12289 MiB, where .* 12288", id="more than that"),
        pytest.param(3000, 0, Asked(3000, 1), "", id="both: the amount"),
        pytest.param(12288, 0, Asked(3000, 50), "asks for 3000", id="both: not the percentage"),
    ],
)
def test_more_than_asked(memory_mib: int, core_percent: int, asked: Asked, words: str) -> None:
    claim = Claim(GPU_A, "NVIDIA", memory_mib, core_percent)
    found = more_than_asked(claim, asked, unit_mib=1, offered_mib=CARD_MIB)
    assert re.search(words, found) if words else not found


def test_a_percentage_of_what_nobody_knows_is_not_compared() -> None:
    claim = Claim(GPU_A, "NVIDIA", 5000, 0)
    assert not more_than_asked(claim, Asked(0, 50), unit_mib=1, offered_mib=0)


def test_memory_is_asked_for_in_units() -> None:
    claim = Claim(GPU_A, "NVIDIA", 3072, 0)
    assert not more_than_asked(claim, Asked(3), unit_mib=1024, offered_mib=CARD_MIB)
    assert "asks for 3069" in more_than_asked(claim, Asked(3), unit_mib=1023, offered_mib=CARD_MIB)


@given(
    limits=st.fixed_dictionaries(
        {"nvidia.com/gpu": st.integers(1, 2)},
        optional={
            MEM: st.sampled_from([0, 1, 999, "3k", 12288, CARD_MIB]),
            PERCENT: st.integers(1, 100),
            CORES: st.integers(0, 120),
        },
    ),
    second_mib=st.sampled_from([8192, CARD_MIB]),
)
def test_no_claim_of_the_scheduler_is_refused(limits: dict[str, Any], second_mib: int) -> None:
    gpus = [
        SeenGpu(
            uuid=uuid,
            index=i,
            count=10,
            memory_mib=mib,
            core_percent=100,
            type="NVIDIA",
            numa=0,
            mode="hami-core",
            healthy=True,
        )
        for i, (uuid, mib) in enumerate([(GPU_A, CARD_MIB), (GPU_B, second_mib)])
    ]
    asked = asked_of(limits, {}, NAMES)
    try:
        [claims] = place(gpus, [], [request_of({"resources": {"limits": limits}})])
    except NoFit:
        return
    for one in claims:
        claim = Claim(one.uuid, "NVIDIA", one.memory_mib, one.core_percent)
        offered_mib = {gpu.uuid: gpu.memory_mib for gpu in gpus}[one.uuid]
        assert not more_than_asked(claim, asked, unit_mib=1, offered_mib=offered_mib)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        pytest.param(f"{GPU_A},NVIDIA,3000,30:;", "", id="what it asks for"),
        pytest.param(
            f"{GPU_A},NVIDIA,24000,30:;",
            "claims for container main 24000 MiB, where the container asks for 3000",
            id="more memory",
        ),
        pytest.param(
            f"{GPU_A},NVIDIA,24001,30:;", "for 3000, so no scheduler has decided that; ", id="odd"
        ),
        pytest.param(
            f"{GPU_A},NVIDIA,24000,30:;",
            "unless it counts memory in units of 8 MiB: .*--gpumem-factor",
            id="in units of which nobody has told",
        ),
        pytest.param(
            f"{GPU_A},NVIDIA,3000,0:;",
            "all % of the cores, where the container asks for 30, so no scheduler has decided that; ",
            id="all cores",
        ),
    ],
)
def test_a_pod_that_decides_itself_gets_no_more_than_its_limits(claims: str, words: str) -> None:
    scene = Scene()
    mine = scene.bound(pod("p", claims, replace(container("main"), asked=Asked(3000, 0, 30))))
    agent = scene.start()
    if not words:
        assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        return
    with pytest.raises(MalformedAnnotation, match=words) as refused:
        agent.allocate(*IDS)
    assert "delete the pod" in str(refused.value)
    assert scene.now(mine).annotations["hami.io/bind-phase"] == "failed"
    assert not scene.grant_log.records()


@pytest.mark.parametrize(
    ("memory_mib", "granted"),
    [
        pytest.param(1536, True, id="of the very GPU"),
        pytest.param(8192, False, id="of a larger one beside it"),
    ],
)
def test_a_percentage_is_of_the_gpu_that_is_claimed(memory_mib: int, granted: bool) -> None:
    scene = Scene()
    small = Gpu(uuid=GPU_A, index=0, name="Tesla T4", memory_mib=15360)
    large = Gpu(uuid=GPU_B, index=1, name="NVIDIA A100-SXM4-80GB", memory_mib=81920)
    asking = replace(container("main"), asked=Asked(0, 10))
    scene.bound(pod("p", f"{GPU_A},NVIDIA,{memory_mib},0:;", asking))
    agent = scene.start(inventory=GpuInventory.of([small, large]))
    if granted:
        assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1536m"
        return
    with pytest.raises(MalformedAnnotation, match="8192 MiB, where the container asks for 1536"):
        agent.allocate(*IDS)


@pytest.mark.parametrize("asked", [NOTHING, Asked(0, 100)], ids=["by default", "in percent"])
def test_all_that_is_registered_of_a_scaled_gpu_is_granted(asked: Asked) -> None:
    """49140 * 1.15 is 56510.99999999999 in a computer: the scheduler is told 56511."""
    card = Gpu(uuid=GPU_A, index=0, name="NVIDIA RTX 6000 Ada Generation", memory_mib=49140)
    sharing = Sharing(memory_scaling=1.15)
    (told,) = registered_gpus([card], sharing, "json")
    scene = Scene()
    all_of_it = f"{GPU_A},NVIDIA,{told.memory_mib},0:;"
    scene.bound(pod("p", all_of_it, replace(container("main"), asked=asked)))
    agent = scene.start(sharing=sharing, inventory=GpuInventory.of([card]))
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "56511m"


def test_a_larger_mig_device_than_is_asked_for_is_given() -> None:
    """As the scheduler decides where no smaller one has a place."""
    world = World()
    asking = replace(container("main"), asked=Asked(1000, 0, 10))
    world.bound(mig_pod("p", allocation(0, LARGE), containers=(asking,)))
    process, _ = world.life()
    assert process.allocate(*IDS)["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
    assert world.places() == {0: 4}
