"""Granting slices: who gets what, who is refused, and that nothing is given away twice."""

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sick_gpus import with_health

from agent.domain.gpu import GpuInventory
from agent.domain.grants import Grant
from agent.domain.slices import Offer
from agent.errors import AllocateRefused, BudgetExceeded, NodeNotReady, UnknownDevice
from tests.unit.fakes import GPU_A, GPU_B
from tests.unit.slices_world import SIZES, World

MEMORY_MIB = 46068


def limits_of(grant: Grant) -> dict[str, tuple[int, int]]:
    """MiB and percent by GPU, from the environment: what the container is told."""
    uuids = grant.envs["NVIDIA_VISIBLE_DEVICES"].split(",")
    percent = int(grant.envs["CUDA_DEVICE_SM_LIMIT"])
    return {
        uuid: (int(grant.envs[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"].removesuffix("m")), percent)
        for place, uuid in enumerate(uuids)
    }


def test_a_container_gets_the_slices_that_kubelet_chose() -> None:
    world = World()
    given = world.run_pod("a", [f"{GPU_B}-0", f"{GPU_A}-1", f"{GPU_A}-4"])
    record = world.log.records()[0]
    assert limits_of(given.grant) == {GPU_A: (9212, 20), GPU_B: (4606, 20)}
    assert [(c.uuid, c.memory_mib, c.core_percent) for c in record.claims] == [
        (GPU_A, 9212, 20),
        (GPU_B, 4606, 10),
    ]
    assert record.answered
    assert not record.named


def test_ids_that_kubelet_took_back_make_a_grant_with_files_of_its_own() -> None:
    world = World()
    first = world.run_pod("a", [f"{GPU_A}-0"])
    world.end_pod("a")
    second = world.run_pod("b", [f"{GPU_A}-0"])
    assert first.grant.mounts != second.grant.mounts
    assert len(world.caches.directories) == 2, "the first one's are deleted later, by their age"


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        pytest.param(["x-0"], UnknownDevice, "none of this node's", id="an id of nobody"),
        pytest.param([f"{GPU_A}-10"], UnknownDevice, "none of this node's", id="beyond the count"),
        pytest.param([f"{GPU_A}-small-0"], UnknownDevice, "none of this node's", id="of a size"),
        pytest.param([], UnknownDevice, "no slice", id="none"),
        pytest.param([f"{GPU_B}-0"], NodeNotReady, "XID 79", id="of a sick card"),
    ],
)
def test_who_cannot_be_served_is_told_why(
    ids: list[str], error: type[AllocateRefused], said: str
) -> None:
    world = World()
    world.inventory.update(lambda now: with_health(now, GPU_B, "XID 79"))
    with pytest.raises(error, match=said) as refused:
        world.allocate(world.offers[0], ids)
    assert "delete the pod" in str(refused.value)
    assert not world.log.records()


def test_before_the_gpus_are_read_no_gpu_is_said_to_be_gone() -> None:
    world = World()
    world.inventory.publish(GpuInventory())
    with pytest.raises(NodeNotReady, match="has not read the node's GPUs yet"):
        world.run_pod("a", [f"{GPU_A}-0"])


def test_too_late_takes_back_what_was_made() -> None:
    world = World()
    with pytest.raises(BudgetExceeded):
        world.allocator.allocate(world.offers[0], [f"{GPU_A}-0"], deadline_s=world.clock() - 0.0001)
    assert not world.log.records()
    assert not world.caches.directories


def test_a_size_that_lost_the_race_is_told_what_is_left() -> None:
    world = World(SIZES)
    world.run_pod("a", [f"{GPU_A}-large-0"], world.offer("large"))
    world.run_pod("b", [f"{GPU_A}-small-0"], world.offer("small"))
    with pytest.raises(NodeNotReady, match=r"only 13300 MiB and 25 % .* are free") as refused:
        world.allocate(world.offer("small"), [f"{GPU_A}-small-1", f"{GPU_A}-small-2"])
    assert "16384 MiB and 50 %" in str(refused.value)
    assert GPU_A in str(refused.value)


def test_what_is_freed_can_be_had_by_another_size_soon() -> None:
    world = World(SIZES)
    for number in range(4):
        world.run_pod(f"s{number}", [f"{GPU_A}-small-{number}"], world.offer("small"))
    world.look(after_s=30.0)
    assert f"{GPU_A}-large-0" not in world.healthy(world.offer("large"))
    world.end_pod("s0")
    world.end_pod("s1")
    for _ in range(4):
        world.look()
    assert f"{GPU_A}-large-0" in world.healthy(world.offer("large"))


def test_slices_of_a_container_that_still_runs_are_not_given_away() -> None:
    """Kubelet has lost its checkpoint, and takes them for free."""
    world = World()
    world.run_pod("a", [f"{GPU_A}-0"])
    world.look()
    world.start_processes("a")
    world.kubelet.given.clear()
    with pytest.raises(NodeNotReady, match="team/a/main holds, whose processes still run"):
        world.allocate(world.offers[0], [f"{GPU_A}-0"])


def test_after_another_split_count_old_slices_still_count() -> None:
    world = World(split_count=2)
    world.run_pod("half", [f"{GPU_A}-0"])
    world.sharing = type(world.sharing)(split_count=10)
    world.restart()
    healthy = [i for i in world.healthy(world.offers[0]) if i.startswith(GPU_A)]
    assert len(healthy) == 5, "half of the card is handed out"


def test_what_the_journal_has_lost_is_counted_by_kubelets_books() -> None:
    world = World(SIZES)
    world.run_pod("a", [f"{GPU_A}-large-0"], world.offer("large"))
    world.log.by_container.clear()
    world.restart()
    assert f"{GPU_A}-small-3" in world.healthy(world.offer("small")), "nobody has asked kubelet yet"
    world.look()
    healthy = [i for i in world.healthy(world.offer("small")) if i.startswith(GPU_A)]
    assert healthy == [f"{GPU_A}-small-0", f"{GPU_A}-small-1"]
    world.end_pod("a")
    world.look()
    assert f"{GPU_A}-small-3" in world.healthy(world.offer("small"))


class Node(RuleBasedStateMachine):
    """Kubelet gives and takes in any order, the agent restarts, looks late or never.

    What is checked is what containers are told, summed over the pods that there are.
    """

    sizes = True

    @initialize()
    def begin(self) -> None:
        self.world = World(SIZES if self.sizes else (), split_count=3)
        self.number = 0

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, 3),
        pick=st.integers(0, 100),
        stale=st.booleans(),
        init=st.booleans(),
    )
    def admit(self, which: int, count: int, pick: int, stale: bool, init: bool) -> None:
        """A pod; with `stale` kubelet has not heard yet which ids fit no more."""
        world = self.world
        offer = world.offers[which % len(world.offers)]
        free = self.free(offer, stale=stale)
        if len(free) < count:
            return
        self.number += 1
        name, at = f"p{self.number}", pick % (len(free) - count + 1)
        ids = free[at : at + count]
        refusal = None
        try:
            if init:  # its slices are given to the next container of the pod
                world.run_pod(name, ids, offer, container="init", init=True)
            world.run_pod(name, ids, offer)
            world.start_processes(name)
        except NodeNotReady as error:
            refusal = error
            world.end_pod(name)
        assert stale or refusal is None, f"what kubelet was told it could give: {refusal}"

    def free(self, offer: Offer, *, stale: bool) -> list[str]:
        if not stale:
            return self.world.healthy(offer)
        count = 4 if offer.size else 3
        prefix = f"-{offer.size.name}" if offer.size else ""
        used = self.world.kubelet.in_use(offer.resource)
        every = [f"{gpu}{prefix}-{n}" for gpu in (GPU_A, GPU_B) for n in range(count)]
        most = 1 if offer.size and offer.size.name == "large" else count
        return [i for i in every if i not in used and int(i.rpartition("-")[2]) < most]

    @rule(pick=st.integers(0, 100))
    def delete(self, pick: int) -> None:
        given = self.world.kubelet.given
        if given:
            self.world.end_pod(given[pick % len(given)].pod)

    @rule()
    def restart_agent(self) -> None:
        self.world.restart()

    @rule()
    def restart_kubelet(self) -> None:
        """It writes its books anew."""
        self.world.kubelet.write()

    @rule(after_s=st.sampled_from([0.1, 2.0, 25.0, 70.0, 400.0]))
    def look(self, after_s: float) -> None:
        self.world.look(after_s=after_s)

    @rule(api=st.booleans(), file=st.booleans())
    def break_books(self, api: bool, file: bool) -> None:
        self.world.kubelet.api, self.world.kubelet.file = api, file

    @rule(knows_pods=st.booleans())
    def lose_sight(self, knows_pods: bool) -> None:
        """A kubelet that has started while its API server is away lists no pod."""
        self.world.kubelet.knows_pods = knows_pods

    @invariant()
    def no_card_is_given_away_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        sums: dict[str, list[int]] = {GPU_A: [0, 0], GPU_B: [0, 0]}
        pods: dict[str, dict[str, tuple[int, int]]] = {}
        for one in self.world.kubelet.given:  # containers of a pod have the same, in turn
            pods[one.pod] = exact(one.ids, self.world)
        for held in pods.values():
            for gpu, (memory, cores) in held.items():
                sums[gpu][0] += memory
                sums[gpu][1] += cores
        for memory, cores in sums.values():
            assert memory <= MEMORY_MIB
            assert cores <= 100


def exact(ids: frozenset[str], world: World) -> Mapping[str, tuple[int, int]]:
    """What these ids are worth, counted by hand."""
    worth = {"small": (8192, 25), "large": (24576, 50)}
    found: dict[str, tuple[int, int]] = {}
    for device_id in ids:
        gpu = GPU_A if device_id.startswith(GPU_A) else GPU_B
        size = device_id[len(gpu) + 1 :].rpartition("-")[0]
        memory, cores = worth.get(size, (MEMORY_MIB // 3, 33))
        before = found.get(gpu, (0, 0))
        found[gpu] = (before[0] + memory, before[1] + cores)
    return found


class EqualParts(Node):
    sizes = False


TestSizes = Node.TestCase
TestSizes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestEqualParts = EqualParts.TestCase
TestEqualParts.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
