"""What a slice is, what fits beside what, and which slices kubelet should take."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sick_gpus import with_health

from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.identities import directory_of, identity, is_identity
from agent.domain.slice_choice import GPUS, PLACEMENTS, preferred_slices
from agent.domain.slice_sizes import parse_sizes, show_sizes
from agent.domain.slices import (
    Amount,
    Held,
    Offer,
    SliceSize,
    advertised,
    claims_of,
    free,
    held_by,
    objection_to,
    offers,
    slices_of,
    unfit,
    whole,
)
from tests.unit.fakes import GPU_A, GPU_B, gpus

RESOURCE = "nvidia.com/gpu"
EQUAL = Offer(resource=RESOURCE)
SMALL = SliceSize(name="small", memory_mib=8192, core_percent=25)
LARGE = SliceSize(name="large", memory_mib=24576, core_percent=50)


def of_size(size: SliceSize) -> Offer:
    return Offer(resource=f"{RESOURCE}-{size.name}", size=size)


def record(
    ids: tuple[str, ...], *claims: Claim, name: str = "slices-0123456789abcdef"
) -> GrantRecord:
    return GrantRecord(
        pod_uid=name,
        namespace="",
        pod_name=name,
        container="c",
        device_ids=ids,
        claims=claims,
        grant=Grant(),
        granted_at_s=1000.0,
    )


def one_gpu(memory_mib: int) -> GpuInventory:
    return GpuInventory.of([Gpu(uuid=GPU_A, index=0, name="x", memory_mib=memory_mib)])


# --- equal parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_mib", "count", "scaling", "part"),
    [
        pytest.param(46068, 10, 1.0, Amount(4606, 10), id="tenths; 8 MiB are left over"),
        pytest.param(46068, 3, 1.0, Amount(15356, 33), id="thirds; 1 % is left over"),
        pytest.param(46068, 1, 1.0, Amount(46068, 100), id="the whole card"),
        pytest.param(46068, 100, 1.0, Amount(460, 1), id="as many as there are percent"),
        pytest.param(46068, 10, 2.0, Amount(9213, 10), id="more memory than there is, as scaled"),
        pytest.param(46068, 10, 0.5, Amount(2303, 10), id="less memory than there is"),
    ],
)
def test_equal_parts(memory_mib: int, count: int, scaling: float, part: Amount) -> None:
    sharing = Sharing(split_count=count, memory_scaling=scaling)
    slices = slices_of(EQUAL, one_gpu(memory_mib), sharing)
    assert [one.device_id for one in slices] == [f"{GPU_A}-{slot}" for slot in range(count)]
    assert {one.amount for one in slices} == {part}


@pytest.mark.parametrize(
    ("reserved_mib", "scaling", "part_mib"),
    [
        pytest.param(450, 1.0, 1491, id="as on a T4"),
        pytest.param(450, 2.0, 2982, id="of what there is, as scaled"),
        pytest.param(15360, 1.0, 0, id="all of it"),
        pytest.param(20000, 1.0, 0, id="more than all"),
    ],
)
def test_what_the_driver_keeps_is_in_no_part(
    reserved_mib: int, scaling: float, part_mib: int
) -> None:
    """But parts are compared with the whole: what is in use was cut by what was told before."""
    gpu = replace(one_gpu(15360).gpus[0], reserved_mib=reserved_mib)
    sharing = Sharing(memory_scaling=scaling)
    slices = slices_of(EQUAL, GpuInventory.of([gpu]), sharing)
    assert {one.amount.memory_mib for one in slices} == ({part_mib} if part_mib else set())
    assert free(gpu, sharing, Held()).memory_mib == 15360 * scaling


@given(st.integers(1, 300_000), st.integers(1, 100), st.floats(0.01, 4), st.floats(0.05, 2))
def test_all_parts_together_are_never_more_than_the_card(
    memory_mib: int, count: int, memory_scaling: float, core_scaling: float
) -> None:
    sharing = Sharing(split_count=count, memory_scaling=memory_scaling, core_scaling=core_scaling)
    inventory = one_gpu(memory_mib)
    slices = slices_of(EQUAL, inventory, sharing)
    total = Amount(
        sum(one.amount.memory_mib for one in slices), sum(one.amount.core_percent for one in slices)
    )
    assert whole(inventory.gpus[0], sharing).holds(total)
    assert all(one.amount.memory_mib > 0 and one.amount.core_percent > 0 for one in slices)


@pytest.mark.parametrize(
    ("sizes", "sharing", "said"),
    [
        pytest.param((), Sharing(split_count=100), "", id="one percent each"),
        pytest.param((), Sharing(split_count=101), "less than 1 %", id="less than one percent"),
        pytest.param((SMALL,), Sharing(split_count=101), "", id="sizes need no equal parts"),
        pytest.param((), Sharing(split_count=150, core_scaling=2.0), "", id="cores scaled up"),
        pytest.param(
            (LARGE,), Sharing(core_scaling=0.4), "size large has 50 %", id="more than is handed out"
        ),
    ],
)
def test_what_no_card_can_be_cut_into_is_refused(
    sizes: tuple[SliceSize, ...], sharing: Sharing, said: str
) -> None:
    objection = objection_to(sizes, sharing)
    assert said in objection
    assert bool(said) == bool(objection)


# --- named sizes ---------------------------------------------------------------------------------


def test_each_size_is_a_resource_of_its_own() -> None:
    assert [one.resource for one in offers(RESOURCE, (SMALL, LARGE))] == [
        "nvidia.com/gpu-small",
        "nvidia.com/gpu-large",
    ]
    assert [one.resource for one in offers(RESOURCE, ())] == [RESOURCE]


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(SMALL, 4, id="cores decide"),
        pytest.param(replace(SMALL, core_percent=1), 5, id="memory decides"),
        pytest.param(replace(SMALL, memory_mib=50_000), 0, id="larger than the card"),
    ],
)
def test_as_many_of_a_size_as_fit_alone(size: SliceSize, count: int) -> None:
    slices = slices_of(of_size(size), one_gpu(46068), Sharing())
    assert [one.device_id for one in slices] == [f"{GPU_A}-small-{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("offer", "memory_mib", "said"),
    [
        pytest.param(of_size(replace(SMALL, memory_mib=50_000)), 46068, True, id="none fits"),
        pytest.param(of_size(SMALL), 46068, False, id="some do"),
        pytest.param(EQUAL, 46068, False, id="equal parts"),
        pytest.param(of_size(SMALL), 0, False, id="no GPU"),
    ],
)
def test_a_size_that_no_gpu_has_is_told(offer: Offer, memory_mib: int, said: bool) -> None:
    inventory = one_gpu(memory_mib) if memory_mib else GpuInventory()
    why = unfit(offer, inventory, Sharing())
    assert (f"fits none of this node, of which the largest has {memory_mib} MiB" in why) is said
    assert bool(why) is said


@pytest.mark.parametrize(
    ("raw", "sizes"),
    [
        pytest.param("small=8Gi:25,large=24Gi:50", (SMALL, LARGE), id="a flag"),
        pytest.param("small=8192:25", (SMALL,), id="a bare number counts MiB"),
        pytest.param(" small = 8192Mi : 25% , ", (SMALL,), id="blanks, a percent sign, a comma"),
        pytest.param(
            {"small": {"memory": "8Gi", "cores": 25}, "large": {"memory": 24576, "cores": "50"}},
            (SMALL, LARGE),
            id="a file",
        ),
        pytest.param("", (), id="none"),
        pytest.param({}, (), id="an empty section"),
    ],
)
def test_sizes_are_read(raw: object, sizes: tuple[SliceSize, ...]) -> None:
    assert parse_sizes(raw) == sizes
    assert parse_sizes(show_sizes(sizes)) == sizes


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param("small", "not name=memory:cores", id="no limits"),
        pytest.param("small=8Gi", "needs both limits", id="no cores"),
        pytest.param("small=8Gi:0", "percent from 1 to 100", id="no cores at all"),
        pytest.param("small=8Gi:101", "percent from 1 to 100", id="more than all cores"),
        pytest.param("small=8Gi:2.5", "percent from 1 to 100", id="half a percent"),
        pytest.param("small=0:25", "at least 1 MiB", id="no memory"),
        pytest.param("small=8GB:25", "8Gi, 8192Mi or 8192", id="another unit"),
        pytest.param("small=-8Gi:25", "8Gi, 8192Mi or 8192", id="less than nothing"),
        pytest.param("Small=8Gi:25", "cannot be the name", id="a capital"),
        pytest.param("s/m=8Gi:25", "cannot be the name", id="a slash"),
        pytest.param("-s=8Gi:25", "cannot be the name", id="a dash first"),
        pytest.param("sixteen-letters-=8Gi:25", "cannot be the name", id="too long"),
        pytest.param("a=1:1,a=2:2", "is there twice", id="one name twice"),
        pytest.param(",".join(f"s{n}=1:1" for n in range(17)), "at most 16", id="too many"),
        pytest.param({"a": {"memory": "8Gi"}}, "must have memory and cores", id="half a size"),
        pytest.param({"a": "8Gi"}, "must have memory and cores", id="no mapping"),
        pytest.param({7: {"memory": 1, "cores": 1}}, "cannot be the name", id="a number as name"),
        pytest.param({"a": {"memory": True, "cores": 1}}, "the memory of size a", id="a switch"),
        pytest.param([["a"]], "is no size", id="a list of lists"),
        pytest.param(7, "is no size", id="a number"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(raw: object, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        parse_sizes(raw)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    _ANYTHING
    | st.dictionaries(
        st.just("a"), st.dictionaries(st.sampled_from(["memory", "cores"]), _ANYTHING)
    )
)
def test_whatever_is_written_is_a_size_or_a_sentence(raw: object) -> None:
    problem, sizes = "", ()
    try:
        sizes = parse_sizes(raw)
    except ValueError as error:
        problem = str(error)
    assert len(problem) < 400
    assert parse_sizes(show_sizes(sizes)) == sizes


# --- what is handed out --------------------------------------------------------------------------


def test_several_slices_of_a_gpu_add_up_and_gpus_stay_apart() -> None:
    slices = {s.device_id: s for s in slices_of(EQUAL, gpus(GPU_A, GPU_B), Sharing())}
    ids = [f"{GPU_B}-0", f"{GPU_A}-3", f"{GPU_A}-1"]
    assert claims_of(slices[i] for i in ids) == (
        Claim(GPU_A, "NVIDIA", 2 * 4606, 20),
        Claim(GPU_B, "NVIDIA", 4606, 10),
    )


def test_an_id_counts_once_and_the_larger_part_of_it() -> None:
    """An init container and the one after it have the same slice, one after the other."""
    first = record((f"{GPU_A}-0", f"{GPU_A}-1"), Claim(GPU_A, "NVIDIA", 9212, 20))
    later = record((f"{GPU_A}-0",), Claim(GPU_A, "NVIDIA", 4606, 10), name=identity("slices", 7))
    assert held_by([first, later]).of(GPU_A) == Amount(9212, 20)


def test_a_grant_of_another_mode_counts_by_its_claims() -> None:
    """Its ids say how many vGPUs it has, not of which GPU."""
    old = record((f"{GPU_B}-0",), Claim(GPU_A, "NVIDIA", 30000, 60), name="a-pods-own-uid")
    held = held_by([old])
    assert held.of(GPU_A) == Amount(30000, 60)
    assert held.of(GPU_B) == Amount()


@pytest.mark.parametrize(
    ("now", "held"),
    [
        pytest.param(Amount(20000, 60), Amount(20000, 60), id="raised"),
        pytest.param(Amount(100, 1), Amount(4606, 10), id="lowered: it can be raised again"),
        pytest.param(Amount(100, 60), Amount(4606, 60), id="one of both"),
    ],
)
def test_a_limit_that_was_raised_takes_from_what_is_left(now: Amount, held: Amount) -> None:
    one = record((f"{GPU_A}-0",), Claim(GPU_A, "NVIDIA", 4606, 10))
    assert held_by([one], lambda _: {GPU_A.lower(): now}).of(GPU_A) == held


def test_sizes_share_a_card_and_what_does_not_fit_is_unhealthy() -> None:
    inventory, sharing = one_gpu(46068), Sharing()

    def healthy(size: SliceSize, held: Held) -> list[str]:
        listed = advertised(of_size(size), inventory, sharing, held)
        return [one.device_id.rpartition("-")[2] for one in listed if one.healthy]

    nothing = Held()
    assert healthy(SMALL, nothing) == ["0", "1", "2", "3"]
    assert healthy(LARGE, nothing) == ["0"]
    one_large = held_by([record((f"{GPU_A}-large-0",), Claim(GPU_A, "NVIDIA", 24576, 50))])
    assert healthy(LARGE, one_large) == ["0"], "it is in use, and well"
    assert healthy(SMALL, one_large) == ["0", "1"], "21492 MiB and 50 % are left"
    both = held_by(
        [
            record((f"{GPU_A}-large-0",), Claim(GPU_A, "NVIDIA", 24576, 50)),
            record(
                (f"{GPU_A}-small-1", f"{GPU_A}-small-3"),
                Claim(GPU_A, "NVIDIA", 16384, 50),
                name=identity("slices", 2),
            ),
        ]
    )
    assert healthy(SMALL, both) == ["1", "3"], "those in use alone"
    assert free(inventory.gpus[0], sharing, both) == Amount(46068 - 24576 - 16384, 0)


def test_a_sick_card_has_no_healthy_slice() -> None:
    inventory = with_health(one_gpu(46068), GPU_A, "it fell off the bus")
    assert not any(one.healthy for one in advertised(EQUAL, inventory, Sharing(), Held()))


# --- names ---------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1))
def test_a_grants_own_name_is_no_pods_uid(number: int) -> None:
    name = identity("slices", number)
    assert is_identity(name)
    assert directory_of(name, "whatever") == f"{name}_c"


@pytest.mark.parametrize(
    "uid",
    [
        "3f8a2b1c-0d4e-4c5a-9b6f-7e8d9c0b1a2f",
        "0123456789abcdef0123456789abcdef",
        "slices-0123456789ABCDEF",
        "slices-0123456789abcde",
        "uid-of-somebody",
        "",
    ],
)
def test_a_pods_uid_is_no_grants_name(uid: str) -> None:
    assert not is_identity(uid)
    assert directory_of(uid, "main") == f"{uid}_main"


# --- which ids -----------------------------------------------------------------------------------

IDS = [f"{uuid}-{slot}" for uuid in (GPU_A, GPU_B) for slot in range(4)]
GPU_OF = {i: i.rpartition("-")[0] for i in IDS}


def chosen(
    size: int,
    gpus: str,
    placement: str,
    *,
    load: float = 0.0,
    available: list[str] = IDS,
    must: tuple[str, ...] = (),
) -> Counter[str]:
    ids = preferred_slices(
        available, must, size, gpu_of=GPU_OF, load={GPU_A: load, GPU_B: 0.1},
        placement=placement, gpus=gpus,
    )  # fmt: skip
    assert len(ids) == size
    return Counter("A" if GPU_OF[i] == GPU_A else "B" for i in ids)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(chosen(1, "any", "spread", load=0.5), {"B": 1}, id="spread: least first"),
        pytest.param(chosen(1, "any", "pack", load=0.5), {"A": 1}, id="pack: most first"),
        pytest.param(chosen(3, "one", "spread", load=0.5), {"B": 3}, id="one GPU"),
        pytest.param(chosen(2, "distinct", "pack", load=0.5), {"A": 1, "B": 1}, id="distinct"),
        pytest.param(chosen(3, "distinct", "spread", load=0.5), {"B": 2, "A": 1}, id="more than GPUs"),
        pytest.param(chosen(5, "one", "spread"), {"A": 4, "B": 1}, id="more than one has: few GPUs"),
        pytest.param(chosen(6, "any", "pack", load=0.5), {"A": 4, "B": 2}, id="pack fills up"),
        pytest.param(chosen(2, "any", "spread"), {"A": 1, "B": 1}, id="spread takes turns"),
        pytest.param(
            chosen(3, "one", "pack", load=0.5, available=[IDS[0], *IDS[4:]]),
            {"B": 3},
            id="one GPU: where all fit, not where most is used",
        ),
        pytest.param(
            chosen(2, "one", "spread", load=0.9, must=(IDS[1],)), {"A": 2}, id="beside what it has"
        ),
        pytest.param(
            chosen(3, "distinct", "pack", load=0.5, must=(IDS[1],)),
            {"A": 2, "B": 1},
            id="distinct: not beside what it has",
        ),
    ],
)  # fmt: skip
def test_the_setting_says_of_which_gpus(found: Counter[str], expected: dict[str, int]) -> None:
    assert dict(found) == expected


@given(
    st.lists(st.sampled_from([*IDS, "no-id-of-ours", "x"]), max_size=9),
    st.lists(st.sampled_from(IDS), max_size=4),
    st.integers(-1, 10),
    st.sampled_from(PLACEMENTS),
    st.sampled_from(GPUS),
)
def test_whatever_kubelet_asks_the_answer_is_one_it_can_use(
    available: list[str], must: list[str], size: int, placement: str, gpus: str
) -> None:
    ids = preferred_slices(
        available, must, size, gpu_of=GPU_OF, load={}, placement=placement, gpus=gpus
    )
    assert len(ids) == len(set(ids)) <= max(0, size)
    assert set(ids) <= {*available, *must}
    assert len(ids) == min(max(0, size), len({*available, *must}))
    assert set(must[: max(0, size)]) <= set(ids) or len(set(must)) > size
